"""Bytes behind addresses: which NumPy buffer holds the block that an integer address lies in."""

from __future__ import annotations

import bisect
import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

#: What fresh device memory holds: NaN as a float, -1 as an int. Anything that reads it without writing shows.
GARBAGE = 0xFF

Bytes = NDArray[np.uint8]


class AddressSpace:
    """Blocks of bytes at integer addresses, found by any address inside them; used by any thread and by finalizers."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, Bytes] = {}
        # Python collects garbage anywhere, also while this thread is in here and holds the lock: a finalizer that
        # waited for it would wait for ever, and one that did not would change the lists under their reader.
        self._lock = threading.Lock()
        self._leaving: deque[int] = deque()

    def add(self, address: int, block: Bytes) -> None:
        """Put ``block`` at ``address``."""
        with self._lock:
            self._let_go()
            bisect.insort(self._starts, address)
            self._blocks[address] = block

    def remove(self, address: int) -> None:
        """Take away the block that starts at ``address``, if there is one: now, or before the next use. Never waits."""
        self._leaving.append(address)
        if self._lock.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def _let_go(self) -> None:
        while self._leaving:
            address = self._leaving.popleft()
            if self._blocks.pop(address, None) is not None:
                del self._starts[bisect.bisect_left(self._starts, address)]

    def find(self, address: int, nbytes: int = 0) -> tuple[Bytes, int] | None:
        """Return the block that holds ``nbytes`` at ``address`` and the offset in it, or None."""
        with self._lock:
            self._let_go()
            at = bisect.bisect_right(self._starts, address) - 1
            if at < 0:
                return None
            start = self._starts[at]
            block = self._blocks[start]
        offset = address - start
        if offset >= block.size or offset + nbytes > block.size:
            return None
        return block, offset

    def contents(self) -> dict[int, Bytes]:
        """A copy of all blocks, by their addresses."""
        with self._lock:
            self._let_go()
            blocks = dict(self._blocks)
        return {address: block.copy() for address, block in blocks.items()}

    def restore(self, contents: dict[int, Bytes]) -> None:
        """Put back what :meth:`contents` gave, into blocks that are still there."""
        with self._lock:
            self._let_go()
            blocks = dict(self._blocks)
        for address, block in contents.items():
            if address in blocks:
                blocks[address][:] = block
