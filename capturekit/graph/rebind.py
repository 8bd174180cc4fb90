"""``graph.rebind()``: nodes that read or write an old array use a new one instead, and nothing is copied.

CUDA C++ Programming Guide, "Individual Node Update".
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

from capturekit.analysis.node_view import Node
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_accesses import Touched
from capturekit.driver.node_reader import NodeInfo
from capturekit.driver.node_writer import Change
from capturekit.graph.edit import Changeable, _At, _failure, _words
from capturekit.launch.array_extent import extent
from capturekit.model.errors import CudaCallError

#: Arguments of so many bytes may be a tensor map, which holds an address in an unknown place (cuTensorMapEncode).
_MAP = 128
_WORD = 8
#: Words below this value are sizes and numbers, not device addresses: CUDA's unified addresses lie higher.
_LOWEST = 1 << 32
_OURS = ('cupy_', 'capturekit_')
#: Our own kernels, which find the arrays of calls in a table.
_COUNTING = 'capturekit_'
_INSIDE = 'A child graph, or the body of a conditional node, uses the old array.'
_AGAIN = 'Copy into the old array instead, or record again with the new one.'


@dataclass(frozen=True)
class _Move:
    """A replacement of memory: nodes that use [low, high) use the memory from ``to`` on instead."""

    low: int
    high: int
    to: int

    def __call__(self, address: int) -> int:
        return address - self.low + self.to


@dataclass(frozen=True)
class _Word:
    """An address in a node: the slot that holds it, its place there, and how many bytes from it on are used."""

    address: int
    reach: int
    slot: _Slot
    place: Any


class _Slot(ABC):
    """A node that holds addresses."""

    def __init__(self, at: _At) -> None:
        self.at = at

    @abstractmethod
    def write(self, place: Any, address: int) -> None:
        """Change a word; the graph is not changed yet."""

    @abstractmethod
    def put(self, device: Any, made: Any) -> None:
        """Write the words into the definition and into the executable graph."""

    @abstractmethod
    def runner(self, device: Any, made: Any) -> Callable[[], int]:
        """Return a function that writes the words into the executable graph alone, and returns CUDA's code."""


class _Kernel(_Slot):
    """``place`` is (number of the argument, offset in it)."""

    def __init__(self, at: _At, aim: Any) -> None:
        super().__init__(at)
        self.aim = aim

    def write(self, place: Any, address: int) -> None:
        self.aim.write(*place, address)

    def put(self, device: Any, made: Any) -> None:
        self.aim.put(made.graphExec, self.at.source)

    def runner(self, device: Any, made: Any) -> Callable[[], int]:
        run: Callable[[], int] = self.aim.runner(made.graphExec, self.at.source)
        return run


class _Copy(_Slot):
    """``place`` is 'dst' or 'src'. Memsets have no 'src'."""

    def __init__(self, at: _At) -> None:
        super().__init__(at)
        self.ends: dict[str, int] = {
            name: int(at.info.detail[name]) for name in ('dst', 'src') if name in at.info.detail
        }
        self.size = int(at.info.detail.get('bytes', 1))

    def write(self, place: Any, address: int) -> None:
        self.ends[place] = address

    def put(self, device: Any, made: Any) -> None:
        self._define(device, made.graph, self.ends)
        device.node_take(made.graphExec, self.at.source, made.graph, self.at.handle)

    def runner(self, device: Any, made: Any) -> Callable[[], int]:
        recorded = dict(self.ends)

        def run() -> int:
            try:
                self.put(device, made)
                self._define(device, made.graph, recorded)
            except CudaCallError as error:
                return int(error.code)
            return 0

        return run

    def _define(self, device: Any, graph: int, ends: dict[str, int]) -> None:
        if self.at.info.kind == 'memcpy':
            device.set_memcpy(graph, self.at.handle, ends['dst'], ends['src'], self.size)
        else:
            device.set_memset(graph, self.at.handle, ends['dst'], int(self.at.info.detail['value']), self.size)


