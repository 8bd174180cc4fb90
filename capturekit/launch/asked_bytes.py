"""How many bytes of a graph's memory were asked for. Blocks are multiples of 512 bytes: their ends may be nobody's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from capturekit.launch.lane_blocks import UNIT


class AskedBytes:
    """What was asked for at each address, and what lies behind it. Any thread may note."""

    def __init__(self) -> None:
        #: By the address of a block, in the order in which they were handed out.
        self.sizes: dict[int, int] = {}

    def note(self, pointer: Any, size: int) -> Any:
        """Note a block that was handed out for so many bytes. Return its pointer."""
        address, asked = pointer.ptr, self.sizes
        asked.pop(address, None)  # it goes to the end: the latest
        asked[address] = size
        return pointer

    def forget(self, addresses: Iterable[int]) -> None:
        """Forget blocks that were given back to the device."""
        for address in addresses:
            self.sizes.pop(address, None)

    def behind(self) -> list[tuple[int, int]]:
        """The ends of blocks in use that lie behind what was asked for, in order of address.

        No array that was made in such a block reaches so far, so that nobody can read them. Of blocks that share
        addresses, the one that was handed out last counts: an earlier one was dropped before. For memory that is free
        the answer means nothing.
        """
        found: list[tuple[int, int]] = []
        later: list[tuple[int, int]] = []  # disjoint, in order
        for low, size in reversed(self.sizes.items()):
            end, high = low + size, low + -(-size // UNIT) * UNIT
            first = max(bisect_left(later, (low,)) - 1, 0)
            last = bisect_left(later, (high,))
            met = [one for one in later[first:last] if one[1] > low]
            if end < high and all(stop <= end or begin >= high for begin, stop in met):
                found.append((end, high))
            if low < high:
                merged = min([low, *(one[0] for one in met)]), max([high, *(one[1] for one in met)])
                later[bisect_left(later, (merged[0],)) : last] = [merged]
        return sorted(found)
