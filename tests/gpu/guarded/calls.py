"""The calls that tests/gpu/test_entry_points.py makes inside a capture: a row each, in ``rows.txt``.

Here is what the rows call, and ``CASES``, which is read from them.
"""

from __future__ import annotations

import ctypes
import itertools
import queue  # noqa: F401, which rows name
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from capturekit.guard.entry_points import SEAMS
from capturekit.guard.patching import resolve
from tests.gpu.guarded.scene import BYTES, COUNT, CURAND, Call, Case, Check, N, Scene, cp, curand, loaded, rt
from tests.gpu.guarded.scene import OfOtherLibrary as OfOtherLibrary
from tests.gpu.guarded.scene import external as external
from tests.gpu.tables import evaluated, rows
from tests.gpu.world import Started, in_thread, status

sync, read, legacy = ck.SynchronizationError, ck.HostReadError, ck.LegacyStreamError
escaped, unsupported, unmatched = ck.EscapedWorkError, ck.UnsupportedCallError, ck.UnmatchedError
cupy = cp


def equal(got: Any, want: Any) -> Any:
    assert got == want, (got, want)
    return got


def keep(s: Scene, value: Any) -> None:
    s.kept.append(value)


def kept_equals(*want: float) -> Check:
    return lambda s: bool(np.array_equal(s.kept[0].get(), np.array(want)))


def in_lane(s: Scene, call: Call) -> None:
    with s.side:
        call(s)


def merge(s: Scene, who: Callable[[Any], Any]) -> None:
    """Wait on a lane of this capture for an event of a second one; both stay Active."""
    s.other.begin_capture()
    try:
        foreign = s.other.record()
        who(s).wait_event(foreign)
    finally:
        assert status(s.other) == 'Active'
        assert status(s.origin) == 'Active'
        s.kept.append(s.other.end_capture())


def merge_across_threads(s: Scene) -> None:
    """The same with a second `ck.capture()` that is open in another thread, which afterwards makes its graph."""
    recorded, go_on = threading.Event(), threading.Event()

    def second() -> None:
        with cp.cuda.Stream(non_blocking=True) as stream, ck.capture(stream) as cap:
            s.kept.append(s.w + 41)
            s.seen.append(cap.stream.record())
            recorded.set()
            assert go_on.wait(30)
            s.seen.append(status(cap.stream))
        cap.graph.launch(s.other)
        s.other.synchronize()
        s.seen.append(cap)

    other = Started(second)
    try:
        assert recorded.wait(30)
        s.origin.wait_event(s.seen[0])
    finally:
        go_on.set()
        other.result()
        assert s.seen[1] == 'Active'


def use(s: Scene, stream: Any, work: bool = False) -> None:
    try:
        stream.use()
        if work:
            s.w.__imul__(2)
        s.origin.use()
    finally:
        s.origin.use()


def enter(s: Scene, stream: Any, work: str = '') -> None:
    with stream:
        if work == 'in place':
            s.w.__imul__(2)
        elif work == 'empty':
            s.kept.append(cp.empty(N))
        elif work:
            s.kept.append(s.x * 2)


def by_hand(s: Scene) -> None:
    s.outside.begin_capture()
    s.kept.append(s.outside.end_capture())


def end_in_wrong_thread(s: Scene) -> None:
    """A capture begun by hand is ended by a thread that did not begin it; then by the one that did."""
    s.outside.begin_capture(rt.streamCaptureModeThreadLocal)
    try:
        in_thread(s.outside.end_capture)
    finally:
        assert status(s.outside) == 'Active'
        s.kept.append(s.outside.end_capture())


def library_work(s: Scene, ptr: int) -> None:
    """Work of a library that is given a handle and calls CUDA itself."""
    s.memset_of_before(s.scratch.data.ptr, 0, BYTES, ptr)


def noted(text: str) -> Check:
    return lambda s: any(text in step.text for step in s.cap.recording.notes)


def dropped(s: Scene, forked: bool) -> None:
    """A stream that Python forgets in the block, destroyed with its object; one that is a lane must be kept."""
    stream = cp.cuda.Stream(non_blocking=True)
    if forked:
        stream.wait_event(s.e)
        s.origin.wait_event(stream.record())
    del stream


def on_this_device(s: Scene) -> None:
    with cp.cuda.Device(0):
        s.kept.append(s.a + 3)


def own_pool() -> Any:
    live = GUARD.mine()
    assert live is not None
    assert live.memory is not None
    return live.memory.pool


def trim(s: Scene, stream: Any) -> None:
    if s.async_pool is None:
        pytest.skip('this device has no memory pools of the driver')
    s.async_pool.free_all_blocks(stream)


