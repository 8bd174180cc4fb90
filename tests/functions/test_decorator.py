"""``@ck.graphed``: whatever is called with whatever, results, arguments and state are the eager ones, call by call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from tests.twins import twins

Make = Callable[[Any], Any]


def ar(v: float = 0, n: int = 4, dtype: str = 'f8') -> Make:
    return lambda cp: cp.arange(n, dtype=dtype) + v


def seq(*values: float, n: int = 4) -> list[Make]:
    return [ar(v, n) for v in values]


def square(*values: float) -> list[Make]:
    return [lambda cp, v=v: (cp.arange(9.0) + v).reshape(3, 3) for v in values]  # type: ignore[misc]


def states(fn: ck.Graphed) -> set[str]:
    return {variant.state for variant in fn.variants}


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside


# -- arguments ----------------------------------------------------------------------------------------------------


def shared_after_recording(_cp: Any) -> Any:
    def fn(a: Any, b: Any) -> Any:
        a += 1
        return b * 2

    return fn


def apart(cp: Any) -> Any:
    return cp.arange(4.0), cp.arange(4.0)


def the_same_memory(cp: Any) -> Any:
    x = cp.arange(4.0)
    return x, x[:]


def partly_the_same(cp: Any) -> Any:
    x = cp.arange(5.0)
    return x[:4], x[1:]


def twice_the_same(cp: Any) -> Any:
    x = cp.arange(4.0)
    return x, x


@pytest.mark.parametrize('other', [the_same_memory, partly_the_same, twice_the_same])
def test_arguments_that_share_memory(sim: Any, other: Make) -> None:
    twins(sim, shared_after_recording, [apart, apart, apart, other, other, apart, other])
    twins(sim, shared_after_recording, [other, other, other, apart, apart, apart])


@pytest.mark.parametrize('view', [lambda w: w, lambda w: w[:], lambda w: w[1:], lambda w: w[::-1]])
def test_an_argument_that_the_function_also_reaches_otherwise(sim: Any, view: Callable[[Any], Any]) -> None:
    made: list[Any] = []

    def make(cp: Any) -> Any:
        w = cp.arange(4.0)
        made.append(w)

        def fn(x: Any) -> Any:
            w[...] = w + 1
            return x * 2

        return fn, lambda: w

    def shared(_cp: Any) -> Any:
        return (view(made[-1]),)

    plain = ar(n=len(view(np.arange(4))))
    fn = twins(sim, make, [plain, plain, plain, shared, shared, plain, shared])
    assert 'recorded' in states(fn)


def test_arguments_of_every_layout(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any, y: Any) -> Any:
            x *= 2
            return x + y, x.T, y[::-1], x[1:], y.sum()

        return fn

    def layouts(v: int) -> Make:
        return lambda cp: (
            (cp.arange(24.0) + v).reshape(4, 6)[::-1, ::2],
            cp.asfortranarray((cp.arange(12.0) * v).reshape(4, 3)),
        )

    assert states(twins(sim, make, [layouts(i) for i in range(5)])) == {'recorded'}


def test_broadcast_empty_and_0d_arguments(sim: Any) -> None:
    def make(cp: Any) -> Any:
        def fn(x: Any, y: Any, z: Any, w: Any) -> Any:
            y += 1
            return x.sum() + y, z + 1, y, z, w + 1, w[0], cp.broadcast_to(x.sum(), (3, 2)), z[:0]

        return fn

    def args(v: int) -> Make:
        return lambda cp: (
            cp.arange(3.0) + v, cp.array(2.0) + v, cp.zeros((0, 3)), cp.broadcast_to(cp.arange(3.0) + v, (4, 3)),
        )  # fmt: skip

    twins(sim, make, [args(i) for i in range(5)])


@pytest.mark.parametrize('ndim', [8, 9, 11])
@pytest.mark.parametrize('strided', [True, False])
def test_many_dimensions(sim: Any, ndim: int, strided: bool) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any) -> Any:
            x += 1
            return x * 2

        return fn

    def args(v: int) -> Make:
        if strided:
            return lambda cp: (cp.arange(2.0 ** (ndim + 1)) + v).reshape((2,) * (ndim + 1))[..., 0]
        return lambda cp: (cp.arange(2.0**ndim) + v).reshape((2,) * ndim)

    assert states(twins(sim, make, [args(v) for v in range(4)])) == {'recorded'}


@pytest.mark.parametrize('dtype', ['?', 'i1', 'u2', 'i4', 'f2', 'f4', 'f8', 'c8', 'c16'])
def test_dtypes_and_misaligned_views(sim: Any, dtype: str) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any, y: Any) -> Any:
            x[...] = y
            return x.copy(), y[::-1]

        return fn

    twins(
        sim,
        make,
        [
            lambda cp, v=v: ((cp.arange(9) + v).astype(dtype)[1:6], (cp.arange(9) * v).astype(dtype)[3:8])
            for v in range(4)
        ],  # type: ignore[misc]
    )


def test_a_subclass_of_array_is_another_kind(sim: Any) -> None:
    class Sub(sim.ndarray):  # type: ignore[misc]
        def __mul__(self, other: Any) -> Any:
            return super().__add__(other)

    def sub(cp: Any) -> Any:
        x = cp.arange(4.0)
        return Sub(x.shape, x.dtype, x.data)

    twins(sim, lambda cp: lambda x: x * 3, [ar(), ar(), ar(), sub, sub, sub, ar()])


@dataclasses.dataclass
class Pair:
    a: Any
    n: int


def test_nested_arguments_and_results(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any, *rest: Any, n: int = 2, pair: Any = None, **more: Any) -> Any:
            pair.a += n
            more['q'][0] *= 2
            return {'s': pair.a * x, 'm': [more['q'][0] + sum(rest), (pair.n, None, 'text')]}

        return fn

    def args(v: int) -> Make:
        return lambda cp: (
            (cp.arange(3.0) + v, cp.ones(3), cp.ones(3) * 2),
            {'pair': Pair(cp.zeros(3) + v, v % 2), 'q': [cp.ones(3)], 'n': v % 2},
        )

    fn = twins(sim, make, [args(v) for v in range(8)])
    assert [v.launches for v in fn.variants] == [3, 3]


@pytest.mark.parametrize(
    'values',
    [
        [1, 1.0, True],
        [0.0, -0.0],
        [float('nan')],
        [None, 'a', b'a'],
        [1 << 70, -1],
        [np.float32(1), np.float64(1), 1.0],
    ],
)
def test_what_is_no_array_counts_by_value_and_type(sim: Any, values: list[Any]) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any, v: Any) -> Any:
            return x + 1, v, type(v).__name__

        return fn

    twins(sim, make, [lambda cp, v=v: (cp.arange(4.0), v) for v in values * 3])  # type: ignore[misc]


def test_numpy_arguments_count_by_value(sim: Any) -> None:
    kept = np.arange(4.0)

    def make(cp: Any) -> Any:
        def fn(x: Any, host: Any) -> Any:
            return x + cp.asarray(host), host.copy()

        return fn

    def args(v: int) -> Make:
        def go(cp: Any) -> Any:
            kept[0] = v
            return cp.arange(4.0), kept

        return go

    twins(sim, make, [args(v) for v in (0, 0, 0, 1, 1, 1, 0)])


# -- results ------------------------------------------------------------------------------------------------------


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


# -- constants ----------------------------------------------------------------------------------------------------


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


# -- Python around the function -----------------------------------------------------------------------------------


def test_attributes_that_change(sim: Any) -> None:
    class Model:
        lr = 0.1

        def __init__(self, cp: Any) -> None:
            self.w = cp.ones(4)

    models: list[Model] = []

    def make(cp: Any) -> Any:
        model = Model(cp)
        models.append(model)

        def fn(x: Any) -> Any:
            model.w -= model.lr * x
            return model.w * 2

        return fn, lambda: model.w

    def step(v: int) -> Make:
        def go(cp: Any) -> Any:
            models[-1].lr = 0.1 * (v // 3 % 2)
            return cp.arange(4.0)

        return go

    twins(sim, make, [step(v) for v in range(14)])


def test_a_counter_that_is_computed_with_is_no_constant(sim: Any) -> None:
    class Model:
        def __init__(self, cp: Any) -> None:
            self.t = 0
            self.w = cp.ones(4)

        def step(self, x: Any) -> Any:
            self.t += 1
            self.w = self.w + x * self.t
            return self.w

    def make(cp: Any) -> Any:
        model = Model(cp)
        return model.step, lambda: (model.t, model.w)

    fn = twins(sim, make, seq(0, 1, 2, 3, 4))
    assert states(fn) == {'rehearsed'}


def test_methods_of_every_kind(sim: Any) -> None:
    class Model:
        scale = 3

        def __init__(self, w: Any) -> None:
            self.w = w

        @ck.graphed
        def plain(self, x: Any) -> Any:
            return self.w * x

        @classmethod
        @ck.graphed
        def of_class(cls, x: Any) -> Any:
            return x * cls.scale

        @staticmethod
        @ck.graphed
        def static(x: Any) -> Any:
            return x + 1

    models = [Model(sim.arange(4.0) + i) for i in range(3)]
    for v in range(6):
        Model.scale = 3 + v // 3
        for i, model in enumerate(models):
            x = sim.arange(4.0) + v
            assert np.array_equal(model.plain(x).get(), (np.arange(4.0) + i) * (np.arange(4.0) + v))
            assert np.array_equal(model.of_class(x).get(), (np.arange(4.0) + v) * Model.scale)
            assert np.array_equal(Model.static(x).get(), np.arange(4.0) + v + 1)


def test_recursion_and_functions_in_functions(sim: Any) -> None:
    @ck.graphed
    def power(x: Any, n: int) -> Any:
        return x if n == 0 else x * power(x, n - 1)

    @ck.graphed
    def outer(x: Any) -> Any:
        return power(x, 2) + power(x, 0)

    for v in range(4):
        host = np.arange(4.0) + v
        assert np.array_equal(power(sim.asarray(host), 3).get(), host**4)
        assert np.array_equal(outer(sim.asarray(host)).get(), host**3 + host)


def test_inside_of_a_capture(sim: Any) -> None:
    fn = ck.graphed(lambda x: x * 2)
    x = sim.arange(4.0)
    for _ in range(3):
        fn(x)
    with ck.capture() as cap:
        y = fn(x) + 1
    cap.graph.launch()
    assert y.get().tolist() == [1, 3, 5, 7]


def test_host_random_numbers_stay_eager(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        return lambda x: x * np.random.rand()

    assert states(twins(sim, make, seq(0, 1, 2, 3))) == {'eager'}


def test_bad_options(sim: Any) -> None:
    for bad in ({'checks': 'x'}, {'limit': 0}):
        with pytest.raises(ValueError):
            ck.graphed(abs, **bad)  # type: ignore[call-overload]
    for bad in ({'strict': 1}, {'limit': 1.5}, {'pieces': None}, {'pool': 3}):
        with pytest.raises(TypeError):
            ck.graphed(abs, **bad)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        ck.graphed(3)  # type: ignore[call-overload]


# -- exceptions ---------------------------------------------------------------------------------------------------


def test_exceptions_come_as_they_do_eagerly(sim: Any) -> None:
    def make(cp: Any) -> Any:
        w = cp.zeros(4)

        def fn(x: Any) -> Any:
            x += 1
            w[...] = w + 1
            if float(x[0]) > 2:
                raise KeyError('big')
            return x * 2

        return fn, lambda: w

    twins(sim, make, seq(0, 0, 0, 5, 0, 5, 5, 0, 5, 0))
    twins(sim, make, seq(5, 5, 5, 0, 0, 5, 0))


def test_an_exception_of_no_known_kind_while_recording(sim: Any) -> None:
    class Odd(Exception):
        pass

    def fn(x: Any) -> Any:
        x += 1
        if GUARD.mine() is not None:
            raise Odd('only while recording')
        return x * 2

    graphed = ck.graphed(fn)
    for v in range(4):
        x = sim.arange(4.0) + v
        assert np.array_equal(graphed(x).get(), (np.arange(4.0) + v + 1) * 2)
        assert np.array_equal(x.get(), np.arange(4.0) + v + 1)
    assert states(graphed) == {'eager'}


@pytest.mark.parametrize('seam', [True, False])
def test_a_keyboard_interrupt_while_recording(sim: Any, seam: bool) -> None:
    w = sim.zeros(4)
    calls = []

    def fn(x: Any) -> Any:
        w[...] = w + 1
        y = sim.linalg.svd(x.reshape(2, 2))[1] if seam else x
        if GUARD.mine() is not None and not calls:
            calls.append(1)
            raise KeyboardInterrupt
        return y * 2

    expected = lambda x: (np.linalg.svd(x.reshape(2, 2))[1] if seam else x) * 2  # noqa: E731
    graphed = ck.graphed(fn)
    host = np.arange(4.0)
    np.testing.assert_allclose(graphed(sim.asarray(host)).get(), expected(host), atol=1e-12)
    calls.clear()
    graphed_once = False
    for v in range(6):
        host = np.arange(4.0) + v
        try:
            np.testing.assert_allclose(graphed(sim.asarray(host)).get(), expected(host), atol=1e-12)
        except KeyboardInterrupt:
            graphed_once = True
            assert w.get().tolist() == [1.0 + v] * 4
            w[...] = w + 1
    assert graphed_once
    assert w.get().tolist() == [7.0] * 4


@pytest.mark.parametrize('where', ['launch', 'draw'])
def test_an_interrupt_between_the_parts_of_a_launch(sim: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A launch that the device never heard of must not shift the rows of those that follow."""
    device = current().device

    @ck.graphed
    def fn(x: Any) -> Any:
        y = sim.random.random_sample(4) * 0 if where == 'draw' else x * 0
        if float(x[0]) > 100:
            return x
        return x * 2 + y

    for v in range(3):
        fn(sim.arange(4.0) + v)
    real = device.graph_launch

    def broken(*_args: Any) -> Any:
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(device, 'graph_launch', broken)
            with pytest.raises(KeyboardInterrupt):
                fn(sim.arange(4.0))
    assert device.graph_launch == real
    for v in range(70):
        assert fn(sim.arange(4.0) + v).get().tolist() == [2.0 * (i + v) for i in range(4)]


