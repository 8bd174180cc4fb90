"""Temporaries of a graph laid into as little memory as its edges allow: who may run beside whom shares no byte.

Two temporaries may share bytes if all nodes that use the one come before all that use the other, by the edges that the
graph is to have and by those that it was recorded with: then both orders give the same in the packed memory. Each takes
the place that fits it best. (D. Knuth, "The Art of Computer Programming", 2.5.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capturekit.analysis.node_memory import Memory, joined
from capturekit.driver.node_accesses import _IDLE, Access, Touched
from capturekit.driver.node_reader import NodeInfo
from capturekit.lanes.report import PackedBytes
from capturekit.launch.declared import Declared, moved
from capturekit.launch.graph_memory import GraphMemory, PoolBlock
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError

#: Places are multiples of this, as the addresses are that CUDA gives.
UNIT = 512


@dataclass(frozen=True)
class TemporarySpan:
    """A temporary of ``size`` bytes, and the nodes that use it."""

    size: int
    uses: tuple[int, ...]


@dataclass(frozen=True)
class PackedLayout:
    """The first byte of each temporary in one piece of memory, and how many bytes this has."""

    offsets: tuple[int, ...]
    size: int


def packed(orders: Sequence[Order], spans: Sequence[TemporarySpan]) -> PackedLayout:
    """Lay temporaries into one piece of memory.

    Args:
        orders: each of them has to allow that two temporaries share bytes. They are laid in the sequence of the first.
        spans: the temporaries. One that no node uses takes no bytes.
    """
    place = {node: n for n, node in enumerate(orders[0].sequence)}
    above = [_before_each(order, place) for order in orders]
    offsets, uses = [0] * len(spans), [sum(1 << place[node] for node in span.uses) for span in spans]
    #: The pieces that temporaries have, by first byte and end, with the nodes that use these, as bits.
    pieces: dict[tuple[int, int], int] = {}
    for number in sorted(range(len(spans)), key=lambda n: (uses[n] & -uses[n], n)):
        if uses[number]:
            earlier = -1
            for node in spans[number].uses:
                for before in above:
                    earlier &= before[node]
            size = -(-max(spans[number].size, 1) // UNIT) * UNIT
            low = offsets[number] = _free(pieces, size, earlier)
            # who comes after this one comes after those whose bytes it has
            pieces = {(a, b): nodes for (a, b), nodes in pieces.items() if a < low or b > low + size}
            pieces[low, low + size] = uses[number]
    return PackedLayout(tuple(offsets), max((high for _low, high in pieces), default=0))


def _before_each(order: Order, place: Mapping[int, int]) -> list[int]:
    """The nodes that come before each, as bits by their place."""
    found = [0] * len(order.before_each)
    for node in order.sequence:
        for a in order.before_each[node]:
            found[node] |= found[a] | 1 << place[a]
    return found


def _free(pieces: Mapping[tuple[int, int], int], size: int, earlier: int) -> int:
    """Where so many bytes are free for who comes after the nodes ``earlier``: in the smallest gap, else at the end."""
    low, gaps, end = 0, [], max((high for _low, high in pieces), default=0)
    busy = sorted(piece for piece, uses in pieces.items() if uses & ~earlier)
    for begin, high in [*busy, (end, end)]:
        if begin - low >= size:
            gaps.append((begin - low, low))
        low = max(low, high)
    return min(gaps)[1] if gaps else max((high for _begin, high in busy), default=0)


# ---------------------------------------------------------------------------------------------------------------------
# Which temporaries of a graph may lie elsewhere: every address of them is seen, and no launch needs what lay there.
#
# An address is seen in the kernels of CuPy's own, in plain copies and memsets, and in kernels of a library whose call
# names the arrays. A temporary stays where it is if a node has an address of it that is not understood, if a node of
# unknown memory was recorded while it was alive, or if bytes of it are read before the launch has written them.


#: Kernels that know no workspace of a library.
_OURS = ('cupy_', 'capturekit_')
#: When a block was in use: after the node of the first number, up to that of the second. None: throughout.
Lives = Sequence[tuple[int, int]] | None


@dataclass(frozen=True)
class SeenNode:
    """One node: what it is, the addresses that it has, what it touches, and what a library's call says of it.

    ``by_word``: whether it is the call that tells what it touches.
    """

    info: NodeInfo
    touched: Touched
    memory: Memory
    said: Declared | None = None
    by_word: bool = False


@dataclass(frozen=True)
class NodeWord:
    """An address in a node: of a kernel the number of its argument and the place in it, else 'dst' or 'src'."""

    info: NodeInfo
    place: Any
    address: int


@dataclass
class Temporary:
    """A block from ``low`` to ``high - 1``, the nodes that use it by their place in the recorded order, and where.

    ``of_library``: it is a workspace, which only kernels of its library know.
    """

    low: int
    high: int
    lives: Lives = None
    of_library: bool = False
    uses: set[int] = field(default_factory=set)
    words: list[NodeWord] = field(default_factory=list)
    #: Why it stays where it is; ''.
    stays: str = ''
    written: list[tuple[int, int]] = field(default_factory=list)

    def met(self, strangers: Sequence[tuple[int, NodeInfo]]) -> str:
        """Why it stays because of nodes of unknown memory, in their order, one of which may know it; or ''."""
        for born, died in self.lives if self.lives is not None else [(-1, len(strangers) and strangers[-1][0])]:
            for number, info in strangers[bisect_right(strangers, born, key=lambda one: one[0]) :]:
                if number > died:
                    break
                if not self.of_library or not info.name.startswith(_OURS):
                    return _unknown(info)
        return ''

    def has(self, low: int, high: int) -> bool:
        """Whether it holds all of [low, high)."""
        return self.low <= low and high <= self.high

    def is_written(self, low: int, high: int) -> bool:
        """Whether earlier nodes of the launch write all of [low, high)."""
        return any(begin <= low and high <= end for begin, end in self.written)

    def write(self, low: int, high: int) -> None:
        """Note that a node writes all of [low, high)."""
        self.written = joined([*self.written, (low, high)], True)


def examined(nodes: Sequence[SeenNode], blocks: Iterable[Temporary]) -> list[Temporary]:
    """Note for each block which nodes use it, by which addresses, and why it has to stay.

    ``nodes``: all nodes of a graph, in the recorded order. ``blocks`` are disjoint.
    """
    search = _Search(blocks)
    for number, node in enumerate(nodes):
        search.look(number, node)
    search.end()
    return search.blocks


def _unknown(info: NodeInfo) -> str:
    return f'it is not known what {info.name or info.kind} touches'


class _Search:
    def __init__(self, blocks: Iterable[Temporary]) -> None:
        self.blocks = sorted(blocks, key=lambda one: one.low)
        self._lows = [one.low for one in self.blocks]
        #: Of each call of a library: the addresses that it names, and those that its nodes have.
        self._calls: dict[tuple[str, tuple[Access, ...]], set[int]] = {}
        #: The nodes of unknown memory.
        self._strangers: list[tuple[int, NodeInfo]] = []

    def look(self, number: int, node: SeenNode) -> None:
        if node.info.kind in _IDLE:
            return
        look: Callable[[int, SeenNode], None] = self._unknown
        if node.memory is not None and node.by_word:
            look = self._of_library if node.said is not None and node.said.call and node.touched.complete else look
        elif node.memory is not None:
            look = {'kernel': self._kernel, 'memcpy': self._copy, 'memset': self._copy}.get(node.info.kind, self._stay)
        look(number, node)

    def _in(self, low: int, high: int) -> list[Temporary]:
        """The blocks that share a byte with [low, high)."""
        first = max(bisect_right(self._lows, low) - 1, 0)
        found = self.blocks[first : bisect_left(self._lows, high)]
        return [one for one in found if one.high > low]

    # -- kinds of nodes -----------------------------------------------------------------------------------------

    def _unknown(self, number: int, node: SeenNode) -> None:
        self._strangers.append((number, node.info))
        for address in [*node.info.words, *(one.address for one in node.touched.accesses)]:
            for one in self._in(address, address + 1):
                one.stays = _unknown(node.info)

    def _stay(self, number: int, node: SeenNode) -> None:
        for access in node.memory or ():
            for one in self._in(*access.extent):
                one.stays = f'a node of kind {node.info.kind} uses it'

    def _kernel(self, number: int, node: SeenNode) -> None:
        for access in node.touched.accesses:
            for one in self._in(*access.extent):
                one.uses.add(number)
                one.words.append(NodeWord(node.info, (access.argument, access.offset), access.address))
                if not one.has(access.address, access.address + 1) or access.argument < 0:
                    one.stays = f'{node.info.name} has no address in it'
        self._touch(node.memory or ())

    def _copy(self, number: int, node: SeenNode) -> None:
        size = int(node.info.detail.get('bytes', 0))
        for access in node.touched.accesses:
            side = 'dst' if access.writes else 'src'
            flat = access.extent == (access.address, access.address + size)
            for one in self._in(*access.extent):
                one.uses.add(number)
                one.words.append(NodeWord(node.info, side, access.address))
                if not flat or node.info.detail.get(side) != access.address:
                    one.stays = 'a copy of several rows uses it'
        self._touch(node.memory or ())

    def _of_library(self, number: int, node: SeenNode) -> None:
        said = node.said
        assert said is not None
        named = {one.address for one in said.accesses}
        there = self._calls.setdefault((said.call, said.accesses), set())
        has = [access.address for access in node.touched.accesses]
        of_arrays = {one.low for access in said.accesses for one in self._in(*access.extent)}
        for access in node.touched.accesses:
            there.add(access.address)
            inside = self._in(access.address, access.address + 1)
            for one in inside:
                one.uses.add(number)
                one.words.append(NodeWord(node.info, (access.argument, access.offset), access.address))
                if one.low in of_arrays and access.address not in named:
                    one.stays = f'{said.call} has an address in it that is not one of its arrays'
            before = [] if access.address in named else self._in(access.address - 1, access.address)
            known = [one for one in before if one.low in of_arrays or any(one.has(a, a + 1) for a in has)]
            if any(one.high == access.address for one in known):  # whose it is can not be told
                for one in (*before, *inside):
                    one.stays = f'{said.call} has the address of its end, or of the next one'
        for access in said.accesses:
            for one in self._in(*access.extent):
                one.uses.add(number)
        self._touch(said.accesses)

    def _touch(self, accesses: Iterable[Access]) -> None:
        """Note what is written, and blocks that are read before: those that are left need nothing from before."""
        for access in sorted(accesses, key=lambda one: one.writes is True):
            low, high = access.extent
            for one in self._in(low, high):
                if not one.has(low, high):
                    one.stays = 'a node reaches beyond it'
                elif not access.writes and not one.is_written(low, high):
                    one.stays = 'it is read before the launch has written it'
                elif access.writes and access.exact and access.dense:
                    one.write(low, high)

    def end(self) -> None:
        """What is known only when all nodes have been seen.

        A library's nodes may know an array otherwise, if none of the call has its address as such.
        """
        for one in self.blocks:
            one.stays = one.stays or one.met(self._strangers)
        for (call, accesses), there in self._calls.items():
            for access in accesses:
                for one in self._in(*access.extent):
                    if access.address not in there:
                        one.stays = f'{call} does not show its address'


# -- packed memory for a graph's temporaries: the nodes' addresses are changed in the definition, there and back ------


_WORD = 8
#: Puts addresses into a node of the definition, each at its place.
_Put = Callable[[Sequence[tuple[Any, int]]], None]


class Packing:
    """Temporaries of one definition, with a place for each in less memory: :meth:`aim` brings the nodes there."""

    def __init__(
        self,
        memory: GraphMemory,
        aims: Sequence[Aim],
        moved: Sequence[tuple[Temporary, PoolBlock]],
        layout: PackedLayout,
        own: Mapping[int, tuple[Access, ...]],
    ) -> None:
        """``own``: the graph's own memory that nodes have by an argument, by their handles, where it was recorded."""
        self._memory, self._aims = memory, aims
        self._blocks = [block for _one, block in moved]
        self.old = [(one.low, one.high) for one, _block in moved]
        self._arena = memory.take(layout.size) if layout.size else None
        self._place = 0 if self._arena is None else int(self._arena.ptr)
        self._size, self._own = layout.size, own
        pairs = zip(self.old, layout.offsets)
        self._moves = sorted((low, high, self._place + offset) for (low, high), offset in pairs)
        self._declared: dict[int, Declared] | None = None
        self.report = PackedBytes(sum(high - low for low, high in self.old), layout.size)

    def aim(self, declared: dict[int, Declared]) -> dict[int, Declared]:
        """Let the nodes use the packed memory. Return what is said of them now, where it was ``declared``.

        Where CUDA refuses one of them, :meth:`aim_back` brings them back."""
        to = {low: there - low for low, _high, there in self._moves}
        for one in self._aims:
            one.put(to)
        self._declared = declared
        return moved(declared, self._moves, self._own)

    def aim_back(self) -> dict[int, Declared]:
        """Let the nodes use the memory again that they were recorded with. Return what is said of them there."""
        for one in self._aims:
            one.put({})
        return self._declared or {}

    def drop(self) -> None:
        """Give the packed memory back: no node uses it."""
        if self._arena is not None:
            self._arena = None
            self._memory.give_back(self._place, self._size)

    def settle(self) -> None:
        """Give the memory back that the nodes were recorded with, if nobody else has it, and keep the packed one."""
        if self._arena is not None:
            self._memory.keep(self._arena)
        if self._memory.holders == 1:
            self._memory.give_up(self._blocks)
        self._blocks, self.report.settled = [], True


