"""``@ck.graphed``: random numbers come in the eager order."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import capturekit as ck
from tests.functions.graphed_calls import Make


def by_argument(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        a = cp.random.random_sample(4)
        if float(x.sum()) > 10:
            return a + cp.random.normal(size=4)
        return a + cp.random.gamma(2.0, 3.0, 4) + x

    return fn


def by_truth(cp: Any) -> Any:
    return lambda x: cp.random.random_sample(4) + (x * 2 if x.sum() > 10 else x)


def by_draw(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        a = cp.random.random_sample(4)
        if bool(a[0] > 0.5):
            a = a + cp.random.normal(size=4)
        b = cp.random.uniform(size=2)
        if bool(b[0] > 0.5):
            a = a * 2 + cp.random.randint(0, 9, 4)
        return a + cp.random.beta(1.0, 2.0, 4) + x

    return fn


def reseeding(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        a = cp.random.random_sample(4)
        cp.random.seed(3)
        b = cp.random.random_sample(4)
        return a - b if float(x[0]) > 2 else a + b

    return fn


def permuting(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        y = cp.random.permutation(4) + x
        cp.random.shuffle(y)
        return y if float(x[0]) > 2 else y * cp.random.randint(1, 9, 4)

    return fn


def on_device(cp: Any) -> Any:
    rng = cp.random.default_rng(3)

    def fn(x: Any) -> Any:
        b = rng.random(4)
        if float(x[0]) > 2:
            return x * 2 + b
        if float(b[0]) > 0.5:
            b = b + rng.standard_normal(4)
        return x + b + rng.integers(0, 9, 4)

    return fn


@pytest.mark.parametrize(('seed', 'error'), [(1.5, TypeError), (-1, ValueError), (2**64, TypeError)])
def test_a_seed_that_cupy_refuses_is_refused_at_its_line(sim: Any, seed: Any, error: type[Exception]) -> None:
    for where in (lambda: None, ck.capture):
        cap = where()
        with cap if cap is not None else contextlib.nullcontext():
            with pytest.raises(error, match='Seed must be an integer'):
                sim.random.seed(seed)
            y = sim.zeros(3) + 1
    cap.graph.launch()
    assert y.get().tolist() == [1.0] * 3


@pytest.mark.parametrize('make', [by_argument, by_truth, by_draw, reseeding, permuting, on_device])
def test_a_call_whose_later_check_fails_draws_the_same_again(sim: Any, make: Make) -> None:
    def drawn(launches: bool) -> list[Any]:
        sim.random.seed(1)
        fn = make(sim)
        later: Any = ck.graphed(checks='later')(fn)
        found = []
        for value in (0, 0, 0, 5, 0, 5, 5, 0):
            x = sim.arange(4.0) + value
            y = later(x) if launches else fn(x)
            if launches and later.last is not None and not later.last.holds():
                y = fn(x)
            found += [y.tolist(), sim.random.random_sample(2).tolist()]
        return found

    assert drawn(True) == drawn(False)
