"""Fused kernels with a GPU's compiler: every bit is the same with and without, of chains, functions and reductions.

With ``fuse='fast'``, what adds products is fused as well, and rounds as one instruction does.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.fusion import chains
from tests.fusion.test_fast import SAME, error, numbers, recorded

pytestmark = pytest.mark.gpu
SIZE = 1 << 16


def fused(work: Callable[[], list[Any]]) -> Any:
    """The report of a graph that was fused, after its bits were compared with the eager ones."""
    expected = [one.get().tobytes() for one in work()]
    with ck.capture(fuse=True) as cap:
        kept = work()
    for _ in range(2):
        for one in kept:
            one.fill(0)
        cap.graph.launch()
        assert [one.get().tobytes() for one in kept] == expected, str(cap.fused)
    assert cap.fused.compared in ('', SAME), str(cap.fused)
    cap.graph.close()
    return cap.fused


def fused_nodes(work: Callable[[], list[Any]]) -> int:
    return sum(len(one.nodes) for one in fused(work).kernels)


@pytest.mark.slow
@pytest.mark.parametrize('kinds', [{}, {'kinds': chains.OF_ONE}], ids=['arrays', 'single elements'])
@pytest.mark.parametrize('seeds', [*(range(first, first + 10) for first in range(0, 100, 10)), (116, 148, 293)])
def test_random_chains_have_equal_bits(
    gpu: Any, seeds: Sequence[int], kinds: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, 'ROWS', 96)
    monkeypatch.setattr(chains, 'COLUMNS', 128)
    for seed in seeds:
        steps = chains.draw(random.Random(seed).choice, more=True, **kinds)
        eager, plain, once, twice, report = chains.compared(ck, gpu, steps, seed)
        assert plain == eager, seed
        assert once == eager and twice == eager, (seed, report)
        assert report.compared in ('', SAME), (seed, report)


def functions(cp: Any) -> list[Any]:
    return sorted({one for one in vars(cp).values() if isinstance(one, cp.ufunc)}, key=lambda one: str(one.name))


@pytest.mark.slow
@pytest.mark.parametrize('dtype', 'feldF')
def test_every_universal_function_has_equal_bits(gpu: Any, dtype: str) -> None:
    """Between products and sums, which a compiler would make one instruction."""
    values = np.random.default_rng(0)
    a, b = (gpu.asarray(values.uniform(-3, 3, SIZE) * 10.0 ** values.integers(-4, 4, SIZE)) for _ in range(2))
    x, y = (gpu.asarray(one).astype(dtype) for one in (a, b))
    nodes = 0
    for function in functions(gpu)[:: 1 if dtype == 'f' else 4]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')
                between(function, x, y)
        except (TypeError, ValueError, gpu.cuda.compiler.CompileException):
            continue  # it takes no such dtype
        nodes += fused_nodes(lambda function=function: between(function, x, y))  # type: ignore[misc]
    assert nodes >= (8 if dtype == 'F' else 10)


def between(function: Any, x: Any, y: Any) -> list[Any]:
    found = function(*(x * x + y, y * x - x)[: function.nin])
    several = found if isinstance(found, tuple) else (found,)
    return [*several, several[0] * several[0] + several[0]]


@pytest.mark.slow
def test_a_large_array_is_fused_to_the_bit(gpu: Any) -> None:
    """So many elements that each thread works on several."""
    x = gpu.linspace(-5, 5, 4_000_003, dtype='f4')
    assert len(fused(lambda: [gpu.exp(-x * x) * 2 + x]).kernels) == 1


@pytest.mark.slow
def test_a_second_graph_of_the_same_form_needs_no_compiler(gpu: Any) -> None:
    made = []
    for _ in range(2):
        x = gpu.linspace(0, 1, 5000)
        made.append(fused(lambda x=x: [gpu.sqrt(x) * 3 + x]).seconds)  # type: ignore[misc]
    assert made[1] < made[0] / 2 or made[1] < 0.005


@pytest.mark.slow
def test_bfloat16_is_fused_to_the_bit(gpu: Any) -> None:
    kinds = pytest.importorskip('ml_dtypes')
    x = gpu.asarray(np.random.default_rng(0).uniform(-3, 3, 100_003)).astype(kinds.bfloat16)

    def work() -> list[Any]:
        y = x * x + x * 2 - x
        return [gpu.exp(y) * x + gpu.sqrt(abs(x)), y > x, y.astype('f4') * 2 + x]

    assert len(fused(work).kernels) == 1


#: Reductions of one form of code each; of two that differ in a sign or a word, one dtype takes this and the next that.
FORMS = (
    ('sum', 'prod'), ('mean', 'mean'), ('max', 'min'), ('var', 'std'), ('argmax', 'argmin'), ('all', 'any'),
    ('count_nonzero', 'count_nonzero'), ('nansum', 'nanmean'), ('nanargmax', 'nanargmin'),
)  # fmt: skip
DTYPES = 'fedi?F'
#: Columns that fill blocks, that do not, one row, few rows, and a middle axis.
SHAPES = ((4096, 64), (1000, 33), (257, 1), (3, 700), (40, 30, 20))
#: The compiler works on several kernels at once where several threads ask it.
THREADS = 16


def values(cp: Any, shape: tuple[int, ...], dtype: str) -> Any:
    draw = np.random.default_rng(len(shape) + shape[0])
    found = draw.uniform(-3, 3, shape) * 10.0 ** draw.integers(-3, 3, shape)
    if dtype in 'fde':
        found[draw.uniform(size=shape) < 0.001] = np.nan
    if dtype in 'FD':
        found = found + 1j * draw.uniform(-3, 3, shape)
    return cp.asarray(found > 0 if dtype == '?' else found.astype(dtype))


def around(cp: Any, name: str, x: Any, axis: int) -> list[Any]:
    """A reduction with work in front, between products and sums, and work behind."""
    y = x * x + x if x.dtype.kind != 'b' else ~x
    found = getattr(cp, name)(y, axis=axis)
    return [found, found * found + found if found.dtype.kind != 'b' else ~found]


def cases(dtype: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each form once with this dtype, so that it meets each shape with one dtype, and each dtype meets each shape.

    Where nothing can be nan, the forms that leave nan out are those that do not.
    """
    number = DTYPES.index(dtype)
    for n, form in enumerate(FORMS):
        if dtype not in 'i?' or not form[0].startswith('nan'):
            yield form[number % 2], SHAPES[(n + number) % len(SHAPES)]


