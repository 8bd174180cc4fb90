"""A graph's edges replaced by those that its data needs.

A recording orders more than it has to: all nodes of one lane come one after the other, and a wait for a lane is one for
all of it. The definition is changed where it stands, so that nodes keep their numbers and lines, and an executable
graph is made of it anew. CUDA C++ Programming Guide, "Graph Structure".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capturekit.analysis.needed_order import TooManyError, needed_edges
from capturekit.analysis.node_memory import Definitions, NotRepeatableError, joined, memory_of, written_ranges
from capturekit.analysis.node_view import Look, Node
from capturekit.analysis.races import MemoryBlocks, Races, Search
from capturekit.analysis.relaned import Pairs, Relaned, Wiring
from capturekit.driver.cuda import current
from capturekit.graph.closed import closed, compared_first
from capturekit.graph.edit import NodeNames, _failure, _positive
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.new_edges import Level, NewEdges, Sight, unsteady_of
from capturekit.graph.packed import Packable
from capturekit.graph.packed_memory import Packing
from capturekit.guard import GUARD
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.launch.plan import Part, Plan
from capturekit.model.cleanup import GARBAGE
from capturekit.model.counters import LOG
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError, UnmatchedError
from capturekit.model.rules import Code
from capturekit.model.source_line import here

#: Memory as pairs of the first address and the one after the last.
Ranges = Sequence[tuple[int, int]]

_CALL = 'Graph.relane()'
_MEMORY = ('mem alloc', 'mem free', 'memAlloc', 'memFree')
_ENOUGH = 'its data needs the order that was recorded'
_PIECES = 'it is launched in several parts'
#: Kernels of capturekit's own in graphs of graphed functions: they touch arguments and results.
_OURS = 'capturekit_'
_ALLOCATES = 'it allocates memory as it runs, and CUDA removes no edge of such a graph'


class Relanable(Packable):
    """The method :meth:`relane` of :class:`capturekit.Graph`."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    _parts: Callable[[], list[Part]]
    _keep_fastest: Callable[[Relaned, int], None]
    launch: Callable[..., None]

    def _check_changeable(self, call: str, report: object, instead: str) -> None:
        """Raise if ``report`` is not a bool, or if nothing can be changed in this graph. The caller holds the lock."""
        if not isinstance(report, bool):
            raise TypeError(f'report is True or False, got {report!r}')
        if self._made is None:
            raise closed(call)
        if getattr(self.launch, '__qualname__', '') != 'Graph.launch':
            raise _failure(call, 'It is the graph of a graphed function, which calls alone launch.', instead)

    def relane(self, *, report: bool = False, rounds: int = 0) -> Relaned:
        """Let the graph have the edges that its data needs, and no others; ``print(graph.relane())`` tells which.

        A read comes after the write before it, a write after the reads and the write before it, to the byte: disjoint
        views of an array need no order. A node keeps its order with all others where it is not known what it touches:
        kernels of your own, kernels of libraries whose call is not understood, and host functions, unless
        :func:`reads` and :func:`writes` say it; conditional nodes and nodes for events. Nodes that were recorded in
        no order stay in none, if no lanes are chosen for them (``rounds``). Bodies of conditional nodes are treated
        each by itself.

        The graph stays as it was recorded, and ``kept`` has the reason, where its data needs the whole order, where
        CUDA refuses, where :meth:`races` would find something new, and where the graph is too large (more than 32,768
        nodes). The first launch runs the graph with the old edges as well, compares all that both wrote, byte by byte
        (sums of CUB's scans, which differ from launch to launch, as numbers), and waits for this; where they differ,
        the graph gets its old edges again, with a RuntimeWarning. ``compared`` tells the outcome, or why a launch can
        not be compared: host functions, checks of host reads and conditional nodes would act twice. Copies of what the
        graph writes take memory for that one launch.

        Nodes keep their numbers, and ``graphExec`` is another one afterwards. Changes of nodes, :meth:`rebind` and
        :meth:`update` compute the order again, from the edges as recorded.

        Args:
            report: True: only tell what would be done.
            rounds: how often each order is timed, in turn, after one round that does not count; 0: not at all. The
                orders are the recorded one, the needed one, this behind one node, and the nodes laid on 2, 4, 8, 16 and
                32 lanes, as far as the data lets so many run at once and all this is made in some five seconds; then
                the best ones with their temporaries packed (of ``lanes='auto'``), and the winner with a priority for
                each kernel, by the longest path behind it. Each time a graph is launched in a row, 4 times to 25 times,
                and its memory is put back from a copy before that and at the end, so fill its inputs first. The graph
                keeps the fastest of the orders of which three quarters of the times are shorter than three quarters of
                the recorded one's; where there is none, the recorded one, and ``kept`` tells why. ``times`` has the
                figures. A graph that can not be launched twice with the same effect is not timed, and ``untimed`` tells
                why. On the simulated device times come from a model.

        Raises:
            TypeError, ValueError: ``report`` is not a bool, ``rounds`` not a whole number of 0 or more; or both are
                asked for. ClosedError: the graph was closed. UpdateError: the graph of a ``@graphed`` function.
            UnmatchedError: ``rounds`` is not 0, and this thread has a capture open.

        Threads: calls take turns; with ``rounds`` no other thread may use the arrays. Streams: nothing is launched,
        and launches under way are not affected; with ``rounds`` it works on CuPy's current stream and waits for it, and
        launches on other streams must have ended. Some 200 microseconds for each node.
        """
        if _positive('rounds', rounds, 0) and report is True:
            raise ValueError('report=True launches nothing: rounds= goes without it')
        if rounds and GUARD.occupied():
            rule = 'It launches the graph and waits for it, and this thread has a capture or a rehearsal open.'
            raise UnmatchedError(_CALL, location=here(), rule=rule, remedy='Ask outside of it, or without rounds=.')
        with self._lock:
            self._check_changeable(_CALL, report, "Write @ck.graphed(lanes='auto').")
            found = self._relane_now(apply=not report)
            if rounds and found:
                with self._relaxed():
                    self._keep_fastest(found, rounds)
            return found

    def _relane_for_calls(self, written: Ranges) -> Relaned:
        """Relane a graph that calls launch. ``written``: memory that it changes besides what its nodes show."""
        with self._lock:
            if self._plan is not None and not self._plan.plain:
                return Relaned(kept=_PIECES)
            return self._relane_now(True, written)

    def _relane_now(self, apply: bool, also: Ranges | None = None) -> Relaned:
        """:meth:`relane`, holding the lock. ``also``: memory that a launch writes by addresses that no node shows."""
        GARBAGE.hold()  # it would look through all that is made for each node, again and again
        try:
            with self._relaxed():
                return self._relane(apply, also)
        finally:
            GARBAGE.release()

    # -- what is needed -----------------------------------------------------------------------------------------

    def _relane(self, apply: bool, also: Ranges | None) -> Relaned:
        sight = self._sight()
        levels, known = self._levels(sight.look), Relaned()
        try:
            known.fixed = self._need(levels, sight)
        except (TooManyError, CudaCallError) as error:
            known.kept = str(error)
            return known
        self._note_words(known, levels, sight)
        self._fill(known, levels, sight.look)
        if not known.loosened:
            known.kept = _ALLOCATES if any(_allocates(one.nodes) for one in known.graphs) else _ENOUGH
        if all(level.is_so for level in levels) and self._new_edges is not None:
            so_far = self._new_edges.report
            known.compared, known.packed, known.kept = so_far.compared, so_far.packed, known.kept or so_far.kept
        elif apply and not known.kept:
            known.kept = self._rewired(levels, sight)
            if not known.kept:
                self._take_edges(levels, known, sight, also)
        elif not known.kept:
            known.kept = 'only a report was asked for'
        if apply and known.kept and self._new_edges is None:
            self._pack_recorded(levels, known, sight, also)
        return known

    def _sight(self) -> Sight:
        platform = current()
        blocks = MemoryBlocks(self._memory, platform.cupy.ndarray, {})
        return Sight(platform, self._look_in(), blocks, Definitions(self._device, self._declared))

    def _definitions(self) -> list[int]:
        return [g for part in self._parts() for g in part.graphs if g]

    def _levels(self, look: Look) -> list[Level]:
        """The graph and the bodies in it, with the edges that they have and had."""
        found = []
        state = self._new_edges
        for number, g in enumerate(self._definitions()):
            handles = self._device.graph_nodes(g)
            place = {handle: n for n, handle in enumerate(handles)}
            present = sorted((place[a], place[b]) for a, b in self._device.graph_edges(g))
            level = Level(g, handles, present, present if state is None else state.recorded[number])
            level.lanes = state.lanes[number] if state is not None and state.lanes else ()
            found.append(level)
        return found

    def _need(self, levels: Sequence[Level], sight: Sight) -> list[Node]:
        """Find the needed edges of each level; return the nodes of unknown memory."""
        fixed = []
        for level in levels:
            memory = memory_of(sight.definitions, level.graph, sight.blocks, by_word=True)
            nodes = [sight.look.nodes[sight.look.numbers[handle]] for handle in level.handles]
            if _allocates(nodes):
                level.needed = level.recorded
                continue
            order = Order(len(level.handles), level.recorded)
            level.needed = needed_edges(order, [memory[handle] for handle in level.handles])
            fixed += [node for node, handle in zip(nodes, level.handles) if memory[handle] is None]
        return sorted(fixed, key=lambda node: node.number)

    def _note_words(self, report: Relaned, levels: Sequence[Level], sight: Sight) -> None:
        """Tell which nodes are taken as the user says, and of which only one half is said."""
        look = sight.look
        words = [h for level in levels for h in sight.definitions.by_word(level.graph, sight.blocks)]
        taken = {look.numbers[h] for h in words if not self._declared[h].call}
        report.called = [look.nodes[number] for number in sorted({look.numbers[h] for h in words} - taken)]
        half = {look.numbers[h] for h, one in self._declared.items() if h in look.numbers and not one.whole}
        report.declared = [look.nodes[number] for number in sorted(taken)]
        report.half_declared = [node for node in report.fixed if node.number in half]

    def _fill(self, report: Relaned, levels: Sequence[Level], look: Look) -> None:
        timeline = self.recording.timeline
        timed = timeline is not None and len(timeline.nodes) == len(look.nodes)
        report.unit = 'us' if timed else 'nodes'
        for level in levels:
            numbers = [look.numbers[handle] for handle in level.handles]
            spans = timeline.nodes if timed and timeline is not None else [(0.0, 1.0)] * len(look.nodes)
            took = tuple(0.0 if (span := spans[n]) is None else span[1] - span[0] for n in numbers)
            nodes = tuple(look.nodes[n] for n in numbers)
            laid = tuple(level.wanted) if level.lanes else ()
            report.graphs.append(Wiring(nodes, took, tuple(level.recorded), tuple(level.needed), laid))

    # -- the change ---------------------------------------------------------------------------------------------

    def _rewired(self, levels: Sequence[Level], sight: Sight) -> str:
        """Give all definitions the edges that they need; return why that can not be, and then they are as before."""
        old = [level.present for level in levels]
        try:
            self._rewire(levels, [level.wanted for level in levels])
            after = self._races(sight)
            if not after:
                return ''
            self._rewire(levels, old)
            why = _worse(self._races(sight), after)
            if not why:
                self._rewire(levels, [level.wanted for level in levels])
        except CudaCallError as error:
            why = f'CUDA refuses: {error}'
            self._rewire(levels, old)
        return why

    def _rewire(self, levels: Sequence[Level], edges: Sequence[Pairs]) -> None:
        for level, to in zip(levels, edges):
            level.rewire(self._device, to)

    def _races(self, sight: Sight) -> Races:
        told = sight.definitions.told(sight.blocks, whole=True)
        return Search(self._device, self._parts(), sight.look, sight.blocks, accesses=told).report

    def _take_edges(self, levels: Sequence[Level], report: Relaned, sight: Sight, also: Ranges | None) -> None:
        """Make executable graphs of the new definitions, and let the next launch be compared."""
        state, made = self._new_edges, self._made
        trial = self._trial(made, report, sight, also) if state is None else None
        packing = self._pack(levels, sight, levels[0].wanted) if trial is not None else None
        try:
            self._instantiate()
        except CudaCallError as error:
            self._rewire(levels, [level.recorded for level in levels])
            if packing is not None:
                self._put_back(packing)
            report.kept, report.compared = f'CUDA refuses: {error}', ''
            self._make_whole()
            return
        if state is not None:
            state.not_compared('the order was computed again before the first launch')
        lanes = [] if state is None else state.lanes
        self._new_edges = NewEdges([level.recorded for level in levels], report, by_calls=also is not None, lanes=lanes)
        if trial is not None:
            self._await(trial, packing)
        self._aim_all()

    def _pack_recorded(self, levels: Sequence[Level], report: Relaned, sight: Sight, also: Ranges | None) -> None:
        """A graph that keeps its order keeps no more memory than this order needs."""
        trial = self._trial(self._made, Relaned(), sight, also) if self._memory.temporaries() else None
        packing = self._pack(levels, sight, levels[0].recorded) if trial is not None else None
        if trial is None or packing is None:
            return
        try:
            self._instantiate()
        except CudaCallError:
            self._put_back(packing)
            return
        recorded = [level.recorded for level in levels]
        self._new_edges = NewEdges(recorded, report, by_calls=also is not None, lanes=list(recorded))
        self._await(trial, packing)
        self._aim_all()

    def _await(self, trial: FirstLaunch, packing: Packing | None) -> None:
        """Let the first launch be compared."""
        state = self._new_edges
        assert state is not None
        state.trial, state.packing = trial, packing
        if packing is not None:
            trial.gone, state.report.packed = packing.old, packing.report

    def _make_whole(self) -> None:
        """After a refusal: parts whose executable graph had to go first get one of the recorded edges."""
        if self._plan is None or all(part.executable for part in self._plan.parts):
            return
        try:
            self._complete(self._plan)
        except CudaCallError as error:
            rule = f'Of its definition CUDA makes no executable graph any more: {error}.'
            raise _failure(_CALL, rule, 'Free memory of the device, and record again.') from error
        finally:
            self._aim_all()

    def _trial(self, made: Any, report: Relaned, sight: Sight, also: Ranges | None) -> FirstLaunch | None:
        try:
            ranges = self._written(sight, _OURS if also is not None else '')
        except NotRepeatableError as error:
            report.compared = f'not compared: {error}'
            return None
        report.compared = 'not yet'
        every = joined([*ranges, *(also or ())])
        again, loose = also is not None, unsteady_of(sight, self._made.graph)
        return FirstLaunch(sight.platform, made, every, sight.blocks, again=again, unsteady=loose)

    def _written(self, sight: Sight, without: str = '') -> list[tuple[int, int]]:
        """The memory that a launch writes, without nodes of such names. Raises NotRepeatableError."""
        if self._plan is not None and not self._plan.plain:
            raise NotRepeatableError('it is launched in several parts, with checks')
        if len(self.recording.devices) > 1:
            raise NotRepeatableError('it is of several devices')
        return written_ranges(sight.platform, sight.definitions, self._made.graph, sight.blocks, without)

    def _instantiate(self) -> None:
        """Make executable graphs of the definitions as they are now. Nodes that are disabled stay so."""
        plan, off = self._plan, set(self._names.off)
        if plan is not None and not plan.plain:
            self._instantiate_parts(plan)
        else:
            try:
                self._made = self._made.instantiated(self._device, self.recording.by_priority)
            except CudaCallError as error:
                if plan is None or error.code != Code.cudaErrorNotSupported:
                    raise
                self._instantiate_parts(plan)
            self._names, self._index = NodeNames(), None
            for number in sorted(off):
                self._switch(self._at(_CALL, number), False)
        self._note_edges()

    def _note_edges(self) -> None:
        """The recording tells of the edges that the graph has now."""
        self.recording.timeline = None  # it describes what the graph did before
        if self.recording.arrows:
            self.recording.arrows = self._look_in().edges
        self.recording.edge_count = sum(self._device.graph_edge_count(g) for g in self._definitions())

    def _instantiate_parts(self, plan: Plan) -> None:
        """Make an executable graph of each part. Of those with conditional nodes, the old one has to go first."""
        made: list[tuple[Part, int]] = []
        last: list[Part] = []
        try:
            for part in plan.parts:
                try:
                    made.append((part, self._device.graph_instantiate(part.graph, self.recording.by_priority)))
                except CudaCallError as error:
                    if error.code != Code.cudaErrorNotSupported:
                        raise
                    last.append(part)
        except CudaCallError:
            for _part, x in made:
                self._device.graph_exec_destroy(x)
            raise
        for part, x in [*made, *((part, 0) for part in last)]:
            old, part.executable = part.executable, x
            self._device.graph_exec_destroy(old)
        self._complete(plan)

    def _complete(self, plan: Plan) -> None:
        """Make an executable graph of each part that has none."""
        try:
            for part in plan.parts:
                plan.complete(part, self.recording.by_priority)
        finally:
            self._made = replace(self._made, graphExec=plan.parts[0].executable)

    # -- launching ----------------------------------------------------------------------------------------------

    def _aim_all(self) -> None:
        if self._plan is None or self._plan.plain:
            self._aim()

    def _aim(self) -> None:
        if self._new_edges is None or self._new_edges.trial is None:
            super()._aim()
            return
        self._shut(compared_first(self, 'Graph.relane()'))

    def _start(self, stream: int) -> None:
        """Launch on a stream, by its handle: the first time with the comparison."""
        state = self._new_edges
        if state is None or state.trial is None:
            self._device.graph_launch(self._made.graphExec, stream)
            return
        trial, state.trial = state.trial, None
        with self._relaxed():
            try:
                apart = trial.run(self._made.graphExec, stream)
                same = f'the same as with the recorded edges{trial.besides}'
                state.note(f'differs: {apart}' if apart else same)
            except MemoryError as error:
                state.note(f'not compared: no memory for copies ({error})')
                self._unpack(f'no memory for copies ({error})')
                self._device.graph_launch(self._made.graphExec, stream)
                apart = ''
            if apart and state.packing is not None:  # the order may be right all the same
                self._unpack(f'the first launch gave something else: {apart}')
                trial.gone, trial.passing = (), trial.gone
                state.trial = None if state.report.kept else trial
                state.note('not yet')
                apart = ''
            elif apart:
                self._fall_back(trial.recorded, f'the first launch gave something else: {apart}')
            else:
                self._settle(state)
            self._aim()
        if apart:
            words = f'{_CALL} is undone: the first launch gave something else than the recorded edges do ({apart})'
            at = here()
            if state.by_calls:
                LOG.warning('%s', words)
            elif at is None:
                warnings.warn(words, RuntimeWarning, stacklevel=2)
            else:
                warnings.warn_explicit(words, RuntimeWarning, at.file, at.line)

    def _settle(self, state: NewEdges) -> None:
        """The packed memory is right: give back what the graph was recorded with."""
        packing, state.packing = state.packing, None
        if packing is not None:
            packing.settle()
            self.recording.memory_bytes = self._memory.used_bytes()
        if state.report.kept and self._new_edges is state:
            self._new_edges = None

    def _fall_back(self, recorded: ExecutableGraph, why: str) -> None:
        """Give the graph its recorded edges again, and the executable graph that was made of them."""
        state = self._new_edges
        assert state is not None
        for level in self._levels(self._look_in()):
            level.rewire(self._device, level.recorded)
        state.report.kept = why
        if state.packing is not None:
            self._put_back(state.packing)
            state.report.packed = None
        self.recording.by_priority = self.recording.by_priority and not state.by_priority
        self._new_edges = None
        self._made, self._index = recorded, None
        off, self._names = self._names.off, NodeNames()
        for number in sorted(off):
            self._switch(self._at(_CALL, number), False)
        self._note_edges()


def _allocates(nodes: Iterable[Node]) -> bool:
    return any(node.kind in _MEMORY for node in nodes)


def _worse(before: Races, after: Races) -> str:
    """The first race that was not there before, in words; '' if there is none."""
    known = {(race.missing, race.certain): race.count for race in before}
    for race in after:
        if known.get((race.missing, race.certain), 0) < race.count:
            return str(race).partition('\n')[0]
    return ''
