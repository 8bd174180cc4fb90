"""Following a run has an end: what takes too long runs eagerly from then on, and says so."""

from __future__ import annotations

import time
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions import code_watch, follow_time
from capturekit.functions.collector import functions_of


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


def test_what_is_left_out_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(follow_time.time, 'thread_time', lambda: now[0])
    spent = follow_time.FollowTime()
    spent.resume()  # of a collection that had begun before
    spent.begin()
    spent.pause()
    now[0] += 5.0
    spent.pause()  # a collection inside of what is left out
    now[0] += 5.0
    spent.resume()
    spent.resume()
    now[0] += 0.25
    spent.check_limit()
    spent.end()
    assert spent.spent == 0.25


def test_a_large_process_leaves_no_function_eager(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at all objects takes as long as the process is large, whatever the function does."""
    monkeypatch.setattr(follow_time, 'LONGEST', 0.5)
    looks = []

    def slow(*args: Any) -> Any:
        looks.append(args)
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
        return functions_of(*args)

    monkeypatch.setattr(code_watch, 'functions_of', slow)

    def scaled(by: float) -> Any:
        return lambda x: x * by

    twice, thrice = scaled(2.0), scaled(3.0)
    fn = ck.graphed(lambda x: twice(x) + thrice(x) + sorted([1.0, 2.0], key=lambda v: -v)[0])
    fn(sim.ones(2))
    assert len(looks) == 1  # for all functions of this file
    for _ in range(4):
        assert fn(sim.ones(2)).get().tolist() == [7.0, 7.0]
    assert [variant.state for variant in fn.variants] == ['recorded']
