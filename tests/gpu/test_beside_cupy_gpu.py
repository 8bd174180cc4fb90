"""torch, Numba, ``cuda.core`` and a C library beside CuPy in one capture: each way works, or is named.

Each runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from tests.gpu.world import in_process

pytestmark = pytest.mark.gpu

WAYS: dict[str, Callable[[Any], None]] = {}


def way(fn: Callable[[Any], None]) -> Callable[[Any], None]:
    WAYS[fn.__name__] = fn
    return fn


def guilty(name: str) -> int:
    """The number of the line that ends in ``# <-- here``."""
    lines, start = inspect.getsourcelines(WAYS[name])
    return start + next(number for number, line in enumerate(lines) if '# <-- here' in line)


def lost(name: str, function: str, library: str, body: Callable[[Any], None]) -> None:
    """Lose a capture, and compare the error with what is to be named."""
    try:
        with ck.capture(watch=True) as cap:
            body(cap)
    except ck.InvalidatedError as error:
        assert error.function == function, error
        assert error.libraries[0].startswith(library), error.libraries
        assert error.location is not None and error.location.line == guilty(name), error
        assert error.location.file == __file__, error
    else:
        raise AssertionError('the capture was not lost')


@way
def cupy_s_own_work_does_not_escape(cp: Any) -> None:
    x, y = cp.arange(64.0).reshape(8, 8), cp.random.random(64)

    def step() -> Any:
        z = x @ x + cp.asarray([1.0] * 8)
        z = cp.fft.ifft(cp.fft.fft(z)).real.take([2, 0, 1], axis=0)
        return z.sum() + cp.sort(y).cumsum()[-1] + cp.random.random(8).sum()

    step()
    with ck.capture(watch=True) as cap:
        with cap.fork(2) as (left, right):
            with left:
                a = step()
            with right:
                b = step()
        c = a + b
    cap.graph.launch()
    assert float(c) > 0 and cap.recording.notes == [], cap.recording.notes


@way
def torch_works_on_the_capture_s_stream(cp: Any) -> None:
    import torch

    t = torch.zeros(8, device='cuda')
    x = cp.zeros(8)
    t + 1, x + 1
    torch.cuda.synchronize()
    with ck.capture(watch=True) as cap:
        x += 1
        with torch.cuda.stream(torch.cuda.ExternalStream(cap.stream.ptr)):
            t.add_(1)
        x += 1
    cap.graph.launch()
    cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert cap.recording.notes == [] and float(t.sum()) == 16 and float(x.sum()) == 32


@way
def torch_s_side_stream_is_told(cp: Any) -> None:
    import torch

    t = torch.zeros(8, device='cuda')
    x, side = cp.zeros(8), torch.cuda.Stream()
    t + 1, x + 1
    torch.cuda.synchronize()
    with ck.capture(watch=True) as cap:
        x += 1
        with torch.cuda.stream(side):
            t.add_(1)  # <-- here
    (note,) = cap.recording.notes
    assert 'work escaped: EscapedWorkError: cuLaunchKernel(), called by libtorch_cuda.so,' in note.text, note
    assert note.at is not None and note.at[1] == guilty('torch_s_side_stream_is_told'), note
    torch.cuda.synchronize()
    assert float(t.sum()) == 8


@way
def torch_reads_a_value(cp: Any) -> None:
    import torch

    t = torch.ones(8, device='cuda')
    t.sum().item()
    torch.cuda.synchronize()

    def body(cap: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(cap.stream.ptr)), contextlib.suppress(RuntimeError):
            t.mul(2)[0].item()  # <-- here

    lost('torch_reads_a_value', 'cudaStreamSynchronize', 'libtorch_cuda.so', body)


@way
def torch_forks_and_does_not_join(cp: Any) -> None:
    import torch

    t = torch.zeros(8, device='cuda')
    side = torch.cuda.Stream()
    t + 1
    torch.cuda.synchronize()
    try:
        with ck.capture(watch=True) as cap:
            side.wait_stream(torch.cuda.ExternalStream(cap.stream.ptr))
            with torch.cuda.stream(side):
                t.add_(1)  # <-- here
    except ck.UnjoinedError as error:
        assert f'test_beside_cupy_gpu.py:{guilty("torch_forks_and_does_not_join")}' in str(error), error
    else:
        raise AssertionError('the capture was not lost')


