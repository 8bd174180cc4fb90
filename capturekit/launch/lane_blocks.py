"""Blocks of a graph's memory while several lanes are open, or while memory is used again as late as possible.

A block goes to a lane only if the lane is ordered after all work that used the block before. Blocks are in bytes,
rounded up to 512. Any thread may allocate and drop.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from capturekit.model.ledger import Clock, Lane, covers

# -- how many bytes of a graph's memory were asked for. Blocks are multiples of 512 bytes: their ends may be nobody's -


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


UNIT = 512
#: Where memory is used again late, so many times as much may be taken as one line of work needs, and so many bytes at
#: least: short chains need few blocks, and whoever waits for one of these waits for the chain before.
_TIMES, LEAST = 2, 256 << 20
#: A life of a block whose places are not known.
_UNKNOWN: tuple[None, None] = (None, None)


class BlockSource(Protocol):
    """The memory that the blocks come from, and what it knows of lanes."""

    late: int | None
    tick: int
    unowned: Any
    pointer: Any

    def place(self) -> tuple[int, ...] | None:
        """The nodes that come before the next one; None where that is not known."""

    @property
    def besides(self) -> int:
        """Bytes of those in ``late`` that are taken by something else than blocks."""

    def new_block(self, size: int) -> Any:
        """Take a new piece of memory of so many bytes."""

    def active(self, lane: Lane) -> None:
        """Note that a lane allocates."""

    def touched_since(self, tick: int) -> Clock:
        """How far each lane has come that may have used a block since it was handed out."""


class Ticket:
    """Held by the arrays on a block; when the last is gone, the block is free."""

    __slots__ = ('block', 'lanes')

    def __init__(self, lanes: LaneBlocks, block: PoolBlock) -> None:
        self.lanes = lanes
        self.block = block

    def __del__(self) -> None:
        lanes = self.lanes
        lanes._dropped.append(self.block)
        with lanes._lock:
            lanes._put_back()


class PoolBlock:
    """A piece of the pool: ``born`` is the tick at which it was last handed out.

    ``lives``: of memory that is used again late, the nodes that came before the next one when it was handed out and
    when it was dropped, for each time; None where that is not known. ``since``: the first of the two, while it is used.
    ``of_library``: it is a workspace, and no array's.
    """

    __slots__ = ('address', 'born', 'device', 'lives', 'of_library', 'pointer', 'since', 'size')

    def __init__(self, pointer: Any, size: int, of_library: bool = False) -> None:
        self.pointer, self.of_library = pointer, of_library
        self.address, self.device = int(pointer.ptr), int(pointer.device_id)
        self.size = size
        self.born = 0
        self.since: tuple[int, ...] | None = None
        self.lives: list[tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = [(None, None)] if of_library else []


class LaneBlocks:
    """Blocks for captures with open lanes."""

    def __init__(self, memory: BlockSource) -> None:
        self._memory = memory
        #: The key is the device and size, and how far lanes must have got, which most blocks share.
        self._free: defaultdict[tuple[int, int], dict[tuple[tuple[int, int], ...], list[PoolBlock]]] = defaultdict(dict)
        self._lock = threading.RLock()
        #: Blocks whose arrays are gone. Garbage collection may add some at any line here, so they wait.
        self._dropped: deque[PoolBlock] = deque()
        self._busy = 0
        self._closed = False
        #: Bytes of these blocks that arrays hold, the most that they have held, and all bytes of these blocks.
        self._live = self._peak = self._total = 0

    @property
    def live_bytes(self) -> int:
        """Bytes of these blocks that arrays hold."""
        with self:
            return self._live

    def malloc(self, lane: Lane, size: int) -> Any:
        """Return a memory pointer of ``size`` bytes for work on a lane."""
        rounded = max((size + UNIT - 1) // UNIT, 1) * UNIT
        memory = self._memory
        with self._lock:  # as `with self:` does, at each array that is made on a lane
            self._busy += 1
            try:
                self._live += rounded
                if self._live > self._peak:
                    self._peak = self._live
                late = memory.late
                fits = late is not None and self._total + rounded <= self._room(late)
                block = None if fits else self._take(lane, rounded)
                if block is None:
                    block = PoolBlock(memory.new_block(rounded), rounded)
                    self._total += rounded
                memory.active(lane)
                block.born, block.since = memory.tick, None if late is None else memory.place()
            finally:
                self._busy -= 1
                if self._dropped:
                    self._put_back()
        owned = memory.unowned(block.address, rounded, Ticket(self, block), block.device)
        return memory.pointer(owned, 0)

    def _room(self, late: int) -> int:
        """The bytes up to which new memory is taken before some is used again."""
        return late - self._memory.besides if late else max(_TIMES * self._peak, LEAST)

    def _take(self, lane: Lane, size: int) -> PoolBlock | None:
        free, late = self._free[lane.device, size], self._memory.late is not None
        if not free:
            return None
        for key in free if late else reversed(free):
            if covers(lane, key):
                block = free[key].pop(0 if late else -1)
                if not free[key]:
                    del free[key]
                return block
        return None

    def settle(self) -> None:
        """Free blocks may go to any lane."""
        with self:
            for free in self._free.values():
                every = [block for blocks in free.values() for block in blocks]
                free.clear()
                if every:
                    free[()] = every

    def free(self) -> list[PoolBlock]:
        """The free blocks, which stay free."""
        with self:
            return [one for free in self._free.values() for blocks in free.values() for one in blocks]

    def give_up(self, blocks: Sequence[PoolBlock]) -> None:
        """Hand out these free blocks no more, and let go of their memory."""
        gone = {id(one) for one in blocks}
        with self:
            for free in self._free.values():
                for key, several in list(free.items()):
                    free[key] = [one for one in several if id(one) not in gone]
                    if not free[key]:
                        del free[key]
            for one in blocks:
                self._total -= 0 if one.of_library else one.size
                one.pointer = None

    def close(self) -> None:
        """Give up all free blocks; blocks in use are given up when their arrays are gone."""
        with self:
            self._closed = True
            self._free.clear()

    def __enter__(self) -> None:
        """Begin a block of code that is not disturbed: blocks that are dropped during it are put back at its end."""
        self._lock.acquire()
        self._busy += 1

    def __exit__(self, *_exc: object) -> None:
        try:
            self._busy -= 1
            if self._dropped:
                self._put_back()
        finally:
            self._lock.release()

    def _put_back(self) -> None:
        while self._dropped and not self._busy:
            self._busy = 1
            try:
                if self._dropped:
                    self._put(self._dropped.popleft())
            finally:
                self._busy = 0

    def _put(self, block: PoolBlock) -> None:
        self._live -= block.size
        if not self._closed:
            memory = self._memory
            if memory.late is None:
                block.lives.append(_UNKNOWN)
            else:
                block.lives.append((block.since, memory.place()))
            touched = tuple(sorted(memory.touched_since(block.born).items()))
            self._free[block.device, block.size].setdefault(touched, []).append(block)


def all_free(pool: Any) -> Iterator[Any]:
    """A pool's free memory for the current stream, in pieces; the pool can't grow: it raises MemoryError instead."""
    size = 1 << max(int(pool.free_bytes()), 1).bit_length() - 1
    while size >= UNIT:
        try:
            yield pool.malloc(size)
        except MemoryError:
            size //= 2
