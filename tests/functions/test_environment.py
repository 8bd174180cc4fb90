"""What a function read besides its arguments: values, containers, functions and closures."""

from __future__ import annotations

import copy
import functools
import math
import os
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.functions.environments import Array, Colour, Hostile, clean, watch

HERE = os.path.basename(__file__)
pytestmark = pytest.mark.usefixtures('no_collection')


value: Any = None
other: Any = None


@pytest.fixture(autouse=True)
def globals_of_this_file() -> Iterator[None]:
    before = dict(globals())
    yield
    globals().clear()
    globals().update(before)


def reads() -> Any:
    return value


@pytest.mark.parametrize(
    'before, after, text',
    [
        (0.1, 0.05, 'is 0.05 and was 0.1'),
        (1, True, 'is True and was 1'),
        (1, 1.0, 'is 1.0 and was 1'),
        (0.0, -0.0, 'is -0.0 and was 0.0'),
        (None, 0, 'is 0 and was None'),
        ('a', b'a', "is b'a' and was 'a'"),
        (Colour.RED, Colour.BLUE, 'is Colour.BLUE and was Colour.RED'),
        (np.float32(1), np.float64(1), 'is np.float64(1.0) and was np.float32(1.0)'),
        (np.dtype('f4'), np.dtype('f8'), "is dtype('float64') and was dtype('float32')"),
        (slice(1), slice(2), 'is slice(None, 2, None) and was slice(None, 1, None)'),
        (range(1), range(2), 'is range(0, 2) and was range(0, 1)'),
        ((1, 2), (1, 3), '[1] of HERE is 3 and was 2'),
        ((1, 2), (1, 2, 3), 'has 3 items and had 2'),
        (frozenset({1}), frozenset({2}), 'does not have the members that it had'),
        (Array(), Array(), 'is not the Array that it was'),
        ([1], [2], '[0] of HERE is 2 and was 1'),
        ({'a': 1, 'b': 2}, {'b': 2, 'a': 1}, 'does not have its keys in the order'),
        ({'a': [1]}, {'a': [2]}, '["a"][0] of HERE is 2 and was 1'),
        (np.zeros(2), np.ones(2), 'does not hold the values that it held'),
        (np.zeros(2), np.zeros(3), 'is of float64, shape (3,) and was of float64, shape (2,)'),
        (math.sin, math.cos, 'is not the builtin_function_or_method that it was'),
        (int, float, 'is class float and was class int'),
        ([1], (1,), 'is (1,) and was a list'),
    ],
)
def test_a_global_that_changed_is_named(before: Any, after: Any, text: str) -> None:
    global value
    value = before
    found = clean(reads)
    value = after
    said = found.changed()
    assert said is not None and said.startswith('global value') and said.endswith(' when recorded')
    assert (text.replace('HERE', HERE)) in said or text.split(' and ')[0].replace('HERE', HERE) in said
    value = before
    assert found.changed() is None


def test_hostile_objects_are_compared_by_identity() -> None:
    global value
    value = Hostile()
    found = clean(reads)
    value = Hostile()
    assert 'is not the Hostile that it was' in str(found.changed())


def test_the_sentence() -> None:
    global value
    value = 0.1
    found = clean(reads)
    value = 0.05
    assert found.changed() == f'global value of {HERE} is 0.05 and was 0.1 when recorded'
    del globals()['value']
    assert found.changed() == f'global value of {HERE} is gone and was 0.1 when recorded'


@pytest.mark.parametrize(
    'before, again',
    [
        (1000.5, 1000.5),
        ([1, [2]], [1, [2]]),
        ({'a': {1, 2}}, {'a': {2, 1}}),
        (np.arange(3), np.arange(3)),
        ((0.5, 'x'), (0.5, 'x')),
        (bytearray(b'x'), bytearray(b'x')),
        (functools.partial(max, 1), functools.partial(max, 1)),
    ],
)
def test_equal_values_are_no_change(before: Any, again: Any) -> None:
    global value
    value = before
    found = clean(reads)
    value = copy.deepcopy(again)
    assert found.changed() is None
    assert found.changed() is None
    value = None
    assert found.changed() is not None


