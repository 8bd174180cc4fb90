"""Launches reckon with numbers that attributes hold, and put the new ones there, as plain runs do, to the bit."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from tests.functions.test_reckoned_reads import launches, told

Work = Callable[[Any, Any], Any]


class Model:
    """What the functions below change."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self.n, self.t, self.rate, self.resid = 0, 1, 0.5, 0.0
        self.mean, self.m, self.v = cp.zeros(3), cp.zeros(3), cp.zeros(3)
        self.limit = 1000


def running_mean(one: Model, x: Any) -> Any:
    one.n += 1
    one.mean = one.mean + (x - one.mean) / one.n
    return one.mean * 1


def nesterov(one: Model, x: Any) -> Any:
    old = one.t
    one.t = (1 + (1 + 4 * old**2) ** 0.5) / 2  # type: ignore[assignment]
    y = x + ((old - 1) / one.t) * (x - one.mean)
    one.mean = x
    return y


def adam(one: Model, x: Any) -> Any:
    one.t += 1
    one.m = 0.9 * one.m + (1 - 0.9) * x
    one.v = 0.999 * one.v + (1 - 0.999) * x**2
    return (one.m / (1 - 0.9**one.t)) / (one.cp.sqrt(one.v / (1 - 0.999**one.t)) + 1e-8)


def decaying(one: Model, x: Any) -> Any:
    one.rate *= 0.9
    return x * one.rate - one.rate


def within_a_limit(one: Model, x: Any) -> Any:
    if one.n < one.limit - 1:
        x = x + one.n
    one.n += 1
    return x * 2


def with_reads(one: Model, x: Any) -> Any:
    size = one.cp.linalg.norm(x).item()
    one.rate = (one.rate + size) / 2
    one.resid = size / one.rate
    one.n += 1
    return x / one.rate * one.n


NATURAL: list[Work] = [running_mean, nesterov, adam, decaying, within_a_limit, with_reads]


def a_branch(one: Model, x: Any) -> Any:
    one.n += 1
    return x * (one.n * 0.5) if one.n <= 6 else x - one.n


def turns(one: Model, x: Any) -> Any:
    one.n = 1 - one.n
    return x * 2 if one.n == 0 else x * 3


def turns_of_three(one: Model, x: Any) -> Any:
    one.n = (one.n + 1) % 3
    return x * one.n if one.n > 1 else x - 1


def steps_to_zero(one: Model, x: Any) -> Any:
    one.n -= 1
    one.rate = 1.0 / (one.n + 7)
    return x * one.rate


def grows_beyond(one: Model, x: Any) -> Any:
    one.t = one.t * 1000 + 1
    return x + one.t * 1e-9


def meets_whole_numbers(one: Model, x: Any) -> Any:
    one.t = one.t * 100
    return x.astype('i4') * one.t


def overflows(one: Model, x: Any) -> Any:
    one.rate = (one.rate + 3.0) ** 20
    return x * one.rate


def becomes_complex(one: Model, x: Any) -> Any:
    one.rate = one.rate - 0.2
    return x * (one.rate**0.5)


def as_a_text(one: Model, x: Any) -> Any:
    one.n += 1
    return x * len(f'{one.n * 17}')


def as_a_range(one: Model, x: Any) -> Any:
    one.n += 1
    for number in range(one.n % 3):
        x = x + number
    return x


def as_an_index(one: Model, x: Any) -> Any:
    one.n += 1
    return x[one.n % 3]


def in_a_function(one: Model, x: Any) -> Any:
    one.rate = math.sqrt(one.rate + 1)
    return x * one.rate


def as_json(one: Model, x: Any) -> Any:
    one.n += 1
    return x * len(json.dumps({'n': one.n * 9}))


def by_vars(one: Model, x: Any) -> Any:
    one.n += 1
    return x * vars(one)['n']


def by_getattr(one: Model, x: Any) -> Any:
    one.n += 1
    return x * sum(getattr(one, name) for name in ('n', 't'))


def by_its_type(one: Model, x: Any) -> Any:
    one.rate = one.rate * 2 if type(one.rate) is float else 5.0
    return x * one.rate


def by_identity(one: Model, x: Any) -> Any:
    one.n += 1
    return x * (2 if (one.n + 0) is (one.n + 0) else 3)


