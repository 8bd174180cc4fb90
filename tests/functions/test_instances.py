"""Objects of library classes that take attributes: one of these may hide a method, and their class may change."""

from __future__ import annotations

import argparse
import collections
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


class Ordered(collections.OrderedDict[str, float]):
    pass


class Defaulting(collections.defaultdict[str, float]):
    pass


class Row(list[float]):
    pass


def hidden(self: Any, *args: Any) -> float:
    return 9.0


#: How an object is made, the method that the function calls, and what it gives it.
MADE: dict[str, tuple[Callable[[], Any], str, tuple[Any, ...]]] = {
    'Counter': (lambda: collections.Counter('aab'), 'get', ('a',)),
    'OrderedDict': (lambda: collections.OrderedDict(a=2), 'get', ('a',)),
    'Ordered': (lambda: Ordered(a=2), 'get', ('a',)),
    'Defaulting': (lambda: Defaulting(float, a=2), 'get', ('a',)),
    'UserDict': (lambda: collections.UserDict(a=2), 'get', ('a',)),
    'UserList': (lambda: collections.UserList('aab'), 'count', ('a',)),
    'Row': (lambda: Row([1.0, 1.0]), 'count', (1.0,)),
    'Namespace': (lambda: argparse.Namespace(a=2), '__contains__', ('a',)),
    'Event': (threading.Event, 'is_set', ()),
}


@pytest.mark.parametrize('name', MADE)
def test_a_method_that_an_instance_hides_is_seen(cp: Any, name: str) -> None:
    make, method, given = MADE[name]
    one = make()
    fn = ck.graphed(lambda x: x * getattr(one, method)(*given))
    first = float(getattr(one, method)(*given))
    for n in (None, 3.0, 5.0, None):
        if n is not None:
            setattr(one, method, lambda *_, n=n: n)
        elif method in vars(one):
            delattr(one, method)
        for _ in range(3):
            assert fn(cp.ones(2)).get().tolist() == [n or first] * 2
    assert {variant.state for variant in fn.variants} == {'recorded'}


def test_a_method_with_a_name_in_code_that_an_instance_hides(cp: Any) -> None:
    counter = collections.Counter('aab')
    fn = ck.graphed(lambda x: x * counter.most_common(1)[0][1])
    for _ in range(3):
        assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
    counter.most_common = lambda n: [('a', 7)]  # type: ignore[assignment, misc]
    for _ in range(3):
        assert fn(cp.ones(2)).get().tolist() == [7.0, 7.0]
    del counter.most_common
    assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
    assert {variant.state for variant in fn.variants} == {'recorded'}


class Other(collections.Counter[str]):
    def most_common(self, n: int | None = None) -> list[tuple[str, int]]:
        return [('b', 7)]


def test_another_class_of_an_instance_is_seen(cp: Any) -> None:
    counter = collections.Counter('aab')
    fn = ck.graphed(lambda x: x * counter.most_common(1)[0][1])
    for cls, most in ((collections.Counter, 2.0), (Other, 7.0), (collections.Counter, 2.0)):
        counter.__class__ = cls
        for _ in range(3):
            assert fn(cp.ones(2)).get().tolist() == [most] * 2
    assert {variant.state for variant in fn.variants} == {'recorded'}


@pytest.mark.parametrize('make', [lambda: collections.Counter('aab'), lambda: collections.OrderedDict(a=2)])
def test_attributes_of_an_argument_are_told_apart(cp: Any, make: Callable[[], Any]) -> None:
    def scaled(x: Any, one: Any) -> Any:
        return x * one.get('a') + getattr(one, 'shift', 0.0)

    fn = ck.graphed(scaled)
    for shift, method in [(None, None), (1.0, None), (2.0, None), (None, None), (None, 3.0), (None, 4.0)] * 3:
        one = make()
        if shift is not None:
            one.shift = shift
        if method is not None:
            one.get = types.MethodType(lambda self, key: 5.0, one) if method == 3.0 else hidden.__get__(one)
        assert fn(cp.ones(2), one).get().tolist() == scaled(cp.ones(2), one).get().tolist()
    assert any(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('make', [lambda: collections.Counter('aab'), lambda: collections.OrderedDict(a=2)])
def test_attributes_of_a_result_come_out_of_a_launch(cp: Any, make: Callable[[], Any]) -> None:
    def answer(x: Any) -> Any:
        one = make()
        one.scale, one.twice = 2.0, x * 2
        return one

    fn = ck.graphed(answer)
    for n in range(5):
        found = fn(cp.ones(2) * n)
        assert type(found) is type(make()) and found == make() and found.scale == 2.0
        assert found.twice.get().tolist() == [2.0 * n] * 2
    assert fn.variants[0].launches > 0


def test_an_attribute_that_a_run_sets_is_set_by_launches(cp: Any) -> None:
    counter: Any = collections.Counter('aab')

    def fills(x: Any) -> Any:
        counter.last = x * 2
        return x + 1

    fn = ck.graphed(fills)
    for n in range(5):
        fn(cp.ones(2) * n)
        assert counter.last.get().tolist() == [2.0 * n] * 2
    assert fn.variants[0].launches > 0


def test_a_result_keeps_what_makes_its_missing_values(cp: Any) -> None:
    fn = ck.graphed(lambda x: (x + 1, Defaulting(float, a=2.0)))
    for _ in range(4):
        found = fn(cp.ones(2))[1]
        assert found == {'a': 2.0} and found.default_factory is float
        assert found['b'] == 0.0
    assert fn.variants[0].launches > 0
