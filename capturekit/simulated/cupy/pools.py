"""``cupy.cuda.MemoryPool`` and ``MemoryHook``.

It is CuPy's: free lists per stream, the smallest block that fits, split and merged again; what a stream frees that
stream gets back at once. So the hazards of graphs over pooled memory happen here as well: a replay writes into blocks
that others have taken over since, and two lanes of one capture are handed the same block.
"""

from __future__ import annotations

import gc
import inspect
import os
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from capturekit.simulated.cupy.signatures import named

from . import runtime, runtime_calls, runtime_memory
from .memory import Allocator, BaseMemory, Memory, MemoryPointer, OutOfMemoryError, _limit_of, _malloc
from .runtime import CUDARuntimeError
from .runtime_calls import STREAM_PER_THREAD, get_current_stream_ptr

ALLOCATION_UNIT_SIZE = 512
_UNLIMITED = 2**64 - 1


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


# -- hooks: told before and after every allocation, per thread --------------------------------------------------


def get_memory_hooks() -> OrderedDict[str, MemoryHook]:
    try:
        hooks: OrderedDict[str, MemoryHook] = runtime_calls.state.thread.hooks
    except AttributeError:
        hooks = runtime_calls.state.thread.hooks = OrderedDict()
    return hooks


class MemoryHook:
    """Something to be told of allocations while it is entered."""

    name = 'MemoryHook'

    def __enter__(self) -> MemoryHook:
        hooks = get_memory_hooks()
        if self.name in hooks:
            raise KeyError(f'memory hook {self.name} already exists')
        hooks[self.name] = self
        return self

    def __exit__(self, *_: object) -> None:
        del get_memory_hooks()[self.name]

    def alloc_preprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``mem_size`` before memory is taken from the device."""

    def alloc_postprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``mem_size``, ``mem_ptr`` after memory was taken from the device."""

    def malloc_preprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``size``, ``mem_size`` before memory is taken from the pool."""

    def malloc_postprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``size``, ``mem_size``, ``mem_ptr``, ``pmem_id`` after memory was taken."""

    def free_preprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``mem_size``, ``mem_ptr``, ``pmem_id`` before memory returns to the pool."""

    def free_postprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``mem_size``, ``mem_ptr``, ``pmem_id`` after memory returned to the pool."""


