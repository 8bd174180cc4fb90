"""Memory of a graph's own that no array lies in any more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from capturekit.driver.node_accesses import Access


class FreeMemory:
    """Pieces of free memory, given by first byte and end."""

    def __init__(self, pieces: Iterable[tuple[int, int]] = ()) -> None:
        self.pieces: list[tuple[int, int]] = []
        for low, high in sorted(pieces):
            if self.pieces and low <= self.pieces[-1][1]:
                self.pieces[-1] = (self.pieces[-1][0], max(high, self.pieces[-1][1]))
            else:
                self.pieces.append((low, high))

    def meets(self, access: Access) -> bool:
        """Whether a byte of an access's extent is free. Then the array that it was an access of is gone: an array's
        block is free as a whole, and what is not free of it belongs to a later one."""
        low, high = access.extent
        found = bisect_left(self.pieces, (high,)) - 1
        return found >= 0 and self.pieces[found][1] > low

    def rest(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """What of a range is not free."""
        for begin, end in self.pieces[max(bisect_left(self.pieces, (low,)) - 1, 0) :]:
            if begin >= high:
                break
            if low < begin:
                yield low, begin
            low = max(low, end)
        if low < high:
            yield low, high
