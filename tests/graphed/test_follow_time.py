"""Following a run has an end: what takes too long runs eagerly from then on, and says so."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from capturekit.graphed import follow_time, policy, return_paths


class Scale:
    factor = 2.0


def test_what_takes_too_long_to_follow_is_eager(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, 'LONGEST', 0.0)
    one = Scale()
    fn = ck.graphed(lambda x: x * one.factor)
    for _ in range(4):
        assert fn(sim.ones(2)).get().tolist() == [2.0, 2.0]
    (variant,) = fn.variants
    assert variant.state == 'eager' and 'takes more than a second' in variant.reason
    one.factor = 3.0
    assert fn(sim.ones(2)).get().tolist() == [3.0, 3.0]


def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What both clocks tell."""
    now = [0.0]
    for clock in ('perf_counter', 'thread_time'):
        monkeypatch.setattr(follow_time.time, clock, lambda: now[0])
    return now


def test_only_steps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = times(monkeypatch)
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


def test_what_other_processes_take_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on while this thread waits for a processor. That counts at the beginning only."""
    clock, processor = [0.0], [100.0]
    monkeypatch.setattr(follow_time.time, 'perf_counter', lambda: clock[0])
    monkeypatch.setattr(follow_time.time, 'thread_time', lambda: processor[0])
    spent = follow_time.FollowTime()
    for _ in range(7):
        spent.begin()
        clock[0] += 0.15
        processor[0] += 0.05
        spent.check_limit()
        spent.end()
    assert spent.spent == pytest.approx(2 * 0.15 + 5 * 0.05)


def test_what_is_left_out_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = times(monkeypatch)
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


def test_where_python_does_not_tell_what_runs(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several functions may have the code of a lambda, but the run begins by calling a function that is known."""
    monkeypatch.setattr(return_paths, '_HERE', None)
    made = [lambda x, k=k: x * k for k in (2.0, 3.0)]
    fns = [ck.graphed(one) for one in made]
    for _ in range(4):
        assert [fn(sim.ones(1)).get().tolist() for fn in fns] == [[2.0], [3.0]]
    assert [fn.variants[0].state for fn in fns] == ['recorded', 'recorded']
    made[1].__defaults__ = (5.0,)
    assert [fn(sim.ones(1)).get().tolist() for fn in fns] == [[2.0], [5.0]]

    outer = ck.graphed(lambda x: made[1](x))
    for by in (5.0, 6.0):
        made[1].__defaults__ = (by,)
        assert [outer(sim.ones(1)).get().tolist() for _ in range(3)] == [[by]] * 3
    assert 'whose function object is not found' in outer.variants[0].reason
