"""The pool of the stand-in, between threads."""

from __future__ import annotations

import threading
from typing import Any


def test_a_finalizer_does_not_wait_for_the_pool(sim: Any) -> None:
    """Its thread may hold the device, for which whoever has the pool waits: the two would wait for each other."""
    pool = sim.cuda.MemoryPool()
    memory = pool.malloc(512)
    part = next(iter(pool._pools.values()))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with part._locked():
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    address = memory.ptr
    del memory  # would not return
    done.set()
    thread.join(30)
    assert (pool.used_bytes(), pool.n_free_blocks()) == (0, 1)
    assert pool.malloc(512).ptr == address
