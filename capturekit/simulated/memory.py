"""``cupy.cuda.memory``: who owns which bytes of the device.

The pool is CuPy's: free lists per stream, the smallest block that fits, split and merged again; what a stream frees
that stream gets back at once. So the hazards of graphs over pooled memory happen here as well: a replay writes into
blocks that others have taken over since, and two lanes of one capture are handed the same block.
"""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from capturekit.simulated.constants import CONSTANTS

from . import devices, hooks, runtime, streams
from .current import STREAM_PER_THREAD, get_current_stream_ptr
from .runtime import CUDARuntimeError

ALLOCATION_UNIT_SIZE = 512
_UNLIMITED = 2**64 - 1
_SYNCHRONOUS = 'the current stream is capturing, so synchronous API calls are disallowed'
_NO_H2D = 'the current stream is capturing, so H2D transfers are disallowed'
_NO_D2H = 'the current stream is capturing, so D2H transfers are disallowed'
_H2D, _D2H, _DEFAULT = (CONSTANTS[f'memcpy{kind}'] for kind in ('HostToDevice', 'DeviceToHost', 'Default'))

Allocator = Callable[[int], 'MemoryPointer']


class OutOfMemoryError(MemoryError):
    """The device, or a pool's limit, has not enough memory left."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        self._size = size
        self._total = total
        self._limit = limit
        if limit == 0:
            message = f'Out of memory allocating {size:,} bytes'
            if total != -1:
                message += f' (allocated so far: {total:,} bytes).'
        else:
            message = (
                f'Out of memory allocating {size:,} bytes '
                f'(allocated so far: {total:,} bytes, limit set to: {limit:,} bytes).'
            )
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._size, self._total, self._limit))


class BaseMemory:
    """Memory on the device: ``ptr``, ``size``, ``device_id``."""

    ptr: int = 0
    size: int = 0
    device_id: int = 0

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> devices.Device:
        """The device that holds the memory."""
        return devices.Device(self.device_id)


class Memory(BaseMemory):
    """Memory from ``cudaMalloc``, freed with the object."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = runtime.getDevice()
        self.ptr = 0
        if size > 0:
            self.ptr = runtime.malloc(size)

    def __del__(self) -> None:
        if self.ptr:
            runtime.free(self.ptr)


class ManagedMemory(Memory):
    """Managed memory; here like any other."""

    def prefetch(self, stream: Any, *, device_id: int = -2) -> None:
        """Prefetch: not simulated."""
        runtime.memPrefetchAsync(self.ptr, self.size, device_id, stream.ptr)  # type: ignore[attr-defined]

    def advise(self, advise: int, dev: devices.Device) -> None:
        """Advise: not simulated."""
        runtime.memAdvise(self.ptr, self.size, advise, dev.id)  # type: ignore[attr-defined]


class MemoryAsync(BaseMemory):
    """Memory from ``cudaMallocAsync`` on a stream, freed on it."""

    def __init__(self, size: int, stream: Any) -> None:
        self.size = size
        self.device_id = runtime.getDevice()
        self.stream_ref = weakref.ref(stream)
        self.ptr = 0
        if size > 0:
            self.ptr = runtime.mallocAsync(size, stream.ptr)

    def __del__(self) -> None:
        if self.ptr:
            stream = self.stream_ref()
            if stream is None:
                stream = streams.get_current_stream()
            runtime.freeAsync(self.ptr, stream.ptr)