class Index:
    """All addresses in the nodes of a graph, sorted; made once, and kept up to date by each rebinding."""

    def __init__(self, made: Any, words: Iterable[_Word], inside: Iterable[int]) -> None:
        self.made = made
        self.words = sorted(words, key=_address)
        self.inside = sorted(inside)
        #: Whether somebody else changes the words' addresses, as calls of a graphed function do.
        self.aimed = False
        #: No word reaches further than this.
        self.reach = max((word.reach for word in self.words), default=1)

    def between(self, low: int, high: int) -> list[_Word]:
        """The words that touch [low, high)."""
        first = bisect_left(self.words, low - self.reach + 1, key=_address)
        found = self.words[first : bisect_left(self.words, high, key=_address)]
        return [word for word in found if word.address + word.reach > low]

    def movable(self, low: int, high: int) -> list[_Word]:
        """The words that use memory in [low, high). Raises UpdateError if one of them can't be changed."""
        if self.uses_inside(low, high):
            raise _failure('Graph.rebind()', _INSIDE, _AGAIN)
        found = self.between(low, high)
        for word in found:
            _within(word, low, high)
        self.no_end_at(high)
        return found

    def uses_inside(self, low: int, high: int) -> bool:
        """Whether a child graph or a body holds an address there."""
        found = bisect_left(self.inside, low)
        return found < len(self.inside) and self.inside[found] < high

    def no_end_at(self, high: int) -> None:
        """Refuse an address just after an array in a kernel that CuPy did not make: it may mark the end of its work."""
        first = bisect_left(self.words, high, key=_address)
        for word in self.words[first:]:
            if word.address > high:
                return
            if word.slot.at.info.kind == 'kernel' and not own(word.slot.at):
                at = _words(word.slot.at)
                rule = f'{at} uses the address after the old array, which may be the end of its work or another array.'
                raise _failure('Graph.rebind()', rule, _AGAIN)

    def move(self, moved: dict[int, int]) -> None:
        """Note the new addresses of words, by the words' places in the list."""
        for number, address in moved.items():
            self.words[number] = replace(self.words[number], address=address)
        self.words.sort(key=_address)


def _address(word: _Word) -> int:
    return word.address


def own(at: _At) -> bool:
    """True for the kernels of CuPy and capturekit, whose arguments are known."""
    return at.info.name.startswith(_OURS)


