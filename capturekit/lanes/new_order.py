"""A graph's edges replaced by those that its data needs, and its temporaries moved into less memory then.

A recording orders more than it has to: all nodes of one lane come one after the other, and a wait for a lane is one for
all of it. The definition is changed where it stands, so that nodes keep their numbers and lines, and an executable
graph is made of it anew. CUDA C++ Programming Guide, "Graph Structure".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from capturekit.analysis.node_memory import TooManyError, memory_of, needed_edges
from capturekit.analysis.node_view import Look, Node
from capturekit.analysis.races import Races, Search
from capturekit.graph.edit import forget_nodes, switch_off
from capturekit.graph.first_launch import FirstLaunch, warn_of
from capturekit.graph.graph_facts import PIECES, Ranges, Sight, sight_of, trial_of
from capturekit.graph.launching import aim
from capturekit.graph.refused import refused
from capturekit.graph.state import Alteration, GraphState, NodeNames, whole_or_closed
from capturekit.lanes.packing import Aim, NodeWord, Packing, SeenNode, Temporary, TemporarySpan, examined, packed
from capturekit.lanes.report import Pairs, Relaned, Wiring
from capturekit.launch.declared import Declared
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.launch.graph_memory import PoolBlock
from capturekit.launch.plan import Part
from capturekit.model.cleanup import Uncollected
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Recording
from capturekit.model.rules import Code
from capturekit.model.skipped_exits import contextmanager

_CALL = 'Graph.relane()'
#: Kinds of nodes that take memory as the graph runs.
_MEMORY = ('mem alloc', 'mem free', 'memAlloc', 'memFree')


# -- executable graphs made anew, of definitions whose edges or addresses were changed --------------------------------


def instantiate(state: GraphState) -> None:
    """Make an executable graph of the definition as it is now. Nodes that are disabled stay so."""
    try:
        made = state.made.instantiated(state.device, state.recording.by_priority)
        switch_off_as_before(state, made.graphExec)
        state.made = made
    except CudaCallError as error:
        if state.plan is None or error.code != Code.cudaErrorNotSupported:
            raise
        (part,) = state.plan.parts  # of conditional nodes CUDA makes one at a time: the old one has to go first
        old, part.executable = part.executable, 0
        state.device.graph_exec_destroy(old)
        _complete(state, part)
        with whole_or_closed(state, _CALL):
            switch_off_as_before(state, state.made.graphExec)
    handles, off = state.names.handles, state.names.off
    forget_nodes(state)
    if off:
        state.names = NodeNames(handles, dict(handles), off)
    note_edges(state)


def switch_off_as_before(state: GraphState, executable: int) -> None:
    """Let the nodes of an executable graph be disabled that are disabled in the graph."""
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
    """After a refusal: a graph whose executable graph had to go first gets one of the recorded edges."""
    if state.plan is None or state.plan.parts[0].executable:
        return
    try:
        _complete(state, state.plan.parts[0])
    except CudaCallError as error:
        rule = f'Of its definition CUDA makes no executable graph any more: {error}.'
        raise refused(_CALL, rule, 'Free memory of the device, and record again.') from error
    finally:
        aim(state)


def _complete(state: GraphState, part: Part) -> None:
    assert state.plan is not None
    try:
        state.plan.complete(part, state.recording.by_priority)
    finally:
        state.made = replace(state.made, graphExec=part.executable)


# -- what a change of a graph's edges works with: definitions as nodes and pairs, and what the graph has to know ------


def laid(count: int, needed: Pairs, pairs: Pairs) -> Pairs:
    """The fewest edges that make the order of ``needed`` and that of ``pairs``.

    These are ``needed`` alone where the two go in a circle: the lanes were laid for another order than this one.
    """
    if not pairs:
        return needed
    try:
        order = Order(count, [*needed, *pairs])
    except ValueError:
        return needed
    return sorted({*needed, *pairs} - set(order.redundant()), key=lambda edge: edge[::-1])


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

    @property
    def orders(self) -> tuple[Order, Order]:
        """The order as recorded, and the one that the data needs."""
        return Order(len(self.handles), self.recorded), Order(len(self.handles), self.needed)

    def nodes(self, look: Look) -> list[Node]:
        """Its nodes."""
        return [look.nodes[look.numbers[handle]] for handle in self.handles]

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

    call: ClassVar[str] = _CALL

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

    def launch(self, state: GraphState, stream: int) -> None:
        trial = self.trial
        assert trial is not None
        with state.relaxed():
            try:
                apart = trial.run(state.made.graphExec, stream)
            except MemoryError as error:  # and without packed memory, which nothing else shows to be right
                self.not_compared(f'no memory for copies ({error})')
                unpack(state, f'no memory for copies ({error})')
                aim(state)
                state.device.graph_launch(state.made.graphExec, stream)
                return
            with whole_or_closed(state, _CALL):
                apart = _heed(state, self, trial, apart)
                aim(state)
        if apart:
            words = f'{_CALL} is undone: the first launch gave something else than the recorded edges do ({apart})'
            warn_of(words, self.by_calls)

    def as_recorded(self, state: GraphState) -> None:
        unpack(state)

    def after_change(self, state: GraphState) -> None:
        self.not_compared('a node was changed before the first launch')
        with whole_or_closed(state, _CALL):
            try:
                with state.relaxed():
                    _order_now(state)
            except (CudaCallError, TooManyError) as error:
                rule = f'The nodes touch other memory now, and the order that they need can not be found: {error}.'
                raise refused(_CALL, rule, 'Record again: the graph is closed.') from error
            aim(state)

    def make_alike(self, state: GraphState, other: GraphState) -> list[Callable[[bool], None]]:
        if not _lay(other, self.lanes):
            return []
        return [lambda instantiated: instantiate(other) if instantiated else _lay_back(other)]


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
        found.append(Level(g, handles, present, present if new_edges is None else new_edges.recorded[number]))
        if new_edges is not None and new_edges.lanes:
            found[-1].lanes = new_edges.lanes[number]
    return found


def find_needed(levels: Sequence[Level], sight: Sight) -> list[Node]:
    """Find the needed edges of each level; return the nodes of unknown memory."""
    fixed = []
    for level in levels:
        memory = memory_of(sight.definitions, level.graph, sight.blocks, by_word=True)
        nodes = level.nodes(sight.look)
        if any(node.kind in _MEMORY for node in nodes):
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
    levels = levels_of(state)
    find_needed(levels, sight_of(state))
    return levels


# -- temporaries moved into less memory, once the order of the nodes is known -----------------------------------------
#
# ``lanes='auto'`` gives each temporary memory of its own while it records, so that no order comes from memory that is
# used again. Afterwards the edges tell who may run beside whom, and all others may share bytes. The graph as it was
# recorded stays, until a launch of both has given the same.


def pack(state: GraphState, levels: Sequence[Level], sight: Sight, edges: Pairs) -> Packing | None:
    """Let the definition have packed temporaries; None where it can not, or where that would save nothing."""
    try:
        packing = _packing(state, levels, sight, edges)
    except (CudaCallError, MemoryError):
        return None
    if packing is None:
        return None
    with whole_or_closed(state, _CALL):
        try:
            state.declared = packing.aim(state.declared)
        except CudaCallError:
            packing.aim_back()
            packing.drop()
            return None
    state.index = None
    return packing


def instantiated_packed(state: GraphState, levels: Sequence[Level], sight: Sight, edges: Pairs) -> Packing | None:
    """The same, with an executable graph of it; None where CUDA makes none."""
    packing = pack(state, levels, sight, edges)
    if packing is not None:
        try:
            instantiate(state)
        except CudaCallError:
            put_back(state, packing)
            return None
    return packing


def put_back(state: GraphState, packing: Packing) -> None:
    """Let the definition's temporaries lie again where they were recorded; no executable graph uses others."""
    state.declared, state.index = packing.aim_back(), None
    packing.drop()


