"""Equal containers count as those that were read only if they are one object, or share memory, in the same places.

Each function changes a container, reads it by another name, and changes it back. Between calls, names that led to one
container come to lead to two equal ones, or the other way round.
"""

from __future__ import annotations

import array
import collections
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.sharing import extent_of, layout

#: A function of an array, and changes between its calls.
Made = tuple[Callable[[Any], Any], list[Callable[[], Any]]]


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


def answers(function: Any, changes: list[Callable[[], Any]], x: Any) -> list[float]:
    """What four calls give, and three after each change."""
    found = [float(function(x)[0]) for _ in range(4)]
    for change in changes:
        change()
        found += [float(function(x)[0]) for _ in range(3)]
    return found


def compared(make: Callable[[], Made], cp: Any) -> list[float]:
    """Compare plain and graphed calls, each with a world of its own. The graphed ones have to launch."""
    x = cp.ones(1)
    plainly = answers(*make(), x)
    function, changes = make()
    fn = ck.graphed(function)
    assert answers(fn, changes, x) == plainly
    assert sum(variant.launches for variant in fn.variants) > 3
    return plainly


class Held(NamedTuple):
    """A container: how one is made, changed, read and changed back; and how an equal one is made of it."""

    make: Callable[[], Any]
    change: Callable[[Any], Any]
    read: Callable[[Any], Any]
    back: Callable[[Any], Any]
    equal: Callable[[Any], Any]


class Row(list[float]):
    pass


class Pair(tuple[float, ...]):
    pass


def _put(key: Any, item: Any) -> Callable[[Any], Any]:
    return lambda values: values.__setitem__(key, item)


def _named(values: Any) -> Any:
    values.name = 5.0


def _unnamed(values: Any) -> Any:
    del values.name


def _name(values: Any) -> Any:
    return getattr(values, 'name', 2.0)


CONTAINERS = {
    'a list': Held(lambda: [1], lambda one: one.append(2), len, lambda one: one.pop(), list),
    'a dict': Held(lambda: {'a': 1}, _put('b', 2), len, lambda one: one.popitem(), dict),
    'an ordered dict': Held(
        lambda: collections.OrderedDict(a=1), _put('b', 2), len, lambda one: one.popitem(), collections.OrderedDict
    ),
    'a counter': Held(
        lambda: collections.Counter(a=1), _put('a', 2), lambda one: one['a'], _put('a', 1), collections.Counter
    ),
    'a set': Held(lambda: {1}, lambda one: one.add(2), len, lambda one: one.discard(2), set),
    'a deque': Held(
        lambda: collections.deque([1]), lambda one: one.append(2), len, lambda one: one.pop(), collections.deque
    ),
    'a bytearray': Held(lambda: bytearray(b'a'), lambda one: one.append(2), len, lambda one: one.pop(), bytearray),
    'an array of numbers': Held(
        lambda: array.array('d', [1]), lambda one: one.append(2), len, lambda one: one.pop(), lambda one: one[:]
    ),
    'an array of NumPy': Held(lambda: np.ones(2), _put(0, 7.0), np.sum, _put(0, 1.0), np.copy),
    'a list in a tuple': Held(
        lambda: ([1],), lambda one: one[0].append(2), lambda one: len(one[0]), lambda one: one[0].pop(),
        lambda one: ([*one[0]],),
    ),
    'a list in an array of objects': Held(
        lambda: np.array([1, [1]], dtype=object),
        lambda one: one[1].append(2), lambda one: len(one[1]), lambda one: one[1].pop(),
        lambda one: np.array([1, [*one[1]]], dtype=object),
    ),
    'a derived list': Held(lambda: Row([1]), lambda one: one.append(2), len, lambda one: one.pop(), Row),
    'the attributes of a derived tuple': Held(lambda: Pair([1]), _named, _name, _unnamed, Pair),
    'the attributes of a partial': Held(
        lambda: functools.partial(len, [1]), _named, _name, _unnamed, lambda one: functools.partial(one.func, *one.args)
    ),
}  # fmt: skip


