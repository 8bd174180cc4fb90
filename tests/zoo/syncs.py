"""The host waits for, or asks about, work that is only being recorded."""

from __future__ import annotations

from typing import Any

import capturekit as ck
from tests.zoo.cases import case


@case(
    'https://github.com/microsoft/onnxruntime/issues/15002', ck.SynchronizationError, 's.synchronize()', lambda x: x * 2
)  # fmt: skip
def stream_synchronize(cp: Any, x: Any) -> Any:
    """Waits for the capturing stream at the end of a step, as the eager code did."""
    stream = cp.cuda.Stream(non_blocking=True)  # +
    with ck.capture() as cap:
        y = x * 2
        cap.stream.synchronize()  # - <-- here
    cap.graph.launch(stream)  # +
    stream.synchronize()  # + <-- instead: after the launch
    return cap, y


@case(
    'https://github.com/deepseek-ai/DeepEP/issues/62', ck.SynchronizationError, 'cap.join(side)', lambda x: x * x + 1,
    goes_on=False,
)  # fmt: skip
def lane_synchronize(cp: Any, x: Any) -> Any:
    """Waits on the host for a side stream before it uses its result."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            squares = x * x
        side.synchronize()  # - <-- here
        cap.join(side)  # + <-- instead
        y = squares + 1
    return cap, y


@case('https://github.com/NVIDIA/raft/pull/3121', ck.SynchronizationError, 's.done', lambda x: x + 0.5)
def stream_done(cp: Any, x: Any) -> Any:
    """Polls a side stream. CuPy takes the error for False, and the capture is lost without a word."""
    side = cp.cuda.Stream(non_blocking=True)  # -
    side, stream = (cp.cuda.Stream(non_blocking=True) for _ in range(2))  # +
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x + 0.5
        while not side.done:  # - <-- here
            pass  # -
        cap.join(side)
    cap.graph.launch(stream)  # +
    while not stream.done:  # + <-- instead: after the launch
        pass  # +
    return cap, y


@case(
    'https://github.com/kvcache-ai/Mooncake/pull/1933', ck.SynchronizationError, 'stream.wait_event(event)',
    lambda x: x * 2 + 1,
)  # fmt: skip
def event_synchronize(cp: Any, x: Any) -> Any:
    """Waits on the host for an event, so that the next line finds its data."""
    with ck.capture() as cap:
        y = x * 2
        ready = cap.stream.record()
        ready.synchronize()  # - <-- here
        cap.stream.wait_event(ready)  # + <-- instead
        y += 1
    return cap, y


@case(
    'https://github.com/sgl-project/sglang/issues/29235', ck.SynchronizationError, 'outside the capture',
    lambda x: x - 1,
)  # fmt: skip
def event_done(cp: Any, x: Any) -> Any:
    """Asks an event that was recorded in the capture whether it has passed."""
    with ck.capture() as cap:
        y = x - 1
        ready = cap.stream.record()
        if not ready.done:  # <-- here
            y += 0
    return cap, y


@event_done.repaired
def _(cp: Any, x: Any) -> Any:
    stream = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x - 1
    cap.graph.launch(stream)
    ready = stream.record()  # <-- instead: after the launch
    while not ready.done:
        pass
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/556', ck.SynchronizationError, 'cap.graph.launch(stream)', lambda x: x * 4)
def elapsed_time(cp: Any, x: Any) -> Any:
    """Times a part of the capture with two events."""
    with ck.capture() as cap:
        start = cap.stream.record()
        y = x * 4
        end = cap.stream.record()
        cp.cuda.get_elapsed_time(start, end)  # <-- here
    return cap, y


@elapsed_time.repaired
def _(cp: Any, x: Any) -> Any:
    stream = cp.cuda.Stream(non_blocking=True)
    start, end = cp.cuda.Event(), cp.cuda.Event()
    with ck.capture() as cap:
        y = x * 4
    start.record(stream)  # <-- instead: around the launch
    cap.graph.launch(stream)
    end.record(stream)
    end.synchronize()
    assert cp.cuda.get_elapsed_time(start, end) >= 0
    return cap, y


@case(
    'https://github.com/sfu-rsl/graphite/issues/1', ck.SynchronizationError, 'out of the `with ck.capture()` block',
    lambda x: x / 4,
)  # fmt: skip
def device_synchronize(cp: Any, x: Any) -> Any:
    """Synchronises the whole device, by a line left over from timing."""
    with ck.capture() as cap:
        y = x / 4
        cp.cuda.Device().synchronize()  # - <-- here
    cap.graph.launch()  # +
    cp.cuda.Device().synchronize()  # + <-- instead: after the launch
    return cap, y


@case('https://github.com/JuliaGPU/CUDA.jl/issues/1229', ck.SynchronizationError, 's.synchronize()', lambda x: x + 3)
def runtime_synchronize(cp: Any, x: Any) -> Any:
    """A helper synchronises by handle, as libraries do after each copy."""

    def finish(handle: int) -> None:
        cp.cuda.runtime.streamSynchronize(handle)  # <-- here

    stream = cp.cuda.Stream(non_blocking=True)  # +
    with ck.capture() as cap:
        y = x + 3
        finish(cap.stream.ptr)  # -
    cap.graph.launch(stream)  # +
    finish(stream.ptr)  # + <-- instead: after the launch
    return cap, y


@case('https://github.com/pytorch/pytorch/pull/104487', ck.SynchronizationError, "mode='relaxed'", lambda x: x * 7)
def event_of_before(cp: Any, x: Any) -> Any:
    """Asks for work of before the capture, whose mode forbids such calls."""
    loader = cp.cuda.Stream(non_blocking=True)
    loaded = loader.record()
    with ck.capture(options=ck.CaptureOptions(mode='global')) as cap:
        y = x * 7
        while not loaded.done:  # <-- here
            pass
    return cap, y


@event_of_before.repaired
def _(cp: Any, x: Any) -> Any:
    loader = cp.cuda.Stream(non_blocking=True)
    loaded = loader.record()
    with ck.capture(options=ck.CaptureOptions(mode='relaxed')) as cap:  # <-- instead
        y = x * 7
        while not loaded.done:
            pass
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/159594', ck.UnsupportedCallError, "mode='relaxed'", lambda x: x + 9)
def free_all_blocks(cp: Any, x: Any) -> Any:
    """Frees the memory pool in a capture of mode 'global': that may call cudaFree."""
    cp.get_default_memory_pool().free_all_blocks()  # + <-- instead: before the block
    with ck.capture(options=ck.CaptureOptions(mode='global')) as cap:
        y = x + 9
        cp.get_default_memory_pool().free_all_blocks()  # - <-- here
    return cap, y


@case('https://github.com/pytorch/pytorch/pull/158152', ck.UnsupportedCallError, 'graph is closed', lambda x: x + 2)
def free_own_pool(cp: Any, x: Any) -> Any:
    """Frees the very pool that the capture takes its memory from."""
    pool = cp.cuda.MemoryPool()
    with ck.capture(options=ck.CaptureOptions(pool=pool)) as first:  # +
        z = x + 1  # +
    first.graph.launch()  # +
    del z  # +
    first.graph.close()  # +
    pool.free_all_blocks()  # + <-- instead: after `graph.close()`
    with ck.capture(options=ck.CaptureOptions(pool=pool)) as cap:
        y = (x + 1) + 1
        pool.free_all_blocks()  # - <-- here
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/1410', ck.UnsupportedCallError, "mode='relaxed'", lambda x: x * 3)
def pinned_memory(cp: Any, x: Any) -> Any:
    """Makes a pinned buffer in a capture that forbids such calls."""
    staging = cp.cuda.alloc_pinned_memory(x.nbytes)  # + <-- instead: before the block
    with ck.capture(options=ck.CaptureOptions(mode='thread_local')) as cap:
        y = x * 3
        cp.cuda.alloc_pinned_memory(x.nbytes)  # - <-- here
    assert staging.size() >= x.nbytes  # +
    return cap, y
