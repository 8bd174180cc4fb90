"""Bytes behind addresses: which NumPy buffer holds the block that an integer address lies in."""

from __future__ import annotations

import bisect
import threading

import numpy as np
from numpy.typing import NDArray

#: What fresh device memory holds: NaN as a float, -1 as an int. Anything that reads it without writing shows.
GARBAGE = 0xFF

Bytes = NDArray[np.uint8]


class AddressSpace:
    """Blocks of bytes at integer addresses, found by any address inside them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, Bytes] = {}
        self._lock = threading.Lock()

    def add(self, address: int, block: Bytes) -> None:
        """Put ``block`` at ``address``."""
        with self._lock:
            bisect.insort(self._starts, address)
            self._blocks[address] = block

    def remove(self, address: int) -> Bytes | None:
        """Take away and return the block that starts at ``address``, None if there is none."""
        with self._lock:
            block = self._blocks.pop(address, None)
            if block is not None:
                del self._starts[bisect.bisect_left(self._starts, address)]
            return block

    def find(self, address: int, nbytes: int = 0) -> tuple[Bytes, int] | None:
        """Return the block that holds ``nbytes`` at ``address`` and the offset in it, or None."""
        with self._lock:
            at = bisect.bisect_right(self._starts, address) - 1
            if at < 0:
                return None
            start = self._starts[at]
            block = self._blocks[start]
        offset = address - start
        if offset >= block.size or offset + nbytes > block.size:
            return None
        return block, offset
