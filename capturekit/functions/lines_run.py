"""The lines of the user's code that a run comes to, from Python 3.12 on, and the calls that it makes there.

The interpreter tells of each line before it runs (``sys.monitoring``), once, and of each call in chosen code after it,
and only in code that the run has met. One run at a time is told. For one that begins meanwhile, and in older Pythons,
all lines count, and no calls are known.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_NAME = 'capturekit: lines that ran'
_monitoring: Any = getattr(sys, 'monitoring', None)
#: Stands for the first argument of a call without any.
NOTHING = _monitoring.MISSING if _monitoring is not None else None
_DISABLE = _monitoring.DISABLE if _monitoring is not None else None
_in_use = threading.Lock()
_Call = Callable[[CodeType, int, Any, Any], None] | None


class LinesRun:
    """Tells of lines: ``begin``, ``follow`` for each code object as it begins to run, ``end``.

    ``came_to`` is called in the thread of the run, with the frame, when it comes to a line for the first time.
    ``begins`` and ``ended`` are called before calls and, of what is no Python function, after them, with code, offset,
    callee and first argument, which is :data:`NOTHING` if there is none.
    """

    def __init__(self, came_to: Callable[[FrameType], None], begins: _Call = None, ended: _Call = None) -> None:
        self._came_to: Callable[[FrameType], None] | None = came_to
        self._begins, self._ended = begins, ended
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
                _monitoring.register_callback(tool, _monitoring.events.CALL, self._call_begins)
                _monitoring.register_callback(tool, _monitoring.events.C_RETURN, self._call_ended)
                self._tool = tool
                return
        _in_use.release()

    def follow(self, code: CodeType, calls: bool = False) -> bool:
        """Tell of the lines of code that begins to run for the first time, and of its calls where ``calls`` is true.

        False if they can't be told."""
        if self._tool is not None:
            self._codes[id(code)] = code
            self._ran[id(code)] = {0}  # what belongs to no line
            events = _monitoring.events.LINE | (_monitoring.events.CALL if calls else 0)
            _monitoring.set_local_events(self._tool, code, events)
        return self._tool is not None

    def end(self) -> None:
        """Tell no more. Which lines ran is still known."""
        self._came_to = self._begins = self._ended = None  # they hold the run, and so all that it has met
        tool, self._tool = self._tool, None
        if tool is None:
            return
        for code in self._codes.values():
            _monitoring.set_local_events(tool, code, 0)
        for event in (_monitoring.events.LINE, _monitoring.events.CALL, _monitoring.events.C_RETURN):
            _monitoring.register_callback(tool, event, None)
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

    def _call_begins(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        if self._begins is not None and self._is_followed(code):
            self._begins(code, offset, function, first)

    def _call_ended(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        if self._ended is not None and self._is_followed(code):
            self._ended(code, offset, function, first)

    def _is_followed(self, code: CodeType) -> bool:
        return threading.get_ident() == self._thread and id(code) in self._codes
