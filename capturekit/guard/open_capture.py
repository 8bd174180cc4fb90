"""An open capture as the guard sees it, and the recording that it fills."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard.line_trace import Trace
from capturekit.guard.records import (
    CollectiveRecord,
    DecisionRecord,
    DeviceRecord,
    HostCallRecord,
    OutsideRecord,
    PartsRecord,
    RecorderRecord,
)
from capturekit.launch.caller import Caller
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Feed
from capturekit.model import counters
from capturekit.model.causes import Causes, passes, shown_with
from capturekit.model.cleanup import Uncollected
from capturekit.model.errors import CaptureError
from capturekit.model.followed_captures import FollowedCapture
from capturekit.model.ledger import Lane, LedgerCapture
from capturekit.model.recording import LaneRecord, Recording, Step
from capturekit.model.rules import CaptureStatus, Mode
from capturekit.model.source_line import Place


@dataclass(eq=False)
class OpenCapture:
    """An open capture as the guard sees it, with a record for each component that stores something about it.

    Only its owner writes a record; other components may read it (:mod:`capturekit.guard.records`).
    """

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
    return Recording(
        capturekit=__version__,
        cupy=str(platform.cupy.__version__),
        device=name,
        mode=mode.name.lower(),
        strict=strict,
    )


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
            live.recording.node_count, live.recording.edge_count = (
                sum(s.count for s in live.trace.spans),
                live.parts.edges,
            )
    # a capture that was cut has the lanes of all its parts; where parts number them alike, the last one counts
    every = [lane for capture in (*live.parts.past, live.capture) for lane in capture.lanes]
    lanes, joined = {lane.number: lane for lane in every}, {one.number: one.joined_at for one in every if one.joined_at}
    live.recording.lanes = [
        LaneRecord(
            lane.number,
            lane.stream,
            lane.parent,
            json(lane.forked_at),
            json(joined.get(lane.number)),
            json(lane.last_use),
            lane.priority,
            lane.device,
        )
        for _, lane in sorted(lanes.items())
    ]
