"""Following a run has an end: what takes too long runs eagerly from then on, and says so."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions import follow_time, policy, return_paths, watched_objects
from capturekit.functions.collector import functions_of


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


def test_a_large_process_leaves_no_function_eager(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at all objects takes as long as the process is large, whatever the function does."""
    monkeypatch.setattr(return_paths, '_HERE', None)
    monkeypatch.setattr(policy, 'LONGEST', 0.5)
    looks = []

    def slow(*args: Any) -> Any:
        looks.append(args)
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
        return functions_of(*args)

    monkeypatch.setattr(watched_objects, 'functions_of', slow)

    def scaled(by: float) -> Any:
        return lambda x: x * by

    twice, thrice = scaled(2.0), scaled(3.0)
    fn = ck.graphed(lambda x: twice(x) + thrice(x) + sorted([1.0, 2.0], key=lambda v: -v)[0])
    fn(sim.ones(2))
    assert len(looks) == 1  # for all functions of this file
    for _ in range(4):
        assert fn(sim.ones(2)).get().tolist() == [7.0, 7.0]
    assert [variant.state for variant in fn.variants] == ['recorded']


def test_the_function_that_is_called_is_not_looked_for(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several functions may have the code of a lambda, but the run begins by calling a function that is known."""
    monkeypatch.setattr(return_paths, '_HERE', None)
    looks: list[Any] = []
    monkeypatch.setattr(watched_objects, 'functions_of', lambda module: looks.append(module) or functions_of(module))
    made = [lambda x, k=k: x * k for k in (2.0, 3.0)]
    fns = [ck.graphed(one) for one in made]
    for _ in range(4):
        assert [fn(sim.ones(1)).get().tolist() for fn in fns] == [[2.0], [3.0]]
    assert looks == []
    made[1].__defaults__ = (5.0,)
    assert [fn(sim.ones(1)).get().tolist() for fn in fns] == [[2.0], [5.0]]

    inner = ck.graphed(lambda x: sorted([1.0, 2.0], key=lambda v: -v)[0] * made[1](x))
    assert inner(sim.ones(1)).get().tolist() == [10.0]
    assert looks != []


def paid(cost: follow_time.FollowCost, calls: int, whole: float, plain: float) -> str:
    """Which calls are followed (F) if none of them comes back."""
    found = ''
    for _ in range(calls):
        due = cost.is_due()
        found += 'F' if due else '.'
        if due:
            cost.add(whole / 2, whole)
        else:
            cost.ran(plain)
    return found


def test_dear_runs_are_followed_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, 'CHEAP', 0.25)
    cost = follow_time.FollowCost()
    assert paid(cost, 32, whole=0.2, plain=0.01) == 'FF..F.F...F.......F.............'
    for _ in range(8 * 6):
        cost.launched()
    assert paid(cost, 6, whole=0.2, plain=0.01) == 'FF..F.'


def test_rare_launches_do_not_pay_for_dear_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where calls go another way as often as they are launched, following all those would cost many runs."""
    monkeypatch.setattr(policy, 'CHEAP', 0.25)
    cost, found = follow_time.FollowCost(), ''
    for _ in range(40):
        found += paid(cost, 1, whole=0.05, plain=0.001)
        cost.launched()
    assert found.startswith('FFFFF.') and found.count('F') < 12


def test_runs_that_are_not_dear_are_all_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, 'CHEAP', 0.25)
    assert paid(follow_time.FollowCost(), 12, whole=0.2, plain=0.1) == 'FF.FFFFFFFFF'
    assert paid(follow_time.FollowCost(), 12, whole=0.001, plain=0.00001) == 'F' * 12
    assert paid(follow_time.FollowCost(), 3, whole=5.0, plain=0.1) == 'FF.'


def test_recordings_have_to_be_paid_for_as_well(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[float, float]] = []
    monkeypatch.setattr(policy, 'ROUGHLY', -1.0)  # both times are the processor's: the clock counts other processes
    monkeypatch.setattr(follow_time.FollowCost, 'add', lambda _, followed, whole: noted.append((followed, whole)))
    fn = ck.graphed(lambda x: x * 2)
    for _ in range(4):
        fn(sim.ones(1))
    (followed, watched), (nothing, recorded) = noted
    assert 0 < followed < watched and nothing == 0 < recorded


class Box:
    def __init__(self) -> None:
        self.scale = 0.0


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Following anything is dear."""
    monkeypatch.setattr(policy, 'CHEAP', 0.0)
    monkeypatch.setattr(policy, 'DEAR', 0.0)


@pytest.mark.usefixtures('dear')
def test_values_that_come_back_are_still_recorded(cp: Any) -> None:
    box = Box()
    fn = ck.graphed(lambda x: x * box.scale)
    for number in range(60):
        box.scale = float(number if number < 20 else number % 2)
        assert fn(cp.ones(2)).get().tolist() == [box.scale] * 2
    assert sum(variant.launches for variant in fn.variants) >= 10


@pytest.mark.usefixtures('dear')
def test_a_call_that_is_not_followed_does_what_it_does(cp: Any) -> None:
    """Random numbers, changes in place, exceptions and results that a check has stopped half way."""
    seen: list[float] = []

    def step(x: Any, y: Any) -> Any:
        y += 1
        first = float(x[0])
        seen.append(first)
        if first == 7.0:
            raise ValueError('seven')
        return y * first + cp.random.random_sample(2)

    def story(fn: Any) -> list[Any]:
        cp.random.seed(5)
        seen.clear()
        found: list[Any] = []
        y = cp.zeros(2)
        for number in range(14):
            try:
                found.append(fn(cp.full(2, float(number)), y).get().tolist())
            except ValueError as error:
                found.append(str(error))
            found.append((y.get().tolist(), list(seen)))
        return found

    assert story(ck.graphed(step)) == story(step)


@pytest.mark.usefixtures('dear')
def test_it_is_said_that_runs_are_not_followed(cp: Any) -> None:
    box = Box()
    fn = ck.graphed(lambda x: x * box.scale)
    for number in range(6):
        box.scale = float(number)
        fn(cp.ones(2))
    told = io.StringIO()
    fn.explain(told)
    assert 'takes much longer than they do' in told.getvalue()
