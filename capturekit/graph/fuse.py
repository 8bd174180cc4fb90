"""Elementwise kernels of a graph that become one kernel, and the graph as it was recorded kept beside it.

The definition is copied, the copy's nodes are replaced, and an executable graph is made of it. The first launch runs
both graphs and compares all memory that anybody can see; where a byte differs the graph is as it was recorded again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from capturekit.analysis.free_memory import FreeMemory
from capturekit.analysis.fused import Fused, FusedNodes
from capturekit.analysis.graph_diff import GraphDifference
from capturekit.analysis.node_memory import NotRepeatableError, joined, written_ranges
from capturekit.analysis.node_view import Look, Node, fill
from capturekit.driver.cuda import StreamHandle
from capturekit.driver.fused_nodes import FusingError
from capturekit.driver.fused_reduction import FusedReduction
from capturekit.driver.node_writer import Change
from capturekit.graph.closed import compared_first
from capturekit.graph.edit import _NOT_COPIED, NodeNames, _At, _failure
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.fusible import Fusible
from capturekit.graph.new_edges import Sight, unsteady_of
from capturekit.graph.relane import _OURS, _PIECES
from capturekit.graph.relane_changes import RelaneChanges
from capturekit.graph.update import Updatable
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.cleanup import GARBAGE
from capturekit.model.counted import counted
from capturekit.model.counters import LOG, count
from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Span
from capturekit.model.source_line import here

if TYPE_CHECKING:
    from typing_extensions import Self

    from capturekit.analysis.fusion import Fusing, Fusion

    #: What is to become one kernel, with the kernel's name and its function.
    _Made = tuple[Fusing, tuple[str, Any]]

_CALL = 'Graph.fuse()'
#: By whether results may be rounded otherwise.
_HOW = {False: 'with equal bits', True: "with 'fast'"}
_NOTHING = 'no two elementwise kernels of the same elements follow each other'


class Besides(NamedTuple):
    """What a launch writes by addresses that no node shows: ranges of memory, and the arrays that lie there."""

    ranges: Sequence[tuple[int, int]]
    arrays: Sequence[Any]


@dataclass
class FusedState:
    """What a graph with fused kernels has to know.

    Attributes:
        report: the report that :meth:`Fusable.fuse` returned.
        recorded: the graph as it was recorded; None where it can not be had back.
        spans: which line made which nodes, as recorded.
        members: by the handle of a fused kernel's node, the nodes that it replaces.
        trial: the first launch, which is still to be compared; None after it.
        keeps: what the kernels' code lives in.
        by_calls: whether calls of a graphed function launch it.
        fast: whether its results may be rounded otherwise.
    """

    report: Fused
    recorded: ExecutableGraph | None
    spans: list[Span]
    members: dict[int, tuple[Node, ...]]
    trial: FirstLaunch | None = None
    keeps: list[Any] = field(default_factory=list)
    by_calls: bool = False
    fast: bool = False

    def not_compared(self, why: str) -> None:
        """Do without the comparison."""
        if self.trial is not None:
            self.trial, self.report.compared = None, f'not compared: {why}'


class Fusable(RelaneChanges):
    """The method :meth:`fuse` of :class:`capturekit.Graph`."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    _fused: FusedState | None

    def fuse(self, how: Literal['exact', 'fast'] = 'exact', *, report: bool = False) -> Fused:
        """Let runs of elementwise kernels become one kernel each; ``print(graph.fuse())`` tells which, and why not.

        A run is several of CuPy's elementwise kernels (ufuncs, ``ElementwiseKernel``, ``where``, ``clip``, casts,
        copies) that follow each other and work on as many elements. Values go from one to the next in registers.
        Temporary arrays that nobody can see any more are not written; everything else is. An array that copies fill
        (``roll``) is read from the sources of the copies. Each operation keeps its own code, dtypes and rounding, so
        that every bit is the same as without. Arrays of any shapes, strides and dtypes of
        booleans, integers, floating point (half, too) and complex numbers take part; so do numbers. Other kernels,
        events, lanes that meet, conditional nodes and child graphs end a run. CuPy's own reductions compute what they
        read and work on their results, and combine values in the same order. Nodes whose results nobody reads are
        taken out, and equal nodes run once.

        The graph stays as it was recorded, and ``kept`` has the reason, where nothing can be fused, where it is
        launched in several parts or was relaned, and where CUDA or the compiler refuses. The first launch runs the
        graph as recorded as well, compares everything that can be seen, byte by byte, and waits for this; where they
        differ, the graph is as it was recorded again, with a RuntimeWarning. ``compared`` tells the outcome, or why a
        launch can not be compared. Copies of what the graph writes take memory for that one launch.

        A fused kernel has the number and the line of its last node; ``node.inner`` are the nodes that it replaces.
        ``graphExec`` is another one afterwards. A second call returns the same report.

        With ``how='fast'`` results may be rounded otherwise: the compiler makes products and sums one instruction,
        operations that add products are fused, too (kernels of ``cupy.fuse``, products of complex numbers, ``hypot``),
        and so are sums, products, minima and maxima of rows that lie in one piece, in another order of sums. Nothing is
        less accurate than such rounding makes it. The first launch then lets numbers differ by a tolerance: 1e-12 for
        float64, 1e-5 for float32, 1e-2 for float16, 4e-2 for bfloat16, as a part of the number plus the mean size of
        the numbers in its array; for complex numbers part by part. Whole numbers and truth values have to be the same.

        Args:
            how: ``'exact'`` keeps every bit; ``'fast'`` does not.
            report: True: only tell what would be done.

        Raises:
            TypeError: ``report`` is not a bool. ValueError: ``how`` is something else. ClosedError: the graph was
                closed.
            UpdateError: the graph of a ``@graphed`` function: write ``@ck.graphed(fuse=True)``; or it has been fused
                in the other way.

        Threads: calls take turns. Streams: nothing is launched; launches under way are not affected. The compiler takes
        some 100 milliseconds for each kernel that CuPy's cache on disk does not have yet.
        """
        if how not in ('exact', 'fast'):
            raise ValueError(f"how must be 'exact' or 'fast', got {how!r}")
        with self._lock:
            self._check_changeable(_CALL, report, 'Write @ck.graphed(fuse=True).')
            return self._fuse_now(not report, how == 'fast')

    def _fuse_recorded(self, fast: bool, gathers: bool, also: Besides | None = None) -> Fused:
        """Fuse a graph that has just been recorded; the arguments are those of :meth:`_fuse_now`."""
        with self._lock:
            return self._fuse_now(True, fast, gathers, also)

    def _fuse_now(self, apply: bool, fast: bool, gathers: bool = True, also: Besides | None = None) -> Fused:
        """:meth:`fuse`, holding the lock.

        ``gathers``: whether values between fused kernels come to lie in few blocks. ``also``: what a launch writes by
        addresses that no node shows.
        """
        if self._fused is not None:
            if self._fused.fast is not fast:
                rule = f'The graph has been fused {_HOW[self._fused.fast]}.'
                raise _failure(_CALL, rule, f'Record again to fuse {_HOW[fast]}.')
            return self._fused.report
        GARBAGE.hold()
        try:
            with self._relaxed():
                return self._fuse(apply, fast, gathers, also)
        finally:
            GARBAGE.release()

    # -- what can be fused --------------------------------------------------------------------------------------

    def _fuse(self, apply: bool, fast: bool, gathers: bool, also: Besides | None) -> Fused:
        known = Fused(nodes=self.recording.node_count, fast=fast)
        sight = self._sight()
        known.kept = self._can_not_fuse(sight)
        if known.kept:
            return known
        fusible = Fusible(sight, self._made.graph, self._free(sight), _OURS, gathers)
        try:
            fusion, made = self._compiled(fusible, known)
        except CudaCallError as error:
            known.kept = f'CUDA does not describe its nodes: {error}'
            return known
        nodes = sight.look.nodes
        known.alone = sorted(((nodes[n], why) for n, why in fusion.why.items()), key=lambda one: one[0].number)
        known.kernels = [
            FusedNodes.of(name, tuple(nodes[n] for n in one.parts), one.kernel) for one, (name, _function) in made
        ]
        known.unneeded = [(nodes[n], why) for n, why in sorted(fusion.unneeded.items())]
        if not made and not fusion.unneeded:
            known.kept = _NOTHING
        elif apply:
            trial = self._trial_of(known, fusible, fusion, also)
            self._take_fused(known, fusion, made, sight, trial, also is not None)
        else:
            known.kept = 'only a report was asked for'
        return known

    def _compiled(self, fusible: Fusible, known: Fused) -> tuple[Fusion, list[_Made]]:
        """What becomes of the graph, and the kernels for it. Where the compiler refuses one, its nodes stay alone."""
        refused: dict[int, str] = {}
        while True:
            fusion, made = fusible.fusion(refused, known.fast), []
            for one in fusion.kernels:
                try:
                    made.append((one, self._function(one, known)))
                except FusingError as error:
                    refused.update(dict.fromkeys(one.nodes, str(error)))
            if len(made) == len(fusion.kernels):
                fusion.why = fusion.why if known.fast else fusible.reasons(fusion, refused)
                return fusion, made

    def _can_not_fuse(self, sight: Sight) -> str:
        if self._plan is not None:
            return _PIECES if not self._plan.plain else 'it has conditional nodes'
        if self._new_edges is not None:
            return 'it was relaned before: fuse it first'
        if self._names.off:
            return 'some of its nodes are switched off'
        if {info.kind for info in sight.definitions.infos(self._made.graph)} & _NOT_COPIED:
            return 'CUDA copies no graph that has conditional nodes or memory nodes'
        return 'it is of several devices' if len(self.recording.devices) > 1 else ''

    def _free(self, sight: Sight) -> FreeMemory:
        """The graph's own memory that no array lies in."""
        cuda = sight.platform.cupy.cuda
        streams = [cuda.Stream.from_external(StreamHandle(lane.stream)) for lane in self.recording.lanes]
        held = self._memory.spare(streams)
        return FreeMemory((int(p.ptr), int(p.mem.ptr) + int(p.mem.size)) for p in held)

    def _function(self, one: Fusing, known: Fused) -> tuple[str, Any]:
        before = self._device.fusing[1]
        try:
            device, reduces = self._device, isinstance(one.kernel, FusedReduction)
            made: tuple[str, Any] = (device.fused_reduction if reduces else device.fused_function)(
                one.kernel, one.names
            )
            return made
        finally:
            taken = self._device.fusing[1] - before
            known.seconds += taken
            count('fusions', taken)

    # -- the change ---------------------------------------------------------------------------------------------

    def _take_fused(
        self,
        known: Fused,
        fusion: Fusion,
        made: Sequence[_Made],
        sight: Sight,
        trial: FirstLaunch | None,
        by_calls: bool,
    ) -> None:
        device, old = self._device, self._made
        try:
            copy = ExecutableGraph.of_definition(device, device.graph_clone(old.graph), old.host_funcargs)
            handles = device.graph_nodes(copy.graph)
            self._replace_nodes(copy.graph, handles, fusion, made)
            new = copy.instantiated(device, self.recording.by_priority)
        except CudaCallError as error:
            known.kept, known.compared = f'CUDA refuses: {error}', ''
            return
        nodes = sight.look.nodes
        members = {handles[one.nodes[-1]]: tuple(nodes[n] for n in one.parts) for one in fusion.kernels}
        members |= {handles[n]: tuple(nodes[m] for m in (n, *more)) for n, more in fusion.stands.items()}
        state = FusedState(known, old, self.recording.spans, members, trial, by_calls=by_calls, fast=known.fast)
        state.keeps = [function for _one, (_name, function) in made]
        self._fused, self._made = state, new
        self._declared |= self._said_of_copy(old.graph, handles)
        self._names, self._index = NodeNames(), None
        by_handle = dict(zip(handles, nodes))
        left = device.graph_nodes(new.graph)
        self.recording.spans = _spans(by_handle[handle] for handle in left)
        number = {handle: n for n, handle in enumerate(left)}
        known.kernels = [
            replace(one, number=number[handles[fusing.nodes[-1]]]) for one, fusing in zip(known.kernels, fusion.kernels)
        ]
        self._note_graph()
        self._aim()

    def _replace_nodes(self, g: int, handles: Sequence[int], fusion: Fusion, made: Sequence[_Made]) -> None:
        device = self._device
        for one, (name, function) in made:
            put = device.reduce_node if isinstance(one.kernel, FusedReduction) else device.fuse_node
            put(g, handles[one.nodes[-1]], one.kernel, name, function)
        for n in fusion.gone:
            device.node_destroy(handles[n])
        wanted = {(handles[a], handles[b]) for a, b in fusion.edges}
        present = set(device.graph_edges(g))
        device.graph_rewire(g, sorted(present - wanted), sorted(wanted - present))

    def _note_graph(self) -> None:
        """The recording tells of the nodes and edges that the graph has now."""
        recording, g = self.recording, self._made.graph
        recording.timeline = None
        recording.node_count = self._device.graph_node_count(g)
        recording.edge_count = self._device.graph_edge_count(g)
        if recording.arrows or recording.graph:
            fill(recording, self._look_in())

    # -- launching ----------------------------------------------------------------------------------------------

    def _trial_of(self, report: Fused, fusible: Fusible, fusion: Fusion, also: Besides | None) -> FirstLaunch | None:
        """The comparison of the first launch. ``also``: memory that is written besides; None: nothing is."""
        sight, own = fusible.sight, fusible.own
        try:
            ranges = written_ranges(
                sight.platform,
                sight.definitions,
                self._made.graph,
                sight.blocks,
                _OURS if also is not None else '',
                own,
            )
        except NotRepeatableError as error:
            report.compared = f'not compared: {error}'
            return None
        report.compared = 'not yet'
        every = joined([*ranges, *(also.ranges if also is not None else ())])
        again, unseen = also is not None, self._memory.unseen()
        loose = unsteady_of(sight, self._made.graph)
        arrays = also.arrays if also is not None else ()
        rounded = fusible.rounded(fusion, arrays) if report.fast else ()
        return FirstLaunch(sight.platform, self._made, every, sight.blocks, again, unseen, loose, rounded)

    def _aim(self) -> None:
        if self._fused is None or self._fused.trial is None:
            super()._aim()
            return
        self._shut(compared_first(self, _CALL))

    def _start(self, stream: int) -> None:
        """Launch on a stream, by its handle: the first time with the comparison."""
        state = self._fused
        if state is None or state.trial is None:
            super()._start(stream)
            return
        if self._new_edges is not None:
            self._new_edges.not_compared('the launch is compared with the graph before it was fused')
        trial, state.trial = state.trial, None
        with self._relaxed():
            try:
                apart = trial.run(self._made.graphExec, stream)
                same = f'the same as without fused kernels{trial.besides}'
                state.report.compared = f'differs: {apart}' if apart else same
            except MemoryError as error:
                state.report.compared, apart = f'not compared: no memory for copies ({error})', ''
                self._device.graph_launch(self._made.graphExec, stream)
            if apart:
                self._unfuse(f'the first launch gave something else: {apart}')
            self._aim()
        if apart:
            words = f'{_CALL} is undone: the first launch gave something else than without it ({apart})'
            if state.by_calls:
                LOG.warning('%s', words)
            else:
                _warn(words)

    def _unfuse(self, why: str) -> None:
        """Be the graph again that was recorded."""
        state = self._fused
        assert state is not None and state.recorded is not None
        state.report.kept = why
        self._fused = self._new_edges = None
        self._made, self._index, self._names = state.recorded, None, NodeNames()
        self.recording.spans = state.spans
        self._note_graph()

    # -- a graph with fused kernels -----------------------------------------------------------------------------

    def _with_members(self, look: Look) -> Look:
        """A look at the graph in which fused kernels have the nodes that they replace."""
        for handle, members in (self._fused.members if self._fused is not None else {}).items():
            number = look.numbers.get(handle)
            if number is not None:
                node = look.nodes[number]
                lines = [f'{one.name} at {one.at}' if one.at is not None else one.name for one in members]
                look.nodes[number] = replace(node, inner=members, detail={**node.detail, 'fused': lines})
        return look

    def _apply(self, at: _At, change: Callable[[], Change], arrays: list[Any]) -> None:
        state = self._fused
        if state is not None and at.handle in state.members:
            made_of = counted(len(state.members[at.handle]), 'recorded node')
            rule = f'Node {at.number} is a fused kernel, made of {made_of}.'
            raise _failure(at.call, rule, 'Record again without fusing, and change the node there.')
        self._no_way_back('a node was changed before the first launch')
        super()._apply(at, change, arrays)

    def _switch(self, at: _At, on: bool) -> None:
        super()._switch(at, on)
        self._no_way_back('a node was switched on or off before the first launch')

    def _rebind(self, pairs: Sequence[tuple[Any, Any]], *, unused: bool = False) -> int:
        if pairs:
            self._no_way_back('an array was replaced before the first launch')
        return super()._rebind(pairs, unused=unused)

    def _no_way_back(self, why: str) -> None:
        """The graph as it was recorded does something else than this one from now on."""
        state = self._fused
        if state is None:
            return
        waits = state.trial is not None
        state.not_compared(why)
        state.recorded = None
        if waits:
            self._aim()

    def clone(self) -> Self:
        made = super().clone()
        state = self._fused
        if state is not None:
            with self._lock:
                mine, copies = (self._device.graph_nodes(one._made.graph) for one in (self, made))
            other = dict(zip(mine, copies))
            compared = 'not compared: the graph is a copy' if state.trial is not None else state.report.compared
            made._fused = replace(
                state,
                report=replace(state.report, compared=compared),
                recorded=None,
                members={other[handle]: nodes for handle, nodes in state.members.items()},
                trial=None,
            )
        return made

    # -- another graph that is taken over -----------------------------------------------------------------------

    def _try_update(self, other: Updatable, instantiate: bool) -> tuple[str, list[GraphDifference]]:
        """The other graph is fused as this one is, or is not: CUDA updates no graph to one of other nodes."""
        assert isinstance(other, Fusable)
        fused = False
        if self._fused is not None and other._fused is None:
            fused = bool(other._fuse_now(True, self._fused.fast))
        elif self._fused is None and other._fused is not None and other._fused.recorded is not None:
            other._unfuse('another graph that is not fused has taken it over')
        why, found = super()._try_update(other, instantiate)
        if why and fused and not instantiate:
            other._unfuse('')
        return why, found

    def _take_over(self, other: Updatable, *, anew: bool) -> None:
        state = other._fused if isinstance(other, Fusable) else None
        self._fused = None
        if state is not None:
            state.not_compared('another graph has taken this one over')
            state.recorded = None
        super()._take_over(other, anew=anew)
        self._fused = state
        if isinstance(other, Fusable):
            other._fused = None


def _warn(words: str) -> None:
    at = here()
    if at is None:
        warnings.warn(words, RuntimeWarning, stacklevel=3)
    else:
        warnings.warn_explicit(words, RuntimeWarning, at.file, at.line)


def _spans(nodes: Iterable[Node]) -> list[Span]:
    """Which line made which nodes, of nodes in their order."""
    found, first = [], 0
    for (lane, at), group in groupby(nodes, key=lambda one: (one.lane, one.at)):
        count = len(list(group))
        found.append(Span(first, count, lane, None if at is None else at.to_json()))
        first += count
    return found
