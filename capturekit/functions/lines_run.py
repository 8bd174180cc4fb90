"""The lines of the user's code that a run comes to, from Python 3.12 on.

The interpreter tells of each line before it runs (``sys.monitoring``), once, and only in code that the run has met. One
run at a time is told. For one that begins meanwhile, and in older Pythons, all lines count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from capturekit.functions.code_reads import line_number, single_steps

_NAME = 'capturekit: lines that ran'
_monitoring: Any = getattr(sys, 'monitoring', None)
_DISABLE = _monitoring.DISABLE if _monitoring is not None else None
_in_use = threading.Lock()


class LinesRun:
    """Tells of lines: ``begin``, ``follow`` for each code object as it begins to run, ``end``.

    ``came_to`` is called in the thread of the run, with the frame, when it comes to a line for the first time.
    """

    def __init__(self, came_to: Callable[[FrameType], None]) -> None:
        self._came_to: Callable[[FrameType], None] | None = came_to
        self._thread = threading.get_ident()
        self._tool: int | None = None
        self._codes: dict[int, CodeType] = {}
        self._ran: dict[int, set[int]] = {}

    def begin(self) -> None:
        """Begin, if the interpreter can tell of lines and no other run is told."""
        if _monitoring is None or not _in_use.acquire(blocking=False):
            return
        for tool in (5, 4, 3):
            if _monitoring.get_tool(tool) is None:
                _monitoring.use_tool_id(tool, _NAME)
                _monitoring.register_callback(tool, _monitoring.events.LINE, self._line)
                self._tool = tool
                return
        _in_use.release()

    def follow(self, code: CodeType) -> bool:
        """Tell of the lines of code that begins to run for the first time. False if they can't be told."""
        if self._tool is not None:
            self._codes[id(code)] = code
            self._ran[id(code)] = {0}  # what belongs to no line
            _monitoring.set_local_events(self._tool, code, _monitoring.events.LINE)
        return self._tool is not None

    def end(self) -> None:
        """Tell no more. Which lines ran is still known."""
        self._came_to = None  # it holds the run, and so all that it has met
        tool, self._tool = self._tool, None
        if tool is None:
            return
        for code in self._codes.values():
            _monitoring.set_local_events(tool, code, 0)
        _monitoring.register_callback(tool, _monitoring.events.LINE, None)
        _monitoring.free_tool_id(tool)
        _in_use.release()

    def of(self, code: CodeType) -> set[int] | None:
        """The lines of code that ran; None: any may have run."""
        return self._ran.get(id(code))

    def _line(self, code: CodeType, line: int) -> Any:
        if threading.get_ident() != self._thread or self._came_to is None:
            return None
        self._ran[id(code)].add(line)
        self._came_to(sys._getframe(1))
        return _DISABLE


def caught_in(codes: list[tuple[CodeType, set[int] | None]]) -> bool:
    """Whether code may have gone on after an exception. ``codes``: each with its lines that ran; None: any."""
    swallows = any(not {code.co_name, *code.co_names}.isdisjoint(_SWALLOWING) for code, _ in codes)
    return any(_may_catch(code, lines, swallows) for code, lines in codes)


def _may_catch(code: CodeType, lines: set[int] | None, swallows: bool) -> bool:
    """``swallows``: whether what a ``with`` calls at its end may stop an exception."""
    steps = single_steps(code)
    handles = [line_number(step) for step in steps if step.opname in _HANDLING]
    if not handles or lines is None:
        return bool(handles)
    managed = {line_number(step) for step in steps if step.opname == 'WITH_EXCEPT_START'}
    return any(line in lines and (swallows or line not in managed) for line in handles)


#: Instructions that run after an exception.
_HANDLING = frozenset({
    'PUSH_EXC_INFO', 'POP_EXCEPT', 'CHECK_EXC_MATCH', 'CHECK_EG_MATCH', 'JUMP_IF_NOT_EXC_MATCH'
})  # fmt: skip
#: Names of what may stop an exception at the end of a ``with``.
_SWALLOWING = frozenset({'__exit__', 'suppress', 'ExitStack'})
