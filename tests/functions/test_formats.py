# ruff: noqa: UP030, UP032
"""What ``str.format`` reads of the objects that it is given: nothing, unless the text names attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


class Inner:
    def __init__(self) -> None:
        self.depth = 1.0


class Thing:
    def __init__(self) -> None:
        self.rate, self.width, self.inner, self.items = 2.0, 8, Inner(), {'one': 2.0}

    @property
    def half(self) -> float:
        return self.rate / 2


class Text(str):
    """A text of the user's."""


TEXTS: dict[str, str] = {'one': '{0.rate}'}


def plainly(thing: Thing, x: Any) -> Any:
    return x * float('{}'.format(thing.rate))


def by_a_text(thing: Thing, x: Any) -> Any:
    return x * float(TEXTS['one'].format(thing))


def by_a_property(thing: Thing, x: Any) -> Any:
    return x * float('{thing.half}'.format(thing=thing))


def by_a_mapping(thing: Thing, x: Any) -> Any:
    return x * float('{thing.rate}'.format_map({'thing': thing}))


def in_a_format(thing: Thing, x: Any) -> Any:
    return x * len('{0:>{1.width}}'.format('a', thing))


def of_the_class_of_texts(thing: Thing, x: Any) -> Any:
    return x * float(str.format(TEXTS['one'], thing))


def of_a_text_of_the_users(thing: Thing, x: Any) -> Any:
    return x * float(Text('{0.rate}').format(thing))


def in_a_width(thing: Thing, x: Any) -> Any:
    return x * len('{0:>{1}}'.format('a', thing.width))


PLAIN = [plainly, in_a_width]
NAMING = [by_a_text, by_a_property, by_a_mapping, in_a_format, of_the_class_of_texts, of_a_text_of_the_users]
CHANGES: list[Callable[[Thing], None]] = [
    lambda thing: setattr(thing, 'rate', 3.0),
    lambda thing: setattr(thing, 'width', 5),
    lambda thing: setattr(thing.inner, 'depth', 7.0),
    lambda thing: setattr(thing, 'inner', Inner()),
    lambda thing: thing.items.update(one=9.0),
    lambda thing: setattr(thing, 'rate', 11.0),
]


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('function', [*PLAIN, *NAMING], ids=lambda function: function.__name__)
def test_the_attributes_in_a_text_count(cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    thing = Thing()
    fn = ck.graphed(lambda x: function(thing, x))

    def alike() -> None:
        for _ in range(3):
            assert fn(cp.ones(2)).get().tolist() == function(thing, cp.ones(2)).get().tolist()

    alike()
    for change in CHANGES:
        change(thing)
        alike()
    monkeypatch.setitem(TEXTS, 'one', '{0.inner.depth}')
    alike()
    thing.inner.depth = 4.0
    alike()


@pytest.mark.parametrize('function', PLAIN, ids=lambda function: function.__name__)
def test_without_such_attributes_no_others_count(cp: Any, function: Callable[..., Any]) -> None:
    thing = Thing()
    fn = ck.graphed(lambda x: function(thing, x))
    for _ in range(6):
        thing.other = object()  # type: ignore[attr-defined]
        fn(cp.ones(2))
    assert launches(fn) >= 3


def test_a_text_that_opens_an_object(cp: Any) -> None:
    thing = Thing()
    fn = ck.graphed(lambda x: x * float('{0.__dict__[rate]}'.format(thing)))
    for rate in (2.0, 2.0, 2.0, 5.0, 5.0):
        thing.rate = rate
        assert fn(cp.ones(2)).get().tolist() == [rate] * 2
