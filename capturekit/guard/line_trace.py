"""Which line of the user's code made which nodes, and between which two lines a capture was lost.

While a capture is open, the lines of the user's code in its thread are followed. Whenever one ends, the driver is asked
for the last node of the current stream: if it is another than before, the line made nodes. Which ones is found out when
the capture ends and the nodes' order can be read. (To count the nodes meanwhile takes the longer the more there are:
85 us at 10,000 on an H100, while a stream's last node takes 0.4 us.) Python 3.12 and later tell by ``sys.monitoring``
(PEP 669), which leaves debuggers and coverage tools alone. Before, ``sys.settrace`` does, where nobody else traces;
else only the calls that the guard sees are known.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Span, Step
from capturekit.model.source_line import Place, is_foreign_frame

#: What is answered instead of a stream's last node: the capture is no longer good; the stream is in none.
LOST, OUTSIDE = -1, -2
#: None before Python 3.12.
_monitoring: Any = getattr(sys, 'monitoring', None)
_TOOL = 'capturekit'
_thread = threading.get_ident


#: A line, as it is cheapest to keep.
_Line = Place | tuple[CodeType, int] | None


def _place(line: _Line) -> Place | None:
    if line is None or isinstance(line, Place):
        return line
    code, number = line
    return Place(code.co_filename, number, code.co_name)


def _same(one: _Line, other: _Line) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):  # to compare code takes long
        return one[0] is other[0] and one[1] == other[1]
    return one == other


def _at(line: _Line, known: dict[tuple[int, int], list[Any] | None]) -> list[Any] | None:
    """A line as recordings have it, made once each."""
    key = (id(line[0]), line[1]) if isinstance(line, tuple) else (0, 0)
    if key not in known:
        place = _place(line)
        known[key] = None if place is None else place.to_json()
    return known[key]


class Trace:
    """The lines of one capture.

    ``last`` tells a stream's last node: its handle, 0 where there is none yet, :data:`LOST` or :data:`OUTSIDE`.
    ``lane`` tells a stream's lane. ``stream`` is the one that is current, at first the origin; whoever makes another
    one current says so, after :meth:`poll`.
    """

    def __init__(
        self, last: Callable[[int], int], origin: int, lane: Callable[[int], int | None], at: Place | None
    ) -> None:
        self.spans: list[Span] = []
        self.stream = origin
        self._origin = origin
        self._last = last
        self._lane = lane
        self._others: set[int] = set()
        self._marks: list[tuple[int, int, _Line]] = []
        self._noted: list[tuple[Step, int]] = []
        self._lanes: dict[int, int | None] = {}
        self._now: _Line = at
        self._good: _Line = at
        self._lost: _Line = None
        self._seen = 0
        self._before = 0
        self._was_lost = False
        self._over = False
        self._deaf = False

    @property
    def good(self) -> Place | None:
        """The last line after which the capture was good."""
        return _place(self._good)

    @property
    def lost(self) -> Place | None:
        """The first line after which it was not; None while it is, and where no line is known."""
        return _place(self._lost)

    def touch(self, stream: int) -> None:
        """A stream that is not current may get work by name."""
        if stream != self.stream:
            self._others.add(stream)

    def poll(self) -> None:
        """What is new is the current line's."""
        try:
            tail = self._last(self.stream)
            if tail != self._seen:
                self._mark(tail, self.stream)
            while self._others:
                stream = self._others.pop()
                self._mark(self._last(stream), stream)
        except CudaCallError:  # this runs between lines of the user's code, which must not meet it: ask no more
            self._deaf = True
            self._ask_no_more()

    def taken(self, stream: int) -> Place | None:
        """A stream of another capture, which is thrown away: the first line that made nodes there, if it was seen."""
        self.poll()
        found = None
        for i, (tail, other, line) in enumerate(self._marks):
            if other == stream and tail > 0:
                found = found or _place(line)
                self._marks[i] = -1, other, line  # its handle may be that of a node to come
        return found

    def last_work(self, stream: int, lane: int) -> Place | None:
        """The last line that made nodes on a stream, and, of the parts that are over, on that lane."""
        self.poll()
        seen: set[int] = set()
        found: _Line = None
        for tail, other, line in self._marks:
            if tail > 0 and tail not in seen:  # a stream that becomes current again shows its old node again
                seen.add(tail)
                found = line if other == stream else found
        if found is not None:
            return _place(found)
        return next((Place.from_json(span.at) for span in reversed(self.spans) if span.lane == lane), None)

    def belong(self, nodes: Iterable[tuple[int, int]]) -> None:
        """Nodes of the current line, each with its stream, in the order in which they were made."""
        for node, stream in nodes:
            self._mark(node, stream)

    def note(self, step: Step) -> None:
        """Lanes are ordered here: say in the step, at the end, how many nodes there were before it."""
        self.poll()
        self._noted.append((step, len(self._marks)))

    def _ask_no_more(self) -> None:
        self._others.clear()
        self._last = lambda _stream: self._seen

    def _mark(self, tail: int, stream: int) -> None:
        self._seen = tail
        if tail > 0:
            if stream not in self._lanes:
                self._lanes[stream] = self._lane(stream)
            self._marks.append((tail, stream, self._now))
        elif self._ends_here(tail, stream) and not self._was_lost:
            self._was_lost, self._lost = True, self._now

    def _ends_here(self, tail: int, stream: int) -> bool:
        """Whether what a stream tells is that the capture is lost; streams from outside are in other ones."""
        if tail == LOST:
            return stream == self._origin or self._lane(stream) is not None
        return tail == OUTSIDE and stream == self._origin

    def step(self, code: CodeType, line: int) -> None:
        """The line that ran has ended, and another begins."""
        self.poll()
        if not self._was_lost:
            self._good = self._now
        self._now = (code, line)

    def next_part(self, order: Sequence[int] | None) -> None:
        """The graph under capture ends: ``order`` are its nodes as they were made, None where that can't be known.

        What is recorded from now on belongs to another graph, and numbers go on. Where nobody knows the order, each
        mark counts as one node. After :meth:`finish` there is nothing left to do.
        """
        if self._over:
            return
        place: dict[int, int] = {}
        for handle in order if order is not None else [tail for tail, _stream, _line in self._marks if tail > 0]:
            place.setdefault(handle, len(place))
        if order and not self._deaf:
            self._mark(order[-1], self.stream)
        known: dict[tuple[int, int], list[Any] | None] = {}
        high, before = 0, self._before
        last: tuple[int, _Line] | None = None
        highs = []
        for tail, stream, line in self._marks:
            end = place.get(tail, -1) + 1
            highs.append(max(high, end))
            if end <= high:
                continue
            if last is not None and last[0] == stream and _same(last[1], line):
                self.spans[-1].count += end - high
            else:
                self._add(before + high, end - high, self._lanes[stream], _at(line, known))
                last = (stream, line)
            high = end
        for step, marks in self._noted:
            step.nodes = before + (highs[marks - 1] if marks else 0)
        self._noted.clear()
        self._before += high
        self._marks, self._seen = [], 0
        self._lanes.clear()

    def _add(self, first: int, count: int, lane: int | None, at: list[Any] | None) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last.lane == lane and last.at == at:
            last.count += count
        else:
            self.spans.append(Span(first, count, lane, at))

    def finish(self, order: Sequence[int] | None = None) -> None:
        """The capture ends, and the driver is not asked any more. Again is no error."""
        if not self._over:
            self.next_part(order)
            self._over = True
            self._ask_no_more()


