"""The functions that answer calls of a recorded variant; being called often, they have all that they need bound."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from capturekit.graph.executable import Graph
from capturekit.graph.launching import launch_on
from capturekit.graphed.argument_slots import RING, from_low
from capturekit.graphed.array_blocks import array_maker, has_strides_of_a_new_array
from capturekit.graphed.reasons import Reason
from capturekit.graphed.variant import mark_begun
from capturekit.guard import GUARD
from capturekit.launch.plan import Plan
from capturekit.model import errors
from capturekit.model.source_line import here

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


def runner_of(recorder: Any, graph: Graph) -> Callable[[Sequence[Any], bool], Any]:
    """Return the function that answers a call, given the arrays of its arguments and whether to wait for its checks.

    If a call needs nothing but a launch, the variant also gets a faster one, ``quick``. ``recorder`` is the
    :class:`capturekit.graphed.variant_recorder.VariantRecorder`, which imports this file.
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


def _quick(recorder: Any, graph: Graph, offsets: Any, around: Callable[[Any], Any]) -> Callable[..., Any]:
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


def _one_to_one(recorder: Any, graph: Graph, make: Callable[[], Any]) -> Callable[..., Any]:
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


def _recounted(recorder: Any, launch: int, error: BaseException) -> int:
    """The number of launches that the device has begun, after one that an exception has ended. Where the device can't
    tell, the variant is not launched again: a later call might be given the arrays of another one."""
    found: int | None = recorder.ports.recount()
    if found is None:
        reason = Reason('a launch of it failed, and the device could not be asked whether it has begun')
        recorder.variant.stop_launching(reason)
    if found is None or found >= launch or not recorder.has_table:  # without a table, no launch is counted
        mark_begun(error)
    return launch if found is None else found


def _results(recorder: Any) -> tuple[Callable[[], Any], bool, Callable[[Sequence[Any], Any], Any] | None]:
    """What makes the blocks of the results; whether that is a single one, in no list; and what makes of them the answer
    to a call, or None if they are it."""
    results, blocks, form = recorder.results, recorder.blocks, recorder.form
    plain = all(block.size and has_strides_of_a_new_array(block) for block in blocks)
    if recorder.variant.stream_order or recorder.far or not plain:
        return recorder._allocate, False, recorder._answer
    makers = [array_maker(recorder.platform.cupy, block.shape, block.dtype) for block in blocks]
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


def _in_parts(recorder: Any, plan: Plan, offsets: Any) -> Callable[..., None]:
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


def _aiming(recorder: Any) -> Callable[[Sequence[int], Sequence[int]], bool] | None:
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
