"""Every bit of random programs is the same with and without fused kernels, on the simulated device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from tests.examples import examples
from tests.fusion import chains


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 99))
@pytest.mark.parametrize(
    ('special', 'kinds'),
    [(False, chains.KINDS), (True, chains.KINDS), (False, chains.OF_ONE)],
    ids=['plain', 'odd numbers', 'single elements'],
)
def test_random_chains_have_equal_bits(sim: Any, data: Any, seed: int, special: bool, kinds: tuple[str, ...]) -> None:
    """Odd numbers are infinities, both zeros, numbers too small or too large for a dtype. Single elements are
    broadcast, written before and after, and parts of other arrays; bytes of arrays are copied beside them."""
    steps = chains.draw(lambda options: data.draw(st.sampled_from(list(options))), kinds=kinds)
    with np.errstate(all='ignore'):
        eager, recorded, first, second, report = chains.compared(ck, sim, steps, seed, special=special)
    assert recorded == eager
    assert first == eager and second == eager, report
    assert 'differs' not in report.compared, report
