"""Hashes of objects that a call makes, and the order of sets of them: eager calls have them anew each time."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


class Part:
    def __init__(self, rate: float, parts: Any = ()) -> None:
        self.rate = rate
        self.parts = parts


class Bare:
    rate = 2.0


class WithSet:
    def __init__(self, parts: Any) -> None:
        self.parts = set(parts)


@dataclasses.dataclass(frozen=True)
class Key:
    name: str


class Hashed:
    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.name == other.name

    def __hash__(self) -> int:
        return hash((self.name, 1))


def product(x: Any, parts: Any) -> Any:
    for part in parts:
        x = x * part.rate
    return x


def in_a_variable(x: Any) -> Any:
    found = set()
    for rate in (2.0, 3.0):
        found.add(Part(rate))
    return product(x, found)


def pair() -> list[Part]:
    return [Part(2.0), Part(3.0)]


def bare(x: Any) -> Any:
    return product(x, {Bare(), Bare()})


def by_another_name(x: Any) -> Any:
    found = set()
    found.add(Part(2.0))
    other = found
    return product(x, other)


BY_ADDRESS: dict[str, Callable[[Any], Any]] = {
    'a set': lambda x: product(x, {Part(2.0), Part(3.0)}),
    'a set of a list': lambda x: product(x, set(pair())),
    'a frozen set': lambda x: product(x, frozenset((Part(2.0), Part(3.0)))),
    'a set in a comprehension': lambda x: product(x, {Part(rate) for rate in (2.0, 3.0)}),
    'a set in a variable': in_a_variable,
    'a set by another name': by_another_name,
    'a set in an attribute': lambda x: product(x, WithSet([Part(2.0), Part(3.0)]).parts),
    'a class without a beginning': bare,
    'a set that is taken from': lambda x: x * {Part(2.0), Part(2.0)}.pop().rate,
    'a set of bare objects': lambda x: x * len(list({object(), object()})),
    'a hash': lambda x: x * (1 + hash(Part(2.0)) % 1),
    'a hash that is handed on': lambda x: x * (1 + max(map(hash, [Part(2.0)])) % 1),
}


@pytest.mark.parametrize('name', BY_ADDRESS)
def test_what_depends_on_addresses_stays_eager(cp: Any, name: str) -> None:
    graphed = ck.graphed(BY_ADDRESS[name])
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == BY_ADDRESS[name](cp.ones(2)).get().tolist()
    reason = graphed.variants[0].reason
    assert 'whose order is that of the addresses of its' in reason or 'builtins.hash' in reason


def visits(x: Any) -> Any:
    inner = Part(2.0)
    seen: set[Part] = set()

    def visit(part: Part) -> None:
        if part not in seen:
            seen.add(part)
            for one in part.parts:
                visit(one)

    visit(Part(3.0, (inner, inner)))
    return x * len(seen) if seen else x


def by_value(x: Any) -> Any:
    rates = {Key('a'): 2.0, Key('b'): 3.0}
    names = {Hashed('a'), Hashed('b')}
    for rate in {2.0, 3.0}:
        x = x * rate
    return x * rates[Key('a')] * (Hashed('a') in names)


def hashes(x: Any) -> Any:
    name = 'a'
    return x * (hash(name) == hash('a'))


@pytest.mark.parametrize('fn', [visits, by_value, hashes])
def test_what_does_not_depend_on_addresses_is_recorded(cp: Any, fn: Callable[[Any], Any]) -> None:
    graphed = ck.graphed(fn)
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == fn(cp.ones(2)).get().tolist()
    assert [variant.launches for variant in graphed.variants] == [2]


NAMES: dict[str, Any] = {'one': 'a', 'sizes': {'a': 2, 'b': 3}, 'part': 'a'}


def hashes_a_tuple(x: Any) -> Any:
    key = hash((NAMES['one'], tuple(NAMES['sizes'].items()), frozenset({'optimize': None}.items()), 1.5))
    return x * (key % 1000)


def hashes_in_a_loop(x: Any) -> Any:
    for part in (1, ('a', 2), NAMES['part']):
        x = x * (hash(part) % 1000 + 1)
    return x


@pytest.mark.skipif(sys.version_info < (3, 12), reason='what hash is given is told from Python 3.12 on')
@pytest.mark.parametrize('fn', [hashes_a_tuple, hashes_in_a_loop])
def test_hashes_of_values_that_are_made(cp: Any, monkeypatch: pytest.MonkeyPatch, fn: Callable[[Any], Any]) -> None:
    graphed = ck.graphed(fn)
    for one, size in (('a', 2), ('a', 2), ('a', 2), ('b', 2), ('b', 2), ('b', 5), ('b', 5)):
        monkeypatch.setitem(NAMES, 'one', one)
        monkeypatch.setitem(NAMES['sizes'], 'b', size)
        monkeypatch.setitem(NAMES, 'part', one)
        assert graphed(cp.ones(2)).get().tolist() == fn(cp.ones(2)).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) >= 3


@pytest.mark.parametrize('part', [Part(2.0), (1, Part(2.0)), float('nan'), Key(float('nan')), frozenset({Bare()})])  # type: ignore[arg-type]
def test_hashes_of_addresses_in_a_loop_are_eager(cp: Any, monkeypatch: pytest.MonkeyPatch, part: Any) -> None:
    monkeypatch.setitem(NAMES, 'part', part)
    graphed = ck.graphed(hashes_in_a_loop)
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == hashes_in_a_loop(cp.ones(2)).get().tolist()
    assert not any(variant.launches for variant in graphed.variants)
