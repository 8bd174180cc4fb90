"""Captures lost below Python, in every way that we know: the error names the line that did it.

Each way runs in a process of its own, for a lost capture can poison a library. The guilty line ends in ``# <-- here``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from tests.gpu.world import in_process

pytestmark = pytest.mark.gpu

WAYS: dict[str, Callable[..., Any]] = {}


def way(fn: Callable[..., Any]) -> Callable[..., Any]:
    WAYS[fn.__name__] = fn
    return fn


def runtime() -> Any:
    from cuda.bindings import runtime

    return runtime


def driver_library() -> Any:
    return ctypes.CDLL('libcuda.so.1')


@way
def the_device_is_waited_for(cp: Any, cap: Any, x: Any) -> None:
    y = x + 1
    runtime().cudaDeviceSynchronize()  # <-- here
    y *= 2


@way
def a_stream_is_waited_for(cp: Any, cap: Any, x: Any) -> None:
    handle = cap.stream.ptr
    runtime().cudaStreamSynchronize(handle)  # <-- here
    x += 1


@way
def a_stream_is_asked(cp: Any, cap: Any, x: Any) -> None:
    handle = cap.stream.ptr
    for number in range(3):
        x += number
    while runtime().cudaStreamQuery(handle)[0] == 0:  # <-- here
        x += 1


@way
def a_stream_is_asked_for_its_flags(cp: Any, cap: Any, x: Any) -> None:
    runtime().cudaStreamGetFlags(cap.stream.ptr)  # <-- here
    x += 1


@way
def an_event_is_waited_for(cp: Any, cap: Any, x: Any) -> None:
    event = cap.stream.record()
    handle = event.ptr
    runtime().cudaEventSynchronize(handle)  # <-- here
    x += 1


@way
def an_event_is_asked(cp: Any, cap: Any, x: Any) -> None:
    event = cap.stream.record()
    runtime().cudaEventQuery(event.ptr)  # <-- here
    x += 1


@way
def an_event_from_outside_is_waited_for(cp: Any, cap: Any, x: Any) -> None:
    outside, event = cp.cuda.Stream(non_blocking=True), runtime().cudaEventCreate()[1]
    runtime().cudaEventRecord(event, outside.ptr)
    runtime().cudaStreamWaitEvent(cap.stream.ptr, event, 0)  # <-- here
    x += 1


@way
def a_callback_is_added(cp: Any, cap: Any, x: Any) -> None:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)
    add = driver_library().cuStreamAddCallback
    add(ctypes.c_void_p(cap.stream.ptr), function, None, 0)  # <-- here
    x += 1


@way
def a_graph_is_launched_into_the_stream(cp: Any, cap: Any, x: Any) -> None:
    made = runtime().cudaGraphInstantiate(runtime().cudaGraphCreate(0)[1], 0)[1]
    x += 1
    runtime().cudaGraphLaunch(made, cap.stream.ptr)  # <-- here
    x += 1


@way
def a_c_library_waits_for_the_context(cp: Any, cap: Any, x: Any) -> None:
    def helper() -> None:
        wait = driver_library().cuCtxSynchronize
        wait()  # <-- here

    x += 1
    helper()
    x += 1


@way
def a_destructor_waits(cp: Any, cap: Any, x: Any) -> None:
    class Holder:
        def __del__(self) -> None:
            runtime().cudaDeviceSynchronize()  # <-- here

    holder = Holder()
    x += 1
    del holder
    x += 1


@way
def the_garbage_collector_finds_one_that_waits(cp: Any, cap: Any, x: Any) -> None:
    class Knot:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            runtime().cudaDeviceSynchronize()  # <-- here

    Knot()
    x += 1
    gc.collect()
    x += 1


@way
def another_thread_waits(cp: Any, cap: Any, x: Any) -> None:
    thread = threading.Thread(target=lambda: runtime().cudaDeviceSynchronize())
    x += 1
    _ = thread.start(), thread.join()  # <-- here
    x += 1


@way
def torch_waits(cp: Any, cap: Any, x: Any) -> None:
    import torch

    x += 1
    torch.cuda.synchronize()  # <-- here
    x += 1


@way
def torch_reads_a_value_on_the_same_stream(cp: Any, cap: Any, x: Any) -> None:
    import torch

    with torch.cuda.stream(torch.cuda.ExternalStream(cap.stream.ptr)):
        t = torch.ones(4, device='cuda')
        with contextlib.suppress(RuntimeError):
            float(t.sum())  # <-- here
    x += 1


@way
def a_loop_that_does_it_in_the_third_turn(cp: Any, cap: Any, x: Any) -> None:
    for turn in range(5):
        x += turn
        if turn == 2:
            runtime().cudaDeviceSynchronize()  # <-- here


def guilty(name: str) -> tuple[str, int]:
    lines, start = inspect.getsourcelines(WAYS[name])
    return __file__, start + next(n for n, line in enumerate(lines) if '# <-- here' in line)


def trial(name: str) -> str:
    """Lose a capture in this way, with and without an exception of the block's own; a new capture works afterwards."""
    import cupy as cp

    x = cp.ones(16)
    x + 1, x * 2  # loaded beforehand
    if 'torch' in name:
        import torch

        torch.ones(4, device='cuda').sum()
    where = guilty(name)
    for own in (False, True):
        error: Exception
        try:
            with ck.capture() as cap:
                WAYS[name](cp, cap, x)
                if own:
                    raise KeyError('of my own')
        except Exception as found:  # what CuPy says of the next launch into the lost capture, perhaps
            error = found
        else:
            raise AssertionError('the capture was not lost')
        if isinstance(error, ck.InvalidatedError):
            assert error.lost_at is not None, str(error)
            assert (error.lost_at.file, error.lost_at.line) == where, str(error)
            assert error.location == error.lost_at
            assert error.active_at is not None and error.active_at.line <= where[1]
            assert (
                'Active after' in str(error) and 'Invalidated after' in str(error) and 'thread MainThread' in str(error)
            )
        else:
            notes = ' '.join(error.__notes__)
            assert f'Invalidated after {where[0].rpartition("/")[2]}:{where[1]}' in notes, notes
        cp.cuda.get_current_stream().synchronize()
        with ck.capture() as cap:
            y = x * 3
        cap.graph.launch()
        assert bool((y == x * 3).all())
    return f'{name} named'


@pytest.mark.parametrize('name', sorted(WAYS))
def test_the_line_that_lost_a_capture_is_named(name: str) -> None:
    if 'torch' in name and importlib.util.find_spec('torch') is None:
        pytest.skip('torch is not installed')
    if sys.version_info < (3, 12) and name in ('a_destructor_waits', 'the_garbage_collector_finds_one_that_waits'):
        pytest.skip('lines of destructors are followed from Python 3.12 on')
    code = f'from tests.gpu.test_first_cause_gpu import trial\nprint(trial({name!r}))'
    assert in_process(code).splitlines()[-1] == f'{name} named'