@way
def numba_waits_for_the_stream(cp: Any) -> None:
    from numba import cuda

    cuda.stream().synchronize()

    def body(cap: Any) -> None:
        stream = cuda.external_stream(cap.stream.ptr)
        with contextlib.suppress(Exception):
            stream.synchronize()  # <-- here

    lost('numba_waits_for_the_stream', 'cuStreamSynchronize', '', body)


@way
def numba_launches_on_the_capture_s_stream(cp: Any) -> None:
    import numpy as np
    from numba import cuda

    if not hasattr(np, 'row_stack'):
        raise Skipped('this Numba can not compile with this NumPy')

    @cuda.jit
    def add_one(a: Any) -> None:
        at = cuda.grid(1)
        if at < a.size:
            a[at] += 1

    x = cp.zeros(64)
    add_one[1, 64](x)
    cuda.synchronize()
    x[:] = 0
    with ck.capture(watch=True) as cap:
        add_one[1, 64, cuda.external_stream(cap.stream.ptr)](x)
    cap.graph.launch()
    assert float(x.sum()) == 64


@way
def cuda_core_launches_on_the_capture_s_stream(cp: Any) -> None:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch

    device = Device()
    device.set_current()
    text = 'extern "C" __global__ void add_one(double* a) { a[threadIdx.x] += 1; }'
    options = ProgramOptions(arch=f'sm_{device.arch}')
    kernel = Program(text, 'c++', options).compile('cubin').get_kernel('add_one')
    x = cp.zeros(64)
    with ck.capture(watch=True) as cap:
        launch(Stream.from_handle(cap.stream.ptr), LaunchConfig(grid=1, block=64), kernel, x.data.ptr)
    cap.graph.launch()
    assert float(x.sum()) == 64 and cap.recording.notes == []


@way
def cuda_core_waits_for_the_stream(cp: Any) -> None:
    from cuda.core import Device, Stream

    Device().set_current()

    def body(cap: Any) -> None:
        with contextlib.suppress(Exception):
            Stream.from_handle(cap.stream.ptr).sync()  # <-- here

    lost('cuda_core_waits_for_the_stream', 'cuStreamSynchronize', 'cuda.', body)


@way
def cuda_core_works_on_a_stream_outside(cp: Any) -> None:
    from cuda.core import Device, DeviceMemoryResource

    device = Device()
    device.set_current()
    side = device.create_stream()
    buffer = DeviceMemoryResource(device).allocate(1024, stream=side)
    side.sync()
    x = cp.zeros(8)
    with ck.capture(watch=True) as cap:
        x += 1
        buffer.fill(0, stream=side)  # <-- here
    (note,) = cap.recording.notes
    assert 'work escaped: EscapedWorkError: cuMemsetD8Async()' in note.text, note
    assert note.at is not None and note.at[1] == guilty('cuda_core_works_on_a_stream_outside'), note


@way
def a_c_library_waits(cp: Any) -> None:
    import ctypes

    library = ctypes.CDLL('libcuda.so.1')

    def body(cap: Any) -> None:
        library.cuStreamSynchronize(ctypes.c_void_p(cap.stream.ptr))  # <-- here

    lost('a_c_library_waits', 'cuStreamSynchronize', 'ctypes', body)


class Skipped(Exception):
    """This way can not be tried here."""


def trial(name: str) -> str:
    import cupy

    try:
        WAYS[name](cupy)
    except (Skipped, ImportError) as reason:
        return f'skipped: {reason}'
    return 'good'


@pytest.mark.parametrize('name', sorted(WAYS))
def test_a_library_beside_cupy(name: str) -> None:
    said = in_process(f'from tests.gpu.test_beside_cupy_gpu import trial\nprint(trial({name!r}))').splitlines()[-1]
    if said.startswith('skipped'):
        pytest.skip(said)
    assert said == 'good'
