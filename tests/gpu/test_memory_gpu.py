"""A graph's own memory on the GPU: what goes wrong on bare CuPy goes right here, and nothing is held for ever."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from tests.gpu.world import status, world

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = [pytest.mark.gpu, pytest.mark.serial]

N = 1024
BLOCK = N * 8


def warm() -> Any:
    """The kernels used here, compiled; an array of 0, 1, 2 ..."""
    x = cp.arange(N, dtype='f8')
    for made in (x + 1, x * 2, x - 100, x + x, cp.full(N, 7.0)):
        del made
    cp.cuda.Device().synchronize()
    return x


# -- a replay overwriting a later array -----------------------------------------------------------------------------


def test_on_bare_cupy_a_replay_overwrites_a_later_array() -> None:
    """CuPy's pool hands a block that a recorded kernel writes to whoever asks next."""
    x, stream = warm(), cp.cuda.Stream(non_blocking=True)
    with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc), stream:
        stream.begin_capture()
        temporary = x * 2
        at = temporary.data.ptr
        result = temporary + 1
        graph = stream.end_capture()
        del temporary
        later = cp.full(N, 7.0)
        assert later.data.ptr == at
        graph.launch()
        stream.synchronize()
        assert np.array_equal(later.get(), np.arange(N) * 2.0), 'bare CuPy has become safe: rewrite the README'
        assert np.array_equal(result.get(), np.arange(N) * 2.0 + 1)


def test_with_capturekit_a_replay_leaves_later_arrays_alone() -> None:
    x, stream = warm(), cp.cuda.Stream(non_blocking=True)
    with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc), stream:
        with ck.capture(stream) as cap:
            temporary = x * 2
            at = temporary.data.ptr
            result = temporary + 1
        del temporary
        later = [cp.full(N, 7.0) for _ in range(8)]
        assert at not in [array.data.ptr for array in later]
        for _ in range(3):
            cap.graph.launch()
        stream.synchronize()
        assert all((array.get() == 7).all() for array in later)
        assert np.array_equal(result.get(), np.arange(N) * 2.0 + 1)


def test_results_and_uploads_live_as_long_as_the_graph() -> None:
    """What Python drops after the block, also a constant, is given to nobody while the graph can be launched."""
    x, seen = warm(), cp.zeros(3)
    with ck.capture() as cap:
        cp.add(cp.array([1.0, 2.0, 3.0]) * x[5], 0, seen)
        dropped = x * 2
        at = dropped.data.ptr
    del dropped
    gc.collect()
    others = [cp.full(n, -1.0) for n in (3, 64, N, N, N) for _ in range(20)]
    assert at not in [array.data.ptr for array in others]
    cap.graph.launch()
    assert seen.tolist() == [5, 10, 15]
    assert all((array.get() == -1).all() for array in others)


# -- two lanes and one block ----------------------------------------------------------------------------------------

#: Reads only after about ten milliseconds.
SLOW = r"""
extern "C" __global__ void slow(const double* from, double* to, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) { }
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = ((volatile const double*)from)[i];
}
"""
CYCLES = 20_000_000


