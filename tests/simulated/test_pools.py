"""The pool of the stand-in, between threads."""

from __future__ import annotations

import threading
from typing import Any


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
