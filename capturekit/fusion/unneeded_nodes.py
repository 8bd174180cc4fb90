"""Nodes that are not needed: those whose results nobody reads, and those that compute again what is there already.

A node is left out only if all that it does is known: it computes each element of arrays, or reduces, copies or fills.
Of two equal nodes the later one is left out if what both read is the same for both, and if its readers can read the
result of the earlier one, which then has to be as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from capturekit.analysis.node_memory import FreeMemory, Memory
from capturekit.driver.node_accesses import Access, covers, overlap
from capturekit.fusion.elementwise import ElementOperand, Elementwise
from capturekit.fusion.lines import Definition, Does, Liveness, Touches
from capturekit.fusion.reduction import Reduction
from capturekit.fusion.runs import apart
from capturekit.model.dag import Order

#: So many earlier nodes that do the same are looked at for each node.
_MOST = 8
UNREAD = 'nobody reads its result'


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


def thinned(known: Definition) -> Thinned:
    """Find the nodes of a definition that are not needed."""
    order, found = known.order, Thinned(list(known.does), list(known.memory))
    _Equal(order, found, known.free).look()
    able = {n for n, one in enumerate(known.does) if isinstance(one, (Elementwise, Reduction))}
    able |= {*known.copies, *known.fills}
    able = {n for n in able if min(len(order.before_each[n]), len(order.after_each[n])) <= 1} - found.gone
    live, gone = Liveness(order, known.seen(found.memory, found.gone), [], known.free), set(found.gone)
    for n in reversed(order.sequence):
        written = [one for one in found.memory[n] or () if one.writes is not False]
        if n in able and written and not live.needed(n, written, gone):
            gone.add(n)
            found.unread.add(n)
    if len(gone) == len(known.does):  # a graph has a node at least
        return Thinned(list(known.does), list(known.memory))
    for n in gone:
        found.does[n], found.memory[n] = None, ()
    return found


class _Equal:
    """The search for equal nodes."""

    def __init__(self, order: Order, found: Thinned, free: FreeMemory) -> None:
        self._order, self._found, self._free = order, found, free
        self._touches = Touches(order, dict(enumerate(found.memory)))

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

    def _touching(self, access: Access, *within: int) -> Iterator[tuple[int, Access | None]]:
        """The accesses of nodes that are left that may share a byte with one, from a place to another one."""
        for node, other in self._touches.meeting(access, *within):
            if node not in self._found.again and (other is None or overlap(other, access) is not False):
                yield node, other

    def _same(self, access: Access, since: int, until: int, without: Collection[int]) -> bool:
        """Whether no node may change memory between two nodes, or while they run, but for nodes ``without``."""
        before, place = self._order.before, self._touches.place
        for node, other in self._touching(access, place[since], place[until]):
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
        if not inside or not all(self._same(end.access, one, node, (node,)) for end in inputs):
            return False
        if first.address == second.address:
            able = self._same(first.access, one, node, (one, node))
        else:
            readers = self._readers(node, second.access) if overlap(first.access, second.access) is False else None
            able = readers is not None and self._take(one, first, second, readers, node)
        if able:
            self._found.again[node] = one
        return able

    def _readers(self, node: int, access: Access) -> set[int] | None:
        """The nodes that read what a node writes; None if others may, or may see it."""
        before = self._order.before
        if not self._free.meets(access):
            return None
        touching = [(n, other) for n, other in self._touching(access) if n != node and not before(n, node)]
        if any(other is None or not before(node, n) for n, other in touching):
            return None
        reads = {n for n, other in touching if other is not None and other.writes is False}
        ends = {n for n, other in touching if other is None or other.writes is not False}
        sure = {n for n, other in touching if other is not None and other.writes and covers(other, access)}
        if ends - sure or ends & reads:
            return None
        readers = {n for n in reads if not any(before(end, n) for end in ends)}
        return readers if all(before(n, end) for n in readers for end in ends) else None

    def _take(
        self, one: int, first: ElementOperand, second: ElementOperand, readers: Collection[int], node: int
    ) -> bool:
        """Let readers read from one result instead of another."""
        old, new = second.access, first.access
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
            self._found.memory[reader] = [end.access for end in does.operands if end.number is None]
        self._found.moved |= set(made)
        self._touches.change({reader: self._found.memory[reader] for reader in made})
        return True


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
    if not apart(output.shape, output.strides, output.access.itemsize):
        return None
    inputs = tuple(replace(one, number=repr(one.number)) for one in does.operands if not one.writes)
    operands = inputs, replace(output, address=0), tuple(one.writes for one in does.operands)
    if isinstance(does, Reduction):
        return ('reduces', does.code, operands, does.blocks, does.stride)
    return ('computes', does.operation, operands)


def _elsewhere(end: ElementOperand, old: Access, distance: int) -> ElementOperand | None:
    """An operand that lies in another place if it lies in ``old``; None if only a part of it does."""
    if end.number is not None or overlap(end.access, old) is False:
        return end
    if end.writes or end.pieces or not covers(old, end.access):
        return None
    return replace(end, address=end.address + distance)


def _with(does: Elementwise | Reduction, operands: list[ElementOperand]) -> Elementwise | Reduction:
    if isinstance(does, Elementwise):
        return replace(does, operands=tuple(operands))
    return replace(does, inputs=tuple(operands[:-1]), output=operands[-1])