class UnownedMemory(BaseMemory):
    """Memory that something else owns; ``owner`` is kept alive."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        if device_id < 0:
            if ptr == 0:
                raise RuntimeError('UnownedMemory requires explicit device ID for a null pointer.')
            device_id = runtime.pointerGetAttributes(ptr).device
        self.size = size
        self.device_id = device_id
        self.ptr = ptr
        self._owner = owner


def _refuse_if_capturing(stream_ptr: int, message: str) -> None:
    if runtime.streamIsCapturing(stream_ptr):
        raise RuntimeError(message)


def _pointer(stream: Any) -> int:
    return get_current_stream_ptr() if stream is None else int(stream.ptr)


def _address(mem: Any) -> int:
    return mem if isinstance(mem, int) else int(mem.value)


class MemoryPointer:
    """A place in some memory."""

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        assert mem.ptr != 0 or offset == 0
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id
        self.mem = mem

    def __int__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f'<{type(self).__name__} 0x{self.ptr:x} device={self.device_id} mem={self.mem!r}>'

    @property
    def device(self) -> devices.Device:
        """The device that holds the memory."""
        return devices.Device(self.device_id)

    def __add__(self, offset: int) -> MemoryPointer:
        assert self.ptr != 0 or offset == 0
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    __radd__ = __add__

    def __iadd__(self, offset: int) -> MemoryPointer:
        assert self.ptr != 0 or offset == 0
        self.ptr += offset
        return self

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    def __isub__(self, offset: int) -> MemoryPointer:
        return self.__iadd__(-offset)

    def copy_from_device(self, src: MemoryPointer, size: int) -> None:
        """Copy on the legacy stream, synchronously."""
        _refuse_if_capturing(get_current_stream_ptr(), _SYNCHRONOUS)
        if size > 0:
            runtime.memcpy(self.ptr, src.ptr, size, _DEFAULT)

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        """Copy on a stream, by default the current one."""
        if size > 0:
            runtime.memcpyAsync(self.ptr, src.ptr, size, _DEFAULT, _pointer(stream))

    def copy_from_host(self, mem: Any, size: int) -> None:
        """Copy from the host on the legacy stream, synchronously."""
        _refuse_if_capturing(get_current_stream_ptr(), _SYNCHRONOUS)
        if size > 0:
            runtime.memcpy(self.ptr, _address(mem), size, _H2D)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy from the host on a stream; refused while it is captured."""
        _refuse_if_capturing(_pointer(stream), _NO_H2D)
        if size > 0:
            runtime.memcpyAsync(self.ptr, _address(mem), size, _H2D, _pointer(stream))

    def copy_from(self, mem: Any, size: int) -> None:
        """Copy from the device or the host, synchronously."""
        if isinstance(mem, MemoryPointer):
            self.copy_from_device(mem, size)
        else:
            self.copy_from_host(mem, size)

    def copy_from_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy from the device or the host on a stream."""
        if isinstance(mem, MemoryPointer):
            self.copy_from_device_async(mem, size, stream)
        else:
            self.copy_from_host_async(mem, size, stream)

    def copy_to_host(self, mem: Any, size: int) -> None:
        """Copy to the host on the legacy stream, synchronously."""
        _refuse_if_capturing(get_current_stream_ptr(), _SYNCHRONOUS)
        if size > 0:
            runtime.memcpy(_address(mem), self.ptr, size, _D2H)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy to the host on a stream; refused while it is captured."""
        _refuse_if_capturing(_pointer(stream), _NO_D2H)
        if size > 0:
            runtime.memcpyAsync(_address(mem), self.ptr, size, _D2H, _pointer(stream))

    def memset(self, value: int, size: int) -> None:
        """Set bytes on the legacy stream, synchronously."""
        _refuse_if_capturing(get_current_stream_ptr(), _SYNCHRONOUS)
        if size > 0:
            runtime.memset(self.ptr, value, size)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        """Set bytes on a stream, by default the current one."""
        if size > 0:
            runtime.memsetAsync(self.ptr, value, size, _pointer(stream))


# -- the current allocator --------------------------------------------------------------------------------------


def _malloc(size: int) -> MemoryPointer:
    return MemoryPointer(Memory(size), 0)


def malloc_async(size: int) -> MemoryPointer:
    """Allocate in stream order on the current stream."""
    return MemoryPointer(MemoryAsync(size, streams.get_current_stream()), 0)


def malloc_managed(size: int) -> MemoryPointer:
    """Allocate managed memory."""
    return MemoryPointer(ManagedMemory(size), 0)


