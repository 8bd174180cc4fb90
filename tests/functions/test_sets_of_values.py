"""Sets of objects that a call makes, by every way in which members get into a set: their order is of addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck


class Part:
    def __init__(self, rate: float) -> None:
        self.rate = rate


class Named:
    """Keeps a set in an attribute."""

    def __init__(self, names: Any = ()) -> None:
        self.found: set[Any] = set()
        for name in names:
            self.found.add(name)


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


OLD = {Part(1.0), Part(4.0)}


def of_a_copy(x: Any) -> Any:
    parts = OLD.copy()
    for part in pair():
        parts.add(part)
    return product(x, parts)


def of_a_part(x: Any) -> Any:
    parts = OLD.difference(())
    parts.update(pair())
    return product(x, parts)


UNSETTLED: dict[str, Callable[[Any], Any]] = {
    'a list': lambda x: product(x, set(pair())),
    'a tuple of tuples': lambda x: x * next(iter(set(((Part(2.0), 1), (Part(2.0), 1)))))[0].rate,  # noqa: C405
    'an expression': lambda x: product(x, set(part for part in pair())),  # noqa: C401
    'a generator': lambda x: product(x, set(parts())),
    'an iterator': lambda x: product(x, set(iter(pair()))),
    'a map': lambda x: product(x, frozenset(map(Part, (2.0, 3.0)))),
    'in an attribute': lambda x: product(x, Named(pair()).found),
    'a class that is handed on': lambda x: product(x, next(map(set, [pair()]))),
    'a union': lambda x: product(x, set('ab').union(pair())),
    'nan': lambda x: x * Part(1.0).rate * len(str(set([float('nan') * n for n in (1, 2)]))),  # noqa: C403
    **{
        fn.__name__: fn
        for fn in (
            later_in_an_attribute, by_a_bound_method, by_a_map, by_a_computed_name, by_its_class, by_several_arguments,
            sometimes, two_generators, by_another_name,
            by_a_default, of_a_copy, of_a_part,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize('name', UNSETTLED)
def test_a_set_of_objects_that_are_made_stays_eager(cp: Any, name: str) -> None:
    graphed = ck.graphed(UNSETTLED[name])
    for _ in range(4):
        assert graphed(cp.ones(2)).get().tolist() == UNSETTLED[name](cp.ones(2)).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) == 0
    assert 'whose order is that of the addresses of its' in graphed.variants[0].reason
