"""The order that the data of a graph needs, and no more: which edges are left where chance is taken away.

Two nodes need their order if they touch the same byte and one of them writes it: a read after a write, a write after a
read, a write after a write. A node whose memory is not known needs its order with every other one. Nothing is ordered
here that was not ordered by the recording, so that what its author left open stays open.

The memory is kept as intervals of bytes, and what a later write covers is looked at no more: each node meets the nodes
that it has to come after, and few others. CUDA C++ Programming Guide, "Graph Structure".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from capturekit.analysis.races import Open, merged_accesses
from capturekit.driver.node_accesses import Access, covers, overlap
from capturekit.model.counted import counted
from capturekit.model.dag import Order

#: What a node touches; None where that is not known, so that it keeps its order with all others.
Memory = Sequence[Access] | None
#: The ancestors of each node are bits of one number: of so many nodes these take 64 MB.
MOST_NODES = 1 << 15
#: More pairs are not compared: a thousand nodes that each need a thousand others.
MOST_PAIRS = 1 << 21


class TooManyError(ValueError):
    """The order is not computed, because it would take too much time or memory."""


def needed_edges(order: Order, touched: Sequence[Memory]) -> list[tuple[int, int]]:
    """The fewest edges that order all pairs of nodes which ``order`` has in an order that their data needs.

    Args:
        order: the order as it was recorded.
        touched: what each node touches.

    Returns edges in the order of their second nodes. No edge is one that others make.

    Raises:
        TooManyError: there are more than 32,768 nodes, or two million pairs to be compared.
    """
    if len(touched) > MOST_NODES:
        raise TooManyError(f'{counted(len(touched), "node")}, and {MOST_NODES:,} are the most')
    return _Needs(order, touched).edges


class _Needs:
    """One walk along the recorded order."""

    def __init__(self, order: Order, touched: Sequence[Memory]) -> None:
        self._order = order
        self._touched = touched
        self._place = {node: place for place, node in enumerate(order.sequence)}
        #: Whether all nodes lie in one row, as those of one lane do.
        self._row = all(a in order.before_each[b] for a, b in pairwise(order.sequence))
        self._open = Open()
        #: By the key of an access, those that it covers: they count again for nodes that do not come after it.
        self._under: dict[int, list[tuple[int, int, Access]]] = {}
        #: The nodes of unknown memory that a node comes after, without those behind others.
        self._stream_order: dict[int, frozenset[int]] = {}
        #: In a row, the nodes that no other needs yet.
        self._ends: set[int] = set()
        self._above: dict[int, int] = {}
        self._pairs = 0
        self.edges: list[tuple[int, int]] = []
        for node in order.sequence:
            before = self._reduced(node, self._needed_by(node))
            self.edges += [(a, node) for a in before]
            self._ends -= set(before)
            self._ends.add(node)

    def _before(self, a: int, b: int) -> bool:
        return self._place[a] < self._place[b] if self._row else self._order.before(a, b)

    # -- what a node has to come after --------------------------------------------------------------------------

    def _needed_by(self, node: int) -> set[int]:
        """Nodes that this one has to come after: with what these come after, all of them."""
        found = set(self._fences_of(node))
        touched = self._touched[node]
        if touched is None:
            found |= self._everything_before(node)
            if self._row:  # who comes after this node comes after all of it
                self._open, self._under = Open(), {}
        else:
            mine = merged_accesses(touched)
            for access in mine:
                found |= self._met(node, access)
            for access in mine:
                self._add(node, access)
        self._pairs += len(found)
        if self._pairs > MOST_PAIRS:
            raise TooManyError(f'more than {counted(MOST_PAIRS, "pair")} of nodes touch the same memory')
        return found

    def _fences_of(self, node: int) -> frozenset[int]:
        before = self._order.before_each[node]
        parts = [frozenset((a,)) if self._touched[a] is None else self._stream_order[a] for a in before]
        found = parts[0] if len(parts) == 1 else frozenset().union(*parts)
        self._stream_order[node] = found
        return found

    def _everything_before(self, node: int) -> set[int]:
        """All nodes before one, back to those of unknown memory, which the rest comes before."""
        if self._row:
            return set(self._ends)
        found: set[int] = set()
        waiting = list(self._order.before_each[node])
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                if self._touched[one] is not None:
                    waiting += self._order.before_each[one]
        return found

    def _met(self, node: int, access: Access) -> set[int]:
        """The earlier nodes that an access has to come after."""
        found: set[int] = set()
        waiting = self._open.touching(access)
        while waiting:
            key, other, earlier = waiting.pop()
            if other in found or (access.writes is False and earlier.writes is False):
                continue
            if not self._before(other, node):
                waiting += self._under.get(key, ())
            elif overlap(earlier, access) is not False:
                found.add(other)
        return found

    def _add(self, node: int, access: Access) -> None:
        """Let later nodes meet an access, in the place of those that it covers."""
        covered = list(self._covered(node, access)) if access.writes is not False and access.exact else []
        key = self._open.add(node, access)
        for old, _other, _earlier in covered:
            self._open.drop(old)
        if covered and not self._row:
            self._under[key] = covered

    def _covered(self, node: int, access: Access) -> Iterator[tuple[int, int, Access]]:
        for key, other, earlier in self._open.touching(access):
            if other != node and covers(access, earlier) and self._before(other, node):
                yield key, other, earlier

    # -- the fewest edges ---------------------------------------------------------------------------------------

    def _reduced(self, node: int, needed: set[int]) -> list[int]:
        """Of the nodes that one has to come after, those that do not come before another of them."""
        above, found = 0, []
        for one in sorted(needed, key=self._place.__getitem__, reverse=True):
            if not above >> self._place[one] & 1:
                found.append(one)
                above |= self._above[one] | 1 << self._place[one]
        self._above[node] = above
        return found[::-1]
