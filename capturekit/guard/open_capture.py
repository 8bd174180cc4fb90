"""An open capture as the guard sees it, and the recording that it fills."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard.line_trace import Trace
from capturekit.launch.caller import Caller
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Backup, Feed, Part, Plan
from capturekit.model import counters
from capturekit.model.errors import CaptureError
from capturekit.model.host_reads import Answers
from capturekit.model.ledger import Lane, LedgerCapture
from capturekit.model.recording import LaneRecord, Recording, Step
from capturekit.model.rules import Mode
from capturekit.model.source_line import Place


@dataclass(eq=False)
class Live:
    """An open capture as the guard sees it."""

    platform: Platform
    capture: LedgerCapture
    strict: bool
    origin: Any
    memory: GraphMemory | None
    recording: Recording
    thread: int
    at: Place | None
    streams: dict[int, Any] = field(default_factory=dict)
    trapped: dict[int, tuple[Any, Place | None]] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    floor: Any = None
    active_at: Place | None = None
    #: By device: the stream on which values of the host go there at once.
    uploads: dict[int, Any] = field(default_factory=dict)
    escaped: CaptureError | None = None
    lane_streams: list[Any] = field(default_factory=list)
    past: list[LedgerCapture] = field(default_factory=list)
    plan: Plan | None = None
    part: Part | None = None
    node: int = 0
    lost: bool = False
    held: list[Any] = field(default_factory=list)
    given: Answers | None = None
    gates: str = 'device'
    seams_on: Any = None
    launch: int | None = None
    done: int = 0
    state: Any = None
    opening: Any = None
    backups: list[Backup] = field(default_factory=list)
    trace: Trace | None = None
    refused: list[Step] = field(default_factory=list)
    begun: float = field(default_factory=time.perf_counter)
    decisions: list[Any] = field(default_factory=list)
    numbered: dict[int, int] = field(default_factory=dict)
    #: How many edges its graph had when that could last be asked.
    edges: int = 0
    broken: Place | None = None
    #: Loops whose body has not been recorded yet.
    awaited: list[Any] = field(default_factory=list)
    embedded: list[tuple[int, LedgerCapture, int, int]] = field(default_factory=list)
    #: The graph that the capture adds to, where that is somebody else's; and the conditional nodes put into it.
    into: int = 0
    decided: dict[int, list[int]] = field(default_factory=dict)
    #: A graph was embedded that heeds priorities.
    heeds: bool = False
    #: With more than one device: what was current on each in this thread when the block was entered.
    outer: list[Any] = field(default_factory=list)
    #: All of that is current again: there is no way home left to go.
    at_home: bool = False
    #: Devices without a lane that are being visited: the stream that stands in there, and what it stands in for; and,
    #: in adapting mode, the streams that did so before.
    visits: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    visitors: dict[int, Any] = field(default_factory=dict)
    #: How many groups of NCCL this thread has begun in the block, one in the other.
    groups: int = 0
    #: Collectives given to NCCL in a group that has not ended: the handles of their streams.
    grouped: list[int] = field(default_factory=list)
    #: How many nodes there were before the group, or before the collective alone.
    ungrouped: int = 0
    #: Told of allocations in a capture that was begun by hand.
    hook: Any = None
    #: Addresses that collectives were given, each with the call; and their communicators.
    named: dict[int, str] = field(default_factory=dict)
    communicators: list[Any] = field(default_factory=list)
    #: Where a call of a graphed function is recorded: its caller's streams.
    caller: Caller | None = None

    @property
    def drawn(self) -> list[Feed]:
        """What the parts that ran while recording were given."""
        return [] if self.plan is None else self.plan.drawn()

    @property
    def by_priority(self) -> bool:
        """Whether lanes had different priorities so far; where all have one, a launch's stream decides."""
        lanes = (lane for capture in (*self.past, self.capture) for lane in capture.lanes)
        return self.heeds or len({lane.priority for lane in lanes}) > 1

    def poll(self) -> None:
        """Whatever was recorded since belongs to the current line and the current lane."""
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
        """A call in the block was refused: if that is caught there, the recording is to tell."""
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
    """A capture has ended: whoever listens is told."""
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
            live.recording.node_count, live.recording.edge_count = sum(s.count for s in live.trace.spans), live.edges
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