class Rebindable(Changeable):
    """The method :meth:`rebind` of :class:`capturekit.Graph`."""

    __slots__ = ()

    _index: Index | None

    def rebind(self, *pairs: tuple[Any, Any]) -> int:
        """Let every node that reads or writes the first array of a pair use the second; return how many were changed.

        ``graph.rebind((x, new_x), (y, new_y))``. Views are replaced as well: an address in the old array's memory
        becomes the one at the same offset in the new array. Both arrays must have the same shape, dtype and strides,
        and lie on the graph's device. Two arrays may change places. The graph keeps the new arrays, and drops those
        that an earlier call had put in their place. Either all nodes are changed or none; launches that have begun are
        not affected. The first call reads all nodes; later calls take some microseconds for each node that is changed.
        In a kernel of your own, an argument that could be an address inside the array is taken for one; in other
        kernels' structures, so is any word.

        Raises:
            TypeError: the arguments are not pairs of arrays. ValueError: they do not fit, no node uses an old one, or
                the new ones overlap each other or what else the graph uses.
            UpdateError: a node that uses the old array can't be changed: a child graph's, a conditional body's, a
                library's kernel whose arguments hide addresses.
            ClosedError: the graph is closed.
        """
        return self._rebind(pairs)

    def _rebind(self, pairs: Sequence[tuple[Any, Any]], *, unused: bool = False) -> int:
        """:meth:`rebind`; ``unused``: whether an old array may be one that no node uses."""
        moves = self._moves(pairs)
        with self._lock:
            self._must_be_whole('Graph.rebind()')
            with self._relaxed():
                if self._index is None or self._index.made is not self._made or self._index.aimed:
                    self._index = self._indexed()
                changed = self._change(self._index, moves, unused)
            self._memory.aim((move.low, move.high, move.to, new.data) for (_old, new), move in zip(pairs, moves))
            self._order_again()
            return changed

    def _movable(self, extents: Sequence[tuple[int, int, bool]]) -> list[list[_Word]]:
        """The addresses in nodes that lie in each of these extents; the slots that hold them are the caller's own.

        An extent is (low, high, whether one array lies there throughout the graph). Where others may have been there
        before, it must be known how far nodes reach. What has been found holds until ``_index`` is another one. Raises
        UpdateError if a node can't be changed.
        """
        with self._lock:
            self._must_be_whole('Graph.rebind()')
            with self._relaxed():
                self._index = index = self._indexed()
                index.aimed = True
                infos = self._device.node_infos(self._made.graph)
                touched = self._device.graph_accesses(self._made.graph)
        found = [index.movable(low, high) for low, high, _alone in extents]
        for words, (low, high, alone) in zip(found, extents):
            known = {(word.slot.at.handle, word.address) for word in words}
            for info in infos:
                touches = touched[info.handle]
                if not info.name.startswith(_COUNTING) and not _is_seen(touches, info, known, low, high, alone):
                    rule = f'{info.name or info.kind} may use memory of the array, or beyond it, in a way not seen.'
                    raise _failure('Graph.rebind()', rule, _AGAIN)
        return found

    def _runners(self, slots: Sequence[_Slot]) -> list[Callable[[], int]]:
        """For slots of :meth:`_movable` the functions that bring their words to the executable graph alone.

        They return CUDA's code. The definition stays as it was recorded.
        """
        return [slot.runner(self._device, self._made) for slot in slots]

    def _moves(self, pairs: Sequence[tuple[Any, Any]]) -> list[_Move]:
        moves = []
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2 or not all(self._is_array(one) for one in pair):
                raise TypeError('rebind() takes pairs of CuPy arrays: `graph.rebind((old, new), ...)`')
            moves.append(self._move(*pair))
        for what in ('low', 'to'):
            spans = sorted((getattr(move, what), getattr(move, what) + move.high - move.low) for move in moves)
            if any(a[1] > b[0] for a, b in pairwise(spans)):
                raise ValueError(f'two of the {"old" if what == "low" else "new"} arrays overlap')
        return moves

    def _move(self, old: Any, new: Any) -> _Move:
        for array in (old, new):
            self._fits_device(array)
        for what in ('dtype', 'shape', 'strides'):
            if getattr(old, what) != getattr(new, what):
                raise ValueError(f'the {what} of the arrays differ: {getattr(old, what)} and {getattr(new, what)}')
        low, high = extent(old)
        return _Move(low, high, extent(new)[0])

    def _apply(self, at: _At, change: Callable[[], Change], arrays: list[Any]) -> None:
        self._index = None  # the node's addresses change
        super()._apply(at, change, arrays)

    def set_child(self, node: Node | int, other: Changeable) -> None:
        self._index = None  # the child graph has other addresses
        super().set_child(node, other)

    def _moved_bytes(self) -> int:
        """Bytes that a launch reads and writes at least: those of nodes whose arrays are known."""
        found = 0
        for touched in self._device.graph_accesses(self._made.graph).values():
            arrays = {(one.address, one.shape, one.strides, one.itemsize): one for one in touched.accesses if one.exact}
            for one in arrays.values():
                low, high = one.extent
                found += min(one.itemsize * prod(one.shape), high - low)
        return found

    def _only_cupys(self) -> bool:
        """True where each kernel is one that CuPy made, and none is in a graph inside: no address can be missed."""
        infos = self._device.node_infos(self._made.graph)
        return all(not info.inner and (info.kind != 'kernel' or info.name.startswith(_OURS)) for info in infos)

    # -- the addresses in the nodes -----------------------------------------------------------------------------

    def _indexed(self) -> Index:
        if not self._names.handles:
            self._name()
        device, graph = self._device, self._made.graph
        inner = [info.inner for info in device.node_infos(graph) if info.inner]
        if self._plan is not None:
            inner += [body for part in self._plan.parts for body in part.graphs if body != graph]
        inside = [word for body in inner for word in _all_words(device, body)]
        words: list[_Word] = []
        for number in self._names.handles:
            words += self._words_of(self._at('Graph.rebind()', number))
        return Index(self._made, words, inside)

    def _words_of(self, at: _At) -> Iterable[_Word]:
        if at.info.kind in ('memcpy', 'memset'):
            copy = _Copy(at)
            return [_Word(address, copy.size, copy, name) for name, address in copy.ends.items()]
        if at.info.kind != 'kernel':
            return []
        try:
            aim = self._device.kernel_aim(self._made.graph, at.handle)
        except CudaCallError as error:
            raise _failure('Graph.rebind()', f'The arguments of {_words(at)} are hidden.', _AGAIN, error) from None
        slot = _Kernel(at, aim)
        found = []
        for number, argument in enumerate(aim.arguments):
            for offset, address, reach in _addresses(argument, at, own(at)):
                found.append(_Word(address, reach, slot, (number, offset)))
        return found

    # -- the change ---------------------------------------------------------------------------------------------

    def _change(self, index: Index, moves: list[_Move], unused: bool) -> int:
        """Make all changes or none; return how many nodes were changed."""
        to: dict[int, int] = {}
        for number, move in enumerate(moves):
            if index.uses_inside(move.low, move.high):
                raise _failure('Graph.rebind()', _INSIDE, _AGAIN)
            found = index.between(move.low, move.high)
            if not found and not unused and move.high > move.low:
                raise ValueError(
                    f'no node uses the first array of pair {number}: the graph was recorded with '
                    'another array, or an earlier call replaced it'
                )
            for word in found:
                to[id(word)] = move(_within(word, move.low, move.high))
            index.no_end_at(move.high)
        for move in moves:
            for word in index.between(move.to, move.to + move.high - move.low):
                if id(word) not in to:
                    at = _words(word.slot.at)
                    raise ValueError(
                        f'{at} uses the memory of a new array already: two of its arguments would be the same'
                    )
        chosen = [(number, word) for number, word in enumerate(index.words) if id(word) in to] if to else []
        slots = list(dict.fromkeys(word.slot for _number, word in chosen))
        for _number, word in chosen:
            word.slot.write(word.place, to[id(word)])
        self._put(slots, [word for _number, word in chosen])
        index.move({number: to[id(word)] for number, word in chosen})
        return len(slots)

    def _put(self, slots: list[_Slot], words: list[_Word]) -> None:
        """Write the slots' words into the graph; if CUDA refuses one, restore all of them."""
        done = 0
        try:
            for slot in slots:
                slot.put(self._device, self._made)
                done += 1
        except CudaCallError as error:
            for word in words:
                word.slot.write(word.place, word.address)
            for slot in slots[: done + 1]:
                slot.put(self._device, self._made)
            at = _words(slots[done].at)
            raise _failure('Graph.rebind()', f'CUDA refuses this change of {at}.', _AGAIN, error) from None