class Tracing:
    """The captures of this process that are followed, by thread; the innermost of a thread is."""

    def __init__(self) -> None:
        self._traces: dict[int, list[Trace]] = {}
        self._codes: dict[int, CodeType] = {}
        self._lock = threading.Lock()
        self._tool: int | None = None
        self._undo: dict[int, Callable[[], None]] = {}

    def open(self, trace: Trace, frame: FrameType | None) -> None:
        """Follow the lines of this thread from now on: of ``frame``, its callers and what they call."""
        me = threading.get_ident()
        with self._lock:
            self._traces.setdefault(me, []).append(trace)
            if _monitoring is not None:
                self._monitor(frame)
            elif len(self._traces[me]) == 1:
                self._undo[me] = _settrace(self._top, frame)

    def close(self, trace: Trace) -> None:
        """Follow this capture no more. Again is no error."""
        with self._lock:
            me = next((thread for thread, traces in self._traces.items() if trace in traces), None)
            if me is None:
                return
            self._traces[me].remove(trace)
            if self._traces[me]:
                return
            del self._traces[me]
            if _monitoring is None:
                self._undo.pop(me)()
            elif not self._traces:
                self._stop()

    def _top(self) -> Trace | None:
        traces = self._traces.get(_thread())
        return traces[-1] if traces else None

    # -- Python 3.12 and later ----------------------------------------------------------------------------------

    def _monitor(self, frame: FrameType | None) -> None:
        events = _monitoring.events
        if self._tool is None:
            free = [number for number in (3, 4, 5, 2, 1, 0) if _monitoring.get_tool(number) is None]
            if not free:
                return
            self._tool = free[0]
            _monitoring.use_tool_id(self._tool, _TOOL)
            for event, callback in (
                (events.PY_START, self._started),
                (events.PY_RESUME, self._started),
                (events.LINE, self._at_line),
                (events.PY_RETURN, self._returned),
                (events.PY_YIELD, self._returned),
            ):
                _monitoring.register_callback(self._tool, event, callback)
            _monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME)
        while frame is not None:
            self._follow(frame)
            frame = frame.f_back

    def _follow(self, frame: FrameType) -> None:
        code = frame.f_code
        if id(code) not in self._codes and not is_foreign_frame(frame):
            events, tool = _monitoring.events, self._tool
            if tool is None:
                return
            self._codes[id(code)] = code
            with suppress(ValueError):  # the last capture, of another thread, has let go of the tool in between
                _monitoring.set_local_events(tool, code, events.LINE | events.PY_RETURN | events.PY_YIELD)

    def _stop(self) -> None:
        tool, self._tool = self._tool, None
        if tool is None:
            return
        _monitoring.set_events(tool, 0)
        for code in self._codes.values():
            _monitoring.set_local_events(tool, code, 0)
        self._codes.clear()
        _monitoring.free_tool_id(tool)

    def _started(self, _code: CodeType, _offset: int) -> Any:
        if self._tool is not None:
            self._follow(sys._getframe(1))
        return _monitoring.DISABLE  # once for each function

    def _at_line(self, code: CodeType, line: int) -> Any:
        traces = self._traces.get(_thread())
        if traces:
            traces[-1].step(code, line)

    def _returned(self, _code: CodeType, _offset: int, _value: Any) -> Any:
        trace = self._top()
        if trace is not None:
            _back_to(trace, sys._getframe(1).f_back)


