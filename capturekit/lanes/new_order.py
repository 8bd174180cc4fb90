"""A graph's edges replaced by those that its data needs.

A recording orders more than it has to: all nodes of one lane come one after the other, and a wait for a lane is one for
all of it. The definition is changed where it stands, so that nodes keep their numbers and lines, and an executable
graph is made of it anew. CUDA C++ Programming Guide, "Graph Structure".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

from capturekit.analysis.node_memory import NotRepeatableError, TooManyError, joined
from capturekit.analysis.node_view import Look
from capturekit.analysis.races import Races, Search
from capturekit.graph.edit import forget_nodes, switch_off
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.launching import aim
from capturekit.graph.refused import refused
from capturekit.graph.sight import INTERNAL_PREFIX, PIECES, Ranges, Sight, allocates, sight_of, unsteady_of, written
from capturekit.graph.state import GraphState, whole_or_closed
from capturekit.lanes.edges import (
    Level,
    NewEdges,
    edges_of,
    find_needed,
    instantiate,
    levels_of,
    make_whole,
    needed_now,
    note_edges,
    rewire,
)
from capturekit.lanes.packed import as_recorded, pack, put_back, unpack
from capturekit.lanes.report import Pairs, Relaned, Wiring
from capturekit.launch.declared import Declared
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.cleanup import GARBAGE
from capturekit.model.counters import LOG
from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Recording
from capturekit.model.source_line import here

# -- the first launch of a graph that was relaned: it is compared with one of the recorded edges, and may undo them ---


_CALL = 'Graph.relane()'


def trial_of(
    state: GraphState, made: ExecutableGraph, report: Relaned, sight: Sight, also: Ranges | None
) -> FirstLaunch | None:
    """The comparison of a first launch with ``made``; None where launches can not be compared: ``report`` says why.

    ``also``: memory that calls write by addresses that no node shows; None where no calls launch the graph.
    """
    try:
        ranges = written(state, sight, INTERNAL_PREFIX if also is not None else '')
    except NotRepeatableError as error:
        report.compared = f'not compared: {error}'
        return None
    report.compared = 'not yet'
    every = joined([*ranges, *(also or ())])
    again, loose = also is not None, unsteady_of(sight, state.made.graph)
    return FirstLaunch(sight.platform, made, every, sight.blocks, again=again, unsteady=loose)


def first_launch(state: GraphState, stream: int) -> None:
    """Launch on a stream, by its handle, with the comparison that is still to come."""
    new_edges = edges_of(state)
    assert new_edges is not None and new_edges.trial is not None
    trial = new_edges.trial
    with state.relaxed():
        try:
            apart = trial.run(state.made.graphExec, stream)
        except MemoryError as error:
            _without_copies(state, new_edges, error)
            state.device.graph_launch(state.made.graphExec, stream)
            return
        with whole_or_closed(state, _CALL):
            apart = _heed(state, new_edges, trial, apart)
            aim(state)
    if apart:
        words = f'{_CALL} is undone: the first launch gave something else than the recorded edges do ({apart})'
        at = here()
        if new_edges.by_calls:
            LOG.warning('%s', words)
        elif at is None:
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        else:
            warnings.warn_explicit(words, RuntimeWarning, at.file, at.line)


def _without_copies(state: GraphState, new_edges: NewEdges, error: MemoryError) -> None:
    """Do without the comparison, and without packed memory, which nothing else shows to be right."""
    new_edges.not_compared(f'no memory for copies ({error})')
    unpack(state, f'no memory for copies ({error})')
    aim(state)


def _heed(state: GraphState, new_edges: NewEdges, trial: FirstLaunch, apart: str) -> str:
    """Let the graph be as its first launch has shown that it may be; return why its edges are the recorded ones."""
    new_edges.trial = None
    new_edges.note(f'differs: {apart}' if apart else f'the same as with the recorded edges{trial.besides}')
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
    state.made, off = recorded, state.names.off
    forget_nodes(state)
    switch_off(state, _CALL, sorted(off))
    note_edges(state)


_ENOUGH = 'its data needs the order that was recorded'
_ALLOCATES = 'it allocates memory as it runs, and CUDA removes no edge of such a graph'


def relane_for_calls(state: GraphState, written: Ranges) -> Relaned:
    """Relane a graph that calls launch. ``written``: memory that it changes besides what its nodes show."""
    with state.lock:
        if state.plan is not None and not state.plan.plain:
            return Relaned(kept=PIECES)
        return relane_now(state, True, written)


def relane_now(state: GraphState, apply: bool, also: Ranges | None = None) -> Relaned:
    """Relane a graph whose lock the caller holds.

    ``also``: memory that a launch writes by addresses that no node shows.
    """
    GARBAGE.hold()  # it would look through all that is made for each node, again and again
    try:
        with state.relaxed():
            return _relane(state, apply, also)
    finally:
        GARBAGE.release()


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
        known.kept = _ALLOCATES if any(allocates(one.nodes) for one in known.graphs) else _ENOUGH
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
        nodes = tuple(look.nodes[n] for n in numbers)
        laid = tuple(level.wanted) if level.lanes else ()
        report.graphs.append(Wiring(nodes, took, tuple(level.recorded), tuple(level.needed), laid))


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
    taken = TakenEdges(recorded, report, by_calls=also is not None, lanes=lanes)
    if trial is not None:
        taken.compare_first(trial, packing)
    state.alter(taken)
    aim(state)


def pack_recorded(
    state: GraphState, levels: Sequence[Level], report: Relaned, sight: Sight, also: Ranges | None
) -> None:
    """A graph that keeps its order keeps no more memory than this order needs."""
    trial = trial_of(state, state.made, Relaned(), sight, also) if state.memory.temporaries() else None
    packing = pack(state, levels, sight, levels[0].recorded) if trial is not None else None
    if trial is None or packing is None:
        return
    try:
        instantiate(state)
    except CudaCallError:
        put_back(state, packing)
        return
    recorded = [level.recorded for level in levels]
    taken = TakenEdges(recorded, report, by_calls=also is not None, lanes=list(recorded))
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


class TakenEdges(NewEdges):
    """The same, with what changes of the graph mean for it."""

    def launch(self, state: GraphState, stream: int) -> None:
        first_launch(state, stream)

    def as_recorded(self, state: GraphState) -> None:
        unpack(state)

    def after_change(self, state: GraphState) -> None:
        _order_again(state, self)

    def make_alike(self, state: GraphState, other: GraphState) -> list[Callable[[bool], None]]:
        if not _lay(other, self.lanes):
            return []
        return [lambda instantiated: instantiate(other) if instantiated else _lay_back(other)]


def _order_again(state: GraphState, new_edges: NewEdges) -> None:
    new_edges.not_compared('a node was changed before the first launch')
    with whole_or_closed(state, _CALL):
        try:
            with state.relaxed():
                _order_now(state)
        except (CudaCallError, TooManyError) as error:
            rule = f'The nodes touch other memory now, and the order that they need can not be found: {error}.'
            raise refused(_CALL, rule, 'Record again: the graph is closed.') from error
        aim(state)


def _order_now(state: GraphState) -> None:
    levels = needed_now(state)
    if not all(level.is_so for level in levels):
        for level in levels:
            level.rewire(state.device, level.wanted)
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
        for level in levels:
            level.rewire(state.device, level.wanted)
    except (CudaCallError, TooManyError):
        return False
    report = Relaned(compared='not compared: another graph has taken this one over')
    state.alter(TakenEdges([level.recorded for level in levels], report, lanes=list(lanes)))
    note_edges(state)
    return True


def _lay_back(state: GraphState) -> None:
    """Give the definitions the edges again that were recorded."""
    for level in levels_of(state):
        level.rewire(state.device, level.recorded)
    state.alterations = [one for one in state.alterations if not isinstance(one, NewEdges)]
    note_edges(state)
