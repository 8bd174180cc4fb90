"""Records one variant, and makes the functions that answer calls by it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.graph.executable import Graph
from capturekit.graph.extending import EXTENSIONS
from capturekit.graph.launching import launch_on
from capturekit.graph.rebind import movable, only_cupys
from capturekit.graphed import aiming, array_blocks, policy, read_numbers, recordable
from capturekit.graphed.aiming import AimedArray, Aimer
from capturekit.graphed.argument_slots import RING, Ports, from_low
from capturekit.graphed.compiling import NoCompiler
from capturekit.graphed.options import Options
from capturekit.graphed.read_numbers import LateReads, NumberSlots, ReadNumbers
from capturekit.graphed.reasons import Reason
from capturekit.graphed.recordable import only_arrays
from capturekit.graphed.recorded_number import unfollowed
from capturekit.graphed.settings import PRODUCTS
from capturekit.graphed.stream_order import StreamOrder
from capturekit.graphed.usual_call import devices_of
from capturekit.graphed.variant import Variant, mark_begun, opaque
from capturekit.guard import GUARD, OpenCapture
from capturekit.launch.array_extent import extent
from capturekit.launch.caller import Caller
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.outside_arrays import OutsideMemory
from capturekit.launch.plan import Feed, Plan, Seam
from capturekit.model import errors
from capturekit.model.errors import CaptureError
from capturekit.model.pytree import held_in, put_together, take_apart
from capturekit.model.source_line import Place, here
from capturekit.model.sparse import packed, unpacked
from capturekit.recorder.capture import Capture
from capturekit.recorder.options import CheckedOptions

#: A launch may write its row in the table once the launch so many before it has begun.
_AHEAD = RING - 1


@dataclass
class Result:
    """Where one array of a result comes from at each call.

    ``of``: 'own' (argument number ``source``, or a view of it), 'new' (block number ``source``) or 'kept' (the same
    array from outside of the function each time). ``offset`` is in bytes from the source's first element or the
    block's start.
    """

    of: str
    source: int = 0
    offset: int = 0
    array: Any = None
    whole: bool = False


class VariantRecorder:
    """Records one variant: the arguments are fetched, the function's work follows, the results are stored.

    Large arguments are not fetched, nor large results stored: the nodes use the caller's memory, and are changed when a
    call brings other arrays. ``copied``: the arguments and results for which an earlier try has shown that copying is
    better, by kind and number; None: all. ``shares``: whether its memory is that of other graphs as well. ``packs``:
    whether its temporaries lie in memory of their own until the order is known, and are packed into that of the group
    then; else they lie there from the beginning.
    """

    #: The numbers with which launches reckon.
    numbers: ReadNumbers | None = None
    #: Whether the function has returned its result.
    returned = False

    def __init__(
        self,
        platform: Platform,
        fn: Callable[..., Any],
        variant: Variant,
        gates: str,
        options: Options,
        copied: frozenset[tuple[str, int]] | None = frozenset(),
        shares: bool = True,
        packs: bool = True,
    ) -> None:
        self.platform, self.fn, self.variant = platform, fn, variant
        self.options, self.gates = options, gates
        self.places: list[Any] = []
        self.results: list[Result] = []
        self.blocks: list[Any] = []
        #: The arrays of the graph that outlive the block: those of the results.
        self.arrays: list[Any] = []
        self.form: Any = None
        self.ports: Ports
        self.drawn: list[Feed] = []
        #: The arguments that nodes use where they lie, and the blocks whose results they write there.
        self.aims: dict[int, Any] = {}
        self.aimed_blocks: dict[int, Any] = {}
        #: The blocks that lie on other devices than the launch, by number.
        self.far: dict[int, Any] = {}
        self.aimer: Aimer | None = None
        #: Whether any argument or result is copied; and whether launches find addresses in the table.
        self.copies = self.has_table = True
        self.caller: Caller
        self.late: LateReads | None = None
        parted = bool(variant.checks or variant.rehearsal.seams or variant.reckons)
        #: Whether the graph gets the edges that its data needs. These would be found again for each other address.
        self.relanes = options.lanes == 'auto' and not parted
        self.copied = None if parted or self.relanes else copied
        #: Parts that run while it is recorded would not take turns with other graphs.
        self.shares = shares and gates == 'device' and not variant.rehearsal.seams
        #: Kernels that became one are not packed.
        self.packs = packs and self.shares and self.relanes and not options.fuse

    def record(self, given: Any, pieces: bool) -> Any:
        """Record with the arguments of a call, and return its result; a call with numbers is then answered by a launch.

        Raises if the function can't be recorded.
        """
        cupy = self.platform.cupy
        stream = cupy.cuda.get_current_stream()
        leaves = given.leaves
        self._must_fit(given)
        capture = self._capture(stream if pieces else None)
        live: OpenCapture | None = None
        recordable.wait_for_others(self.platform, self.variant.rehearsal)
        try:
            with capture:
                live = capture._live
                assert live is not None and live.memory is not None
                self._open(live, leaves)
                args, kwargs = self._arguments(given)
                live.caller = self.caller = Caller(stream)
                self.caller.filled = [*self.variant.rehearsal.filled, *recordable.host_arrays((args, kwargs))]
                made = errors.MADE.count
                watched = nullcontext() if self.numbers is None else self.numbers.watched()
                withheld = GUARD.output.withheld()
                with watched, self._no_compiler(), withheld, errors.unseen():
                    result = given.call(self.fn, args, kwargs, self.places)
                if self.numbers is not None:
                    self.numbers.must_be_given()
                recordable.must_not_refuse(live, made)
                self._close(live, result)
            self._must_be_whole(live, capture.graph)
            again = self._to_record_anew(live, capture.graph, leaves)
            if again is not None:
                return again.record(given, pieces)
            return self._first_call(capture.graph, live, leaves, stream)
        except BaseException:
            if live is not None and live.host_calls.launch is not None:
                recordable.take_back(live, stream)
                self.drawn = self.drawn or list(live.drawn)
            raise
        finally:
            if live is not None:
                live.host_calls.outside = None
            if self.numbers is not None:
                self.numbers.ended()

    def _capture(self, seams_on: Any) -> Capture:
        given = self.options
        options = CheckedOptions(
            strict=False,
            rehearsal=self.variant.rehearsal,
            lanes='auto' if self.relanes else None,
            check_races=False,
            pool=given.pool,
            memory=given.memory if self.shares else None,
            memory_limit=given.memory_limit if self.relanes else None,
            temporaries='packed' if self.packs else 'shared',
        )
        capture = Capture(None, options)
        capture._gates, capture._seams_on = self.gates, seams_on
        return capture

    def _no_compiler(self) -> AbstractContextManager[None]:
        """A block that does not come to CuPy's compiler, if what the first run did there was not followed."""
        environment = self.variant.environment
        known = environment is not None and environment.run.compiler[1]
        return NoCompiler(*environment.run.compiler) if environment is not None and known else nullcontext()

    def _to_record_anew(self, live: OpenCapture, graph: Graph, leaves: Sequence[Any]) -> VariantRecorder | None:
        """Prepare the graph for calls; what records the variant anew where the graph can't be used as it is."""
        shares, packs = self.shares and not live.graph_memory.outlives(self.arrays), self.packs
        if shares == self.shares:
            self._improve(graph, leaves)
            relaned = self.variant.relaned
            if relaned is not None and relaned.packed is None and live.graph_memory.temporaries():
                packs = False  # else they would stay in memory that no other variant has
            if packs == self.packs and self._aimed(graph):
                return None
        graph.close()
        return VariantRecorder(
            self.platform, self.fn, self.variant, self.gates, self.options, self.copied, shares, packs
        )

    def _improve(self, graph: Graph, leaves: Sequence[Any]) -> None:
        """Let kernels become one, and let the data order them, as the options say."""
        written = [extent(one) for one in (*leaves, self.ports.state) if one.size]
        if self.options.fuse:
            besides = written, [one for one in leaves if one.size]
            fast, gathers = self.options.fuse == 'fast', self.options.lanes is None
            self.variant.fused = EXTENSIONS.fuse_recorded(graph._state, fast, gathers, besides)
        if self.options.lanes == 'auto':
            self.variant.relaned = EXTENSIONS.relane_recorded(graph._state, written)

    def _must_fit(self, given: Any) -> None:
        """Raise if the graph could not give the function its arrays where they are, or read numbers from its memory."""
        recordable.must_lie_here(self.platform.cupy, devices_of(self.platform.cupy, given.leaves))
        if given.numbers is not None and self.variant.rehearsal.seams and not self.variant.arguments:
            raise errors.UnsupportedCallError(
                'A number that changes from call to call',
                rule='The function is recorded in pieces.',
            )

    def _arguments(self, given: Any) -> tuple[Any, dict[str, Any]]:
        """The arguments that the function is recorded with."""
        if given.numbers is None:
            return given.arguments(self.places)  # type: ignore[no-any-return]
        if self.variant.arguments:
            return given.arguments(self.places, [one.number for one in self.variant.arguments])  # type: ignore[no-any-return]
        known = self.variant.reckonable
        if self.numbers is not None or not known.parameters.issuperset(given.numbers.names(self.fn)):
            code = getattr(self.fn, '__code__', None)
            head = None if code is None else Place(code.co_filename, code.co_firstlineno, code.co_name)
            raise unfollowed('more is done with it than arithmetic', next(iter(known.operators.refused), head))
        slots = NumberSlots(self.platform.cupy, self.places[-1], known.operators, given.numbers.values)
        self.numbers = slots
        return given.arguments(self.places, slots.numbers)  # type: ignore[no-any-return]

    def _must_be_whole(self, live: OpenCapture, graph: Graph) -> None:
        live.host_calls.backups = recordable.needed_backups(live)
        try:
            recordable.must_reach_known_arrays(live, self.variant.reached)
            if self.far and graph._state.plan is not None:
                raise errors.UnsupportedCallError(
                    f'A result on device {next(iter(self.far.values())).data.device_id}',
                    rule='It is copied behind the launch, and this function is launched in parts, or with checks.',
                    remedy='Bring it to the device of the call before it is returned: `cp.asarray(result)`.',
                )
        except CaptureError:
            self.drawn = list(live.drawn)  # a closed graph has no parts
            graph.close()
            raise

    def _open(self, live: OpenCapture, leaves: Sequence[Any]) -> None:
        memory = live.memory
        assert memory is not None
        with GUARD.inside:
            self.places = self._places(leaves, memory)
            columns = 2 * len(leaves) + 64
            self.ports = Ports(self.platform, memory, lambda values: GUARD.uploads.upload(live, values), columns)
            live.parts.state = self.ports.state
            self.ports.fetch([None if i in self.aims else place for i, place in enumerate(self.places)])
        live.host_calls.opening = lambda launch: self._fill(launch, leaves, ())
        assert live.parts.answers is not None
        if self.variant.kept:
            self.late = LateReads(self.platform.cupy, self.variant.rehearsal.reads, self.variant.kept)
            live.parts.answers.late = self.late.take
        environment, known = self.variant.environment, self.variant.reached
        if self.variant.rehearsal.seams:  # before such a part runs, the memory outside that it may write is copied
            live.host_calls.outside = OutsideMemory(self.platform, live.graph_memory, known)
        if environment is not None and self.variant.reckons:
            self.numbers = read_numbers.numbers_of(self.platform.cupy, live, self.variant)
        if environment is not None and (self.variant.checks or self.variant.rehearsal.seams or self.variant.reckoned):
            for array in known:
                GUARD.draws.back_up(live, array)

    def _places(self, leaves: Sequence[Any], memory: Any) -> list[Any]:
        spans = array_blocks.spans(list(enumerate(leaves)))
        alone = {members[0][0] for _low, _high, members in spans if len(members) == 1}
        self.aims = {i: leaf for i, leaf in enumerate(leaves) if i in alone and self._may_aim('argument', i, leaf)}
        copied = [leaf for i, leaf in enumerate(leaves) if i not in self.aims]
        made = iter(array_blocks.elsewhere(copied, lambda _array, low, high: memory.slot(max(high - low, 1))))
        return [array_blocks.same_array(leaf) if i in self.aims else next(made) for i, leaf in enumerate(leaves)]

    def _may_aim(self, kind: str, number: int, array: Any) -> bool:
        return self.copied is not None and array.nbytes >= policy.AIMED_BYTES and (kind, number) not in self.copied

    def _aimed(self, graph: Graph) -> bool:
        """Prepare to aim nodes at arrays. False if some have to be copied: ``copied`` tells then which."""
        targets = [AimedArray('argument', i, self.places[i], aiming.ARGUMENT) for i in self.aims]
        targets += [AimedArray('result', n, block, aiming.RESULT) for n, block in self.aimed_blocks.items()]
        if not targets:
            return True
        assert self.copied is not None
        state = graph._state
        if state.plan is not None or not only_cupys(state):
            self.copied = None
            return False
        dear: list[AimedArray] = []
        for target in targets:
            try:
                movable(state, [(*extent(target.array), target.kind == 'argument')])
            except errors.UpdateError:
                dear.append(target)
        if not dear:
            try:
                self.aimer = Aimer(state, targets)
            except errors.UpdateError:
                self.copied = None
                return False
            dear = self.aimer.too_dear(self.platform)
        self.copied |= {(target.kind, target.number) for target in dear}
        for array in () if dear else self.aims.values():
            state.memory.forget(*extent(array))
        return not dear

    def leave_table(self) -> None:
        """Where nothing is copied, let the kernel that fetches arguments do nothing: no launch needs the table."""
        graph = self.variant.graph
        assert graph is not None
        for node in () if self.copies else graph.nodes:
            if node.name == 'capturekit_fetch':
                graph.disable(node)
                self.has_table = False

    def _fill(self, launch: int, leaves: Sequence[Any], blocks: Sequence[int]) -> None:
        addresses = [*(leaf.data.ptr - from_low(leaf) for leaf in leaves), *blocks]
        pack, table, row = self.ports.row(len(addresses))
        pack(table, 8 + launch % RING * row, *addresses)

    def _close(self, live: OpenCapture, result: Any) -> None:
        """Join what is open, and store the results."""
        memory, self.returned = live.memory, True
        cupy = self.platform.cupy
        assert memory is not None
        is_array = only_arrays(cupy) if self.numbers is None else read_numbers.or_numbers(only_arrays(cupy))
        objects = held_in(take_apart(packed(result), is_array, opaque, name='the result')[1])
        held = recordable.found_again(self.variant.held, objects)
        known_object = lambda value: opaque(value) and any(value is one for one in held)  # noqa: E731
        arrays, self.form = take_apart(packed(result), is_array, known_object, name='the result')
        if self.numbers is not None:
            result = unpacked(put_together(self.form, list(map(read_numbers.as_recorded, arrays))))
        now = recordable.values_of(result, cupy, self.variant.known)
        if self.late is None:
            recordable.must_be_same(self.variant.values, now)
        else:
            self.form = self.late.placed(self.form, self.variant.values, now, len(arrays) + 1)
            arrays += [self.late.room] if self.late.used else []
        recordable.must_leave_nothing(live)
        for value in held_in(self.form):
            if not any(value is one for one in held) and not isinstance(value, type):
                raise TypeError(f'the result holds {type(value).__name__} {value!r}, another one at each call')
        with GUARD.lock:
            GUARD.verdicts.check(live)
            GUARD.lanes.find_work(live)
            GUARD.lanes.join_all(live)
        known = set(map(id, self.variant.reached))
        fresh: list[tuple[int, Any]] = []
        for array in arrays:
            number = None if self.numbers is None else read_numbers.source_of(array)
            found = self._source(array, known, memory) if number is None else Result('number', array=number)
            if found.of == 'new':
                fresh.append((len(self.results), array))
            self.results.append(found)
        self._store(live, fresh)
        of_device = [array for array, found in zip(arrays, self.results) if found.of != 'number']
        self.arrays = [*self.blocks, *of_device]
        memory.keep(self.arrays)

    def _store(self, live: OpenCapture, fresh: list[tuple[int, Any]]) -> None:
        """Record that arguments are stored where they were changed, and results into new arrays."""
        cupy = self.platform.cupy
        stores = [(i, place, True) for i, place in enumerate(self.places) if i not in self.aims]
        with GUARD.inside, current_for_now(cupy.cuda, live.origin):
            for low, high, members in array_blocks.spans(fresh):
                number = len(self.blocks)
                first = members[0][1]
                whole = len(members) == 1
                is_far = int(first.data.device_id) != live.origin_device
                base = cupy.ndarray((high - low,), 'u1', first.data + (low - first.data.ptr)) if not whole else first
                self.blocks.append(base)
                if is_far:
                    self.far[number] = base
                elif whole and self._may_aim('result', number, first):
                    self.aimed_blocks[number] = first
                else:
                    stores.append((len(self.places) + number, base, False))
                for index, array in members:
                    result_of = self.results[index]
                    result_of.source, result_of.whole, result_of.array = number, whole, array
                    result_of.offset = int(array.data.ptr) - low
            self.copies = any(place.size for _column, place, _differing in stores)
            if len(self.places) + len(self.blocks) > self.ports.columns:
                raise errors.UnsupportedCallError(
                    f'{len(self.blocks)} result arrays', rule='A graphed function returns up to 64 arrays.',
                    remedy='Return fewer, larger arrays.',
                )  # fmt: skip
            if live.host_calls.launch is not None:  # a part ran before the results had got their addresses
                self.ports.refill()
            self.ports.store(stores)

    def _source(self, array: Any, known: set[int], memory: Any) -> Result:
        for number, place in enumerate(self.places):
            if array is place:
                return Result('own', number, whole=True)
        low, high = extent(array)
        for number, place in enumerate(self.places):
            start, end = extent(place)
            if array.size and start <= low and high <= end:
                return Result('own', number, int(array.data.ptr - place.data.ptr), array)
        if id(array) in known:
            return Result('kept', array=array, whole=True)
        if memory.private and array.size and not memory.owns(array.data.mem):
            known_memory = any(start <= low and high <= end for start, end in self.variant.outside)
            if self.variant.environment is not None and not known_memory:
                raise errors.UnsupportedCallError(
                    "A result in memory that is not the graph's",
                    rule='It is neither an argument nor one of the arrays that the function is known to reach.',
                )
            return Result('kept', array=array)
        return Result('new')

    def _first_call(self, graph: Graph, live: OpenCapture, leaves: Sequence[Any], stream: Any) -> Any:
        """Finish the variant, and the call with which it was recorded."""
        variant = self.variant
        variant.graph, variant.backups = graph, live.host_calls.backups
        variant.slots = self.numbers if isinstance(self.numbers, NumberSlots) else None
        variant.untried = policy.COMPARED if self.numbers else 0
        products = graph._state.plan is not None or bool(live.recorder.called) or not only_cupys(graph._state)
        if variant.environment is not None and not products:
            variant.environment.leave_out(PRODUCTS)
        if StreamOrder.needed(self.caller):
            variant.stream_order = StreamOrder(self.platform, self.caller)
        variant.state = 'pieces' if variant.seams else 'recorded'
        variant.run, variant.aims = runner_of(self, graph), sorted(self.aims)
        if variant.stream_order is not None:
            variant.stream_order.wait()
        if variant.untried and live.host_calls.launch is not None:
            recordable.take_back(live, stream)
        if variant.untried or live.host_calls.launch is None:  # the first launches are compared with eager runs
            return None if variant.untried else variant.run(leaves, True)
        plan = graph._state.plan
        assert plan is not None
        results = self._allocate()
        if variant.stream_order is not None:
            variant.stream_order.open(stream)
        self._fill(live.host_calls.launch, leaves, [block.data.ptr - from_low(block) for block in results])
        done = 1 + max(n for n, step in enumerate(plan.steps) if isinstance(step, Seam))
        with GUARD.inside:
            try:
                plan.follow(live.host_calls.launch, done, stream)
            finally:
                plan.ended(stream)
        if variant.stream_order is not None:
            variant.stream_order.close(stream)
            variant.stream_order.wait()
        return self._answer(leaves, results)

    def _allocate(self) -> list[Any]:
        return [self._like(block) for block in self.blocks]

    def _like(self, block: Any) -> Any:
        order = self.variant.stream_order
        stream = None if order is None else order.stream_for_result(block)
        with GUARD.on(int(block.data.device_id), self.platform) if self.far else nullcontext():
            if stream is None:
                return array_blocks.block_like(self.platform.cupy, block)
            with GUARD.inside, current_for_now(self.platform.cupy.cuda, stream):
                return array_blocks.block_like(self.platform.cupy, block)

    def copy_results(self, blocks: Sequence[Any], aimed: bool = False) -> None:
        """Copy the results of other devices, after a launch; and, unless it was ``aimed``, those that nodes are to
        write where the caller's arrays are."""
        stream = self.platform.cupy.cuda.get_current_stream()
        for number, mine in (self.far if aimed else {**self.far, **self.aimed_blocks}).items():
            low, high = extent(mine)
            (start, _end), to = extent(blocks[number]), blocks[number].data
            (to + (start - to.ptr)).copy_from_device_async(mine.data + (low - mine.data.ptr), high - low, stream)

    def _answer(self, leaves: Sequence[Any], blocks: Sequence[Any]) -> Any:
        cupy = self.platform.cupy
        found = []
        for result in self.results:
            if result.of == 'number':
                assert self.numbers is not None
                found.append(self.numbers.value(result.array))
            elif result.of == 'kept':
                found.append(result.array if result.whole else array_blocks.same_array(result.array))
            elif result.whole:
                found.append(leaves[result.source] if result.of == 'own' else blocks[result.source])
            else:
                source = leaves[result.source] if result.of == 'own' else blocks[result.source]
                like = result.array
                found.append(cupy.ndarray(like.shape, like.dtype, source.data + result.offset, like.strides))
        if self.late is not None and self.late.used:
            with GUARD.inside:
                found += self.late.values(found[-1].get())
        return unpacked(put_together(self.form, found))


