"""``graph.relane()``: the edges that a graph's data needs, or the fastest of several orders.

With ``rounds`` an executable graph is made of each order: as recorded; as the data needs it; the same with all
beginnings behind one of them; and with the nodes laid on few lanes, because each fork and join costs time. They are
launched in turn and timed, each launch from the same bytes: all memory that the graph writes is put back before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from capturekit.analysis.node_memory import NotRepeatableError
from capturekit.driver.cuda import Platform
from capturekit.graph.first_launch import bytes_at
from capturekit.graph.graph_facts import Sight, sight_of, trial_of, written
from capturekit.graph.launching import aim
from capturekit.graph.state import (
    GraphState,
    HalfChangedError,
    must_be_changeable,
    positive,
    taking_back,
    whole_or_closed,
)
from capturekit.lanes.new_order import (
    Level,
    NewEdges,
    edges_of,
    fall_back,
    find_needed,
    instantiated_packed,
    laid,
    levels_of,
    pack_recorded,
    relane_now,
    rewire,
    switch_off_as_before,
    take_made,
    unpack,
)
from capturekit.lanes.report import OrderTimes, Pairs, Relaned
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError, UnmatchedError
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import here

#: Launches follow each other, as in a loop: the host may need longer for one than the device. There are as many as take
#: so many microseconds, and not fewer or more than these: the first ones after another graph's take longer.
IN_A_ROW, FEWEST, MOST = 2000.0, 4, 25
#: The orders by their numbers in :attr:`OrderTimes.best`; another number is that of the lanes.
RECORDED, NEEDED, BEHIND_ONE = 0, -1, -2
#: The numbers of lanes that are tried, as far as the data lets so many nodes run at once.
_LANES = (16, 8, 32, 4, 2)
#: So many lanes, or more, begin behind the first node of one of them: a launch that begins with many nodes costs more.
_MANY = 8


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


@dataclass(frozen=True)
class Candidate:
    """An executable graph of one order. ``lanes``: the pairs of nodes that follow each other though no data asks it."""

    number: int
    made: ExecutableGraph
    lanes: Pairs


def keep_fastest(state: GraphState, report: Relaned, rounds: int) -> None:
    """Time all orders, and give the graph the fastest: the recorded one unless another is faster beyond doubt."""
    unpack(state, '')
    report.packed, new_edges = None, edges_of(state)
    assert new_edges is not None
    sight, stream = sight_of(state), state.current().ptr
    levels = levels_of(state)
    find_needed(levels, sight)
    try:
        with same_start(sight.platform, written(state, sight), stream) as back:
            orders = _candidates(state, levels, sight, report.graphs[0].took)
            executables = {number: one.made.graphExec for number, one in orders.items()}
            times = timed(state.device, back, executables, rounds, stream)
    except NotRepeatableError as error:
        report.untimed = str(error)
    except MemoryError as error:
        report.untimed = f'no memory for copies ({error})'
    except CudaCallError as error:
        report.untimed = f'CUDA refuses: {error}'
    except HalfChangedError as half:
        with whole_or_closed(state, NewEdges.call):
            raise half.args[0] from None
    else:
        lanes = {number: one for number, one in times.items() if number > 0}
        behind = times.get(BEHIND_ONE, ())
        report.times = OrderTimes(times[RECORDED], times[NEEDED], sight.platform.simulated, lanes, behind)
        new_edges.report = report
        with whole_or_closed(state, NewEdges.call):
            _take(state, levels, sight, new_edges, orders)
    aim(state)


@contextmanager
def same_start(platform: Platform, ranges: Sequence[tuple[int, int]], stream: int) -> Iterator[Callable[[], None]]:
    """For a block of launches on a stream: a function that puts memory back, which is called at the end as well.

    Raises MemoryError where there is no room for copies.
    """
    views = [bytes_at(platform, low, high) for low, high in ranges]
    copies = [view.copy() for view in views]

    def back() -> None:
        for view, copy in zip(views, copies):
            view[...] = copy

    try:
        yield back
    finally:
        platform.device.stream_synchronize(stream)  # memory of the host is put back at once
        back()
        platform.device.stream_synchronize(stream)


def timed(
    device: Any, back: Callable[[], None], executables: Mapping[int, int], rounds: int, stream: int
) -> dict[int, tuple[float, ...]]:
    """Launch executable graphs in turn, ``rounds`` times each after one that does not count; return microseconds.

    Each time it is launched several times in a row, and all but the first are timed.
    """
    found: dict[int, list[float]] = {name: [] for name in executables}
    counts = dict.fromkeys(executables, FEWEST)
    names = list(executables)
    for number in range(1 + rounds):
        for name in names:
            back()
            us = device.graph_time(executables[name], stream, counts[name])
            if number:
                found[name].append(us)
            else:
                counts[name] = max(FEWEST, min(MOST, int(IN_A_ROW / max(us, 1.0))))
        names = names[::-1] if len(names) == 2 else [*names[1:], names[0]]
    return {name: tuple(times) for name, times in found.items()}


# -- the orders. A graph that can be launched twice has one definition: it has no conditional nodes -------------------


def _candidates(
    state: GraphState, levels: Sequence[Level], sight: Sight, took: Sequence[float]
) -> dict[int, Candidate]:
    """The candidates, by their numbers. The definition has its present edges again afterwards."""
    (level,) = levels
    present = [level.present]
    found: dict[int, Candidate] = {}
    try:
        for number, lanes in _orders(level, sight, took):
            edges = level.recorded if number == RECORDED else laid(len(level.handles), level.needed, lanes)
            rewire(state.device, levels, [edges])
            made = state.made.instantiated(state.device, state.recording.by_priority)
            switch_off_as_before(state, made.graphExec)
            found[number] = Candidate(number, made, lanes)
    finally:
        with taking_back():
            rewire(state.device, levels, present)
    return found


def _orders(level: Level, sight: Sight, took: Sequence[float]) -> Iterator[tuple[int, Pairs]]:
    """The orders by their numbers, each with the pairs of nodes that follow each other though no data asks it.

    Lanes order nodes that the data does not. Two kernels of which nothing is known may wait for each other, if
    they were recorded in no order: then no lanes are tried.
    """
    yield RECORDED, ()
    yield NEEDED, ()
    recorded, needed = level.orders
    if most_side_by_side(recorded) > 1 and _unknown(level, sight):
        return
    if one := behind_one(needed, took):
        yield BEHIND_ONE, one
    widest = most_side_by_side(needed)
    for count in _LANES:
        if count < widest:
            pairs = on_lanes(needed, count)
            yield count, behind_one(needed, took, pairs) if count >= _MANY else pairs


def behind_one(order: Order, took: Sequence[float], pairs: Pairs = ()) -> Pairs:
    """Pairs that let all beginnings but one come after this one, the shortest: a launch begins with a single node.

    ``took``: the time of each node. ``pairs``: those of lanes, which stay.
    """
    later = {b for _a, b in pairs}
    first = [node for node in order.sequence if not order.before_each[node] and node not in later]
    shortest = min(first, key=lambda node: took[node], default=-1)
    return [*pairs, *((shortest, node) for node in first if node != shortest)]


def on_lanes(order: Order, lanes: int) -> Pairs:
    """Pairs of nodes that follow each other on a lane, if the nodes of ``order`` are laid on so many.

    A node stays on the lane of a node right before it, if this is the last one there; so branches stay whole. Else it
    goes to the lane with the fewest nodes. Together with the order itself the pairs form no circle.
    """
    rows: list[list[int]] = [[] for _ in range(lanes)]
    of: dict[int, list[int]] = {}
    for node in order.sequence:
        row = next((of[a] for a in order.before_each[node] if of[a][-1] == a), min(rows, key=len))
        row.append(node)
        of[node] = row
    return [pair for row in rows for pair in pairwise(row)]


def most_side_by_side(order: Order) -> int:
    """How many nodes may run at once, if each begins as soon as those before it have ended, and all take as long."""
    depth: list[int] = [0] * len(order.before_each)
    for node in order.sequence:
        depth[node] = 1 + max((depth[a] for a in order.before_each[node]), default=-1)
    return max(map(depth.count, set(depth)), default=0)


def _unknown(level: Level, sight: Sight) -> bool:
    touched = sight.definitions.accesses(level.graph)
    return any(
        not touched[handle].complete or any(one.writes is None for one in touched[handle].accesses)
        for handle in level.handles
    )


# -- the order that was chosen ----------------------------------------------------------------------------------------


def _take(
    state: GraphState, levels: Sequence[Level], sight: Sight, new_edges: NewEdges, orders: Mapping[int, Candidate]
) -> None:
    """Let the graph have the fastest order, and its temporaries in as little memory as that allows."""
    report, level, recorded = new_edges.report, levels[0], orders[RECORDED].made
    assert report.times is not None
    chosen = orders[report.times.best]
    if chosen.number == RECORDED:
        fall_back(state, recorded, f'it is not faster: {report.times}')
        report.compared = ''
        level.lanes, level.present = (), list(level.recorded)
        pack_recorded(state, levels, report, sight, None)
        return
    level.lanes, new_edges.lanes = chosen.lanes, [chosen.lanes] if chosen.lanes else []
    level.rewire(state.device, level.wanted)
    report.graphs[0] = replace(report.graphs[0], laid=tuple(level.wanted) if chosen.lanes else ())
    take_made(state, chosen.made)
    if not state.memory.temporaries():
        return
    trial = new_edges.trial or trial_of(state, recorded, report, sight, None)
    packing = None if trial is None else instantiated_packed(state, levels, sight, level.wanted)
    if trial is not None and packing is not None:
        new_edges.compare_first(trial, packing)
