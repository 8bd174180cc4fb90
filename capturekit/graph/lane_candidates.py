"""The orders that a graph may have: as recorded, as its data needs it, and on few lanes. The fastest is kept.

All of them are launched in turn and timed. Lanes are laid by the longest path, from times of the nodes: those of
``graph.measure()``, if it was called, else of some launches with an event before and after each node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from capturekit.analysis.lane_order import as_in_a_graph, behind_one, laid, on_lanes
from capturekit.analysis.lower_bound import Bound, lower_bound
from capturekit.analysis.node_memory import NotRepeatableError
from capturekit.analysis.one_lane import Capacity, why_one_lane
from capturekit.analysis.relaned import Pairs, Relaned
from capturekit.graph.both_orders import FEWEST, SameStart, same_start, timed
from capturekit.graph.edit import NodeNames
from capturekit.graph.finalists import NEEDED, RECORDED, Candidate, Finalists
from capturekit.graph.first_launch import ON_DEVICE
from capturekit.graph.measure import timeline
from capturekit.graph.new_edges import Level, NewEdges, Sight
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

BEHIND_ONE = -2


class TimedOrders(Finalists):
    """The choice between orders of :meth:`Graph.relane`, by times."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    def _keep_fastest(self, report: Relaned, rounds: int) -> None:
        """Time all orders, and give the graph the fastest: the recorded one unless another is faster beyond doubt."""
        self._unpack('')
        report.packed, state = None, self._new_edges
        assert state is not None
        sight, stream = self._sight(), self._current().ptr
        levels = self._levels(sight.look)
        self._need(levels, sight)
        try:
            ranges = self._written(sight)
            with same_start(sight.platform, ranges, stream) as start:
                took = self._node_times(levels[0], sight, start)
                orders = self._orders(state, sight, levels, took)
                executables = {name: one.made.graphExec for name, one in orders.items()}
                times = timed(self._device, start, executables, rounds, stream)
                chosen, told = self._last_rounds(levels, sight, start, orders, times, took, rounds)
        except NotRepeatableError as error:
            report.untimed = str(error)
        except MemoryError as error:
            report.untimed = f'no memory for copies ({error})'
        except CudaCallError as error:
            report.untimed = f'CUDA refuses: {error}'
        else:
            report.times, report.unit = told, 'us'
            report.bound = self._bound(levels[0], sight, took, told.medians[0])
            report.graphs[0] = replace(report.graphs[0], took=tuple(took), laid=())
            state.report = report
            self._take(chosen, orders[RECORDED], levels, sight, took)
        self._aim_all()

    def _take(
        self, chosen: Candidate, recorded: Candidate, levels: Sequence[Level], sight: Sight, took: Sequence[float]
    ) -> None:
        """Let the graph be the candidate that was chosen."""
        state = self._new_edges
        assert state is not None
        report = state.report
        if chosen.name == RECORDED:
            why = self._why_one_lane(levels[0], sight, took)
            self._fall_back(recorded.made, f'it is not faster: {report.times}; {why}')
            report.compared = ''
            for level in levels:
                level.lanes, level.present = (), list(level.recorded)
            if chosen.packing is not None:
                chosen.packing.drop()
                self._pack_recorded(levels, report, sight, None)
            return
        if chosen.name != NEEDED or state.lanes or chosen.packing is not None or chosen.by_priority:
            state.lanes = chosen.lanes
            self._lay_lanes(levels, chosen.lanes, report, chosen.made)
        if chosen.packing is not None:
            self._declared, self._index = chosen.packing.aim(self._declared), None
            trial = state.trial or self._trial(recorded.made, report, sight, None)
            assert trial is not None  # it was launched already
            self._await(trial, chosen.packing)
        if chosen.by_priority:
            self._give_priorities(levels[0], chosen.by_priority)
            self.recording.by_priority = state.by_priority = True

    def _bound(self, level: Level, sight: Sight, took: Sequence[float], whole: float) -> Bound:
        nodes = [sight.look.nodes[sight.look.numbers[handle]] for handle in level.handles]
        recorded, needed = (Order(len(level.handles), edges) for edges in (level.recorded, level.needed))
        cuda, launched = sight.platform.cupy.cuda, as_in_a_graph(recorded, took, whole)
        on_device: Callable[[int], bool] = lambda low: cuda.runtime.pointerGetAttributes(low).type in ON_DEVICE  # noqa: E731
        return lower_bound(nodes, launched, needed, Capacity.of(cuda.Device()), on_device)

    def _why_one_lane(self, level: Level, sight: Sight, took: Sequence[float]) -> str:
        nodes = [sight.look.nodes[sight.look.numbers[handle]] for handle in level.handles]
        accesses = sight.definitions.accesses(level.graph)
        recorded, needed = (Order(len(level.handles), edges) for edges in (level.recorded, level.needed))
        capacity = Capacity.of(sight.platform.cupy.cuda.Device())
        return why_one_lane(nodes, [accesses[handle] for handle in level.handles], took, (recorded, needed), capacity)

    def _lay_lanes(
        self, levels: Sequence[Level], lanes: Sequence[Pairs], report: Relaned, made: ExecutableGraph
    ) -> None:
        """Give the definition the edges of the lanes that were chosen, and take the executable graph that has them."""
        for level, pairs in zip(levels, lanes or [()] * len(levels)):
            level.lanes = pairs
            level.rewire(self._device, level.wanted)
        report.graphs[0] = replace(report.graphs[0], laid=tuple(levels[0].wanted) if lanes else ())
        off = sorted(self._names.off)
        self._made, self._index, self._names = made, None, NodeNames()
        for number in off:
            self._switch(self._at('Graph.relane()', number), False)
        self._note_edges()

    # -- the candidates -----------------------------------------------------------------------------------------

    def _orders(
        self, state: NewEdges, sight: Sight, levels: Sequence[Level], took: Sequence[float]
    ) -> dict[int, Candidate]:
        """The candidates, by the number of their lanes. The definition has its present edges again afterwards."""
        present = [level.present for level in levels]
        found: dict[int, Candidate] = {}
        try:
            as_recorded = None if state.trial is None else state.trial.recorded
            as_recorded = as_recorded or self._with_edges(levels, [one.recorded for one in levels])
            found[RECORDED] = Candidate(RECORDED, as_recorded, [one.recorded for one in levels])
            as_needed = None if any(level.lanes for level in levels) else self._made
            as_needed = as_needed or self._with_edges(levels, [one.needed for one in levels])
            found[NEEDED] = Candidate(NEEDED, as_needed, [one.needed for one in levels])
            as_launched = self._as_launched(levels[0], as_recorded, took)
            for count, lanes in self._lanes_for(levels, sight, as_launched):
                edges: list[Pairs] = [
                    laid(len(level.handles), level.needed, pairs) for level, pairs in zip(levels, lanes)
                ]
                found[count] = Candidate(count, self._with_edges(levels, edges), edges, lanes)
        finally:
            self._rewire(levels, present)
        return found

    def _lanes_for(
        self, levels: Sequence[Level], sight: Sight, took: Sequence[float]
    ) -> Iterator[tuple[int, list[Pairs]]]:
        """Numbers of lanes to try, each with the pairs of nodes that follow each other on them.

        Lanes order nodes that the data does not. Two kernels of which nothing is known may wait for each other, if
        they were recorded in no order: then no lanes are tried.
        """
        level = levels[0]
        order = Order(len(level.handles), level.needed)
        widest = most_side_by_side(order)
        wanted = [count for count in _LANES if count < widest]
        recorded = Order(len(level.handles), level.recorded)
        if len(levels) > 1 or (most_side_by_side(recorded) > 1 and self._unknown(level, sight)):
            return
        began = perf_counter()
        if one := behind_one(order, took):
            yield BEHIND_ONE, [one]
        for count in wanted:
            if perf_counter() - began < _SECONDS:
                pairs = on_lanes(order, took, count)
                yield count, [behind_one(order, took, pairs) if count >= _MANY else pairs]

    def _as_launched(self, level: Level, recorded: ExecutableGraph, took: Sequence[float]) -> list[float]:
        """The times of the nodes, as they are where no event stands between them."""
        whole = self._device.graph_time(recorded.graphExec, self._current().ptr, FEWEST)
        return as_in_a_graph(Order(len(level.handles), level.recorded), took, whole)

    def _unknown(self, level: Level, sight: Sight) -> bool:
        touched = sight.definitions.accesses(level.graph)
        return any(
            not touched[handle].complete or any(one.writes is None for one in touched[handle].accesses)
            for handle in level.handles
        )

    def _node_times(self, level: Level, sight: Sight, start: SameStart) -> list[float]:
        """The time of each node in microseconds; 1 for each where CUDA can't mark them."""
        look, known = sight.look, self.recording.timeline
        if known is None or len(known.nodes) != len(look.nodes):
            off = [self._names.handles[number] for number in sorted(self._names.off)]
            stream, heeds = self._current().ptr, self.recording.by_priority
            with _unless_refused() as measured:
                start.put_back()
                given = self._made.graph, self._made.graphExec, stream, _MEASURED, 1, off, 'events', heeds
                measured.append(self._device.graph_measure(*given))
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
