"""Dicts whose keys are addresses of objects: such a function is recorded if the numbers only find what was stored."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck

told = pytest.mark.skipif(sys.version_info < (3, 12), reason='lines are told of from Python 3.12 on')


class Network:
    """It knows the parts that it was made of."""

    def __init__(self, parts: Any) -> None:
        self.parts = {}
        for number, part in enumerate(parts):
            self.parts[number] = part
            part.add_owner(self, number)

    def product(self, x: Any) -> Any:
        for part in self.parts.values():
            x = x * part.rate
        return x


class Part:
    """It knows the networks that it is a part of, by their addresses."""

    def __init__(self, rate: float = 2.0) -> None:
        self.owners = {}
        self.rate = rate

    def add_owner(self, network: Any, number: int) -> None:
        self.owners[hash(network)] = (weakref.ref(network), number)

    def remove_owner(self, network: Any) -> None:
        self.owners.pop(hash(network), None)

    def has_owners(self) -> bool:
        for key in tuple(self.owners):
            if not self.owners[key][0]():
                del self.owners[key]
        return len(self.owners) > 0

    def owned_by(self, network: Any) -> bool:
        return id(network) in self.owners or hash(network) in self.owners

    def numbers(self) -> int:
        return sum(number for _, number in self.owners.values())


class Slotted:
    __slots__ = ('rate',)


class Counted(dict):  # type: ignore[type-arg]
    """A dict with code of its own."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key % 16, value)


class Settings:
    rate = 2.0
    network: Any = None
    part: Any = None


def of_new_networks(x: Any) -> Any:
    parts = [Part(2.0), Part(3.0)]
    both, one = Network(parts), Network(parts[:1])
    found = both.product(one.product(x)) * sum(part.numbers() + 1 for part in parts)
    del one
    return found * (2 if parts[0].has_owners() and parts[1].has_owners() else 5)


def removed_again(x: Any) -> Any:
    part = Part()
    network = Network([part])
    part.remove_owner(network)
    return network.product(x) * (7 if part.has_owners() else 3)


def gone_meanwhile(x: Any) -> Any:
    part = Part()
    Network([part])
    return x * (7 if part.has_owners() else 3)


def asked_by_hash(x: Any) -> Any:
    part = Part()
    network = Network([part])
    return x * (7 if hash(network) in part.owners else 3)


def of_one_that_was_there(x: Any) -> Any:
    part = Part()
    part.add_owner(Settings.network, 4)
    return x * part.numbers() * Settings.network.rate


def with_an_exception(x: Any) -> Any:
    try:
        return x * Settings.missing  # type: ignore[attr-defined]
    except AttributeError:
        return of_new_networks(x)


RECORDED = [with_an_exception, of_new_networks, removed_again, gone_meanwhile, of_one_that_was_there]


@told
@pytest.mark.parametrize('fn', RECORDED, ids=lambda fn: fn.__name__)
def test_numbers_that_only_find_something(sim: Any, fn: Callable[[Any], Any]) -> None:
    Settings.network = Part(5.0)
    graphed = ck.graphed(fn)
    for number in range(8):
        if number == 4:
            Settings.network = Part(6.0)
        x = sim.arange(3.0) + number
        assert graphed(x).get().tolist() == fn(x).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) >= 5


def owned() -> Part:
    part = Part()
    part.network = Network([part])  # type: ignore[attr-defined]
    return part


def of_the_number(x: Any) -> Any:
    return x * float(hash(Part()) % 7)


def of_a_key(x: Any) -> Any:
    return x * float(next(iter(owned().owners)) % 7)


def of_all_keys(x: Any) -> Any:
    part = owned()
    for key in part.owners:
        x = x * float(key % 7)
    return x


def of_the_pairs(x: Any) -> Any:
    part = owned()
    for key, _ in part.owners.items():
        x = x * float(key % 7)
    return x


def of_the_order(x: Any) -> Any:
    part = Part()
    networks = [Network([part]) for _ in range(3)]
    return x * len(networks) * part.owners[min(part.owners)][1]


def of_the_text(x: Any) -> Any:
    return x * len(f'{owned().owners}')


def in_another_place(x: Any) -> Any:
    part, other = owned(), Part()
    other.owners = part.owners
    return x * float(next(iter(other.owners)) % 7)


def in_a_variable(x: Any) -> Any:
    part = owned()
    owners = part.owners
    return x * float(next(iter(owners)) % 7)


def by_all_attributes(x: Any) -> Any:
    return x * float(next(iter(vars(owned())['owners'])) % 7)


def by_a_name(x: Any) -> Any:
    owners = getattr(owned(), Settings.__name__.lower().replace('settings', 'owners'))
    return x * float(next(iter(owners)) % 7)


def in_a_copy(x: Any) -> Any:
    return x * float(next(iter(copy.copy(owned()).owners)) % 7)


def stored_as_a_value(x: Any) -> Any:
    part = Part()
    part.owners['last'] = hash(part)
    return x * float(part.owners['last'] % 7)