def slow_copy(source: Any, to: Any) -> None:
    kernel = cp.RawKernel(SLOW, 'slow')
    kernel((N // 256,), (256,), (source, to, np.int64(CYCLES)))


def two_lanes(x: Any, read: Any, side: Any) -> tuple[int, Any]:
    """Lane ``side`` reads a block slowly while lane 0 drops it and makes a new array; return both addresses.

    ``read`` gets what the slow reader saw, which is ``x + 1`` if the order of the program counts.
    """
    main = cp.cuda.get_current_stream()
    block = x + 1
    side.wait_event(main.record())
    with side:
        slow_copy(block, read)
    at = block.data.ptr
    del block
    new = x - 100
    main.wait_event(side.record())
    return at, new


def prepare() -> tuple[Any, Any, Any]:
    x, read, side = warm(), cp.zeros(N), cp.cuda.Stream(non_blocking=True)
    slow_copy(x, read)
    read.fill(0)
    cp.cuda.Device().synchronize()
    return x, read, side


def test_bare_cupy_hands_out_a_block_that_is_being_read() -> None:
    x, read, side = prepare()
    main = cp.cuda.Stream(non_blocking=True)
    with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc), main:
        main.begin_capture()
        at, new = two_lanes(x, read, side)
        graph = main.end_capture()
        assert new.data.ptr == at
        graph.launch()
        main.synchronize()
        wrong = np.arange(N) - 100.0
        assert np.array_equal(read.get(), wrong), 'the slow lane should have seen what overwrote its block'


def test_capturekit_keeps_a_block_that_is_being_read() -> None:
    x, read, side = prepare()
    with ck.capture() as cap:
        at, new = two_lanes(x, read, side)
    assert new.data.ptr != at
    for _ in range(2):
        read.fill(0)
        cap.graph.launch()
        assert np.array_equal(read.get(), np.arange(N) + 1.0)
        assert np.array_equal(new.get(), np.arange(N) - 100.0)


def test_a_block_is_kept_while_an_old_library_handle_reads_it() -> None:
    """CuPy and the guard see nothing of the library's event, wait and copy: the driver is asked about the lane."""
    from cuda.bindings import runtime

    x, read, side = prepare()
    handle, slowly = side.ptr, cp.zeros(N)
    cp.cuda.Device().synchronize()
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            slow_copy(x, slowly)  # what comes on this lane is late
        block = x + 1
        at = block.data.ptr
        code, event = runtime.cudaEventCreateWithFlags(runtime.cudaEventDisableTiming)
        codes = [code, *runtime.cudaEventRecord(event, cap.stream.ptr), *runtime.cudaStreamWaitEvent(handle, event, 0)]
        codes += runtime.cudaMemcpyAsync(
            read.data.ptr, at, BLOCK, runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice, handle
        )
        assert [int(one) for one in codes] == [0, 0, 0, 0]
        del block
        new = x - 100
        cap.join(side)
    assert new.data.ptr != at
    for _ in range(2):
        read.fill(0)
        cp.cuda.Device().synchronize()
        cap.graph.launch()
        cp.cuda.get_current_stream().synchronize()
        assert np.array_equal(read.get(), np.arange(N) + 1.0)
        assert np.array_equal(new.get(), np.arange(N) - 100.0)
    runtime.cudaEventDestroy(event)


def test_closing_gives_the_memory_back() -> None:
    warm()
    with ck.capture() as cap:
        big = cp.zeros(64 << 20, 'u1')
    assert cap.graph.memory_bytes >= 64 << 20
    del big
    free = cp.cuda.runtime.memGetInfo()[0]
    graph = cap.graph
    graph.close()
    del cap, graph
    gc.collect()
    assert cp.cuda.runtime.memGetInfo()[0] - free >= 60 << 20


# -- memory runs out ------------------------------------------------------------------------------------------------


def limit(size: int) -> None:
    """Limit all that the open capture's memory takes from."""
    live = GUARD.mine()
    assert live is not None
    pools = [part for part in vars(live.memory).values() if hasattr(part, 'set_limit')]
    assert pools
    for pool in pools:
        pool.set_limit(size=size)


@pytest.mark.parametrize('given', [True, False], ids=["the caller's pool", "the graph's own pool"])
@pytest.mark.parametrize('forked', [False, True], ids=['one line', 'open lanes'])
def test_memory_runs_out_in_the_block(given: bool, forked: bool) -> None:
    x, side = warm(), cp.cuda.Stream(non_blocking=True)
    pool = cp.cuda.MemoryPool() if given else None
    before = world()
    with pytest.raises(cp.cuda.memory.OutOfMemoryError), ck.capture(pool=pool) as cap:
        limit(1 << 20)
        x + 1
        if forked:
            side.wait_event(cap.stream.record())
            with side:
                x + 1
        cp.zeros(4 << 20, 'u1')
    assert status(cap.stream) == status(side) == 'None'
    assert world() == before
    assert cap.recording.outcome == 'failed'
    with ck.capture() as cap:
        y = x * 2
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(N) * 2.0)
