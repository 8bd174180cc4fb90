"""Nodes that are not needed: those whose results nobody reads, and those that compute again what is there already.

A node is left out only if all that it does is known: it computes each element of arrays, or reduces, copies or fills.
Of two equal nodes the later one is left out if what both read is the same for both, and if its readers can read the
result of the earlier one, which then has to be as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from capturekit.analysis.free_memory import FreeMemory
from capturekit.analysis.needed_order import Memory
from capturekit.driver.node_accesses import Access, covers, overlap
from capturekit.fusion.elementwise import ElementOperand, Elementwise
from capturekit.fusion.lines import Liveness
from capturekit.fusion.reduction import Reduction
from capturekit.fusion.runs import apart
from capturekit.model.dag import Order

Does = Elementwise | Reduction | str | None
#: So many earlier nodes that do the same are looked at for each node.
_MOST = 8
UNREAD = 'nobody reads its result'


def operand_access(one: ElementOperand) -> Access:
    """The memory of an operand."""
    return Access(one.address, one.shape, one.strides, np.dtype(one.dtype).itemsize, one.writes)


@dataclass
class Thinned:
    """A definition without the nodes that are not needed.

    Attributes:
        does, memory: what each node does and touches; a node that is left out does and touches nothing.
        unread: the nodes whose results nobody reads.
        again: for each node that computes something again the earlier node that has computed it.
        moved: nodes that read the result of another node instead.
    """

    does: list[Does]
    memory: list[Memory]
    unread: set[int] = field(default_factory=set)
    again: dict[int, int] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)

    @property
    def gone(self) -> set[int]:
        """The nodes that are left out."""
        return self.unread | set(self.again)


def thinned(
    order: Order,
    does: Sequence[Does],
    memory: Sequence[Memory],
    free: FreeMemory,
    blind: frozenset[int] = frozenset(),
    plain: Collection[int] = (),
) -> Thinned:
    """Find the nodes of a definition that are not needed.

    Args:
        does: what each node computes or reduces, or why that is not known; None for nodes that are no kernels.
        plain: nodes that only copy or fill memory of the device. Others: those of ``fusion_of``.
    """
    found = Thinned(list(does), list(memory))
    _Equal(order, found, free).look()
    able = {n for n, one in enumerate(does) if isinstance(one, (Elementwise, Reduction)) or n in plain}
    able = {n for n in able if min(len(order.before_each[n]), len(order.after_each[n])) <= 1} - found.gone
    seen = [() if n in found.gone or (n in blind and one is None) else one for n, one in enumerate(found.memory)]
    live, gone = Liveness(order, seen, [], free), set(found.gone)
    for n in reversed(order.sequence):
        written = [one for one in found.memory[n] or () if one.writes is not False]
        if n in able and written and not live.needed(n, written, gone):
            gone.add(n)
            found.unread.add(n)
    if len(gone) == len(does):  # a graph has a node at least
        return Thinned(list(does), list(memory))
    for n in gone:
        found.does[n], found.memory[n] = None, ()
    return found


class _Equal:
    """The search for equal nodes."""

    def __init__(self, order: Order, found: Thinned, free: FreeMemory) -> None:
        self._order, self._found, self._free = order, found, free
        self._nodes: list[int] = []
        accesses: list[Access | None] = []
        for n, memory in enumerate(found.memory):
            for access in (None,) if memory is None else memory:
                self._nodes.append(n)
                accesses.append(access)
        self._accesses = accesses
        extents = [(-(1 << 62), 1 << 62) if one is None else one.extent for one in accesses]
        self._low = np.array([low for low, _high in extents], np.int64)
        self._high = np.array([high for _low, high in extents], np.int64)
        self._place = {node: place for place, node in enumerate(order.sequence)}
        self._places = np.array([self._place[node] for node in self._nodes], np.int64)
        #: Whether each node comes after the one before it.
        self._row = all(a in order.before_each[b] for a, b in pairwise(order.sequence))

    def look(self) -> None:
        """Find them all."""
        known: dict[Any, list[int]] = {}
        for node in self._order.sequence:
            key = _key(self._found.does[node])
            if key is None:
                continue
            earlier = known.setdefault(key, [])
            if not any(self._stands_for(one, node) for one in reversed(earlier[-_MOST:])):
                earlier.append(node)

    def _touching(self, access: Access, since: int = -1, until: int = -1) -> Iterator[tuple[int, Access | None]]:
        """The accesses of nodes that are left that may share a byte with one.

        Nodes that are before ``since`` or behind ``until`` can be left out, if these are given.
        """
        low, high = access.extent
        inside = (self._low < high) & (self._high > low)
        if self._row and since >= 0:
            inside &= (self._places >= self._place[since]) & (self._places <= self._place[until])
        for at in np.flatnonzero(inside):
            node, other = self._nodes[int(at)], self._accesses[int(at)]
            if node not in self._found.again and (other is None or overlap(other, access) is not False):
                yield node, other

    def _same(self, access: Access, since: int, until: int, without: Collection[int]) -> bool:
        """Whether no node may change memory between two nodes, or while they run, but for nodes ``without``."""
        before = self._order.before
        for node, other in self._touching(access, since, until):
            if node in without or before(node, since) or before(until, node):
                continue
            if other is None or other.writes is not False:
                return False
        return True

    def _stands_for(self, one: int, node: int) -> bool:
        """Let the result of a node stand for that of a later one that does the same, if it can."""
        if not self._order.before(one, node):
            return False
        inputs, first = _ends(self._found.does[one])
        _inputs, second = _ends(self._found.does[node])
        inside = min(len(self._order.before_each[node]), len(self._order.after_each[node])) <= 1
        if not inside or not all(self._same(operand_access(end), one, node, (node,)) for end in inputs):
            return False
        here = first.address == second.address
        access = operand_access(second)
        if overlap(operand_access(first), access) is not False and not here:
            return False
        if here:
            if not self._same(operand_access(first), one, node, (one, node)):
                return False
        else:
            readers = self._readers(node, access)
            if readers is None or not self._take(one, first, second, readers, node):
                return False
        self._found.again[node] = one
        return True

    def _readers(self, node: int, access: Access) -> set[int] | None:
        """The nodes that read what a node writes; None if others may, or may see it."""
        before = self._order.before
        if not self._free.meets(access):
            return None
        touching = [(n, other) for n, other in self._touching(access) if n != node and not before(n, node)]
        if any(other is None or not before(node, n) for n, other in touching):
            return None
        ends = {n for n, other in touching if other is not None and other.writes is not False}
        reads = {n for n, other in touching if other is not None and other.writes is False}
        sure = {n for n, other in touching if other is not None and other.writes and covers(other, access)}
        if ends - sure or ends & reads:
            return None
        readers = {n for n in reads if not any(before(end, n) for end in ends)}
        return readers if all(before(n, end) for n in readers for end in ends) else None

    def _take(
        self, one: int, first: ElementOperand, second: ElementOperand, readers: Collection[int], node: int
    ) -> bool:
        """Let readers read from one result instead of another."""
        old, new = operand_access(second), operand_access(first)
        made: dict[int, Elementwise | Reduction] = {}
        for reader in readers:
            does = self._found.does[reader]
            if not isinstance(does, (Elementwise, Reduction)):
                return False
            operands = [_elsewhere(end, old, first.address - second.address) for end in does.operands]
            if None in operands or not self._same(new, one, reader, (one, node)):
                return False
            made[reader] = _with(does, [end for end in operands if end is not None])
        for reader, does in made.items():
            self._found.does[reader] = does
            self._found.memory[reader] = [operand_access(end) for end in does.operands if end.number is None]
            self._found.moved.add(reader)
            self._put(reader)
        return True

    def _put(self, node: int) -> None:
        """Note what a node touches now."""
        for at, other in enumerate(self._nodes):
            if other == node:
                self._low[at] = self._high[at] = 0
        accesses = list(self._found.memory[node] or ())
        self._nodes += [node] * len(accesses)
        self._places = np.append(self._places, np.full(len(accesses), self._place[node], np.int64))
        self._accesses += accesses
        self._low = np.append(self._low, np.array([one.extent[0] for one in accesses], np.int64))
        self._high = np.append(self._high, np.array([one.extent[1] for one in accesses], np.int64))


def _ends(does: Does) -> tuple[list[ElementOperand], ElementOperand]:
    """The arrays that a node reads, and the one that it writes."""
    assert isinstance(does, (Elementwise, Reduction))
    arrays = [one for one in does.operands if one.number is None]
    return [one for one in arrays if not one.writes], next(one for one in arrays if one.writes)


def _key(does: Does) -> Any:
    """What is equal for nodes that compute the same of the same; None for nodes that are not compared."""
    if not isinstance(does, (Elementwise, Reduction)):
        return None
    written = [one for one in does.operands if one.writes]
    if len(written) != 1 or written[0].reads or not written[0].sure or any(one.pieces for one in does.operands):
        return None
    output = written[0]
    if not apart(output.shape, output.strides, np.dtype(output.dtype).itemsize):
        return None
    inputs = tuple((*_array(one), one.address, repr(one.number)) for one in does.operands if not one.writes)
    if isinstance(does, Reduction):
        return ('reduces', does.code, inputs, _array(output), does.blocks, does.stride)
    order = tuple(one.writes for one in does.operands)
    return ('computes', does.operation, order, inputs, _array(output))


def _array(one: ElementOperand) -> tuple[Any, ...]:
    return one.dtype, one.shape, one.strides


def _elsewhere(end: ElementOperand, old: Access, distance: int) -> ElementOperand | None:
    """An operand that lies in another place if it lies in ``old``; None if only a part of it does."""
    if end.number is not None:
        return end
    access = operand_access(end)
    if overlap(access, old) is False:
        return end
    if end.writes or end.pieces or not covers(old, access):
        return None
    return replace(end, address=end.address + distance)


def _with(does: Elementwise | Reduction, operands: list[ElementOperand]) -> Elementwise | Reduction:
    if isinstance(does, Elementwise):
        return replace(does, operands=tuple(operands))
    return replace(does, inputs=tuple(operands[:-1]), output=operands[-1])
