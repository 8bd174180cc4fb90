"""``graph.update()`` and ``graph.clone()``: a whole graph replaced by another recording, or copied.

CUDA C++ Programming Guide, "Updating Instantiated Graphs", "Whole Graph Update".
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from capturekit.analysis.graph_diff import (
    STRUCTURE,
    GraphDifference,
    Update,
    differences,
    edge_order,
    heeding,
    in_words,
    priorities,
    reasons,
)
from capturekit.analysis.node_view import Look
from capturekit.driver.cuda import current
from capturekit.graph.edit import _NOT_COPIED, Changeable, NodeNames, _failure
from capturekit.launch.at_exit import close_at_end
from capturekit.launch.deferred_unload import UNLOADING
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.counters import FIGURES
from capturekit.model.errors import CudaCallError, UpdateError
from capturekit.model.lease import Lease
from capturekit.model.rules import Code
from capturekit.model.source_line import here

if TYPE_CHECKING:
    from typing_extensions import Self

#: Graphs of more nodes are not compared where they are instantiated anew.
_MANY = 1000
_REFUSED = Code.cudaErrorGraphExecUpdateFailure


class Updatable(Changeable):
    """The methods of :class:`capturekit.Graph` that change it as a whole."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    def update(self, other: Updatable, *, instantiate: bool = False) -> Update:
        """Let the next launches do what ``other`` does, by updating this graph in place (``cudaGraphExecUpdate``).

        CUDA can do so if ``other`` has as many nodes of the same kinds with the same edges, recorded in the same order,
        and if both use the priorities of their lanes or neither does; kernels and nearly all parameters may differ.
        ``other`` is closed, and what it held (memory, arrays, host functions, its recording) belongs to this graph.
        What this graph held before is given back; arrays that still lie there keep their memory. If there is memory to
        give back, the call waits for launches that have begun.

        Args:
            other: another recording, of the same device.
            instantiate: True: if CUDA refuses, make a new executable graph instead of raising.

        Returns an :class:`Update`: ``how`` ('updated' or 'instantiated'), ``why``, ``seconds``, ``differences`` (up to
        1,000 nodes).

        Raises:
            UpdateError: CUDA refuses, and says why as a difference of the two graphs; or one of them is launched in
                several parts. Both graphs are as they were.
            TypeError: ``other`` is not a graph. ValueError: it is this one, or lives on another device.
            ClosedError: one of the two is closed.
        """
        call, start = 'Graph.update()', time.perf_counter()
        if not isinstance(other, Updatable):
            raise TypeError(f'update() takes another capturekit.Graph, got {type(other).__name__}')
        if other is self:
            raise ValueError('a graph can not take over itself')
        if other.device_id != self.device_id:
            raise ValueError(f'the graph lives on device {self.device_id}, the other one on device {other.device_id}')
        with self._together(other):
            for graph in (self, other):
                graph._must_be_whole(call)
            return self._update(call, other, instantiate, start)

    def _update(self, call: str, other: Updatable, instantiate: bool, start: float) -> Update:
        with self._relaxed():
            why, found = self._try_update(other, instantiate)
            if why and not instantiate:
                raise _refused(call, why, found)
            if why and not other._made.graphExec:
                other._made = other._made.instantiated(self._device, other.recording.by_priority)
            self._take_over(other, anew=bool(why))
            seconds = time.perf_counter() - start
            FIGURES.count('reinstantiations' if why else 'updates', seconds)
            return Update('instantiated' if why else 'updated', why, seconds, tuple(found))

    def _check_update(self, call: str) -> None:
        """Raise UpdateError or ClosedError where this graph can not be updated."""
        with self._lock:
            self._must_be_whole(call)

    def _try_update(self, other: Updatable, instantiate: bool) -> tuple[str, list[GraphDifference]]:
        """Update in place if CUDA does; else return its reason, and the differences that may be behind it.

        Comparing all nodes takes longer than instantiating them, so large graphs are compared only for an exception.
        """
        if self.recording.by_priority != other.recording.by_priority:
            return 'priorities', [heeding(other.recording.by_priority)]
        try:
            why, node = self._device.graph_exec_update(self._made.graphExec, other._made.graph)
        except CudaCallError as error:
            why, node = str(error), 0
        if not why or (instantiate and other.recording.node_count > _MANY):
            return why, []
        old, new = self._look_in(), other._look_in()
        found = differences(old, new)
        if not any(one.kind in STRUCTURE for one in found):
            found = edge_order(old, new) or self._reordered(other, old, new) or found
        return why, reasons(found, new.numbers.get(node))

    def _reordered(self, other: Updatable, old: Look, new: Look) -> list[GraphDifference]:
        """Nodes whose lanes have another priority, which an update does not change if the graph uses it."""
        if not other.recording.by_priority:
            return []
        before, after = ({lane.number: lane.priority for lane in g.recording.lanes} for g in (self, other))
        return priorities(old.nodes, new.nodes, before, after)

    def _take_over(self, other: Updatable, *, anew: bool) -> None:
        """Take over all of ``other``; with ``anew`` its executable graph as well."""
        if not anew:
            for number in self._names.off:
                self._device.node_enable(self._made.graphExec, self._names.sources[number], True)
        old, memory, switched = self._made, self._memory, other._names.off
        lease, self._lease = self._lease, other._lease.hand_over()
        self._made = other._made if anew else old.updated(other._made)
        turned = self._memory.turns != other._memory.turns
        self._plan, self._memory, self.recording = other._plan, other._memory, other.recording
        if self._memory.to_close:
            close_at_end(self)
        self._names = NodeNames()
        other._shut()
        other._made, other._plan, other._memory, other._names = None, None, memory, NodeNames()
        if anew or turned:
            self._aim()
        calls = old.host_funcargs  # until the memory is given back, which waits for earlier launches
        with self._inside(), lease:
            if not self._topology.captures and (not memory.private or calls):
                self._device.device_synchronize()  # an earlier launch may be under way
            del old
        for number in switched:
            self._switch(self._at('Graph.update()', number), False)

    def clone(self) -> Self:
        """Return a copy: a second executable graph of the same nodes (``cudaGraphClone``), which can be changed alone.

        Both read and write the same arrays. So you must order the launches of both, by one stream or an event, unless a
        change lets one of them write only to other memory. The memory is given back when both are closed. Nodes that
        are disabled here are disabled in the copy.

        Raises:
            UpdateError: the graph has conditional nodes, which CUDA does not copy, or is launched in several parts.
            ClosedError: the graph is closed.
        """
        with self._lock, self._relaxed():
            self._must_be_whole('Graph.clone()')
            if {info.kind for info in self._device.node_infos(self._made.graph)} & _NOT_COPIED:
                rule = 'CUDA copies no graph that has conditional nodes or memory nodes.'
                raise _failure('Graph.clone()', rule, 'Record its code once more.')
            clone = self._device.graph_clone(self._made.graph)
            copy = ExecutableGraph.of_definition(self._device, clone, self._made.host_funcargs)
            copy = copy.instantiated(self._device, self.recording.by_priority)
            platform = current()
            launch, x, now = self._device.graph_launch, copy.graphExec, self._current
            with Lease(UNLOADING.hold(platform), self._memory.hold()) as lease:
                made = self._make(
                    platform, copy, lambda: launch(x, now().ptr), self._memory, lease, replace(self.recording),
                    self._topology, self._before, self._inside,
                )  # fmt: skip
            for number in self._names.off:
                made._switch(made._at('Graph.clone()', number), False)
            return made


def _refused(call: str, why: str, found: list[GraphDifference]) -> UpdateError:
    words = in_words(found) or 'both graphs look the same'
    error = UpdateError(
        call,
        location=here(),
        rule=f'CUDA can not put the new graph in the place of the old one ({why}): {words}.',
        remedy='Record the same work in the same order, or let the graph be instantiated anew: '
        '`graph.update(other, instantiate=True)`.',
        cuda_error=_REFUSED.name,
    )
    error.reason, error.differences = why, tuple(found)
    return error
