"""What nodes touch on a GPU, observed: libraries write no byte that they are not said to write, and what they are not
said to read makes no difference. Kernels keep their names and arguments, and textures their memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.node_accesses import Access
from capturekit.guard import libraries

pytestmark = pytest.mark.gpu

#: Bytes of the memory that operands lie in, and where each of them begins.
ARENA = 1 << 20
X, Y, Z = 1 << 16, 5 << 16, 9 << 16


def bytes_of(accesses: Iterable[Access], start: int, *kinds: bool) -> Any:
    """Which bytes of the arena accesses name."""
    found = np.zeros(ARENA, bool)
    for one in accesses:
        if one.writes not in kinds or not start <= one.address < start + ARENA:
            continue
        places = np.array([one.address - start])
        for length, stride in zip(one.shape, one.strides):
            places = (places[:, None] + np.arange(length) * stride).ravel()
        for n in range(one.itemsize):
            found[places + n] = True
    return found


def filled(cp: Any, arena: Any, seed: int, keep: Any = None) -> None:
    """Fill the arena with finite numbers, or what is not kept with other ones."""
    values = np.random.default_rng(seed).uniform(-1, 1, ARENA // 4).astype('f4')
    values[1::2] = np.abs(values[1::2]) + 0.5  # so that pairs of them are no odd doubles
    fresh = cp.asarray(values.view(np.uint8))
    arena[...] = fresh if keep is None else cp.where(cp.asarray(keep), arena, fresh)


def calls(cp: Any, base: int, ones: dict[str, int]) -> dict[str, Callable[[Any, int], Any]]:
    x, y, z = base + X, base + Y, base + Z
    f, d = ones['f'], ones['d']
    return {
        'sgemm': lambda b, h: b.sgemm(h, 0, 0, 33, 20, 17, f, x, 40, y, 19, f, z, 50),
        'sgemm, turned': lambda b, h: b.sgemm(h, 1, 1, 33, 20, 17, f, x, 18, y, 21, f, z, 33),
        'dgemm': lambda b, h: b.dgemm(h, 0, 1, 64, 64, 64, d, x, 64, y, 70, d, z, 64),
        'sgemm, long': lambda b, h: b.sgemm(h, 1, 0, 8, 8, 4096, f, x, 4096, y, 4096, f, z, 9),
        'gemmEx': lambda b, h: b.gemmEx(h, 0, 0, 128, 96, 64, f, x, 0, 130, y, 0, 64, f, z, 0, 128, 68, 99),
        'gemmEx, half': lambda b, h: b.gemmEx(h, 0, 0, 64, 96, 64, f, x, 2, 64, y, 2, 64, f, z, 2, 72, 68, 99),
        'gemmStridedBatchedEx': lambda b, h: b.gemmStridedBatchedEx(
            h, 0, 0, 16, 12, 8, f, x, 0, 20, 170, y, 0, 8, 0, f, z, 0, 16, 200, 5, 68, 99
        ),
        'sgemv': lambda b, h: b.sgemv(h, 0, 33, 20, f, x, 40, y, 2, f, z, 3),
        'dgemv, turned': lambda b, h: b.dgemv(h, 1, 64, 64, d, x, 64, y, 1, d, z, 1),
        'sger': lambda b, h: b.sger(h, 33, 20, f, x, 1, y, 2, z, 40),
        'sgeam': lambda b, h: b.sgeam(h, 0, 1, 33, 20, f, x, 40, f, y, 21, z, 35),
        'sdgmm': lambda b, h: b.sdgmm(h, 1, 33, 20, x, 40, y, 1, z, 35),
        'ssyrk': lambda b, h: b.ssyrk(h, 0, 0, 40, 20, f, x, 44, f, z, 41),
        'strsm': lambda b, h: b.strsm(h, 0, 0, 0, 0, 16, 12, f, x, 20, z, 18),
        'saxpy': lambda b, h: b.saxpy(h, 1000, f, x, 1, z, 2),
        'sscal': lambda b, h: b.sscal(h, 1000, f, z, 3),
    }


NAMES = list(calls(None, 0, {'f': 0, 'd': 0}))


@pytest.mark.parametrize('name', NAMES)
def test_functions_of_cublas(gpu: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cp, noted = gpu, []
    called = libraries.Called
    monkeypatch.setattr(libraries, 'Called', lambda *args: noted.append(args[-2]) or called(*args))
    arena = cp.zeros(ARENA, np.uint8)
    one = {'f': np.array(1.5, 'f4'), 'd': np.array(1.5, 'f8')}
    run = calls(cp, int(arena.data.ptr), {key: value.ctypes.data for key, value in one.items()})[name]
    handle = cp.cuda.device.get_cublas_handle()
    from cupy_backends.cuda.libs import cublas

    with ck.capture() as cap:
        run(cublas, handle)
    assert len(noted) == 1 and not cap.graph.relane(report=True).fixed, 'the call is understood'
    start = int(arena.data.ptr)
    written, touched = bytes_of(noted[0], start, True), bytes_of(noted[0], start, True, False)
    filled(cp, arena, 1)
    before = arena.get()
    cap.graph.launch()
    after = arena.get()
    assert (after != before)[written].any(), 'it did something'
    assert not (after != before)[~written].any(), 'it wrote something else'
    arena[...] = cp.asarray(before)
    filled(cp, arena, 2, touched)
    assert (arena.get() != before).any()
    cap.graph.launch()
    assert (arena.get()[written] == after[written]).all(), 'it read something else'


def transforms(cp: Any, x: Any) -> dict[str, Callable[[], Any]]:
    wave = x[: 1 << 12].reshape(8, 512)
    return {
        'rfft': lambda: cp.fft.rfft(wave),
        'irfft': lambda: cp.fft.irfft(cp.fft.rfft(wave)),
        'fft2': lambda: cp.fft.fft2(wave),
        'long fft': lambda: cp.fft.fft(x),
        'odd fft': lambda: cp.fft.fft(x[:3003]),
        'sum': lambda: x.sum(),
        'sum of rows': lambda: wave.sum(axis=1),
        'largest': lambda: x.max(),
        'where the largest is': lambda: x.argmax(),
        'running sum': lambda: cp.cumsum(x),
        'product of vectors': lambda: x @ x,
    }


@pytest.mark.parametrize('name', list(transforms(None, np.zeros(1 << 12))))
def test_transforms_and_reductions_beside_each_other(gpu: Any, name: str) -> None:
    """Several at once, of a graph that is split by what they are said to touch: every bit is that of one lane."""
    cp = gpu
    x = cp.asarray(np.random.default_rng(3).integers(-50, 50, 1 << 16).astype('f4'))  # sums in any order are the same
    with ck.capture() as one:
        wanted = [transforms(cp, x * (n + 1))[name]() for n in range(6)]
    one.graph.launch()
    with ck.capture(lanes='auto', memory_limit=1 << 30) as cap:
        found = [transforms(cp, x * (n + 1))[name]() for n in range(6)]
    assert cap.relaned and not cap.relaned.fixed, cap.relaned
    assert cap.relaned.graphs[0].at_once[1] >= 6
    for _ in range(20):
        cap.graph.launch()
        for a, b in zip(found, wanted):
            assert a.get().tobytes() == b.get().tobytes()
    # Not even where no order rounds, as here, are sums of CUB's scan compared.
    compared = 'not compared: sums of it' if name == 'running sum' else 'the same as with the recorded edges'
    assert str(cap.relaned.compared).startswith(compared)


#: The array is the first argument or the last.
SOURCES = (
    'extern "C" __global__ void {name}(double* y, double by) {{ y[threadIdx.x] += by; }}',
    'extern "C" __global__ void {name}(double by, int n, double* y) {{ y[threadIdx.x % n] += by; }}',
)


def recorded(cp: Any, number: int) -> tuple[list[str], list[bool]]:
    """The names of a graph's kernels, and whether each is seen to have the array; the kernel is dropped afterwards."""
    name = f'kernel_{number}'
    kernel = cp.RawKernel(SOURCES[number % 2].format(name=name), name)
    y = cp.zeros(4)
    kernel.compile()
    cp.cuda.Device().synchronize()
    with ck.capture() as cap:
        kernel((1,), (4,), (y, 2.0) if number % 2 == 0 else (2.0, cp.int32(4), y))
    names = [node.name for node in cap.graph.nodes]
    seen = [y.data.ptr in {one.address for one in node.pointers} for node in cap.graph.nodes]
    cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert y.get().tolist() == [2.0] * 4
    cap.graph.close()
    return names, seen


