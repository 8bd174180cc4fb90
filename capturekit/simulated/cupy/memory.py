"""``cupy.cuda.memory``: who owns which bytes of the device, pointers into them, the allocator, pools and hooks.

The pool is CuPy's where programs can see it: what a stream frees that stream gets back at once. So the hazards of
graphs over pooled memory happen here as well: a replay writes into blocks that others have taken over since, and two
lanes of one capture are handed the same block.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from capturekit.simulated.cupy.surface import named
from capturekit.simulated.device.constants import CONSTANTS

from . import devices, runtime, runtime_calls, streams
from .runtime_calls import STREAM_PER_THREAD, Owned, get_current_stream_ptr

#: What a size is rounded up to.
ALLOCATION_UNIT_SIZE = 512
_SYNCHRONOUS = 'the current stream is capturing, so synchronous API calls are disallowed'
_H2D, _D2H, _DEFAULT = (CONSTANTS[f'memcpy{kind}'] for kind in ('HostToDevice', 'DeviceToHost', 'Default'))
#: Copies that CuPy refuses to record, and its words.
_REFUSED = {
    kind: f'the current stream is capturing, so {name} transfers are disallowed'
    for kind, name in ((_H2D, 'H2D'), (_D2H, 'D2H'))
}

Allocator = Callable[[int], 'MemoryPointer']


class OutOfMemoryError(MemoryError):
    """The device, or a pool's limit, has not enough memory left."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        self._given = size, total, limit
        most = f', limit set to: {limit:,} bytes' if limit else ''
        so_far = f' (allocated so far: {total:,} bytes{most}).' if limit or total != -1 else ''
        super().__init__(f'Out of memory allocating {size:,} bytes{so_far}')

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self._given)


class BaseMemory(Owned):
    """Memory on the device: ``ptr``, ``size``, ``device_id``."""

    size: int = 0
    device_id: int = 0

    def __int__(self) -> int:
        return self.ptr

    device = property(lambda self: devices.Device(self.device_id))


class Memory(BaseMemory):
    """Memory from ``cudaMalloc``, freed with the object."""

    def __init__(self, size: int) -> None:
        self.size, self.device_id = size, runtime.getDevice()
        if size > 0:
            self._own(runtime.malloc, size)

    def _give_back(self) -> None:
        runtime.free(self.ptr)


class ManagedMemory(Memory):
    """Managed memory; here like any other."""


class MemoryAsync(BaseMemory):
    """Memory from ``cudaMallocAsync`` on a stream, freed on it."""

    def __init__(self, size: int, stream: Any) -> None:
        self.size, self.device_id = size, runtime.getDevice()
        self.stream_ref = weakref.ref(stream)
        if size > 0:
            self._own(runtime.mallocAsync, size, stream.ptr)

    def _give_back(self) -> None:
        runtime.freeAsync(self.ptr, (self.stream_ref() or streams.get_current_stream()).ptr)


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

    device = property(lambda self: devices.Device(self.device_id))

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
        here = isinstance(mem, MemoryPointer)
        (self.copy_from_device_async if here else self.copy_from_host_async)(mem, size, stream)

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


def _get_thread_local_allocator() -> Any:
    return runtime_calls.state.thread.allocator


def _set_thread_local_allocator(allocator: Allocator | None) -> None:
    runtime_calls.state.thread.allocator = allocator


def alloc(size: int) -> MemoryPointer:
    return get_allocator()(size)


def set_allocator(allocator: Allocator | None = None) -> None:
    if _get_thread_local_allocator() is not None:
        raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
    runtime_calls.state.allocator = allocator


def get_allocator() -> Allocator:
    return _get_thread_local_allocator() or runtime_calls.state.allocator or _malloc


@contextmanager
def using_allocator(allocator: Allocator | None = None) -> Iterator[None]:
    # Looked up where programs find it: a replaced _set_thread_local_allocator is honoured, as in CuPy.
    memory = runtime_calls.public['cupy.cuda.memory']
    previous = memory._get_thread_local_allocator()
    memory._set_thread_local_allocator(memory._malloc if allocator is None else allocator)
    try:
        yield
    finally:
        memory._set_thread_local_allocator(previous)