def malloc_system(size: int) -> MemoryPointer:
    """Allocate system memory: not simulated."""
    raise NotImplementedError('cupy.cuda.memory.malloc_system is not simulated')


_current_allocator: Allocator = _malloc
_thread_local = threading.local()


def _get_thread_local_allocator() -> Allocator | None:
    allocator: Allocator | None = getattr(_thread_local, 'allocator', None)
    return allocator


def _set_thread_local_allocator(allocator: Allocator | None) -> None:
    _thread_local.allocator = allocator


def alloc(size: int) -> MemoryPointer:
    """Allocate with the current allocator."""
    return get_allocator()(size)


def set_allocator(allocator: Allocator | None = None) -> None:
    """Set the allocator of every thread; None means no pool."""
    global _current_allocator
    if _get_thread_local_allocator() is not None:
        raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
    _current_allocator = _malloc if allocator is None else allocator


def get_allocator() -> Allocator:
    """Return the current allocator."""
    return _get_thread_local_allocator() or _current_allocator


# -- the pool ---------------------------------------------------------------------------------------------------


def _round_size(size: int) -> int:
    return (size + ALLOCATION_UNIT_SIZE - 1) // ALLOCATION_UNIT_SIZE * ALLOCATION_UNIT_SIZE


def _parse_limit_string(limit: str | None = None) -> dict[str, Any]:
    limit = os.environ.get('CUPY_GPU_MEMORY_LIMIT') if limit is None else limit
    if limit is None:
        return {'size': None, 'fraction': None}
    if limit.endswith('%'):
        return {'size': None, 'fraction': float(limit[:-1]) / 100.0}
    return {'size': int(limit), 'fraction': None}


def _stream_identifier() -> int:
    ptr = get_current_stream_ptr()
    return -threading.get_ident() if ptr == STREAM_PER_THREAD else ptr


class _Chunk:
    """A piece of an allocation; pieces of one allocation are linked in order of address."""

    __slots__ = ('arena', 'mem', 'next', 'offset', 'prev', 'size')

    def __init__(self, mem: BaseMemory, offset: int, size: int, arena: _Arena) -> None:
        self.mem = mem
        self.offset = offset
        self.size = size
        self.arena = arena
        self.prev: _Chunk | None = None
        self.next: _Chunk | None = None

    def split(self, size: int) -> _Chunk | None:
        if self.size == size:
            return None
        rest = _Chunk(self.mem, self.offset + size, self.size - size, self.arena)
        self.size = size
        rest.prev, rest.next = self, self.next
        if self.next is not None:
            self.next.prev = rest
        self.next = rest
        return rest

    def merge_next(self) -> None:
        other = self.next
        assert other is not None
        self.size += other.size
        self.next = other.next
        if self.next is not None:
            self.next.prev = self


class _Arena:
    """The free pieces of one stream."""

    def __init__(self) -> None:
        self.free: list[_Chunk] = []

    def take(self, size: int) -> _Chunk | None:
        fitting = [c for c in self.free if c.size >= size]
        if not fitting:
            return None
        smallest = min(c.size for c in fitting)
        chunk = next(c for c in reversed(fitting) if c.size == smallest)
        self.free.remove(chunk)
        rest = chunk.split(size)
        if rest is not None:
            self.free.append(rest)
        return chunk

    def give(self, chunk: _Chunk) -> None:
        while chunk.next is not None and chunk.next in self.free:
            self.free.remove(chunk.next)
            chunk.merge_next()
        while chunk.prev is not None and chunk.prev in self.free:
            chunk = chunk.prev
            self.free.remove(chunk)
            chunk.merge_next()
        self.free.append(chunk)

    def drop_whole(self) -> int:
        whole = [c for c in self.free if c.prev is None and c.next is None]
        self.free = [c for c in self.free if c.prev is not None or c.next is not None]
        return sum(c.size for c in whole)


