"""The last rounds between orders: the best ones in packed memory beside their own, and the winner with priorities.

Packed memory is taken where it is not slower beyond doubt. Priorities are taken where they are faster beyond doubt:
kernels with the longest path behind them go first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from capturekit.analysis.lane_order import ranks
from capturekit.analysis.relaned import OrderTimes, Pairs
from capturekit.graph.both_orders import SameStart, timed
from capturekit.graph.new_edges import Level, Sight
from capturekit.graph.packed_memory import Packing
from capturekit.graph.relane import Relanable
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.dag import Order

RECORDED, NEEDED, BEHIND_ONE = 0, -1, -2
#: So many orders, besides the recorded one, get packed memory to be timed in.
_PACKED = 2

_Times = Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class Candidate:
    """An executable graph, its edges in each definition, and the pairs of nodes on lanes that make them so.

    ``packing``: of its temporaries; the definition has the memory that was recorded. ``by_priority``: the priorities of
    nodes, by their place among the definition's.
    """

    name: int
    made: ExecutableGraph
    edges: list[Pairs]
    lanes: list[Pairs] = field(default_factory=list)
    packing: Packing | None = None
    by_priority: Mapping[int, int] = field(default_factory=dict)


class Finalists(Relanable):
    """The choice among the best orders of :meth:`Graph.relane`."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    def _last_rounds(
        self,
        levels: Sequence[Level],
        sight: Sight,
        start: SameStart,
        orders: Mapping[int, Candidate],
        times: _Times,
        took: Sequence[float],
        rounds: int,
    ) -> tuple[Candidate, OrderTimes]:
        """Choose a candidate, and tell what launches of each took. The definition is as before afterwards."""
        stream = self._current().ptr
        lanes = {name: one for name, one in times.items() if name > 0}
        told = OrderTimes(times[RECORDED], times[NEEDED], sight.platform.simulated, lanes, times.get(BEHIND_ONE, ()))
        best = orders[told.best]
        packed = self._in_packed_memory(levels, sight, orders, times)
        if packed:
            pairs = {(name, False): orders[name] for name in packed} | {
                (name, True): one for name, one in packed.items()
            }
            chosen = None
            try:
                executables = {key: one.made.graphExec for key, one in pairs.items()}
                again = timed(self._device, start, executables, rounds, stream)
                chosen = _fastest(again)
            finally:
                for key, one in pairs.items():
                    if one.packing is not None and key != chosen:
                        one.packing.drop()
            best, told = pairs[chosen], replace(told, packed={name: again[name, True] for name in packed})
        ranked = self._with_priorities(levels[0], best, took)
        if ranked is not None:
            two = {False: best.made.graphExec, True: ranked.made.graphExec}
            last = timed(self._device, start, two, rounds, stream)
            told = replace(told, by_priority=last[True])
            best = ranked if beats(last[True], last[False]) else best
        return best, replace(told, chosen=(best.name, best.packing is not None, bool(best.by_priority)))

    def _with_edges(
        self, levels: Sequence[Level], edges: Sequence[Pairs], by_priority: bool = False
    ) -> ExecutableGraph:
        """An executable graph with other edges, which the definition keeps."""
        self._rewire(levels, edges)
        heeds = by_priority or self.recording.by_priority
        made: ExecutableGraph = self._made.instantiated(self._device, heeds)
        for number in sorted(self._names.off):
            self._device.node_enable(made.graphExec, self._names.handles[number], False)
        return made

    # -- packed memory ------------------------------------------------------------------------------------------

    def _in_packed_memory(
        self, levels: Sequence[Level], sight: Sight, orders: Mapping[int, Candidate], times: _Times
    ) -> dict[int, Candidate]:
        """The recorded order and the best others, each with its temporaries packed, where that saves anything."""
        others = sorted((name for name in orders if name != RECORDED), key=lambda name: np.median(times[name]))
        return {
            name: one
            for name in [RECORDED, *others[:_PACKED]]
            if (one := self._packed(levels, sight, orders[name])) is not None
        }

    def _packed(self, levels: Sequence[Level], sight: Sight, one: Candidate) -> Candidate | None:
        declared = self._declared
        packing = self._pack(levels, sight, one.edges[0])
        if packing is None:
            return None
        present = [level.present for level in levels]
        try:
            return replace(one, made=self._with_edges(levels, one.edges), packing=packing)
        finally:
            self._rewire(levels, present)
            packing.aim_back()
            self._declared = declared

    # -- priorities ---------------------------------------------------------------------------------------------

    def _with_priorities(self, level: Level, one: Candidate, took: Sequence[float]) -> Candidate | None:
        """The same with a priority for each kernel; None where that changes nothing, or the user has given some."""
        if one.name == RECORDED or self.recording.by_priority:
            return None
        least, greatest = self._device.priorities()
        order = Order(len(level.handles), one.edges[0])
        wanted = ranks(order, took, least, greatest)
        if len(set(wanted)) < 2:
            return None
        present, kernels = level.present, self._kernels(level)
        before = {n: self._device.node_priority(level.graph, level.handles[n]) for n in kernels}
        declared = self._declared
        try:
            if one.packing is not None:
                one.packing.aim(declared)
            self._give_priorities(level, {n: wanted[n] for n in kernels})
            made = self._with_edges([level], one.edges, by_priority=True)
        finally:
            self._give_priorities(level, before)
            self._rewire([level], [present])
            if one.packing is not None:
                one.packing.aim_back()
        return replace(one, made=made, by_priority={n: wanted[n] for n in kernels})

    def _kernels(self, level: Level) -> list[int]:
        kinds = {info.handle: info.kind for info in self._device.node_infos(level.graph)}
        return [n for n, handle in enumerate(level.handles) if kinds[handle] == 'kernel']

    def _give_priorities(self, level: Level, priorities: Mapping[int, int]) -> None:
        for n, priority in priorities.items():
            self._device.set_node_priority(level.graph, level.handles[n], priority)


def beats(times: Sequence[float], others: Sequence[float]) -> bool:
    """Whether three quarters of some times are shorter than three quarters of others."""
    return bool(np.percentile(times, 75) < np.percentile(others, 25))


def _fastest(times: Mapping[tuple[int, bool], tuple[float, ...]]) -> tuple[int, bool]:
    """The order of the shortest median among those that beat the recorded one, by its number and whether packed."""
    faster = [key for key, one in times.items() if key[0] != RECORDED and beats(one, times[RECORDED, False])]
    name = min(faster, key=lambda key: float(np.median(times[key])), default=(RECORDED, True))[0]
    return name, not beats(times[name, False], times[name, True])
