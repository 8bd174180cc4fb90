"""The orders that a graph may have: as recorded, as its data needs it, and on few lanes. The fastest is kept.

All of them are launched in turn and timed. Lanes are laid by the longest path, from times of the nodes: those of
``graph.measure()``, if it was called, else of some launches with an event before and after each node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from capturekit.analysis.lane_order import as_in_a_graph, behind_one, on_lanes
from capturekit.analysis.node_memory import NotRepeatableError
from capturekit.analysis.one_lane import Capacity, why_one_lane
from capturekit.analysis.relaned import OrderTimes, Pairs, Relaned
from capturekit.graph.both_orders import FEWEST, SameStart, same_start, timed
from capturekit.graph.edit import NodeNames
from capturekit.graph.measure import timeline
from capturekit.graph.new_edges import Level, NewEdges, Sight
from capturekit.graph.relane import Relanable
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

RECORDED, NEEDED, BEHIND_ONE = 0, -1, -2


class TimedOrders(Relanable):
    """The choice between orders of :meth:`Graph.relane`, by times."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    def _keep_fastest(self, report: Relaned, rounds: int) -> None:
        """Time all orders, and give the graph the fastest: the recorded one unless another is faster beyond doubt."""
        state = self._new_edges
        assert state is not None
        sight, stream = self._sight(), self._current().ptr
        levels = self._levels(sight.look)
        self._need(levels, sight)
        try:
            ranges = self._written(sight)
            with same_start(sight.platform, ranges, stream) as start:
                took = self._node_times(levels[0], sight, start)
                orders = self._orders(state, sight, levels, took)
                made = {name: one for name, (one, _lanes) in orders.items()}
                executables = {name: one.graphExec for name, one in made.items()}
                times = timed(self._device, start, executables, rounds, stream)
        except NotRepeatableError as error:
            report.untimed = str(error)
            return
        except MemoryError as error:
            report.untimed = f'no memory for copies ({error})'
            return
        except CudaCallError as error:
            report.untimed = f'CUDA refuses: {error}'
            return
        modelled, one = sight.platform.simulated, times.pop(BEHIND_ONE, ())
        report.times = OrderTimes(times.pop(RECORDED), times.pop(NEEDED), modelled, times, one)
        report.unit = 'us'
        report.graphs[0] = replace(report.graphs[0], took=tuple(took), laid=())
        state.report = report
        chosen, lanes = orders[report.times.best]
        if report.times.best == RECORDED:
            why = self._why_one_lane(levels[0], sight, took)
            self._fall_back(chosen, f'it is not faster: {report.times}; {why}')
            report.compared = ''
        elif lanes or state.lanes:
            state.lanes = lanes
            self._lay_lanes(levels, lanes, report, chosen)
        self._aim_all()

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
    ) -> dict[int, tuple[ExecutableGraph, list[Pairs]]]:
        """An executable graph for each order, by the number of its lanes, and what is to be noted of these lanes.

        The definition has its present edges again afterwards.
        """
        present = [level.present for level in levels]
        found: dict[int, tuple[ExecutableGraph, list[Pairs]]] = {}
        try:
            as_recorded = None if state.trial is None else state.trial.recorded
            found[RECORDED] = as_recorded or self._with_edges(levels, [one.recorded for one in levels]), []
            as_needed = None if any(level.lanes for level in levels) else self._made
            found[NEEDED] = as_needed or self._with_edges(levels, [one.needed for one in levels]), []
            as_launched = self._as_launched(levels[0], found[RECORDED][0], took)
            for count, lanes in self._lanes_for(levels, sight, as_launched):
                for level, pairs in zip(levels, lanes):
                    level.lanes = pairs
                found[count] = self._with_edges(levels, [one.wanted for one in levels]), lanes
        finally:
            self._rewire(levels, present)
        return found

    def _with_edges(self, levels: Sequence[Level], edges: Sequence[Any]) -> ExecutableGraph:
        """An executable graph with other edges, which the definition keeps."""
        self._rewire(levels, edges)
        made: ExecutableGraph = self._made.instantiated(self._device, self.recording.by_priority)
        for number in sorted(self._names.off):
            self._device.node_enable(made.graphExec, self._names.handles[number], False)
        return made

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
