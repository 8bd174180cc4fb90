"""The addresses in the nodes of a graph: where they stand, how far they reach, and how they are replaced."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_accesses import LOWEST, Touched
from capturekit.driver.node_reader import NodeInfo
from capturekit.graph.refused import refused
from capturekit.model.errors import CudaCallError

#: Arguments of so many bytes may be a tensor map, which holds an address in an unknown place (cuTensorMapEncode).
_MAP = 128
_WORD = 8
_OURS = ('cupy_', 'capturekit_')
_CALL = 'Graph.rebind()'
AGAIN = 'Copy into the old array instead, or record again with the new one.'


@dataclass(frozen=True)
class NodeAt:
    """A node that is changed: its number, and its handles in the definition and for the executable graph."""

    call: str
    number: int
    handle: int
    source: int
    info: NodeInfo

    @property
    def words(self) -> str:
        """The node in the text of an error."""
        name = f' {self.info.name}' if self.info.name else ''
        return f'node {self.number} ({self.info.kind}{name})'

    @property
    def ours(self) -> bool:
        """True for the kernels of CuPy and capturekit, whose arguments are known."""
        return is_ours(self.info)


def is_ours(info: NodeInfo) -> bool:
    """True for the kernels of CuPy and capturekit."""
    return info.name.startswith(_OURS)


class Move(NamedTuple):
    """A replacement of memory: nodes that use [low, high) use the memory from ``to`` on instead."""

    low: int
    high: int
    to: int

    def __call__(self, address: int) -> int:
        return address - self.low + self.to


@dataclass(frozen=True)
class AddressWord:
    """An address in a node: the slot that holds it, its place there, and how many bytes from it on are used.

    ``far``: the same by what is known of the node's work, which tells more than its arguments; 0 where that is unknown.
    """

    address: int
    reach: int
    slot: AddressSlot
    place: Any
    far: int = 0


class KernelSlot:
    """A kernel that holds addresses: ``place`` is (number of the argument, offset in it).

    ``write`` changes a word, and the graph is not changed yet. ``put`` writes the words into the definition and into
    the executable graph. ``runner`` returns a function that writes them into the executable graph alone, and returns
    CUDA's code.
    """

    def __init__(self, at: NodeAt, aim: Any) -> None:
        self.at = at
        self.aim = aim

    def write(self, place: Any, address: int) -> None:
        self.aim.write(*place, address)

    def put(self, device: Any, made: Any) -> None:
        self.aim.put(made.graphExec, self.at.source)

    def runner(self, device: Any, made: Any) -> Callable[[], int]:
        run: Callable[[], int] = self.aim.runner(made.graphExec, self.at.source)
        return run


class CopySlot:
    """The same for a copy or a memset: ``place`` is 'dst' or 'src'. Memsets have no 'src'."""

    def __init__(self, at: NodeAt) -> None:
        self.at = at
        detail = at.info.detail
        self.ends: dict[str, int] = {name: int(detail[name]) for name in ('dst', 'src') if name in detail}
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


AddressSlot = KernelSlot | CopySlot


class Index:
    """All addresses in the nodes of a graph, sorted; made once, and kept up to date by each rebinding."""

    def __init__(self, made: Any, words: Iterable[AddressWord], inside: Iterable[int]) -> None:
        self.made = made
        self.words = sorted(words, key=_address)
        self.inside = sorted(inside)
        #: Whether somebody else changes the words' addresses, as calls of a graphed function do.
        self.aimed = False
        #: No word reaches further than this.
        self.reach = max((word.reach for word in self.words), default=1)

    def between(self, low: int, high: int) -> list[AddressWord]:
        """The words that touch [low, high)."""
        first = bisect_left(self.words, low - self.reach + 1, key=_address)
        found = self.words[first : bisect_left(self.words, high, key=_address)]
        return [word for word in found if word.address + word.reach > low]

    def movable(self, low: int, high: int) -> list[AddressWord]:
        """The words that use memory in [low, high). Raises UpdateError if one of them can't be changed."""
        inside = bisect_left(self.inside, low)
        if inside < len(self.inside) and self.inside[inside] < high:
            raise refused(_CALL, 'A child graph, or the body of a conditional node, uses the old array.', AGAIN)
        found = self.between(low, high)
        for word in found:
            within(word, low, high)
        self.no_end_at(high)
        return found

    def no_end_at(self, high: int) -> None:
        """Refuse an address just after an array in a kernel that CuPy did not make: it may mark the end of its work."""
        first = bisect_left(self.words, high, key=_address)
        for word in self.words[first:]:
            if word.address > high:
                return
            if word.slot.at.info.kind == 'kernel' and not word.slot.at.ours:
                at = word.slot.at.words
                rule = f'{at} uses the address after the old array, which may be the end of its work or another array.'
                raise refused(_CALL, rule, AGAIN)

    def move(self, moved: dict[int, int]) -> None:
        """Note the new addresses of words, by the words' places in the list."""
        for number, address in moved.items():
            self.words[number] = replace(self.words[number], address=address)
        self.words.sort(key=_address)