def _rounded(size: int) -> int:
    return -(-size // ALLOCATION_UNIT_SIZE) * ALLOCATION_UNIT_SIZE


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
    """The pool of the driver, which ``malloc_async`` takes memory from."""

    def __init__(self, pool_handles: Any = 'current') -> None:
        each = [pool_handles] if isinstance(pool_handles, (str, int)) else list(pool_handles)
        if 'create' in each:
            raise NotImplementedError('cudaMemPoolCreate is not yet supported')
        if not all(one in ('default', 'current') or isinstance(one, int) for one in each):
            raise ValueError("handle must be 'default', 'current' or an int (a cudaMemPool_t)")

    def malloc(self, size: int) -> MemoryPointer:
        return malloc_async(_rounded(size))

    def free_all_blocks(self, stream: Any = None) -> None:
        """Wait for a stream, or the current one: what it frees goes back to the device at once."""
        (streams.get_current_stream() if stream is None else stream).synchronize()

    def _not_told(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError('the simulated MemoryAsyncPool has no sizes and limits')

    n_free_blocks = used_bytes = free_bytes = total_bytes = set_limit = get_limit = _not_told


# -- hooks: told before and after every allocation, per thread --------------------------------------------------


def get_memory_hooks() -> Any:
    return runtime_calls.of_thread('hooks', OrderedDict)


class MemoryHook:
    """Something to be told of allocations while it is entered, by methods of events.

    ``alloc_preprocess`` and ``alloc_postprocess`` are told before and after memory is taken from the device
    (``device_id``, ``mem_size``, afterwards ``mem_ptr``), those of ``malloc`` from the pool (also ``size``, afterwards
    ``pmem_id``), those of ``free`` when memory returns to the pool.
    """

    name = 'MemoryHook'

    def __enter__(self) -> MemoryHook:
        hooks = get_memory_hooks()
        if self.name in hooks:
            raise KeyError(f'memory hook {self.name} already exists')
        hooks[self.name] = self
        return self

    def __exit__(self, *_: object) -> None:
        del get_memory_hooks()[self.name]


for _name in (f'{event}_{when}process' for event in ('alloc', 'malloc', 'free') for when in ('pre', 'post')):
    setattr(MemoryHook, _name, named(lambda self, **kwargs: None, _name, module=__name__))


@contextmanager
def told(event: str, *later: str, **before: Any) -> Iterator[dict[str, Any]]:
    """Tell every hook of ``event``: what is known before it, and then what the block fills in ``later``, 0 at first."""
    hooks, after = list(get_memory_hooks().values()), dict.fromkeys(later, 0)
    for hook in hooks:
        getattr(hook, f'{event}_preprocess')(**before)
    try:
        yield after
    finally:
        for hook in hooks:
            getattr(hook, f'{event}_postprocess')(**before, **after)


# -- the pool ---------------------------------------------------------------------------------------------------


class _Piece:
    """A piece of an allocation of ``whole`` bytes, which a stream was given, or has freed."""

    __slots__ = ('ident', 'mem', 'offset', 'size', 'whole')

    def __init__(self, mem: BaseMemory, offset: int, size: int, whole: int, ident: int) -> None:
        self.mem, self.offset, self.size, self.whole, self.ident = mem, offset, size, whole, ident


class PooledMemory(BaseMemory):
    """Memory that goes back to its pool with the object."""

    def __init__(self, piece: _Piece, pool: weakref.ref[SingleDeviceMemoryPool]) -> None:
        self.ptr, self.size = piece.mem.ptr + piece.offset, piece.size
        self.device_id = piece.mem.device_id
        self.pool = pool
        self._piece = piece

    def free(self) -> None:
        ptr, self.ptr = self.ptr, 0
        pool = self.pool()
        if ptr != 0 and pool is not None:
            with told('free', device_id=self.device_id, mem_size=self.size, mem_ptr=ptr, pmem_id=id(self)):
                pool._free(self._piece)

    def __del__(self, is_shutting_down: Callable[[], bool] = sys.is_finalizing) -> None:
        self.free()


def _identifier(ptr: int) -> int:
    return -threading.get_ident() if ptr == STREAM_PER_THREAD else ptr


class SingleDeviceMemoryPool:
    """The pool of one device: the smallest free piece of the stream that fits, split, and joined again when freed."""

    def __init__(self, allocator: Allocator | None = None) -> None:
        self._allocator = _malloc if allocator is None else allocator
        #: By stream, the pieces that it has freed.
        self._pieces: dict[int, list[_Piece]] = {}
        self._lock = threading.Lock()  # a finalizer in the middle of a change must not get it
        self._returned: deque[_Piece] = deque()
        self._total = self._in_use = 0
        # Held here as well as by the arrays: what only garbage holds is finalized with it, though a pool takes it back.
        self._taken: set[_Piece] = set()
        # One for all: a weak reference that only garbage holds is dead before the garbage is finalized.
        self._itself = weakref.ref(self)
        self._device_id = runtime.getDevice()
        self._limit = 0

    def malloc(self, size: int) -> MemoryPointer:
        rounded = _rounded(size)
        with told('malloc', 'mem_ptr', 'pmem_id', device_id=self._device_id, size=size, mem_size=rounded) as after:
            pointer = self._malloc(rounded) if rounded else MemoryPointer(Memory(0), 0)
            after.update(mem_ptr=pointer.ptr, pmem_id=id(pointer.mem))
            return pointer

    def _malloc(self, size: int) -> MemoryPointer:
        stream = get_current_stream_ptr()
        self._settle()
        with self._lock:
            piece = self._take(_identifier(stream), size)
        if piece is None:
            piece = _Piece(self._from_device(size), 0, size, size, _identifier(stream))
        # The pools of graphs have allocators of their own: what lies free there may be used by recorded work.
        elif self._allocator is _malloc:
            runtime.spoil(stream, piece.mem.ptr + piece.offset, size)
        with self._lock:
            self._in_use += size
            self._taken.add(piece)
        return MemoryPointer(PooledMemory(piece, self._itself), 0)

    def _take(self, ident: int, size: int) -> _Piece | None:
        free = self._pieces.get(ident, [])
        piece = min((one for one in reversed(free) if one.size >= size), key=lambda one: one.size, default=None)
        if piece is None:
            return None
        free.remove(piece)
        if piece.size > size:
            free.append(_Piece(piece.mem, piece.offset + size, piece.size - size, piece.whole, ident))
        return _Piece(piece.mem, piece.offset, size, piece.whole, ident)

    def _from_device(self, size: int) -> BaseMemory:
        last: Callable[[], Any] = int
        for tidy in (self.free_all_blocks, gc.collect, self.free_all_blocks, last):
            try:
                if not self._limit or self._total + size <= self._limit:
                    with told('alloc', 'mem_ptr', device_id=self._device_id, mem_size=size) as after:
                        pointer = self._allocator(size)
                        after['mem_ptr'] = pointer.ptr
                    with self._lock:
                        self._total += size
                    return pointer.mem
            except runtime.CUDARuntimeError as e:
                if e.status != runtime.MEMORY_ALLOCATION:
                    raise
            tidy()
        raise OutOfMemoryError(size, self._total, self._limit)

    def _free(self, piece: _Piece) -> None:
        self._returned.append(piece)
        self._settle()

    def _settle(self) -> None:
        """Take back what finalizers have returned, unless the lock is held: who uses the pool next does it then.

        A finalizer never waits: it may run in the middle of this pool, or where its thread holds the device.
        """
        # behind ``acquire`` no call follows, at whose end a signal could keep the lock
        while self._returned and True in [*map(self._lock.acquire, (False,))]:
            try:
                with suppress(IndexError):  # a finalizer was quicker
                    self._put(self._returned.popleft())
            finally:
                self._lock.release()

    def _put(self, piece: _Piece) -> None:
        self._in_use -= piece.size
        self._taken.discard(piece)
        free = self._pieces.setdefault(piece.ident, [])
        for one in list(free):
            if one.mem is piece.mem and (
                one.offset + one.size == piece.offset or piece.offset + piece.size == one.offset
            ):
                free.remove(one)
                start = min(one.offset, piece.offset)
                piece = _Piece(piece.mem, start, one.size + piece.size, piece.whole, piece.ident)
        free.append(piece)

    def free_all_blocks(self, stream: Any = None) -> None:
        dropped = []
        self._settle()
        with self._lock:
            for ident, free in self._pieces.items():
                if stream is None or ident == _identifier(stream.ptr):
                    dropped += [one for one in free if one.size == one.whole]
                    free[:] = [one for one in free if one.size != one.whole]
            self._total -= sum(one.size for one in dropped)

    def n_free_blocks(self) -> int:
        self._settle()
        with self._lock:
            return sum(map(len, self._pieces.values()))

    def used_bytes(self) -> int:
        self._settle()
        return self._in_use

    def free_bytes(self) -> int:
        self._settle()
        return self._total - self._in_use

    def total_bytes(self) -> int:
        return self._total

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._limit = _limit_of(size, fraction)

    def get_limit(self) -> int:
        return self._limit


class MemoryPool:
    """A pool that keeps freed memory for the stream that freed it."""

    def __init__(self, allocator: Allocator | None = None) -> None:
        self._allocator = allocator
        self._pools: dict[int, SingleDeviceMemoryPool] = {}

    def device_pool(self) -> SingleDeviceMemoryPool:
        device = runtime.getDevice()
        if device not in self._pools:
            self._pools.setdefault(device, SingleDeviceMemoryPool(self._allocator))  # another thread may be quicker
        return self._pools[device]

    def malloc(self, size: int) -> MemoryPointer:
        return self.device_pool().malloc(size)


def _of_device(name: str) -> Callable[..., Any]:
    def call(self: MemoryPool, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.device_pool(), name)(*args, **kwargs)

    return named(call, name, inspect.signature(getattr(SingleDeviceMemoryPool, name)), __name__)


for _name in 'free_all_blocks n_free_blocks used_bytes free_bytes total_bytes set_limit get_limit'.split():
    setattr(MemoryPool, _name, _of_device(_name))
