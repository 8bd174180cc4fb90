"""Calls that no capture can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

import capturekit as ck
from tests.zoo.cases import case


@case('https://github.com/NVIDIA/cuda-python/issues/311', ck.UnsupportedCallError, 'stream.launch_host_func(fn, arg)',
      lambda x: x * 2)  # fmt: skip
def add_callback(cp: Any, x: Any) -> Any:
    """Adds a stream callback, the old kind of host function."""
    told = []
    with ck.capture() as cap:
        y = x * 2
        cap.stream.add_callback(lambda stream, status, arg: told.append(arg), 'done')  # <-- here
    return cap, y


@add_callback.repaired
def _(cp: Any, x: Any) -> Any:
    told: list[str] = []
    with ck.capture() as cap:
        y = x * 2
        cap.stream.launch_host_func(told.append, 'done')  # <-- instead
    cap.graph.launch()
    cap.graph.launch()
    cp.cuda.get_current_stream().synchronize()
    assert told == ['done', 'done']
    return cap, y


@case('https://github.com/ROCm/TheRock/issues/7877', ck.UnsupportedCallError, 'stream.launch_host_func(fn, arg)',
      lambda x: x + 1)  # fmt: skip
def callback_that_calls_cuda(cp: Any, x: Any) -> Any:
    """A callback that calls CUDA itself, which no callback may."""
    told: list[str] = []  # +
    host = np.zeros(8)
    with ck.capture() as cap:
        y = x + 1
        cap.stream.add_callback(lambda *told: y.get(out=host), None)  # - <-- here
        cap.stream.launch_host_func(told.append, 'ready')  # + <-- instead
    cap.graph.launch()  # +
    y.get(out=host)  # +
    assert told == ['ready'] and np.array_equal(host, x.get() + 1)  # +
    return cap, y


@case('https://github.com/cupy/cupy/issues/9274', ck.UnsupportedCallError, 'stream.launch_host_func(fn, arg)',
      lambda x: x - 1)  # fmt: skip
def host_function_that_runs_once(cp: Any, x: Any) -> Any:
    """runtime.launchHostFunc: CuPy frees the function after its first run, and the second launch calls nothing."""
    told = []
    with ck.capture() as cap:
        y = x - 1
        cp.cuda.runtime.launchHostFunc(cap.stream.ptr, told.append, 1)  # <-- here
    return cap, y


@host_function_that_runs_once.repaired
def _(cp: Any, x: Any) -> Any:
    told: list[int] = []
    with ck.capture() as cap:
        y = x - 1
        cap.stream.launch_host_func(told.append, 1)  # <-- instead
    for _launch in range(3):
        cap.graph.launch()
    cp.cuda.get_current_stream().synchronize()
    assert told == [1, 1, 1]
    return cap, y


@case('https://github.com/microsoft/onnxruntime/pull/32081', ck.UnsupportedCallError, 'cap.embed(graph)',
      lambda x: x * 2 + 1, rest=lambda x: x * 2)  # fmt: skip
def graph_in_a_capture(cp: Any, x: Any) -> Any:
    """Launches a graph inside another capture."""
    with ck.capture() as inner:
        z = x * 2
    with ck.capture() as cap:
        y = x * 2
        inner.graph.launch()  # <-- here
    assert z.size == y.size
    return cap, y


@graph_in_a_capture.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as inner:
        z = x * 2
    with ck.capture() as cap:
        cap.embed(inner.graph)  # <-- instead
        y = z + 1
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/91302', ck.UnsupportedCallError, 'before a launch',
      lambda x: x * 3)  # fmt: skip
def array_set(cp: Any, x: Any) -> Any:
    """Fills an input from the host in the recorded step."""
    rates = cp.zeros(8)
    with ck.capture() as cap:
        y = x * 3  # -
        rates.set(np.full(8, 3.0))  # - <-- here
        y = x * rates  # +
    rates.set(np.full(8, 3.0))  # + <-- instead: before a launch
    return cap, y


@case('https://github.com/flagos-ai/FlagGems/pull/4472', ck.UnsupportedCallError, 'before a launch', lambda x: x + 4,
      rest=lambda x: x + 0)  # fmt: skip
def copy_from_host_async(cp: Any, x: Any) -> Any:
    """Copies from pageable memory of the host in the recorded step."""
    host = np.full(8, 4.0)
    with ck.capture() as cap:
        y = cp.zeros(8)
        y.data.copy_from_host_async(host.ctypes.data, host.nbytes)  # <-- here
        y += x
    return cap, y


@copy_from_host_async.repaired
def _(cp: Any, x: Any) -> Any:
    fours = cp.zeros(8)
    with ck.capture() as cap:
        y = fours + x
    fours.set(np.full(8, 4.0))  # <-- instead: before a launch
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/133984', ck.UnsupportedCallError, 'copy_from_device_async',
      lambda x: x + 1, rest=lambda x: np.ones(8))  # fmt: skip
def peer_copy(cp: Any, x: Any) -> Any:
    """Copies between devices by memcpyPeerAsync."""
    with ck.capture() as cap:
        y = cp.zeros(8)
        cp.cuda.runtime.memcpyPeerAsync(y.data.ptr, 0, x.data.ptr, 0, x.nbytes, cap.stream.ptr)  # - <-- here
        y.data.copy_from_device_async(x.data, x.nbytes)  # + <-- instead
        y += 1
    return cap, y
