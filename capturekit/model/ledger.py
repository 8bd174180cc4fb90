"""The ledger: an account of which stream is in which capture, and of the order of work. It uses only ints and enums.

CUDA can't list the streams of a capture, nor say which stream forked which; the ledger can, because every call is noted
in it. :meth:`Ledger.judge` says what the driver would answer to a call. Which work comes before which is told by vector
clocks (Fidge and Mattern, 1988): each lane counts segments, and a new one begins when an event is recorded on it. A
lane's clock holds, for every other lane, the last segment that lies wholly before the lane's next work; recording an
event takes a copy of the clock, waiting for it merges the copy in. A lane is joined when the origin's clock has reached
the last segment in which the lane worked.

``at`` arguments are stored and returned unchanged. The ledger is not thread-safe: the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from capturekit.model.rules import (
    BY_HISTORY,
    Answer,
    CaptureStatus,
    Code,
    Effect,
    History,
    Mode,
    Operation,
    Rule,
    Target,
    after,
    row,
)

LEGACY_HANDLES = (0, 1)
PER_THREAD_HANDLE = 2
Clock = dict[int, int]


def named(stream: int) -> str:
    """A stream in words: by its handle, which is no stranger for the one that CUDA has for each thread."""
    return 'the per-thread default stream' if stream == PER_THREAD_HANDLE else f'stream {stream:#x}'


class EventState(Enum):
    """What an event stands for."""

    NEVER = 'never recorded'
    OUTSIDE = 'recorded outside of any capture'
    CAPTURED = 'recorded in an open capture'
    DEAD = 'recorded in a capture that was lost or has ended'


@dataclass(frozen=True)
class CaptureInfo:
    """``cudaStreamGetCaptureInfo``: status, a number unique to the capture, its graph, the next node's dependencies."""

    status: CaptureStatus
    number: int = 0
    graph: int = 0
    dependencies: tuple[int, ...] = ()


def last_node(info: CaptureInfo) -> int:
    """One of the nodes that a stream's next work comes after; 0 for none, -1 in a lost capture, -2 outside of any."""
    ends = next_after(info)
    return ends[-1] if ends else 0


def next_after(info: CaptureInfo) -> tuple[int, ...]:
    """The nodes that a stream's next work comes after; (-1,) in a lost capture, (-2,) outside of any."""
    if info.status is CaptureStatus.ACTIVE:
        return info.dependencies
    return (-2,) if info.status is CaptureStatus.NONE else (-1,)


@dataclass(eq=False)
class EventMark:
    """What a captured event stands for: all that lay before ``lane``'s next work when it was recorded.

    ``nodes``: the driver's dependencies of that work, if they are known.
    """

    capture: LedgerCapture
    lane: int
    clock: Clock
    at: object = None
    nodes: tuple[int, ...] = ()
    #: Whether a stream was made to wait for it.
    waited: bool = False


@dataclass(eq=False)
class Lane:
    """A stream in a capture. ``clock[n]`` is the last segment of lane ``n`` that lies before this lane's next work.

    Since its last event: ``used``: work may have been given to it; ``suspect``: its handle was read; ``waited``: it
    waited for another lane. ``joined_at``: where another lane was last made to wait for it, by an event that was
    recorded at ``joined_since``. ``current``: in how many threads it is the current stream;
    ``nodes``: the driver's dependencies of its next node when an event was last recorded on it;
    ``priority``: the stream's, which its nodes are given; ``device``: the one that the stream belongs to.
    """

    number: int
    stream: int
    capture: LedgerCapture
    blocking: bool
    parent: int | None = None
    forked_at: object = None
    segment: int = 1
    worked: int = 0
    clock: Clock = field(default_factory=dict)
    last_use: object = None
    joined_at: object = None
    joined_since: object = None
    used: bool = False
    suspect: bool = False
    waited: bool = False
    current: int = 0
    nodes: tuple[int, ...] = ()
    priority: int = 0
    device: int = 0

    @property
    def why_unjoined(self) -> str:
        """Why a lane that was joined is not: the end of a sentence about it; '' for one that was not joined."""
        if not self.joined_at:
            return ''
        if self.joined_since == self.joined_at:
            return f'; it was joined at {self.joined_at} and then worked on again'
        return f'; it was joined at {self.joined_at}, by an event recorded at {self.joined_since}, before its last work'

    @property
    def open(self) -> bool:
        """True when work may follow, or have followed, the last event recorded on the lane."""
        return self.used or self.current > 0


