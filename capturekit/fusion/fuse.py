"""Elementwise kernels of a graph that become one kernel, and the graph as it was recorded kept beside it.

What the nodes of a definition do and touch is read once. The definition is copied, the copy's nodes are replaced, and
an executable graph is made of it. The first launch runs both graphs and compares all memory that anybody can see; where
a byte differs the graph is as it was recorded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar

from capturekit.analysis.node_memory import ON_DEVICE, FreeMemory, memory_of
from capturekit.analysis.node_view import Look, Node, fill
from capturekit.driver.cuda import StreamHandle
from capturekit.driver.node_accesses import Access
from capturekit.fusion.blocks import gather
from capturekit.fusion.cuda_nodes import FusingError, nodes_of
from capturekit.fusion.elementwise import Rounded, kind_of
from capturekit.fusion.fused_kernel import FusedKernel
from capturekit.fusion.lines import Definition, Fusing, Fusion, edges_between, fusion_of
from capturekit.fusion.reduction import CUB, Halves, Reduction, of_calls
from capturekit.fusion.reductions import reduced
from capturekit.fusion.report import Fused, FusedNodes
from capturekit.fusion.rounded_memory import RoundedNumbers, rounded_numbers
from capturekit.fusion.unneeded_nodes import UNREAD, Thinned, thinned
from capturekit.graph.addresses import NodeAt
from capturekit.graph.edit import NOT_COPIED, forget_nodes
from capturekit.graph.first_launch import FirstLaunch, warn_of
from capturekit.graph.graph_facts import INTERNAL_PREFIX, PIECES, Ranges, Sight, sight_of, trial_of
from capturekit.graph.launching import aim
from capturekit.graph.refused import refused
from capturekit.graph.state import Alteration, GraphState, must_be_changeable, whole_or_closed
from capturekit.launch.declared import Declared, of_copy
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.cleanup import Uncollected
from capturekit.model.counted import counted
from capturekit.model.counters import count
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Span

# -- all that becomes of a definition that is fused: what is not needed goes, the rest becomes fewer kernels ----------


def whole_fusion(known: Definition, gathers: bool = False) -> Fusion:
    """Find what of a definition can become fused kernels, and what is not needed.

    ``gathers``: whether values between fused kernels come to lie in few blocks.
    """
    seen = list(known.memory)
    for n, one in enumerate(known.does):
        if isinstance(one, Reduction):  # known to the byte, which a kernel's name does not tell
            seen[n] = [operand.access for operand in one.operands if operand.number is None]
    for pair in known.halves:
        for n, accesses in zip(pair.nodes, pair.memory):
            seen[n] = accesses
    thin = thinned(replace(known, memory=seen))
    copies = {n: one for n, one in known.copies.items() if n not in thin.gone}
    left = replace(known, does=thin.does, memory=thin.memory, copies=copies)
    found = fusion_of(left)
    if thin.moved or known.halves or any(isinstance(one, Reduction) for one in thin.does):
        reduced(found, left, thin.moved)
    if thin.gone:
        _without(found, thin, known.order)
    if gathers:
        gather(found, left, seen)
    return found


def _without(fusion: Fusion, thin: Thinned, order: Order) -> None:
    """The same without the nodes that are not needed."""
    fusion.unneeded = dict.fromkeys(sorted(thin.unread), UNREAD)
    for node, one in thin.again.items():
        fusion.unneeded[node] = f'node {one} has computed the same'
        fusion.stands.setdefault(one, []).append(node)
    for at, kernel in enumerate(fusion.kernels):
        more = [n for one in kernel.parts for n in fusion.stands.pop(one, ())]
        fusion.kernels[at] = replace(kernel, copies=(*kernel.copies, *more))
    fusion.gone = sorted({*fusion.gone, *thin.gone})
    fusion.edges = edges_between(order, fusion.gone)


class Fusible:
    """A definition, by the numbers of its nodes: what they do and touch, read once.

    Attributes:
        sight: a look at the graph.
        known: what is known of the definition.
        nodes: what reads the nodes of the device, and makes fused kernels.
        does: what each node computes for each element or reduces, or why it is not fused; None for no kernels.
    """

    def __init__(self, sight: Sight, graph: int, own: FreeMemory, gathers: bool) -> None:
        """``own``: the graph's own memory that no array lies in. ``gathers``: whether values between fused kernels come
        to lie in few blocks: work that could run at once can not then.

        Raises CudaCallError.
        """
        self.sight, self._graph, self._gathers = sight, graph, gathers
        device, definitions = sight.platform.device, sight.definitions
        self.nodes = nodes_of(device)
        handles = self._handles = device.graph_nodes(graph)
        place = {handle: n for n, handle in enumerate(handles)}
        infos = sorted(definitions.infos(graph), key=lambda info: place[info.handle])
        memory = memory_of(definitions, graph, sight.blocks)
        found: dict[int, Any] = self.nodes.graph_work(graph)
        rows, pairs = self._rows([handle for handle in handles if found.get(handle) == CUB], infos)
        found.update({handle: Rounded.of(CUB, does) for handle, does in rows.items()})
        found.update({handle: Rounded.of(CUB, CUB) for one in pairs for handle in one.nodes})
        self.does = [found.get(handle) for handle in handles]
        on_device = sight.platform.cupy.cuda.runtime.pointerGetAttributes
        self.known = Definition(
            Order(len(place), [(place[a], place[b]) for a, b in device.graph_edges(graph)]),
            self.does,
            [memory[handle] for handle in handles],
            own,
            frozenset(n for n, info in enumerate(infos) if info.name.startswith(INTERNAL_PREFIX)),
            {
                n: (info.detail['dst'], info.detail['src'], info.detail['bytes'])
                for n, info in enumerate(infos)
                if info.kind == 'memcpy'
                and len(ends := memory[info.handle] or ()) == 2
                and all(one.itemsize and one.dense for one in ends)  # bytes that lie one after the other
                and all(on_device(info.detail[end]).type in ON_DEVICE for end in ('dst', 'src'))
            },
            [n for n, info in enumerate(infos) if info.kind == 'memset'],
            self.nodes.copy_operation,
            [replace(one, nodes=(place[one.nodes[0]], place[one.nodes[1]])) for one in pairs],
        )

    def _rows(self, nodes: list[int], infos: Sequence[Any]) -> tuple[dict[int, Reduction], list[Halves]]:
        """What ``nodes`` of CUB's reduce, by their handles, and pairs of them."""
        definitions = self.sight.definitions
        calls = {handle: said.rows for handle, said in definitions.declared.items() if said.rows is not None}
        nodes = [handle for handle in nodes if handle in calls]
        if not nodes:
            return {}, []
        blocks = {info.handle: int(info.detail['grid'][0]) for info in infos if info.handle in nodes}
        return of_calls(nodes, calls, definitions.accesses(self._graph), blocks)

    def fusion(self, refused: Mapping[int, str], fast: bool) -> Fusion:
        """What becomes of the definition.

        Args:
            refused: nodes that stay alone, with the reason.
            fast: whether results may be rounded otherwise.
        """
        does = [one.does if fast and isinstance(one, Rounded) else one for one in self.does]
        does = [refused.get(n, one) for n, one in enumerate(does)]
        halves = self.known.halves if fast else ()
        found = whole_fusion(replace(self.known, does=does, halves=halves), self._gathers)
        if fast:
            found.kernels = [_fast(one) for one in found.kernels]
        return found

    def reasons(self, fusion: Fusion, refused: Mapping[int, str]) -> dict[int, str]:
        """Why nodes stay alone, of a fusion that keeps every bit; and which of them another one would not leave.

        ``refused``: nodes that stay alone anyway.
        """
        why = dict(fusion.why)
        if any(isinstance(one, Rounded) for one in why.values()):
            other = {n for one in self.fusion(refused, True).kernels for n in one.parts}
            why.update({n: f"{one}; fuse='fast' does fuse it" for n, one in why.items() if n in other})
        return why

    def rounded(self, fusion: Fusion, arrays: Iterable[Any]) -> list[RoundedNumbers]:
        """The numbers that a launch rounds otherwise, of a fusion that does not keep every bit.

        ``arrays``: those that it writes by addresses which no node shows.
        """
        definitions, known = self.sight.definitions, self.known
        memory = memory_of(definitions, self._graph, self.sight.blocks, by_word=True)
        seen = [() if n in known.blind else memory[handle] for n, handle in enumerate(self._handles)]
        said = {n: definitions.declared.get(handle) for n, handle in enumerate(self._handles)}
        calls = {n: _computed(one) for n, one in said.items() if one is not None and one.call}
        fused = {n for one in fusion.kernels for n in one.parts}
        found = rounded_numbers(known.order.sequence, self.does, seen, fused, calls, known.copies)
        for array in arrays:
            access = Access(int(array.data.ptr), array.shape, array.strides, array.itemsize, True)
            found.append(RoundedNumbers(access, (str(array.dtype),) if array.dtype.kind in 'fc' else ()))
        return found


