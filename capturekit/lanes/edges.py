"""The definitions of a graph, and the order that the data needs in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from capturekit.analysis.node_memory import memory_of, needed_edges
from capturekit.analysis.node_view import Node
from capturekit.graph.edit import forget_nodes
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.launching import aim
from capturekit.graph.refused import refused
from capturekit.graph.sight import Sight, allocates, sight_of
from capturekit.graph.state import Alteration, GraphState, NodeNames, whole_or_closed
from capturekit.lanes.lane_order import laid
from capturekit.lanes.packing import Packing
from capturekit.lanes.report import Pairs, Relaned
from capturekit.launch.plan import Part, Plan
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

# -- executable graphs made anew, of definitions whose edges or addresses were changed --------------------------------


_CALL = 'Graph.relane()'


def instantiate(state: GraphState) -> None:
    """Make executable graphs of the definitions as they are now. Nodes that are disabled stay so."""
    plan = state.plan
    if plan is not None and not plan.plain:
        _instantiate_parts(state, plan)
    else:
        try:
            made = state.made.instantiated(state.device, state.recording.by_priority)
            _switch_off(state, made.graphExec)
            state.made = made
        except CudaCallError as error:
            if plan is None or error.code != Code.cudaErrorNotSupported:
                raise
            _instantiate_parts(state, plan)
            with whole_or_closed(state, _CALL):
                _switch_off(state, state.made.graphExec)
        handles, off = state.names.handles, state.names.off
        forget_nodes(state)
        if off:
            state.names = NodeNames(handles, dict(handles), off)
    note_edges(state)


def _switch_off(state: GraphState, executable: int) -> None:
    for number in sorted(state.names.off):
        state.device.node_enable(executable, state.names.handles[number], False)


def note_edges(state: GraphState) -> None:
    """The recording tells of the edges that the graph has now."""
    recording = state.recording
    recording.timeline = None  # it describes what the graph did before
    if recording.arrows:
        recording.arrows = state.look().edges
    recording.edge_count = sum(state.device.graph_edge_count(g) for g in state.definitions())


def make_whole(state: GraphState) -> None:
    """After a refusal: parts whose executable graph had to go first get one of the recorded edges."""
    if state.plan is None or all(part.executable for part in state.plan.parts):
        return
    try:
        _complete(state, state.plan)
    except CudaCallError as error:
        rule = f'Of its definition CUDA makes no executable graph any more: {error}.'
        raise refused(_CALL, rule, 'Free memory of the device, and record again.') from error
    finally:
        aim(state)


def _instantiate_parts(state: GraphState, plan: Plan) -> None:
    """Make an executable graph of each part. Of those with conditional nodes, the old one has to go first."""
    device, by_priority = state.device, state.recording.by_priority
    made: list[tuple[Part, int]] = []
    last: list[Part] = []
    try:
        for part in plan.parts:
            try:
                made.append((part, device.graph_instantiate(part.graph, by_priority)))
            except CudaCallError as error:
                if error.code != Code.cudaErrorNotSupported:
                    raise
                last.append(part)
    except CudaCallError:
        for _part, x in made:
            device.graph_exec_destroy(x)
        raise
    for part, x in [*made, *((part, 0) for part in last)]:
        old, part.executable = part.executable, x
        device.graph_exec_destroy(old)
    _complete(state, plan)


def _complete(state: GraphState, plan: Plan) -> None:
    """Make an executable graph of each part that has none."""
    try:
        for part in plan.parts:
            plan.complete(part, state.recording.by_priority)
    finally:
        state.made = replace(state.made, graphExec=plan.parts[0].executable)


# -- what a change of a graph's edges works with: definitions as nodes and pairs, and what the graph has to know ------


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
    """

    call: ClassVar[str] = 'Graph.relane()'

    recorded: list[Pairs]
    report: Relaned
    trial: FirstLaunch | None = None
    by_calls: bool = False
    lanes: list[Pairs] = field(default_factory=list)
    packing: Packing | None = None

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
            aim(state)

    def of_copy(self, copies: Mapping[int, int]) -> NewEdges:
        compared = 'not compared: the graph is a copy' if self.trial is not None else self.report.compared
        return replace(self, report=replace(self.report, compared=compared), trial=None, by_calls=False, packing=None)


def edges_of(state: GraphState) -> NewEdges | None:
    """What there is to know of a graph's new edges; None where it has none."""
    return state.altered_by(NewEdges)


def levels_of(state: GraphState) -> list[Level]:
    """The graph and the bodies in it, with the edges that they have and had."""
    found = []
    new_edges = edges_of(state)
    for number, g in enumerate(state.definitions()):
        handles = state.device.graph_nodes(g)
        place = {handle: n for n, handle in enumerate(handles)}
        present = sorted((place[a], place[b]) for a, b in state.device.graph_edges(g))
        level = Level(g, handles, present, present if new_edges is None else new_edges.recorded[number])
        level.lanes = new_edges.lanes[number] if new_edges is not None and new_edges.lanes else ()
        found.append(level)
    return found


def find_needed(levels: Sequence[Level], sight: Sight) -> list[Node]:
    """Find the needed edges of each level; return the nodes of unknown memory."""
    fixed = []
    for level in levels:
        memory = memory_of(sight.definitions, level.graph, sight.blocks, by_word=True)
        nodes = [sight.look.nodes[sight.look.numbers[handle]] for handle in level.handles]
        if allocates(nodes):
            level.needed = level.recorded
            continue
        order = Order(len(level.handles), level.recorded)
        level.needed = needed_edges(order, [memory[handle] for handle in level.handles])
        fixed += [node for node, handle in zip(nodes, level.handles) if memory[handle] is None]
    return sorted(fixed, key=lambda node: node.number)


def rewire(device: Any, levels: Sequence[Level], edges: Sequence[Pairs]) -> None:
    """Let the definitions have other edges."""
    for level, to in zip(levels, edges):
        level.rewire(device, to)


def needed_now(state: GraphState) -> list[Level]:
    """The graph and the bodies in it, with the edges that they need now. Raises TooManyError and CudaCallError."""
    sight = sight_of(state)
    levels = levels_of(state)
    find_needed(levels, sight)
    return levels
