"""Kernels that are loaded and unloaded again and again: the driver gives new functions the handles of old ones."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import capturekit as ck

pytestmark = pytest.mark.gpu

#: The array is the first argument or the last.
SOURCES = (
    'extern "C" __global__ void {name}(double* y, double by) {{ y[threadIdx.x] += by; }}',
    'extern "C" __global__ void {name}(double by, int n, double* y) {{ y[threadIdx.x % n] += by; }}',
)


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip('cupy')


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


def test_each_node_has_the_name_and_the_arguments_of_its_kernel(cupy: Any) -> None:
    for number in range(40):
        assert recorded(cupy, number) == ([f'kernel_{number}'], [True])
        cupy.clear_memo()
        gc.collect()
