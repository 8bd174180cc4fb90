"""``fuse='fast'`` with a GPU's compiler: what adds products is fused, and rounds as one instruction does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.fusion.test_fast import SAME, error, numbers, recorded

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu() -> Any:
    pytest.importorskip('cuda.bindings')
    return pytest.importorskip('cupy')


def test_a_product_and_a_sum_are_one_instruction(gpu: Any) -> None:
    x, y, z = (gpu.asarray(np.random.default_rng(n).uniform(-3, 3, 1 << 16).astype('f4')) for n in range(3))
    report, found = recorded(lambda: x * y + z)
    assert report.compared.endswith('numbers that are rounded otherwise'), report
    exact, as_it_was = recorded(lambda: x * y + z, fuse=True)
    assert exact.compared == SAME and as_it_was.get().tobytes() == (x * y + z).get().tobytes()
    wanted = x.get().astype('f8') * y.get() + z.get()
    assert np.abs(found.get() - wanted).sum() < np.abs(as_it_was.get() - wanted).sum()  # rounded once


def complex_numbers(seed: int) -> Any:
    draw = np.random.default_rng(seed)
    return (draw.uniform(1, 2, 5000) + 1j * draw.uniform(1, 2, 5000)).astype('c8')


CASES: dict[str, Callable[..., Any]] = {
    'products of complex numbers': lambda cp, a, b: (a * b + a) * b,
    'quotients': lambda cp, a, b: a / b + b / a,
    'sizes': lambda cp, a, b: cp.hypot(a.real, b.imag) * 2 + 1,
    'functions': lambda cp, a, b: cp.exp(a) * cp.sqrt(b),
    'two products': lambda cp, a, b: mixed(cp)(a.real, b.real) * 2,
    'cp.fuse': lambda cp, a, b: fused(cp)(a.real, b.real) * 2 + 1,
}


def mixed(cp: Any) -> Any:
    if cp is np:
        return lambda x, y: x * x + y * y
    return cp.ElementwiseKernel('T x, T y', 'T z', 'z = x * x + y * y', 'fast_squares')


def fused(cp: Any) -> Any:
    def polynomial(x: Any, y: Any) -> Any:
        return x * x * y + y * 3 + x

    return polynomial if cp is np else cp.fuse()(polynomial)


@pytest.mark.parametrize('name', CASES)
def test_what_adds_products_is_fused(gpu: Any, name: str) -> None:
    hosts = [complex_numbers(n) for n in range(2)]
    work = lambda: CASES[name](gpu, *map(gpu.asarray, hosts))  # noqa: E731
    exact, _kept = recorded(work, fuse=True)
    assert any("; fuse='fast' does fuse it" in why for _node, why in exact.alone), exact
    report, found = recorded(work)
    assert report.compared.startswith(SAME) and len(report.kernels) == 1, report
    assert sum(len(one.nodes) for one in report.kernels) > sum(len(one.nodes) for one in exact.kernels)
    assert error(found, CASES[name](np, *(one.astype('c16') for one in hosts))) < 1e-6


def test_nothing_but_rounding_is_not_let_through(gpu: Any) -> None:
    x, y = (gpu.asarray(numbers((1 << 12,)) + n) for n in (3, 5))
    product = x * y
    with pytest.warns(RuntimeWarning, match='differ by more than rounding'):
        report, found = recorded(lambda: x * y - product)
    assert not report and not found.get().any()


def test_a_library_goes_on_with_rounded_numbers(gpu: Any) -> None:
    a, b = numbers((64, 200), 1, 2), numbers((200, 48), 1, 2)

    @ck.graphed(fuse='fast')
    def work(a: Any, b: Any) -> Any:
        weights = a * a + a / a.sum(axis=-1, keepdims=True)
        return weights @ b, gpu.fft.rfft(weights)

    exact = a.astype('f8') ** 2 + a / a.astype('f8').sum(axis=-1, keepdims=True)
    for _ in range(3):
        product, spectrum = work(gpu.asarray(a), gpu.asarray(b))
        assert error(product, exact @ b) < 1e-5
        assert np.abs(spectrum.get() - np.fft.rfft(exact)).max() < 1e-2
    (variant,) = work.variants
    assert variant.fused is not None and variant.fused.compared.startswith(SAME), variant.fused


def test_a_reduction_kernel_of_ones_own_over_rows(gpu: Any) -> None:
    host = numbers((40, 500))
    kernel = gpu.ReductionKernel('T x', 'T y', 'x * x', 'a + b', 'y = sqrt(a)', '0', 'of_squares')
    report, found = recorded(lambda x: kernel(x + 1, axis=-1), gpu.asarray(host))
    assert report.compared.startswith(SAME) and len(report.kernels) == 1, report
    assert error(found, np.sqrt(((host.astype('f8') + 1) ** 2).sum(axis=-1))) < 1e-5
