"""Classes written in C of which the code only asks whether an object is of them: it hands on none of their methods."""

from __future__ import annotations

import datetime
import functools
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck

DATE = datetime.datetime(2020, 5, 17, 12)
DATES = [DATE]
#: How long ago the dates are depends on the time zone, which their method ``timestamp`` reads.
FIRST = 1589713200.0
KINDS = (int, datetime.datetime)


class Backend:
    """What computes with arrays of a kind, as the packages have it that work with several libraries."""

    kind = datetime.datetime
    others = KINDS

    def timestamp(self, one: Any, other: Any) -> Any:
        return one + other


class Alone:
    kind = datetime.datetime


class Later(datetime.datetime):
    """A class of the user's that has the method from its base."""


BACKEND = Backend()
MAKE = datetime.datetime.fromisoformat
DAYS = np.array(['2020-05-17T12:00'], 'M8[s]')
MAKERS, PARTIAL = [MAKE], functools.partial(MAKE, '2020-05-17T12:00')


def hands_on_its_own(x: Any) -> Any:
    if isinstance(x, Backend.kind):
        return x
    return functools.reduce(BACKEND.timestamp, [x, x * 2, x])


def compares_the_type(x: Any) -> Any:
    if type(x) is BACKEND.kind or issubclass(float, Backend.kind):
        return x
    return functools.reduce(BACKEND.timestamp, [x, x * 2, x])


def _ago(x: Any, stamps: Any) -> Any:
    return x * (max(stamps) - FIRST)


def takes_it_of_the_class(x: Any) -> Any:
    return x if isinstance(x, Backend.kind) else _ago(x, map(Backend.kind.timestamp, DATES))


def takes_it_of_a_variable(x: Any) -> Any:
    kind = Backend.kind
    return x if isinstance(x, Backend.kind) else _ago(x, map(kind.timestamp, DATES))


def takes_it_of_a_tuple(x: Any) -> Any:
    return x if isinstance(x, Backend.others) else _ago(x, map(Backend.others[1].timestamp, DATES))


def takes_it_of_an_object(x: Any) -> Any:
    return x if isinstance(x, Backend.kind) else _ago(x, [*map(_call, [DATE.timestamp])])


def takes_it_of_its_class(x: Any) -> Any:
    return x if isinstance(x, Backend.kind) else _ago(x, map(type(DATE).timestamp, DATES))


def takes_it_of_one_that_is_made(x: Any) -> Any:
    made = Backend.kind(2020, 5, 17, 12)
    return x if isinstance(x, Backend.kind) else _ago(x, [*map(_call, [made.timestamp])])


def takes_it_of_a_class_of_its_own(x: Any) -> Any:
    made = Later(2020, 5, 17, 12)
    return x if isinstance(x, Later) else _ago(x, [*map(_call, [made.timestamp])])


def asks_for_it_by_a_text(x: Any) -> Any:
    return x if isinstance(x, Backend.kind) else _ago(x, map(operator.methodcaller('timestamp'), DATES))


def made_by_a_function_of_its_class(x: Any) -> Any:
    made = MAKE('2020-05-17T12:00')
    return x if isinstance(x, Backend.kind) else _ago(x, [*map(_call, [made.timestamp])])


def made_beside_a_check(x: Any) -> Any:
    made = MAKE('2020-05-17T12:00')
    return x if isinstance(x, Alone.kind) else _ago(x, [*map(_call, [made.timestamp])])


def made_by_one_in_a_list(x: Any) -> Any:
    made = MAKERS[0]('2020-05-17T12:00')
    return x if isinstance(x, Alone.kind) else _ago(x, [*map(_call, [made.timestamp])])


def made_by_a_partial(x: Any) -> Any:
    return x if isinstance(x, Alone.kind) else _ago(x, [*map(_call, [PARTIAL().timestamp])])


def made_by_a_function_alone(x: Any) -> Any:
    made = MAKE('2020-05-17T12:00')
    return _ago(x, [*map(_call, [made.timestamp])])


def made_by_numpy(x: Any) -> Any:
    return _ago(x, [*map(_call, [DAYS[0].item().timestamp])])


def made_by_numpy_in_a_list(x: Any) -> Any:
    return _ago(x, [*map(_call, [DAYS.tolist()[0].timestamp])])


def gives_it_to_a_function(x: Any) -> Any:
    return x if isinstance(x, Backend.kind) else _ago(x, map(_method_of(Backend.kind), DATES))


def _method_of(kind: Any) -> Any:
    return kind.timestamp


def finds_it_in_a_pattern(x: Any) -> Any:
    match DATE:
        case Backend.kind():
            return _ago(x, map(Backend.kind.timestamp, DATES))
    return x


#: What calls a function without a call that Python tells of.
_call: Any = getattr(operator, 'call', None) or functools.partial(lambda function: function())
NATURAL = [hands_on_its_own, compares_the_type]
HANDED_ON = [
    takes_it_of_the_class, takes_it_of_a_variable, takes_it_of_a_tuple, takes_it_of_an_object, takes_it_of_its_class,
    takes_it_of_one_that_is_made, takes_it_of_a_class_of_its_own, asks_for_it_by_a_text, gives_it_to_a_function,
    finds_it_in_a_pattern, made_by_a_function_of_its_class, made_by_one_in_a_list, made_by_a_partial,
    made_by_a_function_alone, made_beside_a_check, made_by_numpy, made_by_numpy_in_a_list,
]  # fmt: skip


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """What sets the time zone of this process."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv('TZ', name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize('function', NATURAL, ids=lambda one: one.__name__)
def test_other_objects_methods_of_that_name_are_handed_on(sim: Any, function: Any) -> None:
    fn = ck.graphed(function)
    for number in range(5):
        x = sim.arange(3.0) + number
        assert fn(x).tolist() == function(x).tolist()
    assert sum(variant.launches for variant in fn.variants) >= 3


@pytest.mark.parametrize('function', HANDED_ON, ids=lambda one: one.__name__)
def test_what_is_handed_on_is_called_each_time(sim: Any, zone: Callable[[str], None], function: Any) -> None:
    fn = ck.graphed(function)
    for number, name in enumerate(['UTC', 'UTC', 'UTC', 'XXX3', 'XXX3', 'UTC', 'YYY-5', 'XXX3']):
        zone(name)
        x = sim.arange(3.0) + number
        assert fn(x).tolist() == function(x).tolist(), (number, name)


def test_a_clock_of_one_that_is_made_is_read_each_time(sim: Any) -> None:
    """What makes the date is all that the code names."""
    fn = ck.graphed(lambda x: x * next(map(_call, [MAKE('2020-05-17T12:00').now])).year)
    for _ in range(5):
        fn(sim.ones(2))
    assert [variant.state for variant in fn.variants] == ['eager']
