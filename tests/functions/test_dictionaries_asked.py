"""Attributes that code asks an object's dictionary for by ``get``, and those that a module finds in another object."""

from __future__ import annotations

import copy
import copyreg
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


class Rates:
    rate = 2.0
    held: list[float]

    def __init__(self) -> None:
        self.first = 2.0
        self.held = [2.0]


class Chosen:
    """A class that keeps what each thread has chosen, as packages with several backends do."""

    of_thread = threading.local()
    default = Rates()

    @property
    def computed(self) -> Rates:
        return OBJECTS['computed']


CHOSEN, RATES = Chosen(), Rates()
OBJECTS: dict[str, Rates] = {'computed': Rates()}
NAMES = types.ModuleType('names')


def dispatched(cls: Any) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        return x * cls.of_thread.__dict__.get('rates', cls.default).first

    return call


def key() -> str:
    return ''.join(['fi', 'rst'])


#: A function that asks so, and how what it reads is changed.
ASKED: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    'an object': (lambda x: x * RATES.__dict__.get(key(), 0.0), lambda: setattr(RATES, 'first', 3.0)),
    'an item of an attribute': (
        lambda x: x * RATES.__dict__.get('held')[0], lambda: RATES.held.append(RATES.held.pop() + 1)
    ),
    'a name that is new': (
        lambda x: x * RATES.__dict__.get('ne' + 'w', 2.0), lambda: setattr(RATES, 'new', 3.0)
    ),
    'a property': (
        lambda x: x * CHOSEN.computed.__dict__.get(key()), lambda: setattr(OBJECTS['computed'], 'first', 3.0)
    ),
    'a default': (dispatched(Chosen), lambda: setattr(Chosen.default, 'first', 3.0)),
    'another default': (dispatched(Chosen), lambda: setattr(Chosen, 'default', faster())),
    'what a thread has': (dispatched(Chosen), lambda: setattr(Chosen.of_thread, 'rates', faster())),
    'what a class has': (lambda x: x * Rates.__dict__.get('rate', 0.0), lambda: setattr(Rates, 'rate', 3.0)),
    'a module': (lambda x: x * NAMES.__dict__.get('rate', 2.0), lambda: setattr(NAMES, 'rate', 3.0)),
}  # fmt: skip


def faster() -> Rates:
    made = Rates()
    made.first = 3.0
    return made


@pytest.fixture(autouse=True)
def as_before() -> Any:
    global RATES, NAMES
    RATES, NAMES, OBJECTS['computed'] = Rates(), types.ModuleType('names'), Rates()
    Chosen.of_thread, Chosen.default, Rates.rate = threading.local(), Rates(), 2.0


@pytest.mark.parametrize('name', ASKED)
def test_a_change_of_what_a_dictionary_gives(cp: Any, name: str) -> None:
    call, change = ASKED[name]
    graphed = ck.graphed(call)
    found = []
    for number in range(7):
        if number == 4:
            change()
        found.append(float(graphed(cp.ones(2))[0]))
    assert found == [2.0] * 4 + [3.0] * 3


def test_only_the_object_that_is_asked_counts(cp: Any, told: None) -> None:
    """A module that the function reaches as well may change in what no code names."""
    NAMES.rate, NAMES.calls = 2.0, 0  # type: ignore[attr-defined]
    by_class = dispatched(Chosen)
    graphed = ck.graphed(lambda x: by_class(x) * NAMES.rate)
    for number in range(5):
        NAMES.calls = number  # type: ignore[attr-defined]
        assert float(graphed(cp.ones(2))[0]) == 4.0
    assert [variant.launches for variant in graphed.variants] == [4]


@pytest.fixture
def told() -> None:
    """Lines are told of from Python 3.12 on; before, all attributes of all objects count."""
    if not hasattr(__import__('sys'), 'monitoring'):
        pytest.skip('Python tells of no lines before 3.12')


# -- what a module calls for names that it does not have ------------------------------------------------------


class Manager(types.ModuleType):
    rate = 2.0


def finding(found: Any) -> types.ModuleType:
    made = types.ModuleType('finding')
    made.__getattr__ = found  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize('manager', [Rates, lambda: Manager('manager')])
def test_a_module_finds_names_in_an_object(cp: Any, manager: Callable[[], Any]) -> None:
    of = manager()
    of.calls = 0
    module = finding(of.__getattribute__)
    graphed = ck.graphed(lambda x: x * module.rate)
    found = []
    for number in range(7):
        of.calls = number  # which no code names
        if number == 4:
            of.rate = 3.0
        found.append(float(graphed(cp.ones(2))[0]))
    assert found == [2.0] * 4 + [3.0] * 3
    assert sum(variant.launches for variant in graphed.variants) == 5


NAME = 'fir' + 'st'
#: Other ways by which code may ask that object for names that are values.
OTHERWISE: dict[str, Callable[[Any, Any, Any], Any]] = {
    'the function itself': lambda module, find, x: x * find(NAME) * module.rate,
    'the function before': lambda module, find, x: x * module.rate * find(NAME),
    'by its name': lambda module, find, x: x * module.rate * module.__getattr__(NAME),
    'by getattr': lambda module, find, x: x * module.rate * getattr(module, '__getattr__')(NAME),  # noqa: B009
    'in a list': lambda module, find, x: x * module.rate * next(map(find, [NAME])),
    'a computed name': lambda module, find, x: x * module.rate * getattr(module, ''.join(['fi', 'rst'])),
}