# -- strict, limit, clear -----------------------------------------------------------------------------------------


def test_strict_names_the_reason(sim: Any) -> None:
    @ck.graphed(strict=True)
    def fn(x: Any) -> Any:
        x.set(np.ones(4))
        return x * 2

    x = sim.arange(4.0)
    assert fn(x).get().tolist() == [2.0] * 4
    with pytest.raises(ck.UnsupportedCallError, match='can not be recorded'):
        fn(x)


def test_the_least_recently_used_kinds_go(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        return lambda x, n: x * n

    calls = [lambda cp, n=n: (cp.arange(4.0), n) for n in [0, 1, 2, 0, 1, 2, 0, 0, 0, 1, 1, 1, 2, 2, 2]]  # type: ignore[misc]
    fn = twins(sim, make, calls, limit=2)
    assert len(fn.variants) == 2


@pytest.mark.serial
def test_clear_gives_everything_back(sim: Any) -> None:
    def free_bytes() -> Any:
        """What is free when the pools hold nothing; pinned memory counts on the simulated device."""
        gc.collect()
        sim.get_default_memory_pool().free_all_blocks()
        sim.get_default_pinned_memory_pool().free_all_blocks()
        return sim.cuda.runtime.memGetInfo()[0]

    @ck.graphed
    def fn(x: Any) -> Any:
        return x * 2 if float(x[0]) < 9 else x

    for v in range(4):
        fn(sim.arange(1 << 16, dtype='f8') + v)
    assert fn.variants and 'graphed' in repr(fn)
    fn.clear()
    free = free_bytes()
    for v in range(4):
        assert fn(sim.arange(1 << 16, dtype='f8') + v).get()[1] == 2.0 + 2 * v
    fn.clear()
    assert free_bytes() >= free and not fn.variants


# -- host reads ---------------------------------------------------------------------------------------------------


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
        return lambda x: x * float(x[0])

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


# -- random numbers -----------------------------------------------------------------------------------------------


def by_argument(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        a = cp.random.random_sample(4)
        if float(x.sum()) > 10:
            return a + cp.random.normal(size=4)
        return a + cp.random.gamma(2.0, 3.0, 4) + x

    return fn


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


def own_state(cp: Any) -> Any:
    state = cp.random.RandomState(3)

    def fn(x: Any) -> Any:
        a = state.random_sample((3, 3))
        s = cp.linalg.svd(x[0] + a)[1]
        b = cp.random.random_sample(3)
        if float(x[0]) > 2:
            return s - b
        return s + b * cp.linalg.eigh(a + a.T)[0]

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


def on_device_behind_a_seam(cp: Any) -> Any:
    rng = cp.random.default_rng(3)
    w = cp.eye(2)

    def fn(x: Any) -> Any:
        w[...] = w + 1
        s = cp.linalg.svd(x.reshape(2, 2))[1]
        b = rng.random(2)
        return s * 2 + b if float(x[0]) > 2 else s + b

    return fn, lambda: w


@pytest.mark.parametrize(
    'make', [by_argument, by_draw, reseeding, permuting, own_state, on_device, on_device_behind_a_seam]
)
@pytest.mark.parametrize('values', [(0, 0, 0, 5, 0, 5, 5, 0), (0, 5, 0, 5, 5, 0, 0), (0,) * 6])
def test_random_sequences_are_the_eager_ones(sim: Any, make: Make, values: Any) -> None:
    twins(sim, make, seq(*values))


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


def test_reseeding_between_calls(sim: Any) -> None:
    def reseeded(cp: Any) -> Any:
        cp.random.seed(11)
        return cp.arange(4.0)

    twins(sim, by_argument, [ar(), ar(), reseeded, ar(), reseeded, ar(5), reseeded, ar(5), ar()])


# -- calls that no capture holds ----------------------------------------------------------------------------------


def test_seams(sim: Any) -> None:
    def make(cp: Any) -> Any:
        w = cp.eye(3)

        def fn(x: Any) -> Any:
            w[...] = w + x
            u, s, v = cp.linalg.svd(w)
            e, q = cp.linalg.eigh(x + x.T)
            return u * s, v, w, e, abs(q)

        return fn, lambda: w

    fn = twins(sim, make, square(*range(6)))
    assert [(v.state, len(v.seams)) for v in fn.variants] == [('pieces', 2)]


def test_seams_fail_like_eager_calls(sim: Any) -> None:
    def make(cp: Any) -> Any:
        w = cp.eye(3)

        def fn(x: Any) -> Any:
            w[...] = w + 1
            x += 1
            a = cp.random.random_sample(3)
            e, _v = cp.linalg.eigh(x)
            w[...] = w * 2
            return e + a

        return fn, lambda: w

    calls = [lambda cp, v=v: cp.full((3, 3), v) + cp.eye(3) for v in (1.0, 2.0, 3.0, np.nan, 2.0, np.nan, 1.0)]  # type: ignore[misc]
    twins(sim, make, calls)
    twins(sim, make, [calls[0], calls[3], *calls])
    twins(sim, make, [calls[3], calls[3], *calls])


def test_an_assumption_behind_a_seam(sim: Any) -> None:
    def make(cp: Any) -> Any:
        w = cp.eye(3)

        def fn(x: Any) -> Any:
            w[...] = w + 1
            a = cp.random.random_sample((3, 3))
            s = cp.linalg.svd(x + a)[1]
            w[...] = w * 2
            if float(x[0, 0]) > 2:
                return s * 2
            w[...] = w - cp.linalg.svd(w)[1]
            return s

        return fn, lambda: w

    twins(sim, make, square(0, 5, 0, 5, 5, 0, 0, 0, 5))
    twins(sim, make, square(0, 0, 0, 5, 0, 5))


def test_many_reads_before_and_between_seams(sim: Any) -> None:
    """So many that the host asks after each: all parts before a seam have run when its call is made."""

    def steady(cp: Any) -> Any:
        def fn(x: Any) -> Any:
            for _ in range(24):
                x = x * 2 if float(x[0, 0]) == 0 else x + 1
                x[0, 0] = 0
            s = cp.linalg.svd(x)[1]
            for _ in range(24):
                s = s + 1 if float(x[0, 0]) == 0 else s - 1
            return cp.linalg.svd(x * s)[1]

        return fn

    fn = twins(sim, steady, square(0, 0, 0, 0, 0, 7, 0))
    pieces = [variant for variant in fn.variants if variant.state == 'pieces']
    assert max(variant.launches for variant in pieces) >= 3 and all(len(variant.seams) == 2 for variant in pieces)


@pytest.mark.parametrize('seams', [2, 6])
def test_many_seams_are_told_once(sim: Any, caplog: pytest.LogCaptureFixture, seams: int) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        for _ in range(seams):
            x = x * sim.linalg.svd(x)[1]
        return x

    for _ in range(4):
        fn(sim.eye(3) * 0.5)
    (variant,) = fn.variants
    assert (variant.state, len(variant.seams)) == ('pieces', seams)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (seams == 6)
    if told:
        assert '6 calls that no capture can hold' in told[0] and 'linalg.svd at test_decorator.py' in told[0]


def test_a_seam_whose_result_changes_its_form(sim: Any) -> None:
    def make(cp: Any) -> Any:
        def fn(x: Any) -> Any:
            found = cp.unique(x)
            return found * 2, cp.linalg.svd(x.reshape(2, 2))[1]

        return fn

    def args(*values: float) -> Make:
        return lambda cp: cp.array(values)

    twins(sim, make, [args(1, 2, 3, 4), args(1, 2, 3, 4), args(1, 1, 2, 2), args(1, 1, 1, 1), args(1, 2, 3, 4)])


def test_a_recording_that_fails_behind_a_seam(sim: Any) -> None:
    def make(cp: Any) -> Any:
        w = cp.eye(3)
        rng = cp.random.default_rng(5)

        def fn(x: Any) -> Any:
            w[...] = w + 1
            a = cp.random.random_sample((3, 3))
            s = cp.linalg.svd(x + a)[1]
            b = cp.random.random_sample(3) + rng.random(3)
            x.set(np.ones((3, 3)))
            return s + b

        return fn, lambda: w

    assert states(twins(sim, make, square(0, 5, 0, 5))) == {'eager'}


def test_draws_of_inner_functions_when_the_outer_recording_fails(sim: Any) -> None:
    def make(cp: Any) -> Any:
        inner = ck.graphed(lambda x: x + cp.random.random_sample(4))

        def fn(x: Any) -> Any:
            a = cp.random.random_sample(4) + inner(x)
            cp.linalg.svd(x.reshape(2, 2))
            b = inner(x)
            x.set(np.ones(4))
            return a + b

        return fn

    twins(sim, make, seq(0, 1, 2, 3))


def test_without_pieces(sim: Any) -> None:
    fn = twins(sim, lambda cp: lambda x: cp.linalg.svd(x)[1], square(0, 1, 2), pieces=False)
    assert states(fn) == {'eager'}


# -- streams and threads ------------------------------------------------------------------------------------------


def ordered_by_waiting(cp: Any) -> Any:
    s = cp.cuda.Stream(non_blocking=True)

    def fn(x: Any) -> Any:
        y = x + 1
        cp.cuda.get_current_stream().synchronize()
        with s:
            z = y * 2
        s.synchronize()
        return z + x

    return fn


def ordered_by_waiting_around_a_read(cp: Any) -> Any:
    s = cp.cuda.Stream(non_blocking=True)
    w = cp.zeros(4)
    cp.cuda.Stream.null.synchronize()

    def fn(x: Any) -> Any:
        s.wait_event(cp.cuda.get_current_stream().record())  # which may still read what s gave back to the pool
        with s:
            w[...] = w + 1
            z = w * 2
        s.synchronize()
        n = float(z[0]) > 4
        with s:
            z = z + n
        s.synchronize()
        return z + x if n else z - x

    return fn, lambda: w


def ordered_by_events_around_a_read(cp: Any) -> Any:
    s = cp.cuda.Stream(non_blocking=True)

    def fn(x: Any) -> Any:
        e = cp.cuda.Event(disable_timing=True)
        s.wait_event(cp.cuda.get_current_stream().record())
        with s:
            z = x * 2
            e.record(s)
        n = int(x.max())
        cp.cuda.get_current_stream().wait_event(e)
        s.wait_event(e)
        e.synchronize()
        with s:
            w = z + n
        s.synchronize()
        return z[: n % 4] + 1, w

    return fn


@pytest.mark.parametrize('sim', range(3), indirect=True)
@pytest.mark.parametrize(
    'make', [ordered_by_waiting, ordered_by_waiting_around_a_read, ordered_by_events_around_a_read]
)
def test_streams(sim: Any, make: Make) -> None:
    fn = twins(sim, make, seq(0, 0, 0, 3, 3, 0, 3, 3))
    assert 'recorded' in states(fn), fn.variants


def test_calls_on_many_streams(sim: Any) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        return x * 2 if float(x[0]) < 50 else x

    streams = [sim.cuda.Stream(non_blocking=True) for _ in range(4)]
    for v in range(100):
        with streams[v % 4] as s:
            x = sim.arange(4.0) + v
            y = fn(x)
            s.synchronize()
            assert y.get().tolist() == [(i + v) * (2.0 if v < 50 else 1.0) for i in range(4)]


@pytest.mark.parametrize('assuming', [True, False])
def test_eight_threads(sim: Any, assuming: bool) -> None:
    @ck.graphed
    def fn(x: Any, n: int) -> Any:
        if assuming and float(x[0]) > 20:
            return x * 3 + n
        return x * 2 + n

    wrong: list[Any] = []

    def work(number: int) -> None:
        stream = sim.cuda.Stream(non_blocking=True)
        try:
            with stream:
                for call in range(16):
                    v = call * 8 % 32
                    x = sim.arange(16.0) + v
                    y = fn(x, number % 2)
                    stream.synchronize()
                    times = 3 if assuming and v > 20 else 2
                    if y.get().tolist() != [(i + v) * times + number % 2 for i in range(16)]:
                        wrong.append((number, v))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


def test_functions_that_allocate_much(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any) -> Any:
            parts = [x + i for i in range(50)]
            total = functools.reduce(lambda a, b: a * 0.5 + b, parts)
            del parts
            return total, [total * i for i in range(5)]

        return fn

    twins(sim, make, seq(*range(5), n=1000))


@pytest.mark.parametrize('by', ['itself', 'others'])
def test_what_differs_at_every_call_stays_eager_in_the_end(sim: Any, by: str, caplog: pytest.LogCaptureFixture) -> None:
    class Counter:
        n = 0

        @ck.graphed(limit=2)
        def step(self, x: Any) -> Any:
            if by == 'itself':
                self.n += 1
            return x * self.n

    counter = Counter()
    for i in range(1, 26):
        if by == 'others':
            counter.n += 1
        assert counter.step(sim.arange(3.0)).tolist() == [0, i, 2 * i]
    (variant,) = Counter.step.variants
    assert variant.state == 'eager' and variant.calls > 10 and variant.reason in caplog.text
    assert len(caplog.records) < 5


def test_inside_of_a_rehearsal_its_reads_are_the_rehearsals(sim: Any) -> None:
    inner = ck.graphed(lambda x: x * 2 if float(x.sum()) > 3 else x + 1)
    x = sim.arange(4.0)
    for _ in range(3):
        inner(x)
    rehearsal = ck.rehearse(lambda: inner(x) + 1)
    assert [read.value.item() for read in rehearsal.reads] == [6.0]
    with ck.capture(rehearsal=rehearsal) as cap:
        y = inner(x) + 1
    cap.graph.launch()
    assert y.get().tolist() == [1.0, 3.0, 5.0, 7.0]
    x *= 0
    with pytest.raises(ck.AssumptionError):
        cap.graph.launch()


@pytest.mark.parametrize('order', ['C', 'F', 'A'])
def test_reads_keep_their_order(sim: Any, order: str) -> None:
    def make(cp: Any) -> Any:
        def fn(x: Any) -> Any:
            host = x.T.get(order=order)
            return x + float(host.flags.c_contiguous) + 2 * float(host.flags.f_contiguous)

        return fn

    twins(sim, make, square(1, 1, 1, 1))


@pytest.mark.parametrize('number', range(3))
def test_a_variant_that_somebody_closed_is_none(sim: Any, number: int) -> None:
    """Whichever it is, and whichever way leads to it: a check of another that failed, too."""
    fn = ck.graphed(lambda x: x * 2 if float(x[0]) < 9 else x)
    for v in (0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2):
        fn(sim.arange(4.0) + v)
    assert [variant.state for variant in fn.variants] == ['recorded'] * 3
    plan = fn.variants[number].plan
    fn.variants[number].graph.close()  # type: ignore[union-attr]
    with pytest.raises(ck.ClosedError):
        plan.run()  # type: ignore[union-attr]
    for v in (0, 1, 2, 0, 0, 1, 2, 0, 1, 2):  # some calls more than it takes: an address that is met again may cost one
        assert fn(sim.arange(4.0) + v).get().tolist() == [2.0 * (i + v) for i in range(4)]
    assert [variant.state for variant in fn.variants].count('recorded') == 3


@pytest.mark.parametrize('reads', [False, True])
def test_a_variants_graph_is_launched_by_calls_alone(sim: Any, reads: bool) -> None:
    fn = ck.graphed(lambda x: x * 2 if not reads or float(x[0]) < 9 else x)
    for _ in range(3):
        fn(sim.arange(4.0))
    graph = fn.variants[0].graph
    assert graph is not None and graph.nodes
    with pytest.raises(ck.UnsupportedCallError, match='Call the function'):
        graph.launch()
    with pytest.raises(ck.UnsupportedCallError):
        graph.launch(sim.cuda.Stream())
    for v in range(3):
        assert fn(sim.arange(4.0) + v).get().tolist() == [2.0 * (i + v) for i in range(4)]
    graph.close()  # somebody does: the function is recorded anew
    for v in range(3):
        assert fn(sim.arange(4.0) + v).get().tolist() == [2.0 * (i + v) for i in range(4)]
    assert 'recorded' in states(fn) and graph not in [variant.graph for variant in fn.variants]


COLLECTIONS = 0


def test_a_callback_of_the_garbage_collector_is_no_part_of_a_function(sim: Any) -> None:
    def told(_phase: str, _info: dict[str, int]) -> None:
        global COLLECTIONS
        COLLECTIONS += 1

    @ck.graphed
    def doubled(x: Any) -> Any:
        for _ in range(100):
            loop: list[Any] = []
            loop.append(loop)
        return x * 2

    threshold, x = gc.get_threshold(), sim.arange(4.0)
    gc.callbacks.append(told)
    gc.set_threshold(10)
    try:
        for _ in range(4):
            assert doubled(x).get().tolist() == [0, 2, 4, 6]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(told)
    assert COLLECTIONS > 0 and doubled.variants[0].state == 'recorded'
    assert gc.isenabled()
