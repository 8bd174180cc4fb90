"""``@ck.graphed``: whatever is given, call by call, the answer is the eager one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.functions.graphed_calls import Make, ar, states
from tests.twins import twins


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
def test_arguments_that_are_not_arrays_count_by_value(sim: Any, values: list[Any]) -> None:
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
