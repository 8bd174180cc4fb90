"""An open capture as the guard sees it, and the recording that it fills."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import Lane, LedgerCapture
from capturekit.model.recording import LaneRecord, Recording, Step
from capturekit.model.rules import CaptureStatus, Mode
from capturekit.model.source_line import Place


@dataclass(eq=False)
class Live:
    """An open capture as the guard sees it: what it is, and a record for each component that keeps something of it.

    A record is written by its owner; whoever else has to know reads it (:mod:`capturekit.guard.records`).
    """

    platform: Platform
    capture: LedgerCapture
    strict: bool
    origin: Any
    memory: GraphMemory | None
    recording: Recording
    thread: int
    at: Place | None
    #: By handle: CuPy's objects of the streams that are lanes.
    streams: dict[int, Any] = field(default_factory=dict)
    #: Events that the ledger knows: no handle of these may be given to a new one.
    events: list[Any] = field(default_factory=list)
    #: An event that every lane to come waits for, since the host has waited for what comes before.
    awaited_event: Any = None
    #: The last line at which the driver was asked and the capture was good, where no trace knows better.
    active_at: Place | None = None
    #: By device: the stream on which values of the host go there at once.
    uploads: dict[int, Any] = field(default_factory=dict)
    trace: Trace | None = None
    refused: list[Step] = field(default_factory=list)
    begun: float = field(default_factory=time.perf_counter)
    #: CuPy's hook that tells of allocations, in a capture that was begun by hand.
    pool_hook: Any = None
    #: Where a call of a graphed function is recorded: its caller's streams.
    caller: Caller | None = None
    #: What would have been refused and has lost the capture, since the script is only observed.
    let_through: CaptureError | None = None
    outside: OutsideRecord = field(default_factory=OutsideRecord)
    devices: DeviceRecord = field(default_factory=DeviceRecord)
    parts: PartsRecord = field(default_factory=PartsRecord)
    decisions: DecisionRecord = field(default_factory=DecisionRecord)
    host_calls: HostCallRecord = field(default_factory=HostCallRecord)
    collectives: CollectiveRecord = field(default_factory=CollectiveRecord)
    recorder: RecorderRecord = field(default_factory=RecorderRecord)

    @property
    def lost(self) -> bool:
        """Whether the capture was lost. The ledger's capture is the one place that says so."""
        return self.capture.status is CaptureStatus.INVALIDATED

    @property
    def graph_memory(self) -> GraphMemory:
        """The memory of the graph. A capture that was begun by hand has none, and never asks."""
        assert self.memory is not None
        return self.memory

    @property
    def drawn(self) -> list[Feed]:
        """What the parts that ran while recording were given."""
        return [] if self.parts.plan is None else self.parts.plan.drawn()

    @property
    def by_priority(self) -> bool:
        """Whether lanes had different priorities so far; where all have one, a launch's stream decides."""
        lanes = (lane for capture in (*self.parts.past, self.capture) for lane in capture.lanes)
        return self.recorder.embeds_priorities or len({lane.priority for lane in lanes}) > 1

    def poll(self) -> None:
        """Attribute what was recorded since the last time to the current line and the current lane."""
        if self.trace is not None:
            self.trace.poll()

    def note(self, kind: str, lane: Lane | None, text: str, at: Place | None = None, **more: Any) -> None:
        """Append a step to the recording."""
        number = None if lane is None else lane.number
        step = Step(kind, number, text, None if at is None else at.to_json(), **more)
        self.recording.steps.append(step)
        if step.other is not None and self.trace is not None:
            self.trace.note(step)

    def refusal(self, error: CaptureError) -> None:
        """Remember a call that was refused in the block. If the block catches that, the recording says so."""
        text = f'refused, and caught in the block: {type(error).__name__}: {error.operation}. {error.remedy}'
        at = None if error.location is None else error.location.to_json()
        step = Step('note', error.lane, text, at)
        if step not in self.refused:
            self.refused.append(step)

    @property
    def home(self) -> int:
        """The device of the origin."""
        return self.capture.origin.device

    def lane_of(self, stream: Any) -> Lane | None:
        """The lane that a stream object is in this capture."""
        return next((lane for lane in self.capture.lanes if lane.stream == stream.ptr), None)


#: Told of each capture that has ended: its recording, and the graph, or None where it made none of capturekit's.
HEARD: list[Callable[[Recording, Any], None]] = []


def tell(live: Live, graph: Any) -> None:
    """Tell those who listen that a capture has ended."""
    counters.ended(live.recording, live.at, time.perf_counter() - live.begun)
    for hear in list(HEARD):
        hear(live.recording, graph)


def new_recording(platform: Platform, mode: Mode, *, strict: bool) -> Recording:
    """An empty recording that knows where it is made."""
    from capturekit._version import __version__

    name = 'the simulated device' if platform.simulated else f'device {platform.cupy.cuda.Device().id}'
    return Recording(
        capturekit=__version__,
        cupy=str(platform.cupy.__version__),
        device=name,
        mode=mode.name.lower(),
        strict=strict,
    )


def close_recording(live: Live, outcome: str) -> None:
    """Write the lanes' stories into the recording."""

    def json(at: object) -> list[Any] | None:
        return at.to_json() if isinstance(at, Place) else None

    live.recording.outcome = outcome
    if outcome == 'good':
        live.recording.steps += live.refused  # somebody has caught these, and the graph is what came then
    if live.trace is not None:
        live.recording.spans = live.trace.spans
        if not live.recording.node_count:  # it failed before anybody counted
            live.recording.node_count, live.recording.edge_count = (
                sum(s.count for s in live.trace.spans),
                live.parts.edges,
            )
    live.recording.lanes = [
        LaneRecord(
            lane.number,
            lane.stream,
            lane.parent,
            json(lane.forked_at),
            json(lane.joined_at),
            json(lane.last_use),
            lane.priority,
            lane.device,
        )
        for lane in live.capture.lanes
    ]