def _computed(said: Declared) -> tuple[str, ...] | None:
    """The dtypes of what a library's call computes, if every bit of it does not count; None where any may be."""
    if '.cub.' not in said.call:
        return None
    return (said.rows.dtype,) if said.rows is not None and kind_of(said.rows.dtype) == 'f' else ()


def _fast(one: Fusing) -> Fusing:
    """The same kernel, whose results may be rounded otherwise."""
    if isinstance(one.kernel, FusedKernel):
        return replace(one, kernel=replace(one.kernel, fast=True))
    front, behind = (replace(half, fast=True) for half in (one.kernel.front, one.kernel.behind))
    return replace(one, kernel=replace(one.kernel, front=front, behind=behind))


# -- the first launch of a graph with fused kernels: it is compared with one without them, and may undo them ----------


_CALL = 'Graph.fuse()'


@dataclass
class FusedState(Alteration):
    """What a graph with fused kernels has to know.

    Attributes:
        report: the report that ``fuse()`` returned.
        recorded: the graph as it was recorded; None where it can not be had back.
        spans: which line made which nodes, as recorded.
        members: by the handle of a fused kernel's node, the nodes that it replaces.
        trial: the first launch, which is still to be compared; None after it.
        keeps: what the kernels' code lives in.
        by_calls: whether calls of a graphed function launch it.
    """

    call: ClassVar[str] = _CALL
    as_aimed: ClassVar[bool] = False

    report: Fused
    recorded: ExecutableGraph | None
    spans: list[Span]
    members: dict[int, tuple[Node, ...]]
    trial: FirstLaunch | None = None
    keeps: list[Any] = field(default_factory=list)
    by_calls: bool = False

    def not_compared(self, why: str) -> None:
        """Do without the comparison."""
        if self.trial is not None:
            self.trial, self.report.compared = None, f'not compared: {why}'

    def launch(self, state: GraphState, stream: int) -> None:
        for one in state.alterations:
            if one is not self:
                one.not_compared('the launch is compared with the graph before it was fused')
        trial = self.trial
        assert trial is not None
        with state.relaxed():
            try:
                apart = trial.run(state.made.graphExec, stream)
                same = f'the same as without fused kernels{trial.besides}'
                self.report.compared = f'differs: {apart}' if apart else same
            except MemoryError as error:
                self.report.compared, apart = f'not compared: no memory for copies ({error})', ''
                state.device.graph_launch(state.made.graphExec, stream)
            self.trial = None
            with whole_or_closed(state, _CALL):
                if apart:
                    unfuse(state, f'the first launch gave something else: {apart}')
                aim(state)
        if apart:
            words = f'{_CALL} is undone: the first launch gave something else than without it ({apart})'
            warn_of(words, self.by_calls)

    def look(self, look: Look) -> Look:
        for handle, replaced in self.members.items():
            number = look.numbers.get(handle)
            if number is not None:
                node = look.nodes[number]
                lines = [f'{one.name} at {one.at}' if one.at is not None else one.name for one in replaced]
                look.nodes[number] = replace(node, inner=replaced, detail={**node.detail, 'fused': lines})
        return look

    def of_copy(self, copies: Mapping[int, int]) -> FusedState:
        compared = 'not compared: the graph is a copy' if self.trial is not None else self.report.compared
        members = {copies[handle]: nodes for handle, nodes in self.members.items()}
        return replace(self, report=replace(self.report, compared=compared), recorded=None, members=members, trial=None)

    def before_change(self, state: GraphState, why: str, node: NodeAt | None = None) -> None:
        """The graph does something else from now on than the graph that was recorded."""
        if node is not None and node.handle in self.members:
            made_of = counted(len(self.members[node.handle]), 'recorded node')
            rule = f'Node {node.number} is a fused kernel, made of {made_of}.'
            raise refused(node.call, rule, 'Record again without fusing, and change the node there.')
        waits = self.trial is not None
        self.not_compared(why)
        self.recorded = None
        if waits:
            aim(state)

    def make_alike(self, state: GraphState, other: GraphState) -> list[Callable[[bool], None]]:
        if fused_of(other) is not None or not fuse_now(other, True, self.report.fast):
            return []
        return [lambda instantiated: None if instantiated else unfuse(other, '')]

    def make_unlike(self, other: GraphState) -> None:
        if self.recorded is not None:
            unfuse(other, 'another graph that is not fused has taken it over')

    def handed_over(self) -> None:
        super().handed_over()
        self.recorded = None


