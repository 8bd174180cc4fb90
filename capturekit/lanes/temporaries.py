"""Which temporaries of a graph may lie elsewhere: every address of them is seen, and no launch needs what lay there.

An address is seen in the kernels of CuPy's own, in plain copies and memsets, and in kernels of a library whose call
names the arrays. A temporary stays where it is if a node has an address of it that is not understood, if a node of
unknown memory was recorded while it was alive, or if bytes of it are read before the launch has written them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from capturekit.analysis.needed_order import Memory
from capturekit.driver.node_accesses import _IDLE, Access, Touched
from capturekit.driver.node_reader import NodeInfo
from capturekit.launch.declared import Declared

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
        if not self.is_written(low, high):
            found: list[tuple[int, int]] = []
            for begin, end in sorted([*self.written, (low, high)]):
                if found and begin <= found[-1][1]:
                    found[-1] = (found[-1][0], max(end, found[-1][1]))
                else:
                    found.append((begin, end))
            self.written = found


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
