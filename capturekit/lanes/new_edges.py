"""What a change of a graph's edges works with: definitions as nodes and pairs, and what the graph has to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.launching import aim_all
from capturekit.graph.state import Alteration, GraphState
from capturekit.lanes.lane_order import laid
from capturekit.lanes.packed_memory import Packing
from capturekit.lanes.report import Pairs, Relaned


@dataclass
class Level:
    """One definition: the handles of its nodes, and edges as pairs of places among these.

    Attributes:
        present, recorded: the edges that it has, and those that it was recorded with.
        needed: those that its data needs.
        lanes: pairs of nodes that follow each other on lanes which were chosen for them; () without such lanes.
    """

    graph: int
    handles: list[int]
    present: list[tuple[int, int]]
    recorded: Pairs
    needed: Pairs = ()
    lanes: Pairs = ()

    @property
    def wanted(self) -> Pairs:
        """The edges that the graph is to have: those that the data needs, and those of the chosen lanes."""
        return laid(len(self.handles), self.needed, self.lanes)

    @property
    def is_so(self) -> bool:
        """Whether the edges are those that are wanted."""
        return set(self.present) == set(self.wanted)

    def kernels(self, device: Any) -> list[int]:
        """The places of the nodes that are kernels."""
        kinds = {info.handle: info.kind for info in device.node_infos(self.graph)}
        return [n for n, handle in enumerate(self.handles) if kinds[handle] == 'kernel']

    def priorities(self, device: Any, places: Iterable[int]) -> dict[int, int]:
        """The priorities of nodes, by their places."""
        return {n: device.node_priority(self.graph, self.handles[n]) for n in places}

    def give_priorities(self, device: Any, priorities: Mapping[int, int]) -> None:
        """Give nodes priorities, by their places."""
        for n, priority in priorities.items():
            device.set_node_priority(self.graph, self.handles[n], priority)

    def rewire(self, device: Any, to: Pairs) -> None:
        """Let the definition have other edges."""
        old, new = set(self.present), set(to)
        name = self.handles.__getitem__
        removed, added = ([(name(a), name(b)) for a, b in sorted(one)] for one in (old - new, new - old))
        if removed or added:
            device.graph_rewire(self.graph, removed, added)
            self.present = list(to)


@dataclass
class NewEdges(Alteration):
    """What a graph with other edges than it was recorded with has to know.

    Attributes:
        recorded: the edges of each definition as recorded, as pairs of places among its nodes.
        report: the report that ``relane()`` returned.
        trial: the first launch, which is still to be compared; None after it.
        by_calls: whether calls of a graphed function launch the graph.
        lanes: of each definition, the pairs of nodes that follow each other on chosen lanes; [] without such lanes.
        packing: the temporaries' packed memory, as long as the first launch is still to be compared.
        by_priority: whether kernels were given priorities, because launches took less time so.
    """

    call: ClassVar[str] = 'Graph.relane()'

    recorded: list[Pairs]
    report: Relaned
    trial: FirstLaunch | None = None
    by_calls: bool = False
    lanes: list[Pairs] = field(default_factory=list)
    packing: Packing | None = None
    by_priority: bool = False

    def compare_first(self, trial: FirstLaunch, packing: Packing | None) -> None:
        """Let the first launch be compared."""
        self.trial, self.packing = trial, packing
        if packing is not None:
            trial.gone, self.report.packed = packing.old, packing.report

    def note(self, outcome: str) -> None:
        """Note what the first launch has shown of the edges, if they are others than the recorded ones."""
        if not self.report.kept:
            self.report.compared = outcome

    def not_compared(self, why: str) -> None:
        """Do without the comparison."""
        if self.trial is not None:
            self.trial = None
            self.note(f'not compared: {why}')

    def switched(self, state: GraphState, why: str) -> None:
        if self.trial is not None:
            self.not_compared(why)
            aim_all(state)

    def of_copy(self, copies: Mapping[int, int]) -> NewEdges:
        compared = 'not compared: the graph is a copy' if self.trial is not None else self.report.compared
        return replace(self, report=replace(self.report, compared=compared), trial=None, by_calls=False, packing=None)


def edges_of(state: GraphState) -> NewEdges | None:
    """What there is to know of a graph's new edges; None where it has none."""
    return state.altered_by(NewEdges)