def _back_to(trace: Trace, frame: FrameType | None) -> None:
    """A function of the user's has returned: the rest of its caller's line goes on."""
    while frame is not None and is_foreign_frame(frame):
        frame = frame.f_back
    if frame is not None and frame.f_lineno is not None:
        trace.step(frame.f_code, frame.f_lineno)


def _settrace(top: Callable[[], Trace | None], frame: FrameType | None) -> Callable[[], None]:
    """Follow this thread by ``sys.settrace``; return the way back. Does nothing where somebody traces already."""
    if sys.gettrace() is not None:
        return lambda: None

    def local(frame: FrameType, event: str, _argument: Any) -> Any:
        trace = top()
        if trace is not None and event == 'line':
            trace.step(frame.f_code, frame.f_lineno)
        elif trace is not None and event == 'return':
            _back_to(trace, frame.f_back)
        return local

    def called(frame: FrameType, _event: str, _argument: Any) -> Any:
        return None if is_foreign_frame(frame) else local

    followed: list[tuple[FrameType, Any]] = []
    while frame is not None:
        if not is_foreign_frame(frame):
            followed.append((frame, frame.f_trace))
            frame.f_trace = local
        frame = frame.f_back

    def undo() -> None:
        if sys.gettrace() is called:
            sys.settrace(None)
        for one, before in followed:
            one.f_trace = before
            _forget_variables(one)

    sys.settrace(called)
    return undo


def _forget_variables(frame: FrameType) -> None:
    """Tracing has left a dict with a function's variables in its frame, which holds them until the function returns.

    The dict is emptied where nobody else has it: from ``locals()``, say.
    """
    variables: Any = frame.f_locals
    # Three hold it: the frame, this function, and the call that counts.
    if frame.f_code.co_flags & CO_OPTIMIZED and type(variables) is dict and sys.getrefcount(variables) == 3:
        variables.clear()


TRACING = Tracing()