def unpack(state: GraphState, why: str = 'the graph was changed before the first launch') -> None:
    """Do without packed memory whose first launch is still to come: nothing else has shown that it is right."""
    new_edges = edges_of(state)
    if new_edges is None or new_edges.packing is None:
        return
    packing, new_edges.packing, new_edges.report.packed, new_edges.report.unpacked = new_edges.packing, None, None, why
    with whole_or_closed(state, _CALL), state.relaxed():
        state.declared, state.index = packing.aim_back(), None
        instantiate(state)
        packing.drop()
    if new_edges.trial is not None:
        new_edges.trial.gone = ()
    if new_edges.report.kept:
        state.restore(new_edges)
    aim(state)


@contextmanager
def as_recorded(state: GraphState) -> Iterator[None]:
    """Let the definition's temporaries lie where they were recorded, as long as nothing has shown that their packed
    memory is right: what is found out in here holds for the recorded addresses."""
    new_edges = edges_of(state)
    packing = None if new_edges is None else new_edges.packing
    if packing is None:
        yield
        return
    with whole_or_closed(state, _CALL):
        state.declared, state.index = packing.aim_back(), None
    try:
        yield
    finally:
        with whole_or_closed(state, _CALL):
            state.declared, state.index = packing.aim(state.declared), None