@pytest.mark.parametrize(
    'start, change',
    [
        ([1], lambda v: v.append(2)),
        ([[1]], lambda v: v[0].append(2)),
        ([1], lambda v: v.__setitem__(0, True)),
        ({'a': 1}, lambda v: v.update(a=2)),
        ({'a': 1}, lambda v: v.update(b=2)),
        ({1, 2}, lambda v: v.add(3)),
        ({1, 2}, lambda v: (v.remove(1), v.add(5))),
        (([1], 2), lambda v: v[0].clear()),
        (np.zeros(3), lambda v: v.fill(1)),
        (np.array([None, 1], object), lambda v: v.__setitem__(0, 3)),
        (bytearray(2), lambda v: v.__setitem__(0, 3)),
        ([Array()], lambda v: v.__setitem__(0, Array())),
        (functools.partial(max, key=[1]), lambda v: v.keywords['key'].append(2)),
        ([].append, lambda v: v(1)),
    ],
)
def test_containers_are_compared_inside_and_writing_is_told(start: Any, change: Any) -> None:
    global value, other
    value, other = copy.deepcopy(start) if not isinstance(start, types.BuiltinMethodType) else [].append, change
    found = clean(reads)
    change(value)
    assert found.changed() is not None

    value = copy.deepcopy(start) if not isinstance(start, types.BuiltinMethodType) else [].append

    def writes() -> None:
        other(value)

    said = watch(writes).written()
    assert said is not None and said.startswith('the function changes global value')


def test_containers_that_hold_themselves() -> None:
    global value
    value = [1]
    value.append(value)
    found = clean(reads)
    value.append(2)
    assert 'has 3 items and had 2' in str(found.changed())


def test_too_much_to_watch_is_said() -> None:
    global value
    value = list(range(10_001))
    found = watch(reads)
    assert found.unwatchable == [f'global value of {HERE} holds too many values to compare at each call']
    assert found.written() == found.unwatchable[0]
    value = list(range(9_000))
    found = clean(reads)
    value[8_999] = 0
    assert 'value[8999]' in str(found.changed())


def test_what_is_not_named_is_not_watched() -> None:
    global value, other
    found = clean(reads)
    other = 5
    assert found.changed() is None
    assert [entry.key for entry in found.entries if entry.kind == 'global'] == ['value']


def inner_helper() -> Any:
    return other


def test_functions_that_run_are_followed_and_others_are_not() -> None:
    global value, other
    value, other = False, 1

    def calls() -> Any:
        return inner_helper() if value else None

    found = clean(calls)
    other = 2
    assert found.changed() is None
    value = True
    found = clean(calls)
    other = 3
    assert found.changed() == f'global other of {HERE} is 3 and was 2 when recorded'


def test_nested_code_is_followed() -> None:
    global value
    value = 1
    found = clean(lambda: [(lambda: value)() for _ in range(2)])
    value = 2
    assert found.changed() is not None


def test_replaced_functions_and_code() -> None:
    def calls() -> Any:
        return inner_helper()

    found = clean(calls)
    code = inner_helper.__code__
    inner_helper.__code__ = (lambda: 7).__code__
    try:
        assert found.changed() == '__code__ of inner_helper is not the code that it was when recorded'
    finally:
        inner_helper.__code__ = code
    assert found.changed() is None
    globals()['inner_helper'] = lambda: 7
    assert 'global inner_helper' in str(found.changed())


def test_closures() -> None:
    rate = 0.1

    def step() -> float:
        return rate

    found = clean(step)
    rate = 0.2
    assert found.changed() == 'variable rate of the closure of step is 0.2 and was 0.1 when recorded'
    rate = 0.1
    assert found.changed() is None


def test_closures_of_functions_that_are_called() -> None:
    made = {}

    def make(name: str, rate: float) -> None:
        def step() -> float:
            return rate

        def set_rate(new: float) -> None:
            nonlocal rate
            rate = new

        made[name] = step, set_rate

    make('a', 0.1)
    make('b', 0.2)
    step = made['a'][0]
    found = clean(lambda: step())
    made['b'][1](0.3)
    assert found.changed() is None
    made['a'][1](0.3)
    assert 'variable rate of the closure of step' in str(found.changed())


def test_a_closure_that_nothing_names_is_found() -> None:
    def make() -> tuple[Any, Any]:
        rate = 0.1

        def step() -> float:
            return rate

        def set_rate(new: float) -> None:
            nonlocal rate
            rate = new

        return step, set_rate

    step, set_rate = make()
    found = watch(lambda function: function(), step, arguments=((step,), {}))
    set_rate(0.2)
    assert found.written() is None and 'variable rate' in str(found.changed())


def test_defaults() -> None:
    def step(rate: float = 0.1, *, seen: Any = []) -> Any:  # noqa: B006
        return rate, seen

    found = clean(step)
    step.__defaults__ = (0.2,)
    assert found.changed() == '__defaults__[0] of step is 0.2 and was 0.1 when recorded'
    step.__defaults__ = (0.1,)
    assert found.changed() is None
    step.__kwdefaults__['seen'].append(1)
    assert '__kwdefaults__["seen"] of step' in str(found.changed())

    def grows(seen: Any = []) -> None:  # noqa: B006
        seen.append(1)

    assert watch(grows).written() == 'the function changes __defaults__[0] of grows: it has 1 item and had 0 before'
