"""The order of nodes in a graph: reachability along its edges, which is asked often.

A greedy walk divides the nodes into few chains, each along a path; a recording on n lanes has about n. For each node
and chain, one number says how many nodes of the chain come before the node. Graphs of many short chains keep a bit for
each pair of nodes instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from capturekit.model.counted import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A chain takes four bytes for each node; the table of bits takes an eighth of a byte for each pair of nodes.
_BYTES, _BIT = 4, 8


class Order:
    """The order that edges make among ``count`` nodes, which are named by the numbers below it.

    Attributes:
        sequence: the nodes in topological order, those with lower numbers first.
        before_each: the predecessors of each node. after_each: the successors.

    Raises ValueError if the edges form a cycle, or name a number that is not a node's.
    """

    def __init__(self, count: int, edges: Iterable[tuple[int, int]]) -> None:
        self.before_each: list[list[int]] = [[] for _ in range(count)]
        self.after_each: list[list[int]] = [[] for _ in range(count)]
        for a, b in dict.fromkeys(edges):
            if not (0 <= a < count and 0 <= b < count):
                raise ValueError(f'an edge from {a} to {b}, of {counted(count, "node")}')
            self.before_each[b].append(a)
            self.after_each[a].append(b)
        self.sequence = self._sorted()
        self._chain, self._place = [0] * count, [0] * count
        self.progress = self._clocks(max(count, 1024) // (_BYTES * _BIT))
        self._ancestors = self._bits() if self.progress is None else []

    def _sorted(self) -> list[int]:
        waiting = [len(before) for before in self.before_each]
        ready = [n for n, missing in enumerate(waiting) if not missing]
        heapify(ready)
        found = []
        while ready:
            node = heappop(ready)
            found.append(node)
            for follower in self.after_each[node]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    heappush(ready, follower)
        if len(found) < len(waiting):
            raise ValueError('the edges go in a circle')
        return found

    def _clocks(self, most: int) -> NDArray[np.int32] | None:
        """For each node the progress of each chain before it begins; None if there are more than ``most`` chains."""
        clock = np.zeros((len(self.before_each), 8), np.int32)
        lengths = np.zeros(8, np.int32)
        chain, place, chains = self._chain, self._place, 0
        for node in self.sequence:
            row, before = clock[node], self.before_each[node]
            for a in before:
                np.maximum(row, clock[a], out=row)
                row[chain[a]] = max(row[chain[a]], place[a] + 1)
            found = next((chain[a] for a in before if place[a] + 1 == lengths[chain[a]]), -1)
            if found < 0 and before:  # a chain that has ended before this node, a joined lane's
                ended = np.flatnonzero(row[:chains] == lengths[:chains])
                found = int(ended[0]) if ended.size else -1
            if found < 0:
                found, chains = chains, chains + 1
                if chains > most:
                    return None
                if chains > len(lengths):
                    clock = np.concatenate((clock, np.zeros_like(clock)), axis=1)
                    lengths = np.concatenate((lengths, np.zeros_like(lengths)))
            chain[node], place[node] = found, int(lengths[found])
            lengths[found] += 1
        return clock

    def _bits(self) -> list[int]:
        found = [0] * len(self.before_each)
        for node in self.sequence:
            for a in self.before_each[node]:
                found[node] |= found[a] | 1 << a
        return found

    def before(self, a: int, b: int) -> bool:
        """True if there is a path from ``a`` to ``b``. No node is before itself."""
        if self.progress is not None:
            return bool(self.progress[b, self._chain[a]] > self._place[a])
        return bool(self._ancestors[b] >> a & 1)

    def unordered(self) -> list[int]:
        """The nodes that another node is neither before nor behind; of very wide graphs, all."""
        if self.progress is None:
            return self.sequence
        ahead, others = self.progress.sum(axis=1), len(self.sequence) - 1
        behind = (int((self.progress[:, chain] > place).sum()) for chain, place in zip(self._chain, self._place))
        return [node for node, count in enumerate(behind) if ahead[node] + count < others]

    def redundant(self) -> list[tuple[int, int]]:
        """Edges that another path replaces: without them the order is the same."""
        edges = ((a, b) for b, before in enumerate(self.before_each) for a in before)
        return [(a, b) for a, b in edges if any(self.before(a, other) for other in self.before_each[b])]

    def longest(
        self, weights: Sequence[float], without: tuple[int, int] | None = None
    ) -> tuple[list[float], list[int]]:
        """When each node would end at the earliest, if node n takes ``weights[n]``; and the path that takes longest.

        ``without`` is an edge that is left out.
        """
        ends, last = [0.0] * len(self.before_each), [-1] * len(self.before_each)
        for node in self.sequence:
            latest, end = -1, 0.0
            for a in self.before_each[node]:
                if (latest < 0 or ends[a] > end) and (a, node) != without:
                    latest, end = a, ends[a]
            last[node], ends[node] = latest, weights[node] + end
        path: list[int] = []
        at = max(range(len(ends)), key=ends.__getitem__, default=-1)
        while at >= 0:
            path.append(at)
            at = last[at]
        return ends, path[::-1]