def in_a_dict_with_code(x: Any) -> Any:
    part, other = Part(), Part()
    part.owners = Counted()
    part.owners[hash(part)] = 1
    part.owners[hash(other)] = 2
    return x * len(part.owners)


def of_one_without_weak_references(x: Any) -> Any:
    part = Part()
    part.owners[hash(Slotted())] = 1
    return x * len(part.owners)


def of_one_hashed_by_value(x: Any) -> Any:
    part = Part()
    part.owners[hash(frozenset([Part()]))] = 1
    return x * len(part.owners)


def of_a_table_that_was_there(x: Any) -> Any:
    """What was stored for an object that is gone may be found for another one of the same address."""
    part = Part()
    return x * Settings.part.owners.get(hash(part), 3.0)


def of_a_counter(x: Any) -> Any:
    part = Part()
    part.owners[hash(part)] = 1
    part.owners[hash(part)] += hash(part) % 7
    return x * part.owners[hash(part)]


def by_a_pattern(x: Any) -> Any:
    match owned():
        case Part(owners=owners):
            return x * float(next(iter(owners)) % 7)


def in_an_exception(x: Any) -> Any:
    try:
        Part().owners[hash(Part())]
    except KeyError as error:
        return x * float(error.args[0] % 7)


class Keeps:
    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.error = error
        return True


def in_an_exception_that_is_swallowed(x: Any) -> Any:
    with Keeps() as keeps:
        Part().owners.pop(hash(Part()))
    return x * float(keeps.error.args[0] % 7)


def in_the_exception_that_is_handled(x: Any) -> Any:
    try:
        del Part().owners[hash(Part())]
    except KeyError:
        return x * float(sys.exc_info()[1].args[0] % 7)  # type: ignore[union-attr]


def of_a_parameter(x: Any) -> Any:
    def stored(part: Any, key: Any) -> Any:
        part.owners[key] = 1
        for key in part.owners:
            x = part.owners[key]
        return x

    return x * stored(owned(), 3)


EAGER = [
    in_an_exception_that_is_swallowed, in_the_exception_that_is_handled, by_a_pattern, in_an_exception,
    of_a_parameter, of_the_number, of_a_key, of_all_keys, of_the_pairs, of_the_order, of_the_text, in_another_place,
    in_a_variable, by_all_attributes, by_a_name, in_a_copy, stored_as_a_value, in_a_dict_with_code,
    of_one_without_weak_references, of_one_hashed_by_value, of_a_table_that_was_there, of_a_counter,
]  # fmt: skip


@pytest.mark.parametrize('fn', EAGER, ids=lambda fn: fn.__name__)
def test_numbers_that_may_do_more(sim: Any, fn: Callable[[Any], Any]) -> None:
    Settings.part = Part()
    Settings.part.owners[hash(Part())] = 5.0
    graphed = ck.graphed(fn)
    for _ in range(4):
        graphed(sim.arange(3.0))
    assert sum(variant.launches for variant in graphed.variants) == 0
    reasons = {variant.reason for variant in graphed.variants}
    assert all('builtins.hash' in reason or 'addresses' in reason for reason in reasons), reasons


def of_two_at_one_address(x: Any) -> Any:
    """The first one is gone when the third one is made, which may get its address."""
    box = Part()
    for number in range(4):
        part = Part()
        if hash(part) in box.owners:
            x = x * 3
        box.owners[hash(part)] = number
    return x


def of_one_after_another(x: Any) -> Any:
    part = Part()
    Network([part])
    Network([part])
    return x * len(part.owners)


@pytest.mark.parametrize('fn', [of_two_at_one_address, of_one_after_another], ids=lambda fn: fn.__name__)
def test_an_address_that_is_free_again(sim: Any, fn: Callable[[Any], Any]) -> None:
    """Which number is found depends on chance."""
    graphed = ck.graphed(fn)
    for _ in range(6):
        graphed(sim.ones(2))
    assert sum(variant.launches for variant in graphed.variants) == 0


def test_what_is_returned_keeps_no_addresses(sim: Any) -> None:
    def fn(x: Any) -> Any:
        part = Part()
        part.owners[hash(part)] = 1
        part.x = x * 2  # type: ignore[attr-defined]
        return part

    graphed = ck.graphed(fn)
    for _ in range(4):
        part = graphed(sim.ones(2))
        assert part.owners == {hash(part): 1}
    assert {variant.state for variant in graphed.variants} == {'eager'}


@told
def test_an_empty_dict_may_be_returned(sim: Any) -> None:
    def fn(x: Any) -> Any:
        part = Part()
        network = Network([part])
        part.remove_owner(network)
        part.x = network.product(x)  # type: ignore[attr-defined]
        return part

    graphed = ck.graphed(fn)
    found = [graphed(sim.ones(2)) for _ in range(4)]
    assert [part.owners for part in found] == [{}] * 4
    assert len({id(part.owners) for part in found}) == 4
    assert sum(variant.launches for variant in graphed.variants) == 3
