"""An open capture as the guard sees it, a record in it for each component that stores something, and the recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard.line_trace import Trace
from capturekit.launch.caller import Caller
from capturekit.launch.declared import Called, Said
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.outside_arrays import OutsideMemory
from capturekit.launch.plan import Backup, Feed, Part, Plan
from capturekit.model import counters
from capturekit.model.causes import Causes, passes, shown_with
from capturekit.model.cleanup import Uncollected
from capturekit.model.errors import CaptureError
from capturekit.model.followed_captures import FollowedCapture
from capturekit.model.host_reads import Answers
from capturekit.model.ledger import Lane, LedgerCapture
from capturekit.model.recording import LaneRecord, Recording, Step
from capturekit.model.rules import CaptureStatus, Mode
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import Place, raised_at


@dataclass(eq=False)
class OutsideRecord:
    """Owner: :mod:`capturekit.guard.current_streams`."""

    #: By handle: the streams from outside that are held, and the line where holding began.
    held: dict[int, tuple[Any, Place | None]] = field(default_factory=dict)
    #: The handles of those that became current by a method that no wrapper saw.
    unseen: set[int] = field(default_factory=set)
    #: The error for escaped work that could not be raised at once: the end of the capture raises it.
    escaped: CaptureError | None = None


@dataclass(eq=False)
class DeviceRecord:
    """Owner: :mod:`capturekit.guard.current_streams`."""

    #: With more than one device: the stream that was current on each in this thread when the block was entered.
    before: list[Any] = field(default_factory=list)
    #: Whether all of these are current again, so that nothing is left to restore.
    restored: bool = False
    #: By device: the guard's stream that is current there, and the legacy stream that it replaces.
    placeholders: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    #: With ``strict=False``, by device: the placeholder that has become a lane, kept for the next time.
    forked: dict[int, Any] = field(default_factory=dict)


@dataclass(eq=False)
class PartsRecord:
    """Owner: :mod:`capturekit.guard.captures`."""

    #: The ledger's captures of the parts that have ended.
    past: list[LedgerCapture] = field(default_factory=list)
    plan: Plan | None = None
    #: The part that is being recorded.
    current: Part | None = None
    #: The conditional node of a check in whose body that part continues; 0 if there is none.
    check_node: int = 0
    #: CUDA has destroyed a body of the graph that is being recorded: whoever destroys that graph ends the process.
    spoilt: bool = False
    #: By graph: how many of its nodes have their numbers already.
    numbered: dict[int, int] = field(default_factory=dict)
    #: How many edges the graph had when the driver last reported them.
    edges: int = 0
    #: What checks the assumed values at launches: 'device' or 'host'.
    checked_by: str = 'device'
    #: The values that host reads get.
    answers: Answers | None = None
    #: The counters and flags that the checks of all variants of a function share.
    state: Any = None


@dataclass(eq=False)
class DecisionRecord:
    """Owner: :mod:`capturekit.guard.conditional_bodies`."""

    #: The decisions whose body is being recorded, the innermost last.
    open: list[Any] = field(default_factory=list)
    #: The decisions whose block of several branches is open, the innermost last.
    asked: list[Any] = field(default_factory=list)
    #: By conditional node: the graphs of its bodies.
    bodies: dict[int, list[int]] = field(default_factory=dict)
    #: Decisions of which no body has been recorded yet.
    unentered: list[Any] = field(default_factory=list)
    #: The line where an exception left a body half recorded, and what the exception was.
    broken: tuple[Place | None, str] | None = None
    #: Memory of arrays that were made in a body which has ended.
    left: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class HostCallRecord:
    """Owners: :mod:`capturekit.guard.libraries`, and the recorder of a graphed function, which sets it up."""

    #: The context for calls between two parts, which makes the caller's stream current. None: such calls are refused.
    stream: Any = None
    #: The number of the launch that runs the parts while they are recorded; None before the first such call.
    launch: int | None = None
    #: How many steps of the plan that launch has made.
    done: int = 0
    #: It is called before the first step of that launch; None if launches are never taken back.
    opening: Any = None
    #: Memory that is put back when the block has ended; None if what ran while recording counts as a call.
    outside: OutsideMemory | None = None
    #: The copies from which such a launch can be taken back.
    backups: list[Backup] = field(default_factory=list)
    #: Addresses in the memory of the arrays that calls between two parts were given.
    given: set[int] = field(default_factory=set)


@dataclass(eq=False)
class CollectiveRecord:
    """Owner: :class:`capturekit.guard.stream_calls.Collectives`."""

    #: How many nested NCCL groups this thread has begun in the block.
    depth: int = 0
    #: The streams of the collectives in a group that has not ended.
    grouped: list[int] = field(default_factory=list)
    #: How many nodes there were before the group, or before a single collective.
    nodes_before: int = 0
    #: The addresses that collectives got, each with the call; and their communicators.
    addresses: dict[int, str] = field(default_factory=dict)
    communicators: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class RecorderRecord:
    """Owner: the package :mod:`capturekit.recorder`."""

    #: Streams of forks that have ended: later forks of this capture take them again.
    lane_streams: list[Any] = field(default_factory=list)
    #: Graphs that were embedded: handle, turns of launches, capture, lane and segment.
    embedded: list[tuple[int, frozenset[Any], LedgerCapture, int, int]] = field(default_factory=list)
    #: Whether one of these graphs has nodes of different priorities.
    embeds_priorities: bool = False
    #: The arrays that existed before the block and that the graph may use.
    arrays: list[Any] = field(default_factory=list)
    #: The graph of ``into=`` that the capture adds to; else 0.
    into: int = 0
    #: Ends the capture as one that an exception has left.
    leave: Callable[[BaseException], object] | None = None
    #: What the user says that nodes touch.
    said: list[Said] = field(default_factory=list)
    #: The calls of libraries that show what their nodes touch. Owner: :mod:`capturekit.guard.libraries`.
    called: list[Called] = field(default_factory=list)


@dataclass(eq=False)
class OpenCapture:
    """An open capture as the guard sees it, with a record for each component that stores something about it. Only its
    owner writes a record; other components may read it."""

    platform: Platform
    capture: LedgerCapture
    strict: bool
    origin: Any
    memory: GraphMemory | None
    recording: Recording
    thread: int
    at: Place | None
    #: By handle: the CuPy objects of the streams that are lanes.
    streams: dict[int, Any] = field(default_factory=dict)
    #: The events that the ledger knows. They are kept, so that no new event gets the handle of one of them.
    events: list[Any] = field(default_factory=list)
    #: By device: the handle of the event that scopes of lanes record, which is one of ``events``.
    scope_events: dict[int, int] = field(default_factory=dict)
    #: By handle of a lane: its allocator, and what that was made for.
    allocators: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    #: The handle of the stream that is current in the capture's thread, as far as the guard has seen; and whether a
    #: handle was read since, as CuPy does where it makes a stream current.
    current: int = 0
    unsettled: bool = False
    #: An event that every later lane waits for, because the host has waited for all earlier work.
    awaited_event: Any = None
    #: The last line at which the driver reported that the capture was good; used if lines are not traced.
    active_at: Place | None = None
    #: By device: the stream on which values of the host are uploaded at once.
    uploads: dict[int, Any] = field(default_factory=dict)
    trace: Trace | None = None
    refused: list[Step] = field(default_factory=list)
    #: What went wrong in the block so far: the exception that ends the block is told with it.
    causes: Causes = field(default_factory=Causes)
    begun: float = field(default_factory=time.perf_counter)
    #: For a capture that was begun by hand: keeps garbage collection off until it ends.
    uncollected: Uncollected | None = None
    #: The frame that began it by hand, by its identity and its code.
    begun_in: tuple[int, CodeType] | None = None
    #: Whether its origin was the current stream when it was begun by hand.
    begun_current: bool = False
    #: The line at which its end was refused last, for a capture that was begun by hand.
    end_refused: Place | None = None
    #: The CuPy memory hook that notes allocations, for a capture that was begun by hand.
    pool_hook: Any = None
    #: Memory that was allocated on lanes of such a capture: addresses, each with the identity of CuPy's object.
    pooled: set[tuple[int, int]] = field(default_factory=set)
    #: The caller's streams, if a call of a graphed function is recorded.
    caller: Caller | None = None
    #: Calls of other threads, and their lines, that were made in relaxed mode because they would have lost the capture.
    relaxed: set[tuple[str, Place | None]] = field(default_factory=set)
    #: What would have been refused and has lost the capture, since the script is only observed.
    let_through: CaptureError | None = None
    #: A refusal that a handler of logging has swallowed: the end of the capture raises it.
    swallowed: CaptureError | None = None
    #: The driver's captures that have ended while the calls to CUDA were watched.
    watched: list[FollowedCapture] = field(default_factory=list)
    outside: OutsideRecord = field(default_factory=OutsideRecord)
    devices: DeviceRecord = field(default_factory=DeviceRecord)
    parts: PartsRecord = field(default_factory=PartsRecord)
    decisions: DecisionRecord = field(default_factory=DecisionRecord)
    host_calls: HostCallRecord = field(default_factory=HostCallRecord)
    collectives: CollectiveRecord = field(default_factory=CollectiveRecord)
    recorder: RecorderRecord = field(default_factory=RecorderRecord)

    @property
    def lost(self) -> bool:
        """Whether the capture was lost. Only the ledger's capture stores this."""
        return self.capture.status is CaptureStatus.INVALIDATED

    @property
    def graph_memory(self) -> GraphMemory:
        """The memory of the graph. A capture that was begun by hand has none, and never uses this."""
        assert self.memory is not None
        return self.memory

    @property
    def drawn(self) -> list[Feed]:
        """The random numbers that were drawn for parts that ran while recording."""
        return [] if self.parts.plan is None else self.parts.plan.drawn()

    @property
    def ended_in_driver(self) -> list[FollowedCapture]:
        """The driver's captures that a watched block was made of so far: several if it was recorded in parts."""
        return [one for one in self.watched if one.capture.origin.stream == self.origin.ptr]

    @property
    def by_priority(self) -> bool:
        """Whether lanes have different priorities so far; if all have one, the stream of a launch decides."""
        lanes = (lane for capture in (*self.parts.past, self.capture) for lane in capture.lanes)
        return self.recorder.embeds_priorities or len({lane.priority for lane in lanes}) > 1

    def poll(self) -> None:
        """Attribute the nodes recorded since the last call to the current line and the current lane."""
        if self.trace is not None:
            self.trace.poll()

    def note(
        self, kind: str, lane: Lane | None, text: str, at: Place | None = None, polled: bool = False, **more: Any
    ) -> None:
        """Append a step to the recording. ``polled``: the nodes so far have been attributed to their line already."""
        number = None if lane is None else lane.number
        step = Step(kind, number, text, None if at is None else [at.file, at.line, at.function], **more)
        self.recording.steps.append(step)
        if step.other is not None and self.trace is not None:
            self.trace.note(step, polled)

    @contextmanager
    def adapting(self) -> Iterator[list[str]]:
        """A block in which the capture adapts what it refuses otherwise; the list that it gets then says what."""
        before, told = len(self.recording.steps), list[str]()
        self.strict = False
        try:
            yield told
        finally:
            self.strict = True
            told += [step.text for step in self.recording.steps[before:] if step.kind == 'adapted']

    def note_end(self, error: BaseException) -> None:
        """Write the error that ended the capture into its recording, for pictures and reports."""
        at = error.location if isinstance(error, CaptureError) else raised_at(error) or self.active_at
        self.note('finding', None, f'{type(error).__name__}: {error}', at)

    def refusal(self, error: CaptureError) -> None:
        """Remember a call that was refused in the block. If the block catches the error, the recording says so."""
        step = _caught(error)
        if step not in self.refused:
            self.refused.append(step)

    def ends_in_cleanup(self, error: BaseException | None) -> None:
        """Hear that a capture ends while an exception is being handled, which may be on its way out of the block."""
        on_its_way = error is not None and passes(error)
        for one in shown_with(error):
            if isinstance(one, CaptureError):
                one.still_open = ''
                if on_its_way:
                    self.refused = [step for step in self.refused if step != _caught(one)]

    @property
    def origin_device(self) -> int:
        """The device of the origin."""
        return self.capture.origin.device

    def order_of(self, graph: int) -> list[int]:
        """The nodes of a graph in the order in which they were made, without those that are already numbered."""
        found: list[int] = self.platform.device.graph_nodes(graph)
        return found[self.parts.numbered.get(graph, 0) :]

    def records(self, mem: Any) -> bool:
        """Whether a memory object of CuPy's was given to work that is only being recorded."""
        if self.memory is not None:
            return self.memory.recorded_into(mem)
        return (int(mem.ptr), id(mem)) in self.pooled

    def lane_of(self, stream: Any) -> Lane | None:
        """The lane of this capture that a stream object is, or None."""
        return next((lane for lane in self.capture.lanes if lane.stream == stream.ptr), None)


