"""Generators of random numbers that a function makes on the host: with a seed, and with entropy of the system."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

qmc: Any = None
utilities: Any = None
with contextlib.suppress(ImportError):
    from scipy._lib import _util as utilities
    from scipy.stats import qmc

TOLD = sys.version_info >= (3, 12)  # of calls, and so of the seed


class Seeds:
    value: Any = 5


def by_a_constant(x: Any) -> Any:
    return x * float(np.random.RandomState(5).rand())


def by_a_variable(x: Any) -> Any:
    seed = Seeds.value
    random_state = np.random.RandomState(seed=seed)
    return x * float(random_state.standard_normal(3).sum() + random_state.randint(3))


def by_an_array(x: Any) -> Any:
    return x * float(np.random.RandomState(np.array([1, Seeds.value])).rand())


def by_another_generator(x: Any) -> Any:
    return x * float(np.random.RandomState(np.random.MT19937(Seeds.value)).rand())


def by_a_tuple(x: Any) -> Any:
    given = (Seeds.value,)
    return x * float(np.random.RandomState(*given).rand())


def by_a_library(x: Any) -> Any:
    return x * float(utilities.check_random_state(Seeds.value).rand())


SEEDED = [
    by_a_constant,
    by_a_variable,
    by_an_array,
    by_another_generator,
    by_a_tuple,
    by_a_library,
]


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('function', SEEDED, ids=lambda function: function.__name__)
def test_a_generator_with_a_seed_is_recorded(cp: Any, function: Callable[..., Any]) -> None:
    if function is by_a_library:
        pytest.importorskip('scipy')
    fn = ck.graphed(function)
    try:
        for seed in (5, 5, 5, 5, 9, 9, 9):
            Seeds.value = seed
            assert fn(cp.ones(2)).get().tolist() == function(cp.ones(2)).get().tolist()
    finally:
        Seeds.value = 5
    assert not TOLD or launches(fn) >= 3


def test_a_seed_that_becomes_none_is_seen(cp: Any) -> None:
    fn = ck.graphed(by_a_variable)
    try:
        for seed in (5, 5, 5, None, None, None):
            Seeds.value = seed
            found = fn(cp.ones(2)).get().tolist()
        assert fn(cp.ones(2)).get().tolist() != found
        Seeds.value = 5
        assert fn(cp.ones(2)).get().tolist() == by_a_variable(cp.ones(2)).get().tolist()
    finally:
        Seeds.value = 5


def without_a_seed(x: Any) -> Any:
    return x * float(np.random.RandomState().rand())


def with_none(x: Any) -> Any:
    return x * float(np.random.RandomState(seed=None).rand())


def with_and_without(x: Any) -> Any:
    return x * float(np.random.RandomState(5).rand() + [np.random.RandomState(), 1][0].rand())  # type: ignore[union-attr]


def with_none_in_the_same_place(x: Any) -> Any:
    return x * sum(float(np.random.RandomState(seed).rand()) for seed in (5, None))


def of_the_new_kind(x: Any) -> Any:
    return x * float(np.random.default_rng().random())


def of_the_system(x: Any) -> Any:
    return x * secrets.randbelow(10**9)


def in_bytes(x: Any) -> Any:
    return x * int.from_bytes(os.urandom(4), 'big')


def in_a_library(x: Any) -> Any:
    return x * float(qmc.LatinHypercube(1).random()[0, 0])


def of_two_kinds_in_the_same_place(x: Any) -> Any:
    return x * sum(float(make(*given).rand()) for make, given in ((np.random.RandomState, (5,)), (Makes, ())))


class Makes:
    """Draws entropy by the name that generators have for it."""

    def __init__(self) -> None:
        self._bits = np.random.MT19937()

    def rand(self) -> float:
        return float(np.random.Generator(self._bits).random())


UNSEEDED = [
    without_a_seed, with_none, with_and_without, with_none_in_the_same_place, of_two_kinds_in_the_same_place,
    of_the_new_kind, of_the_system, in_bytes, in_a_library,
]  # fmt: skip


@pytest.mark.parametrize('function', UNSEEDED, ids=lambda function: function.__name__)
def test_entropy_of_the_system_is_drawn_anew(cp: Any, function: Callable[..., Any]) -> None:
    if function is in_a_library:
        pytest.importorskip('scipy')
    fn = ck.graphed(function)
    found = [fn(cp.ones(1)).get().tolist()[0] for _ in range(6)]
    assert len({*found}) > 3