def works(cp: Any, dtype: str) -> list[Callable[[], list[Any]]]:
    """What CuPy can do of that, done once, so that its own kernels are compiled."""

    def work(name: str, shape: tuple[int, ...]) -> Callable[[], list[Any]] | None:
        x = values(cp, shape, dtype)
        found = functools.partial(around, cp, name, x, len(shape) - 2)
        try:
            found()
        except (TypeError, ValueError):
            return None  # it takes no such dtype
        return found

    with ThreadPoolExecutor(THREADS) as threads:
        return [one for one in threads.map(lambda case: work(*case), cases(dtype)) if one is not None]


@pytest.mark.slow
@pytest.mark.parametrize('dtype', DTYPES)
def test_every_reduction_has_equal_bits(gpu: Any, dtype: str) -> None:
    tried = works(gpu, dtype)
    assert len(tried) >= (5 if dtype == 'F' else 7)
    assert sum(fused_nodes(work) for work in tried) >= len(tried)


@pytest.mark.slow
def test_reduction_kernels_of_the_users_own_have_equal_bits(gpu: Any) -> None:
    dot = gpu.ReductionKernel('T x, T y', 'T z', 'x * y', 'a + b', 'z = a', '0', 'my_dot')
    norm = gpu.ReductionKernel('T x', 'T z', 'x * x', 'a + b', 'z = sqrt(a)', '0', 'my_norm')
    x, y = values(gpu, (3000, 40), 'f'), values(gpu, (3000, 40), 'd').astype('f4')
    for kernel, given in ((dot, (x, y)), (norm, (x,))):
        work = lambda: [kernel(*(one * 2 + 1 for one in given), axis=0) + 1]  # noqa: B023, E731
        assert fused_nodes(work) >= 3


@pytest.mark.slow
def test_results_of_ragged_columns_are_changed_in_place(gpu: Any) -> None:
    x = values(gpu, (700, 33), 'f')

    def work() -> list[Any]:
        y = x + 0
        y *= 2
        total = y.sum(axis=0)
        y /= total
        return [y, total]

    assert fused_nodes(work) >= 2


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


FAST: dict[str, Callable[..., Any]] = {
    'products of complex numbers': lambda cp, a, b: (a * b + a) * b,
    'quotients': lambda cp, a, b: a / b + b / a,
    'sizes': lambda cp, a, b: cp.hypot(a.real, b.imag) * 2 + 1,
    'functions': lambda cp, a, b: cp.exp(a) * cp.sqrt(b),
    'two products': lambda cp, a, b: mixed(cp)(a.real, b.real) * 2,
    'cp.fuse': lambda cp, a, b: polynomial_of(cp)(a.real, b.real) * 2 + 1,
}


def mixed(cp: Any) -> Any:
    if cp is np:
        return lambda x, y: x * x + y * y
    return cp.ElementwiseKernel('T x, T y', 'T z', 'z = x * x + y * y', 'fast_squares')


def polynomial_of(cp: Any) -> Any:
    def polynomial(x: Any, y: Any) -> Any:
        return x * x * y + y * 3 + x

    return polynomial if cp is np else cp.fuse()(polynomial)


@pytest.mark.parametrize('name', FAST)
def test_what_adds_products_is_fused(gpu: Any, name: str) -> None:
    hosts = [complex_numbers(n) for n in range(2)]
    arrays = [gpu.asarray(host) for host in hosts]
    work = lambda: FAST[name](gpu, *arrays)  # noqa: E731
    exact, _kept = recorded(work, fuse=True)
    assert any("; fuse='fast' does fuse it" in why for _node, why in exact.alone), exact
    report, found = recorded(work)
    assert report.compared.startswith(SAME) and len(report.kernels) == 1, report
    assert sum(len(one.nodes) for one in report.kernels) > sum(len(one.nodes) for one in exact.kernels)
    assert error(found, FAST[name](np, *(one.astype('c16') for one in hosts))) < 1e-6


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
