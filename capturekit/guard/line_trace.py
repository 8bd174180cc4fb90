"""Which line of the user's code made which nodes, and between which two lines a capture was lost.

While a capture is open, the lines of the user's code in its thread are followed. Whenever a line ends, the driver is
asked for the last node of the current stream: if it has changed, the line made nodes. Which ones is found out when the
capture ends and the order of the nodes can be read. (Counting nodes would take longer and longer: 85 us at 10,000 nodes
on an H100, while asking for the last one takes 0.4 us.) Python 3.12 and later report lines by ``sys.monitoring`` (PEP
669), which does not disturb debuggers and coverage tools. Older ones do by ``sys.settrace``, if no other tool uses it;
otherwise only the calls that the guard sees are known."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Span, Step
from capturekit.model.skipped_exits import Lock
from capturekit.model.source_line import Place, is_foreign_frame

#: The values in place of a stream's last node: the capture is lost; the stream is in no capture.
LOST, OUTSIDE = -1, -2
#: None before Python 3.12.
_monitoring: Any = getattr(sys, 'monitoring', None)
_TOOL = 'capturekit'
_thread = threading.get_ident


#: A line, in the form that is cheapest to keep.
_Line = Place | tuple[CodeType, int] | None


def _place(line: _Line) -> Place | None:
    if line is None or isinstance(line, Place):
        return line
    code, number = line
    return Place(code.co_filename, number, code.co_name)


def _at(line: _Line, known: dict[tuple[int, int], list[Any] | None]) -> list[Any] | None:
    """A line in the form of recordings; each is made once."""
    key = (id(line[0]), line[1]) if isinstance(line, tuple) else (0, 0)
    if key not in known:
        place = _place(line)
        known[key] = None if place is None else place.to_json()
    return known[key]


class Trace:
    """The lines of one capture, in the thread that made this.

    ``last`` returns a stream's last node: its handle, 0 if there is none yet, :data:`LOST` or :data:`OUTSIDE`. ``lane``
    returns a stream's lane. ``stream`` is the current stream, at first the origin; who makes another one current calls
    :meth:`poll` and then sets it."""

    def __init__(
        self, last: Callable[[int], int], origin: int, lane: Callable[[int], int | None], at: Place | None
    ) -> None:
        self.spans: list[Span] = []
        self.stream = self._origin = origin
        self._last, self._lane = last, lane
        self._others: set[int] = set()
        self._marks: list[tuple[int, int, _Line]] = []
        self._noted: list[tuple[Step, int]] = []
        self._lanes: dict[int, int | None] = {}
        self._now: _Line = at
        self._good: _Line = at
        self._lost: _Line = None
        self._seen = self._before = 0
        self._was_lost = self._over = self._deaf = False
        #: Called once, before the next line.
        self.before_line: Callable[[], object] | None = None
        self.thread = _thread()

    @property
    def good(self) -> Place | None:
        """The last line after which the capture was good."""
        return _place(self._good)

    @property
    def lost(self) -> Place | None:
        """The first line after which the capture was lost; None while it is good, or if no line is known."""
        return _place(self._lost)

    def touch(self, stream: int) -> None:
        """Note that a stream that is not current may get work, because a call names it."""
        if stream != self.stream:
            self._others.add(stream)

    def poll(self, ends: tuple[int, ...] = (), stream: int = 0) -> None:
        """Attribute new nodes to the current line. ``ends``: what the next work of a stream comes after."""
        try:
            known = len(ends) == 1 and self.stream == stream
            tail = ends[0] if known else self._last(self.stream)
            if tail != self._seen:
                self._mark(tail, self.stream)
            while self._others:
                stream = self._others.pop()
                self._mark(self._last(stream), stream)
        except CudaCallError:  # it must not reach the user's code, between whose lines this runs
            self._ask_no_more()

    def taken(self, stream: int) -> Place | None:
        """The first line that made nodes on a held stream, if it was seen; the nodes themselves are thrown away."""
        self.poll()
        found = None
        for i, (tail, other, line) in enumerate(self._marks):
            if other == stream and tail > 0:
                found = found or _place(line)
                self._marks[i] = -1, other, line  # a later node may get its handle
        return found

    def last_work(self, stream: int, lane: int) -> Place | None:
        """The last line that made nodes on a stream, or, in earlier parts of the capture, on that lane."""
        self.poll()
        seen: set[int] = set()
        found: _Line = None
        for tail, other, line in self._marks:
            if tail > 0 and tail not in seen:  # a stream that becomes current again still has its old last node
                seen.add(tail)
                found = line if other == stream else found
        if found is not None:
            return _place(found)
        return next((Place.from_json(span.at) for span in reversed(self.spans) if span.lane == lane), None)

    def maker(self, node: int, order: Sequence[int]) -> Place | None:
        """The line that made a node of the graph under capture, whose nodes in order are given; None if unknown."""
        self.poll()
        wanted = order.index(node)
        return next((_place(line) for tail, _s, line in self._marks if tail in order[wanted:]), None)

    def now(self) -> tuple[int, int, int]:
        """Where the lines of nodes stand, at the beginning of a part; see :meth:`back_to`."""
        return len(self.spans), self.spans[-1].count if self.spans else 0, self._before

    def back_to(self, then: tuple[int, int, int]) -> None:
        """Forget the lines of all nodes since :meth:`now`, because these nodes have been taken out."""
        number, count, self._before = then
        del self.spans[number:]
        if self.spans:
            self.spans[-1].count = count
        self._marks, self._seen = [], 0
        self._lanes.clear()
        self._noted.clear()

    def belong(self, nodes: Iterable[tuple[int, int]]) -> None:
        """Attribute nodes to the current line; each comes with its stream, in the order in which they were made."""
        for node, stream in nodes:
            self._mark(node, stream)

    def note(self, step: Step, polled: bool = False) -> None:
        """Note a step that orders lanes: at the end it gets the number of nodes that were made before it."""
        if not polled:
            self.poll()
        self._noted.append((step, len(self._marks)))

    def _ask_no_more(self) -> None:
        self._deaf = True
        self._others.clear()
        self._last = lambda _stream: self._seen

    def _mark(self, tail: int, stream: int) -> None:
        self._seen = tail
        if tail > 0:
            if stream not in self._lanes:
                self._lanes[stream] = self._lane(stream)
            self._marks.append((tail, stream, self._now))
        elif not self._was_lost and (
            (stream == self._origin and tail != 0) or (tail == LOST and self._lane(stream) is not None)
        ):  # streams from outside are in other captures
            self._was_lost, self._lost = True, self._now

    def step(self, code: CodeType, line: int) -> None:
        """Note that a line has ended and another begins, in the capture's thread. This asks as :meth:`poll` does."""
        if _thread() != self.thread:
            return
        if self.before_line is not None:
            first, self.before_line = self.before_line, None
            first()
        if self._others or self._deaf:
            self.poll()
        else:
            stream = self.stream
            try:
                tail = self._last(stream)
            except CudaCallError:
                self._ask_no_more()
            else:
                if tail > 0 and tail != self._seen and stream in self._lanes:  # as _mark() does, at nearly each line
                    self._seen = tail
                    self._marks.append((tail, stream, self._now))
                elif tail != self._seen:
                    self._mark(tail, stream)
        if not self._was_lost:
            self._good = self._now
        self._now = (code, line)

    def next_part(self, order: Sequence[int] | None) -> None:
        """End the graph under capture: ``order`` are its nodes in the order they were made; if that is None, each mark
        counts as one node. Later nodes belong to another graph, and their numbers continue."""
        if self._over:
            return
        known_order = order if order is not None else [tail for tail, _stream, _line in self._marks if tail > 0]
        ends = dict(zip(dict.fromkeys(known_order), range(1, len(known_order) + 1)))
        if order and not self._deaf:
            self._mark(order[-1], self.stream)
        known: dict[tuple[int, int], list[Any] | None] = {}
        high, before = 0, self._before
        highs = []
        for tail, stream, line in self._marks:
            end = ends.get(tail, 0)
            if end > high:
                self._add(before + high, end - high, self._lanes[stream], _at(line, known))
                high = end
            highs.append(high)
        for step, marks in self._noted:
            step.nodes = before + (highs[marks - 1] if marks else 0)
        self._noted.clear()
        self._before += high
        self._marks, self._seen = [], 0
        self._lanes.clear()

    def _add(self, first: int, count: int, lane: int | None, at: list[Any] | None) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last.lane == lane and (last.at is at or last.at == at):
            last.count += count
        else:
            self.spans.append(Span(first, count, lane, at))

    def finish(self, order: Sequence[int] | None = None) -> None:
        """End the trace; the driver is not asked any more. A second call does nothing."""
        if not self._over:
            self.next_part(order)
            self._over = True
            self._ask_no_more()


