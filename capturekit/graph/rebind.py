"""``graph.rebind()``: nodes that read or write an old array use a new one instead, and nothing is copied.

CUDA C++ Programming Guide, "Individual Node Update".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from capturekit.driver.node_accesses import Touched
from capturekit.driver.node_reader import NodeInfo
from capturekit.graph.addresses import (
    AGAIN,
    AddressSlot,
    AddressWord,
    Index,
    Move,
    is_ours,
    with_far,
    words_of,
)
from capturekit.graph.edit import after_change, name_nodes, node_at
from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState, fits_device, is_array, must_be_whole, whole_or_closed
from capturekit.launch import outside_arrays
from capturekit.launch.array_extent import extent
from capturekit.launch.declared import moved
from capturekit.model.errors import CudaCallError

#: Our own kernels, which find the arrays of calls in a table.
_COUNTING = 'capturekit_'
_CALL = 'Graph.rebind()'


def rebind(state: GraphState, pairs: Sequence[tuple[Any, Any]]) -> int:
    """Let nodes use the second array of each pair in the place of the first; return how many were changed."""
    for one in state.alterations if pairs else ():
        one.before_change(state, 'an array was replaced before the first launch')
    moves = _moves(state, pairs)
    with state.lock:
        must_be_whole(state, _CALL)
        with state.relaxed():
            if state.index is None or state.index.made is not state.made or state.index.aimed:
                state.index = _indexed(state)
            changed = _change(state, state.index, moves)
        with whole_or_closed(state, _CALL):
            _hold(state, [(move, new.data) for (_old, new), move in zip(pairs, moves)])
            after_change(state)
        return changed


def movable(state: GraphState, extents: Sequence[tuple[int, int, bool]]) -> list[list[AddressWord]]:
    """The addresses in nodes that lie in each of these extents; the slots that hold them are the caller's own.

    An extent is (low, high, whether one array lies there throughout the graph). Where others may have been there
    before, it must be known how far nodes reach. What has been found holds until ``state.index`` is another one. Raises
    UpdateError if a node can't be changed.
    """
    with state.lock:
        must_be_whole(state, _CALL)
        with state.relaxed():
            state.index = index = _indexed(state)
            index.aimed = True
            infos = state.device.node_infos(state.made.graph)
            touched = state.device.graph_accesses(state.made.graph)
    found = [index.movable(low, high) for low, high, _alone in extents]
    for words, (low, high, alone) in zip(found, extents):
        known = {(word.slot.at.handle, word.address) for word in words}
        for info in infos:
            touches = touched[info.handle]
            if not info.name.startswith(_COUNTING) and not _is_seen(touches, info, known, low, high, alone):
                rule = f'{info.name or info.kind} may use memory of the array, or beyond it, in a way not seen.'
                raise refused(_CALL, rule, AGAIN)
    return found


def runners(state: GraphState, slots: Sequence[AddressSlot]) -> list[Callable[[], int]]:
    """For slots of :func:`movable` the functions that bring their words to the executable graph alone.

    They return CUDA's code. The definition stays as it was recorded.
    """
    return [slot.runner(state.device, state.made) for slot in slots]


def moved_bytes(state: GraphState) -> int:
    """Bytes that a launch reads and writes at least: those of nodes whose arrays are known."""
    found = 0
    for touched in state.device.graph_accesses(state.made.graph).values():
        arrays = {(one.address, one.shape, one.strides, one.itemsize): one for one in touched.accesses if one.exact}
        for one in arrays.values():
            low, high = one.extent
            found += min(one.itemsize * prod(one.shape), high - low)
    return found


def only_cupys(state: GraphState) -> bool:
    """True where each kernel is one that CuPy made, and none is in a graph inside: no address can be missed."""
    infos = state.device.node_infos(state.made.graph)
    return all(not info.inner and (info.kind != 'kernel' or is_ours(info)) for info in infos)


# -- what is replaced ---------------------------------------------------------------------------------------------


def _moves(state: GraphState, pairs: Sequence[tuple[Any, Any]]) -> list[Move]:
    moves = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(is_array(one) for one in pair):
            raise TypeError('rebind() takes pairs of CuPy arrays: `graph.rebind((old, new), ...)`')
        moves.append(_move(state, *pair))
    for what in ('low', 'to'):
        spans = sorted((getattr(move, what), getattr(move, what) + move.high - move.low) for move in moves)
        if any(a[1] > b[0] for a, b in pairwise(spans)):
            raise ValueError(f'two of the {"old" if what == "low" else "new"} arrays overlap')
    return moves


def _move(state: GraphState, old: Any, new: Any) -> Move:
    for array in (old, new):
        fits_device(state, array)
    for what in ('dtype', 'shape', 'strides'):
        if getattr(old, what) != getattr(new, what):
            raise ValueError(f'the {what} of the arrays differ: {getattr(old, what)} and {getattr(new, what)}')
    low, high = extent(old)
    return Move(low, high, extent(new)[0])


def _indexed(state: GraphState) -> Index:
    """The addresses in the nodes as they are now."""
    if not state.names.handles:
        name_nodes(state, _CALL)
    device, graph = state.device, state.made.graph
    inner = [info.inner for info in device.node_infos(graph) if info.inner]
    if state.plan is not None:
        inner += [body for part in state.plan.parts for body in part.graphs if body != graph]
    words: list[AddressWord] = []
    touched = device.graph_accesses(graph)
    for number, handle in state.names.handles.items():
        words += with_far(words_of(device, graph, node_at(state, _CALL, number)), touched[handle])
    return Index(state.made, words, outside_arrays.words_of(device, inner))


# -- the change ---------------------------------------------------------------------------------------------------


def _change(state: GraphState, index: Index, moves: list[Move]) -> int:
    """Make all changes or none; return how many nodes were changed."""
    to: dict[int, int] = {}
    for number, move in enumerate(moves):
        found = index.movable(move.low, move.high)
        if not found and move.high > move.low:
            raise ValueError(
                f'no node uses the first array of pair {number}: the graph was recorded with '
                'another array, or an earlier call replaced it'
            )
        for word in found:
            to[id(word)] = move(word.address)
    for move in moves:
        for word in index.between(move.to, move.to + move.high - move.low):
            if id(word) not in to:
                at = word.slot.at.words
                raise ValueError(f'{at} uses the memory of a new array already: two of its arguments would be the same')
    chosen = [(number, word) for number, word in enumerate(index.words) if id(word) in to] if to else []
    slots = list(dict.fromkeys(word.slot for _number, word in chosen))
    for _number, word in chosen:
        word.slot.write(word.place, to[id(word)])
    _put(state, slots, [word for _number, word in chosen])
    index.move({number: to[id(word)] for number, word in chosen})
    state.declared = moved(state.declared, moves)
    return len(slots)


def _hold(state: GraphState, moved_to: Sequence[tuple[Move, Any]]) -> None:
    """Hold the new arrays, and drop those that an earlier call had put in. Other graphs that use these hold them."""
    for move, _thing in moved_to:
        state.put_in.pop((move.low, move.high), None)
    for move, thing in moved_to:
        state.put_in[move.to, move.to + move.high - move.low] = thing
    state.memory.hold_what_is_in(state.put_in)


def _put(state: GraphState, slots: list[AddressSlot], words: list[AddressWord]) -> None:
    """Write the slots' words into the graph; if CUDA refuses one, restore all of them."""
    done = 0
    try:
        for slot in slots:
            slot.put(state.device, state.made)
            done += 1
    except BaseException as error:
        with whole_or_closed(state, _CALL):
            for word in words:
                word.slot.write(word.place, word.address)
            for slot in slots[: done + 1]:
                slot.put(state.device, state.made)
        if not isinstance(error, CudaCallError):
            raise
        at = slots[done].at.words
        raise refused(_CALL, f'CUDA refuses this change of {at}.', AGAIN, error) from None


def _is_seen(touches: Touched, info: NodeInfo, known: set[tuple[int, int]], low: int, high: int, alone: bool) -> bool:
    """Whether all that a node touches in [low, high) is at known addresses; and stays there, if not ``alone``."""
    if not touches.complete:
        return False
    met = [one for one in touches.accesses if one.extent[0] < high and one.extent[1] > low]
    return all((info.handle, one.address) in known for one in met) and (not met or alone or touches.stays_in(low, high))
