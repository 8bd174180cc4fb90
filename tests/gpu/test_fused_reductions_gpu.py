"""Fused reductions on a GPU: every bit is the same as without, for CuPy's reductions, dtypes and ragged shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import capturekit as ck

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SAME = 'the same as without fused kernels'
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


@pytest.fixture
def gpu() -> Any:
    pytest.importorskip('cuda.bindings')
    return pytest.importorskip('cupy')


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


def fused(work: Callable[[], list[Any]]) -> int:
    """How many of the graph's nodes are in kernels with a reduction, after its bits were compared."""
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
    return sum(len(one.nodes) for one in cap.fused.kernels)


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


@pytest.mark.parametrize('dtype', DTYPES)
def test_every_reduction_has_equal_bits(gpu: Any, dtype: str) -> None:
    tried = works(gpu, dtype)
    assert len(tried) >= (5 if dtype == 'F' else 7)
    assert sum(fused(work) for work in tried) >= len(tried)


def test_reduction_kernels_of_the_users_own_have_equal_bits(gpu: Any) -> None:
    dot = gpu.ReductionKernel('T x, T y', 'T z', 'x * y', 'a + b', 'z = a', '0', 'my_dot')
    norm = gpu.ReductionKernel('T x', 'T z', 'x * x', 'a + b', 'z = sqrt(a)', '0', 'my_norm')
    x, y = values(gpu, (3000, 40), 'f'), values(gpu, (3000, 40), 'd').astype('f4')
    for kernel, given in ((dot, (x, y)), (norm, (x,))):
        work = lambda: [kernel(*(one * 2 + 1 for one in given), axis=0) + 1]  # noqa: B023, E731
        assert fused(work) >= 3


def test_results_of_ragged_columns_are_changed_in_place(gpu: Any) -> None:
    x = values(gpu, (700, 33), 'f')

    def work() -> list[Any]:
        y = x + 0
        y *= 2
        total = y.sum(axis=0)
        y /= total
        return [y, total]

    assert fused(work) >= 2
