"""Kernels on the simulated device that reach memory by its address."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capturekit.simulated import body, memory_at


def add_at(cp: Any, name: str) -> Any:
    """A kernel that adds what it reads at one address to what lies at another, as doubles."""

    @body(name)
    def run(grid: Any, block: Any, args: Any) -> None:
        target, source, n = (int(a) for a in args)
        memory_at(target, 8 * n).view(np.float64)[:] += memory_at(source, 8 * n).view(np.float64)

    return cp.RawKernel('source', name)


def pinned(cp: Any, n: int) -> Any:
    return np.frombuffer(cp.cuda.alloc_pinned_memory(8 * n), np.float64, n)


def test_kernels_reach_device_and_pinned_memory_by_address(sim: Any) -> None:
    kernel = add_at(sim, 'conditions_add')
    x, host = sim.arange(4.0), pinned(sim, 2)
    host[:] = 10, 20
    # Addresses may point into an array.
    kernel((1,), (1,), (np.uint64(x.data.ptr + 8), np.uint64(host.ctypes.data), 2))
    assert x.tolist() == [0, 11, 22, 3]
    kernel((1,), (1,), (host.ctypes.data, x[1:].data.ptr, 2))
    assert host.tolist() == [21, 42]
    memory_at(x.data.ptr, 8).view(np.float64)[0] = 5
    assert float(x[0]) == 5


def test_memory_at_refuses_what_is_not_allocated(sim: Any) -> None:
    x = sim.zeros(4)
    ptr = sim.cuda.runtime.malloc(64)
    assert memory_at(ptr, 64).nbytes == memory_at(np.uint64(ptr), np.int32(64)).nbytes == 64
    for address, nbytes in ((ptr, 65), (ptr + 64, 1), (0, 1), (x.data.ptr, 1 << 20)):
        with pytest.raises(ValueError, match=rf'holds {nbytes} bytes at address {address:#x}'):
            memory_at(address, nbytes)
    sim.cuda.runtime.free(ptr)
    with pytest.raises(ValueError, match='no allocation of the simulated device'):
        memory_at(ptr, 1)
