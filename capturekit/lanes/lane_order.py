"""Nodes laid on few lanes: whole branches, or each node on the lane on which it begins first.

The data's own order lets everything begin at once that may, and CUDA then takes as many queues of the device as it
likes. A few lanes have fewer forks and joins, each of which costs time: a node stays on the lane of a node before it
unless another one is free so much earlier; those with most work behind them choose first. On each lane nodes follow
each other in the order in which they would begin then, and not in that of the recording: a lane that waits for the
middle of one branch before it begins another keeps both from running at once. (H. Topcuoglu, S. Hariri, M.-Y. Wu,
"Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing", 2002.)
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from capturekit.model.dag import Order

#: What a wait for another lane costs, in microseconds: half of a fork and a join.
CROSSING_US = 1.5
#: A node takes no less than this.
LEAST_US = 0.25
#: What takes less than so many times a node and a wait is no branch of its own.
_SHORT = 4


def on_lanes(order: Order, took: Sequence[float], lanes: int) -> list[tuple[int, int]]:
    """Pairs of nodes that follow each other on a lane, if the nodes of ``order`` are laid on so many.

    Where there are as many branches as lanes, or more, each stays whole, as one would lay them by hand. ``took``: the
    time of each node, in microseconds. Together with the order itself the pairs form no circle.
    """
    place = {node: n for n, node in enumerate(order.sequence)}
    branches = sorted(_branches(order, took), key=lambda nodes: -sum(took[node] for node in nodes))
    where = [0] * len(took)
    if len(branches) >= lanes:
        load = [0.0] * lanes
        for nodes in branches:
            lane = load.index(min(load))
            load[lane] += sum(took[node] for node in nodes)
            for node in nodes:
                where[node] = lane
        wanted = [node for nodes in branches for node in sorted(nodes, key=place.__getitem__)]
    else:
        rest = _rest(order, took)
        wanted = sorted(order.sequence, key=lambda one: (-rest[one], place[one]))
        where = _where(order, took, wanted, lanes)
    return [pair for row in _Walk(order, took, wanted, where, lanes).rows for pair in pairwise(row)]


def behind_one(order: Order, took: Sequence[float], pairs: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Pairs that let all beginnings but one come after this one, the shortest: a launch begins with a single node.

    ``pairs``: those of lanes, which stay.
    """
    later = {b for _a, b in pairs}
    first = [node for node in order.sequence if not order.before_each[node] and node not in later]
    shortest = min(first, key=lambda node: took[node], default=-1)
    return [*pairs, *((shortest, node) for node in first if node != shortest)]


def _branches(order: Order, took: Sequence[float]) -> list[list[int]]:
    """Parts of the graph that hang together. A node that joins several of some length does not make them one."""
    parts: dict[int, list[int]] = {}
    of, work = [-1] * len(took), [0.0] * len(took)
    for node in order.sequence:
        before = sorted({of[a] for a in order.before_each[node]}, key=lambda one: -work[one])
        mine = before[0] if before else node
        for other in before[1:]:
            if work[other] < _SHORT * (took[node] + CROSSING_US):
                for one in parts[other]:
                    of[one] = mine
                parts[mine] += parts.pop(other)
                work[mine] += work[other]
        of[node] = mine
        parts.setdefault(mine, []).append(node)
        work[mine] += took[node]
    return list(parts.values())


def _where(order: Order, took: Sequence[float], wanted: Sequence[int], lanes: int) -> list[int]:
    """A lane for each node: the one on which it begins first, if nodes choose in this sequence."""
    where, end, free = [0] * len(took), [0.0] * len(took), [0.0] * lanes
    for node in wanted:
        here = [0.0] * lanes
        for a in order.before_each[node]:
            here[where[a]] = max(here[where[a]], end[a])
        latest = sorted(range(lanes), key=here.__getitem__)[-2:]
        best = (0.0, False, -1)
        for lane in range(lanes):
            other = here[latest[-1] if latest[-1] != lane else latest[0]] if lanes > 1 else 0.0
            starts = max(free[lane], here[lane], other + CROSSING_US if other else 0.0)
            if best[2] < 0 or (starts, not here[lane]) < best[:2]:
                best = (starts, not here[lane], lane)
        where[node] = best[2]
        end[node] = free[best[2]] = best[0] + took[node]
    return where