@contextmanager
def told(event: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[None]:
    """Tell every hook of ``event``, with ``before`` and then with ``after`` (filled in by the block)."""
    hooks = list(get_memory_hooks().values())
    for hook in hooks:
        getattr(hook, f'{event}_preprocess')(**before)
    try:
        yield
    finally:
        for hook in hooks:
            getattr(hook, f'{event}_postprocess')(**before, **after)


# -- the pool ---------------------------------------------------------------------------------------------------


class _Chunk:
    """A piece of an allocation; pieces of one allocation know their neighbours in order of address.

    A piece is owned by the free list of its stream or by the memory object in use, never by a neighbour, so that a
    dropped pool gives everything back at once and not when garbage is collected.
    """

    __slots__ = ('__weakref__', '_next', '_prev', 'ident', 'mem', 'offset', 'size')

    def __init__(self, mem: BaseMemory, offset: int, size: int, ident: int) -> None:
        self.mem = mem
        self.offset = offset
        self.size = size
        self.ident = ident
        self._prev: weakref.ref[_Chunk] | None = None
        self._next: weakref.ref[_Chunk] | None = None

    @property
    def prev(self) -> _Chunk | None:
        return None if self._prev is None else self._prev()

    @property
    def next(self) -> _Chunk | None:
        return None if self._next is None else self._next()

    def split(self, size: int) -> _Chunk | None:
        if self.size == size:
            return None
        rest = _Chunk(self.mem, self.offset + size, self.size - size, self.ident)
        self.size = size
        _link(rest, self.next)
        _link(self, rest)
        return rest

    def merge_next(self) -> None:
        other = self.next
        assert other is not None
        self.size += other.size
        _link(self, other.next)


def _link(left: _Chunk, right: _Chunk | None) -> None:
    left._next = None if right is None else weakref.ref(right)
    if right is not None:
        right._prev = weakref.ref(left)


class _Arena:
    """The free pieces of one stream.

    Garbage collection may give pieces back while others are looked through: those wait until that is done.
    """

    def __init__(self) -> None:
        self.free: list[_Chunk] = []
        self._given: deque[_Chunk] = deque()
        self._busy = False

    def take(self, size: int) -> _Chunk | None:
        self._busy = True
        try:
            return self._take(size)
        finally:
            self._busy = False
            self._settle()

    def give(self, chunk: _Chunk) -> None:
        self._given.append(chunk)
        self._settle()

    def drop_whole(self) -> int:
        self._busy = True
        try:
            whole = [c for c in self.free if c.prev is None and c.next is None]
            self.free = [c for c in self.free if c.prev is not None or c.next is not None]
            return sum(c.size for c in whole)
        finally:
            self._busy = False
            self._settle()

    def _settle(self) -> None:
        while self._given and not self._busy:
            self._busy = True
            try:
                if self._given:
                    self._put(self._given.popleft())
            finally:
                self._busy = False

    def _take(self, size: int) -> _Chunk | None:
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

    def _put(self, chunk: _Chunk) -> None:
        while (after := chunk.next) is not None and after in self.free:
            chunk.merge_next()
            self.free.remove(after)
        while (before := chunk.prev) is not None and before in self.free:
            self.free.remove(before)
            before.merge_next()
            chunk = before
        self.free.append(chunk)


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
        ptr, self.ptr = self.ptr, 0
        pool = self.pool()
        if ptr == 0 or pool is None:
            return
        if not get_memory_hooks():
            pool._free(self.chunk)
            return
        facts = {'device_id': self.device_id, 'mem_size': self.size, 'mem_ptr': ptr, 'pmem_id': id(self)}
        with told('free', facts, {}):
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
        self._returned: deque[_Chunk] = deque()
        self._total = 0
        self._in_use = 0
        # Held here as well as by the arrays: what only garbage holds is finalized with it, though a pool takes it back.
        self._taken: set[_Chunk] = set()
        # One for all: a weak reference that only garbage holds is dead before the garbage is finalized.
        self._itself = weakref.ref(self)
        self._limit = 0
        self._device_id = runtime.getDevice()
        self.set_limit(**_parse_limit_string())

    def malloc(self, size: int) -> MemoryPointer:
        rounded = _round_size(size)
        if not get_memory_hooks():
            return self._malloc(rounded)
        after = {'mem_ptr': 0, 'pmem_id': 0}
        before = {'device_id': self._device_id, 'size': size, 'mem_size': rounded}
        with told('malloc', before, after):
            pointer = self._malloc(rounded)
            after.update(mem_ptr=pointer.ptr, pmem_id=id(pointer.mem))
            return pointer

    def _malloc(self, size: int) -> MemoryPointer:
        if size == 0:
            return MemoryPointer(Memory(0), 0)
        with self._locked():
            ident = _stream_identifier()
            chunk = self._arenas.setdefault(ident, _Arena()).take(size)
            again = chunk is not None
            if chunk is None:
                chunk = _Chunk(self._from_device(size), 0, size, ident)
            self._in_use += chunk.size
            self._taken.add(chunk)
        # The pools of graphs have allocators of their own: what lies free there may be used by recorded work.
        if again and self._allocator is _malloc:
            runtime_memory.spoil(get_current_stream_ptr(), chunk.mem.ptr + chunk.offset, chunk.size)
        return MemoryPointer(PooledMemory(chunk, self._itself), 0)

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
                if e.status != runtime.MEMORY_ALLOCATION:
                    raise
                tidy()
        raise OutOfMemoryError(size, self._total, self._limit)

    def _fits(self, size: int) -> bool:
        return self._total + size <= (self._limit or _UNLIMITED)

    def _alloc(self, size: int) -> MemoryPointer:
        after = {'mem_ptr': 0}
        with told('alloc', {'device_id': self._device_id, 'mem_size': size}, after):
            pointer = self._allocator(size)
            after['mem_ptr'] = pointer.ptr
            return pointer

    def _free(self, chunk: _Chunk) -> None:
        self._returned.append(chunk)
        self._settle()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            yield
        self._settle()

    def _settle(self) -> None:
        """Take back what finalizers have returned, unless another thread is at it: that one does it then.

        A finalizer never waits: it may run where its thread holds the device, for which the other thread waits.
        """
        while self._returned and self._lock.acquire(blocking=False):
            try:
                with suppress(IndexError):  # a finalizer of this thread was quicker
                    chunk = self._returned.popleft()
                    self._in_use -= chunk.size
                    self._taken.discard(chunk)
                    self._arenas[chunk.ident].give(chunk)
            finally:
                self._lock.release()

    def free_all_blocks(self, stream: Any = None) -> None:
        with self._locked():
            if stream is None:
                arenas = list(self._arenas.values())
            else:
                ident = -threading.get_ident() if stream.ptr == STREAM_PER_THREAD else stream.ptr
                arenas = [self._arenas[ident]] if ident in self._arenas else []
            self._total -= sum([arena.drop_whole() for arena in arenas])

    def n_free_blocks(self) -> int:
        with self._locked():
            return sum(len(arena.free) for arena in self._arenas.values())

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
        self._lock = threading.Lock()

    def device_pool(self) -> SingleDeviceMemoryPool:
        """Return the current device's part."""
        with self._lock:
            device = runtime.getDevice()
            if device not in self._pools:
                self._pools[device] = SingleDeviceMemoryPool(self._allocator)
            return self._pools[device]

    def malloc(self, size: int) -> MemoryPointer:
        """Allocate, from the current stream's free blocks if possible."""
        return self.device_pool().malloc(size)

    def free_all_free(self) -> None:
        """(Deprecated) Use :meth:`free_all_blocks`."""
        warnings.warn('free_all_free is deprecated. Use free_all_blocks instead.', DeprecationWarning, stacklevel=2)
        self.device_pool().free_all_blocks()


def _of_device(name: str) -> Callable[..., Any]:
    def call(self: MemoryPool, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.device_pool(), name)(*args, **kwargs)

    return named(call, name, inspect.signature(getattr(SingleDeviceMemoryPool, name)), __name__)


for _name in 'free_all_blocks n_free_blocks used_bytes free_bytes total_bytes set_limit get_limit'.split():
    setattr(MemoryPool, _name, _of_device(_name))
