"""Sets whose members are seen: those of texts and numbers have the same order at each call, whatever else it makes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck

told = pytest.mark.skipif(sys.version_info < (3, 12), reason='calls are told of from Python 3.12 on')


class Part:
    def __init__(self, rate: float) -> None:
        self.rate = rate


class Named:
    """Keeps a set in an attribute."""

    def __init__(self, names: Any = ()) -> None:
        self.found: set[Any] = set()
        for name in names:
            self.found.add(name)


GIVEN = [Part(2.0), Part(3.0)]


def product(x: Any, members: Any) -> Any:
    for member in members:
        x = x * (member.rate if isinstance(member, Part) else len(str(member)))
    return x


def pair() -> list[Part]:
    return [Part(2.0), Part(3.0)]


def parts() -> Iterator[Part]:
    yield from pair()


def later_in_an_attribute(x: Any) -> Any:
    named = Named()
    named.found.update(pair())
    return product(x, named.found)


def by_a_bound_method(x: Any) -> Any:
    named = Named()
    add = named.found.add
    for part in pair():
        add(part)
    return product(x, named.found)


def by_a_map(x: Any) -> Any:
    named = Named()
    for _ in map(named.found.add, pair()):
        pass
    return product(x, named.found)


def by_a_computed_name(x: Any) -> Any:
    named = Named()
    for part in pair():
        getattr(named.found, 'add')(part)  # noqa: B009
    return product(x, named.found)


def by_its_class(x: Any) -> Any:
    named = Named()
    for part in pair():
        set.add(named.found, part)
    return product(x, named.found)


def by_several_arguments(x: Any) -> Any:
    named = Named()
    named.found.update(['a'], *[pair()])
    return product(x, named.found)


def sometimes(x: Any) -> Any:
    for members in (['a', 'b'], pair(), ['c']):
        x = product(x, set(members))
    return x


def two_generators(x: Any) -> Any:
    for members in (['a', 'b'], pair()):
        x = product(x, set(member for member in members))  # noqa: C401
    return x


ANOTHER = set


def by_another_name(x: Any) -> Any:
    return product(x, ANOTHER(pair()))


def by_a_default(x: Any) -> Any:
    made: Any = lambda members, kind=set: kind(members)  # noqa: E731
    return product(x, made(pair()))


SETTLED: dict[str, Callable[[Any], Any]] = {
    'a text': lambda x: product(x * Part(2.0).rate, set('abc')),
    'a list of texts': lambda x: product(x * Part(2.0).rate, set(['ab', 'c'])),  # noqa: C405
    'a frozen set of tuples': lambda x: product(x * Part(2.0).rate, frozenset([('a', 1), ('b', 2)])),
    'answers of an expression': lambda x: x * Part(2.0).rate * set(isinstance(n, int) for n in (1, 2)).pop(),  # noqa: C401
    'an expression with a closure': lambda x: x * Part(2.0).rate * len(set(x.ndim * n for n in (1, 2)).copy()),  # noqa: C401
    'in an attribute': lambda x: product(x * Part(2.0).rate, Named(('a', 'bc')).found),
    'objects that were there': lambda x: product(x * Part(1.0).rate, set(GIVEN)),
    'keys of a dict': lambda x: product(x * Part(2.0).rate, set({'a': 1, 'bc': 2}.keys())),
    'another set': lambda x: product(x * Part(2.0).rate, frozenset(set('ab'))),
}
UNSETTLED: dict[str, Callable[[Any], Any]] = {
    'a list': lambda x: product(x, set(pair())),
    'a tuple of tuples': lambda x: x * next(iter(set(((Part(2.0), 1), (Part(2.0), 1)))))[0].rate,  # noqa: C405
    'an expression': lambda x: product(x, set(part for part in pair())),  # noqa: C401
    'a generator': lambda x: product(x, set(parts())),
    'an iterator': lambda x: product(x, set(iter(pair()))),
    'a map': lambda x: product(x, frozenset(map(Part, (2.0, 3.0)))),
    'in an attribute': lambda x: product(x, Named(pair()).found),
    'a class that is handed on': lambda x: product(x, next(map(set, [pair()]))),
    'nan': lambda x: x * Part(1.0).rate * len(str(set([float('nan') * n for n in (1, 2)]))),  # noqa: C403
    **{
        fn.__name__: fn
        for fn in (
            later_in_an_attribute, by_a_bound_method, by_a_map, by_a_computed_name, by_its_class, by_several_arguments,
            sometimes, two_generators, by_another_name,
            by_a_default,
        )
    },
}  # fmt: skip


@told
@pytest.mark.parametrize('name', SETTLED)
def test_a_set_of_values_is_no_order_of_addresses(cp: Any, name: str) -> None:
    graphed = ck.graphed(SETTLED[name])
    for _ in range(4):
        assert graphed(cp.ones(2)).get().tolist() == SETTLED[name](cp.ones(2)).get().tolist()
    assert [variant.launches for variant in graphed.variants] == [3]


@pytest.mark.parametrize('name', UNSETTLED)
def test_a_set_of_objects_that_are_made_stays_eager(cp: Any, name: str) -> None:
    graphed = ck.graphed(UNSETTLED[name])
    for _ in range(4):
        assert graphed(cp.ones(2)).get().tolist() == UNSETTLED[name](cp.ones(2)).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) == 0
    assert 'whose order is that of the addresses of its' in graphed.variants[0].reason
