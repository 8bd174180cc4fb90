"""``@ck.graphed``: results, and constants that a function makes, are the eager ones, call by call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.functions.graphed_calls import Box, Make, seq, states
from tests.twins import twins


def test_results_alias_as_they_do_eagerly(sim: Any) -> None:
    w = sim.arange(4.0)

    @ck.graphed
    def fn(x: Any) -> Any:
        y = x * 2
        return y, y[1:], w[1:], x[1:], x, y, w

    for v in range(6):
        x = sim.arange(4.0) + v
        before = w.get()
        y, y1, w1, x1, same, twice, closure = fn(x)
        assert same is x and twice is y and closure is w
        y += 100
        assert np.array_equal(y1.get(), (np.arange(4.0) + v)[1:] * 2 + 100)
        w1 += 1
        assert np.array_equal(w.get()[1:], before[1:] + 1)
        x1 += 1
        assert np.array_equal(x.get()[1:], np.arange(4.0)[1:] + v + 1)
    assert states(fn) == {'recorded'}


def test_results_of_every_kind(sim: Any) -> None:
    def make(cp: Any) -> Any:
        w = cp.arange(6.0)

        def fn(x: Any) -> Any:
            y = x * 2
            return (
                y, y[1:], y[::-1], x[1:3], x, w, w[2:], y, {'a': [y.reshape(2, 2)]}, None, 3, np.float32(2),
                np.arange(3), (x + 1)[::2], x[:0], x.sum(), cp.asfortranarray(y.reshape(2, 2)), 'text',
            )  # fmt: skip

        return fn, lambda: w

    assert states(twins(sim, make, seq(0, 1, 2, 3, 4))) == {'recorded'}


def test_more_results_than_the_table_holds(sim: Any) -> None:
    twins(sim, lambda cp: lambda x: [x + i for i in range(80)], seq(0, 1, 2))
    twins(sim, lambda cp: lambda x: [x + i for i in range(64)], seq(0, 1, 2))


def holds_an_object(x: Any) -> Any:
    return Box(x * 2)


def holds_a_lambda(x: Any) -> Any:
    y = x * 2
    return lambda: y


def holds_a_method(x: Any) -> Any:
    return Box(x * 2).__repr__, (x * 2).get


def holds_a_generator(x: Any) -> Any:
    y = x * 2
    return (y * i for i in range(2))


@pytest.mark.parametrize('original', [holds_an_object, holds_a_lambda, holds_a_method, holds_a_generator])
def test_results_that_hold_arrays_out_of_sight(sim: Any, original: Any) -> None:
    fn = ck.graphed(original)
    seen = []
    for v in range(5):
        made = fn(sim.arange(4.0) + v)
        seen.append(made)
        if original is holds_a_generator:
            assert [a.get().tolist() for a in made] == [[0.0] * 4, [2.0 * (v + i) for i in range(4)]]
    for v, made in enumerate(seen):
        want = [2.0 * (v + i) for i in range(4)]
        if original is holds_an_object:
            assert made.inside.get().tolist() == want
        elif original is holds_a_lambda:
            assert made().get().tolist() == want
        elif original is holds_a_method:
            assert made[1]().tolist() == want


def test_self_as_a_result_is_self(sim: Any) -> None:
    class Model:
        def __init__(self) -> None:
            self.w = sim.zeros(4)

        @ck.graphed
        def step(self, x: Any) -> Any:
            self.w += x
            return self, self.w, len

    model = Model()
    for v in range(5):
        found, w, builtin = model.step(sim.ones(4))
        assert found is model and w is model.w and builtin is len
        assert w.get().tolist() == [v + 1.0] * 4
    assert states(Model.__dict__['step']) == {'recorded'}


def test_no_call_overwrites_earlier_results(sim: Any) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        return x * 2, {'b': (x + 1)[::-1]}

    kept = [fn(sim.arange(4.0) + v) for v in range(200)]
    for v, (a, b) in enumerate(kept):
        assert a.get().tolist() == [2.0 * (i + v) for i in range(4)]
        assert b['b'].get().tolist() == [i + v + 1.0 for i in (3, 2, 1, 0)]


@pytest.mark.parametrize(
    'constant',
    [
        lambda cp: cp.array([1.0, 2, 3, 4]),
        lambda cp: cp.asarray(np.arange(4.0)),
        lambda cp: cp.array([[1.0, 2, 3, 4]]).T[:, 0],
        lambda cp: cp.full(4, 3.0),
        lambda cp: cp.zeros(4),
        lambda cp: cp.linspace(0, 1, 4),
        lambda cp: cp.concatenate([cp.array([1.0]), cp.ones(3)]),
    ],
)
def test_constants_start_anew_at_every_call(sim: Any, constant: Make) -> None:
    def make(cp: Any) -> Any:
        def fn(x: Any) -> Any:
            c = constant(cp)
            c += x
            d = cp.array(2.0)
            d += x[0]
            return c * 2, c, d

        return fn

    twins(sim, make, seq(0, 1, 2, 3, 4))