def pool_of_its_own(s: Scene) -> None:
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        s.kept.append(s.a[:2] * 10)


def other_allocator(s: Scene) -> None:
    pool_of_its_own(s)
    s.kept.append(s.a[:2] * 1)


def by_its_shape(s: Scene) -> None:
    s.kept.append(cp.ndarray((2,), s.a.dtype))
    s.kept[0][...] = s.a[:2] * 10


def started(s: Scene) -> None:
    thread = threading.Thread(target=s.seen.append, args=(1,))
    thread.start()
    thread.join(30)
    equal(s.seen, [1])


def notified(s: Scene) -> None:
    condition = threading.Condition()
    with condition:
        condition.notify()


def submitted(s: Scene) -> Any:
    with ThreadPoolExecutor(1) as pool:
        equal(pool.submit(sum, (1, 2)).result(30), 3)


def checked_linalg(s: Scene) -> None:
    import cupyx

    with cupyx.errstate(linalg='ignore'):
        s.kept.append(cp.linalg.inv(s.matrix) @ s.matrix)


def by_handle(s: Scene) -> None:
    rt.streamBeginCapture(s.outside.ptr, rt.streamCaptureModeRelaxed)
    rt.graphDestroy(rt.streamEndCapture(s.outside.ptr))


def raw_event(s: Scene, make: Callable[[], int]) -> None:
    event = make()
    rt.eventRecord(event, s.side.ptr)
    rt.streamWaitEvent(s.origin.ptr, event)


def cuda_array(s: Scene) -> Any:
    """16 x 4 floats as a CUDA array."""
    form = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, rt.cudaChannelFormatKindFloat)
    s.kept.append(cp.cuda.texture.CUDAarray(form, 16, 4))
    return s.kept[-1].ptr


def copy_3d(s: Scene) -> int:
    """The address of parameters for a copy of 64 x 4 x 1 bytes from ``w`` to ``scratch``."""
    from cuda.bindings import runtime as bindings

    params = bindings.cudaMemcpy3DParms()
    params.srcPtr = bindings.make_cudaPitchedPtr(s.w.data.ptr, BYTES, BYTES, 4)
    params.dstPtr = bindings.make_cudaPitchedPtr(s.scratch.data.ptr, BYTES, BYTES, 4)
    params.extent = bindings.make_cudaExtent(BYTES, 4, 1)
    params.kind = bindings.cudaMemcpyKind.cudaMemcpyDeviceToDevice
    s.seen.append(params)
    return int(params.getPtr())


def peer(s: Scene, to: int) -> None:
    rt.memcpyPeerAsync(s.scratch.data.ptr, 0, s.w.data.ptr, 0, BYTES, to)


def start_again(s: Scene) -> None:
    """From now on the sources of the captures and their twins give the same numbers."""
    if loaded(CURAND):
        s.state.seed(11)
        s.twin.seed(11)
        for generator in filter(None, (s.quasi, s.quasi_twin)):
            curand.setGeneratorOffset(generator, 0)
    s.bits_twin._state[...] = s.bits._state


def first_kept(s: Scene) -> Any:
    return s.kept[0].get()


def like_eager(eager: Call, got: Call = first_kept, *, fed: bool = True, same: bool = False) -> Check:
    """Each launch gives what the same call, made eagerly, gives next.

    ``fed``: by the host, which is noted. ``same``: these are the same numbers every time.
    """

    def check(s: Scene) -> bool:
        start_again(s)
        found = []
        for _ in range(3):
            s.cap.graph.launch()
            found.append(np.array(got(s)))
            np.testing.assert_allclose(found[-1], cp.asnumpy(eager(s)), rtol=1e-12)
        told = any('by the host at every launch' in step.text for step in s.cap.recording.steps)
        again = [np.array_equal(a, b) for a, b in itertools.pairwise(found)]
        return told == fed and again == [same, same]

    return check


def drawn_eagerly(s: Scene, name: str) -> Any:
    array = cp.zeros(COUNT)
    curand_call(s, name, array, eager=True)
    return array.get().view('u1')


def draw_outside(s: Scene, draw: Callable[[], Any]) -> None:
    with s.outside:
        s.kept.append(draw())


def seeded_draw(s: Scene) -> None:
    s.state.seed(5)
    s.kept.append(s.state.random_sample(COUNT))


def seeded_draw_eagerly(s: Scene) -> Any:
    s.twin.seed(5)
    return s.twin.random_sample(COUNT)


def philox() -> Any:
    return cp.random.Generator(cp.random.Philox4x3210(3, size=256))


