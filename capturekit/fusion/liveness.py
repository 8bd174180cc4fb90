"""What a fused kernel has to write: all that anybody reads afterwards, in the graph or outside of it.

Memory of the graph's own that no array lies in any more can be seen by nobody outside. Of such memory a write is needed
if a later node reads it before another one has written over all of it. A node of unknown memory may read anything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from capturekit.analysis.free_memory import FreeMemory
from capturekit.analysis.needed_order import Memory
from capturekit.driver.node_accesses import Access, covers, overlap
from capturekit.fusion.runs import Key, Run
from capturekit.model.dag import Order

#: The extent of what is not known.
_ANYWHERE = (-(1 << 62), 1 << 62)


class _Touch(NamedTuple):
    """One access of a node. A run stands at its last member."""

    place: int
    node: int
    access: Access | None


class Liveness:
    """What each run of a graph has to write.

    Args:
        order: the order of the graph's nodes.
        memory: what each node touches; None where that is not known.
        runs: each run, with the numbers of its members in order.
        free: the graph's own memory that no array lies in any more.
    """

    def __init__(
        self,
        order: Order,
        memory: Sequence[Memory],
        runs: Sequence[tuple[Run, Sequence[int]]],
        free: FreeMemory,
    ) -> None:
        self._order = order
        self._free = free
        inside = {number for _run, numbers in runs for number in numbers}
        place = {node: n for n, node in enumerate(order.sequence)}
        touches = [
            _Touch(place[node], node, access)
            for node, accesses in enumerate(memory)
            if accesses is not None and node not in inside
            for access in accesses
        ]
        touches += [_Touch(place[ns[-1]], ns[-1], access) for run, ns in runs for access in _of(run)]
        touches += [
            _Touch(place[n], n, None) for n, accesses in enumerate(memory) if accesses is None and n not in inside
        ]
        self._touches = sorted(touches, key=_reads_first)
        extents = [_ANYWHERE if one.access is None else one.access.extent for one in self._touches]
        self._low = np.array([low for low, _high in extents], np.int64)
        self._high = np.array([high for _low, high in extents], np.int64)
        self._places = [one.place for one in self._touches]
        self._place = place
        #: Whether each node comes after the one before it.
        self._row = all(a in order.before_each[b] for a, b in pairwise(order.sequence))

    def stores(self, run: Run, numbers: Sequence[int]) -> dict[Key, bool]:
        """For each of a run's elements whether the fused kernel has to write them."""
        found = {}
        for key, use in run.used.items():
            over = [one.access for one in run.used.values() if one.writes and use.gone >= 0 and one.since >= use.gone]
            found[key] = use.writes and self._needed(numbers[-1], use.access, over)
        return found

    def needed(self, node: int, accesses: Sequence[Access], without: Collection[int] = ()) -> bool:
        """Whether anybody but the nodes ``without`` reads what a node that is in no run writes."""
        return any(self._needed(node, access, (), without) for access in accesses)

    def _needed(self, node: int, access: Access, over: Sequence[Access], without: Collection[int] = ()) -> bool:
        """Whether anybody reads what a node writes. ``over``: what the node itself writes later."""
        covering = [(node, one) for one in over]
        before = self._order.before
        for touch in self._later(node, access):
            if touch.node in without:
                continue
            if touch.access is not None and touch.access.writes:
                if before(node, touch.node):
                    covering.append((touch.node, touch.access))
                    if self._row and covers(touch.access, access):
                        return False
            elif touch.access is None or overlap(touch.access, access) is not False:
                wanted = [access] if touch.access is None else [access, touch.access]
                if not any(before(n, touch.node) and any(covers(a, one) for one in wanted) for n, a in covering):
                    return True
        return self._stays(access, [one for _node, one in covering])

    def _later(self, node: int, access: Access) -> Iterator[_Touch]:
        """What may touch an access and is not before a node, in topological order."""
        low, high = access.extent
        first = bisect_right(self._places, self._place[node]) if self._row else 0
        for n in np.flatnonzero((self._low[first:] < high) & (self._high[first:] > low)):
            touch = self._touches[first + int(n)]
            if touch.node != node and not self._order.before(touch.node, node):
                yield touch

    def _stays(self, access: Access, over: Sequence[Access]) -> bool:
        """Whether somebody outside of the graph sees what was written, after other writes."""
        if self._free.meets(access) or any(covers(one, access) for one in over):
            return False
        low, high = access.extent
        for begin, end in sorted(one.extent for one in over if one.exact and one.dense):
            if begin > low:
                break
            low = max(low, end)
        return low < high


def _reads_first(one: _Touch) -> tuple[int, bool]:
    """The order of accesses: a node that writes over memory may have read it before."""
    return one.place, one.access is not None and bool(one.access.writes)


def _of(run: Run) -> Iterable[Access]:
    """What a run touches in memory: what it reads first, and what it writes."""
    for key, use in run.used.items():
        size = np.dtype(key.dtype).itemsize
        if use.reads:
            yield Access(key.address, key.shape, key.strides, size, False)
        if use.writes:
            yield Access(key.address, key.shape, key.strides, size, True)
