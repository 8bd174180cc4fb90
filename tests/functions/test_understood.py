"""Ordinary Python in graphed functions: it is recorded, and a change between calls is seen."""

from __future__ import annotations

import argparse
import collections
import contextvars
import copy
import enum
import functools
import os
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.model.kept_values import contents_of

Made = tuple[Callable[[Any], Any], Callable[[], None]]


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = os.environ.get('CAPTUREKIT_TEST_RATE')
    yield
    if before is None:
        os.environ.pop('CAPTUREKIT_TEST_RATE', None)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Row(list):  # type: ignore[type-arg]
    pass


class Rate:
    def __init__(self, value: float) -> None:
        self.value = value

    @functools.cached_property
    def double(self) -> float:
        return self.value * 2


def a_cache(cp: Any) -> Made:
    rate = Rate(2.0)
    scale = functools.lru_cache(maxsize=4)(lambda n: rate.value * n)
    return lambda x: x * scale(1) * scale(2), lambda: (setattr(rate, 'value', 3.0), scale.cache_clear())[0]


def a_cache_of_arrays(cp: Any) -> Made:
    rate = Rate(2.0)
    weights = functools.cache(lambda n, k=1: cp.full(n, rate.value))
    return lambda x: x * weights(2, k=3), lambda: (setattr(rate, 'value', 3.0), weights.cache_clear())[0]


def a_cached_property(cp: Any) -> Made:
    held = [Rate(2.0)]
    return lambda x: x * held[0].double, lambda: held.__setitem__(0, Rate(3.0))


def a_thread_local(cp: Any) -> Made:
    local = threading.local()
    local.rate = 2.0
    return lambda x: x * local.rate, lambda: setattr(local, 'rate', 3.0)


def a_context_variable(cp: Any) -> Made:
    rate = contextvars.ContextVar('rate', default=2.0)
    return lambda x: x * rate.get(), lambda: (rate.set(3.0), None)[1]


def the_environment(cp: Any) -> Made:
    os.environ['CAPTUREKIT_TEST_RATE'] = '2'
    name = 'CAPTUREKIT_TEST_RATE'
    return lambda x: x * float(os.environ[name]), lambda: os.environ.__setitem__(name, '3')


def the_environment_by_getenv(cp: Any) -> Made:
    name = 'CAPTUREKIT_TEST_RATE'
    return lambda x: x * float(os.getenv(name, '2')), lambda: os.environ.__setitem__(name, '3')


def a_proxy(cp: Any) -> Made:
    rates = {'rate': 2.0}
    shown = types.MappingProxyType(rates)
    return lambda x: x * shown['rate'], lambda: rates.update(rate=3.0)


@pytest.mark.parametrize('view', ['keys', 'values', 'items'])
def test_a_view_is_compared_by_what_it_shows(view: str) -> None:
    for mapping in ({1: 2.0}, collections.OrderedDict({1: 2.0})):
        shown = getattr(mapping, view)()
        found = contents_of(shown)
        assert found is not None and found[2] == [mapping]


def values_of_a_dict(cp: Any) -> Made:
    rates = {'rate': 2.0}
    shown = rates.values()
    return lambda x: x * sum(shown), lambda: rates.update(rate=3.0)


def a_view_of_bytes(cp: Any) -> Made:
    shown = memoryview(bytearray(b'\2'))
    return lambda x: x * shown[0], lambda: shown.__setitem__(0, 3)


def a_record(cp: Any) -> Made:
    rows = np.zeros(2, [('rate', 'f8')])
    rows['rate'] = 2.0
    row = rows[0]
    return lambda x: x * float(row['rate']), lambda: rows.__setitem__('rate', 3.0)


def a_namespace(cp: Any) -> Made:
    options = argparse.Namespace(rate=2.0)
    return lambda x: x * options.rate if 'rate' in options else x, lambda: setattr(options, 'rate', 3.0)


def a_deep_copy(cp: Any) -> Made:
    rates = {'rates': [2.0]}
    return lambda x: x * copy.deepcopy(rates)['rates'][0], lambda: rates['rates'].__setitem__(0, 3.0)


def a_partial(cp: Any) -> Made:
    held = [functools.partial(lambda rate, x: x * rate, 2.0)]
    return lambda x: held[0](x), lambda: held.__setitem__(0, functools.partial(held[0].func, 3.0))


def a_context_variables_default(cp: Any) -> Made:
    rates = [2.0]
    held = contextvars.ContextVar('rate', default=rates)
    return lambda x: x * held.get()[0], lambda: rates.__setitem__(0, 3.0)


def a_members_value(cp: Any) -> Made:
    class Rate(enum.Enum):
        SLOW = 2.0

    held = [Rate.SLOW]
    return lambda x: x * held[0].value, lambda: setattr(Rate.SLOW, '_value_', 3.0)


def what_a_metaclass_answers(cp: Any) -> Made:
    class Meta(type):
        def __getattr__(cls, name: str) -> float:
            return 2.0

    made: Any = [Meta('Rates', (), {})]
    return lambda x: x * made[0].rate, lambda: setattr(Meta, '__getattr__', lambda cls, name: 3.0)


