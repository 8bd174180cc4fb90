"""Every bit of random programs is the same with and without fused kernels, on the simulated device."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from tests.examples import examples
from tests.fusion import chains


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 99))
def test_random_chains_have_equal_bits(sim: Any, data: Any, seed: int) -> None:
    steps = chains.draw(lambda options: data.draw(st.sampled_from(list(options))))
    eager, recorded, first, second, report = chains.compared(ck, sim, steps, seed)
    assert recorded == eager
    assert first == eager and second == eager, report
    assert 'differs' not in report.compared, report


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 99))
def test_chains_of_odd_numbers_have_equal_bits(sim: Any, data: Any, seed: int) -> None:
    """Infinities, both zeros, numbers too small or too large for a dtype; division by zero and long shifts."""
    steps = chains.draw(lambda options: data.draw(st.sampled_from(list(options))))
    with np.errstate(all='ignore'):
        eager, recorded, first, second, report = chains.compared(ck, sim, steps, seed, special=True)
    assert recorded == eager
    assert first == eager and second == eager, report
    assert 'differs' not in report.compared, report


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 99))
def test_chains_with_single_elements_have_equal_bits(sim: Any, data: Any, seed: int) -> None:
    """Values of one element that are broadcast, written before and after, parts of other arrays; copies of bytes."""
    steps = chains.draw(lambda options: data.draw(st.sampled_from(list(options))), kinds=chains.OF_ONE)
    with np.errstate(all='ignore'):
        eager, recorded, first, second, report = chains.compared(ck, sim, steps, seed)
    assert recorded == eager
    assert first == eager and second == eager, report
    assert 'differs' not in report.compared, report
