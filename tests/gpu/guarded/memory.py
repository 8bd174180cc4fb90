"""Rows: graphs of CuPy, pools and pointers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capturekit.guard import GUARD
from tests.gpu.guarded.scene import (
    BYTES,
    Call,
    Installed,
    Scene,
    cp,
    escaped,
    kept_equals,
    legacy,
    row,
    sync,
    unsupported,
)

G = 'cupy.cuda.graph.Graph'
row(f'{G}.launch', 'current stream', lambda s: s.cupy_graph.launch(), unsupported)
row(f'{G}.launch', 'lane', lambda s: s.cupy_graph.launch(s.side), unsupported)
row(f'{G}.launch', 'outside', lambda s: s.cupy_graph.launch(s.outside), escaped)
row(f'{G}.launch', 'Stream.null', lambda s: s.cupy_graph.launch(s.null), legacy)
row(f'{G}.upload', 'current stream', lambda s: s.cupy_graph.upload(), unsupported)
row(f'{G}.upload', 'outside', lambda s: s.cupy_graph.upload(s.outside))
row(
    'cupy.cuda.memory.MemoryPool.free_all_blocks',
    "the capture's own",
    lambda s: own_pool().free_all_blocks(),
    unsupported,
)
row(
    'cupy.cuda.memory.MemoryPool.free_all_blocks',
    'default pool',
    lambda s: cp.get_default_memory_pool().free_all_blocks(),
)


def own_pool() -> Any:
    live = GUARD.mine()
    assert live is not None
    assert live.memory is not None
    return live.memory.pool


def trim(s: Scene, stream: Any) -> None:
    if s.async_pool is None:
        pytest.skip('this device has no memory pools of the driver')
    s.async_pool.free_all_blocks(stream)


row('cupy.cuda.memory.MemoryAsyncPool.free_all_blocks', 'current stream', lambda s: trim(s, None), sync)
row('cupy.cuda.memory.MemoryAsyncPool.free_all_blocks', 'outside', lambda s: trim(s, s.outside))
row(
    'cupy.cuda.pinned_memory.PinnedMemoryPool.free_all_blocks', 'default pool',
    lambda s: cp.get_default_pinned_memory_pool().free_all_blocks(),
)  # fmt: skip
for holder in ('cupy.cuda', 'cupy.cuda.pinned_memory'):
    pins = Installed(holder)
    row(f'{holder}.alloc_pinned_memory', '1 MiB', lambda s, of=pins: s.kept.append(of.alloc_pinned_memory(1 << 20)))

P = 'cupy.cuda.memory.MemoryPointer'


def to_pinned(s: Scene) -> int:
    return int(s.pinned.ptr)


#: method -> the call's arguments without the stream
ASYNC: dict[str, Callable[[Scene], tuple[Any, ...]]] = {
    'copy_from_device_async': lambda s: (s.x.data, BYTES),
    'copy_from_host_async': lambda s: (to_pinned(s), BYTES),
    'copy_to_host_async': lambda s: (to_pinned(s), BYTES),
    'copy_from_async': lambda s: (s.x.data, BYTES),
    'memset_async': lambda s: (0, BYTES),
}
SYNC: dict[str, Callable[[Scene], tuple[Any, ...]]] = {
    'copy_from_device': ASYNC['copy_from_device_async'],
    'copy_from_host': ASYNC['copy_from_host_async'],
    'copy_to_host': ASYNC['copy_to_host_async'],
    'copy_from': ASYNC['copy_from_async'],
    'memset': ASYNC['memset_async'],
}


def pointer(method: str, where: Callable[[Scene], Any] | None) -> Call:
    def run(s: Scene) -> None:
        stream = () if where is None else (where(s),)
        getattr(s.scratch.data, method)(*(ASYNC.get(method) or SYNC[method])(s), *stream)

    return run


for method in ASYNC:
    # CuPy itself refuses copies to and from the host on a captured stream, before the driver is asked
    own_words = RuntimeError if 'host' in method else None
    row(f'{P}.{method}', 'current stream', pointer(method, None), own_words)
    row(f'{P}.{method}', 'lane', pointer(method, lambda s: s.side), own_words)
    row(f'{P}.{method}', 'outside', pointer(method, lambda s: s.outside), escaped)
    row(f'{P}.{method}', 'Stream.null', pointer(method, lambda s: s.null), legacy)
for method in SYNC:
    row(f'{P}.{method}', 'uses the legacy stream', pointer(method, None), legacy)


def other_allocator(s: Scene) -> None:
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        s.kept.append(s.a[:2] * 10)
    s.kept.append(s.a[:2] * 1)


def by_its_shape(s: Scene) -> None:
    s.kept.append(cp.ndarray((2,), s.a.dtype))
    s.kept[0][...] = s.a[:2] * 10


row('cupy.ndarray.__new__', 'cp.ndarray(shape)', by_its_shape, check=kept_equals(10, 20))
row(
    'cupy.cuda.memory._set_thread_local_allocator', 'using_allocator of another pool', other_allocator,
    check=kept_equals(10, 20),
)  # fmt: skip