MADE = (
    what_a_metaclass_answers, a_cache, a_cache_of_arrays, a_cached_property, a_thread_local,
    a_context_variable, a_context_variables_default, a_members_value, the_environment, the_environment_by_getenv,
    a_proxy, values_of_a_dict, a_view_of_bytes, a_record, a_namespace, a_deep_copy, a_partial,
)  # fmt: skip


@pytest.mark.parametrize('make', MADE)
def test_it_is_recorded_and_a_change_is_seen(cp: Any, make: Callable[[Any], Made]) -> None:
    fn, change = make(cp)
    graphed = ck.graphed(fn)
    x = cp.ones(2)
    for _ in range(2):
        before = sum(variant.launches for variant in graphed.variants)
        for _ in range(5):
            assert graphed(x).get().tolist() == fn(x).get().tolist()
        assert sum(variant.launches for variant in graphed.variants) - before >= 2, graphed.variants
        change()
    assert graphed(x).get().tolist() == fn(x).get().tolist() != x.get().tolist()


def test_a_cache_that_is_filled_anew_is_another_one(cp: Any) -> None:
    rate = Rate(2.0)
    scale = functools.lru_cache(maxsize=1)(lambda n: rate.value * n)
    graphed = ck.graphed(lambda x: x * scale(1))
    for _ in range(4):
        graphed(cp.ones(2))
    rate.value = 3.0
    scale.cache_clear()
    for _ in range(4):
        scale(1)  # as many hits and misses as before
    assert graphed(cp.ones(2)).get().tolist() == [3.0, 3.0]


@pytest.mark.parametrize('passed', [True, False])
def test_a_member_whose_value_is_set_anew(cp: Any, passed: bool) -> None:
    class Rate(enum.Enum):
        SLOW = 2.0

    graphed = ck.graphed((lambda x, rate: x * rate.value) if passed else (lambda x, rate=Rate.SLOW: x * rate.value))
    given = (Rate.SLOW,) if passed else ()
    for _ in range(3):
        assert graphed(cp.ones(1), *given).get().tolist() == [2.0]
    Rate.SLOW._value_ = 3.0  # type: ignore[misc]
    for _ in range(3):
        assert graphed(cp.ones(1), *given).get().tolist() == [3.0]


def test_a_context_variables_default_with_a_state_of_its_own(cp: Any) -> None:
    dice = [[random.Random(3)]]
    held = contextvars.ContextVar('dice', default=dice)
    graphed = ck.graphed(lambda x: x * held.get()[0][0].random())
    expected = random.Random(3)
    for _ in range(4):
        assert graphed(cp.ones(1)).get().tolist() == [expected.random()]


@pytest.mark.parametrize('kind', [lambda inner: {1.0, 7.0}, lambda inner: Row([inner]), lambda inner: [inner]])
def test_a_container_that_a_cache_gives_back(cp: Any, kind: Callable[[Any], Any]) -> None:
    inner = [2.0]
    found = kind(inner)
    cached = functools.lru_cache(None)(lambda: found)
    graphed = ck.graphed(lambda x: (x * 2, next(iter(cached())), cached()))
    for _ in range(4):
        _, first, given = graphed(cp.ones(1))
        assert given is found and first is next(iter(found))


@pytest.mark.parametrize('maxsize', [None, 3])
def test_the_contents_of_a_cache(maxsize: int | None) -> None:
    kept = functools.lru_cache(maxsize)(lambda n, **more: {'n': n})
    function = kept.__wrapped__
    assert contents_of(kept) == ('items', [], [function], None)
    answers = [kept(2), kept(1), kept(0, m=2)]
    found = contents_of(kept)
    assert found is not None and found[2][0] is function
    assert found[2][1:3] == [2, 1] and all(one is other for one, other in zip(found[2][4:], answers))
    kept(2)
    again = contents_of(kept)
    assert again is not None and (again[2] == found[2]) == (maxsize is None)  # the order in which they are dropped


def test_a_constant_may_be_asked_for_by_identity(cp: Any) -> None:
    modes = [Mode.FAST]

    def fn(parts: list[Any], mode: Any) -> Any:
        fast = modes[0] is Mode.FAST or mode is Ellipsis
        return parts[0] * (2 if fast else 3)

    graphed = ck.graphed(fn)
    for mode in (Mode.FAST, Mode.SLOW):
        modes[0] = mode
        for _ in range(3):
            assert graphed([cp.ones(1)], None).get().tolist() == [2.0 if mode is Mode.FAST else 3.0]
    assert [variant.launches for variant in graphed.variants] == [2, 2]


def test_a_container_asked_for_by_identity_is_not_recorded(cp: Any) -> None:
    wanted = (cp.ones(1),)
    graphed = ck.graphed(lambda parts: parts[0] * (2 if parts is wanted else 3))
    for _ in range(3):
        assert graphed(wanted).get().tolist() == [2.0]
        assert graphed((wanted[0] * 1,)).get().tolist() == [3.0]
    assert not any(variant.launches for variant in graphed.variants)


def test_what_is_filled_at_first_use_is_recorded_later(cp: Any) -> None:
    held = [Rate(2.0)]
    graphed = ck.graphed(lambda x: x * held[0].double)
    for value in (2.0, 3.0, 4.0):
        held[0] = Rate(value)
        for _ in range(3):
            assert graphed(cp.ones(1)).get().tolist() == [value * 2]
    assert [variant.state for variant in graphed.variants] == ['recorded'] * 3
