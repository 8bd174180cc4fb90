"""A graph's orders as candidates: each with an executable graph of its own, launched in turn and timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from capturekit.graph.sight import Sight
from capturekit.graph.state import GraphState
from capturekit.lanes.both_orders import SameStart, timed
from capturekit.lanes.needed import rewire
from capturekit.lanes.new_edges import Level
from capturekit.lanes.packed_memory import Packing
from capturekit.lanes.report import Pairs
from capturekit.launch.executable_graph import ExecutableGraph

RECORDED, NEEDED, BEHIND_ONE = 0, -1, -2

_Name = TypeVar('_Name')


@dataclass(frozen=True)
class Candidate:
    """An executable graph, its edges in each definition, and the pairs of nodes on lanes that make them so.

    ``packing``: of its temporaries; the definition has the memory that was recorded. ``by_priority``: the priorities of
    nodes, by their place among the definition's.
    """

    name: int
    made: ExecutableGraph
    edges: list[Pairs]
    lanes: list[Pairs] = field(default_factory=list)
    packing: Packing | None = None
    by_priority: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Contest:
    """What candidates are made of and timed with.

    Attributes:
        state, levels, sight: the graph, its definitions, and one look at it.
        start: the memory that is put back before each launch.
        took: the microseconds of each node of the first definition.
        rounds: how often each candidate is timed.
    """

    state: GraphState
    levels: Sequence[Level]
    sight: Sight
    start: SameStart
    took: Sequence[float]
    rounds: int

    def with_edges(self, levels: Sequence[Level], edges: Sequence[Pairs], by_priority: bool = False) -> ExecutableGraph:
        """An executable graph with other edges, which the definition keeps."""
        state = self.state
        rewire(state.device, levels, edges)
        made: ExecutableGraph = state.made.instantiated(state.device, by_priority or state.recording.by_priority)
        for number in sorted(state.names.off):
            state.device.node_enable(made.graphExec, state.names.handles[number], False)
        return made

    def times(self, candidates: Mapping[_Name, Candidate]) -> dict[_Name, tuple[float, ...]]:
        """The microseconds of launches of each candidate, in all rounds."""
        executables = {name: one.made.graphExec for name, one in candidates.items()}
        return timed(self.state.device, self.start, executables, self.rounds, self.state.current().ptr)