class Aim:
    """The addresses in one node that are changed. A block stays that the node has in another way than was seen."""

    def __init__(self, device: Any, g: int, info: NodeInfo, words: Sequence[tuple[NodeWord, Temporary]]) -> None:
        self._words = words
        self._put = self._kernel(device, g, info) if info.kind == 'kernel' else _copy(device, g, info)

    def settled(self) -> bool:
        """Leave the addresses out that stay. Return whether any other is left."""
        self._words = [(word, block) for word, block in self._words if not block.stays]
        return bool(self._words)

    def put(self, to: Mapping[int, int]) -> None:
        """Move each address by as many bytes as its block."""
        self._put([(word.place, word.address + to.get(block.low, 0)) for word, block in self._words])

    def _kernel(self, device: Any, g: int, info: NodeInfo) -> _Put:
        try:
            aim = device.kernel_aim(g, info.handle)
            arguments = [one.data for one in aim.arguments]
        except CudaCallError:
            aim, arguments = None, []
        for word, block in self._words:
            argument, offset = word.place
            data = arguments[argument][offset : offset + _WORD] if argument < len(arguments) else b''
            if len(data) != _WORD or int.from_bytes(data, 'little') != word.address:
                block.stays = f'{info.name} has its address in another way'

        def put(places: Sequence[tuple[Any, int]]) -> None:
            for (argument, offset), address in places:
                aim.write(argument, offset, address)
            aim.define()

        return put


def _copy(device: Any, g: int, info: NodeInfo) -> _Put:
    detail = info.detail

    def put(places: Sequence[tuple[Any, int]]) -> None:
        ends = {**detail, **dict(places)}
        if info.kind == 'memcpy':
            device.set_memcpy(g, info.handle, ends['dst'], ends['src'], detail['bytes'])
        else:
            device.set_memset(g, info.handle, ends['dst'], detail['value'], detail['bytes'])

    return put
