"""``graph.relane()``: the edges that a graph's data needs, or the fastest of several orders.

The orders are candidates, each with an executable graph of its own; they are launched in turn and timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from capturekit.analysis.concurrency import Capacity
from capturekit.analysis.node_memory import NotRepeatableError
from capturekit.driver.cuda import Platform
from capturekit.graph.first_launch import ON_DEVICE, bytes_at
from capturekit.graph.launching import aim
from capturekit.graph.measure import timeline
from capturekit.graph.sight import Sight, sight_of, written
from capturekit.graph.state import (
    GraphState,
    HalfChangedError,
    must_be_changeable,
    positive,
    taking_back,
    whole_or_closed,
)
from capturekit.lanes.lane_order import Bound, as_in_a_graph, behind_one, laid, lower_bound, on_lanes, why_one_lane
from capturekit.lanes.new_order import (
    Level,
    NewEdges,
    edges_of,
    fall_back,
    find_needed,
    levels_of,
    pack,
    pack_recorded,
    relane_now,
    rewire,
    switch_off_as_before,
    take_made,
    trial_of,
    unpack,
)
from capturekit.lanes.packing import Packing
from capturekit.lanes.report import OrderTimes, Pairs, Relaned, beats
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError, UnmatchedError
from capturekit.model.source_line import here


def relane(state: GraphState, launch: Callable[..., None], report: bool, rounds: int) -> Relaned:
    """Let a graph have the edges that its data needs. ``launch`` is the graph's, by which it must be launchable.

    ``report``: only tell what would be done. ``rounds``: how often each of several orders is timed.
    """
    if positive('rounds', rounds, 0) and report is True:
        raise ValueError('report=True launches nothing: rounds= goes without it')
    if rounds and state.gate.occupied():
        rule = 'It launches the graph and waits for it, and this thread has a capture or a rehearsal open.'
        raise UnmatchedError(NewEdges.call, location=here(), rule=rule, remedy='Ask outside of it, or without rounds=.')
    with state.lock:
        must_be_changeable(state, launch, NewEdges.call, report, "Write @ck.graphed(lanes='auto').")
        found = relane_now(state, apply=not report)
        if rounds and found:
            with state.relaxed():
                keep_fastest(state, found, rounds)
        return found


# -- a graph in several orders: launched in turn, and timed -----------------------------------------------------------
#
# Each launch starts from the same bytes: all memory that the graph writes is put back before it, and after the last.


#: Launches follow each other, as in a loop: the host may need longer for one than the device. There are as many as take
#: so many microseconds, and not fewer or more than these: the first ones after another graph's take longer.
IN_A_ROW, FEWEST, MOST = 2000.0, 4, 25
_Name = TypeVar('_Name')


@contextmanager
def same_start(platform: Platform, ranges: Sequence[tuple[int, int]], stream: int) -> Iterator[Callable[[], None]]:
    """For a block of launches on a stream: a function that puts memory back, which is called at the end as well.

    Raises MemoryError where there is no room for copies.
    """
    views = [bytes_at(platform, low, high) for low, high in ranges]
    copies = [view.copy() for view in views]

    def put_back() -> None:
        for view, copy in zip(views, copies):
            view[...] = copy

    try:
        yield put_back
    finally:
        platform.device.stream_synchronize(stream)  # memory of the host is put back at once
        put_back()
        platform.device.stream_synchronize(stream)


def timed(
    device: Any, put_back: Callable[[], None], executables: Mapping[_Name, int], rounds: int, stream: int
) -> dict[_Name, tuple[float, ...]]:
    """Launch executable graphs in turn, ``rounds`` times each after one that does not count; return microseconds.

    Each time it is launched several times in a row, and all but the first are timed.
    """
    found: dict[_Name, list[float]] = {name: [] for name in executables}
    counts = dict.fromkeys(executables, FEWEST)
    names = list(executables)
    for number in range(1 + rounds):
        for name in names:
            put_back()
            us = device.graph_time(executables[name], stream, counts[name])
            if number:
                found[name].append(us)
            else:
                counts[name] = max(FEWEST, min(MOST, int(IN_A_ROW / max(us, 1.0))))
        names = names[::-1] if len(names) == 2 else [*names[1:], names[0]]
    return {name: tuple(times) for name, times in found.items()}


RECORDED, NEEDED, BEHIND_ONE = 0, -1, -2


@dataclass(frozen=True)
class Candidate:
    """An executable graph, its edges in each definition, and the pairs of nodes on lanes that make them so.

    ``packing``: of its temporaries; the definition has the memory that was recorded.
    """

    name: int
    made: ExecutableGraph
    edges: list[Pairs]
    lanes: list[Pairs] = field(default_factory=list)
    packing: Packing | None = None


@dataclass(frozen=True)
class Contest:
    """What candidates are made of and timed with.

    Attributes:
        state, levels, sight: the graph, its definitions, and one look at it.
        put_back: puts the memory back before each launch.
        took: the microseconds of each node of the first definition.
        rounds: how often each candidate is timed.
    """

    state: GraphState
    levels: Sequence[Level]
    sight: Sight
    put_back: Callable[[], None]
    took: Sequence[float]
    rounds: int

    def with_edges(self, levels: Sequence[Level], edges: Sequence[Pairs]) -> ExecutableGraph:
        """An executable graph with other edges, which the definition keeps."""
        state = self.state
        rewire(state.device, levels, edges)
        made: ExecutableGraph = state.made.instantiated(state.device, state.recording.by_priority)
        switch_off_as_before(state, made.graphExec)
        return made

    def times(self, candidates: Mapping[_Name, Candidate]) -> dict[_Name, tuple[float, ...]]:
        """The microseconds of launches of each candidate, in all rounds."""
        executables = {name: one.made.graphExec for name, one in candidates.items()}
        return timed(self.state.device, self.put_back, executables, self.rounds, self.state.current().ptr)


# -- the last rounds between orders: the best ones in packed memory beside their own ----------------------------------
#
# Packed memory is taken where it is not slower beyond doubt.


#: So many orders, besides the recorded one, get packed memory to be timed in.
_PACKED = 2

_Times = Mapping[int, tuple[float, ...]]


def last_rounds(contest: Contest, orders: Mapping[int, Candidate], times: _Times) -> tuple[Candidate, OrderTimes]:
    """Choose a candidate, and tell what launches of each took. The definition is as before afterwards."""
    lanes = {name: one for name, one in times.items() if name > 0}
    simulated = contest.sight.platform.simulated
    told = OrderTimes(times[RECORDED], times[NEEDED], simulated, lanes, times.get(BEHIND_ONE, ()))
    best = orders[told.best]
    packed = _in_packed_memory(contest, orders, times)
    if packed:
        best, again = _beside_their_own(contest, orders, packed)
        told = replace(told, packed={name: again[name, True] for name in packed})
    return best, replace(told, chosen=(best.name, best.packing is not None))


# -- packed memory ------------------------------------------------------------------------------------------------


def _beside_their_own(
    contest: Contest, orders: Mapping[int, Candidate], packed: Mapping[int, Candidate]
) -> tuple[Candidate, Mapping[tuple[int, bool], tuple[float, ...]]]:
    """Time orders in packed memory and in their own; return the best, and the times by order and whether packed."""
    pairs = {(name, False): orders[name] for name in packed} | {(name, True): one for name, one in packed.items()}
    chosen = None
    try:
        again = contest.times(pairs)
        chosen = _fastest(again)
    finally:
        for key, one in pairs.items():
            if one.packing is not None and key != chosen:
                one.packing.drop()
    return pairs[chosen], again


def _in_packed_memory(contest: Contest, orders: Mapping[int, Candidate], times: _Times) -> dict[int, Candidate]:
    """The recorded order and the best others, each with its temporaries packed, where that saves anything."""
    others = sorted((name for name in orders if name != RECORDED), key=lambda name: np.median(times[name]))
    return {name: one for name in [RECORDED, *others[:_PACKED]] if (one := _packed(contest, orders[name])) is not None}


def _packed(contest: Contest, one: Candidate) -> Candidate | None:
    state, levels = contest.state, contest.levels
    declared = state.declared
    packing = pack(state, levels, contest.sight, one.edges[0])
    if packing is None:
        return None
    present = [level.present for level in levels]
    try:
        return replace(one, made=contest.with_edges(levels, one.edges), packing=packing)
    finally:
        with taking_back():
            rewire(state.device, levels, present)
            packing.aim_back()
            state.declared = declared


# -- times --------------------------------------------------------------------------------------------------------


def _fastest(times: Mapping[tuple[int, bool], tuple[float, ...]]) -> tuple[int, bool]:
    """The order of the shortest median among those that beat the recorded one, by its number and whether packed."""
    faster = [key for key, one in times.items() if key[0] != RECORDED and beats(one, times[RECORDED, False])]
    name = min(faster, key=lambda key: float(np.median(times[key])), default=(RECORDED, True))[0]
    return name, not beats(times[name, False], times[name, True])


# -- the orders that a graph may have: as recorded, as its data needs it, and on few lanes. The fastest is kept -------
#
# All of them are launched in turn and timed. Lanes are laid by the longest path, from times of the nodes: those of
# ``graph.measure()``, if it was called, else of some launches with an event before and after each node.


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
    levels = levels_of(state)
    find_needed(levels, sight)
    try:
        with same_start(sight.platform, written(state, sight), stream) as put_back:
            took = _node_times(state, levels[0], sight, put_back)
            contest = Contest(state, levels, sight, put_back, took, rounds)
            orders = _orders(contest, new_edges)
            chosen, told = last_rounds(contest, orders, contest.times(orders))
    except NotRepeatableError as error:
        report.untimed = str(error)
    except MemoryError as error:
        report.untimed = f'no memory for copies ({error})'
    except CudaCallError as error:
        report.untimed = f'CUDA refuses: {error}'
    except HalfChangedError as half:
        with whole_or_closed(state, NewEdges.call):
            raise half.cause from None
    else:
        report.times, report.unit = told, 'us'
        report.bound = _bound(levels[0], sight, took, told.medians[0])
        report.graphs[0] = replace(report.graphs[0], took=tuple(took), laid=())
        new_edges.report = report
        with whole_or_closed(state, NewEdges.call):
            _take(contest, new_edges, chosen, orders[RECORDED])
    aim(state)


def _take(contest: Contest, new_edges: NewEdges, chosen: Candidate, recorded: Candidate) -> None:
    """Let the graph be the candidate that was chosen."""
    state, levels, report = contest.state, contest.levels, new_edges.report
    if chosen.name == RECORDED:
        _keep_recorded(contest, report, chosen, recorded)
        return
    if chosen.name != NEEDED or new_edges.lanes or chosen.packing is not None:
        new_edges.lanes = chosen.lanes
        _lay_lanes(state, levels, chosen.lanes, report, chosen.made)
    if chosen.packing is not None:
        state.declared, state.index = chosen.packing.aim(state.declared), None
        trial = new_edges.trial or trial_of(state, recorded.made, report, contest.sight, None)
        assert trial is not None  # it was launched already
        new_edges.compare_first(trial, chosen.packing)


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
    recorded, needed = level.orders
    launched, attributes = as_in_a_graph(recorded, took, whole), sight.platform.cupy.cuda.runtime.pointerGetAttributes
    on_device: Callable[[int], bool] = lambda low: attributes(low).type in ON_DEVICE  # noqa: E731
    return lower_bound(level.nodes(sight.look), launched, needed, _capacity(sight), on_device)


def _why_one_lane(level: Level, sight: Sight, took: Sequence[float]) -> str:
    accesses = sight.definitions.accesses(level.graph)
    touched = [accesses[handle] for handle in level.handles]
    return why_one_lane(level.nodes(sight.look), touched, took, level.orders, _capacity(sight))


def _capacity(sight: Sight) -> Capacity:
    return Capacity.of(sight.platform.cupy.cuda.Device())


def _lay_lanes(
    state: GraphState, levels: Sequence[Level], lanes: Sequence[Pairs], report: Relaned, made: ExecutableGraph
) -> None:
    """Give the definition the edges of the lanes that were chosen, and take the executable graph that has them."""
    for level, pairs in zip(levels, lanes or [()] * len(levels)):
        level.lanes = pairs
        level.rewire(state.device, level.wanted)
    report.graphs[0] = replace(report.graphs[0], laid=tuple(levels[0].wanted) if lanes else ())
    take_made(state, made)


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
    recorded, order = level.orders
    widest = most_side_by_side(order)
    wanted = [count for count in _LANES if count < widest]
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
    return as_in_a_graph(level.orders[0], contest.took, whole)


def _unknown(level: Level, sight: Sight) -> bool:
    touched = sight.definitions.accesses(level.graph)
    return any(
        not touched[handle].complete or any(one.writes is None for one in touched[handle].accesses)
        for handle in level.handles
    )


def _node_times(state: GraphState, level: Level, sight: Sight, put_back: Callable[[], None]) -> list[float]:
    """The time of each node in microseconds; 1 for each where CUDA can't mark them."""
    look, known = sight.look, state.recording.timeline
    if known is None or len(known.nodes) != len(look.nodes):
        off = [state.names.handles[number] for number in sorted(state.names.off)]
        stream, heeds = state.current().ptr, state.recording.by_priority
        put_back()
        try:
            given = state.made.graph, state.made.graphExec, stream, _MEASURED, 1, off, 'events', heeds
            measured = state.device.graph_measure(*given)
        except CudaCallError:
            return [1.0] * len(level.handles)
        known = timeline(measured, look.numbers, look.edges, len(look.nodes))
    spans = [known.nodes[look.numbers[handle]] for handle in level.handles]
    return [0.0 if span is None else span[1] - span[0] for span in spans]


def most_side_by_side(order: Order) -> int:
    """How many nodes may run at once, if each begins as soon as those before it have ended, and all take as long."""
    depth: list[int] = [0] * len(order.before_each)
    for node in order.sequence:
        depth[node] = 1 + max((depth[a] for a in order.before_each[node]), default=-1)
    return max(map(depth.count, set(depth)), default=0)