def fused_of(state: GraphState) -> FusedState | None:
    """What there is to know of a graph's fused kernels; None where it has none."""
    return state.altered_by(FusedState)


#: What a launch writes by addresses that no node shows: ranges of memory, and the arrays that lie there. None where it
#: is no call of a graphed function that launches it.
_Besides = tuple[Ranges, Sequence[Any]] | None


def unfuse(state: GraphState, why: str) -> None:
    """Be the graph again that was recorded."""
    fused = fused_of(state)
    assert fused is not None and fused.recorded is not None
    fused.report.kept = why
    state.alterations = []
    state.made = fused.recorded
    forget_nodes(state)
    state.recording.spans = fused.spans
    aim(state)  # the launch was bound to an executable graph that is gone
    note_graph(state)


def note_graph(state: GraphState) -> None:
    """The recording tells of the nodes and edges that the graph has now."""
    recording, g = state.recording, state.made.graph
    recording.timeline = None
    recording.node_count = state.device.graph_node_count(g)
    recording.edge_count = state.device.graph_edge_count(g)
    if recording.arrows or recording.graph:
        fill(recording, state.look())


#: What is to become one kernel, with the kernel's name and its function.
_Made = tuple[Fusing, tuple[str, Any]]
#: By whether results may be rounded otherwise.
_HOW = {False: 'with equal bits', True: "with 'fast'"}
_NOTHING = 'no two elementwise kernels of the same elements follow each other'


