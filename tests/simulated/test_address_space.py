"""Blocks behind addresses, also while Python collects garbage in the middle of a look-up."""

import threading
from typing import Any

import numpy as np

from capturekit.simulated.device.address_space import AddressSpace


class Collecting(int):
    """An address whose comparison does what a finalizer does when garbage is collected at that very moment."""

    def __new__(cls, value: int, collect):
        self = super().__new__(cls, value)
        self.collect = collect
        return self

    def __lt__(self, other: int) -> bool:
        self.collect()
        return int(self) < int(other)


def in_time(call):
    """What the call returns, or a failure where it waits for a lock that it holds itself."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(call()), daemon=True)
    thread.start()
    thread.join(10)
    assert returned, 'the call waits for a lock that it holds itself'
    return returned[0]


def space(*starts: int) -> AddressSpace:
    made = AddressSpace()
    for start in starts:
        made.add(start, np.full(16, start % 251, np.uint8))
    return made


def test_a_finalizer_during_a_look_up_may_look_up_too():
    """One that frees memory has the work of late streams done first, and that finds its blocks."""
    blocks, found = space(100, 200, 300), []

    def collect():  # what is removed would shift the list that is being searched
        blocks.remove(100)
        found.append(blocks.find(207))

    block, offset = in_time(lambda: blocks.find(Collecting(307, collect)))
    assert (block[0], offset) == (300 % 251, 7)
    assert found and all(block[0] == 200 and offset == 7 for block, offset in found)
    assert blocks.find(100) is None


class Interrupted(list[Any]):
    """A list of free pieces; garbage collection gives one back whenever it is looked through."""

    def __init__(self, items: Any, back: Any) -> None:
        super().__init__(items)
        self.back = back

    def __reversed__(self) -> Any:
        yield from list(super().__reversed__())
        back, self.back = self.back, lambda: None
        back()


def test_blocks_freed_during_a_pool_lookup_wait(sim: Any) -> None:
    pool = sim.cuda.MemoryPool()
    whole = pool.malloc(4096)
    del whole  # one free piece, of which the next ones are parts
    parts = [pool.malloc(1024) for _ in range(4)]
    (device_pool,) = pool._pools.values()
    ((stream, free),) = device_pool._pieces.items()
    first, second, *rest = parts
    del parts
    held = [first, second]
    del first, second
    held.pop()  # the second part is free; the first is given back while the list is looked through, and joins it
    device_pool._pieces[stream] = Interrupted(free, held.clear)
    taken = pool.malloc(1024)
    assert taken.mem.size == 1024 and pool.free_bytes() == 1024
    assert pool.used_bytes() == 3 * 1024
    both = pool.malloc(1024)
    assert pool.free_bytes() == 0 and {both.ptr, taken.ptr} | {one.ptr for one in rest} == {
        rest[0].ptr + 1024 * k for k in (-2, -1, 0, 1)
    }
