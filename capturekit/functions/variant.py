"""One recorded way of a function: made once, launched for every call that it fits."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from capturekit.driver.cuda import Platform
from capturekit.functions.argument_slots import RING, Ports, from_low
from capturekit.functions.environment import Environment
from capturekit.functions.fences import Fences
from capturekit.functions.places import block_like, places_of, same_array, spans
from capturekit.functions.recordable import (
    host_arrays,
    must_be_same,
    must_leave_nothing,
    must_not_refuse,
    must_reach_known_arrays,
    only_arrays,
)
from capturekit.graph.executable import Graph
from capturekit.guard import GUARD, Live
from capturekit.launch.caller import Caller
from capturekit.launch.graph_memory import extent
from capturekit.launch.plan import Backup, Feed, Plan, Seam
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError
from capturekit.model.host_reads import Read, Rehearsal
from capturekit.model.pytree import held_in, put_together, take_apart
from capturekit.model.rules import Mode
from capturekit.model.source_line import here
from capturekit.model.sparse import packed, unpacked
from capturekit.recorder.capture import Capture


class Variant:
    """One way of a function: for these shapes and values, in this environment, on these assumptions.

    Attributes:
        state: 'rehearsed' (ran eagerly once), 'recorded' (one graph), 'pieces' (graphs with calls by the host between
            them), 'eager' (can't be recorded, see ``reason``) or 'closed'.
        reason: why it is eager, in words; else ''.
        calls: how many calls it has answered. launches: how many of them with a graph.
        seams: the calls made by the host at every launch, each with its line and what it costs.
        assumptions: the host reads that it took for given: value and line.
        graph: the :class:`~capturekit.graph.executable.Graph`, or None.
        aims: the numbers of the arguments that are not copied: nodes are aimed at them.
    """

    def __init__(self, environment: Environment | None, rehearsal: Rehearsal, reason: str = '') -> None:
        self.state = 'eager' if reason else 'rehearsed'
        self.reason = reason
        self.calls = 0
        self.launches = 0
        self.environment = environment
        self.assumptions: list[Read] = rehearsal.reads
        self.rehearsal = rehearsal
        self.graph: Graph | None = None
        self.aims: list[int] = []
        self.lock = threading.Lock()
        self.changed = (lambda: None) if environment is None else environment.changed
        self.run: Callable[[Sequence[Any], bool], Any] | None = None
        self.quick: Callable[[Sequence[Any], Sequence[int]], Any] | None = None
        self.backups: list[Backup] = []
        #: Extents of the arrays that the function reaches otherwise than as arguments, sorted, none in another.
        self.outside: list[tuple[int, int]] = []
        for low, high in sorted(extent(a) for a in (environment.arrays() if environment else ()) if a.size):
            if self.outside and low < self.outside[-1][1]:
                low, high = self.outside[-1][0], max(high, self.outside.pop()[1])
            self.outside.append((low, high))
        #: What a result of the rehearsal held by identity; and all of it that was no array.
        self.held: list[Any] = []
        self.values: Any = None
        #: The stream that was current at the rehearsal.
        self.rehearsed_on = 0
        #: What a launch owes to its caller's streams; None where that is nothing.
        self.fences: Fences | None = None
        #: Calls that were answered before their checks.
        self.unsettled: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def plan(self) -> Plan | None:
        return None if self.graph is None else self.graph._plan

    @property
    def seams(self) -> list[Seam]:
        return [] if self.plan is None else self.plan.seams

    def give_up(self, reason: str) -> None:
        """It can't be recorded."""
        self.close()
        self.state, self.reason = 'eager', reason

    def close(self) -> None:
        """Give the graph and its memory back. Calls whose checks nobody has waited for yet are told their verdicts."""
        for call in list(self.unsettled):
            call.holds()
        graph, self.graph, self.run, self.quick = self.graph, None, None, None
        self.state = 'closed'
        self.backups = []
        if graph is not None:
            graph.close()

    def restore(self, error: errors.AssumptionError | None = None) -> None:
        """Put back what the last launch, which was stopped, has written outside of its own memory."""
        if self.plan is not None:
            self.plan.put_back(self.backups, None if error is None else error.index)
            if self.fences is not None:
                self.fences.close()

    def drawn(self) -> list[Feed]:
        """What the last launch was given by generators on the host."""
        return [] if self.plan is None else self.plan.drawn()

    def __repr__(self) -> str:
        more = f': {self.reason}' if self.reason else ''
        told = [counted(self.calls, 'call'), counted(self.launches, 'launch')]
        told += [counted(len(self.assumptions), 'assumption')] if self.assumptions else []
        told += [counted(len(self.seams), 'seam')] if self.seams else []
        return f'<{self.state} variant, {", ".join(told)}{" ".join(more.split())}>'

    def __str__(self) -> str:
        lines = [repr(self)[1:-1]]
        lines += [f'  assumes {read}' for read in self.assumptions]
        lines += [f'  seam {seam}' for seam in self.seams]
        return '\n'.join(lines)

    def _repr_html_(self) -> str:
        drawn = '' if self.graph is None or self.graph.closed else self.graph.svg()
        return f'{drawn}<pre style="white-space:pre-wrap">{escape(str(self))}</pre>'


@dataclass
class _Result:
    """Where one array of a result comes from at each call.

    ``of``: 'own' (an argument, or a view of it, number ``source``), 'new' (block number ``source``) or 'kept' (the
    array itself, from outside of the function). ``offset`` is in bytes from the source's first element or block start.
    """

    of: str
    source: int = 0
    offset: int = 0
    array: Any = None
    whole: bool = False


#: Arguments of so many bytes are not copied: the graph's nodes are aimed at them. (Measured on an H100: aiming takes
#: some 50 us and 10 for each node; fetching and comparing 64 MB takes 110.)
AIMED_BYTES = 64 << 20


class VariantRecorder:
    """Records one variant: the arguments are fetched, the function's work follows, the results are stored.

    Large arguments are not fetched: the nodes use the caller's memory, and are aimed at other arrays when a call brings
    some.
    """

    def __init__(
        self, platform: Platform, fn: Callable[..., Any], variant: Variant, gates: str, pool: Any, aim: bool = True
    ) -> None:
        self.platform = platform
        self.fn = fn
        self.variant = variant
        self.pool = pool
        self.gates = gates
        self.places: list[Any] = []
        self.results: list[_Result] = []
        self.blocks: list[Any] = []
        self.form: Any = None
        self.ports: Ports | None = None
        self.drawn: list[Feed] = []
        #: The arrays that nodes are aimed at, by argument.
        self.aims: dict[int, Any] = {}
        self.caller: Caller | None = None
        self.aim = aim and not variant.assumptions and not variant.rehearsal.seams

    def record(self, leaves: Sequence[Any], form: Any, pieces: bool) -> Any:
        """Record with these arguments, and answer this call. What can't be recorded raises."""
        cupy = self.platform.cupy
        stream = cupy.cuda.get_current_stream()
        rehearsal = self.variant.rehearsal
        capture = Capture(None, False, Mode.RELAXED, self.pool, rehearsal)
        capture._gates, capture._seams_on = self.gates, stream if pieces else None
        live: Live | None = None
        if rehearsal.seams:  # parts of it run while it is recorded: after all that anybody has begun
            cupy.cuda.runtime.deviceSynchronize()
        try:
            with capture:
                live = capture._live
                assert live is not None and live.memory is not None
                self._open(live, leaves)
                args, kwargs = unpacked(put_together(form, self.places))
                live.caller = self.caller = Caller(stream)
                self.caller.filled = [*rehearsal.filled, *host_arrays((args, kwargs))]
                made = errors.MADE.count
                result = self.fn(*args, **kwargs)
                must_not_refuse(live, made)
                self._close(live, result)
            self._must_be_whole(live, capture.graph)
            if self.aims and not self._can_aim(capture.graph):
                capture.graph.close()
                again = VariantRecorder(self.platform, self.fn, self.variant, self.gates, self.pool, aim=False)
                return again.record(leaves, form, pieces)
            return self._first_call(capture.graph, live, leaves, stream)
        except BaseException:
            if live is not None and live.host_calls.launch is not None:
                self._take_back(live, stream)
                self.drawn = list(live.drawn)
            raise

    def _must_be_whole(self, live: Live, graph: Graph) -> None:
        environment = self.variant.environment
        try:
            must_reach_known_arrays(live, environment.arrays() if environment is not None else [])
        except CaptureError:
            graph.close()
            raise

    def _open(self, live: Live, leaves: Sequence[Any]) -> None:
        memory = live.memory
        assert memory is not None
        with GUARD.inside():
            self.places = self._places(leaves, memory)
            columns = 2 * len(leaves) + 64
            self.ports = Ports(self.platform, memory, lambda values: GUARD.uploads.upload(live, values), columns)
            live.parts.state = self.ports.state
            self.ports.fetch([None if i in self.aims else place for i, place in enumerate(self.places)])
        live.host_calls.opening = lambda launch: self._fill(launch, leaves, ())
        assert live.parts.answers is not None
        if self.variant.assumptions or self.variant.rehearsal.seams:
            assert self.variant.environment is not None
            for array in self.variant.environment.arrays():
                GUARD.draws.back_up(live, array)

    def _places(self, leaves: Sequence[Any], memory: Any) -> list[Any]:
        if self.aim:
            alone = {members[0][0] for _low, _high, members in spans(list(enumerate(leaves))) if len(members) == 1}
            self.aims = {i: leaf for i, leaf in enumerate(leaves) if i in alone and leaf.nbytes >= AIMED_BYTES}
        copied = [leaf for i, leaf in enumerate(leaves) if i not in self.aims]
        made = iter(places_of(copied, memory))
        return [same_array(leaf) if i in self.aims else next(made) for i, leaf in enumerate(leaves)]

    def _can_aim(self, graph: Graph) -> bool:
        """Find all addresses in the graph; False where some may be hidden."""
        if graph._plan is not None or not graph._only_cupys():
            return False
        try:
            graph.rebind()
        except errors.UpdateError:
            return False
        memory = graph._memory
        for array in self.aims.values():
            low, high = extent(array)
            memory.forget(low, high)
            memory.aim([(low, high, low, array.data)])
        return True

    def _fill(self, launch: int, leaves: Sequence[Any], blocks: Sequence[int]) -> None:
        assert self.ports is not None
        addresses = [leaf.data.ptr - from_low(leaf) for leaf in leaves]
        self.ports.writer(len(addresses) + len(blocks))(launch, *addresses, *blocks)

    def _close(self, live: Live, result: Any) -> None:
        """Join what is open, and store the results."""
        memory = live.memory
        cupy = self.platform.cupy
        assert memory is not None and self.ports is not None
        held = self.variant.held
        known_object = lambda value: opaque(value) and any(value is one for one in held)  # noqa: E731
        arrays, self.form = take_apart(packed(result), only_arrays(cupy), known_object, name='the result')
        must_be_same(self.variant.values, result, cupy)
        must_leave_nothing(live)
        for value in held_in(self.form):
            if not any(value is one for one in held) and not isinstance(value, type):
                raise TypeError(f'the result holds {type(value).__name__} {value!r}, another one at each call')
        with GUARD.lock:
            GUARD.verdicts.check(live)
            GUARD.joins.find_work(live)
            GUARD.joins.join_all(live)
        known = {id(array) for array in self.variant.environment.arrays()} if self.variant.environment else set()
        fresh: list[tuple[int, Any]] = []
        for array in arrays:
            found = self._source(array, known, memory)
            if found.of == 'new':
                fresh.append((len(self.results), array))
            self.results.append(found)
        stores = [(i, place, True) for i, place in enumerate(self.places) if i not in self.aims]
        with GUARD.inside(), live.origin:
            for low, high, members in spans(fresh):
                number = len(self.blocks)
                first = members[0][1]
                whole = len(members) == 1
                base = cupy.ndarray((high - low,), 'u1', first.data + (low - first.data.ptr)) if not whole else first
                self.blocks.append(base)
                stores.append((len(self.places) + number, base, False))
                for index, array in members:
                    result_of = self.results[index]
                    result_of.source, result_of.whole, result_of.array = number, whole, array
                    result_of.offset = int(array.data.ptr) - low
            if len(self.places) + len(self.blocks) > self.ports.columns:
                raise errors.UnsupportedCallError(
                    f'{len(self.blocks)} result arrays', rule='A graphed function returns up to 64 arrays.',
                    remedy='Return fewer, larger arrays.',
                )  # fmt: skip
            if live.host_calls.launch is not None:  # a part ran before the results had got their addresses
                self.ports.refill()
            self.ports.store(stores)
        memory.keep([self.blocks, arrays])

    def _source(self, array: Any, known: set[int], memory: Any) -> _Result:
        for number, place in enumerate(self.places):
            if array is place:
                return _Result('own', number, whole=True)
        low, high = extent(array)
        for number, place in enumerate(self.places):
            start, end = extent(place)
            if array.size and start <= low and high <= end:
                return _Result('own', number, int(array.data.ptr - place.data.ptr), array)
        if id(array) in known:
            return _Result('kept', array=array, whole=True)
        if memory.private and array.size and not memory.owns(array.data.mem):
            if not any(start <= low and high <= end for start, end in self.variant.outside):
                raise errors.UnsupportedCallError(
                    "A result in memory that is not the graph's",
                    rule='It is no argument, and none of the arrays that the function is known to reach.',
                    remedy='Pass it as an argument.',
                )
            return _Result('kept', array=array)
        return _Result('new')

    def _first_call(self, graph: Graph, live: Live, leaves: Sequence[Any], stream: Any) -> Any:
        """Make the variant ready, and finish the call that it was recorded with."""
        variant = self.variant
        variant.graph, variant.backups = graph, live.host_calls.backups
        assert self.caller is not None
        if Fences.needed(self.caller):
            variant.fences = Fences(self.platform, self.caller)
        variant.state = 'pieces' if variant.seams else 'recorded'
        variant.run, variant.aims = self._runner(graph), sorted(self.aims)
        if variant.fences is not None:
            variant.fences.wait()
        if live.host_calls.launch is None:
            return variant.run(leaves, True)
        plan = graph._plan
        assert plan is not None
        results = self._allocate()
        if variant.fences is not None:
            variant.fences.open(stream)
        self._fill(live.host_calls.launch, leaves, [block.data.ptr - from_low(block) for block in results])
        done = 1 + max(n for n, step in enumerate(plan.steps) if isinstance(step, Seam))
        with GUARD.inside():
            try:
                plan.follow(live.host_calls.launch, done, stream)
            finally:
                plan.ended(stream)
        if variant.fences is not None:
            variant.fences.close(stream)
            variant.fences.wait()
        return self._answer(leaves, results)

    def _take_back(self, live: Live, stream: Any) -> None:
        """The recording failed after parts of it ran: what they wrote outside is put back."""
        assert live.parts.plan is not None
        with stream:
            live.parts.plan.put_back(live.host_calls.backups, None)
        self.platform.cupy.cuda.runtime.deviceSynchronize()  # streams of the caller's may be next

    def _allocate(self) -> list[Any]:
        fences = self.variant.fences
        return [self._like(block, None if fences is None else fences.home(block)) for block in self.blocks]

    def _like(self, block: Any, stream: Any) -> Any:
        if stream is None:
            return block_like(self.platform.cupy, block)
        with GUARD.inside(), stream:
            return block_like(self.platform.cupy, block)

    def _answer(self, leaves: Sequence[Any], blocks: Sequence[Any]) -> Any:
        cupy = self.platform.cupy
        found = []
        for result in self.results:
            if result.of == 'kept':
                found.append(result.array if result.whole else same_array(result.array))
            elif result.whole:
                found.append(leaves[result.source] if result.of == 'own' else blocks[result.source])
            else:
                source = leaves[result.source] if result.of == 'own' else blocks[result.source]
                like = result.array
                found.append(cupy.ndarray(like.shape, like.dtype, source.data + result.offset, like.strides))
        return unpacked(put_together(self.form, found))

    def _runner(self, graph: Graph) -> Callable[[Sequence[Any], bool], Any]:
        """The function that answers a call: with all it needs bound to it, for it is called very often."""
        ports, plan = self.ports, graph._plan
        assert ports is not None
        write = ports.writer(len(self.places) + len(self.blocks))
        begun, free, launch, lock = ports.begun, ports.free, graph.launch, self.variant.lock
        ins = [from_low(place) for place in self.places]
        outs = [from_low(block) for block in self.blocks]
        shifted = any(ins) or any(outs)
        current = self.platform.cupy.cuda.get_current_stream
        allocate, answer, variant = self._allocate, self._answer, self.variant
        inside = GUARD.inside
        fences = variant.fences
        simple = None if fences else _simple(self.platform.cupy, self.results, self.blocks, self.form)
        count = plan.launches if plan is not None else 0

        def quick(leaves: Sequence[Any], pointers: Sequence[int]) -> Any:
            nonlocal count
            if simple is None:
                blocks = allocate()
                targets: Sequence[int] = [block.data.ptr for block in blocks]
            else:
                block = simple()
                targets = (block.data.ptr,)
            if shifted:
                pointers = [pointer - offset for pointer, offset in zip(pointers, ins)]
                targets = [target - offset for target, offset in zip(targets, outs)]
            count += 1
            if begun[0] < count - _AHEAD:
                free(count, current().synchronize)
            write(count, *pointers, *targets)
            launch()
            variant.launches += 1
            return block if simple is not None else answer(leaves, blocks)

        aims = self.aims
        rebind = graph._rebind

        def aimed(leaves: Sequence[Any]) -> None:
            pairs = [(old, leaves[i]) for i, old in aims.items() if old.data.ptr != leaves[i].data.ptr]
            if pairs:
                rebind(pairs, unused=True)
                aims.update((i, leaves[i]) for i in aims)

        def given(leaves: Sequence[Any], blocks: Sequence[Any], wait: bool) -> None:
            addresses = [leaf.data.ptr - offset for leaf, offset in zip(leaves, ins)]
            addresses += [block.data.ptr - offset for block, offset in zip(blocks, outs)]
            nonlocal count
            with lock:
                count = number = (count if plan is None else plan.launches) + 1
                free(number, current().synchronize)
                write(number, *addresses)
                if plan is None:
                    launch()
                else:
                    with inside():
                        plan.run(wait)
                variant.launches += 1

        def run(leaves: Sequence[Any], wait: bool) -> Any:
            if aims:
                aimed(leaves)
            if plan is None and fences is None:
                return quick(leaves, [leaf.data.ptr for leaf in leaves])
            blocks = allocate()
            if fences is None:
                given(leaves, blocks, wait)
            else:
                fences.around(lambda: given(leaves, blocks, wait))
            return answer(leaves, blocks)

        graph.launch = _by_calls_alone
        if plan is None and not aims and fences is None:
            variant.quick = quick
        return run


def _by_calls_alone(_stream: Any = None) -> None:
    raise errors.UnsupportedCallError(
        'Graph.launch() of a graphed function',
        location=here(),
        rule='Its nodes take the arguments and the places of the results from a table that each call fills.',
        remedy='Call the function; or record a block with ck.capture() to have a graph of your own.',
    )


#: A launch may write its row in the table when the launch this many before it has begun.
_AHEAD = RING - 1


def _simple(cupy: Any, results: list[_Result], blocks: list[Any], form: Any) -> Callable[[], Any] | None:
    """How to make the result where it is one new array in C order; None where it is anything else."""
    if len(results) != 1 or results[0].of != 'new' or not results[0].whole or form != 0:
        return None
    block = blocks[0]
    if not block.flags.c_contiguous or not block.size:
        return None
    shape, dtype, make = block.shape, block.dtype, cupy.ndarray
    return lambda: make(shape, dtype)


def opaque(value: Any) -> bool:
    """True for objects that a call is told by identity: people's own, whose attributes the environment watches."""
    cls = type(value)
    if isinstance(value, tuple) or (issubclass(cls, np.ndarray) and cls is np.ndarray):
        return False
    return not hasattr(cls, '__dataclass_fields__') or getattr(cls, '__eq__', None) is object.__eq__
