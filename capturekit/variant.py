"""One recorded way of a function: made once, launched for every call that it fits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from capturekit import errors
from capturekit.containers import held_in, put_together, take_apart
from capturekit.cuda import Platform
from capturekit.environment import Environment
from capturekit.graph import Graph
from capturekit.guard import GUARD, Live
from capturekit.memory import extent
from capturekit.places import here
from capturekit.plan import Backup, Feed, Plan, Seam
from capturekit.ports import RING, Ports, from_low
from capturekit.recorder import Capture
from capturekit.rehearsal import Read, Rehearsal
from capturekit.rules import Mode
from capturekit.sparse import packed, unpacked


class Variant:
    """One way of a function: for these shapes and values, in this environment, on these assumptions.

    Attributes:
        state: 'rehearsed' (ran eagerly once), 'recorded' (one graph), 'pieces' (graphs with calls by the host between
            them), 'eager' (can't be recorded, see ``reason``) or 'closed'.
        reason: why it is eager, in words; else ''.
        calls: how many calls it has answered. launches: how many of them with a graph.
        seams: the calls made by the host at every launch, each with its line and what it costs.
        assumptions: the host reads that it took for given: value and line.
        graph: the :class:`~capturekit.graph.Graph`, or None.
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
        #: What a result of the rehearsal held by identity.
        self.held: list[Any] = []

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
        """Give the graph and its memory back."""
        graph, self.graph, self.run, self.quick = self.graph, None, None, None
        self.state = 'closed'
        self.backups = []
        if graph is not None:
            graph.close()

    def restore(self, error: errors.AssumptionError | None = None) -> None:
        """Put back what the last launch, which was stopped, has written outside of its own memory."""
        if self.plan is not None:
            self.plan.put_back(self.backups, None if error is None else error.index)

    def drawn(self) -> list[Feed]:
        """What the last launch was given by generators on the host."""
        return [] if self.plan is None else self.plan.drawn()

    def __repr__(self) -> str:
        more = f': {self.reason}' if self.reason else ''
        seams = f', {len(self.seams)} seams' if self.seams else ''
        assumed = f', {len(self.assumptions)} assumptions' if self.assumptions else ''
        return f'<{self.state} variant, {self.calls} calls, {self.launches} launches{assumed}{seams}{more}>'


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


class Recorder:
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
        self.aim = aim and not variant.assumptions and not variant.rehearsal.seams

    def record(self, leaves: Sequence[Any], form: Any, pieces: bool) -> Any:
        """Record with these arguments, and answer this call. What can't be recorded raises."""
        cupy = self.platform.cupy
        stream = cupy.cuda.get_current_stream()
        rehearsal = self.variant.rehearsal
        capture = Capture(None, False, Mode.RELAXED, self.pool, rehearsal)
        capture._gates, capture._seams_on = self.gates, stream if pieces else None
        live: Live | None = None
        try:
            with capture:
                live = capture._live
                assert live is not None and live.memory is not None
                self._open(live, leaves)
                args, kwargs = unpacked(put_together(form, self.places))
                result = self.fn(*args, **kwargs)
                self._close(live, result)
            if self.aims and not self._can_aim(capture.graph):
                capture.graph.close()
                again = Recorder(self.platform, self.fn, self.variant, self.gates, self.pool, aim=False)
                return again.record(leaves, form, pieces)
            return self._first_call(capture.graph, live, leaves, stream)
        except BaseException:
            if live is not None and live.launch is not None:
                self._take_back(live, stream)
                self.drawn = list(live.drawn)
            raise

    def _open(self, live: Live, leaves: Sequence[Any]) -> None:
        memory = live.memory
        assert memory is not None
        with GUARD.inside():
            self.places = self._places(leaves, memory)
            columns = 2 * len(leaves) + 64
            self.ports = Ports(self.platform, memory, lambda values: GUARD.aside(live, values), columns)
            live.state = self.ports.state
            self.ports.fetch([None if i in self.aims else place for i, place in enumerate(self.places)])
        live.opening = lambda launch: self._fill(launch, leaves, ())
        assert live.given is not None
        if self.variant.assumptions or self.variant.rehearsal.seams:
            assert self.variant.environment is not None
            for array in self.variant.environment.arrays():
                GUARD.back_up(live, array)

    def _places(self, leaves: Sequence[Any], memory: Any) -> list[Any]:
        if self.aim:
            alone = {members[0][0] for _low, _high, members in _spans(list(enumerate(leaves))) if len(members) == 1}
            self.aims = {i: leaf for i, leaf in enumerate(leaves) if i in alone and leaf.nbytes >= AIMED_BYTES}
        copied = [leaf for i, leaf in enumerate(leaves) if i not in self.aims]
        made = iter(_places(copied, memory))
        return [_same_array(leaf) if i in self.aims else next(made) for i, leaf in enumerate(leaves)]

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
        is_array = lambda value: isinstance(value, cupy.ndarray)  # noqa: E731
        arrays, self.form = take_apart(packed(result), is_array, known_object, name='the result')
        for value in held_in(self.form):
            if not any(value is one for one in held) and not isinstance(value, type):
                raise TypeError(f'the result holds {type(value).__name__} {value!r}, another one at each call')
        with GUARD.lock:
            GUARD.check(live)
            GUARD.find_work(live)
            GUARD.join_all(live)
        known = {id(array) for array in self.variant.environment.arrays()} if self.variant.environment else set()
        fresh: list[tuple[int, Any]] = []
        for array in arrays:
            found = self._source(array, known, memory)
            if found.of == 'new':
                fresh.append((len(self.results), array))
            self.results.append(found)
        stores = [(i, place, True) for i, place in enumerate(self.places) if i not in self.aims]
        with GUARD.inside(), live.origin:
            for low, high, members in _spans(fresh):
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
        if id(array) in known or (memory.private and array.size and not memory.owns(array.data.mem)):
            return _Result('kept', array=array)
        return _Result('new')

    def _first_call(self, graph: Graph, live: Live, leaves: Sequence[Any], stream: Any) -> Any:
        """Make the variant ready, and finish the call that it was recorded with."""
        variant = self.variant
        variant.graph, variant.backups = graph, live.backups
        variant.state = 'pieces' if variant.seams else 'recorded'
        variant.run, variant.aims = self._runner(graph), sorted(self.aims)
        if live.launch is None:
            return variant.run(leaves, True)
        plan = graph._plan
        assert plan is not None
        results = self._allocate()
        self._fill(live.launch, leaves, [block.data.ptr - from_low(block) for block in results])
        done = 1 + max(n for n, step in enumerate(plan.steps) if isinstance(step, Seam))
        with GUARD.inside():
            plan.follow(live.launch, done, stream)
        return self._answer(leaves, results)

    def _take_back(self, live: Live, stream: Any) -> None:
        """The recording failed after parts of it ran: what they wrote outside is put back."""
        assert live.plan is not None
        with stream:
            live.plan.put_back(live.backups, None)

    def _allocate(self) -> list[Any]:
        return [block_like(self.platform.cupy, block) for block in self.blocks]

    def _answer(self, leaves: Sequence[Any], blocks: Sequence[Any]) -> Any:
        cupy = self.platform.cupy
        found = []
        for result in self.results:
            if result.of == 'kept':
                found.append(result.array)
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
        simple = _simple(self.platform.cupy, self.results, self.blocks, self.form)
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
        rebind = graph.rebind

        def aimed(leaves: Sequence[Any]) -> None:
            pairs = [(old, leaves[i]) for i, old in aims.items() if old.data.ptr != leaves[i].data.ptr]
            if pairs:
                rebind(*pairs)
                aims.update((i, leaves[i]) for i in aims)

        def run(leaves: Sequence[Any], wait: bool) -> Any:
            if aims:
                aimed(leaves)
            if plan is None:
                return quick(leaves, [leaf.data.ptr for leaf in leaves])
            blocks = allocate()
            addresses = [leaf.data.ptr - offset for leaf, offset in zip(leaves, ins)]
            addresses += [block.data.ptr - offset for block, offset in zip(blocks, outs)]
            with lock:
                number = plan.launches + 1
                free(number, current().synchronize)
                write(number, *addresses)
                with inside():
                    plan.run(wait)
                variant.launches += 1
            return answer(leaves, blocks)

        if plan is None and not aims:
            variant.quick = quick
        graph.launch = _by_calls_alone
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


def block_like(cupy: Any, block: Any) -> Any:
    """A new array of a block's shape, dtype and strides, from CuPy's current allocator."""
    if block.flags.c_contiguous:
        return cupy.ndarray(block.shape, block.dtype)
    low, high = extent(block)
    pointer = cupy.cuda.alloc(max(high - low, 1)) + (block.data.ptr - low)
    return cupy.ndarray(block.shape, block.dtype, pointer, block.strides)


def _spans(arrays: list[tuple[int, Any]]) -> list[tuple[int, int, list[tuple[int, Any]]]]:
    """Arrays in groups that share memory: (first address, end, members)."""
    groups: list[tuple[int, int, list[tuple[int, Any]]]] = []
    for member in sorted(arrays, key=lambda member: extent(member[1])):
        low, high = extent(member[1])
        if groups and low < groups[-1][1]:
            start, end, members = groups[-1]
            groups[-1] = (start, max(end, high), [*members, member])
        else:
            groups.append((low, max(high, low), [member]))
    return groups


def _same_array(array: Any) -> Any:
    """Another object for the same elements."""
    return type(array)(array.shape, array.dtype, array.data, array.strides)


def _places(leaves: Sequence[Any], memory: Any) -> list[Any]:
    """An array of the graph's for each argument; those that share memory do so there, too."""
    found: dict[int, Any] = {}
    for low, high, members in _spans(list(enumerate(leaves))):
        base = memory.grow(max(high - low, 1))
        for index, leaf in members:
            pointer = base + (int(leaf.data.ptr) - low)
            found[index] = type(leaf)(leaf.shape, leaf.dtype, pointer, leaf.strides)
    return [found[i] for i in range(len(leaves))]


def opaque(value: Any) -> bool:
    """True for objects that a call is told by identity: people's own, whose attributes the environment watches."""
    return not (isinstance(value, tuple) or hasattr(type(value), '__dataclass_fields__'))