def fuse(state: GraphState, launch: Callable[..., None], how: str, report: bool) -> Fused:
    """Let runs of elementwise kernels become one kernel each.

    ``launch`` is the graph's, by which it must be launchable. ``how``: 'exact' keeps every bit; 'fast' does not.
    ``report``: only tell what would be done.
    """
    if how not in ('exact', 'fast'):
        raise ValueError(f"how must be 'exact' or 'fast', got {how!r}")
    with state.lock:
        must_be_changeable(state, launch, _CALL, report, 'Write @ck.graphed(fuse=True).')
        return fuse_now(state, not report, how == 'fast')


def fuse_now(state: GraphState, apply: bool, fast: bool, gathers: bool = True, also: _Besides = None) -> Fused:
    """Fuse a graph whose lock the caller holds.

    ``gathers``: whether values between fused kernels come to lie in few blocks. ``also``: what a launch writes by
    addresses that no node shows.
    """
    if (fused := fused_of(state)) is not None:
        if fused.report.fast is not fast:
            rule = f'The graph has been fused {_HOW[fused.report.fast]}.'
            raise refused(_CALL, rule, f'Record again to fuse {_HOW[fast]}.')
        return fused.report
    with Uncollected(), state.relaxed():
        return _fuse(state, apply, fast, gathers, also)


# -- what can be fused --------------------------------------------------------------------------------------------


def _fuse(state: GraphState, apply: bool, fast: bool, gathers: bool, also: _Besides) -> Fused:
    known = Fused(nodes=state.recording.node_count, fast=fast)
    sight = sight_of(state)
    known.kept = _can_not_fuse(state, sight)
    if known.kept:
        return known
    own = _free(state, sight)
    try:
        fusible = Fusible(sight, state.made.graph, own, gathers)
        fusion, made = _compiled(fusible, known)
    except CudaCallError as error:
        known.kept = f'CUDA does not describe its nodes: {error}'
        return known
    nodes = sight.look.nodes
    known.alone = sorted(((nodes[n], why) for n, why in fusion.why.items()), key=lambda one: one[0].number)
    known.kernels = [FusedNodes.of(name, tuple(nodes[n] for n in one.parts), one.kernel) for one, (name, _) in made]
    known.unneeded = [(nodes[n], why) for n, why in sorted(fusion.unneeded.items())]
    if not made and not fusion.unneeded:
        known.kept = _NOTHING
    elif apply:
        fused = FusedState(known, state.made, state.recording.spans, {}, by_calls=also is not None)
        more, arrays = also or (None, ())
        fused.trial = trial_of(state, state.made, known, replace(sight, unheld=own), more)
        if fused.trial is not None:
            fused.trial.unseen = state.memory.unseen()
            fused.trial.rounded = fusible.rounded(fusion, arrays) if fast else ()
        with whole_or_closed(state, _CALL):
            _take_fused(state, fused, fusion, made, nodes)
    else:
        known.kept = 'only a report was asked for'
    return known


