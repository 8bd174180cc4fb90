"""The pools of the stand-in."""

from __future__ import annotations

import threading
from typing import Any

import pytest


def test_a_finalizer_does_not_wait_for_the_pool(sim: Any) -> None:
    """Its thread may hold the device, for which whoever has the pool waits: the two would wait for each other."""
    held, done = threading.Event(), threading.Event()
    other = sim.cuda.MemoryPool()

    def allocate(size: int) -> Any:
        if size > 512:  # the other thread has the pool
            held.set()
            done.wait(30)
        return other.malloc(size)

    pool = sim.cuda.MemoryPool(allocate)
    memory = pool.malloc(512)
    address = memory.ptr
    kept: list[Any] = []
    thread = threading.Thread(target=lambda: kept.append(pool.malloc(1024)))
    thread.start()
    assert held.wait(30)
    del memory  # would not return
    done.set()
    thread.join(30)
    assert (pool.used_bytes(), pool.n_free_blocks()) == (1024, 1)
    assert pool.malloc(512).ptr == address


def test_the_drivers_pool(sim: Any) -> None:
    pool = sim.cuda.MemoryAsyncPool()
    with sim.cuda.using_allocator(pool.malloc):
        x = sim.arange(100.0)
    assert (pool.used_bytes(), pool.total_bytes(), pool.get_limit()) == (1024, 32 << 20, 2**64 - 1)
    assert x.get()[99] == 99
    del x
    pool.free_all_blocks()
    assert pool.used_bytes() == pool.free_bytes() == 0
    with pytest.raises(ValueError, match='handle must be'):
        sim.cuda.MemoryAsyncPool('none')