def _two_names(held: Held, joined: bool) -> Made:
    here = types.SimpleNamespace()
    here.a = held.make()
    here.b = here.a if joined else held.equal(here.a)

    def function(x: Any) -> Any:
        held.change(here.a)
        y = x * float(held.read(here.b))
        held.back(here.a)
        return y

    def split() -> None:
        here.b = held.equal(here.a)

    def join() -> None:
        here.b = here.a

    def new_and_joined() -> None:
        here.a = here.b = held.equal(here.a)

    def new_and_split() -> None:
        here.a, here.b = held.equal(here.a), held.equal(here.a)

    changes = [split, join, new_and_joined, new_and_split]
    return function, changes if joined else [join, split, new_and_split, new_and_joined]


@pytest.mark.parametrize('joined', [True, False], ids=['one at first', 'two at first'])
@pytest.mark.parametrize('held', CONTAINERS.values(), ids=CONTAINERS)
def test_two_names_that_come_to_lead_to_one_container_or_to_two(cp: Any, held: Held, joined: bool) -> None:
    assert len(set(compared(lambda: _two_names(held, joined), cp))) == 2


def views_of_an_array() -> Made:
    base = np.ones(6)
    here = types.SimpleNamespace(a=base[:3], b=base[1:4])

    def function(x: Any) -> Any:
        here.a[2] = 9.0
        y = x * float(here.b[0]) + float(here.b.sum())
        here.a[2] = 1.0
        return y

    def at(view: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: setattr(here, 'b', view())

    return function, [at(lambda: np.ones(3)), at(lambda: base[2:5]), at(lambda: base[3:6]), at(lambda: base[1:4])]


def an_array_that_gets_another_memory() -> Made:
    base = np.ones(6)
    here = types.SimpleNamespace(a=base, b=base[:3])

    def function(x: Any) -> Any:
        here.a[2] = 9.0
        y = x * float(here.b.sum())
        here.a[2] = 1.0
        return y

    return function, [lambda: here.b.__setstate__(np.ones(3).__reduce__()[2])]


def a_view_of_bytes() -> Made:
    whole = bytearray(b'aaaaaa')
    here = types.SimpleNamespace(a=whole, b=memoryview(whole)[1:3])

    def function(x: Any) -> Any:
        here.a[2] = 9
        y = x * float(here.b[0] * 1000 + here.b[1])
        here.a[2] = 97
        return y

    def at(view: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: setattr(here, 'b', view())

    other = bytearray(whole)
    return function, [
        at(lambda: memoryview(other)[1:3]),
        at(lambda: memoryview(whole)[2:4]),
        at(lambda: memoryview(whole)[1:3]),
    ]


def an_array_over_bytes() -> Made:
    whole = bytearray(b'aaaaaa')
    here = types.SimpleNamespace(a=whole, b=np.frombuffer(whole, np.uint8))

    def function(x: Any) -> Any:
        here.a[2] = 9
        y = x * float(here.b.sum())
        here.a[2] = 97
        return y

    return function, [lambda: setattr(here, 'b', np.frombuffer(bytearray(whole), np.uint8))]


def the_values_of_a_dict() -> Made:
    values = {'a': 1.0}
    here = types.SimpleNamespace(a=values, b=values.values())

    def function(x: Any) -> Any:
        here.a['b'] = 5.0
        y = x * sum(here.b)
        del here.a['b']
        return y

    return function, [lambda: setattr(here, 'b', {'a': 1.0}.values()), lambda: setattr(here, 'b', values.values())]


class Layer:
    pass


def attributes_of_two_objects() -> Made:
    one: Any = Layer()
    other: Any = Layer()
    one.rate = 1.0
    other.__dict__ = one.__dict__

    def function(x: Any) -> Any:
        one.rate = 5.0
        y = x * other.rate
        one.rate = 1.0
        return y

    return function, [
        lambda: setattr(other, '__dict__', {'rate': 1.0}),
        lambda: setattr(other, '__dict__', one.__dict__),
    ]


def attributes_as_a_dict() -> Made:
    one: Any = Layer()
    one.rate = 1.0
    here = types.SimpleNamespace(d=one.__dict__)

    def function(x: Any) -> Any:
        one.rate = 5.0
        y = x * here.d['rate']
        one.rate = 1.0
        return y

    return function, [lambda: setattr(here, 'd', {'rate': 1.0}), lambda: setattr(here, 'd', one.__dict__)]


def a_default() -> Made:
    here = types.SimpleNamespace(a=[1.0])

    def count(values: list[float] = here.a) -> int:
        return len(values)

    def function(x: Any) -> Any:
        here.a.append(1.0)
        y = x * count()
        here.a.pop()
        return y

    def split() -> None:
        count.__defaults__ = ([1.0],)

    def join() -> None:
        count.__defaults__ = (here.a,)

    return function, [split, join]


def variables_of_a_closure() -> Made:
    one = [1.0]
    other = one

    def function(x: Any) -> Any:
        one.append(1.0)
        y = x * len(other)
        one.pop()
        return y

    def split() -> None:
        nonlocal other
        other = [1.0]

    def join() -> None:
        nonlocal other
        other = one

    return function, [split, join]


SHARED = [
    views_of_an_array, an_array_that_gets_another_memory, a_view_of_bytes, an_array_over_bytes, the_values_of_a_dict,
    attributes_of_two_objects, attributes_as_a_dict, a_default, variables_of_a_closure,
]  # fmt: skip


@pytest.mark.parametrize('make', SHARED, ids=lambda make: make.__name__)
def test_what_is_shared_otherwise_is_compared(cp: Any, make: Callable[[], Made]) -> None:
    assert len(set(compared(make, cp))) > 1


def test_equal_ones_that_are_shared_alike_are_the_same(cp: Any) -> None:
    here = types.SimpleNamespace(a=[1.0], b=[2.0])
    fn = ck.graphed(lambda x: x * len(here.a) + here.b[0])
    x = cp.ones(1)
    for _ in range(4):
        fn(x)
        here.a, here.b = [*here.a], [*here.b]
    assert len(fn.variants) == 1
    assert fn.variants[0].launches == 3


def test_what_is_shared_is_said(cp: Any) -> None:
    here = types.SimpleNamespace(a=[1.0])
    here.b = here.a
    fn = ck.graphed(lambda x: x * (len(here.a) + len(here.b)))
    x = cp.ones(1)
    for _ in range(3):
        fn(x)
    here.b = [1.0]
    environment = fn.variants[0].environment
    assert environment is not None
    assert environment.changed() == 'two names lead to two list objects now, and led to one when recorded'
    here.a = here.b
    assert environment.changed() is None


def test_the_layout_of_memory() -> None:
    assert layout([(0, 8), (8, 16), (5, 5)]) == [None, None, None]
    assert layout([(16, 32), (100, 108), (24, 40), (36, 44)]) == [(0, (0, 16)), None, (0, (8, 24)), (0, (20, 28))]
    moved = [(1016, 1032), (0, 8), (1024, 1040), (1036, 1044)]
    assert layout(moved) == layout([(16, 32), (100, 108), (24, 40), (36, 44)])


def test_where_the_memory_of_objects_lies() -> None:
    whole = bytearray(24)
    view = memoryview(whole)
    low, high = extent_of(whole)
    assert high - low == 24
    assert extent_of(view[8:]) == (low + 8, high)
    assert extent_of(np.frombuffer(whole, np.uint8)[::-1]) == (low, high)
    numbers = array.array('d', [1.0, 2.0])
    assert extent_of(numbers) == extent_of(memoryview(numbers))
    view.release()
    assert extent_of(view) == extent_of(bytearray()) == (0, 0)
