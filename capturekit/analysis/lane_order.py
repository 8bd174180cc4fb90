"""Nodes laid on few lanes: the node that most of the work waits for comes first, on the lane where it can begin first.

The data's own order lets everything begin at once that may, and CUDA then takes as many queues of the device as it
likes. A few lanes have fewer forks and joins, each of which costs time. This is list scheduling by the longest path
(R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969; H. Topcuoglu et al., "Performance-Effective and
Low-Complexity Task Scheduling for Heterogeneous Computing", 2002).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from capturekit.model.dag import Order

#: What a wait for another lane costs, in microseconds: half of a fork and a join.
CROSSING_US = 1.5


def on_lanes(order: Order, took: Sequence[float], lanes: int) -> list[tuple[int, int]]:
    """Pairs of nodes that follow each other on a lane, if the nodes of ``order`` are laid on so many.

    ``took``: the time of each node, in microseconds. Together with the order itself the pairs form no circle.
    """
    rest = _rest(order, took)
    missing = [len(before) for before in order.before_each]
    ready = [(-rest[node], node) for node, count in enumerate(missing) if not count]
    heapify(ready)
    free, last = [0.0] * lanes, [-1] * lanes
    where, ends = [-1] * len(missing), [0.0] * len(missing)
    pairs = []
    while ready:
        _rest_of_it, node = heappop(ready)
        before = order.before_each[node]
        starts = [_start(free[lane], lane, before, where, ends) for lane in range(lanes)]
        # it stays on a lane of those that it comes after, unless it could begin earlier elsewhere by a wait's cost
        near = {where[a] for a in before}
        lane = min(range(lanes), key=lambda n: (starts[n] + (CROSSING_US if near and n not in near else 0.0), n))
        if last[lane] >= 0:
            pairs.append((last[lane], node))
        where[node], last[lane] = lane, node
        ends[node] = free[lane] = starts[lane] + took[node]
        for follower in order.after_each[node]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, (-rest[follower], follower))
    return pairs


def _start(free: float, lane: int, before: Iterable[int], where: Sequence[int], ends: Sequence[float]) -> float:
    """When a node could begin on a lane."""
    return max([free, *(ends[a] + (0.0 if where[a] == lane else CROSSING_US) for a in before)])


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
