"""Calls run eagerly where that is the faster way, by a clock that tests set; they are right whichever way they go."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from operator import length_hint
from typing import Any

import pytest

import capturekit as ck
from capturekit.graphed import faster_way, policy
from capturekit.graphed.call_turns import TURNS
from capturekit.graphed.faster_way import CallTiming, TimedWays
from capturekit.graphed.policy import AGAIN


class Clock:
    """Times calls: ``took`` are the seconds of an eager call and of a launched one, on the host and on the device."""

    def __init__(self, eager: float, launched: float, device: tuple[float, float] | None = None) -> None:
        self.host = [eager, launched]
        self.device = [*(device or self.host)]
        self.fn: Any = None
        self.busy, self.done, self.begun = False, True, 0

    def launches(self) -> int:
        return sum(variant.launches for variant in self.fn.variants)

    def __call__(self) -> Any:
        clock, before = self, self.launches()
        self.begun += 1

        class One:
            busy, host, way = clock.busy, 0.0, 0

            def end(self) -> None:
                self.way = clock.launches() > before
                self.host = clock.host[self.way]

            def device(self) -> float | None:
                return clock.device[self.way] if clock.done else None

        return One()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    """Makes the clock that times the calls of ``fn`` from now on."""

    def made(fn: Any, *took: Any) -> Clock:
        found = Clock(*took)
        found.fn = fn
        monkeypatch.setattr(faster_way, 'STOPWATCH', lambda _platform: found)
        return found

    return made


def ways(fn: Any, calls: int, call: Callable[[], Any]) -> str:
    """Which calls were launched: ``L``, and which ran eagerly: ``e``."""
    told = ''
    for _ in range(calls):
        before = sum(variant.launches for variant in fn.variants)
        call()
        told += 'L' if sum(variant.launches for variant in fn.variants) > before else 'e'
    return told


def in_short(fn: Any) -> str:
    out = io.StringIO()
    fn.explain(out)
    return out.getvalue()


@pytest.mark.parametrize(('launched', 'eager'), [(10e-6, False), (29e-6, False), (31e-6, True), (90e-6, True)])
def test_the_faster_way_is_taken_and_settles_soon(sim: Any, clock: Any, launched: float, eager: bool) -> None:
    fn, x = ck.graphed(lambda x: x * 2 + 1), sim.arange(3.0)
    now = clock(fn, 30e-6, launched)
    told = ways(fn, 60, lambda: fn(x))
    assert told.startswith('eLLLee') and told[12:] == ('e' if eager else 'L') * 48
    assert now.begun <= len(policy.TURNS)
    assert in_short(fn).startswith(f'launched {told.count("L")} of 60')
    assert fn(x).get().tolist() == [1.0, 3.0, 5.0]


def test_what_is_slower_says_so_and_is_tried_again(sim: Any, clock: Any) -> None:
    fn = ck.graphed(lambda x: x * 2 + 1)
    now, x = clock(fn, 39e-6, 96e-6), sim.ones(3)
    told = ways(fn, 2 * AGAIN, lambda: fn(x))
    line = 'a call takes 96 us on the host and 96 on the device; an eager one 39 us on the host and 39 on the device'
    assert f'{line}: it runs eagerly, and is tried again' in in_short(fn)
    assert in_short(fn).startswith(f'launched {told.count("L")} of {len(told)}; {told.count("e")} eager: ')
    assert 'L' not in told[9 : 9 + AGAIN] and 'L' in told[9 + AGAIN :]
    ways(fn, 10, lambda: fn(x))
    now.host[1] = now.device[1] = 10e-6
    assert ways(fn, 4 * AGAIN, lambda: fn(x)).endswith('L' * 20)


def test_each_size_has_a_choice_after_which_none_is_timed(sim: Any, clock: Any) -> None:
    fn = ck.graphed(lambda x: x * 2)
    now = clock(fn, 39e-6, 96e-6)
    small, large = sim.ones(3), sim.ones(4)
    ways(fn, 20, lambda: fn(small))
    now.host[1] = now.device[1] = 10e-6
    told = ways(fn, 90, lambda: fn(large))
    begun = now.begun
    assert told.endswith('L' * 20) and ways(fn, 40, lambda: fn(large)) == 'L' * 40 and now.begun == begun
    told = ''.join(ways(fn, 1, lambda: fn(small)) + ways(fn, 1, lambda: fn(large)) for _ in range(20))
    assert told[20:] == 'eL' * 10


def test_the_device_decides_where_it_has_more_to_do(sim: Any, clock: Any) -> None:
    fn, x = ck.graphed(lambda x: x * 2), sim.ones(3)
    now = clock(fn, 20e-6, 30e-6, (200e-6, 150e-6))
    assert ways(fn, 20, lambda: fn(x)).endswith('L' * 5)  # the host waits for the device anyway
    other = ck.graphed(lambda x: x * 3)
    now.fn, now.device = other, [30e-6, 30e-6]
    assert ways(other, 20, lambda: other(x)).endswith('e' * 5)  # the host is what it takes
    busy = ck.graphed(lambda x: x * 4)
    now.fn, now.busy, now.device = busy, True, [30e-6, 25e-6]
    assert ways(busy, 20, lambda: busy(x)).endswith('L' * 5)  # it is ahead of the device


def test_times_that_the_device_has_not_done_are_awaited(sim: Any, clock: Any) -> None:
    fn, x = ck.graphed(lambda x: x * 2), sim.ones(3)
    now = clock(fn, 39e-6, 96e-6)
    now.done = False
    assert ways(fn, 40, lambda: fn(x)).endswith('L' * 20)
    now.done = True
    assert ways(fn, 20, lambda: fn(x)).endswith('e' * 18)


def test_one_long_call_of_each_way_does_not_count() -> None:
    contest = TimedWays(lambda: None)

    class One:
        busy = False

        def __init__(self, host: float) -> None:
            self.host = host

        def device(self) -> float:
            return self.host

    for launched, eager in ((9.0, 2.0), (1.0, 2.0), (1.0, 2.0)):
        contest.add(False, One(launched), True)
        contest.add(True, One(eager), False)
    contest.settle()
    assert contest.eager is False and contest.took == ((1.0, 1.0), (2.0, 2.0))


def test_what_is_never_launched_runs_eagerly_at_once(sim: Any, clock: Any) -> None:
    limit = [0]

    def step(x: Any) -> Any:
        return x * 2 if float(x[0]) < limit[0] else x * limit[0]

    fn = ck.graphed(step)
    clock(fn, 30e-6, 30e-6)
    for number in range(40):
        limit[0] = number
        assert fn(sim.ones(2)).get().tolist() == [2.0 if number > 1 else 1.0 * number] * 2
    found = in_short(fn)
    assert 'since that is faster' in found.splitlines()[0] and found.startswith('launched 0 of 40')


def test_state_is_right_whichever_way_calls_go(sim: Any, clock: Any) -> None:
    class Momentum:
        def __init__(self) -> None:
            self.velocity, self.steps = sim.zeros(2), 0

        def step(self, x: Any) -> Any:
            self.steps += 1
            self.velocity = 0.5 * self.velocity + x
            return x - self.velocity

    mine, eager = Momentum(), Momentum()
    fn = ck.graphed(mine.step)
    now = clock(fn, 39e-6, 96e-6)
    for number in range(4 * AGAIN):
        if number == AGAIN:
            now.host[1] = now.device[1] = 10e-6
        x = sim.full(2, float(number))
        assert fn(x).get().tolist() == eager.step(x).get().tolist()
        assert mine.steps == eager.steps and mine.velocity.get().tolist() == eager.velocity.get().tolist()
    assert sum(variant.launches for variant in fn.variants) > AGAIN


def test_an_exception_of_the_function_leaves_the_choice_open(sim: Any, clock: Any) -> None:
    wrong = [False]

    def step(x: Any) -> Any:
        y = x * 2
        if wrong[0]:
            raise ValueError('wrong')
        return y

    fn, x = ck.graphed(step), sim.ones(2)
    clock(fn, 39e-6, 96e-6)
    ways(fn, 3, lambda: fn(x))
    wrong[0] = True
    for _ in range(15):
        with pytest.raises(ValueError, match='wrong'):
            fn(x)
    wrong[0] = False
    assert ways(fn, 40, lambda: fn(x)).endswith('e' * 20)


def test_calls_within_a_call_are_no_part_of_it(sim: Any, clock: Any) -> None:
    inner = ck.graphed(lambda x: x + 1)
    outer = ck.graphed(lambda x: inner(x) * 2)
    clock(outer, 39e-6, 96e-6)
    for _ in range(60):
        assert outer(sim.ones(2)).get().tolist() == [4.0, 4.0]


def test_a_call_in_an_open_capture_is_not_timed(sim: Any, clock: Any) -> None:
    fn, x = ck.graphed(lambda x: x * 2), sim.ones(2)
    now = clock(fn, 39e-6, 96e-6)
    ways(fn, 4, lambda: fn(x))
    begun = now.begun
    with ck.capture() as cap:
        y = fn(x)
    cap.graph.launch()
    assert now.begun == begun and y.get().tolist() == [2.0, 2.0]


def test_the_stopwatch_waits_for_nothing(cp: Any) -> None:
    timing = CallTiming(cp.cuda)
    cp.ones(4) * 2
    timing.end()
    cp.cuda.get_current_stream().synchronize()
    found = timing.device()
    assert found is not None and found >= 0 and timing.host > 0 and not CallTiming(cp.cuda).busy


def test_a_dear_try_is_made_seldom(sim: Any, clock: Any) -> None:
    fn, x = ck.graphed(lambda x: x * 2 + 1), sim.ones(3)
    clock(fn, 10e-6, 1000e-6)
    told = ways(fn, 12 + 2 * policy.AGAIN, lambda: fn(x))
    assert 'L' in told[:12] and 'L' not in told[12:]


def test_launches_that_cost_more_are_compared_again() -> None:
    contest = TimedWays(lambda: None)
    contest.eager, told = False, ''
    for _ in range(10):
        contest.cost_more()
        told += '.' if contest.eager is False else 'c'
        contest.eager = False
    assert told == '..c....c..'


def test_a_call_without_a_look_is_seen_by_one_that_is_alone(sim: Any, clock: Any) -> None:
    inside, leave = threading.Event(), threading.Event()
    waits = [False]

    def step(x: Any) -> Any:
        if waits:
            return x
        inside.set()
        assert leave.wait(60)
        return x

    fn, x = ck.graphed(step), sim.ones(3)
    clock(fn, 10e-6, 100e-6)
    while 'L' in ways(fn, 20, lambda: fn(x)) or not length_hint(fn._tally.unseen):
        pass
    waits.clear()
    thread = threading.Thread(target=fn, args=(x,))
    with TURNS.call():
        assert TURNS.mark() is not None
        thread.start()
        assert inside.wait(60) and TURNS.mark() is None
        with TURNS.alone() as alone:
            assert not alone
        leave.set()
        thread.join()
        assert TURNS.mark() is not None
