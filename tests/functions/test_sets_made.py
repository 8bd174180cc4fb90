"""Sets in functions that also make objects hashed by their address: those without such members are no hindrance."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck

told = pytest.mark.skipif(sys.version_info < (3, 12), reason='lines are told of from Python 3.12 on')


class Part:
    def __init__(self, rate: float = 2.0) -> None:
        self.rate = rate


LASTING = Part(1.0)


def checked(x: Any) -> Any:
    part = Part()
    kinds = set(isinstance(one, Part) for one in (part, part))  # noqa: C401
    if len(kinds) == 1:
        return x * part.rate * kinds.pop()
    raise TypeError


def unpacked(x: Any) -> Any:
    names = {type(one).__name__ for one in (Part(), Part())}
    (name,) = names
    return x * len(name)


def gone_through(x: Any) -> Any:
    rates = set()
    for part in (Part(2.0), Part(3.0)):
        rates.add(part.rate)
    for rate in rates:
        x = x * rate
    return x


def frozen(x: Any) -> Any:
    letters = [frozenset(text) for text in ('ab', 'bc')] if Part().rate else []
    return x * len(frozenset.union(*letters))


def of_a_generator(x: Any) -> Any:
    rates = [part.rate for part in (Part(3.0), Part(2.0))]
    return x * sorted(set(rate * 2 for rate in rates))[0]  # noqa: C401


def lasting(x: Any) -> Any:
    found = {LASTING}
    for part in found:
        x = x * part.rate * Part().rate
    return x


def not_run(x: Any) -> Any:
    part = Part()
    if part.rate > 5:
        return x * next(iter({part, Part()})).rate
    return x * part.rate


def compared(x: Any, **named: Any) -> Any:
    part = Part()
    if set(named) - {'one', 'two', 'three'} or not {part} - {1}:
        return x
    return x * part.rate


def compared_at_once(x: Any) -> Any:
    texts = [Part().rate, Part(3.0).rate]
    return x * (5 if set(texts) != {3.0, texts[0]} else 2)


def subtracted(x: Any) -> Any:
    rates = [Part(2.0).rate, Part(3.0).rate]
    left = set(rates) - set(rates[1:])
    (rate,) = left
    return x * rate


def in_groups(x: Any) -> Any:
    groups = []
    left = set(range(len([Part(), Part(), Part()])))
    while left:
        group = set()
        todo = [left.pop()]
        while todo:
            group.add(todo.pop())
            near = {number for number in left if number % 2}
            todo.extend(near)
            left.difference_update(near)
        groups.append(group)
    fixed = [frozenset(group) for group in groups]
    every = frozenset.union(*fixed) - frozenset((0,))
    return x * sum(every) * len(groups)


class Names:
    """Keeps a set that is only asked for members."""

    def __init__(self, text: str) -> None:
        self.found: set[str] = set()
        self.twice = False

        def add(letter: str) -> None:
            if letter in self.found:
                self.twice = True
            self.found.add(letter)

        for letter in text:
            add(letter)


def asked_for_members(x: Any) -> Any:
    names = Names('abca')
    return x * (2 if names.twice and 'c' in names.found else 3)


def others_add(x: Any) -> Any:
    """What has methods of these names is no set."""
    groups = [set([1, 2])]  # noqa: C405
    table: dict[str, Any] = {}
    table.update(part=Part(3.0))
    Counted.add(table, Part(2.0))
    return x * len(groups[0]) * sum(part.rate for part in table.values())


class Counted:
    @staticmethod
    def add(table: Any, part: Any) -> None:
        table[str(len(table))] = part


class Ordered:
    """Not a set, with a method of that name."""

    def __init__(self, members: Any) -> None:
        self.members = dict.fromkeys(members)

    def union(self, other: Any) -> Any:
        return Ordered([*self.members, *other.members])

    def __or__(self, other: Any) -> Any:
        return self.union(other)


def joined(x: Any) -> Any:
    for part in (Ordered([Part(2.0)]) | Ordered([Part(3.0)])).union(Ordered([Part(5.0)])).members:
        x = x * part.rate + 1
    return x


class Name:
    def __init__(self, text: str) -> None:
        self.text, self.part = text, Part()

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and other.text == self.text


def mapped(x: Any) -> Any:
    names = frozenset(map(Name, 'ab'))
    return x * sum(name.part.rate for name in names)


def rates_of(parts: Any) -> float:
    total = 0.0
    for number, part in enumerate(parts):
        total += part.rate * (number + 1)
    return total


class Kind:
    """A class whose objects are made without an event."""

    rate = 2.0


def with_an_inner_function(x: Any) -> Any:
    letters = tuple(map(frozenset, ('ab', 'bc')))

    def shared(depth: int) -> int:
        return len(frozenset.intersection(*letters)) if not depth else shared(depth - 1)

    return x * shared(2)


@told
def test_a_function_that_is_only_called_does_not_count(cp: Any) -> None:
    fn = with_an_inner_function
    graphed = ck.graphed(fn)
    for number in range(5):
        assert graphed(cp.full(2, number)).get().tolist() == fn(cp.full(2, number)).get().tolist()
    assert graphed.variants[0].launches >= 3


def kinds_made(x: Any) -> Any:
    return x * rates_of(frozenset(map(Kind, ())) | {Kind(), Kind()})


def kinds_made_of_a_list(x: Any) -> Any:
    makers = [Kind, Part]
    kinds = frozenset(make() for make in makers) if isinstance(makers[0], type) else frozenset()
    return x * rates_of(kinds)


def kinds_made_of_another(x: Any) -> Any:
    return x * rates_of(frozenset([type(KIND)(), type(KIND)()])) if isinstance(KIND, (str, Kind)) else x


def inner_functions(x: Any) -> Any:
    def one(v: Any) -> Any:
        return v * 2

    def other(v: Any) -> Any:
        return v + 1

    changes = [*map(frozenset, [[one, other]])]
    for change in changes[0]:
        x = change(x)
    return x


def inner_functions_of_variables(x: Any) -> Any:
    def one(v: Any) -> Any:
        return v * 2

    def other(v: Any) -> Any:
        return v + 1

    if x is None:
        return one(x), other(x)
    for change in frozenset(value for value in locals().values() if callable(value)):
        x = change(x)
    return x


KIND = Kind()


@pytest.mark.parametrize(
    'fn', [kinds_made, kinds_made_of_a_list, kinds_made_of_another, inner_functions, inner_functions_of_variables]
)
def test_classes_and_functions_that_may_be_members_count(cp: Any, fn: Callable[[Any], Any]) -> None:
    graphed = ck.graphed(fn)
    for _ in range(3):
        graphed(cp.ones(2))
    assert graphed.variants[0].state == 'eager'


@told
@pytest.mark.parametrize(
    'fn',
    [
        others_add,
        mapped, compared, checked, unpacked, gone_through, frozen, of_a_generator, lasting, not_run, compared_at_once,
        joined, subtracted, in_groups, asked_for_members,
    ],
)  # fmt: skip
def test_members_that_are_seen_do_not_count(cp: Any, fn: Callable[[Any], Any]) -> None:
    graphed = ck.graphed(fn)
    for _ in range(5):
        assert graphed(cp.ones(2)).get().tolist() == fn(cp.ones(2)).get().tolist()
    assert [variant.launches >= 3 for variant in graphed.variants] == [True]  # CuPy's own caches may cost a call


def in_a_variable(x: Any) -> Any:
    parts = {Part(2.0), Part(3.0)}
    return x * sum(part.rate for part in parts)


def in_a_loop(x: Any) -> Any:
    parts = set()
    for rate in (2.0, 3.0):
        parts.add(Part(rate))
    for part in parts:
        x = x * part.rate
    return x


def taken_from(x: Any) -> Any:
    parts = set(Part(rate) for rate in (2.0, 3.0))  # noqa: C401
    return x * parts.pop().rate


def in_tuples(x: Any) -> Any:
    parts = {(number, Part(2.0)) for number in range(2)}
    for number, part in parts:
        x = x * (number + part.rate)
    return x


def of_frozen(x: Any) -> Any:
    return x * rates_of(frozenset(Part(rate) for rate in (2.0, 3.0)))


def of_a_list(x: Any) -> Any:
    parts = [Part(2.0), Part(3.0)]
    return x * rates_of(frozenset(parts))


def in_one_line(x: Any) -> Any:
    parts = set(); parts.update([Part(2.0), Part(3.0)]); rate = parts.pop().rate; parts.clear()  # noqa: E702  # fmt: skip
    return x * rate


def of_functions(x: Any) -> Any:
    changes = {lambda v: v * 2, lambda v: v + 1}
    for change in changes:
        x = change(x)
    return x


def handed_on(x: Any) -> Any:
    parts = {Part(2.0), Part(3.0)}
    return x * rates_of(parts)


def of_a_map(x: Any) -> Any:
    return x * rates_of(frozenset(map(Part, (2.0, 3.0))))


def of_views(x: Any) -> Any:
    one = {Part(2.0): 1, Part(3.0): 2}
    parts = one.keys() | dict(one).keys()
    return x * rates_of(parts)


def of_views_in_variables(x: Any) -> Any:
    one = {Part(2.0): 1, Part(3.0): 2}
    view = one.keys()
    parts = view | [Part(5.0)]
    return x * rates_of(parts)


OLD: set[Any] = set()


def of_a_set_that_was_there(x: Any) -> Any:
    return x * rates_of(OLD.union([Part(2.0), Part(3.0)]))


def of_its_class(x: Any) -> Any:
    return x * rates_of(frozenset.union(frozenset(), [Part(2.0), Part(3.0)]))


def added_in_another_place(x: Any) -> Any:
    group = set('')
    groups = [group]
    for rate in (2.0, 3.0):
        groups[0].add(Part(rate))
    return x * rates_of(groups[0])


def fill(parts: Any) -> None:
    parts.add(Part(2.0))
    parts.add(Part(3.0))


def filled_anew(x: Any) -> Any:
    groups = [set('ab')]
    groups[0].__init__([Part(2.0), Part(3.0)])  # type: ignore[misc]
    return x * rates_of(groups[0])


def added_by_several(x: Any) -> Any:
    groups = [set('')]
    groups[0].update(*[[Part(2.0)], [Part(3.0)]])
    return x * rates_of(groups[0])


def added_by_a_method(x: Any) -> Any:
    groups = [set('')]
    add = groups[0].add
    add(Part(2.0))
    add(Part(3.0))
    return x * rates_of(groups[0])


def added_by_an_expression(x: Any) -> Any:
    groups = [set('')]
    groups[0].update(Part(rate) for rate in (2.0, 3.0))
    return x * rates_of(groups[0])


def added_by_its_class(x: Any) -> Any:
    groups = [set('')]
    set.update(groups[0], [Part(2.0), Part(3.0)])
    return x * rates_of(groups[0])


def added_by_one_of_two(x: Any) -> Any:
    groups: list[Any] = [Counted2(), set('')]
    for group in groups:
        group.add(Part(2.0))
        group.add(Part(3.0))
    return x * rates_of(groups[1])


class Counted2:
    def add(self, part: Any) -> None:
        self.last = part


def added_by_another_function(x: Any) -> Any:
    groups = [set('')]
    fill(groups[0])
    return x * rates_of(groups[0])


def added_and_taken_in_one_line(x: Any) -> Any:
    parts = set()
    parts.update([Part(2.0), Part(3.0)]); rate = parts.pop().rate; parts.clear()  # noqa: E702  # fmt: skip
    return x * rate


def stored_and_used_in_one_line(x: Any) -> Any:
    parts = {Part(rate) for rate in (2.0, 3.0)}; x = x * rates_of(parts); parts = set()  # noqa: E702  # fmt: skip
    return x


class Found:
    def __init__(self) -> None:
        self.found: set[Any] = set()


def gone_through_in_an_attribute(x: Any) -> Any:
    one = Found()
    for part in (Part(2.0), Part(3.0)):
        one.found.add(part)
    return x * rates_of([*one.found])


def in_two_attributes(x: Any) -> Any:
    one, other = Found(), Found()
    one.found.add(Part(2.0))
    one.found.add(Part(3.0))
    other.parts = one.found  # type: ignore[attr-defined]
    return x * rates_of([*other.parts])  # type: ignore[attr-defined]


HINDER = [
    filled_anew,
    added_by_several,
    added_by_a_method,
    added_by_an_expression,
    added_by_its_class,
    added_by_one_of_two,
    of_views_in_variables,
    of_a_set_that_was_there,
    of_its_class,
    added_in_another_place,
    added_by_another_function,
    added_and_taken_in_one_line,
    stored_and_used_in_one_line,
    gone_through_in_an_attribute,
    in_two_attributes,
    of_views,
    in_a_variable,
    in_a_loop,
    taken_from,
    in_tuples,
    of_frozen,
    of_a_list,
    in_one_line,
    handed_on,
    of_a_map,
]


@pytest.mark.parametrize('fn', HINDER)
def test_sets_of_new_objects_stay_eager(cp: Any, fn: Callable[[Any], Any]) -> None:
    graphed = ck.graphed(fn)
    for _ in range(3):
        graphed(cp.ones(2))
    assert graphed.variants[0].state == 'eager'
    assert 'makes a set, whose order is that of the addresses of its' in graphed.variants[0].reason


def test_a_set_of_new_functions_stays_eager(cp: Any) -> None:
    graphed = ck.graphed(of_functions)
    for _ in range(3):
        graphed(cp.ones(2))
    assert 'makes a set, whose order is that of the addresses of its function objects' in graphed.variants[0].reason