@dataclass(eq=False)
class LedgerCapture:
    """One capture: its lanes by number; lane 0 is the origin."""

    number: int
    mode: Mode
    thread: int
    lanes: list[Lane] = field(default_factory=list)
    status: CaptureStatus = CaptureStatus.ACTIVE
    #: Lane 0, from the moment at which there is one.
    origin: Lane = field(init=False, repr=False)

    @property
    def devices(self) -> list[int]:
        """The devices that its lanes belong to, in order."""
        return sorted({lane.device for lane in self.lanes})

    def unjoined(self) -> list[Lane]:
        """Lanes with work that the origin does not come after."""
        clock = self.origin.clock
        return [lane for lane in self.lanes[1:] if lane.worked > clock.get(lane.number, 0)]


@dataclass(frozen=True)
class Verdict:
    """What the driver would answer to a call, the rule for it, and the captures that it would lose."""

    answer: Answer
    rule: Rule | None = None
    lost: tuple[LedgerCapture, ...] = ()
    target: Target = Target.NONE
    #: Where it would cost captures: the question, to be asked again when these are closed.
    asked: tuple[Operation, dict[str, Any]] | None = field(default=None, compare=False)

    @property
    def allowed(self) -> bool:
        """True when the call succeeds and nothing is silently left out of a graph."""
        return not self.answer.refused and self.answer.effect is not Effect.ESCAPES


#: Calls that wait or ask, and what they address where no capture is addressed.
_WAITS = {
    Operation.STREAM_SYNCHRONIZE: Target.OUTSIDE,
    Operation.STREAM_QUERY: Target.OUTSIDE,
    Operation.EVENT_QUERY: Target.OUTSIDE_EVENT,
    Operation.EVENT_SYNCHRONIZE: Target.OUTSIDE_EVENT,
    Operation.UNSAFE: Target.NONE,
}
_OF_CAPTURES = {EventState.CAPTURED: Target.CAPTURED_EVENT, EventState.DEAD: Target.DEAD_EVENT}
#: What a stream outside of a capture is made to wait for, by the event.
_WAITED = {EventState.CAPTURED: Target.FORK, EventState.DEAD: Target.DEAD_FORK}
_FINE = Verdict(Answer(Code.cudaSuccess))