FINDING: Any = None
FIND: Any = None
FINDERS: list[Any] = []


def in_a_later_line(x: Any) -> Any:
    x = x * FINDING.rate
    return x * FIND(NAME)


def in_a_list_in_a_later_line(x: Any) -> Any:
    x = x * FINDING.rate
    return x * FINDERS[0](NAME)


@pytest.mark.parametrize('call', [in_a_later_line, in_a_list_in_a_later_line])
def test_the_function_is_met_again_in_a_later_line(cp: Any, call: Callable[[Any], Any]) -> None:
    global FINDING, FIND
    of = Rates()
    FIND = of.__getattribute__
    FINDING, FINDERS[:] = finding(FIND), [FIND]
    graphed = ck.graphed(call)
    found = []
    for number in range(7):
        if number == 4:
            of.first = 3.0
        found.append(float(graphed(cp.ones(2))[0]))
    assert found == [4.0] * 4 + [6.0] * 3


@pytest.mark.parametrize('name', OTHERWISE)
def test_names_that_are_values_are_seen_as_before(cp: Any, name: str) -> None:
    of, call = Rates(), OTHERWISE[name]
    find = of.__getattribute__
    module = finding(find)
    graphed = ck.graphed(lambda x: call(module, find, x))
    found = []
    for number in range(7):
        if number == 4:
            of.first = 3.0
        found.append(float(graphed(cp.ones(2))[0]))
    assert found == [4.0] * 4 + [6.0] * 3


# -- how objects are copied -----------------------------------------------------------------------------------


class Copied:
    def __init__(self, rate: float) -> None:
        self.rate = rate


def by_two(value: Copied) -> Any:
    return Copied, (value.rate * 2,)


def test_a_change_of_how_objects_are_copied(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All attributes count here, so that the module's tables could be read without a word."""
    for cls in [one for one in copyreg.dispatch_table if one.__module__ == 'uarray']:  # of SciPy, written in C
        monkeypatch.delitem(copyreg.dispatch_table, cls)
    held, tables = Copied(2.0), Rates()

    def fn(x: Any) -> Any:
        return x.copy() * copy.copy(held).rate * len(vars(tables))

    graphed = ck.graphed(fn)
    found = []
    try:
        for number in range(8):
            if number == 4:
                copyreg.pickle(Copied, by_two)  # type: ignore[arg-type]
            found.append(float(graphed(cp.ones(2))[0]))
    finally:
        copyreg.dispatch_table.pop(Copied, None)
    assert found == [4.0] * 4 + [8.0] * 4
    assert sum(variant.launches for variant in graphed.variants) >= 3


def by_vars_in_a_loop(one: Any) -> float:
    return sum(value for name in vars(one) if (value := getattr(one, name)) and name != 'held')


def by_vars_in_a_test(one: Any) -> float:
    return 2.0 if 'new' not in vars(one) else 3.0


def by_vars_and_get(one: Any) -> float:
    return float(vars(one).get('fi' + 'rst'))


def in_another_order(one: Any) -> None:
    one.first, first = 0, one.__dict__.pop('first')
    one.first = first


BY_VARS: dict[str, tuple[Callable[[Any], float], Callable[[Any], Any]]] = {
    'a value in a loop': (by_vars_in_a_loop, lambda one: setattr(one, 'first', 3.0)),
    'a new name in a loop': (by_vars_in_a_loop, lambda one: setattr(one, 'new', 3.0)),
    'a name that is gone': (by_vars_in_a_loop, lambda one: delattr(one, 'first')),
    'the order of names': (lambda one: float(len(next(name for name in vars(one)))), in_another_order),
    'a new name': (by_vars_in_a_test, lambda one: setattr(one, 'new', 3.0)),
    'a value by its name': (by_vars_and_get, lambda one: setattr(one, 'first', 3.0)),
    'a change by the dict itself': (by_vars_and_get, lambda one: vars(one).update(first=3.0)),
}


@pytest.mark.parametrize('name', BY_VARS)
def test_a_change_of_what_vars_gives(cp: Any, name: str) -> None:
    call, change = BY_VARS[name]
    one, other = Rates(), Rates()
    graphed, found, plain = ck.graphed(lambda x: x * call(one)), [], []
    for number in range(8):
        if number == 4:
            change(one)
            change(other)
        found.append(float(graphed(cp.ones(2))[0]))
        plain.append(call(other))
    assert found == plain


@pytest.mark.parametrize(
    'call',
    [
        lambda one: KEPT.append(vars(one)) or 2.0,
        lambda one: float(dict(vars(one))['first']),
        lambda one: vars(one).setdefault('first', 2.0),
        lambda one: sum(1.0 for _ in (lambda found=vars: found(one))()),
    ],
    ids=['kept', 'copied', 'written', 'by another name'],
)
def test_what_else_is_done_with_vars_is_right(cp: Any, call: Callable[[Any], Any]) -> None:
    one, other = Rates(), Rates()
    graphed, found, plain = ck.graphed(lambda x: x * call(one)), [], []
    for number in range(7):
        if number == 4:
            one.first = other.first = 3.0
        found.append(float(graphed(cp.ones(2))[0]))
        plain.append(float(call(other)))
        KEPT.clear()
    assert found == plain


KEPT: list[Any] = []
