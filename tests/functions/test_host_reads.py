"""``@ck.graphed``: functions that read values on the host give the eager answer, whichever way they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from tests.functions.graphed_calls import seq, states
from tests.twins import twins


def test_branches_masks_and_sizes(sim: Any) -> None:
    def make(cp: Any) -> Any:
        w = cp.zeros(4)

        def fn(x: Any) -> Any:
            w[...] = w + x
            if float(x.sum()) > 10:
                w[...] = w * 2
                return x - 1
            x *= 3
            return x[x > 2], x[: int(x.max()) % 4], cp.nonzero(x > 3)[0]

        return fn, lambda: w

    twins(sim, make, seq(0, 0, 0, 5, 5, 5, 0, 1, 2, 5, 0, 0, 5, 1, 1, 1, 2))


def test_views_of_closure_arrays_are_restored_in_order(sim: Any) -> None:
    def make(cp: Any) -> Any:
        w = cp.zeros((2, 4))
        row = w[0]

        def fn(x: Any) -> Any:
            w[...] = w + 1
            row[...] = row * 2 + x
            if float(row[0]) > 20:
                return w * 1
            return row + 1

        return fn, lambda: (w, row)

    twins(sim, make, seq(0, 1, 2, 3, 4, 0, 1, 2, 3, 20, 1, 1, 1, 1))


def test_a_nan_read(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any) -> Any:
            v = float(x[0])
            return x + 1 if v != v else x * v

        return fn

    twins(sim, make, seq(0, 0, 0, float('nan'), float('nan'), float('nan'), 0, 1, float('nan')))


def test_too_many_ways_stay_eager_and_right(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        return lambda x: x * sum(range(int(x[0]) + 1))

    fn = twins(sim, make, seq(*range(40)))
    assert 'eager' in states(fn) and 'nearly each call' in next(v.reason for v in fn.variants if v.reason)


def test_checks_later(sim: Any) -> None:
    w = sim.zeros(4)

    @ck.graphed(checks='later')
    def fn(x: Any) -> Any:
        w[...] = w + 1
        return x * 2 if float(x.sum()) > 10 else x + 1

    assert fn.last is None
    for _ in range(4):
        fn(sim.arange(4.0))
        if fn.last is not None:
            assert fn.last.holds()
    fn(sim.arange(4.0) + 5)
    bad = fn.last
    assert bad is not None and not bad.holds()
    with pytest.raises(ck.AssumptionError):
        bad.settle()
    assert w.get().tolist() == [4.0] * 4
    fn(sim.arange(4.0) + 5)  # and without asking
    for _ in range(3):
        fn(sim.arange(4.0))
    assert fn.last is not None and fn.last.holds()
    assert w.get().tolist() == [7.0] * 4


def test_checks_later_asked_too_late_are_taken_for_wrong(sim: Any) -> None:
    @ck.graphed(checks='later')
    def fn(x: Any) -> Any:
        return x * 2 if float(x.sum()) > 10 else x + 1

    for _ in range(3):
        fn(sim.arange(4.0))
    fn(sim.arange(4.0) + 5)
    bad = fn.last
    for i in range(150):
        fn(sim.arange(4.0) + (5 if i % 3 else 0))
    assert bad is not None and not bad.holds()


#: Functions that go another way for another input: ``w`` is an array of theirs that they change.
WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {}


def way(fn: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    WAYS[fn.__name__] = fn
    return fn


@way
def branch(cp: Any, w: Any, x: Any) -> Any:
    w += 1
    return x * 2 if float(x.sum()) > 9 else x - w


@way
def write_between_two_branches(cp: Any, w: Any, x: Any) -> Any:
    if bool((x > 2).any()):
        w[...] = w * 2 + x.sum()
    x += 1
    return w * x if int(x[1]) % 2 else w + x


@way
def size_of_a_mask(cp: Any, w: Any, x: Any) -> Any:
    chosen = x[x > 2]
    w[: chosen.size] = chosen
    return chosen * 2, w.sum()


@way
def masked_write(cp: Any, w: Any, x: Any) -> Any:
    x[x > 3] = -1
    w[x < 0] = 5
    return x + w


@way
def until_it_is_small(cp: Any, w: Any, x: Any) -> Any:
    steps = 0
    while float(abs(x).max()) > 2 and steps < 6:
        x = x / 2
        w += x
        steps += 1
    return x, steps


@way
def info_like(cp: Any, w: Any, x: Any) -> Any:
    w *= 0.5
    info = (x < 0).sum(dtype='i4')
    if int(info) != 0:
        raise ValueError(f'{int(info)} values are negative')
    w += cp.sqrt(x)
    return w * 2


@way
def draws_between(cp: Any, w: Any, x: Any) -> Any:
    noise = cp.random.random_sample(x.shape)
    w += noise
    if float(x[0]) > 2:
        return w * cp.random.random_sample(x.shape)
    return w + x


CALLS = st.lists(st.integers(-3, 5), min_size=24, max_size=24)


@pytest.mark.parametrize('name', WAYS)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CALLS)
def test_an_assumption_that_fails_gives_the_eager_answer(sim: Any, name: str, values: list[int]) -> None:
    the_eager_answers(sim, name, values)


def the_eager_answers(sim: Any, name: str, values: list[int]) -> None:
    def make(cp: Any) -> Any:
        w = cp.zeros(4)

        def fn(x: Any) -> Any:
            return WAYS[name](cp, w, x)

        return fn, lambda: w

    twins(sim, make, seq(*values))