class Tracing:
    """The traced captures of this process, by thread; in each thread the lines go to the innermost one."""

    def __init__(self) -> None:
        self._traces: dict[int, list[Trace]] = {}
        self._codes: dict[int, CodeType] = {}
        self._lock = Lock()
        self._tool: int | None = None
        self._undo: dict[int, Callable[[], None]] = {}

    def open(self, trace: Trace, frame: FrameType | None) -> None:
        """Follow the lines of this thread from now on: of ``frame``, its callers and what they call."""
        me = threading.get_ident()
        with self._lock:
            self._traces.setdefault(me, []).append(trace)
            if _monitoring is not None:
                self._monitor(frame)
                self._tell_lines()
            elif len(self._traces[me]) == 1:
                self._undo[me] = _settrace(self._top, frame)

    def close(self, trace: Trace) -> None:
        """Stop following this capture. A second call does nothing."""
        with self._lock:
            me = next((thread for thread, traces in self._traces.items() if trace in traces), None)
            if me is None:
                return
            self._traces[me].remove(trace)
            if not self._traces[me]:
                del self._traces[me]
            if _monitoring is None:
                if me not in self._traces:
                    self._undo.pop(me)()
            elif self._traces:
                self._tell_lines()
            else:
                self._stop()

    def _top(self) -> Trace | None:
        traces = self._traces.get(_thread())
        return traces[-1] if traces else None

    def _monitor(self, frame: FrameType | None) -> None:
        events = _monitoring.events
        if self._tool is None:
            free = [number for number in (3, 4, 5, 2, 1, 0) if _monitoring.get_tool(number) is None]
            if not free:
                return
            self._tool = free[0]
            _monitoring.use_tool_id(self._tool, _TOOL)
            for event in (events.PY_START, events.PY_RESUME):
                _monitoring.register_callback(self._tool, event, self._started)
            for event in (events.PY_RETURN, events.PY_YIELD):
                _monitoring.register_callback(self._tool, event, self._returned)
            _monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME)
        while frame is not None:
            self._follow(frame)
            frame = frame.f_back

    def _tell_lines(self) -> None:
        """Let the interpreter call the only trace itself; if there are several, the one of the line's thread."""
        if self._tool is not None:
            (first, *others), *threads = self._traces.values()
            told = self._at_line if others or threads else first.step
            _monitoring.register_callback(self._tool, _monitoring.events.LINE, told)

    def _follow(self, frame: FrameType) -> None:
        code = frame.f_code
        if id(code) in self._codes or is_foreign_frame(frame):
            return
        with self._lock:  # another thread may close the last capture at this moment, and release the tool
            if self._tool is not None:
                events = _monitoring.events
                self._codes[id(code)] = code
                _monitoring.set_local_events(self._tool, code, events.LINE | events.PY_RETURN | events.PY_YIELD)

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
        trace = self._top()
        if trace is not None:
            trace.step(code, line)

    def _returned(self, _code: CodeType, _offset: int, _value: Any) -> Any:
        trace = self._top()
        if trace is not None:
            _back_to(trace, sys._getframe(1).f_back)


