"""``@ck.graphed``: calls that no capture holds are made between the graphs of a variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.functions.graphed_calls import Make, seq, square, states
from tests.twins import twins


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
        assert '6 calls that no capture can hold' in told[0] and 'linalg.svd at test_seams.py' in told[0]


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
