"""``cupy.cuda.pinned_memory``: page-locked host memory, and the list of transfers that still read some."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from capturekit.model.skipped_exits import Lock
from capturekit.simulated.device.constants import CONSTANTS

from . import runtime, runtime_calls

_UNIT = 512


class PinnedMemory(runtime_calls.Owned):
    """Memory from ``cudaHostAlloc``, freed with the object."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        if size > 0:
            self._own(runtime.hostAlloc, size, flags)

    def _give_back(self) -> None:
        runtime.freeHost(self.ptr)

    def __int__(self) -> int:
        return self.ptr


#: Before Python 3.12 a NumPy array is the one class with a buffer that can point anywhere and be subclassed.
_Bytes: Any = np.ndarray


class PinnedMemoryPointer(_Bytes):  # type: ignore[misc]
    """A place in pinned memory, with the buffer protocol."""

    mem: Any
    ptr: int

    def __new__(cls, mem: Any, offset: int) -> PinnedMemoryPointer:
        nbytes = mem.size - offset
        # An array of ctypes in between: NumPy takes the base's base where both are plain arrays (or a memoryview of
        # one), and what is made of this pointer would hold the bytes without holding the memory.
        there = (ctypes.c_byte * nbytes).from_buffer(runtime.host_bytes(mem.ptr + offset, nbytes))
        self: PinnedMemoryPointer = super().__new__(cls, nbytes, np.int8, there)
        self.mem = mem
        self.ptr = mem.ptr + offset
        return self

    def __init__(self, mem: Any, offset: int) -> None:
        """Point ``offset`` bytes into ``mem``."""

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> PinnedMemoryPointer:
        return PinnedMemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    __radd__ = __add__

    def __sub__(self, offset: int) -> PinnedMemoryPointer:
        return self + -offset

    __iadd__, __isub__ = __add__, __sub__  # an array can't be moved

    def size(self) -> int:
        return int(self.mem.size - (self.ptr - self.mem.ptr))


def _add_to_watch_list(event: Any, obj: Any) -> None:
    """Keep an object until an event is done."""
    _check_and_release()
    if not event.done:
        runtime_calls.state.transfers.append((event, obj))


def _check_and_release() -> None:
    transfers = runtime_calls.state.transfers
    if transfers:
        with _lock:
            while transfers and transfers[0][0].done:
                del transfers[0]


_lock = Lock()


def _malloc(size: int) -> PinnedMemoryPointer:
    return PinnedMemoryPointer(PinnedMemory(size, CONSTANTS['hostAllocPortable']), 0)


def alloc_pinned_memory(size: int) -> Any:
    _check_and_release()
    return (runtime_calls.state.pinned_allocator or _malloc)(size)


def set_pinned_memory_allocator(allocator: Callable[[int], Any] | None = None) -> None:
    runtime_calls.state.pinned_allocator = allocator


class PooledPinnedMemory(PinnedMemory):
    """Pinned memory that goes back to its pool with the object."""

    def __init__(self, mem: PinnedMemory, pool: weakref.ref[PinnedMemoryPool]) -> None:
        self.ptr, self.size, self.mem, self.pool = mem.ptr, mem.size, mem, pool

    def free(self) -> None:
        pool = self.pool()
        if pool is not None and self.ptr != 0:
            pool._used.pop(self.ptr, None)
            pool._free.append(self.mem)
        self.ptr = self.size = 0

    def __del__(self, is_shutting_down: Callable[[], bool] = sys.is_finalizing) -> None:
        self.free()


class PinnedMemoryPool:
    """A pool of pinned memory; sizes are powers of two. Finalizers give memory back at any time: appending is safe."""

    def __init__(self, allocator: Callable[[int], Any] = _malloc) -> None:
        self._alloc = allocator
        self._free: list[PinnedMemory] = []
        # Held here as well as by who uses it: what only garbage holds is finalized, though a pool takes it back.
        self._used: dict[int, PinnedMemory] = {}
        # One for all: a weak reference that only garbage holds is dead before the garbage is finalized.
        self._itself = weakref.ref(self)
        self._lock = Lock()

    def malloc(self, size: int) -> PinnedMemoryPointer:
        if size == 0:
            return PinnedMemoryPointer(PinnedMemory(0), 0)
        size = max(_UNIT, 1 << (size - 1).bit_length())
        with self._lock:
            mem = next((one for one in self._free if one.size == size), None)
            if mem is not None:
                self._free.remove(mem)
        if mem is None:
            mem = self._alloc(size).mem
        self._used[mem.ptr] = mem
        return PinnedMemoryPointer(PooledPinnedMemory(mem, self._itself), 0)

    def free_all_blocks(self) -> None:
        _check_and_release()
        self._free = []

    def n_free_blocks(self) -> int:
        return len(self._free)


def is_memory_pinned(data: int) -> bool:
    return runtime.pointerGetMemoryType(data) == CONSTANTS['memoryTypeHost']
