"""Following a run has an end: what takes too long runs eagerly from then on, and says so."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from capturekit.functions import follow_time


class Scale:
    factor = 2.0


def test_what_takes_too_long_to_follow_is_eager(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_time, 'LONGEST', 0.0)
    one = Scale()
    fn = ck.graphed(lambda x: x * one.factor)
    for _ in range(4):
        assert fn(sim.ones(2)).get().tolist() == [2.0, 2.0]
    (variant,) = fn.variants
    assert variant.state == 'eager' and 'takes more than a second' in variant.reason
    one.factor = 3.0
    assert fn(sim.ones(2)).get().tolist() == [3.0, 3.0]


def test_only_steps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(follow_time.time, 'thread_time', lambda: now[0])
    spent = follow_time.FollowTime()
    for _ in range(3):
        now[0] += 10.0  # the run itself
        spent.begin()
        now[0] += 0.3
        spent.check_limit()
        spent.end()
    spent.begin()
    now[0] += 0.3
    with pytest.raises(follow_time.TooLong):
        spent.check_limit()
