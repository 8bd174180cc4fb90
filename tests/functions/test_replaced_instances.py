"""Containers that take attributes in the place of others that hold the same; and attributes that only the user sets."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


class Row(list[float]):
    pass


class Table(dict[str, float]):
    pass


class Point(collections.namedtuple('Point', 'x y')):
    pass


class Sloped(list[float]):
    __slots__ = ('scale',)


MADE: dict[str, Callable[[], Any]] = {
    'list': lambda: Row([1.0]),
    'dict': lambda: Table(a=1.0),
    'tuple': lambda: Point(1.0, 2.0),
    'slots': lambda: Sloped([1.0]),
    'Counter': lambda: collections.Counter('a'),
    'OrderedDict': lambda: collections.OrderedDict(a=1.0),
    'partial': lambda: functools.partial(max, 1.0),
}


@pytest.mark.parametrize('inside', [False, True])
@pytest.mark.parametrize('name', MADE)
def test_an_equal_one_with_other_attributes_is_seen(cp: Any, name: str, inside: bool) -> None:
    held: dict[str, Any] = {}
    fn = ck.graphed(lambda x: x * (held['all'][0] if inside else held['one']).scale)
    for scale in (2.0, 5.0, 2.0):
        one = MADE[name]()
        one.scale = scale
        held.update({'all': [one], 'one': one})
        for _ in range(3):
            assert fn(cp.ones(2)).get().tolist() == [scale] * 2
    assert {variant.state for variant in fn.variants} == {'recorded'}


@pytest.mark.parametrize('name', MADE)
def test_an_equal_one_is_asked_for_attributes_that_it_gets_later(cp: Any, name: str) -> None:
    held = {'one': MADE[name](), 'two': MADE[name]()}
    fn = ck.graphed(lambda x: x * getattr(held['one'], 'scale', 3.0) + getattr(held['two'], 'scale', 0.0))

    def gives(value: float) -> None:
        for _ in range(3):
            assert fn(cp.ones(2)).get().tolist() == [value] * 2

    gives(3.0)
    held['one'] = held['two'] = MADE[name]()
    gives(3.0)
    held['one'] = MADE[name]()
    gives(3.0)
    held['one'].scale = 5.0
    gives(5.0)
    held['two'].scale = 1.0
    gives(6.0)
    held['two'] = MADE[name]()
    gives(5.0)
    assert {variant.state for variant in fn.variants} == {'recorded'}


@pytest.mark.parametrize('name', ['list', 'dict', 'tuple', 'Counter', 'OrderedDict', 'partial'])
def test_an_equal_one_without_attributes_is_the_same(cp: Any, name: str) -> None:
    held = {'one': MADE[name]()}
    fn = ck.graphed(lambda x: x * len([held['one']]))
    for _ in range(5):
        held['one'] = MADE[name]()
        fn(cp.ones(2))
    assert len(fn.variants) == 1 and fn.variants[0].launches > 0


def test_an_array_in_a_container_and_in_the_result_is_the_same(cp: Any) -> None:
    holder: Any = Row([1.0])
    holder.made = collections.Counter('a')

    def keeps(x: Any) -> Any:
        made: Any = collections.Counter('a')
        made.first = x * 2
        holder.made = made
        return made.first

    fn = ck.graphed(keeps)
    for _ in range(5):
        assert fn(cp.ones(2)) is holder.made.first


# -- attributes of objects of classes that are not the user's -------------------------------------------------------


def asks(of: Any) -> float:
    try:
        return float(of.scale)
    except AttributeError:
        return 3.0


def matches(of: Any) -> float:
    match of:
        case object(scale=found):
            return float(found)
        case _:
            return 3.0


def sums(of: Any) -> float:
    return 3.0 + sum(value for value in vars(of).values() if isinstance(value, float))


FOREIGN: dict[str, Callable[[Any], Any]] = {
    'OrderedDict': lambda cp: collections.OrderedDict(a=1.0),
    'static method': lambda cp: staticmethod(max),
    'dispatching function': lambda cp: functools.singledispatch(max),
    'stream': lambda cp: cp.cuda.Stream(non_blocking=True),
    'event': lambda cp: cp.cuda.Event(),
    'vectorized': lambda cp: cp.vectorize(lambda a: a),
    'polynomial': lambda cp: np.polynomial.Polynomial([1.0]),
}


@pytest.mark.parametrize('ask', [asks, matches, sums])
@pytest.mark.parametrize('name', FOREIGN)
def test_attributes_that_the_user_puts_onto_it_are_seen(cp: Any, name: str, ask: Callable[[Any], float]) -> None:
    of = FOREIGN[name](cp)
    fn = ck.graphed(lambda x: x * ask(of))
    for scale in (None, 5.0, 6.0, None):
        if scale is not None:
            of.scale = scale
        elif 'scale' in vars(of):
            del of.scale
        for _ in range(3):
            assert fn(cp.ones(2)).get().tolist() == [ask(of)] * 2
    assert sum(variant.launches for variant in fn.variants) > 0