def test_each_node_has_the_name_and_the_arguments_of_its_kernel(gpu: Any) -> None:
    for number in range(40):
        assert recorded(gpu, number) == ([f'kernel_{number}'], [True])
        gpu.clear_memo()
        gc.collect()


def texture(cp: Any, data: Any) -> Any:
    kind = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, cp.cuda.runtime.cudaChannelFormatKindFloat)
    made = cp.cuda.texture.CUDAarray(kind, 4, 4)
    made.copy_from(data)
    return made


def test_a_cuda_array_lives_as_long_as_the_graph(gpu: Any) -> None:
    cp = gpu
    data, out = cp.arange(16, dtype='f').reshape(4, 4), cp.zeros((4, 4), 'f')
    with ck.capture() as cap:
        texture(cp, data).copy_to(out)
    for number in (0, 3):
        data += number
        cap.graph.launch()
        assert np.array_equal(out.get(), data.get())


def test_a_function_that_uses_texture_memory(gpu: Any) -> None:
    from cupyx.scipy import ndimage

    cp = gpu
    matrix = cp.asarray([[1, 0, 0.5], [0, 1, 0.25], [0, 0, 1]], 'f')
    fn = ck.graphed(lambda x: ndimage.affine_transform(x, matrix, order=1, texture_memory=True) * 2)
    for number in range(4):
        x = cp.arange(64, dtype='f').reshape(8, 8) + number
        expected = ndimage.affine_transform(x, matrix, order=1, texture_memory=True) * 2
        assert np.array_equal(fn(x).get(), expected.get())
    with ck.capture() as cap, pytest.raises(ck.UnsupportedCallError, match='affine_transformation'):
        ndimage.affine_transform(x, matrix, order=1, texture_memory=True)
    cap.graph.launch()