def _back_to(trace: Trace, frame: FrameType | None) -> None:
    """Continue with the caller's line, after a function of the user has returned."""
    while frame is not None and is_foreign_frame(frame):
        frame = frame.f_back
    if frame is not None and frame.f_lineno is not None:
        trace.step(frame.f_code, frame.f_lineno)


def _settrace(top: Callable[[], Trace | None], frame: FrameType | None) -> Callable[[], None]:
    """Follow this thread by ``sys.settrace``; return the function that undoes it. Does nothing if a tool traces it."""
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
        if over:  # the capture was ended by another thread, which could not stop this one's tracing
            sys.settrace(None)
            return None
        return None if is_foreign_frame(frame) else local

    followed: list[tuple[FrameType, Any]] = []
    while frame is not None:
        if not is_foreign_frame(frame):
            followed.append((frame, frame.f_trace))
            frame.f_trace = local
        frame = frame.f_back

    over: list[bool] = []

    def undo() -> None:
        over.append(True)
        if sys.gettrace() is called:
            sys.settrace(None)
        for one, before in followed:
            one.f_trace = before
            _forget_variables(one)

    sys.settrace(called)
    return undo


def _forget_variables(frame: FrameType) -> None:
    """Empty the dict of variables that tracing has left in a frame, which would hold them until the function returns;
    but not where other code has it, from ``locals()`` for example."""
    variables: Any = frame.f_locals
    # Three references are known: the frame's, this function's, and that of the call that counts.
    if frame.f_code.co_flags & CO_OPTIMIZED and type(variables) is dict and sys.getrefcount(variables) == 3:
        variables.clear()


TRACING = Tracing()