class PooledMemory(BaseMemory):
    """Memory that goes back to its pool with the object."""

    def __init__(self, chunk: _Chunk, pool: weakref.ref[SingleDeviceMemoryPool]) -> None:
        self.chunk = chunk
        self.ptr = chunk.mem.ptr + chunk.offset
        self.size = chunk.size
        self.device_id = chunk.mem.device_id
        self.pool = pool
        self.identity = type(chunk.mem).__name__

    def free(self) -> None:
        """Give the memory back to the pool."""
        ptr, self.ptr = self.ptr, 0
        pool = self.pool()
        if ptr == 0 or pool is None:
            return
        facts = {'device_id': self.device_id, 'mem_size': self.size, 'mem_ptr': ptr, 'pmem_id': id(self)}
        with hooks.told('free', facts, {}):
            pool._free(self.chunk)

    def __del__(self) -> None:
        self.free()


class SingleDeviceMemoryPool:
    """The pool of one device."""

    def __init__(self, allocator: Allocator | None = None) -> None:
        self._allocator = _malloc if allocator is None else allocator
        self._arenas: dict[int, _Arena] = {}
        # Reentrant: garbage collection inside an allocation frees other arrays into the same pool.
        self._lock = threading.RLock()
        self._total = 0
        self._in_use = 0
        self._limit = 0
        self._device_id = runtime.getDevice()
        self.set_limit(**_parse_limit_string())

    def malloc(self, size: int) -> MemoryPointer:
        rounded = _round_size(size)
        after = {'mem_ptr': 0, 'pmem_id': 0}
        before = {'device_id': self._device_id, 'size': size, 'mem_size': rounded}
        with hooks.told('malloc', before, after):
            pointer = self._malloc(rounded)
            after.update(mem_ptr=pointer.ptr, pmem_id=id(pointer.mem))
            return pointer

    def _malloc(self, size: int) -> MemoryPointer:
        if size == 0:
            return MemoryPointer(Memory(0), 0)
        with self._lock:
            arena = self._arenas.setdefault(_stream_identifier(), _Arena())
            chunk = arena.take(size)
            if chunk is None:
                chunk = _Chunk(self._from_device(size), 0, size, arena)
            self._in_use += chunk.size
        return MemoryPointer(PooledMemory(chunk, weakref.ref(self)), 0)

    def _from_device(self, size: int) -> BaseMemory:
        tidying: tuple[Callable[[], Any], ...] = (self.free_all_blocks, gc.collect, self.free_all_blocks)
        for tidy in tidying:
            if self._fits(size):
                break
            tidy()
        if not self._fits(size):
            raise OutOfMemoryError(size, self._total, self._limit)
        last_attempt: Callable[[], Any] = int
        for tidy in (*tidying, last_attempt):
            try:
                mem = self._alloc(size).mem
                self._total += size
                return mem
            except CUDARuntimeError as e:
                if e.status != runtime._MEMORY_ALLOCATION:
                    raise
                tidy()
        raise OutOfMemoryError(size, self._total, self._limit)

    def _fits(self, size: int) -> bool:
        return self._total + size <= (self._limit or _UNLIMITED)

    def _alloc(self, size: int) -> MemoryPointer:
        after = {'mem_ptr': 0}
        with hooks.told('alloc', {'device_id': self._device_id, 'mem_size': size}, after):
            pointer = self._allocator(size)
            after['mem_ptr'] = pointer.ptr
            return pointer

    def _free(self, chunk: _Chunk) -> None:
        with self._lock:
            self._in_use -= chunk.size
            chunk.arena.give(chunk)

    def free_all_blocks(self, stream: Any = None) -> None:
        with self._lock:
            if stream is None:
                arenas = list(self._arenas.values())
            else:
                ident = -threading.get_ident() if stream.ptr == STREAM_PER_THREAD else stream.ptr
                arenas = [self._arenas[ident]] if ident in self._arenas else []
            self._total -= sum([arena.drop_whole() for arena in arenas])

    def n_free_blocks(self) -> int:
        with self._lock:
            return sum(len(arena.free) for arena in self._arenas.values())

    def used_bytes(self) -> int:
        return self._in_use

    def free_bytes(self) -> int:
        return self._total - self._in_use

    def total_bytes(self) -> int:
        return self._total

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        if size is not None and fraction is not None:
            raise ValueError('size and fraction cannot be specified at one time')
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f'memory limit fraction out of range: {fraction}')
            size = int(fraction * runtime.memGetInfo()[1])
        if size is not None and size < 0:
            raise ValueError(f'memory limit size out of range: {size}')
        self._limit = size or 0

    def get_limit(self) -> int:
        return self._limit