def _caught(error: CaptureError) -> Step:
    """The step for a refusal that the block has caught."""
    text = f'refused, and caught in the block: {type(error).__name__}: {error.operation}. {error.remedy}'
    return Step('note', error.lane, text, None if error.location is None else error.location.to_json())


#: Functions that are called when a capture has ended, with its recording and its graph (None if it made none).
LISTENERS: list[Callable[[Recording, Any], None]] = []


def tell_listeners(live: OpenCapture, graph: Any) -> None:
    """Call the listeners: a capture has ended."""
    counters.ended(live.recording, live.at, time.perf_counter() - live.begun)
    if live.recording.outcome == 'good' and live.caller is None:
        counters.caught(live.refused)
    for listener in list(LISTENERS):
        listener(live.recording, graph)


def new_recording(platform: Platform, mode: Mode, *, strict: bool) -> Recording:
    """An empty recording with the device's name and the mode."""
    from capturekit._version import __version__

    name = 'the simulated device' if platform.simulated else f'device {platform.cupy.cuda.Device().id}'
    cupy = str(platform.cupy.__version__)
    return Recording(capturekit=__version__, cupy=cupy, device=name, mode=mode.name.lower(), strict=strict)


def close_recording(live: OpenCapture, outcome: str) -> None:
    """Write the lanes, and where they were forked and joined, into the recording."""

    def json(at: object) -> list[Any] | None:
        return at.to_json() if isinstance(at, Place) else None

    live.recording.outcome = outcome
    if outcome == 'good':
        live.recording.steps += live.refused  # the block caught these errors and continued
    if live.trace is not None:
        live.recording.spans = live.trace.spans
        if not live.recording.node_count:  # it failed before the nodes were counted
            live.recording.node_count = sum(span.count for span in live.trace.spans)
            live.recording.edge_count = live.parts.edges
    # a capture that was cut has the lanes of all its parts; where parts number them alike, the last one counts
    every = [lane for capture in (*live.parts.past, live.capture) for lane in capture.lanes]
    lanes, joined = {lane.number: lane for lane in every}, {one.number: one.joined_at for one in every if one.joined_at}
    live.recording.lanes = [
        LaneRecord(
            number, lane.stream, lane.parent, json(lane.forked_at), json(joined.get(number)), json(lane.last_use),
            lane.priority, lane.device,
        )
        for number, lane in sorted(lanes.items())
    ]  # fmt: skip
