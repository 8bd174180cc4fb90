"""One look at a graph: what its nodes are and touch, and what a launch of it writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from capturekit.analysis.node_memory import Definitions, NotRepeatableError, written_ranges
from capturekit.analysis.node_view import Look, Node
from capturekit.analysis.races import MemoryBlocks
from capturekit.analysis.unsteady import Unsteady, adds_loosely, unsteady
from capturekit.driver.cuda import Platform, current
from capturekit.graph.state import GraphState
from capturekit.model.dag import Order

#: Memory as pairs of the first address and the one after the last.
Ranges = Sequence[tuple[int, int]]
#: Kernels of capturekit's own in graphs of graphed functions: they touch arguments and results.
OURS = 'capturekit_'
#: Why a graph is not altered that is more than one executable graph.
PIECES = 'it is launched in several parts'
_MEMORY = ('mem alloc', 'mem free', 'memAlloc', 'memFree')


@dataclass(frozen=True)
class Sight:
    """One look at a graph: what its nodes are and touch. ``found``: what was found out by this look, to be kept."""

    platform: Platform
    look: Look
    blocks: MemoryBlocks
    definitions: Definitions
    found: dict[str, Any] = field(default_factory=dict)


def sight_of(state: GraphState) -> Sight:
    """One look at the graph."""
    platform = current()
    blocks = MemoryBlocks(state.memory, platform.cupy.ndarray, {})
    return Sight(platform, state.look(), blocks, Definitions(state.device, state.declared))


def written(state: GraphState, sight: Sight, without: str = '') -> list[tuple[int, int]]:
    """The memory that a launch writes, without nodes of such names. Raises NotRepeatableError."""
    if state.plan is not None and not state.plan.plain:
        raise NotRepeatableError('it is launched in several parts, with checks')
    if len(state.recording.devices) > 1:
        raise NotRepeatableError('it is of several devices')
    return written_ranges(sight.platform, sight.definitions, state.made.graph, sight.blocks, without)


def unsteady_of(sight: Sight, graph: int) -> list[Unsteady]:
    """The memory of one definition that no two launches fill alike, to the last bit."""
    if not adds_loosely(sight.definitions):
        return []
    device = sight.platform.device
    handles = device.graph_nodes(graph)
    place = {handle: n for n, handle in enumerate(handles)}
    order = Order(len(handles), [(place[a], place[b]) for a, b in device.graph_edges(graph)])
    return unsteady(sight.definitions, graph, [handles[n] for n in order.sequence], sight.blocks)


def allocates(nodes: Iterable[Node]) -> bool:
    """Whether there are nodes that take memory as the graph runs."""
    return any(node.kind in _MEMORY for node in nodes)