def as_a_truth_value(one: Model, x: Any) -> Any:
    one.n = (one.n + 1) % 4
    return x * (2 if one.n else 3)


def returned(one: Model, x: Any) -> Any:
    one.n += 1
    one.rate /= 3
    return x * one.n, one.n, {'rate': one.rate, 'both': (one.n, -one.rate)}


def into_other_attributes(one: Model, x: Any) -> Any:
    one.n += 2
    one.t, one.rate = one.n, one.t * 0.5
    return x * one.rate


OTHERS: list[Work] = [
    a_branch, turns, turns_of_three, steps_to_zero, grows_beyond, meets_whole_numbers, overflows, becomes_complex,
    as_a_text, as_a_range, as_an_index, in_a_function, as_json, by_vars, by_getattr, by_its_type, by_identity,
    as_a_truth_value, returned, into_other_attributes,
]  # fmt: skip


def outcome(work: Work, one: Model, x: Any) -> Any:
    try:
        found = told(work(one, x))
    except Exception as error:
        found = type(error), str(error)
    return found, {name: told(value) for name, value in vars(one).items() if name != 'cp'}


def alike(
    cp: Any, work: Work, calls: int = 16, between: Callable[[int, Any], None] | None = None, made: Any = Model,
    **options: Any,
) -> Any:  # fmt: skip
    """Call it plainly and graphed, each with an object of its own; both have to agree after each call."""
    plain, other = made(cp), made(cp)
    fn = ck.graphed(lambda x: work(other, x), **options)
    for number in range(calls):
        x = cp.arange(3.0) + number * 0.7
        assert outcome(lambda _one, x: fn(x), other, x) == outcome(work, plain, x), number
        if between is not None:
            between(number, plain)
            between(number, other)
    return fn


@pytest.mark.parametrize('work', NATURAL, ids=lambda one: one.__name__)
def test_each_launch_reckons_with_it(sim: Any, work: Work) -> None:
    assert launches(alike(sim, work)) >= 9


@pytest.mark.parametrize('work', [*NATURAL, *OTHERS], ids=lambda one: one.__name__)
def test_whatever_is_done_with_it_is_right(sim: Any, work: Work) -> None:
    alike(sim, work, 24)


@pytest.mark.slow
@pytest.mark.parametrize('work', [*NATURAL, *OTHERS], ids=lambda one: one.__name__)
def test_an_eager_run_beside_each_launch_agrees(sim: Any, work: Work) -> None:
    alike(sim, work, 16, check=True)


