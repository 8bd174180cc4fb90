"""Nodes laid on few lanes: whole branches, or each node on the lane on which it begins first.

The data's own order lets everything begin at once that may, and CUDA then takes as many queues of the device as it
likes. A few lanes have fewer forks and joins, each of which costs time: a node stays on the lane of a node before it
unless another one is free so much earlier; those with most work behind them choose first. On each lane nodes follow
each other in the order in which they would begin then, and not in that of the recording: a lane that waits for the
middle of one branch before it begins another keeps both from running at once. (H. Topcuoglu, S. Hariri, M.-Y. Wu,
"Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing", 2002.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import prod

from capturekit.analysis.concurrency import Capacity, threads_of
from capturekit.analysis.node_view import Node
from capturekit.driver.node_accesses import Touched
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


# -- why one lane is best for a graph whose data would let nodes run at once ------------------------------------------


#: From this share of the time on, something is the reason.
_SHARE = 0.5
#: A node that moves this part of what the device could move in its time is held up by memory.
_BUSY = 0.5
#: The longest path that takes this part of the recorded order's leaves nothing to gain.
_PATH = 0.9


def why_one_lane(
    nodes: Sequence[Node],
    touched: Sequence[Touched],
    took: Sequence[float],
    orders: tuple[Order, Order],
    capacity: Capacity,
) -> str:
    """The reason in words, as the times of the nodes show it (``took``, in microseconds).

    ``orders``: the recorded one, and the one that the data needs.
    """
    total = sum(took) or 1.0
    was, path = (max(order.longest(took)[0], default=0.0) for order in orders)
    if path >= _PATH * was:
        return f'one chain of nodes takes {100 * path / (was or 1.0):.0f} % of the time'
    moving = sum(us for us, one in zip(took, touched) if _moves(one, us, capacity))
    if moving >= _SHARE * total:
        return f"nodes that are held up by the device's memory take {100 * moving / total:.0f} % of the time"
    filling = sum(us for us, node in zip(took, nodes) if fills(node, capacity))
    if filling >= _SHARE * total:
        return f'kernels that fill the device take {100 * filling / total:.0f} % of the time'
    return 'forks and joins cost as much as they bring'


def _moves(touched: Touched, us: float, capacity: Capacity) -> bool:
    if not capacity.bytes_per_us or us <= 0:
        return False
    moved = sum(
        one.itemsize * prod(length for length, stride in zip(one.shape, one.strides) if stride)
        for one in touched.accesses
    )
    return moved >= _BUSY * us * capacity.bytes_per_us


def fills(node: Node, capacity: Capacity) -> bool:
    """Whether a kernel has as many threads as the device holds."""
    return 0 < capacity.threads <= threads_of(node)


# -- what no order can fall below: the longest path, and what only one node at a time can have ------------------------
#
# Kernels of more threads than the device holds follow each other, whatever the lanes, and so do copies of one direction
# between the host and the device, for which there is one engine each. The times of the nodes are those of a launch on
# one lane, so that the answer is an estimate: the device may begin a kernel while the last threads of another one end.


@dataclass(frozen=True)
class Bound:
    """``us``: the least time of a launch, in microseconds. ``why``: what takes it, in words."""

    us: float
    why: str

    def __str__(self) -> str:
        return f'about {self.us:,.1f} us ({self.why})'


def lower_bound(
    nodes: Sequence[Node], took: Sequence[float], needed: Order, capacity: Capacity, on_device: Callable[[int], bool]
) -> Bound:
    """The largest of what bounds an order from below.

    ``took``: the times of the nodes in a launch, in microseconds. ``needed``: the order that the data needs.
    ``on_device``: whether an address is one of the device's memory.
    """
    rows = {'the longest path': max(needed.longest(took)[0], default=0.0)}
    for node, us in zip(nodes, took):
        why = 'kernels that fill the device' if fills(node, capacity) else _direction(node, on_device)
        if why:
            rows[why] = rows.get(why, 0.0) + us
    why = max(rows, key=rows.__getitem__)
    return Bound(rows[why], why)


def _direction(node: Node, on_device: Callable[[int], bool]) -> str:
    if node.kind != 'memcpy' or not {'dst', 'src'} <= node.detail.keys():
        return ''
    to, of = on_device(node.detail['dst']), on_device(node.detail['src'])
    return '' if to == of else f'copies {"to the device" if to else "to the host"}'
