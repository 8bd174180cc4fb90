"""The orders that a graph may have: as recorded, as its data needs it, and on few lanes. The fastest is kept.

All of them are launched in turn and timed. Lanes are laid by the longest path, from times of the nodes: those of
``graph.measure()``, if it was called, else of some launches with an event before and after each node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

from capturekit.analysis.node_memory import NotRepeatableError
from capturekit.graph.first_launch import ON_DEVICE
from capturekit.graph.half_changed import HalfChangedError, taking_back, whole_or_closed
from capturekit.graph.launching import aim_all
from capturekit.graph.measure import timeline
from capturekit.graph.nodes import forget_nodes, switch_off
from capturekit.graph.sight import Sight, sight_of, written
from capturekit.graph.state import GraphState
from capturekit.lanes.both_orders import FEWEST, SameStart, same_start
from capturekit.lanes.contest import BEHIND_ONE, NEEDED, RECORDED, Candidate, Contest
from capturekit.lanes.executables import note_edges
from capturekit.lanes.finalists import last_rounds
from capturekit.lanes.lane_order import as_in_a_graph, behind_one, laid, on_lanes
from capturekit.lanes.lower_bound import Bound, lower_bound
from capturekit.lanes.needed import find_needed, levels_of, rewire
from capturekit.lanes.new_edges import Level, NewEdges, edges_of
from capturekit.lanes.new_order import pack_recorded
from capturekit.lanes.one_lane import Capacity, why_one_lane
from capturekit.lanes.packed import unpack
from capturekit.lanes.relaned_launch import fall_back, trial_of
from capturekit.lanes.report import Pairs, Relaned
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError

#: The numbers of lanes that are tried, as far as the data lets so many nodes run at once.
_LANES = (16, 8, 32, 4, 2)
#: So many lanes, or more, begin behind the first node of one of them: a launch that begins with many nodes costs more.
_MANY = 8
#: No more are made once all that was made has taken so many seconds.
_SECONDS = 5.0
#: How often the graph is launched to measure its nodes, after one launch that does not count.
_MEASURED = 3


def keep_fastest(state: GraphState, report: Relaned, rounds: int) -> None:
    """Time all orders, and give the graph the fastest: the recorded one unless another is faster beyond doubt."""
    unpack(state, '')
    report.packed, new_edges = None, edges_of(state)
    assert new_edges is not None
    sight, stream = sight_of(state), state.current().ptr
    levels = levels_of(state, sight.look)
    find_needed(levels, sight)
    try:
        with same_start(sight.platform, written(state, sight), stream) as start:
            took = _node_times(state, levels[0], sight, start)
            contest = Contest(state, levels, sight, start, took, rounds)
            orders = _orders(contest, new_edges)
            chosen, told = last_rounds(contest, orders, contest.times(orders))
    except NotRepeatableError as error:
        report.untimed = str(error)
    except MemoryError as error:
        report.untimed = f'no memory for copies ({error})'
    except CudaCallError as error:
        report.untimed = f'CUDA refuses: {error}'
    except HalfChangedError as half:
        with whole_or_closed(state, 'Graph.relane()'):
            raise half.cause from None
    else:
        report.times, report.unit = told, 'us'
        report.bound = _bound(levels[0], sight, took, told.medians[0])
        report.graphs[0] = replace(report.graphs[0], took=tuple(took), laid=())
        new_edges.report = report
        with whole_or_closed(state, 'Graph.relane()'):
            _take(contest, new_edges, chosen, orders[RECORDED])
    aim_all(state)


def _take(contest: Contest, new_edges: NewEdges, chosen: Candidate, recorded: Candidate) -> None:
    """Let the graph be the candidate that was chosen."""
    state, levels, report = contest.state, contest.levels, new_edges.report
    if chosen.name == RECORDED:
        _keep_recorded(contest, report, chosen, recorded)
        return
    if chosen.name != NEEDED or new_edges.lanes or chosen.packing is not None or chosen.by_priority:
        new_edges.lanes = chosen.lanes
        _lay_lanes(state, levels, chosen.lanes, report, chosen.made)
    if chosen.packing is not None:
        state.declared, state.index = chosen.packing.aim(state.declared), None
        trial = new_edges.trial or trial_of(state, recorded.made, report, contest.sight, None)
        assert trial is not None  # it was launched already
        new_edges.compare_first(trial, chosen.packing)
    if chosen.by_priority:
        levels[0].give_priorities(state.device, chosen.by_priority)
        state.recording.by_priority = new_edges.by_priority = True


def _keep_recorded(contest: Contest, report: Relaned, chosen: Candidate, recorded: Candidate) -> None:
    """Let the graph have its recorded edges, in packed memory if that was chosen."""
    state, levels, sight = contest.state, contest.levels, contest.sight
    why = _why_one_lane(levels[0], sight, contest.took)
    fall_back(state, recorded.made, f'it is not faster: {report.times}; {why}')
    report.compared = ''
    for level in levels:
        level.lanes, level.present = (), list(level.recorded)
    if chosen.packing is not None:
        chosen.packing.drop()
        pack_recorded(state, levels, report, sight, None)


def _bound(level: Level, sight: Sight, took: Sequence[float], whole: float) -> Bound:
    nodes = [sight.look.nodes[sight.look.numbers[handle]] for handle in level.handles]
    recorded, needed = (Order(len(level.handles), edges) for edges in (level.recorded, level.needed))
    cuda, launched = sight.platform.cupy.cuda, as_in_a_graph(recorded, took, whole)
    on_device: Callable[[int], bool] = lambda low: cuda.runtime.pointerGetAttributes(low).type in ON_DEVICE  # noqa: E731
    return lower_bound(nodes, launched, needed, Capacity.of(cuda.Device()), on_device)


def _why_one_lane(level: Level, sight: Sight, took: Sequence[float]) -> str:
    nodes = [sight.look.nodes[sight.look.numbers[handle]] for handle in level.handles]
    accesses = sight.definitions.accesses(level.graph)
    recorded, needed = (Order(len(level.handles), edges) for edges in (level.recorded, level.needed))
    capacity = Capacity.of(sight.platform.cupy.cuda.Device())
    return why_one_lane(nodes, [accesses[handle] for handle in level.handles], took, (recorded, needed), capacity)


def _lay_lanes(
    state: GraphState, levels: Sequence[Level], lanes: Sequence[Pairs], report: Relaned, made: ExecutableGraph
) -> None:
    """Give the definition the edges of the lanes that were chosen, and take the executable graph that has them."""
    for level, pairs in zip(levels, lanes or [()] * len(levels)):
        level.lanes = pairs
        level.rewire(state.device, level.wanted)
    report.graphs[0] = replace(report.graphs[0], laid=tuple(levels[0].wanted) if lanes else ())
    state.made, off = made, sorted(state.names.off)
    forget_nodes(state)
    switch_off(state, 'Graph.relane()', off)
    note_edges(state)


# -- the candidates -----------------------------------------------------------------------------------------------


def _orders(contest: Contest, new_edges: NewEdges) -> dict[int, Candidate]:
    """The candidates, by the number of their lanes. The definition has its present edges again afterwards."""
    state, levels = contest.state, contest.levels
    present = [level.present for level in levels]
    found: dict[int, Candidate] = {}
    try:
        as_recorded = None if new_edges.trial is None else new_edges.trial.recorded
        as_recorded = as_recorded or contest.with_edges(levels, [one.recorded for one in levels])
        found[RECORDED] = Candidate(RECORDED, as_recorded, [one.recorded for one in levels])
        as_needed = None if any(level.lanes for level in levels) else state.made
        as_needed = as_needed or contest.with_edges(levels, [one.needed for one in levels])
        found[NEEDED] = Candidate(NEEDED, as_needed, [one.needed for one in levels])
        as_launched = _as_launched(contest, as_recorded)
        for count, lanes in _lanes_for(levels, contest.sight, as_launched):
            edges: list[Pairs] = [laid(len(level.handles), level.needed, pairs) for level, pairs in zip(levels, lanes)]
            found[count] = Candidate(count, contest.with_edges(levels, edges), edges, lanes)
    finally:
        with taking_back():
            rewire(state.device, levels, present)
    return found


def _lanes_for(levels: Sequence[Level], sight: Sight, took: Sequence[float]) -> Iterator[tuple[int, list[Pairs]]]:
    """Numbers of lanes to try, each with the pairs of nodes that follow each other on them.

    Lanes order nodes that the data does not. Two kernels of which nothing is known may wait for each other, if
    they were recorded in no order: then no lanes are tried.
    """
    level = levels[0]
    order = Order(len(level.handles), level.needed)
    widest = most_side_by_side(order)
    wanted = [count for count in _LANES if count < widest]
    recorded = Order(len(level.handles), level.recorded)
    if len(levels) > 1 or (most_side_by_side(recorded) > 1 and _unknown(level, sight)):
        return
    began = perf_counter()
    if one := behind_one(order, took):
        yield BEHIND_ONE, [one]
    for count in wanted:
        if perf_counter() - began < _SECONDS:
            pairs = on_lanes(order, took, count)
            yield count, [behind_one(order, took, pairs) if count >= _MANY else pairs]


def _as_launched(contest: Contest, recorded: ExecutableGraph) -> list[float]:
    """The times of the nodes, as they are where no event stands between them."""
    level, state = contest.levels[0], contest.state
    whole = state.device.graph_time(recorded.graphExec, state.current().ptr, FEWEST)
    return as_in_a_graph(Order(len(level.handles), level.recorded), contest.took, whole)


def _unknown(level: Level, sight: Sight) -> bool:
    touched = sight.definitions.accesses(level.graph)
    return any(
        not touched[handle].complete or any(one.writes is None for one in touched[handle].accesses)
        for handle in level.handles
    )


def _node_times(state: GraphState, level: Level, sight: Sight, start: SameStart) -> list[float]:
    """The time of each node in microseconds; 1 for each where CUDA can't mark them."""
    look, known = sight.look, state.recording.timeline
    if known is None or len(known.nodes) != len(look.nodes):
        off = [state.names.handles[number] for number in sorted(state.names.off)]
        stream, heeds = state.current().ptr, state.recording.by_priority
        with _unless_refused() as measured:
            start.put_back()
            given = state.made.graph, state.made.graphExec, stream, _MEASURED, 1, off, 'events', heeds
            measured.append(state.device.graph_measure(*given))
        if not measured:
            return [1.0] * len(level.handles)
        known = timeline(measured[0], look.numbers, look.edges, len(look.nodes))
    spans = [known.nodes[look.numbers[handle]] for handle in level.handles]
    return [0.0 if span is None else span[1] - span[0] for span in spans]


@contextmanager
def _unless_refused() -> Iterator[list[Any]]:
    """A list to put something into that CUDA may refuse to give."""
    found: list[Any] = []
    try:
        yield found
    except CudaCallError:
        found.clear()


def most_side_by_side(order: Order) -> int:
    """How many nodes may run at once, if each begins as soon as those before it have ended, and all take as long."""
    depth: list[int] = [0] * len(order.before_each)
    for node in order.sequence:
        depth[node] = 1 + max((depth[a] for a in order.before_each[node]), default=-1)
    return max(map(depth.count, set(depth)), default=0)
