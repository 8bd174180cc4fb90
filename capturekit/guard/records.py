"""What each component stores for an open capture: one record, which only its owner writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capturekit.launch.declared import Called, Said
from capturekit.launch.outside_memory import OutsideMemory
from capturekit.launch.plan import Backup, Part, Plan
from capturekit.model.errors import CaptureError
from capturekit.model.host_reads import Answers
from capturekit.model.ledger import LedgerCapture
from capturekit.model.source_line import Place


@dataclass(eq=False)
class OutsideRecord:
    """Owner: :mod:`capturekit.guard.outside_streams`."""

    #: By handle: the streams from outside that are held, and the line where holding began.
    held: dict[int, tuple[Any, Place | None]] = field(default_factory=dict)
    #: The handles of those that became current by a method that no wrapper saw.
    unseen: set[int] = field(default_factory=set)
    #: The error for escaped work that could not be raised at once: the end of the capture raises it.
    escaped: CaptureError | None = None


@dataclass(eq=False)
class DeviceRecord:
    """Owners: :mod:`capturekit.guard.device_switches` and :mod:`capturekit.guard.placeholders`."""

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
    """Owner: :mod:`capturekit.guard.parts`."""

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
    #: Memory of arrays that were made in a body which has ended. Owner: :mod:`capturekit.guard.left_arrays`.
    left: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class HostCallRecord:
    """Owners: :mod:`capturekit.guard.host_calls`, and the recorder of a graphed function, which sets it up."""

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
    """Owner: :mod:`capturekit.guard.collectives`."""

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
    #: The calls of libraries that show what their nodes touch. Owner: :mod:`capturekit.guard.library_calls`.
    called: list[Called] = field(default_factory=list)