class _Walk:
    """The nodes of each lane in the order in which they would begin: what follows on the last node comes first.

    Else the ``wanted`` sequence decides among those that may begin.
    """

    def __init__(
        self, order: Order, took: Sequence[float], wanted: Sequence[int], where: Sequence[int], lanes: int
    ) -> None:
        self.rows: list[list[int]] = [[] for _ in range(lanes)]
        self._order, self._took, self._where = order, took, where
        self._rank = {node: n for n, node in enumerate(wanted)}
        self._free, self._end = [0.0] * lanes, [0.0] * len(took)
        #: Of each lane, nodes by the time from which they may begin, and those that may by now, each with its rank.
        self._later: list[list[tuple[float, int, int]]] = [[] for _ in range(lanes)]
        self._now: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        waiting = [len(before) for before in order.before_each]
        for node, missing in enumerate(waiting):
            if not missing:
                self._put(node)
        for _ in took:
            node = self._begin()
            for follower in order.after_each[node]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    self._put(follower)

    def _put(self, node: int) -> None:
        lane = self._where[node]
        before = [
            self._end[a] + (CROSSING_US if self._where[a] != lane else 0.0) for a in self._order.before_each[node]
        ]
        heappush(self._later[lane], (max(before, default=0.0), self._rank[node], node))

    def _begin(self) -> int:
        """The next node that begins, of all lanes."""
        starts, lane = min((self._starts(lane), lane) for lane in range(len(self.rows)))
        later, now = self._later[lane], self._now[lane]
        while later and later[0][0] <= starts:
            heappush(now, heappop(later)[1:])
        row = self.rows[lane]
        follows = set(self._order.after_each[row[-1]]) if row else set()
        chosen = min((one for one in now if one[1] in follows), default=None) if follows else None
        if chosen is None:
            chosen = heappop(now)
        else:
            now.remove(chosen)
            heapify(now)
        node = chosen[1]
        row.append(node)
        self._end[node] = self._free[lane] = starts + self._took[node]
        return node

    def _starts(self, lane: int) -> float:
        if self._now[lane]:
            return self._free[lane]
        return max(self._free[lane], self._later[lane][0][0]) if self._later[lane] else float('inf')


def _rest(order: Order, took: Sequence[float]) -> list[float]:
    """The longest path from the beginning of each node to the end."""
    found = [0.0] * len(order.before_each)
    for node in reversed(order.sequence):
        found[node] = took[node] + max((found[b] for b in order.after_each[node]), default=0.0)
    return found


def ranks(order: Order, took: Sequence[float], least: int, greatest: int) -> list[int]:
    """A priority for each node, from ``least`` to ``greatest`` (a lower number): the longer the path from its beginning
    to the end, the higher.
    """
    rest = _rest(order, took)
    longest = max(rest, default=0.0) or 1.0
    return [least + round((greatest - least) * one / longest) for one in rest]


def laid(count: int, needed: Sequence[tuple[int, int]], pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The fewest edges that make the order of ``needed`` and that of ``pairs``.

    These are ``needed`` alone where the two go in a circle: the lanes were laid for another order than this one.
    """
    if not pairs:
        return list(needed)
    try:
        order = Order(count, [*needed, *pairs])
    except ValueError:
        return list(needed)
    return sorted({*needed, *pairs} - set(order.redundant()), key=lambda edge: edge[::-1])


def as_in_a_graph(order: Order, took: Sequence[float], whole: float) -> list[float]:
    """Times of nodes that add up to the time of a launch, along its longest path: each was measured with events around
    it, which take longer than a short kernel, or without the time from one node to the next.
    """
    path = order.longest(took)[1]
    apart = (whole - sum(took[node] for node in path)) / max(len(path), 1)
    return [max(us + apart, LEAST_US) for us in took]
