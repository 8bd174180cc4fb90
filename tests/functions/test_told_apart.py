"""What is told apart at each call although it looks alike: equal numbers, settings, and names inside of libraries."""

from __future__ import annotations

import collections
import decimal
import heapq
import statistics
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


def twice(fn: Callable[[Any], Any], x: Any) -> list[float]:
    return [float(fn(x)[0]) for _ in range(2)]


# -- Equal, and not the same ------------------------------------------------------------------------------------------

FIRST, SECOND = 1.5, float('1.5')
HELD: Any = FIRST
IN_LIST: list[Any] = [FIRST]


@pytest.mark.parametrize('place', ['global', 'list'])
def test_an_equal_number_is_another_one_for_code_that_asks(cp: Any, place: str) -> None:
    global HELD

    def of_global(x: Any) -> Any:
        return x * 2 if HELD is FIRST else x * 3

    def of_list(x: Any) -> Any:
        return x * 2 if IN_LIST[0] is FIRST else x * 3

    fn = ck.graphed(of_global if place == 'global' else of_list)
    x = cp.ones(2)
    try:
        for held, result in ((FIRST, 2.0), (FIRST, 2.0), (SECOND, 3.0), (SECOND, 3.0), (FIRST, 2.0)):
            HELD = IN_LIST[0] = held
            assert twice(fn, x) == [result] * 2
        assert sum(variant.launches for variant in fn.variants) > 0
    finally:
        HELD = IN_LIST[0] = FIRST


def test_an_equal_number_is_the_same_for_code_that_does_not_ask(cp: Any) -> None:
    global HELD
    fn = ck.graphed(lambda x: x * HELD)
    x = cp.ones(2)
    try:
        for held in (FIRST, SECOND, FIRST, SECOND):
            HELD = held
            assert twice(fn, x) == [1.5] * 2
        assert [variant.launches for variant in fn.variants] == [7]
    finally:
        HELD = FIRST


class LikeAnArray:
    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__cuda_array_interface__


def test_an_argument_that_shows_an_array_has_no_shape_of_its_own(cp: Any) -> None:
    fn = ck.graphed(lambda x, other: x + cp.asarray(other))
    for number in range(3):
        assert fn(cp.ones(2), LikeAnArray(cp.full(2, float(number)))).get().tolist() == [number + 1.0] * 2


# -- Settings ---------------------------------------------------------------------------------------------------------


def test_decimal_numbers_leave_their_flags(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * float(decimal.Decimal(1) / 3))
    x = cp.ones(2)
    with decimal.localcontext() as context:
        for clears in (True, True, True, False, False, False, True):
            if clears:
                context.clear_flags()
            fn(x)
            assert context.flags[decimal.Inexact]
    assert sum(variant.launches for variant in fn.variants) > 0


@pytest.mark.parametrize('text', [str, repr, '{}'.format])
def test_an_array_of_cupys_is_printed_by_numpys_options(cp: Any, text: Callable[[Any], str]) -> None:
    def fn(x: Any) -> Any:
        return x * 0 + len(text(x))

    graphed, x = ck.graphed(fn), cp.full(4, 1.2345678)
    for precision in (8, 8, 8, 2, 2, 8):
        with np.printoptions(precision=precision):
            assert twice(graphed, x) == twice(fn, x)


def test_cupyxs_handling_of_errors_is_compared(cp: Any) -> None:
    cupyx = sys.modules['cupyx']
    fn = ck.graphed(lambda x: x * (2 if cupyx.geterr()['linalg'] == 'raise' else 3))
    x = cp.ones(2)
    for treated, result in ((None, 3.0), (None, 3.0), ('raise', 2.0), ('raise', 2.0), (None, 3.0)):
        with cupyx.errstate(linalg=treated):
            assert twice(fn, x) == [result] * 2
    assert sum(variant.launches for variant in fn.variants) > 0


