"""A function that runs eagerly says so once, by a warning at the user's line: with the place that changes, by name."""

from __future__ import annotations

import logging
import logging.handlers
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.graphed import faster_way, policy
from tests.graphed.test_faster_way import Clock, in_short

CALLS = 12


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(policy, 'TOLD', 6)
    yield


def warned(call: Callable[[], Any], calls: int = CALLS) -> list[warnings.WarningMessage]:
    """The warnings of calls, whose results are equal to those of the function itself."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter('always')
        for _ in range(calls):
            call()
    return shown


def only(shown: list[warnings.WarningMessage]) -> str:
    """The text of the one warning that was shown, at a line of this file."""
    (one,) = shown
    assert one.category is ck.PerformanceWarning and issubclass(ck.PerformanceWarning, UserWarning)
    assert one.filename == __file__
    return str(one.message)


class Place:
    def __init__(self, value: Any) -> None:
        self.t = value
        self.box = {'g': [value]}


def test_an_attribute_by_the_name_of_a_method_of_arrays(sim: Any) -> None:
    class Mean:
        def __init__(self) -> None:
            self.n, self.mean = 0, 0.0

        def update(self, x: Any) -> Any:
            value = float(x.mean())
            self.n += 1
            self.mean += (value - self.mean) / self.n
            return x - self.mean

    mine, eager = Mean(), Mean()
    fn = ck.graphed(mine.update)
    number = 0.0

    def call() -> None:
        nonlocal number
        number += 1
        x = sim.arange(4.0) * number
        assert fn(x).get().tolist() == eager.update(x).get().tolist()

    text = only(warned(call))
    assert 'attribute mean of a Mean object' in text and 'another name' in text, text


def test_it_is_said_once_and_before_the_function_runs(sim: Any) -> None:
    calls: list[int] = []

    def step(x: Any) -> Any:
        calls.insert(0, 1)
        return x * 2

    fn = ck.graphed(step)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for _ in range(7):
            fn(sim.ones(2))
        with pytest.raises(ck.PerformanceWarning, match='7 of the 7 calls'):
            fn(sim.ones(2))
        assert len(calls) == 7
        for _ in range(30):
            assert fn(sim.ones(2)).get().tolist() == [2.0, 2.0]
    assert len(calls) == 37


def test_what_is_launched_says_nothing(sim: Any) -> None:
    factor = [2.0]
    fn = ck.graphed(lambda x: x * factor[0])

    def call() -> None:
        fn(sim.ones(2))
        for size in range(3, 9):  # the first calls of other kinds are followed
            fn(sim.ones(size))

    assert warned(call) == []
    assert in_short(fn).startswith(f'launched {7 * CALLS - 7} of {7 * CALLS}; 7 eager: 7 to see what they read\n')


def test_what_is_slower_launched_says_so(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(39e-6, 96e-6)
    clock.fn = fn = ck.graphed(lambda x: x * 2)
    monkeypatch.setattr(faster_way, 'STOPWATCH', lambda _platform: clock)
    text = only(warned(lambda: fn(sim.ones(2)), 30))
    assert 'run eagerly, since that is faster: a call takes 96 us on the host' in text
    assert 'an eager one 39 us on the host' in text and 'does more at each call' in text


def calls_that_run_eagerly(sim: Any) -> dict[str, tuple[Callable[[Any], Any], Callable[[int], Any], str]]:
    """Functions with one argument, what the call of a number gets, and what is said of them."""

    class More(sim.ndarray):
        pass

    held, calls, place = sim.ones(2), [0], Place(sim.ones(2))

    def moved(number: int) -> Any:
        place.t = place.box['g'][0] = sim.full(2, number)
        return sim.ones(2)

    log = logging.getLogger(f'{__name__}.eager')
    log.handlers, log.propagate = [logging.handlers.MemoryHandler(1000)], False

    def rebound(x: Any) -> Any:
        return x * held

    def changing(x: Any) -> Any:
        calls.insert(0, 1)
        return x * 2

    def printing(x: Any) -> Any:
        print(float(x.sum()))
        return x * 2

    def logging_it(x: Any) -> Any:
        log.warning('a call')
        return x * 2

    def logging_a_change(x: Any) -> Any:
        calls[0] += 1
        return logging_it(x)

    def argument(number: int) -> Any:
        nonlocal held
        held = sim.ones(2)
        return sim.ones(2)

    return {
        'an attribute': (lambda x: x * place.t, moved, 'attribute t of a Place object'),
        'an item of an item': (lambda x: x * place.box['g'][0], moved, 'attribute box["g"][0] of a Place object'),
        'a variable': (rebound, argument, 'variable held of the closure of rebound'),
        'a change': (changing, argument, 'variable calls of the closure of changing'),
        'a class': (rebound, lambda number: argument(0).view(More), 'an argument is of a class derived from ndarray'),
        'a print': (printing, lambda number: sim.ones(2) * number, 'in printing gives another value at nearly each'),
        'a log': (logging_it, argument, 'the function changes a setting or a log: variable log of the closure of'),
        'a change and a log': (logging_a_change, argument, 'beside that: the function changes variable calls[0]'),
        'a text': (lambda x: sim.ones(2) * len(x), lambda number: f'word {number}', 'x has another value at nearly'),
        'sizes': (lambda x: x * 2, lambda number: sim.ones(1 + number % 6), '6 kinds of calls come in turn, and only'),
    }


@pytest.mark.parametrize(
    'what',
    'an attribute|an item of an item|a variable|a change|a class|a print|a log|a change and a log|a text|sizes'.split(
        '|'
    ),
)
def test_the_cause_is_named(sim: Any, what: str) -> None:
    given, argument, words = calls_that_run_eagerly(sim)[what]
    fn, numbers = ck.graphed(given, limit=4), iter(range(100))

    def call() -> None:
        x = argument(next(numbers))
        assert fn(x).get().tolist() == given(x).get().tolist()

    text = only(warned(call, 40))
    remedy = {'a print': 'Return the array, and read it outside', 'a text': 'Pass it as an array'}
    assert remedy.get(what, 'Do that outside of the function' if 'log' in what else '') in text
    assert words in text and f'It is defined at {__file__.rpartition("/")[2]}:' in text
    assert 'none comes back' not in text or what == 'a text'
    if what.startswith('an '):
        assert text.startswith('7 of the 7 calls of ') and 'Pass what changes as an array' in text


def test_a_function_that_returns_its_object_is_launched(sim: Any) -> None:
    class Scaler:
        @ck.graphed
        def fit(self, x: Any) -> Any:
            self.mean_ = x.mean(0)
            return self

    scaler = Scaler()
    numbers = iter(range(CALLS))

    def call() -> None:
        x = sim.ones((3, 2)) * next(numbers)
        assert scaler.fit(x) is scaler and scaler.mean_.get().tolist() == x.mean(0).get().tolist()

    assert warned(call) == []
    assert sum(variant.launches for variant in Scaler.fit.variants) >= CALLS - 3


def test_state_with_checks_later_says_that_this_is_why(sim: Any) -> None:
    class Recurrent:
        def __init__(self) -> None:
            self.h = sim.zeros(2)

        @ck.graphed(checks='later')
        def step(self, x: Any) -> Any:
            self.h = x + self.h
            return self.h

    one = Recurrent()
    text = only(warned(lambda: one.step(sim.ones(2))))
    assert "with checks='later' launches repeat no changes of Python state" in text and 'attribute h' in text
    assert "Leave checks='later' out" in text and one.h.get().tolist() == [CALLS] * 2


def test_other_threads_do_not_leave_state_eager_for_good(sim: Any) -> None:
    class Model:
        def __init__(self, rate: float) -> None:
            self.w, self.rate = sim.zeros(2), rate

        @ck.graphed
        def step(self, x: Any) -> Any:
            self.w = self.w + self.rate * x
            return self.w

    one, other = Model(1.0), Model(2.0)
    inside, gone_on = threading.Event(), threading.Event()

    @ck.graphed
    def busy(x: Any) -> Any:
        inside.set()
        gone_on.wait(30)
        return x

    thread = threading.Thread(target=lambda: busy(sim.ones(2)))
    thread.start()
    inside.wait(30)
    text = only(warned(lambda: one.step(sim.ones(2))))
    gone_on.set()
    thread.join()
    assert 'another thread was in a graphed function' in text and 'attribute w of a Model object' in text
    assert 'Let one thread call it first' in text
    for _ in range(6):
        one.step(sim.ones(2)), other.step(sim.ones(2))
    assert {variant.state for variant in Model.step.variants} == {'recorded'}
    assert one.w.get().tolist() == [CALLS + 6.0] * 2 and other.w.get().tolist() == [12.0] * 2


def test_a_call_within_an_eager_call_repeats_its_changes(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, 'TOLD', None)

    class Counter:
        def __init__(self) -> None:
            self.total = sim.zeros(2)

        @ck.graphed
        def add(self, x: Any) -> Any:
            self.total = self.total + x
            return self.total

    counter, seen = Counter(), []

    @ck.graphed
    def outer(x: Any) -> Any:
        seen.insert(0, 1)
        return counter.add(x)

    for number in range(1, 20):
        assert outer(sim.ones(2)).get().tolist() == [number] * 2
    assert sum(variant.launches for variant in Counter.add.variants) > 10
