"""A graph with new edges that is changed: the order that its data needs is found again, from the edges as recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capturekit.analysis.graph_diff import GraphDifference
from capturekit.analysis.needed_order import TooManyError
from capturekit.analysis.relaned import Pairs, Relaned
from capturekit.driver.node_writer import Change
from capturekit.graph.edit import _At, _failure
from capturekit.graph.lane_candidates import TimedOrders
from capturekit.graph.new_edges import Level, NewEdges
from capturekit.graph.relane import _CALL
from capturekit.graph.update import Updatable
from capturekit.model.errors import CudaCallError

if TYPE_CHECKING:
    from typing_extensions import Self


class RelaneChanges(TimedOrders):
    """Changes of single nodes, copies and updates of a graph that may have been relaned."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    def _order_again(self) -> None:
        state = self._new_edges
        if state is None:
            return
        state.not_compared('a node was changed before the first launch')
        with self._relaxed():
            try:
                levels = self._needed_now()
                if not all(level.is_so for level in levels):
                    for level in levels:
                        level.rewire(self._device, level.wanted)
                    self._instantiate()
            except (CudaCallError, TooManyError) as error:
                rule = f'The nodes touch other memory now, and the order that they need can not be found: {error}.'
                raise _failure(_CALL, rule, 'Record again.') from error
        self._aim_all()

    def _needed_now(self) -> list[Level]:
        sight = self._sight()
        levels = self._levels(sight.look)
        self._need(levels, sight)
        return levels

    def _apply(self, at: _At, change: Callable[[], Change], arrays: list[Any]) -> None:
        super()._apply(at, change, arrays)
        self._order_again()

    def _switch(self, at: _At, on: bool) -> None:
        super()._switch(at, on)
        state = self._new_edges
        if state is not None and state.trial is not None:
            state.not_compared('a node was switched on or off before the first launch')
            self._aim_all()

    def clone(self) -> Self:
        made = super().clone()
        state = self._new_edges
        if state is not None:
            compared = 'not compared: the graph is a copy' if state.trial is not None else state.report.compared
            report = replace(state.report, compared=compared)
            made._new_edges = NewEdges(state.recorded, report, lanes=state.lanes, by_priority=state.by_priority)
        return made

    # -- another graph that is taken over -----------------------------------------------------------------------

    def _try_update(self, other: Updatable, instantiate: bool) -> tuple[str, list[GraphDifference]]:
        """The other graph gets the edges that its data needs, too: CUDA updates no graph to one of other edges."""
        laid = isinstance(other, RelaneChanges) and self._new_edges is not None and other._lay(self._new_edges.lanes)
        before = self._hand_priorities(other) if isinstance(other, RelaneChanges) else {}
        why, found = super()._try_update(other, instantiate)
        if why and before and isinstance(other, RelaneChanges):
            other._rank(before, False)
        if why and laid and isinstance(other, RelaneChanges):
            if instantiate:
                other._instantiate()
            else:
                other._lay_back()
        return why, found

    def _hand_priorities(self, other: RelaneChanges) -> dict[int, int]:
        """Give the kernels of another graph the priorities that a comparison has chosen for those of this one.

        CUDA updates no graph to one of other priorities. Returns those that the other graph's kernels had, by place.
        """
        state = self._new_edges
        if state is None or not state.by_priority or other.recording.by_priority:
            return {}
        mine, theirs = (graph._levels(graph._look_in())[0] for graph in (self, other))
        kernels = sorted(set(self._kernels(mine)) & set(other._kernels(theirs)))
        chosen, before = (
            {n: self._device.node_priority(level.graph, level.handles[n]) for n in kernels} for level in (mine, theirs)
        )
        other._rank(chosen, True)
        return before

    def _rank(self, priorities: Mapping[int, int], heeded: bool) -> None:
        """Give kernels of the definition priorities, by place, and note whether they are heeded."""
        self._give_priorities(self._levels(self._look_in())[0], priorities)
        self.recording.by_priority = heeded
        if self._new_edges is not None:
            self._new_edges.by_priority = heeded

    def _lay(self, lanes: Sequence[Pairs]) -> bool:
        """Give the definitions the edges that they need, and those of ``lanes``; leave the executable graphs."""
        if self._new_edges is not None:
            return False
        try:
            levels = self._needed_now()
            for level, pairs in zip(levels, lanes):
                level.lanes = pairs
            for level in levels:
                level.rewire(self._device, level.wanted)
        except (CudaCallError, TooManyError):
            return False
        report = Relaned(compared='not compared: another graph has taken this one over')
        self._new_edges = NewEdges([level.recorded for level in levels], report, lanes=list(lanes))
        self._note_edges()
        return True

    def _lay_back(self) -> None:
        for level in self._levels(self._look_in()):
            level.rewire(self._device, level.recorded)
        self._new_edges = None
        self._note_edges()

    def _take_over(self, other: Updatable, *, anew: bool) -> None:
        state = other._new_edges if isinstance(other, RelaneChanges) else None
        if state is not None:
            state.not_compared('another graph has taken this one over')
        self._new_edges = None
        super()._take_over(other, anew=anew)
        self._new_edges = state
        if isinstance(other, RelaneChanges):
            other._new_edges = None