class Ledger:
    """The ledger of all open captures."""

    def __init__(self) -> None:
        self.captures: list[LedgerCapture] = []
        self.lanes: dict[int, Lane] = {}
        self.marks: dict[int, EventMark] = {}
        self.outside: set[int] = set()
        self._opened = 0

    # -- questions --------------------------------------------------------------------------------------------

    def lane(self, stream: int) -> Lane | None:
        """The lane that a stream is, in any capture; or None."""
        return self.lanes.get(stream)

    def event_state(self, event: int) -> EventState:
        """What an event stands for, as far as the ledger knows."""
        mark = self.marks.get(event)
        if mark is None:
            return EventState.OUTSIDE if event in self.outside else EventState.NEVER
        return EventState.CAPTURED if mark.capture.status is CaptureStatus.ACTIVE else EventState.DEAD

    def judge(
        self,
        operation: Operation,
        *,
        thread: int,
        stream: int | None = None,
        event: int | None = None,
        event2: int | None = None,
        thread_mode: Mode = Mode.GLOBAL,
        device: int | None = None,
    ) -> Verdict:
        """What the driver would answer if ``device`` is current; for None, the worst answer of all. Changes nothing.

        Each device has its own legacy stream, and is waited for separately: only lanes on that device matter.
        """
        verdict = self._addressed(operation, thread, stream, event, event2, device)
        if verdict.answer.refused or operation not in _WAITS:
            return verdict
        guarding = self._guarding(thread, thread_mode)
        if not guarding:
            return verdict
        pattern, rule = row(operation, _WAITS[operation])
        return Verdict(pattern(Mode.GLOBAL, False), rule, tuple(guarding))

    def _guarding(self, thread: int, mode: Mode) -> list[LedgerCapture]:
        """The captures whose mode forbids unsafe calls to this thread."""
        if mode is Mode.RELAXED:
            return []
        return [
            c
            for c in self.captures
            if (c.thread == thread and c.mode is not Mode.RELAXED) or (c.mode is Mode.GLOBAL and mode is Mode.GLOBAL)
        ]

    def _addressed(
        self,
        operation: Operation,
        thread: int,
        stream: int | None,
        event: int | None,
        event2: int | None,
        device: int | None = None,
    ) -> Verdict:
        if operation is Operation.DEVICE_SYNCHRONIZE:
            there = [c for c in self.captures if device is None or device in c.devices]
            return self._row(operation, Target.NONE, *there) if there else _FINE
        if operation is Operation.LEGACY_WORK or stream in LEGACY_HANDLES:
            return self._legacy(operation, event, device)
        if stream is not None:
            lane = self.lanes.get(stream)
            return self._outside(operation, event) if lane is None else self._inside(operation, lane, thread, event)
        if event is not None:
            return self._event(operation, event, event2)
        return _FINE

    def _row(self, operation: Operation, target: Target, *lost: LedgerCapture) -> Verdict:
        """The table's answer in the first capture's mode (rows that depend on more are handled by their callers)."""
        pattern, rule = row(operation, target)
        answer = pattern(lost[0].mode if lost else Mode.RELAXED, False)
        return Verdict(answer, rule, lost if answer.loses else (), target)

    def _legacy(self, operation: Operation, event: int | None, device: int | None) -> Verdict:
        def blocks(lane: Lane) -> bool:
            return lane.blocking and device in (None, lane.device)

        blocking = [c for c in self.captures if any(map(blocks, c.lanes))]
        pattern, rule = row(operation, Target.LEGACY)
        answer = pattern(Mode.RELAXED, bool(blocking))
        if not blocking and operation is Operation.WAIT_EVENT and event is not None:
            if self.event_state(event) is EventState.CAPTURED:
                return self._row(operation, Target.LEGACY_FORK, self.marks[event].capture)
            if self.event_state(event) is EventState.DEAD:
                return self._row(operation, Target.DEAD_FORK)
        if not self.captures and answer.effect is Effect.ESCAPES:
            return _FINE
        return Verdict(answer, rule, tuple(blocking) if answer.loses else (), Target.LEGACY)

    def _outside(self, operation: Operation, event: int | None) -> Verdict:
        if operation in (Operation.EVENT_RECORD_EXTERNAL, Operation.WAIT_EVENT_EXTERNAL):
            dead = event is not None and self.event_state(event) is EventState.DEAD
            if dead and operation is Operation.WAIT_EVENT_EXTERNAL:
                return Verdict(*after(History.DEAD_EVENT, operation))
            return self._row(Operation.EVENT_RECORD_EXTERNAL, Target.OUTSIDE)
        if operation is Operation.WAIT_EVENT and event is not None:
            return self._row(operation, _WAITED.get(self.event_state(event), Target.OUTSIDE_PAIR))
        if not self.captures and operation is not Operation.END_CAPTURE:
            return _FINE
        return self._row(operation, Target.OUTSIDE)

    def _inside(self, operation: Operation, lane: Lane, thread: int, event: int | None) -> Verdict:
        capture = lane.capture
        if operation is Operation.END_CAPTURE:
            return self._ending(lane, thread)
        if capture.status is CaptureStatus.INVALIDATED and (History.LOST, operation) in BY_HISTORY:
            return Verdict(*after(History.LOST, operation))
        if operation in (Operation.WAIT_EVENT, Operation.WAIT_EVENT_EXTERNAL) and event is not None:
            return self._waiting(operation, capture, event)
        return self._row(operation, Target.ORIGIN if lane.number == 0 else Target.LANE, capture)

    def _waiting(self, operation: Operation, capture: LedgerCapture, event: int) -> Verdict:
        state = self.event_state(event)
        if state is EventState.DEAD:
            return self._row(Operation.WAIT_EVENT, Target.DEAD_EVENT, capture)
        if operation is Operation.WAIT_EVENT_EXTERNAL:
            return self._row(operation, Target.ORIGIN, capture)
        if state is not EventState.CAPTURED:
            never = state is EventState.NEVER
            return self._row(operation, Target.NEVER_RECORDED if never else Target.OUTSIDE_EVENT, capture)
        other = self.marks[event].capture
        if other is not capture:
            return self._row(operation, Target.FOREIGN_EVENT, capture, other)
        return self._row(operation, Target.CAPTURED_EVENT)

    def _ending(self, lane: Lane, thread: int) -> Verdict:
        capture = lane.capture
        if lane.number != 0:
            return self._row(Operation.END_CAPTURE, Target.LANE, capture)
        lost = capture.status is CaptureStatus.INVALIDATED
        if lost or capture.unjoined():
            return Verdict(*after(History.LOST if lost else History.UNJOINED, Operation.END_CAPTURE))
        if thread != capture.thread:
            pattern, rule = row(Operation.END_CAPTURE, Target.WRONG_THREAD)
            return Verdict(pattern(capture.mode, False), rule)
        return self._row(Operation.END_CAPTURE, Target.ORIGIN)

    def _event(self, operation: Operation, event: int, event2: int | None) -> Verdict:
        timed = operation is Operation.EVENT_ELAPSED_TIME
        if not timed and operation not in (Operation.EVENT_QUERY, Operation.EVENT_SYNCHRONIZE):
            return _FINE
        for one in (event,) if event2 is None or not timed else (event, event2):
            state = self.event_state(one)
            if timed and state is EventState.NEVER:
                return Verdict(*after(History.NEVER_RECORDED, operation))
            if state in _OF_CAPTURES:
                return self._row(operation, _OF_CAPTURES[state], self.marks[one].capture)
        return _FINE

    # -- what happened ----------------------------------------------------------------------------------------

    def begin(
        self, stream: int, mode: Mode, thread: int, *, blocking: bool = False, at: object = None, device: int = 0
    ) -> LedgerCapture:
        """Note that a capture began on a stream."""
        self._opened += 1
        capture = LedgerCapture(self._opened, mode, thread)
        self._enter(stream, capture, blocking, None, at).device = device
        self.captures.append(capture)
        return capture

    def _enter(self, stream: int, capture: LedgerCapture, blocking: bool, parent: int | None, at: object) -> Lane:
        lane = Lane(len(capture.lanes), stream, capture, blocking, parent, at, last_use=at)
        if not capture.lanes:
            capture.origin = lane
        capture.lanes.append(lane)
        self.lanes[stream] = lane
        return lane

    def end(self, capture: LedgerCapture) -> None:
        """Note that a capture has ended: all its streams are free again. One that was lost stays lost."""
        if capture.status is CaptureStatus.ACTIVE:
            capture.status = CaptureStatus.NONE
        if capture in self.captures:
            self.captures.remove(capture)
        for lane in capture.lanes:
            if self.lanes.get(lane.stream) is lane:
                del self.lanes[lane.stream]

    def work(self, stream: int, at: object = None) -> None:
        """Note that work was recorded on a lane."""
        lane = self.lanes.get(stream)
        if lane is not None:
            lane.worked = lane.segment
            lane.last_use = at

    def record(self, event: int, stream: int, at: object = None) -> EventMark | None:
        """Note that an event was recorded. Returns its mark if the stream is in a capture."""
        lane = self.lanes.get(stream)
        if lane is None:
            self.marks.pop(event, None)
            self.outside.add(event)
            return None
        mark = self.marks[event] = EventMark(lane.capture, lane.number, self.passed(lane), at)
        return mark

    def passed(self, lane: Lane) -> Clock:
        """End a lane's segment, as an event does that is recorded on it. Returns all that lies before its next work."""
        clock = dict(lane.clock)
        clock[lane.number] = lane.segment
        lane.segment += 1
        lane.used = lane.suspect = lane.waited = False
        return clock

    def wait(
        self, stream: int, event: int, *, blocking: bool = False, at: object = None, device: int = 0
    ) -> Lane | None:
        """Note that a stream was made to wait for an event. Returns the new lane if that was a fork."""
        mark = self.marks.get(event)
        if mark is None:
            return None
        mark.waited = True
        of = mark.capture.lanes[mark.lane]
        forked = self.come_after(stream, of, mark.clock, blocking, at, device)
        if forked is None:
            of.joined_since = mark.at
        return forked

    def come_after(self, stream: int, of: Lane, clock: Clock, blocking: bool, at: object, device: int) -> Lane | None:
        """:meth:`wait` for what :meth:`passed` has returned for a lane, with no event that others could wait for."""
        lane = self.lanes.get(stream)
        forked: Lane | None = None
        if lane is None:
            lane = forked = self.enter(stream, of, blocking, at, device)
        else:
            of.joined_at = of.joined_since = at
        merge(lane.clock, clock)
        lane.waited = True
        return forked

    def enter(self, stream: int, of: Lane, blocking: bool, at: object, device: int) -> Lane:
        """Note that a stream has become a lane, forked from another; none of that one's work is known to be before."""
        lane = self._enter(stream, of.capture, blocking, of.number, at)
        lane.device = device
        lane.clock[-lane.number] = 1  # for all that it may come after: only who comes after this lane comes after that
        return lane

    def forget_event(self, event: int) -> None:
        """Note that an event was made or destroyed: its handle stands for no work."""
        self.marks.pop(event, None)
        self.outside.discard(event)

    def outside_event(self, event: int) -> None:
        """Note that an event was recorded outside of any capture."""
        self.outside.add(event)

    def dead_event(self, event: int) -> None:
        """Note that an event belongs to a capture that is over and no longer known here."""
        self.marks[event] = EventMark(LedgerCapture(0, Mode.RELAXED, -1, status=CaptureStatus.NONE), 0, {})


def merge(clock: Clock, other: Clock) -> None:
    """Raise a clock to another one where the other is later."""
    for number, segment in other.items():
        if clock.get(number, 0) < segment:
            clock[number] = segment


def is_before(clock: Clock, other: Clock) -> bool:
    """True when another clock is as late in each lane."""
    return all(other.get(number, 0) >= segment for number, segment in clock.items())


def covers(lane: Lane, clock: Iterable[tuple[int, int]]) -> bool:
    """True when everything in a clock's items comes before the lane's next work."""
    reached, me = lane.clock, lane.number
    for number, segment in clock:  # noqa: SIM110  # a generator takes twice the time, at each allocation on a lane
        if number != me and reached.get(number, 0) < segment:
            return False
    return True
