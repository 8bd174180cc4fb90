"""Rows: calls that a capture's mode may keep away."""

from __future__ import annotations

import ctypes

from tests.gpu.guarded.memory import trim
from tests.gpu.guarded.scene import ARRAY as A
from tests.gpu.guarded.scene import BYTES, MODES, Call, OfOtherLibrary, Scene, cp, keep, row, rt, sync, unsupported
from tests.gpu.guarded.scene import EVENT as E
from tests.gpu.guarded.scene import RUNTIME as R
from tests.gpu.guarded.scene import STREAM as S


def array_form(s: Scene) -> int:
    s.kept.append(cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, rt.cudaChannelFormatKindFloat))
    return int(s.kept[-1].ptr)


def registered(s: Scene) -> None:
    buffer = ctypes.create_string_buffer(1 << 14)
    address = (ctypes.addressof(buffer) + 4095) // 4096 * 4096
    rt.hostRegister(address, 4096, 0)
    rt.hostUnregister(address)


def own_driver_pool(s: Scene) -> None:
    props = rt.MemPoolProps(rt.cudaMemAllocationTypePinned, rt.cudaMemHandleTypeNone, rt.cudaMemLocationTypeDevice, 0)
    rt.memPoolDestroy(rt.memPoolCreate(props))


def threshold(s: Scene) -> None:
    pool, which = rt.deviceGetMemPool(0), rt.cudaMemPoolAttrReleaseThreshold
    rt.memPoolSetAttribute(pool, which, rt.memPoolGetAttribute(pool, which))


def stack_limit(s: Scene) -> None:
    rt.deviceSetLimit(rt.cudaLimitStackSize, rt.deviceGetLimit(rt.cudaLimitStackSize))


def instantiated(s: Scene) -> None:
    rt.graphExecDestroy(rt.graphInstantiate(s.cupy_graph.graph))


#: function -> a call of it (and of what undoes it) with good arguments
UNSAFE: dict[str, Call] = {
    'malloc': lambda s: rt.free(rt.malloc(4096)),
    'free': lambda s: rt.free(rt.malloc(4096)),
    'mallocManaged': lambda s: rt.free(rt.mallocManaged(4096)),
    'mallocArray': lambda s: rt.freeArray(rt.mallocArray(array_form(s), 16, 16)),
    'malloc3DArray': lambda s: rt.freeArray(rt.malloc3DArray(array_form(s), 16, 16, 4)),
    'freeArray': lambda s: rt.freeArray(rt.mallocArray(array_form(s), 16, 16)),
    'hostAlloc': lambda s: rt.freeHost(rt.hostAlloc(4096, 0)),
    'freeHost': lambda s: rt.freeHost(rt.hostAlloc(4096, 0)),
    'hostRegister': registered,
    'hostUnregister': registered,
    'graphInstantiate': instantiated,
    'graphExecDestroy': instantiated,
    'profilerStart': lambda s: (rt.profilerStart(), rt.profilerStop()),
    'profilerStop': lambda s: rt.profilerStop(),
    'deviceSetLimit': stack_limit,
    'deviceSetMemPool': lambda s: rt.deviceSetMemPool(0, rt.deviceGetMemPool(0)),
    'memPoolTrimTo': lambda s: rt.memPoolTrimTo(rt.deviceGetMemPool(0), 0),
    'memPoolCreate': own_driver_pool,
    'memPoolDestroy': own_driver_pool,
    'memPoolGetAttribute': lambda s: rt.memPoolGetAttribute(
        rt.deviceGetMemPool(0), rt.cudaMemPoolAttrReservedMemCurrent
    ),
    'memPoolSetAttribute': threshold,
    'memAdvise': lambda s: rt.memAdvise(s.managed.ptr, 4096, rt.cudaMemAdviseSetReadMostly, 0),
}
row('cupy.cuda.profiler.start', 'copied name', lambda s: (cp.cuda.profiler.start(), cp.cuda.profiler.stop()))
row('cupy.cuda.profiler.stop', 'copied name', lambda s: cp.cuda.profiler.stop())
for name, call in UNSAFE.items():
    row(f'{R}.{name}', 'good arguments', call)
    for mode in MODES:
        # no arguments: if it were let through, Python itself would complain
        row(f'{R}.{name}', 'unsafe', lambda s, f=name: getattr(rt, f)(), unsupported, mode=mode)


def async_memory(s: Scene, stream: int) -> None:
    rt.freeAsync(rt.mallocAsync(4096, stream), stream)


def free_elsewhere(s: Scene) -> None:
    """CUDA refuses to free, in a capture, memory that the graph did not allocate; the capture stays good."""
    rt.freeAsync(s.foreign_ptr, s.origin.ptr)