def runner_of(recorder: VariantRecorder, graph: Graph) -> Callable[[Sequence[Any], bool], Any]:
    """Return the function that answers a call, given the arrays of its arguments and whether to wait for its checks.

    If a call needs nothing but a launch, the variant also gets a faster one, ``quick``. They are called often, so they
    have all that they need bound.
    """
    variant, plan = recorder.variant, graph._state.plan
    offsets = [from_low(place) for place in recorder.places], [from_low(block) for block in recorder.blocks]
    order = variant.stream_order
    around = _at_once if order is None or order.only_compares else order.around
    quick = _quick(recorder, graph, offsets, around)
    given = None if plan is None else _in_parts(recorder, plan, offsets)
    allocate, one, answer = _results(recorder)

    def run(leaves: Sequence[Any], wait: bool) -> Any:
        if given is None:
            return quick(leaves, [leaf.data.ptr for leaf in leaves])
        made = allocate()
        blocks = [made] if one else made
        around(lambda: given(leaves, blocks, wait))
        return made if answer is None else answer(leaves, blocks)

    graph.launch = _by_calls_alone
    if plan is None and order is None and variant.carried is None and all(p.size for p in recorder.places):
        variant.quick = quick
    return run


def _at_once(go: Callable[[], Any]) -> Any:
    """Launch in no order with other streams than the current one."""
    return go()