def _packing(state: GraphState, levels: Sequence[Level], sight: Sight, edges: Pairs) -> Packing | None:
    """Temporaries laid for an order, as a packing that is not applied yet; None where it would save nothing.

    Where the packed memory is that of other graphs as well, it saves something in any case.

    The nodes have the addresses that they were recorded with. Raises MemoryError and CudaCallError.
    """
    if len(levels) > 1 or state.plan is not None or any(one.call != NewEdges.call for one in state.alterations):
        return None
    level = levels[0]
    recorded = Order(len(level.handles), level.recorded)
    blocks = sorted(state.memory.temporaries(), key=_low)
    found = _examined(level, sight, recorded, blocks) if blocks else []
    aims = [one for one in _aims(state.device, level.graph, found) if one.settled()]
    moved = [(one, block) for one, block in zip(found, blocks) if not one.stays]
    spans = [TemporarySpan(one.high - one.low, tuple(recorded.sequence[n] for n in one.uses)) for one, _block in moved]
    orders = [recorded] if set(edges) == set(level.recorded) else [recorded, Order(len(level.handles), edges)]
    layout, least = packed(orders, spans), 0 if state.memory.packs else 1
    saved = sum(one.size for one in spans) - layout.size
    if not spans or saved < least:
        return None
    return Packing(state.memory, aims, moved, layout, sight.definitions.own_by_argument(level.graph, sight.blocks))


def _examined(level: Level, sight: Sight, recorded: Order, blocks: Sequence[PoolBlock]) -> list[Temporary]:
    known, g = sight.definitions, level.graph
    infos = {info.handle: info for info in known.infos(g)}
    touched, alone = known.accesses(g), memory_of(known, g, sight.blocks)
    memory = memory_of(known, g, sight.blocks, by_word=True) if known.declared else alone
    handles = [level.handles[n] for n in recorded.sequence]
    nodes = [SeenNode(infos[h], touched[h], memory[h], known.declared.get(h), alone[h] is None) for h in handles]
    place = {handle: number for number, handle in enumerate(handles)}
    return examined(
        nodes, [Temporary(_low(one), _low(one) + one.size, _lives(one, place), one.of_library) for one in blocks]
    )


def _aims(device: Any, g: int, blocks: Sequence[Temporary]) -> list[Aim]:
    words: dict[int, list[tuple[NodeWord, Temporary]]] = {}
    for block in blocks:
        for word in block.words if not block.stays else ():
            words.setdefault(word.info.handle, []).append((word, block))
    return [Aim(device, g, several[0][0].info, several) for several in words.values()]


def _low(block: PoolBlock) -> int:
    return int(block.pointer.ptr)


def _lives(block: PoolBlock, place: Mapping[int, int]) -> list[tuple[int, int]] | None:
    """When a block was in use, by the places of nodes; None where that is not known."""
    found = []
    for since, until in block.lives:
        if since is None or not place.keys() >= {*since, *(until or ())}:
            return None
        end = len(place) if until is None else max((place[node] for node in until), default=-1)
        found.append((max((place[node] for node in since), default=-1), end))
    return found


# -- the first launch of a graph that was relaned: it is compared with one of the recorded edges, and may undo them ---


def _heed(state: GraphState, new_edges: NewEdges, trial: FirstLaunch, apart: str) -> str:
    """Let the graph be as its first launch has shown that it may be; return why its edges are the recorded ones."""
    new_edges.trial = None
    new_edges.note(f'differs: {apart}' if apart else 'the same as with the recorded edges')
    if not apart:
        _settle(state, new_edges)
        return ''
    if new_edges.packing is None:
        fall_back(state, trial.recorded, f'the first launch gave something else: {apart}')
        return apart
    unpack(state, f'the first launch gave something else: {apart}')  # the order may be right all the same
    trial.gone, trial.passing = (), trial.gone
    new_edges.trial = None if new_edges.report.kept else trial
    new_edges.note('not yet')
    return ''