def other_numbers(number: int, one: Model) -> None:
    if number % 3 == 2:
        one.n, one.rate = number * 5, [float('nan'), float('inf'), -0.0, 1e300, 3.5][number // 3 % 5]


def other_types(number: int, one: Any) -> None:
    if number in (6, 8, 10, 12, 14):
        one.n = {6: 2.5, 8: True, 10: 1 << 70, 12: 4, 14: -3}[number]
        one.t = {6: 1.0, 8: 7, 10: 7.5, 12: 2, 14: 3}[number]
        one.rate = {6: 1, 8: 0.25, 10: False, 12: 0.5, 14: 2}[number]


@pytest.mark.slow
@pytest.mark.parametrize('between', [other_numbers, other_types], ids=lambda one: one.__name__)
@pytest.mark.parametrize('work', [*NATURAL, *OTHERS], ids=lambda one: one.__name__)
def test_somebody_else_puts_a_number_there(sim: Any, work: Work, between: Any) -> None:
    alike(sim, work, 22, between)


class WithAProperty(Model):
    """``n`` is kept in another attribute, and every change counts."""

    def __init__(self, cp: Any) -> None:
        self.changes, self._n = 0, 0
        super().__init__(cp)

    @property
    def n(self) -> int:  # type: ignore[override]
        return self._n

    @n.setter
    def n(self, value: int) -> None:
        self.changes += 1
        self._n = value + (self.changes > 9)


class ThatNotes(Model):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == 'n':
            super().__setattr__('noted', f'{value}')


class Slotted:
    __slots__ = ('__dict__', 'n')

    def __init__(self, cp: Any) -> None:
        Model.__init__(self, cp)  # type: ignore[arg-type]


@pytest.mark.parametrize('made', [WithAProperty, ThatNotes, Slotted], ids=lambda one: one.__name__)
@pytest.mark.parametrize('work', NATURAL, ids=lambda one: one.__name__)
def test_objects_that_see_what_they_get(sim: Any, work: Work, made: Any) -> None:
    alike(sim, work, 16, made=made)


def test_numbers_that_come_again_are_launched(sim: Any) -> None:
    """Each value of a number that takes turns gets a variant of its own, which costs less than to reckon with it."""
    fn = alike(sim, turns, 30)
    assert launches(fn) >= 26 and all(variant.state == 'recorded' for variant in fn.variants)
    fn = alike(sim, turns_of_three, 30)
    assert launches(fn) >= 20 and all(variant.state == 'recorded' for variant in fn.variants)


def test_an_array_that_was_there_before_is_not_compared(sim: Any) -> None:
    def put(number: int, one: Any) -> None:
        one.rate = sim.ones(3) * number if number % 5 == 1 else 0.5 + number

    alike(sim, decaying, 22, put)


def puts_into_an_argument(one: Model, given: dict[str, Any]) -> Any:
    one.rate *= 0.9
    given['scaled'] = given['x'] * one.rate


def appends_to_an_argument(one: Model, given: dict[str, Any]) -> Any:
    one.rate *= 0.9
    given['found'].append(given['x'] * one.rate)


def gives_back_its_own(one: Model, given: dict[str, Any]) -> Any:
    one.rate *= 0.9
    given['x'] *= one.rate
    return one.kept  # type: ignore[attr-defined]


@pytest.mark.parametrize('work', [puts_into_an_argument, appends_to_an_argument, gives_back_its_own])
def test_what_else_keeps_it_eager_counts_beside_it(sim: Any, work: Work) -> None:
    """The caller's own list or dict gets the arrays, and is what comes back."""

    def results(step: Work, one: Any) -> list[Any]:
        one.kept, found = [one.mean], []
        for number in range(8):
            given: dict[str, Any] = {'x': sim.arange(3.0) + number, 'found': []}
            result = step(one, given)
            found.append((told(given), result is one.kept, told(result)))
        return found

    fn = ck.graphed(work)
    assert results(fn, Model(sim)) == results(work, Model(sim))
    assert launches(fn) == 0


def test_an_error_comes_with_the_state_that_eager_calls_leave(sim: Any) -> None:
    one = Model(sim)

    def work(x: Any) -> Any:
        one.n += 1
        one.mean = one.mean + x
        one.rate = 1.0 / (one.n - 12)
        return x * one.rate

    fn = ck.graphed(work)
    for _ in range(11):
        fn(sim.ones(3))
    assert launches(fn) >= 5
    with pytest.raises(ZeroDivisionError):
        fn(sim.ones(3))
    assert (one.n, one.rate, one.mean.get().tolist()) == (12, -1.0, [12.0] * 3)
    assert fn(sim.ones(3)).get().tolist() == [1.0] * 3 and one.n == 13


def test_two_threads_take_turns(sim: Any) -> None:
    one = Model(sim)

    def work(x: Any) -> Any:
        one.n += 1
        one.rate = one.n * 0.5
        return x * one.rate, one.n

    fn = ck.graphed(work)
    for _ in range(6):
        fn(sim.ones(2))
    found: list[Any] = []
    lock = threading.Lock()

    def many() -> None:
        for _ in range(20):
            with lock:
                found.append(fn(sim.ones(2)))

    threads = [threading.Thread(target=many) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [number for _, number in found] == list(range(7, 47))
    assert [array.get().tolist() for array, _ in found] == [[number * 0.5] * 2 for number in range(7, 47)]


def test_an_object_that_is_an_argument_too(sim: Any) -> None:
    plain, other = Model(sim), Model(sim)

    def work(x: Any, one: Model) -> Any:
        one.n += 1
        one.rate = one.rate * 0.5 + one.n
        return x * one.rate

    fn = ck.graphed(work)
    for number in range(12):
        x = sim.arange(3.0) + number
        assert told(work(x, plain)) == told(fn(x, other))
        assert (plain.n, plain.rate) == (other.n, other.rate)
