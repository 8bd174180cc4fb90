"""Results that are objects which the function makes, around objects that were there before the call."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


class Plain:
    def __init__(self, first: Any) -> None:
        self.first = first


class Slots:
    __slots__ = ('first',)

    def __init__(self, first: Any) -> None:
        self.first = first


@dataclasses.dataclass
class Equal:
    first: Any


@dataclasses.dataclass(eq=False)
class Unequal:
    first: Any


Pair = collections.namedtuple('Pair', 'first second')

NUMBERS = [1, 2]
THING = Plain([2, 3])
NAMED = {'thing': Plain(1), 'list': [4, 5], 'pair': (1, [2])}


@functools.lru_cache
def cached(key: int) -> Any:
    return [key], Plain(key)


def _default(x: Any, first: Any = [1]) -> Any:  # noqa: B006
    return Slots(first)


def first_is_the_same(fn: Callable[[Any], Any], argument: Any) -> list[Any]:
    """Call the function plainly once and graphed three times; return the objects that the results hold first."""
    graphed = ck.graphed(fn)
    return [fn(argument).first, *(graphed(argument).first for _ in range(3))]


@pytest.mark.parametrize('make', [Plain, Slots, Equal, Unequal, lambda value: Pair(value, 1)])
@pytest.mark.parametrize('argument', [[1, 2], {'a': 1}, {1}, Plain(3), Slots(3), Equal(3), Unequal([3])])
def test_an_argument_in_a_new_object_is_the_argument(sim: Any, make: Any, argument: Any) -> None:
    assert all(first is argument for first in first_is_the_same(lambda x: make(x), argument))


WITH_WHAT_WAS_THERE: list[Callable[[Any], Any]] = [
    lambda x: Plain(NUMBERS),
    lambda x: Slots(NUMBERS),
    lambda x: Plain(THING),
    lambda x: Plain(THING.first),
    lambda x: Equal(NAMED['list']),
    lambda x: Unequal(NAMED.get('thing')),
    lambda x: Slots(NAMED['pair'][1]),
    lambda x: Plain(cached(1)[0]),
    lambda x: Plain(cached(1)[1]),
    lambda x: types.SimpleNamespace(first=NUMBERS, second=THING),
    lambda x: dataclasses.replace(Equal(1), first=NUMBERS),
    lambda x: Pair(THING, NUMBERS),
    _default,
]


@pytest.mark.parametrize('number', range(len(WITH_WHAT_WAS_THERE)))
def test_what_was_there_before_the_call_is_that(sim: Any, number: int) -> None:
    x = sim.ones(2)
    expected, *firsts = first_is_the_same(WITH_WHAT_WAS_THERE[number], x)
    assert all(first is expected for first in firsts)


def test_deeper_inside(sim: Any) -> None:
    x = sim.ones(2)
    fn = ck.graphed(lambda x: [Plain({'a': Slots(THING), 'b': (x * 2,)})])
    for _ in range(3):
        (outer,) = fn(x)
        assert outer.first['a'].first is THING
        assert outer.first['b'][0].get().tolist() == [2.0, 2.0]
    assert [variant.state for variant in fn.variants] == ['recorded']


def test_a_new_object_around_another_is_recorded(sim: Any) -> None:
    fn = ck.graphed(lambda x, thing: Plain(thing))
    thing = Plain(3)
    outer = [fn(sim.ones(2), thing) for _ in range(3)]
    assert all(one.first is thing for one in outer)
    assert len({id(one) for one in outer}) == 3
    assert [(variant.state, variant.launches) for variant in fn.variants] == [('recorded', 2)]
    other = Plain(3)
    assert fn(sim.ones(2), other).first is other


def test_a_list_in_a_new_object_keeps_the_call_eager(sim: Any) -> None:
    fn = ck.graphed(lambda x: Plain(NUMBERS))
    for _ in range(3):
        fn(sim.ones(2))
    assert [variant.reason for variant in fn.variants] == [
        'the result is or holds a list object that is not made by the function'
    ]


@pytest.mark.parametrize('made', [lambda y: (y, 1), lambda y: frozenset([y.dtype]), lambda y: Pair(y, 2)])
def test_a_container_that_the_result_holds_twice_is_one(sim: Any, made: Callable[[Any], Any]) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        one = made(x * 2)
        return one, [one]

    for _ in range(4):
        first, (second,) = fn(sim.ones(2))
        assert first is second
    assert 'twice' in fn.variants[0].reason


def test_a_result_that_holds_itself(sim: Any) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        found: list[Any] = [x * 2]
        found.append(found)
        return found

    for _ in range(4):
        result = fn(sim.ones(2))
        assert result[1] is result
        assert result[0].get().tolist() == [2.0, 2.0]
    assert 'holds itself' in fn.variants[0].reason


def test_a_method_of_an_equal_dict_is_another_one(cp: Any) -> None:
    get = {'first': 2.0}.get
    fn = ck.graphed(lambda x: (x * get('first'), get))
    for number in range(8):
        if number == 4:
            get = {'first': 2.0}.get
        result, given = fn(cp.ones(3))
        assert given is get and result.get().tolist() == [2.0] * 3
    assert 'a method of a dict' in fn.variants[0].reason


def test_functions_written_in_c_may_be_given_back(cp: Any) -> None:
    fn = ck.graphed(lambda x: (x * len('ab'), len, abs))
    for _ in range(4):
        assert fn(cp.ones(3))[1:] == (len, abs)
    assert fn.variants[0].launches == 3
