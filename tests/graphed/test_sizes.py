"""Features at the sizes where their other path begins: arguments that many blocks fetch, copies of many blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.graphed.argument_slots import _BLOCKS, _DIRECT, _THREADS

#: Bytes of an argument up to which each block of the fetching kernel reads the host's table by itself.
DIRECT = _DIRECT * 16 * _THREADS
#: Bytes from which on a block copies more than its share at once.
WIDE = _BLOCKS * 16 * _THREADS


def below_and_above(limit: int) -> list[int]:
    """Sides of square matrices of float64 whose bytes lie just under a limit, at it and over it."""
    side = int((limit / 8) ** 0.5)
    return [side - 1, side, side + 1]


def matrices(cp: Any, side: int, count: int) -> list[Any]:
    made = np.random.default_rng(side).random((count, side, side))
    return [cp.asarray(one) for one in made + np.swapaxes(made, 1, 2)]


@pytest.mark.parametrize('side', [4, *below_and_above(DIRECT), 128])
def test_results_behind_a_call_by_the_host(cp: Any, side: int) -> None:
    def step(a: Any, b: Any) -> Any:
        return cp.linalg.eigvalsh(a @ a.T + b) * 2

    fn = ck.graphed(step)
    for a, b in zip(matrices(cp, side, 5), reversed(matrices(cp, side, 5))):
        assert cp.allclose(fn(a, b), step(a, b))
    (variant,) = fn.variants
    assert (variant.state, len(variant.seams)) == ('pieces', 1) and variant.launches >= 2


@pytest.mark.parametrize('side', [*below_and_above(DIRECT), 128])
def test_an_argument_changed_in_place_behind_a_call_by_the_host(cp: Any, side: int) -> None:
    def step(a: Any) -> None:
        a += 1
        total = cp.linalg.eigvalsh(a).sum()
        a *= 0.5
        a[0, 0] = total

    fn = ck.graphed(step)
    for a in matrices(cp, side, 5):
        wanted = a.copy()
        step(wanted)
        fn(a)
        assert cp.allclose(a, wanted)
    assert [v.state for v in fn.variants] == ['pieces']


@pytest.mark.parametrize('side', [*below_and_above(DIRECT), *below_and_above(WIDE)])
def test_host_reads_of_large_arguments(cp: Any, side: int) -> None:
    def step(a: Any) -> Any:
        return a * 2 if float(a[0, 0]) >= 0 else a - 1

    fn = ck.graphed(step)
    a = cp.arange(float(side * side)).reshape(side, side)
    for n in range(6):
        a[1, 1] = n
        assert cp.array_equal(fn(a), step(a))
    (variant,) = fn.variants
    assert variant.state == 'recorded' and variant.launches >= 4


def test_many_large_arguments_and_results(cp: Any) -> None:
    fn = ck.graphed(lambda *arrays: [array + n for n, array in enumerate(arrays)])
    for round_ in range(4):
        arrays = [cp.full(5000 + n, float(round_)) for n in range(20)]
        for n, (one, array) in enumerate(zip(fn(*arrays), arrays)):
            assert cp.array_equal(one, array + n)
    assert [v.state for v in fn.variants] == ['recorded']


@pytest.mark.parametrize('view', [lambda y: y[::-1], lambda y: y[:, :, ::-1], lambda y: y.T, lambda y: y[None]])
def test_a_result_has_the_strides_of_the_eager_one(cp: Any, view: Callable[[Any], Any]) -> None:
    def fn(x: Any) -> Any:
        return view(x * 2)

    graphed = ck.graphed(fn)
    x = cp.arange(3.0).reshape(1, 3, 1)
    want = fn(x)
    for _ in range(4):
        found = graphed(x)
        assert (found.shape, found.strides, found.get().tolist()) == (want.shape, want.strides, want.get().tolist())
    assert graphed.variants[0].launches