def _settle(state: GraphState, new_edges: NewEdges) -> None:
    """The packed memory is right: give back what the graph was recorded with."""
    packing, new_edges.packing = new_edges.packing, None
    if packing is not None:
        packing.settle()
        state.recording.memory_bytes = state.memory.used_bytes()
    if new_edges.report.kept and edges_of(state) is new_edges:
        state.restore(new_edges)


def fall_back(state: GraphState, recorded: ExecutableGraph, why: str) -> None:
    """Give the graph its recorded edges again, and the executable graph that was made of them."""
    new_edges = edges_of(state)
    assert new_edges is not None
    for level in levels_of(state):
        level.rewire(state.device, level.recorded)
    new_edges.report.kept = why
    if new_edges.packing is not None:
        put_back(state, new_edges.packing)
        new_edges.report.packed = None
    state.restore(new_edges)
    take_made(state, recorded)


def take_made(state: GraphState, made: ExecutableGraph) -> None:
    """Let the graph have an executable graph that was made of its definition as it is now."""
    state.made, off = made, sorted(state.names.off)
    forget_nodes(state)
    switch_off(state, _CALL, off)
    note_edges(state)


_ENOUGH = 'its data needs the order that was recorded'
_ALLOCATES = 'it allocates memory as it runs, and CUDA removes no edge of such a graph'


def relane_now(state: GraphState, apply: bool, also: Ranges | None = None) -> Relaned:
    """Relane a graph whose lock the caller holds.

    ``also``: memory that a launch writes by addresses that no node shows.
    """
    if state.plan is not None and not state.plan.plain:
        return Relaned(kept=PIECES)
    with Uncollected(), state.relaxed():  # garbage collection would look through all that is made, again and again
        return _relane(state, apply, also)


def _relane(state: GraphState, apply: bool, also: Ranges | None) -> Relaned:
    with as_recorded(state):
        sight = sight_of(state)
        levels, known = levels_of(state), Relaned()
        try:
            known.fixed = find_needed(levels, sight)
        except (TooManyError, CudaCallError) as error:
            known.kept = str(error)
            return known
        _note_words(state.declared, known, levels, sight)
    _fill(state.recording, known, levels, sight.look)
    if not known.loosened:
        kinds = {node.kind for one in known.graphs for node in one.nodes}
        known.kept = _ENOUGH if kinds.isdisjoint(_MEMORY) else _ALLOCATES
    if all(level.is_so for level in levels) and (edges := edges_of(state)) is not None:
        so_far = edges.report
        known.compared, known.packed, known.kept = so_far.compared, so_far.packed, known.kept or so_far.kept
    elif apply and not known.kept:
        unpack(state, 'the order was computed again before the first launch')
        with whole_or_closed(state, _CALL):
            known.kept = _rewired(state, levels, sight)
            if not known.kept:
                _take_edges(state, levels, known, sight, also)
    elif not known.kept:
        known.kept = 'only a report was asked for'
    if apply and known.kept and edges_of(state) is None:
        with whole_or_closed(state, _CALL):
            pack_recorded(state, levels, known, sight, also)
    return known


def _note_words(declared: Mapping[int, Declared], report: Relaned, levels: Sequence[Level], sight: Sight) -> None:
    """Tell which nodes are taken as the user says, and of which only one half is said."""
    look = sight.look
    words = [h for level in levels for h in sight.definitions.by_word(level.graph, sight.blocks)]
    taken = {look.numbers[h] for h in words if not declared[h].call}
    report.called = [look.nodes[number] for number in sorted({look.numbers[h] for h in words} - taken)]
    half = {look.numbers[h] for h, one in declared.items() if h in look.numbers and not one.whole}
    report.declared = [look.nodes[number] for number in sorted(taken)]
    report.half_declared = [node for node in report.fixed if node.number in half]


def _fill(recording: Recording, report: Relaned, levels: Sequence[Level], look: Look) -> None:
    timeline = recording.timeline
    timed = timeline is not None and len(timeline.nodes) == len(look.nodes)
    report.unit = 'us' if timed else 'nodes'
    for level in levels:
        numbers = [look.numbers[handle] for handle in level.handles]
        spans = timeline.nodes if timed and timeline is not None else [(0.0, 1.0)] * len(look.nodes)
        took = tuple(0.0 if (span := spans[n]) is None else span[1] - span[0] for n in numbers)
        laid = tuple(level.wanted) if level.lanes else ()
        report.graphs.append(Wiring(tuple(level.nodes(look)), took, tuple(level.recorded), tuple(level.needed), laid))