class MemoryPool:
    """A pool that keeps freed memory for the stream that freed it."""

    def __init__(self, allocator: Allocator | None = None) -> None:
        self._allocator = allocator
        self._pool: SingleDeviceMemoryPool | None = None
        self._lock = threading.Lock()

    def device_pool(self) -> SingleDeviceMemoryPool:
        """Return the current device's part."""
        with self._lock:
            if self._pool is None:
                self._pool = SingleDeviceMemoryPool(self._allocator)
            return self._pool

    def malloc(self, size: int) -> MemoryPointer:
        """Allocate, from the current stream's free blocks if possible."""
        return self.device_pool().malloc(size)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give free blocks that are not split back to the device: those of ``stream``, or all."""
        self.device_pool().free_all_blocks(stream=stream)

    def free_all_free(self) -> None:
        """(Deprecated) Use :meth:`free_all_blocks`."""
        warnings.warn(
            'free_all_free is deprecated. Use free_all_blocks instead.', DeprecationWarning, stacklevel=2
        )
        self.free_all_blocks()

    def n_free_blocks(self) -> int:
        """Return the number of free blocks."""
        return self.device_pool().n_free_blocks()

    def used_bytes(self) -> int:
        """Return the bytes in use."""
        return self.device_pool().used_bytes()

    def free_bytes(self) -> int:
        """Return the bytes held but not in use."""
        return self.device_pool().free_bytes()

    def total_bytes(self) -> int:
        """Return the bytes held."""
        return self.device_pool().total_bytes()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Limit the bytes held; 0 means no limit."""
        self.device_pool().set_limit(size, fraction)

    def get_limit(self) -> int:
        """Return the limit in bytes, 0 if there is none."""
        return self.device_pool().get_limit()


class PythonFunctionAllocatorMemory(BaseMemory):
    """Memory from a Python function."""

    def __init__(
        self,
        size: int,
        malloc_func: Callable[[int, int], int],
        free_func: Callable[[int, int], Any],
        device_id: int,
    ) -> None:
        self._free_func = free_func
        self.device_id = device_id
        self.size = size
        self.ptr = 0
        if size > 0:
            self.ptr = malloc_func(size, device_id)

    def __del__(self) -> None:
        if self.ptr:
            self._free_func(self.ptr, self.device_id)


class PythonFunctionAllocator:
    """An allocator made of ``malloc_func(size, device_id) -> ptr`` and ``free_func(ptr, device_id)``."""

    def __init__(self, malloc_func: Callable[[int, int], int], free_func: Callable[[int, int], Any]) -> None:
        self._malloc_func = malloc_func
        self._free_func = free_func

    def malloc(self, size: int) -> MemoryPointer:
        """Allocate with ``malloc_func``."""
        mem = PythonFunctionAllocatorMemory(size, self._malloc_func, self._free_func, runtime.getDevice())
        return MemoryPointer(mem, 0)


class CFunctionAllocator:
    """An allocator made of C functions: not simulated."""

    def __init__(self, param: int, malloc_func: int, free_func: int, owner: object) -> None:
        raise NotImplementedError('cupy.cuda.CFunctionAllocator is not simulated')


class MemoryAsyncPool:
    """The driver's pool: not simulated; ``malloc_async`` is."""

    def __init__(self, pool_handles: Any = 'current') -> None:
        raise NotImplementedError('cupy.cuda.MemoryAsyncPool is not simulated; cupy.cuda.malloc_async is')
