"""``cupy.cuda.memory`` without the pool: who owns which bytes of the device, pointers into them, the allocator."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from capturekit.simulated.device.constants import CONSTANTS

from . import devices, runtime, runtime_calls, streams
from .runtime_calls import get_current_stream_ptr

_SYNCHRONOUS = 'the current stream is capturing, so synchronous API calls are disallowed'
_H2D, _D2H, _DEFAULT = (CONSTANTS[f'memcpy{kind}'] for kind in ('HostToDevice', 'DeviceToHost', 'Default'))
#: Copies that CuPy refuses to record, and its words.
_REFUSED = {
    kind: f'the current stream is capturing, so {name} transfers are disallowed'
    for kind, name in ((_H2D, 'H2D'), (_D2H, 'D2H'))
}

#: What a size is rounded up to, how much the driver's pool reserves at a time, and CuPy's word for no limit.
_UNIT, _RESERVED, _UNLIMITED = 512, 32 << 20, 2**64 - 1

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
    _born = -1

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
        self.ptr, self._born = 0, runtime_calls.state.number
        if size > 0:
            self.ptr = runtime.malloc(size)

    def __del__(self) -> None:
        if self.ptr and self._born == runtime_calls.state.number:
            runtime.free(self.ptr)


class ManagedMemory(Memory):
    """Managed memory; here like any other."""

    def prefetch(self, stream: Any, *, device_id: int = -2) -> None:
        """Prefetch: not simulated."""
        runtime.memPrefetchAsync(self.ptr, self.size, device_id, stream.ptr)

    def advise(self, advise: int, dev: devices.Device) -> None:
        """Advise: not simulated."""
        runtime.memAdvise(self.ptr, self.size, advise, dev.id)


class MemoryAsync(BaseMemory):
    """Memory from ``cudaMallocAsync`` on a stream, freed on it."""

    def __init__(self, size: int, stream: Any) -> None:
        self.size = size
        self.device_id = runtime.getDevice()
        self.stream_ref = weakref.ref(stream)
        self.ptr, self._born = 0, runtime_calls.state.number
        if size > 0:
            self.ptr = runtime.mallocAsync(size, stream.ptr)

    def __del__(self) -> None:
        if self.ptr and self._born == runtime_calls.state.number:
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

    def _copy(self, dst: int, src: int, size: int, kind: int) -> None:
        """Copy on the legacy stream, synchronously."""
        _refuse_if_capturing(get_current_stream_ptr(), _SYNCHRONOUS)
        if size > 0:
            runtime.memcpy(dst, src, size, kind)

    def _copy_async(self, dst: int, src: int, size: int, kind: int, stream: Any) -> None:
        """Copy on a stream; refused while it is captured, but for copies between devices."""
        if kind in _REFUSED:
            _refuse_if_capturing(_pointer(stream), _REFUSED[kind])
        if size > 0:
            runtime.memcpyAsync(dst, src, size, kind, _pointer(stream))

    def copy_from_device(self, src: MemoryPointer, size: int) -> None:
        self._copy(self.ptr, src.ptr, size, _DEFAULT)

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        self._copy_async(self.ptr, src.ptr, size, _DEFAULT, stream)

    def copy_from_host(self, mem: Any, size: int) -> None:
        self._copy(self.ptr, _address(mem), size, _H2D)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy_async(self.ptr, _address(mem), size, _H2D, stream)

    def copy_from(self, mem: Any, size: int) -> None:
        (self.copy_from_device if isinstance(mem, MemoryPointer) else self.copy_from_host)(mem, size)

    def copy_from_async(self, mem: Any, size: int, stream: Any = None) -> None:
        copy = self.copy_from_device_async if isinstance(mem, MemoryPointer) else self.copy_from_host_async
        copy(mem, size, stream)

    def copy_to_host(self, mem: Any, size: int) -> None:
        self._copy(_address(mem), self.ptr, size, _D2H)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy_async(_address(mem), self.ptr, size, _D2H, stream)

    def memset(self, value: int, size: int) -> None:
        _refuse_if_capturing(get_current_stream_ptr(), _SYNCHRONOUS)
        if size > 0:
            runtime.memset(self.ptr, value, size)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        if size > 0:
            runtime.memsetAsync(self.ptr, value, size, _pointer(stream))


# -- the current allocator --------------------------------------------------------------------------------------


def _malloc(size: int) -> MemoryPointer:
    return MemoryPointer(Memory(size), 0)


def malloc_async(size: int) -> MemoryPointer:
    return MemoryPointer(MemoryAsync(size, streams.get_current_stream()), 0)


def malloc_managed(size: int) -> MemoryPointer:
    return MemoryPointer(ManagedMemory(size), 0)


def malloc_system(size: int) -> MemoryPointer:
    """Allocate system memory: not simulated."""
    raise NotImplementedError('cupy.cuda.memory.malloc_system is not simulated')


def _get_thread_local_allocator() -> Allocator | None:
    allocator: Allocator | None = getattr(runtime_calls.state.thread, 'allocator', None)
    return allocator


def _set_thread_local_allocator(allocator: Allocator | None) -> None:
    runtime_calls.state.thread.allocator = allocator


def alloc(size: int) -> MemoryPointer:
    return get_allocator()(size)


def set_allocator(allocator: Allocator | None = None) -> None:
    """Set the allocator of every thread; None means no pool."""
    if _get_thread_local_allocator() is not None:
        raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
    runtime_calls.state.allocator = allocator


def get_allocator() -> Allocator:
    return _get_thread_local_allocator() or runtime_calls.state.allocator or _malloc


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


def _limit_of(size: int | None, fraction: float | None) -> int:
    """The limit in bytes that is asked of a pool, 0 for none. Raises ValueError."""
    if size is not None and fraction is not None:
        raise ValueError('size and fraction cannot be specified at one time')
    if fraction is not None:
        if not 0 <= fraction <= 1:
            raise ValueError(f'memory limit fraction out of range: {fraction}')
        size = int(fraction * runtime.memGetInfo()[1])
    if size is not None and size < 0:
        raise ValueError(f'memory limit size out of range: {size}')
    return size or 0


class MemoryAsyncPool:
    """The pool of the driver, which ``malloc_async`` takes memory from; the limit is kept and not heeded."""

    def __init__(self, pool_handles: Any = 'current') -> None:
        each = [pool_handles] if isinstance(pool_handles, (str, int)) else list(pool_handles)
        if 'create' in each:
            raise NotImplementedError('cudaMemPoolCreate is not yet supported')
        if not all(one in ('default', 'current') or isinstance(one, int) for one in each):
            raise ValueError("handle must be 'default', 'current' or an int (a cudaMemPool_t)")
        self._given: weakref.WeakSet[BaseMemory] = weakref.WeakSet()
        self._limit = _UNLIMITED

    def malloc(self, size: int) -> MemoryPointer:
        """Allocate on the current stream."""
        found = malloc_async(-(-size // _UNIT) * _UNIT)
        self._given.add(found.mem)
        return found

    def free_all_blocks(self, stream: Any = None) -> None:
        """Wait for a stream, or the current one: what it frees goes back to the device at once."""
        (streams.get_current_stream() if stream is None else stream).synchronize()

    def n_free_blocks(self) -> int:
        raise NotImplementedError('This function is not supported in MemoryAsyncPool')

    def used_bytes(self) -> int:
        device = runtime.getDevice()
        return sum(mem.size for mem in self._given if mem.device_id == device)

    def free_bytes(self) -> int:
        return self.total_bytes() - self.used_bytes()

    def total_bytes(self) -> int:
        """The driver takes memory in pieces of 32 MiB."""
        return -(-self.used_bytes() // _RESERVED) * _RESERVED

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._limit = _limit_of(size, fraction) or _UNLIMITED

    def get_limit(self) -> int:
        return self._limit