def _rewired(state: GraphState, levels: Sequence[Level], sight: Sight) -> str:
    """Give all definitions the edges that they need; return why that can not be, and then they are as before."""
    old = [level.present for level in levels]
    try:
        rewire(state.device, levels, [level.wanted for level in levels])
        after = races_now(state, sight)
        if not after:
            return ''
        rewire(state.device, levels, old)
        why = _worse(races_now(state, sight), after)
        if not why:
            rewire(state.device, levels, [level.wanted for level in levels])
    except CudaCallError as error:
        why = f'CUDA refuses: {error}'
        rewire(state.device, levels, old)
    return why


def races_now(state: GraphState, sight: Sight) -> Races:
    """The races of the graph as it is now."""
    told = sight.definitions.told(sight.blocks, whole=True)
    return Search(state.device, state.parts(), sight.look, sight.blocks, accesses=told).report


def _take_edges(state: GraphState, levels: Sequence[Level], report: Relaned, sight: Sight, also: Ranges | None) -> None:
    """Make executable graphs of the new definitions, and let the next launch be compared."""
    new_edges, made = edges_of(state), state.made
    trial = trial_of(state, made, report, sight, also) if new_edges is None else None
    packing = pack(state, levels, sight, levels[0].wanted) if trial is not None else None
    try:
        instantiate(state)
    except CudaCallError as error:
        rewire(state.device, levels, [level.recorded for level in levels])
        if packing is not None:
            put_back(state, packing)
        report.kept, report.compared = f'CUDA refuses: {error}', ''
        make_whole(state)
        return
    if new_edges is not None:
        new_edges.not_compared('the order was computed again before the first launch')
    lanes = [] if new_edges is None else new_edges.lanes
    recorded = [level.recorded for level in levels]
    taken = NewEdges(recorded, report, by_calls=also is not None, lanes=lanes)
    if trial is not None:
        taken.compare_first(trial, packing)
    state.alter(taken)
    aim(state)


def pack_recorded(
    state: GraphState, levels: Sequence[Level], report: Relaned, sight: Sight, also: Ranges | None
) -> None:
    """A graph that keeps its order keeps no more memory than this order needs."""
    trial = trial_of(state, state.made, Relaned(), sight, also) if state.memory.temporaries() else None
    packing = instantiated_packed(state, levels, sight, levels[0].recorded) if trial is not None else None
    if trial is None or packing is None:
        return
    recorded = [level.recorded for level in levels]
    taken = NewEdges(recorded, report, by_calls=also is not None, lanes=list(recorded))
    taken.compare_first(trial, packing)
    state.alter(taken)
    aim(state)


def _worse(before: Races, after: Races) -> str:
    """The first race that was not there before, in words; '' if there is none."""
    known = {(race.missing, race.certain): race.count for race in before}
    for race in after:
        if known.get((race.missing, race.certain), 0) < race.count:
            return str(race).partition('\n')[0]
    return ''


# -- afterwards ---------------------------------------------------------------------------------------------------


def _order_now(state: GraphState) -> None:
    levels = needed_now(state)
    if not all(level.is_so for level in levels):
        rewire(state.device, levels, [level.wanted for level in levels])
        instantiate(state)


# -- another graph that is to be taken over -----------------------------------------------------------------------


def _lay(state: GraphState, lanes: Sequence[Pairs]) -> bool:
    """Give the definitions the edges that they need, and those of ``lanes``; leave the executable graphs."""
    if edges_of(state) is not None:
        return False
    try:
        levels = needed_now(state)
        for level, pairs in zip(levels, lanes):
            level.lanes = pairs
        rewire(state.device, levels, [level.wanted for level in levels])
    except (CudaCallError, TooManyError):
        return False
    report = Relaned(compared='not compared: another graph has taken this one over')
    state.alter(NewEdges([level.recorded for level in levels], report, lanes=list(lanes)))
    note_edges(state)
    return True


def _lay_back(state: GraphState) -> None:
    """Give the definitions the edges again that were recorded."""
    for level in levels_of(state):
        level.rewire(state.device, level.recorded)
    state.alterations = [one for one in state.alterations if not isinstance(one, NewEdges)]
    note_edges(state)