# -- Names inside of libraries ----------------------------------------------------------------------------------------


def mean(x: Any) -> Any:
    return x * statistics.mean([1.0, 3.0])


def smallest(x: Any) -> Any:
    return x * heapq.nsmallest(1, [3.0, 2.0])[0]


def count(x: Any) -> Any:
    return x * collections.Counter('aab').most_common(1)[0][1]


@pytest.mark.parametrize(
    ('fn', 'holder', 'name', 'other', 'results'),
    [
        (mean, statistics, '_sum', lambda data: (float, 80, len(list(data))), (2.0, 40.0)),
        (smallest, heapq, 'min', lambda *values, **how: 9.0, (2.0, 9.0)),
        (count, collections.Counter, 'most_common', lambda self, many: [('a', 7)], (2.0, 7.0)),
    ],
)
def test_what_pythons_own_code_calls_and_is_replaced_is_seen(
    cp: Any, monkeypatch: pytest.MonkeyPatch, fn: Any, holder: Any, name: str, other: Any, results: tuple[float, float]
) -> None:
    graphed = ck.graphed(fn)
    x = cp.ones(2)
    for _ in range(2):
        assert twice(graphed, x) == [results[0]] * 2
    with monkeypatch.context() as patched:
        patched.setattr(holder, name, other, raising=False)
        assert twice(graphed, x) == [results[1]] * 2
    assert twice(graphed, x) == [results[0]] * 2
    assert max(variant.launches for variant in graphed.variants) > 2


def changed_for_a_while(
    cp: Any, monkeypatch: pytest.MonkeyPatch, fn: Callable[[Any], Any], change: tuple[Any, str, Any]
) -> None:
    """Launches see a change, and that it is taken back, as the plain function does."""
    graphed, x = ck.graphed(fn), cp.ones(2)
    before = twice(fn, x)
    assert twice(graphed, x) == before
    with monkeypatch.context() as patched:
        patched.setattr(*change)
        assert twice(graphed, x) == twice(fn, x) != before
    for _ in range(2):
        assert twice(graphed, x) == before
    assert sum(variant.launches for variant in graphed.variants) >= 3, graphed.variants[-1].reason


class Slotted:
    __slots__ = ('rate',)


def test_a_slot_that_is_replaced_in_its_class_is_seen(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Slotted()
    thing.rate = 2.0
    changed_for_a_while(cp, monkeypatch, lambda x: x * thing.rate, (Slotted, 'rate', 9.0))


class WithoutAttributes:
    __slots__ = ()
    rate = 2.0


@pytest.mark.parametrize('cls', [WithoutAttributes, type('Derived', (int,), {'__slots__': (), 'rate': 2.0})])
def test_the_class_of_an_object_without_attributes_is_compared(
    cp: Any, monkeypatch: pytest.MonkeyPatch, cls: Any
) -> None:
    thing = cls()
    changed_for_a_while(cp, monkeypatch, lambda x: x * thing.rate, (cls, 'rate', 5.0))


class OwnModule(types.ModuleType):
    __slots__ = ('slow',)
    rate = 2.0


@pytest.mark.parametrize(
    'change',
    [(OwnModule, 'rate', 5.0), (OwnModule, '__getattribute__', lambda self, name: 5.0), ('module', 'slow', 5.0)],
)
def test_the_class_of_a_module_is_compared(cp: Any, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    module: Any = OwnModule('own')
    module.slow = 1.0
    holder = module if change[0] == 'module' else change[0]
    changed_for_a_while(cp, monkeypatch, lambda x: x * module.rate * module.slow, (holder, *change[1:]))


class Settings:
    rates = (2.0,)


class Holding:
    settings = staticmethod(Settings)


def test_a_class_in_a_static_method_is_compared(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changed_for_a_while(cp, monkeypatch, lambda x: x * Holding.settings.rates[0], (Settings, 'rates', (5.0,)))