def _address(word: AddressWord) -> int:
    return word.address


def with_far(words: Iterable[AddressWord], touched: Touched) -> list[AddressWord]:
    """Words of a node that tell how far it goes from each address."""
    far: dict[int, int] = {}
    for one in touched.accesses:
        if one.itemsize:
            far[one.address] = max(far.get(one.address, 0), one.extent[1] - one.address)
    return [replace(word, far=far.get(word.address, 0)) for word in words]


def words_of(device: Any, graph: int, at: NodeAt) -> Iterable[AddressWord]:
    """The addresses in a node. Raises UpdateError where they are hidden."""
    if at.info.kind in ('memcpy', 'memset'):
        copy = CopySlot(at)
        return [AddressWord(address, copy.size, copy, name) for name, address in copy.ends.items()]
    if at.info.kind != 'kernel':
        return []
    try:
        aim = device.kernel_aim(graph, at.handle)
    except CudaCallError as error:
        raise refused(_CALL, f'The arguments of {at.words} are hidden.', AGAIN, error) from None
    slot = KernelSlot(at, aim)
    found = []
    for number, argument in enumerate(aim.arguments):
        for offset, address, reach in _addresses(argument, at):
            found.append(AddressWord(address, reach, slot, (number, offset)))
    return found


def _addresses(given: Argument, at: NodeAt) -> Iterable[tuple[int, int, int]]:
    """(offset, address, how far it reaches) of each word of an argument that may be an address."""
    data, size, own = given.data, len(given.data), at.ours
    if given.array is False or size < _WORD:
        return []
    if not own and given.array is None and size >= _MAP:
        rule = f"{at.words} is a library's, with arguments that may hide addresses."
        raise refused(_CALL, rule, AGAIN)
    first = given.array or own
    words = struct.unpack_from(f'{1 if first else size // _WORD}Q', data)
    reach = given.reach or (_reach(data) if first and size > 2 * _WORD else 1)
    return [(number * _WORD, word, reach) for number, word in enumerate(words) if word >= LOWEST]


def _reach(data: bytes) -> int:
    """Bytes from an array's first element to the end of its last, where its structure has the strides."""
    words = struct.unpack(f'{len(data) // _WORD}q', data[: len(data) // _WORD * _WORD])
    ndim, odd = divmod(len(words) - 2, 2)
    if odd or ndim < 1:
        return 1
    shape, strides = words[2 : 2 + ndim], words[2 + ndim :]
    return 1 + int(sum((n - 1) * s for n, s in zip(shape, strides) if n > 0 and s > 0))


def within(word: AddressWord, low: int, high: int) -> int:
    """The word's address, if all that it reaches lies in the memory that is moved."""
    if word.address < low:
        rule = f'{word.slot.at.words} uses the old array and memory before it.'
    elif word.address + max(word.reach, word.far) > high:
        rule = f'{word.slot.at.words} reaches beyond the end of the old array: it uses a larger one.'
    else:
        return word.address
    remedy = 'Rebind the whole array, not a view; write a temporary array into one made before the block (`out=`).'
    raise refused(_CALL, rule, remedy)
