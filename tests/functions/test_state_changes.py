"""Which numbers a function only counts, as its instructions tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions.place_uses import PlaceUses, Use, appending, counting


def only_used(function: Callable[..., None], name: str, use: Use) -> bool:
    """Whether a function uses a name in this way only."""
    return PlaceUses(name, False, True).only(function.__code__, None, use)


class Counter:
    n_calls = 0

    def __init__(self) -> None:
        self.n_calls = 0
        self.other = 0


def added(one: Any) -> None:
    one.n_calls += 1


def taken(one: Any) -> None:
    one.n_calls -= 12345


def of_two(one: Any, two: Any) -> None:
    one.n_calls += 1
    two.n_calls += 2


def not_named(one: Any) -> None:
    one.other = 3


def by_another(one: Any, step: int) -> None:
    one.n_calls += step


def by_what_is_reckoned(one: Any, x: Any) -> None:
    one.n_calls -= x.shape[-1] * 2 + -x.ndim


def by_a_fraction(one: Any) -> None:  # the number is none afterwards, which is seen then
    one.n_calls += 0.5


COUNTING = [added, taken, of_two, not_named, by_another, by_what_is_reckoned, by_a_fraction]


@pytest.mark.parametrize('function', COUNTING, ids=lambda one: one.__name__)
def test_counting_is_understood(function: Callable[..., Any]) -> None:
    assert only_used(function, 'n_calls', counting)


def stored(one: Any) -> None:
    one.n_calls = 1


def read(one: Any) -> Any:
    one.n_calls += 1
    return one.n_calls


def by_itself(one: Any) -> None:
    one.n_calls += one.n_calls


def by_a_call(one: Any) -> None:
    one.n_calls += len(one.items)


def from_another(one: Any, two: Any) -> None:
    one.n_calls = two.n_calls + 1


def kept(one: Any) -> Any:
    one.n_calls = before = one.n_calls + 1
    return before


def by_name(one: Any) -> Any:
    return getattr(one, 'n_calls')  # noqa: B009


def in_a_format(one: Any) -> Any:
    return f'{one.n_calls}'


def multiplied(one: Any) -> None:
    one.n_calls *= 2


def removed(one: Any) -> None:
    del one.n_calls


OTHERWISE = [stored, read, by_itself, by_a_call, from_another, kept, by_name, in_a_format, multiplied, removed]


@pytest.mark.parametrize('function', OTHERWISE, ids=lambda one: one.__name__)
def test_anything_else_is_not(function: Callable[..., Any]) -> None:
    assert not only_used(function, 'n_calls', counting)


def appended(one: Any) -> None:
    one.items.append(1)
    for _ in range(2):
        one.items.append(len('ab'))


def appended_by_name(one: Any) -> None:
    more = one.items.append
    more(3)


@pytest.mark.parametrize('function', [appended, appended_by_name, not_named], ids=lambda one: one.__name__)
def test_appending_is_understood(function: Callable[..., Any]) -> None:
    assert only_used(function, 'items', appending)


def counted_items(one: Any) -> int:
    one.items.append(1)
    return len(one.items)


def taken_out(one: Any) -> Any:
    one.items.append(2)
    return one.items.pop()


def extended(one: Any) -> None:
    one.items += [1]


@pytest.mark.parametrize('function', [counted_items, taken_out, extended], ids=lambda one: one.__name__)
def test_other_uses_of_a_list_are_not(function: Callable[..., Any]) -> None:
    assert not only_used(function, 'items', appending)


def looks(one: Any) -> Any:
    return sum(vars(one).values())


def shows(one: Any) -> Any:
    return len(repr(one.__dict__))


def asks(one: Any) -> Any:
    name = ''.join(['n_', 'calls'])
    return getattr(one, name)


def inner(one: Any) -> Any:
    return sum([k.n_calls for k in (one,)])


class Telling(Counter):
    def __len__(self) -> int:
        return self.n_calls


@pytest.mark.parametrize('reader', [looks, shows, asks, inner, len], ids=lambda one: one.__name__)
def test_a_counter_that_is_read_is_never_a_constant(sim: Any, reader: Callable[..., Any]) -> None:
    one = Telling()

    def work(x: Any) -> Any:
        one.n_calls += 1
        return x + reader(one)

    fn, wanted = ck.graphed(work), Telling()
    for _ in range(8):
        wanted.n_calls += 1
        assert fn(sim.zeros(1)).get().tolist() == [float(reader(wanted))]
        assert one.n_calls == wanted.n_calls


def test_a_property_that_reads_it(sim: Any) -> None:
    class Shown(Counter):
        @property
        def twice(self) -> int:
            return self.n_calls * 2

    one = Shown()

    def work(x: Any) -> Any:
        one.n_calls += 1
        return x + one.twice

    fn = ck.graphed(work)
    assert [fn(sim.zeros(1)).get().tolist() for _ in range(6)] == [[2.0 * n] for n in range(1, 7)]


def test_a_method_that_watches_what_is_set(sim: Any) -> None:
    class Watching(Counter):
        told = 0

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)
            if name == 'n_calls':
                object.__setattr__(self, 'told', value * 10)

    one = Watching()

    def work(x: Any) -> Any:
        one.n_calls += 1
        return x * 2

    fn = ck.graphed(work)
    for number in range(1, 8):
        fn(sim.zeros(1))
        assert (one.n_calls, one.told) == (number, number * 10)