def _compiled(fusible: Fusible, known: Fused) -> tuple[Fusion, list[_Made]]:
    """What becomes of the graph, and the kernels for it. Where the compiler refuses one, its nodes stay alone."""
    alone: dict[int, str] = {}
    while True:
        fusion, made = fusible.fusion(alone, known.fast), []
        for one in fusion.kernels:
            before = time.perf_counter()
            try:
                made.append((one, fusible.nodes.fused_function(one.kernel, one.names)))
            except FusingError as error:
                alone.update(dict.fromkeys(one.nodes, str(error)))
            taken = time.perf_counter() - before
            known.seconds += taken
            count('fusions', taken)
        if len(made) == len(fusion.kernels):
            fusion.why = fusion.why if known.fast else fusible.reasons(fusion, alone)
            return fusion, made


def _can_not_fuse(state: GraphState, sight: Sight) -> str:
    if state.plan is not None:
        return PIECES if not state.plan.plain else 'it has conditional nodes'
    if state.alterations:
        return 'it was relaned before: fuse it first'
    if state.names.off:
        return 'some of its nodes are switched off'
    if {info.kind for info in sight.definitions.infos(state.made.graph)} & NOT_COPIED:
        return 'CUDA copies no graph that has conditional nodes or memory nodes'
    return 'it is of several devices' if len(state.recording.devices) > 1 else ''


def _free(state: GraphState, sight: Sight) -> FreeMemory:
    """The graph's own memory that no array lies in."""
    cuda = sight.platform.cupy.cuda
    streams = [cuda.Stream.from_external(StreamHandle(lane.stream)) for lane in state.recording.lanes]
    held = state.memory.spare(streams)
    return FreeMemory((int(p.ptr), int(p.mem.ptr) + int(p.mem.size)) for p in held)


# -- the change ---------------------------------------------------------------------------------------------------


def _take_fused(
    state: GraphState, fused: FusedState, fusion: Fusion, made: Sequence[_Made], nodes: Sequence[Node]
) -> None:
    device, old, known = state.device, state.made, fused.report
    try:
        copy = ExecutableGraph.of_definition(device, device.graph_clone(old.graph), old.host_funcargs)
        handles = device.graph_nodes(copy.graph)
        declared = of_copy(state.declared, device, old.graph, handles)
        for one in fusion.kernels:  # the last node has to run a kernel: a node that copies bytes can not
            last = one.nodes[-1]
            able = next(n for n in reversed(one.nodes) if nodes[n].kind == 'kernel')
            handles[last], handles[able] = handles[able], handles[last]
        _replace_nodes(device, copy.graph, handles, fusion, made)
        new = copy.instantiated(device, state.recording.by_priority)
    except CudaCallError as error:
        known.kept, known.compared = f'CUDA refuses: {error}', ''
        return
    fused.members = {handles[one.nodes[-1]]: tuple(nodes[n] for n in one.parts) for one in fusion.kernels}
    fused.members |= {handles[n]: tuple(nodes[m] for m in (n, *more)) for n, more in fusion.stands.items()}
    fused.keeps = [function for _one, (_name, function) in made]
    state.alter(fused)
    state.made = new
    state.declared |= declared
    forget_nodes(state)
    left, by_handle = device.graph_nodes(new.graph), dict(zip(handles, nodes))
    spans, first = [], 0
    for (lane, at), group in groupby((by_handle[handle] for handle in left), key=lambda one: (one.lane, one.at)):
        spans.append(Span(first, len(list(group)), lane, None if at is None else at.to_json()))
        first += spans[-1].count
    state.recording.spans = spans
    number = {handle: n for n, handle in enumerate(left)}
    for n, one in enumerate(fusion.kernels):
        known.kernels[n] = replace(known.kernels[n], number=number[handles[one.nodes[-1]]])
    note_graph(state)
    aim(state)


def _replace_nodes(device: Any, g: int, handles: Sequence[int], fusion: Fusion, made: Sequence[_Made]) -> None:
    for one, (name, function) in made:
        nodes_of(device).fuse_node(g, handles[one.nodes[-1]], one.kernel, name, function)
    for n in fusion.gone:
        device.node_destroy(handles[n])
    wanted = {(handles[a], handles[b]) for a, b in fusion.edges}
    present = set(device.graph_edges(g))
    device.graph_rewire(g, sorted(present - wanted), sorted(wanted - present))
