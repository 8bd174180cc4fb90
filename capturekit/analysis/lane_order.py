"""Nodes laid on few lanes: chains of nodes, the longest path first, each on the lane that has least to do.

The data's own order lets everything begin at once that may, and CUDA then takes as many queues of the device as it
likes. A few lanes have fewer forks and joins, each of which costs time. A chain is a path that keeps to the successor
with most work behind it; a chain stays on one lane, so that only edges between chains need a wait. (Linear clustering:
S. J. Kim and J. C. Browne, "A General Approach to Mapping of Parallel Computations upon Multiprocessor Architectures",
1988; R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from capturekit.model.dag import Order

#: What a wait for another lane costs, in microseconds: half of a fork and a join.
CROSSING_US = 1.5


def on_lanes(order: Order, took: Sequence[float], lanes: int) -> list[tuple[int, int]]:
    """Pairs of nodes that follow each other on a lane, if the nodes of ``order`` are laid on so many.

    ``took``: the time of each node, in microseconds. On each lane nodes keep the sequence that ``order`` has, so that
    together with the order itself the pairs form no circle.
    """
    where, load = [-1] * len(took), [0.0] * lanes
    chains = _chains(order, _rest(order, took))
    for chain in sorted(chains, key=lambda one: -sum(took[node] for node in one)):
        beside = Counter(where[b] for a in chain for b in (*order.before_each[a], *order.after_each[a]))
        del beside[-1]
        waits = beside.total()
        lane = min(range(lanes), key=lambda n: load[n] + CROSSING_US * (waits - beside[n]))
        load[lane] += sum(took[node] for node in chain)
        for node in chain:
            where[node] = lane
    last, pairs = [-1] * lanes, []
    for node in order.sequence:
        if last[where[node]] >= 0:
            pairs.append((last[where[node]], node))
        last[where[node]] = node
    return pairs


def _chains(order: Order, rest: Sequence[float]) -> list[list[int]]:
    """Paths that hold each node once: the one with most work behind it comes first, and goes on to the next such."""
    found, taken = [], [False] * len(rest)
    for node in sorted(order.sequence, key=lambda one: -rest[one]):
        chain = []
        following: int | None = None if taken[node] else node
        while following is not None:
            taken[following] = True
            chain.append(following)
            free = [one for one in order.after_each[following] if not taken[one]]
            following = max(free, key=lambda one: rest[one], default=None)
        found += [chain] if chain else []
    return found


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