def texture(s: Any) -> Any:
    """A CUDA array that nobody else holds."""
    of_floats = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, cp.cuda.runtime.cudaChannelFormatKindFloat)
    return cp.cuda.texture.CUDAarray(of_floats, 4, 4)


def copied_on_a_lane(s: Any) -> None:
    """An array of the lane is copied there."""
    texture(s).copy_from(cp.zeros((4, 4), 'f'), s.side)


def two(s: Any) -> Any:
    """Two matrices that can be inverted."""
    return cp.stack([s.matrix + 9 * cp.eye(4), s.matrix + 8 * cp.eye(4)])


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


def async_memory(s: Scene, stream: int) -> None:
    rt.freeAsync(rt.mallocAsync(4096, stream), stream)


def free_elsewhere(s: Scene) -> None:
    """CUDA refuses to free, in a capture, memory that the graph did not allocate; the capture stays good."""
    rt.freeAsync(s.foreign_ptr, s.origin.ptr)


def pool_memory(s: Scene, stream: int) -> None:
    rt.freeAsync(rt.mallocFromPoolAsync(4096, rt.deviceGetDefaultMemPool(0), stream), stream)


def pointer(s: Scene, method: str, *stream: Any) -> None:
    """Call a method of a pointer: each copies or sets the first bytes, with or without a stream."""
    source = () if 'memset' in method else (s.pinned.ptr if 'host' in method else s.x.data,)
    getattr(s.scratch.data, method)(*(source or (0,)), BYTES, *stream)


def work(s: Scene, name: str, stream: int) -> None:
    getattr(rt, name)(*WORK[name](s), stream)


D2D = 3
#: function -> its arguments without the stream
WORK: dict[str, Callable[[Scene], tuple[Any, ...]]] = {
    'memcpyAsync': lambda s: (s.scratch.data.ptr, s.w.data.ptr, BYTES, D2D),
    'memsetAsync': lambda s: (s.scratch.data.ptr, 0, BYTES),
    'memcpy2DAsync': lambda s: (s.scratch.data.ptr, BYTES, s.w.data.ptr, BYTES, BYTES, 4, D2D),
    'memcpy3DAsync': lambda s: (copy_3d(s),),
    'memcpy2DFromArrayAsync': lambda s: (s.scratch.data.ptr, BYTES, cuda_array(s), 0, 0, BYTES, 4, D2D),
    'memcpy2DToArrayAsync': lambda s: (cuda_array(s), 0, 0, s.w.data.ptr, BYTES, BYTES, 4, D2D),
}


#: What cuRAND's functions are given after the generator, the address and the count.
FURTHER = {'Normal': (1.0, 2.0), 'LogNormal': (0.0, 0.5), 'Poisson': (4.0,)}


def curand_call(s: Scene, name: str, array: Any, eager: bool = False) -> None:
    """Draw to where an array lies, with the captures' generator or its twin."""
    if name == 'generateLongLong':  # cuRAND draws 64 bits by its quasi-random generators only
        generator = s.quasi_twin if eager else s.quasi
    else:
        generator = (s.twin if eager else s.state)._generator
    further = FURTHER.get(name.removeprefix('generate').removesuffix('Double'), ())
    getattr(curand, name)(generator, array.data.ptr, COUNT, *further)


def drawn_by_handle(s: Scene) -> Any:
    return s.scratch[:COUNT].get().view('u1')


def positive(s: Scene) -> Any:
    matrix = s.matrix + 9 * cp.eye(4)
    return cp.linalg.cholesky(matrix @ matrix.T)


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


def expanded(entry: str) -> Iterator[tuple[str, str]]:
    """The entries that a heading stands for, each with the name that was picked."""
    before, _brace, rest = entry.partition('{')
    names, _, after = rest.partition('}')
    for name in names.split(','):
        yield f'{before}{name}{after}', name


def cases() -> Iterator[Case]:
    for number, entries, row in rows(ROWS):
        for entry, name in expanded(entries):
            label, call, expect, check, last = [cell.replace('$', name) for cell in row] + ['-'] * (5 - len(row))
            parts = [f'lambda s: {call}', *('None' if cell == '-' else cell for cell in (expect, check))]
            run, error, holds = (evaluated(text, ROWS, number, globals()) for text in parts)
            needs = {'-': '', 'modes': '', 'CURAND': CURAND}.get(last, last)
            for mode in ('thread_local', 'global') if last == 'modes' else ('relaxed',):
                yield Case(entry, label, run, error, mode, holds, needs)
    for name in SEAMS:  # without arguments: if it were let through, Python itself would complain
        yield Case(name, 'by its name', lambda s, f=name: resolve(f)(), unsupported)


ROWS = Path(__file__).with_name('rows.txt')
CASES = list(cases())
