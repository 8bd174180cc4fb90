"""Equal numbers and texts that are not the same object, where code can tell them apart."""

from __future__ import annotations

import decimal
import enum
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

FIRST: Any = 1000
SECOND: Any = int('1000')
TEXT: Any = 'some text'
OTHER: Any = ''.join(['some ', 'text'])
NAN: Any = float('nan')


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Box:
    value = FIRST


BOX = Box()


def same(one: Any, other: Any) -> bool:
    return one is other


def same_but_first(one: Any, other: Any) -> bool:
    one = other if one is None else one
    return one is other


ASKS: dict[str, Callable[[Any, Any], Any]] = {
    'a global': lambda x, given: x * (2 if given is FIRST or given is TEXT else 3),
    'an attribute': lambda x, given: x * (2 if given is BOX.value or given is TEXT else 3),
    'a helper': lambda x, given: x * (2 if same(given, FIRST) or same(TEXT, given) else 3),
    'a helper that was called with arrays': lambda x, given: x * (2 if same(x, x) and same(given, FIRST) else 3),
    'a parameter that is given another value': lambda x, given: x * (2 if same_but_first(given, FIRST) else 3),
    'a function': lambda x, given: x * (2 if operator.is_(given, FIRST) or operator.is_(given, TEXT) else 3),
    'a function that is handed on': lambda x, given: x * (2 if any(map(operator.is_, [given], [FIRST])) else 3),
}


@pytest.mark.parametrize('name', ASKS)
def test_an_equal_argument_is_another_object(cp: Any, name: str) -> None:
    fn = ASKS[name]
    graphed, x = ck.graphed(fn), cp.ones(2)
    for given in (FIRST, FIRST, FIRST, SECOND, SECOND, SECOND, FIRST, TEXT, TEXT, TEXT, OTHER, OTHER):
        assert graphed(x, given).get().tolist() == fn(x, given).get().tolist()
    assert 'asks whether two objects are the same, and a number or a text is' in graphed.variants[0].reason


def test_arrays_members_and_classes_are_asked_for_by_identity(cp: Any) -> None:
    """They are no reason to tell equal numbers apart."""

    def fn(x: Any, y: Any, rate: float, mode: Any) -> Any:
        if y is x or type(rate) is int or mode is Mode.SLOW:
            return x * rate
        return (x + y) * rate

    graphed, x, y = ck.graphed(fn), cp.ones(2), cp.ones(2)
    for mode in (Mode.FAST, Mode.SLOW):
        for other in (x, y):
            for rate in (float('0.5'), float('0.5'), float('0.5')):
                wanted = fn(x, other, rate, mode)  # first: the first product of a process fills a cache of CuPy's
                assert graphed(x, other, rate, mode).get().tolist() == wanted.get().tolist()
    assert [variant.launches for variant in graphed.variants] == [2] * 4


LOOKS: dict[str, Callable[[Any], bool]] = {
    'in a list': lambda given: given in [NAN],
    'in a dict': lambda given: given in {NAN: 1},
    'two lists': lambda given: [given] == [NAN],
    'a count': lambda given: [1.0, NAN].count(given) == 1,
    'a set': lambda given: len({given, NAN}) == 1,
}


@pytest.mark.parametrize('name', LOOKS)
@pytest.mark.parametrize('place', ['argument', 'in a list', 'global', 'attribute'])
def test_another_nan_is_not_found(cp: Any, name: str, place: str) -> None:
    global GIVEN
    looks, holder = LOOKS[name], Box()
    fns: dict[str, Callable[[Any, Any], Any]] = {
        'argument': lambda x, given: x * (2 if looks(given) else 3),
        'in a list': lambda x, given: x * (2 if looks(given[0]) else 3),
        'global': lambda x, _given: x * (2 if looks(GIVEN) else 3),
        'attribute': lambda x, _given: x * (2 if looks(holder.value) else 3),
    }
    graphed, x, other = ck.graphed(fns[place]), cp.ones(2), float('nan')
    for given in (NAN, NAN, NAN, other, other, other, NAN):
        GIVEN = holder.value = given
        argument = {'argument': given, 'in a list': [given]}.get(place)
        assert graphed(x, argument).get().tolist() == [2.0 if given is NAN else 3.0] * 2
    on_a_gpu = hasattr(cp, '__file__')  # there a first run may be forgiven, and one call more runs eagerly
    assert sum(variant.launches for variant in graphed.variants) in ((4, 5) if on_a_gpu else (5,))


GIVEN: Any = None


@pytest.mark.parametrize('kind', [complex, decimal.Decimal, np.float32, lambda text: np.datetime64('NaT', 's')])
def test_another_nan_of_another_type(cp: Any, kind: Callable[[str], Any]) -> None:
    one, other = kind('nan'), kind('nan')
    graphed, x = ck.graphed(lambda x, given: x * (2 if given in [one] else 3)), cp.ones(2)
    assert (x * 2).get().tolist() == [2.0, 2.0]  # a first run that compiles would run eagerly once more
    for given in (one, one, one, other, other, other, one):
        assert graphed(x, given).get().tolist() == [2.0 if given is one else 3.0] * 2
    assert sum(variant.launches for variant in graphed.variants) == 5


def test_a_nan_that_the_function_makes_is_returned(cp: Any) -> None:
    graphed = ck.graphed(lambda x: (x * 2, float('nan')))
    cp.ones(2) * 2  # the first product of a process fills a cache of CuPy's
    for _ in range(3):
        _, found = graphed(cp.ones(2))
        assert found != found
    assert [variant.launches for variant in graphed.variants] == [2]
