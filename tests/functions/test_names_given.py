"""Attributes whose names code is given or reckons, and counters in code that reads such attributes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck


class Settings:
    """What the functions below read and count in."""

    factor = 3.0
    chosen_for_all = 'chosen'

    def __init__(self) -> None:
        self.scale = 2.0
        self.other = 1.0
        self.count = 0
        self.names = ['scale']
        self.chosen = 'scale'

    def begin_again(self) -> None:
        Settings.__init__(self)


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


def by_a_variable(one: Settings, x: Any) -> Any:
    for name in one.names:
        x = x * getattr(one, name)
    return x


def by_a_variable_around(one: Settings, x: Any) -> Any:
    name = one.names[0]
    return (lambda y: y * getattr(one, name))(x)


def by_a_text_that_is_made(one: Settings, x: Any) -> Any:
    return x * getattr(one, f'{one.names[0]}')


def with_a_default(one: Settings, x: Any) -> Any:
    name = one.names[0]
    return x * getattr(one, name, 5.0 if x.ndim else 6.0)


def handed_on(one: Settings, x: Any) -> Any:
    for value in map(getattr, [one], one.names):
        x = x * value
    return x


def under_another_name(one: Settings, x: Any) -> Any:
    read = getattr
    name = one.names[0]
    return x * read(one, name)


def by_an_attribute(one: Settings, x: Any) -> Any:
    one.chosen = one.names[0]
    return x * getattr(one, one.chosen)


def by_an_attribute_of_the_class(one: Settings, x: Any) -> Any:
    one.chosen = one.names[0]
    return x * getattr(one, getattr(one, one.chosen_for_all), None)


READING = [
    by_a_variable,
    by_a_variable_around,
    by_a_text_that_is_made,
    with_a_default,
    handed_on,
    under_another_name,
    by_an_attribute,
    by_an_attribute_of_the_class,
]


@pytest.mark.parametrize('function', READING, ids=lambda function: function.__name__)
def test_the_attribute_that_is_named_counts(cp: Any, function: Callable[..., Any]) -> None:
    one = Settings()
    fn = ck.graphed(lambda x: function(one, x))
    for scale in (2.0, 2.0, 2.0, 7.0, 7.0):
        one.scale = scale
        assert fn(cp.ones(2)).get().tolist() == [scale] * 2
    one.names = ['factor']
    assert fn(cp.ones(2)).get().tolist() == [3.0] * 2
    Settings.factor = 4.0
    try:
        assert fn(cp.ones(2)).get().tolist() == [4.0] * 2
    finally:
        Settings.factor = 3.0
    assert launches(fn) >= 2


@pytest.mark.parametrize('function', [by_a_variable, by_a_variable_around, with_a_default], ids=lambda f: f.__name__)
def test_an_attribute_that_nobody_names_does_not(sim: Any, function: Callable[..., Any]) -> None:
    one = Settings()
    fn = ck.graphed(lambda x: function(one, x))
    for number in range(8):
        one.other = float(number)
        fn(sim.ones(2))
    assert launches(fn) >= 5


class Chooses:
    """Names the attributes of :class:`Settings` that functions read."""

    for_all = 'scale'

    def __init__(self) -> None:
        self.name = 'scale'

    @property
    def by_code(self) -> str:
        return self.name

    def __getattr__(self, name: str) -> str:
        if name == 'missing':
            return self.name
        raise AttributeError(name)


class Looks(Chooses):
    def __getattribute__(self, name: str) -> Any:
        if name == 'name':
            return 'factor'
        return super().__getattribute__(name)


def changes_it_on_the_way(one: Settings, chooses: Chooses, x: Any) -> Any:
    before = chooses.name

    def changed() -> None:
        chooses.name = 'factor'

    found = getattr(one, chooses.name, changed())
    chooses.name = before
    return x * found


CHOSEN: list[Callable[..., Any]] = [
    lambda one, chooses, x: x * getattr(one, chooses.name),
    lambda one, chooses, x: x * getattr(one, chooses.name, 5.0),
    lambda one, chooses, x: x * getattr(one, chooses.for_all),
    lambda one, chooses, x: x * getattr(one, chooses.by_code),
    lambda one, chooses, x: x * getattr(one, chooses.missing),
    lambda one, chooses, x: [x * getattr(one, chooses.name) for _ in range(2)][1],
    changes_it_on_the_way,
]


@pytest.mark.parametrize('kind', [Chooses, Looks])
@pytest.mark.parametrize('number', range(len(CHOSEN)))
def test_a_name_in_an_attribute_goes_as_eagerly(cp: Any, kind: type[Chooses], number: int) -> None:
    function, x = CHOSEN[number], cp.ones(2)
    one, chooses = Settings(), kind()
    fn = ck.graphed(lambda x: function(one, chooses, x))

    def alike() -> None:
        assert fn(x).get().tolist() == function(one, chooses, x).get().tolist()

    for _ in range(3):
        alike()
    one.scale, one.other, Settings.factor = 7.0, 8.0, 9.0
    try:
        alike()
        chooses.name = 'other'
        for _ in range(2):
            alike()
        chooses.__dict__['for_all'] = chooses.__dict__['missing'] = 'other'
        for _ in range(2):
            alike()
    finally:
        Settings.factor = 3.0


def by_the_shape(one: Settings, x: Any) -> Any:
    one.count += x.shape[0]
    return x * getattr(one, 'scale')  # noqa: B009


def beside_a_name(one: Settings, x: Any) -> Any:
    one.count -= 2
    return by_a_variable(one, x)


@contextlib.contextmanager
def opened(one: Settings) -> Iterator[None]:
    one.count += 1
    yield


def beside_code_of_python(one: Settings, x: Any) -> Any:
    with opened(one):
        return x * 2


def of_what_it_makes(one: Settings, x: Any) -> Any:
    one.count += 1
    inner = Settings()
    inner.count += 3
    return x * inner.scale


@pytest.mark.parametrize(
    'function', [by_the_shape, beside_a_name, beside_code_of_python, of_what_it_makes], ids=lambda f: f.__name__
)
def test_counters_beside_it_go_on(cp: Any, function: Callable[..., Any]) -> None:
    plain, one = Settings(), Settings()
    fn = ck.graphed(lambda x: function(one, x))
    for _ in range(8):
        assert fn(cp.ones(2)).get().tolist() == function(plain, cp.ones(2)).get().tolist()
        assert one.count == plain.count
    assert launches(fn) >= 4


class SeesTheNumber:
    """An amount that looks at what it is added to."""

    def __radd__(self, number: int) -> int:
        return number * 2 + 1


AMOUNT = SeesTheNumber()


def by_an_amount_that_sees_it(one: Settings, x: Any) -> Any:
    one.count += AMOUNT  # type: ignore[assignment]
    return x * 2


class Meta(type):
    """Makes classes from a dict, as ``type`` does."""


METHODS = {'__ra' + 'dd__': lambda _self, number: number + 1 + number // 5}


def by_an_amount_of_a_class_made_by_a_call(one: Settings, x: Any) -> Any:
    amount = Meta('Amount', (), METHODS)()
    one.count += amount
    return x * 2


def from_the_beginning(one: Settings, x: Any) -> Any:
    one.count += 1
    if one.scale > 0:
        one.begin_again()
    return x * 2


def by_what_is_given(one: Settings, x: Any) -> Any:
    one.count += 1
    name = ['count'][0]
    return x * getattr(one, name)


def put_by_what_is_given(one: Settings, x: Any) -> Any:
    one.count += 1
    for name in ('count',):
        setattr(one, name, 2 * getattr(one, name))
    return x * 2


def halves(one: Settings, x: Any) -> Any:
    one.count += 0.5  # type: ignore[assignment]
    one.count += 0.5  # type: ignore[assignment]
    return x * 2


@pytest.mark.parametrize(
    'function',
    [
        by_an_amount_that_sees_it,
        by_an_amount_of_a_class_made_by_a_call,
        from_the_beginning,
        by_what_is_given,
        put_by_what_is_given,
        halves,
    ],
    ids=lambda f: f.__name__,
)
def test_numbers_that_do_more_than_count(cp: Any, function: Callable[..., Any]) -> None:
    plain, one = Settings(), Settings()
    fn = ck.graphed(lambda x: function(one, x))
    for _ in range(8):
        assert fn(cp.ones(2)).get().tolist() == function(plain, cp.ones(2)).get().tolist()
        assert (type(one.count), one.count) == (type(plain.count), plain.count)


def test_the_same_reason_three_times_is_enough(sim: Any) -> None:
    import time

    one = Settings()

    def timed(x: Any) -> Any:
        one.count = one.count * 2 + 1
        one.other = time.time()
        return x * 2

    fn = ck.graphed(timed)
    for number in range(10):
        assert fn(sim.ones(2)).get().tolist() == [2.0, 2.0] and one.count == 2 ** (number + 1) - 1
    (variant,) = fn.variants
    assert variant.state == 'eager' and variant.environment is None
