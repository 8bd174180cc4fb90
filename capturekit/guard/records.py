"""What components keep of an open capture: one record each, written by its owner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from capturekit.launch.outside_memory import OutsideMemory
from capturekit.launch.plan import Backup, Part, Plan
from capturekit.model.errors import CaptureError
from capturekit.model.host_reads import Answers
from capturekit.model.ledger import LedgerCapture
from capturekit.model.source_line import Place


@dataclass(eq=False)
class OutsideRecord:
    """Owner: :mod:`capturekit.guard.outside_streams`."""

    #: By handle: streams from outside that are held back, and the line since which they are.
    held: dict[int, tuple[Any, Place | None]] = field(default_factory=dict)
    #: Work that has escaped, where it could not be raised at once: the end of the capture tells.
    escaped: CaptureError | None = None


@dataclass(eq=False)
class DeviceRecord:
    """Owners: :mod:`capturekit.guard.device_switches` and :mod:`capturekit.guard.placeholders`."""

    #: With more than one device: the stream that was current on each in this thread when the block was entered.
    before: list[Any] = field(default_factory=list)
    #: All of that is current again: nothing is left to restore.
    restored: bool = False
    #: By device: the stream of the guard's own that is current there, and the legacy one that it stands for.
    placeholders: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    #: In adapting mode, by device: the placeholder that has become a lane, for the next time.
    forked: dict[int, Any] = field(default_factory=dict)


@dataclass(eq=False)
class PartsRecord:
    """Owner: :mod:`capturekit.guard.parts`."""

    #: What the ledger knew of the parts that are over.
    past: list[LedgerCapture] = field(default_factory=list)
    plan: Plan | None = None
    #: The part that is being recorded.
    current: Part | None = None
    #: The conditional node in whose body that part goes on, since a check stands before it; 0 for none.
    check_node: int = 0
    #: By graph: how many of its nodes have their numbers already.
    numbered: dict[int, int] = field(default_factory=dict)
    #: How many edges the graph had when that could last be asked.
    edges: int = 0
    #: Who checks, at launches, what was read: 'device' or 'host'.
    checked_by: str = 'device'
    #: What host reads are answered with.
    answers: Answers | None = None
    #: The counters and flags that the checks of all variants of a function share.
    state: Any = None


@dataclass(eq=False)
class DecisionRecord:
    """Owner: :mod:`capturekit.guard.conditional_bodies`."""

    #: Those whose body is being recorded, the innermost last.
    open: list[Any] = field(default_factory=list)
    #: By node: the graphs of its bodies.
    bodies: dict[int, list[int]] = field(default_factory=dict)
    #: Loops whose body has not been recorded yet.
    empty_loops: list[Any] = field(default_factory=list)
    #: Where a body was left half done.
    broken: Place | None = None


@dataclass(eq=False)
class HostCallRecord:
    """Owners: :mod:`capturekit.guard.host_calls`, and the recorder of a graphed function, which sets it up."""

    #: What a call between two parts is made in: it makes the caller's stream current. None: such calls are refused.
    stream: Any = None
    #: The number of the launch that runs the parts while they are recorded; None before the first such call.
    launch: int | None = None
    #: How many steps of the plan that launch has made.
    done: int = 0
    #: Told of that launch before its first step; None where no launch is ever taken back.
    opening: Any = None
    #: Memory that is put back when the block has ended; None where what ran while recording counts as a call.
    outside: OutsideMemory | None = None
    #: What was copied so that such a launch can be taken back.
    backups: list[Backup] = field(default_factory=list)


@dataclass(eq=False)
class CollectiveRecord:
    """Owner: :mod:`capturekit.guard.collectives`."""

    #: How many groups of NCCL this thread has begun in the block, one in the other.
    depth: int = 0
    #: The streams of collectives that were given to a group which has not ended.
    grouped: list[int] = field(default_factory=list)
    #: How many nodes there were before the group, or before the collective alone.
    nodes_before: int = 0
    #: Addresses that collectives were given, each with the call; and their communicators.
    addresses: dict[int, str] = field(default_factory=dict)
    communicators: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class RecorderRecord:
    """Owner: the package :mod:`capturekit.recorder`."""

    #: Streams of forks that have ended: later forks of this capture take them again.
    lane_streams: list[Any] = field(default_factory=list)
    #: Graphs that were embedded: handle, capture, lane and segment.
    embedded: list[tuple[int, LedgerCapture, int, int]] = field(default_factory=list)
    #: Whether one of them has nodes of different priorities.
    embeds_priorities: bool = False
    #: Arrays that were there before the block, and that the graph may use.
    arrays: list[Any] = field(default_factory=list)
    #: The graph that the capture adds to, where that is somebody else's; else 0.
    into: int = 0