def _all_words(device: Any, graph: int) -> Iterable[int]:
    for info in device.node_infos(graph):
        yield from info.words
        if info.inner:
            yield from _all_words(device, info.inner)


def _addresses(given: Argument, at: _At, own: bool) -> Iterable[tuple[int, int, int]]:
    """(offset, address, how far it reaches) of each word of an argument that may be an address."""
    data, size = given.data, len(given.data)
    if given.array is False or size < _WORD:
        return []
    if not own and given.array is None and size >= _MAP:
        rule = f"{_words(at)} is a library's, with arguments that may hide addresses."
        raise _failure('Graph.rebind()', rule, _AGAIN)
    first = given.array or own
    words = struct.unpack_from(f'{1 if first else size // _WORD}Q', data)
    reach = _reach(data) if first and size > 2 * _WORD else 1
    return [(number * _WORD, word, reach) for number, word in enumerate(words) if word >= _LOWEST]


def _reach(data: bytes) -> int:
    """Bytes from an array's first element to the end of its last, where its structure has the strides."""
    words = struct.unpack(f'{len(data) // _WORD}q', data[: len(data) // _WORD * _WORD])
    ndim, odd = divmod(len(words) - 2, 2)
    if odd or ndim < 1:
        return 1
    shape, strides = words[2 : 2 + ndim], words[2 + ndim :]
    return 1 + int(sum((n - 1) * s for n, s in zip(shape, strides) if n > 0 and s > 0))


def _is_seen(touches: Touched, info: NodeInfo, known: set[tuple[int, int]], low: int, high: int, alone: bool) -> bool:
    """Whether all that a node touches in [low, high) is at known addresses; and stays there, if not ``alone``."""
    if not touches.complete:
        return False
    met = [one for one in touches.accesses if one.extent[0] < high and one.extent[1] > low]
    return all((info.handle, one.address) in known for one in met) and (not met or alone or touches.stays_in(low, high))


def _within(word: _Word, low: int, high: int) -> int:
    """The word's address, if all that it reaches lies in the memory that is moved."""
    if word.address < low:
        rule = f'{_words(word.slot.at)} uses the old array and memory before it.'
    elif word.address + word.reach > high:
        rule = f'{_words(word.slot.at)} reaches beyond the end of the old array: it uses a larger one.'
    else:
        return word.address
    raise _failure('Graph.rebind()', rule, 'Rebind the whole array, not a view of it.')