def _quick(recorder: VariantRecorder, graph: Graph, offsets: Any, around: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the function for calls that need one launch and nothing else, but for the order ``around`` it."""
    ports, variant, (ins, outs) = recorder.ports, recorder.variant, offsets
    pack, table, row = ports.row(len(recorder.places) + len(recorder.blocks))
    begun, free = ports.begun, ports.free
    launch = graph.launch if around is _at_once else functools.partial(around, graph.launch)
    shifted, aim = any(ins) or any(outs), _aiming(recorder)
    current = recorder.platform.cupy.cuda.get_current_stream
    allocate, one, answer = _results(recorder)
    plain = aim is None and not shifted and not recorder.far and launch is graph.launch
    if one and plain and len(recorder.places) == 1:
        return _one_to_one(recorder, graph, allocate)
    count, most, far, state = 0, 0, bool(recorder.far), graph._state

    def quick(leaves: Sequence[Any], pointers: Sequence[int]) -> Any:
        nonlocal count, most
        blocks = allocate()
        targets: Sequence[int] = (blocks.data.ptr,) if one else [block.data.ptr for block in blocks]
        aimed = aim is None or aim(pointers, targets)
        if shifted:
            pointers = [pointer - offset for pointer, offset in zip(pointers, ins)]
            targets = [target - offset for target, offset in zip(targets, outs)]
        try:
            count += 1
            if aim is None or recorder.has_table:
                if count > most:
                    if begun[0] < count - _AHEAD:
                        free(count, current().synchronize)
                    most = begun[0] + _AHEAD
                pack(table, 8 + count % RING * row, *pointers, *targets)
            if aimed and not far:
                launch()
            else:
                made = [blocks] if one else blocks
                around(lambda: launch_on(state, None, lambda: recorder.copy_results(made, aimed)))
        except BaseException as error:
            count = _recounted(recorder, count, error)
            raise
        variant.launches += 1
        return blocks if answer is None else answer(leaves, blocks)

    return quick


def _one_to_one(recorder: VariantRecorder, graph: Graph, make: Callable[[], Any]) -> Callable[..., Any]:
    """The same for calls with one array, which is copied, and one result, which ``make`` makes: without loops."""
    ports, variant = recorder.ports, recorder.variant
    pack, table, row = ports.row(2)
    begun, free, launch = ports.begun, ports.free, graph.launch
    current = recorder.platform.cupy.cuda.get_current_stream
    count = most = 0

    def quick(_leaves: Sequence[Any], pointers: Sequence[int]) -> Any:
        nonlocal count, most
        block = make()
        try:
            count += 1
            if count > most:
                if begun[0] < count - _AHEAD:
                    free(count, current().synchronize)
                most = begun[0] + _AHEAD
            pack(table, 8 + count % RING * row, pointers[0], block.data.ptr)
            launch()
        except BaseException as error:
            count = _recounted(recorder, count, error)
            raise
        variant.launches += 1
        return block

    return quick


def _recounted(recorder: VariantRecorder, launch: int, error: BaseException) -> int:
    """The number of launches that the device has begun, after one that an exception has ended. Where the device can't
    tell, the variant is not launched again: a later call might be given the arrays of another one."""
    found: int | None = recorder.ports.recount()
    if found is None:
        reason = Reason('a launch of it failed, and the device could not be asked whether it has begun')
        recorder.variant.stop_launching(reason)
    if found is None or found >= launch or not recorder.has_table:  # without a table, no launch is counted
        mark_begun(error)
    return launch if found is None else found


def _results(recorder: VariantRecorder) -> tuple[Callable[[], Any], bool, Callable[[Sequence[Any], Any], Any] | None]:
    """What makes the blocks of the results; whether that is a single one, in no list; and what makes of them the answer
    to a call, or None if they are it."""
    results, blocks, form = recorder.results, recorder.blocks, recorder.form
    plain = all(block.size and array_blocks.has_strides_of_a_new_array(block) for block in blocks)
    if recorder.variant.stream_order or recorder.far or not plain:
        return recorder._allocate, False, recorder._answer
    makers = [array_blocks.array_maker(recorder.platform.cupy, block.shape, block.dtype) for block in blocks]
    allocate: Callable[[], Any] = lambda: [make() for make in makers]  # noqa: E731
    if [result.source for result in results if result.of == 'new' and result.whole] != [*range(len(results))]:
        return allocate, False, recorder._answer
    if form == 0:
        return makers[0], True, None
    if form == (list, *range(len(results))):
        return allocate, False, None
    if form == (tuple, *range(len(results))):
        return lambda: tuple([make() for make in makers]), False, None
    return allocate, False, recorder._answer


def _in_parts(recorder: VariantRecorder, plan: Plan, offsets: Any) -> Callable[..., None]:
    """Return the function that launches all parts with the addresses of arguments and results."""
    ports, variant, (ins, outs) = recorder.ports, recorder.variant, offsets
    pack, table, row = ports.row(len(recorder.places) + len(recorder.blocks))
    begun, free, current = ports.begun, ports.free, recorder.platform.cupy.cuda.get_current_stream

    def given(leaves: Sequence[Any], blocks: Sequence[Any], wait: bool) -> None:
        addresses = [leaf.data.ptr - offset for leaf, offset in zip(leaves, ins)]
        addresses += [block.data.ptr - offset for block, offset in zip(blocks, outs)]
        number = plan.launches + 1
        try:
            if begun[0] < number - _AHEAD:
                free(number, current().synchronize)
            pack(table, 8 + number % RING * row, *addresses)
            with GUARD.inside():
                plan.run(wait)
        except BaseException as error:
            if plan.launches == number and not plan.between:
                mark_begun(error)
            raise
        variant.launches += 1

    return given


def _aiming(recorder: VariantRecorder) -> Callable[[Sequence[int], Sequence[int]], bool] | None:
    """Return the function that aims nodes at a call's arguments and results; None if all of them are copied.

    It returns False where the results of this one launch have to be copied.
    """
    aimer = recorder.aimer
    if aimer is None:
        return None
    arguments = [target.number for target in aimer.targets if target.kind == 'argument']
    results = [target.number for target in aimer.targets if target.kind == 'result']

    in_use = False

    def aim(pointers: Sequence[int], targets: Sequence[int]) -> bool:
        nonlocal in_use
        aimed: bool = aimer([*[pointers[n] for n in arguments], *[targets[n] for n in results]])
        if aimed and not in_use:  # fused kernels have been compared by now, for which the graph must not be changed
            in_use = True
            recorder.leave_table()
        return aimed

    return aim


def _by_calls_alone(_stream: Any = None) -> None:
    raise errors.UnsupportedCallError(
        'Graph.launch() of a graphed function',
        location=here(),
        rule='Its nodes take the arguments and the places of the results from a table that each call fills.',
        remedy='Call the function; or record a block with ck.capture() to have a graph of your own.',
    )
