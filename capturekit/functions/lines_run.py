"""The lines of the user's code that a run comes to, and calls that it makes, from Python 3.12 on.

The interpreter tells of each line before it runs (``sys.monitoring``), once, and only in code that the run has met; in
some code it tells of each line each time, and of calls. One run at a time is told. For one that begins meanwhile, and
in older Pythons, all lines count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from capturekit.functions.instructions import line_number, single_steps

_NAME = 'capturekit: lines that ran'
_monitoring: Any = getattr(sys, 'monitoring', None)
_DISABLE = _monitoring.DISABLE if _monitoring is not None else None
_in_use = threading.Lock()


class LinesRun:
    """Tells of lines: ``begin``, ``follow`` for each code object as it begins to run, ``end``.

    ``came_to`` is called in the thread of the run when it comes to a line, with the frame, and whether it is the first
    time. ``called`` is called before calls that code makes, with the code, the offset, the function and its first
    argument. Neither may raise.
    """

    def __init__(
        self, came_to: Callable[[FrameType, bool], None], called: Callable[[CodeType, int, Any, Any], None]
    ) -> None:
        self._came_to: Callable[[FrameType, bool], None] | None = came_to
        self._called: Callable[[CodeType, int, Any, Any], None] | None = called
        self._thread = threading.get_ident()
        self._tool: int | None = None
        self._codes: dict[int, CodeType] = {}
        self._ran: dict[int, set[int]] = {}
        #: The code of which each line is told each time, by id.
        self._each_time: set[int] = set()
        #: The events that are told of in code, by its id; and the generators whose values are told, each to whom.
        self._events: dict[int, int] = {}
        self._values: dict[int, Callable[[CodeType, Any], None]] = {}

    def begin(self) -> None:
        """Begin, if the interpreter can tell of lines and no other run is told."""
        if _monitoring is None or not _in_use.acquire(blocking=False):
            return
        for tool in (5, 4, 3):
            if _monitoring.get_tool(tool) is None:
                _monitoring.use_tool_id(tool, _NAME)
                _monitoring.register_callback(tool, _monitoring.events.LINE, self._line)
                _monitoring.register_callback(tool, _monitoring.events.CALL, self._call)
                _monitoring.register_callback(tool, _monitoring.events.PY_YIELD, self._yield)
                self._tool = tool
                return
        _in_use.release()

    @property
    def told(self) -> bool:
        """Whether lines are told of in this run."""
        return self._tool is not None

    def follow(self, code: CodeType, each_time: bool, calls: bool) -> None:
        """Tell of the lines of code that begins to run for the first time."""
        self._codes[id(code)] = code
        self._ran[id(code)] = {0}  # what belongs to no line
        if each_time:
            self._each_time.add(id(code))
        events = _monitoring.events
        self._tell(code, events.LINE | (events.CALL if calls else 0))

    def follow_calls(self, code: CodeType) -> None:
        """Tell of the calls of code whose lines are not told of."""
        self._codes[id(code)] = code
        self._tell(code, _monitoring.events.CALL)

    def tell_values(self, code: CodeType, yielded: Callable[[CodeType, Any], None]) -> None:
        """Tell of all values that generators of this code give."""
        if id(code) not in self._values:
            self._values[id(code)] = yielded
            self._codes[id(code)] = code
            self._tell(code, _monitoring.events.PY_YIELD)

    def _tell(self, code: CodeType, events: int) -> None:
        self._events[id(code)] = self._events.get(id(code), 0) | events
        _monitoring.set_local_events(self._tool, code, self._events[id(code)])

    def end(self) -> None:
        """Tell no more. Which lines ran is still known."""
        self._came_to = self._called = None  # they hold the run, and so all that it has met
        tool, self._tool = self._tool, None
        if tool is None:
            return
        for code in self._codes.values():
            _monitoring.set_local_events(tool, code, 0)
        _monitoring.register_callback(tool, _monitoring.events.LINE, None)
        _monitoring.register_callback(tool, _monitoring.events.CALL, None)
        _monitoring.register_callback(tool, _monitoring.events.PY_YIELD, None)
        self._values.clear()
        _monitoring.free_tool_id(tool)
        _in_use.release()

    def of(self, code: CodeType) -> set[int] | None:
        """The lines of code that ran; None: any may have run."""
        return self._ran.get(id(code))

    def _line(self, code: CodeType, line: int) -> Any:
        if threading.get_ident() != self._thread or self._came_to is None:
            return None
        ran = self._ran[id(code)]
        first = line not in ran
        ran.add(line)
        self._came_to(sys._getframe(1), first)
        return None if id(code) in self._each_time else _DISABLE

    def _yield(self, code: CodeType, _offset: int, value: Any) -> None:
        yielded = self._values.get(id(code))
        if yielded is not None and threading.get_ident() == self._thread and self._called is not None:
            yielded(code, value)

    def _call(self, code: CodeType, offset: int, function: Any, argument: Any) -> None:
        if threading.get_ident() == self._thread and self._called is not None and id(code) in self._codes:
            self._called(code, offset, function, argument)


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
_HANDLING = frozenset({'PUSH_EXC_INFO', 'POP_EXCEPT', 'CHECK_EXC_MATCH', 'CHECK_EG_MATCH'})
#: Names of what may stop an exception at the end of a ``with``.
_SWALLOWING = frozenset({'__exit__', 'suppress', 'ExitStack'})
