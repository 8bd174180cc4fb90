"""Bytes behind addresses: which NumPy buffer holds the block that an integer address lies in."""

from __future__ import annotations

import bisect
from collections import deque

import numpy as np
from numpy.typing import NDArray

from capturekit.model.skipped_exits import Lock

#: What fresh device memory holds: NaN as a float, -1 as an int. Anything that reads it without writing shows.
GARBAGE = 0xFF

Bytes = NDArray[np.uint8]


class AddressSpace:
    """Blocks of bytes at integer addresses, found by any address inside them; used by any thread and by finalizers."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, Bytes] = {}
        # Python collects garbage anywhere, also while this thread is in here and holds the lock. A finalizer may then
        # remove a block, or run the work of late streams, which looks blocks up: it must not wait for the lock, and
        # what it changes must not move under the reader that it interrupts.
        self._lock = Lock()
        self._leaving: deque[int] = deque()

    def add(self, address: int, block: Bytes) -> None:
        """Put ``block`` at ``address``."""
        with self._lock:
            self._let_go()
            self._blocks[address] = block
            bisect.insort(self._starts, address)

    def remove(self, address: int) -> None:
        """Take away the block that starts at ``address``, if there is one: now, or before the next use. Never waits."""
        self._leaving.append(address)
        if True in [*map(self._lock.acquire, (False,))]:  # no call follows, at whose end a signal could keep the lock
            try:
                self._let_go()
            finally:
                self._lock.release()

    def _let_go(self) -> None:
        if self._lock.depth() > 1:
            return  # this is a finalizer: whom it interrupts lets go at its next use
        while self._leaving:
            address = self._leaving.popleft()
            if address in self._blocks:
                del self._starts[bisect.bisect_left(self._starts, address)]
                del self._blocks[address]

    def find(self, address: int, nbytes: int = 0) -> tuple[Bytes, int] | None:
        """Return the block that holds ``nbytes`` at ``address`` and the offset in it, or None."""
        with self._lock:
            if self._leaving:
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

    def _now(self) -> dict[int, Bytes]:
        with self._lock:
            self._let_go()
            return dict(self._blocks)

    def contents(self) -> dict[int, Bytes]:
        """A copy of all blocks, by their addresses."""
        return {address: block.copy() for address, block in self._now().items()}

    def restore(self, contents: dict[int, Bytes]) -> None:
        """Put back what :meth:`contents` gave, into blocks that are still there."""
        blocks = self._now()
        for address, block in contents.items():
            if address in blocks:
                blocks[address][:] = block
