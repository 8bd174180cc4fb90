"""One look at a graph: what its nodes are and touch, and what a launch of it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capturekit.analysis.node_memory import Definitions, FreeMemory, NotRepeatableError, joined, written_ranges
from capturekit.analysis.node_view import Look
from capturekit.analysis.races import MemoryBlocks
from capturekit.driver.cuda import Platform, current
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.state import GraphState
from capturekit.launch.executable_graph import ExecutableGraph

#: Memory as pairs of the first address and the one after the last.
Ranges = Sequence[tuple[int, int]]
#: Kernels of capturekit's own in graphs of graphed functions: they touch arguments and results.
INTERNAL_PREFIX = 'capturekit_'
#: Why a graph is not altered that is more than one executable graph.
PIECES = 'it is launched in several parts'
#: Calls of CUB's scan, which adds what other blocks of threads have so far, as soon as it is there: floating-point sums
#: are rounded in another order each time (cub::DeviceScan, "run-to-run nondeterministic").
_ADDS_LOOSELY = ('cub_scan', 'cub_scan()')


@dataclass(frozen=True)
class Sight:
    """One look at a graph: what its nodes are and touch. ``unheld``: memory of its own that no array lies in."""

    platform: Platform
    look: Look
    blocks: MemoryBlocks
    definitions: Definitions
    unheld: FreeMemory | None = None


def sight_of(state: GraphState) -> Sight:
    """One look at the graph."""
    platform = current()
    blocks = MemoryBlocks(state.memory, platform.cupy.ndarray, {})
    return Sight(platform, state.look(), blocks, Definitions(state.device, state.declared))


def written(state: GraphState, sight: Sight, without: str = '') -> list[tuple[int, int]]:
    """The memory that a launch writes and somebody holds, without nodes of such names. Raises NotRepeatableError."""
    if state.plan is not None and not state.plan.plain:
        raise NotRepeatableError('it is launched in several parts, with checks')
    if len(state.recording.devices) > 1:
        raise NotRepeatableError('it is of several devices')
    return written_ranges(sight.platform, sight.definitions, state.made.graph, sight.blocks, without, sight.unheld)


def trial_of(
    state: GraphState, made: ExecutableGraph, report: Any, sight: Sight, also: Ranges | None
) -> FirstLaunch | None:
    """The comparison of a first launch with ``made``; None where launches can not be compared: ``report`` says why.

    ``also``: memory that calls write by addresses that no node shows; None where no calls launch the graph.
    """
    try:
        if any(said.call.endswith(_ADDS_LOOSELY) for said in sight.definitions.declared.values()):
            raise NotRepeatableError("sums of it (CUB's scan) are rounded in another order at each launch")
        ranges = written(state, sight, INTERNAL_PREFIX if also is not None else '')
    except NotRepeatableError as error:
        report.compared = f'not compared: {error}'
        return None
    report.compared = 'not yet'
    return FirstLaunch(sight.platform, made, joined([*ranges, *(also or ())]), sight.blocks, again=also is not None)
