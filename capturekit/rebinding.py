"""Graphs aimed at other arrays: nodes that read or write the old memory use the new, and nothing is copied.

CUDA C++ Programming Guide, "Individual Node Update".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from capturekit.arguments import Argument
from capturekit.changing import Changeable, _At, _failure, _words
from capturekit.errors import CudaCallError
from capturekit.memory import extent
from capturekit.setting import Change

#: Arguments of so many bytes may be a tensor map, which holds an address where nobody can read it (cuTensorMapEncode).
_MAP = 128
_WORD = 8
_AGAIN = 'Copy into the old array instead, or record again with the new one.'


@dataclass(frozen=True)
class _Move:
    """Memory that is used instead of other: [low, high) goes to ``to``."""

    low: int
    high: int
    to: int

    def __call__(self, address: int) -> int:
        return address - self.low + self.to


@dataclass(frozen=True)
class _Use:
    """A node that is to be changed, and how."""

    at: _At
    change: Callable[[], Change]


class Rebindable(Changeable):
    """``graph.rebind``."""

    __slots__ = ()

    def rebind(self, *pairs: tuple[Any, Any]) -> int:
        """Let every node that reads or writes the first array of a pair use the second; return how many were changed.

        ``graph.rebind((x, new_x), (y, new_y))``. Views are meant as well: what lies in the old array's memory lies in
        the new one's, at the same distance. Both arrays have the same shape, dtype and strides, on the graph's device.
        Two arrays may change places. The graph keeps the new ones, and drops those that an earlier call had put in
        their place. All or nothing; launches under way are not touched. Some microseconds for each node of the graph,
        and for each that is changed. An argument of a kernel of your own that is an address inside the array is taken
        for one; inside other kernels' structures, any word that is.

        Raises:
            TypeError: these are no pairs of arrays. ValueError: they do not fit, or the new ones overlap each other or
                what else the graph uses.
            UpdateError: a node that uses the old array can't be changed: a child graph's, a conditional body's, a
                library's kernel whose arguments hide addresses.
            ClosedError: the graph is closed.
        """
        moves = self._moves(pairs)
        with self._lock:
            self._must_be_whole('Graph.rebind()')
            with self._relaxed():
                uses = self._uses(moves)
                self._change_all(uses)
            self._memory.aim((move.low, move.high, move.to, new.data) for (_old, new), move in zip(pairs, moves))
            return len(uses)

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

    # -- what is to be changed ----------------------------------------------------------------------------------

    def _uses(self, moves: list[_Move]) -> list[_Use]:
        if not self._names.handles:
            self._name()
        self._nothing_inside(moves)
        found = []
        for number in self._names.handles:
            use = self._use(self._at('Graph.rebind()', number), moves)
            if use is not None:
                found.append(use)
        return found

    def _use(self, at: _At, moves: list[_Move]) -> _Use | None:
        info, graph, device = at.info, int(self._made.graph), self._device
        if info.kind == 'kernel':
            return self._kernel(at, moves)
        if info.kind not in ('memcpy', 'memset'):
            return None
        ends = {name: int(info.detail[name]) for name in ('dst', 'src') if name in info.detail}
        size = int(info.detail.get('bytes', 1))
        aimed = {name: _aimed(address, size, moves, at) for name, address in ends.items()}
        if aimed == ends:
            return None
        if info.kind == 'memcpy':
            return _Use(at, lambda: device.set_memcpy(graph, at.handle, aimed['dst'], aimed['src'], size))
        value = int(info.detail['value'])
        return _Use(at, lambda: device.set_memset(graph, at.handle, aimed['dst'], value, size))

    def _kernel(self, at: _At, moves: list[_Move]) -> _Use | None:
        graph, device = int(self._made.graph), self._device
        try:
            given: list[Argument] = device.node_arguments(graph, at.handle)
        except CudaCallError as error:
            raise _failure('Graph.rebind()', f'The arguments of {_words(at)} are hidden.', _AGAIN, error) from None
        own = at.info.name.startswith('cupy_')
        data = [_argument(one, moves, at, own) for one in given]
        if data == [one.data for one in given]:
            return None
        detail = at.info.detail
        form = (detail.get('grid', (1, 1, 1)), detail.get('block', (1, 1, 1)), detail.get('shared', 0))
        return _Use(at, lambda: device.set_kernel(graph, at.handle, *form, data))

    def _nothing_inside(self, moves: list[_Move]) -> None:
        """What lies in child graphs and bodies stays as it is: it must not use the old memory."""
        device = self._device
        inner = [info.inner for info in device.node_infos(int(self._made.graph)) if info.inner]
        if self._plan is not None:
            inner += [graph for part in self._plan.parts for graph in part.graphs if graph != int(self._made.graph)]
        for graph in inner:
            if any(move.low <= word < move.high for word in _all_words(device, graph) for move in moves):
                rule = 'A child graph, or the body of a conditional node, uses the old array.'
                raise _failure('Graph.rebind()', rule, _AGAIN)

    # -- the change ---------------------------------------------------------------------------------------------

    def _change_all(self, uses: list[_Use]) -> None:
        """All of them, or none."""
        done: list[tuple[_At, Change]] = []
        device, made = self._device, self._made
        try:
            for use in uses:
                change = use.change()
                done.append((use.at, change))
                device.node_take(int(made.graphExec), use.at.source, int(made.graph), use.at.handle)
        except CudaCallError as error:
            for at, change in reversed(done):
                change.undo()
                device.node_take(int(made.graphExec), at.source, int(made.graph), at.handle)
            at = uses[len(done) - 1].at if done else uses[0].at
            raise _failure('Graph.rebind()', f'CUDA refuses this of {_words(at)}.', _AGAIN, error) from None


def _all_words(device: Any, graph: int) -> Iterable[int]:
    for info in device.node_infos(graph):
        yield from info.words
        if info.inner:
            yield from _all_words(device, info.inner)


def _argument(given: Argument, moves: list[_Move], at: _At, own: bool) -> bytes:
    """The bytes of an argument with the new addresses in it."""
    data, size = given.data, len(given.data)
    if given.array is False or size < _WORD:
        return data
    if not own and given.array is None and size >= _MAP:
        raise _failure(
            'Graph.rebind()', f'{_words(at)} is a library\'s, with arguments that may hide addresses.', _AGAIN
        )  # fmt: skip
    first = given.array or own
    count = 1 if first else size // _WORD
    words = list(struct.unpack_from(f'{count}Q', data))
    reach = _reach(data) if first and size > 2 * _WORD else 1
    aimed = [_aimed(word, reach, moves, at) for word in words]
    return data if aimed == words else struct.pack(f'{count}Q', *aimed) + data[count * _WORD :]


def _reach(data: bytes) -> int:
    """Bytes from the first element of an array to the end of its last, where its structure tells: strides in it."""
    words = struct.unpack(f'{len(data) // _WORD}q', data[: len(data) // _WORD * _WORD])
    ndim, odd = divmod(len(words) - 2, 2)
    if odd or ndim < 1:
        return 1
    shape, strides = words[2 : 2 + ndim], words[2 + ndim :]
    return 1 + int(sum((n - 1) * s for n, s in zip(shape, strides) if n > 0 and s > 0))


def _aimed(address: int, reach: int, moves: list[_Move], at: _At) -> int:
    """Where something of ``reach`` bytes at an address lies now."""
    for move in moves:
        if move.low <= address < move.high:
            if address + reach > move.high:
                rule = f'{_words(at)} reaches beyond the end of the old array: it uses a larger one.'
                raise _failure('Graph.rebind()', rule, 'Rebind the whole array, not a view of it.')
            return move(address)
        if address < move.low < address + reach:
            rule = f'{_words(at)} uses memory before the old array, and the array.'
            raise _failure('Graph.rebind()', rule, 'Rebind the whole array, not a view of it.')
    for move in moves:
        if move.to <= address < move.to + move.high - move.low:
            raise ValueError(f'{_words(at)} uses the memory of a new array already: two of its arguments would be one')
    return address
