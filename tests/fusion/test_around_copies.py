"""Copies that a run could do without, where what they write is seen: runs around them, and reads of the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck


def written_before(cp: Any, x: Any) -> list[Any]:
    """A member of a run writes the array that copies fill afterwards; the run goes on behind them."""
    other, kept = x * 2, x + 1
    kept[1:], kept[:1] = other[:-1], other[-1:]
    return [kept, kept * (x - 3)]


def block_of_another(cp: Any, x: Any) -> list[Any]:
    """The same with a scalar copied into a block that a temporary of the run had."""
    found = cp.where(x > 0, x, 1)
    small = (x.sum(axis=0)[0] * 2).copy()
    return [small, small - 3, found + 1]


def read_and_written(cp: Any, x: Any) -> list[Any]:
    """A node reads what it writes over: so what was there is read."""
    y = x + 1
    y[...] = y[::-1]
    y[...] = y[::-1]
    return [y, y[0] * 2]


@pytest.mark.parametrize('work', [written_before, block_of_another, read_and_written])
def test_what_copies_write_is_there(cp: Any, work: Callable[[Any, Any], list[Any]]) -> None:
    x = cp.asarray(np.random.default_rng(0).uniform(-3, 3, (6, 8)).astype('f4'))
    expected = [one.get().tobytes() for one in work(cp, x)]
    with ck.capture(fuse=True) as cap:
        found = work(cp, x)
    for _ in range(2):
        cap.graph.launch()
        assert [one.get().tobytes() for one in found] == expected, cap.fused
    assert 'differ' not in cap.fused.compared, cap.fused