for name in ('mallocAsync', 'freeAsync'):
    row(f'{R}.{name}', 'lane: nodes of the graph', lambda s: async_memory(s, s.side.ptr))
    row(f'{R}.{name}', 'outside', lambda s: async_memory(s, s.outside.ptr))
row(f'{R}.freeAsync', 'origin, memory of before', free_elsewhere, RuntimeError)


def pool_memory(s: Scene, stream: int) -> None:
    rt.freeAsync(rt.mallocFromPoolAsync(4096, rt.deviceGetDefaultMemPool(0), stream), stream)


row(f'{R}.mallocFromPoolAsync', 'lane: nodes of the graph', lambda s: pool_memory(s, s.side.ptr))
row(f'{R}.mallocFromPoolAsync', 'outside', lambda s: pool_memory(s, s.outside.ptr))

#: (entry, call, what to do, what the modes answer): waiting, asking and allocating beside the capture
KEPT_AWAY: tuple[tuple[str, str, Call, type[BaseException]], ...] = (
    (f'{S}.synchronize', 'outside', lambda s: s.outside.synchronize(), sync),
    (f'{S}.synchronize', 'Stream.ptds', lambda s: s.ptds.synchronize(), sync),
    (f'{S}.done', 'outside', lambda s: s.outside.done, sync),
    (f'{E}.synchronize', 'recorded outside', lambda s: s.before.synchronize(), sync),
    (f'{E}.done', 'recorded outside', lambda s: s.before.done, sync),
    (f'{R}.streamSynchronize', 'outside', lambda s: rt.streamSynchronize(s.outside.ptr), sync),
    (f'{R}.streamQuery', 'outside', lambda s: rt.streamQuery(s.outside.ptr), sync),
    (f'{R}.eventSynchronize', 'recorded outside', lambda s: rt.eventSynchronize(s.before.ptr), sync),
    (f'{R}.eventQuery', 'recorded outside', lambda s: rt.eventQuery(s.before.ptr), sync),
    (f'{A}.get', 'array of before, on outside', lambda s: s.x.get(stream=s.outside), sync),
    (
        'cupy._core.array', 'interface naming an outside stream',
        lambda s: cp.asarray(OfOtherLibrary(s.x, s.outside.ptr)), sync,
    ),
    ('cupy.cuda.alloc_pinned_memory', '1 MiB', lambda s: cp.cuda.alloc_pinned_memory(1 << 20), unsupported),
    ('cupy.cuda.profiler.start', 'copied name', lambda s: (cp.cuda.profiler.start(), rt.profilerStop()), unsupported),
    ('cupy.cuda.profiler.stop', 'copied name', lambda s: cp.cuda.profiler.stop(), unsupported),
    (
        'cupy.cuda.pinned_memory.alloc_pinned_memory', '1 MiB',
        lambda s: cp.cuda.pinned_memory.alloc_pinned_memory(1 << 20), unsupported,
    ),
    (
        'cupy.cuda.memory.MemoryPool.free_all_blocks', 'default pool',
        lambda s: cp.get_default_memory_pool().free_all_blocks(), unsupported,
    ),
    (
        'cupy.cuda.memory.MemoryAsyncPool.free_all_blocks', 'outside', lambda s: trim(s, s.outside), unsupported,
    ),
    (
        'cupy.cuda.pinned_memory.PinnedMemoryPool.free_all_blocks', 'default pool',
        lambda s: cp.get_default_pinned_memory_pool().free_all_blocks(), unsupported,
    ),
    (f'{R}.mallocAsync', 'outside', lambda s: rt.mallocAsync(4096, s.outside.ptr), unsupported),
    (f'{R}.mallocFromPoolAsync', 'outside', lambda s: pool_memory(s, s.outside.ptr), unsupported),
    (f'{R}.freeAsync', 'outside', lambda s: rt.freeAsync(s.foreign_ptr, s.outside.ptr), unsupported),
    (f'{S}.synchronize', 'lane', lambda s: s.side.synchronize(), sync),
    ('cupy.cuda.device.Device.synchronize', 'this device', lambda s: cp.cuda.Device().synchronize(), sync),
    (f'{S}.record', 'lane', lambda s: s.side.record(), None),
    (f'{R}.memsetAsync', 'lane', lambda s: rt.memsetAsync(s.scratch.data.ptr, 0, BYTES, s.side.ptr), None),
    ('cupy._core.array', 'list', lambda s: keep(s, cp.array([1.0, 2.0]) * 3), None),
)  # fmt: skip
for entry, name, call, what in KEPT_AWAY:
    for mode in MODES:
        row(entry, name, call, what, mode=mode)
