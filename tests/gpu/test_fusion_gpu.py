"""Fused kernels on a GPU: every bit of random programs and of universal functions is the same with and without."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.fusion import chains

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SAME = 'the same as without fused kernels'
SIZE = 1 << 16


@pytest.fixture
def gpu() -> Any:
    pytest.importorskip('cuda.bindings')
    return pytest.importorskip('cupy')


@pytest.mark.parametrize('seeds', [*(range(first, first + 10) for first in range(0, 100, 10)), (116, 148, 293)])
def test_random_chains_have_equal_bits(gpu: Any, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, 'ROWS', 96)
    monkeypatch.setattr(chains, 'COLUMNS', 128)
    for seed in seeds:
        steps = chains.draw(random.Random(seed).choice, more=True)
        eager, recorded, once, twice, report = chains.compared(ck, gpu, steps, seed)
        assert recorded == eager, seed
        assert once == eager and twice == eager, (seed, report)
        assert report.compared in ('', SAME), (seed, report)


@pytest.mark.parametrize('seeds', [range(first, first + 10) for first in range(0, 100, 10)])
def test_chains_with_single_elements_have_equal_bits(
    gpu: Any, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, 'ROWS', 96)
    monkeypatch.setattr(chains, 'COLUMNS', 128)
    for seed in seeds:
        steps = chains.draw(random.Random(seed).choice, more=True, kinds=chains.OF_ONE)
        eager, recorded, once, twice, report = chains.compared(ck, gpu, steps, seed)
        assert recorded == eager, seed
        assert once == eager and twice == eager, (seed, report)
        assert report.compared in ('', SAME), (seed, report)


def functions(cp: Any) -> list[Any]:
    return sorted({one for one in vars(cp).values() if isinstance(one, cp.ufunc)}, key=lambda one: str(one.name))


@pytest.mark.parametrize('dtype', 'feldF')
def test_every_universal_function_has_equal_bits(gpu: Any, dtype: str) -> None:
    """Between products and sums, which a compiler would make one instruction."""
    values = np.random.default_rng(0)
    a, b = (gpu.asarray(values.uniform(-3, 3, SIZE) * 10.0 ** values.integers(-4, 4, SIZE)) for _ in range(2))
    x, y = (gpu.asarray(one).astype(dtype) for one in (a, b))
    fused = 0
    for function in functions(gpu)[:: 1 if dtype == 'f' else 4]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')
                between(gpu, function, x, y)
        except (TypeError, ValueError, gpu.cuda.compiler.CompileException):
            continue  # it takes no such dtype
        fused += compare(gpu, function, x, y)
    assert fused >= (8 if dtype == 'F' else 10)


def between(cp: Any, function: Any, x: Any, y: Any) -> list[Any]:
    found = function(*(x * x + y, y * x - x)[: function.nin])
    several = found if isinstance(found, tuple) else (found,)
    return [*several, several[0] * several[0] + several[0]]


def compare(cp: Any, function: Any, x: Any, y: Any) -> int:
    """How many nodes of a graph with this function were fused, after its bits were compared."""
    with ck.capture() as cap:
        kept = between(cp, function, x, y)
    cap.graph.launch()
    expected = [one.get().tobytes() for one in kept]
    report = cap.graph.fuse()
    for _ in range(2):
        for one in kept:
            one.fill(0)
        cap.graph.launch()
        assert [one.get().tobytes() for one in kept] == expected, (function, report)
    assert report.compared in ('', SAME), (function, report)
    cap.graph.close()
    return sum(len(one.nodes) for one in report.kernels)


def test_a_large_array_is_fused_to_the_bit(gpu: Any) -> None:
    """So many elements that each thread works on several."""
    x = gpu.linspace(-5, 5, 4_000_003, dtype='f4')
    expected = gpu.exp(-x * x) * 2 + x
    with ck.capture(fuse=True) as cap:
        y = gpu.exp(-x * x) * 2 + x
    for _ in range(2):
        y.fill(0)
        cap.graph.launch()
        assert y.get().tobytes() == expected.get().tobytes()
    assert cap.fused.compared == SAME and len(cap.fused.kernels) == 1


def test_a_second_graph_of_the_same_form_needs_no_compiler(gpu: Any) -> None:
    made = []
    for _ in range(2):
        x = gpu.linspace(0, 1, 5000)
        with ck.capture(fuse=True) as cap:
            y = gpu.sqrt(x) * 3 + x
        cap.graph.launch()
        made.append(cap.fused.seconds)
        assert float(abs(y - (gpu.sqrt(x) * 3 + x)).max()) == 0
    assert made[1] < made[0] / 2 or made[1] < 0.005


def test_bfloat16_is_fused_to_the_bit(gpu: Any) -> None:
    kinds = pytest.importorskip('ml_dtypes')
    x = gpu.asarray(np.random.default_rng(0).uniform(-3, 3, 100_003)).astype(kinds.bfloat16)

    def work() -> list[Any]:
        y = x * x + x * 2 - x
        return [gpu.exp(y) * x + gpu.sqrt(abs(x)), y > x, y.astype('f4') * 2 + x]

    expected = [one.get().tobytes() for one in work()]
    with ck.capture(fuse=True) as cap:
        kept = work()
    for _ in range(2):
        cap.graph.launch()
        assert [one.get().tobytes() for one in kept] == expected
    assert cap.fused.compared == SAME and len(cap.fused.kernels) == 1, cap.fused
