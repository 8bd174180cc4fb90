"""What libraries and Python itself hold, and what the user may put in its place."""

from __future__ import annotations

import datetime
import fractions
import locale
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import capturekit as ck

HALF: Any = fractions.Fraction(1, 2)
LONG = 10**1000
FORM, DAY, MONTH = 'n', datetime.date(2020, 1, 1), '%B'


class Typed:
    rate: int


Typed.__annotations__ = {'rate': int}


@contextmanager
def put(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Something else in an attribute, or in an item of a dict."""
    items = type(holder) is dict
    inside = holder if items else vars(holder)
    had = inside.get(name)
    change = holder.__setitem__ if items else lambda name, value: setattr(holder, name, value)
    remove = holder.__delitem__ if items else lambda name: delattr(holder, name)
    change(name, value)
    try:
        yield
    finally:
        remove(name) if had is None else change(name, had)


def attribute() -> float:
    try:
        return float(HALF.rate)
    except AttributeError:
        return 3.0


@pytest.mark.parametrize(
    'rate',
    [
        lambda: len(f'{LONG:n}'), lambda: len(f'{7:>9n}'), lambda: len(f'{7:{FORM}}'), lambda: len(format(7, FORM)),
        lambda: len('{:{}}'.format(7, FORM)), lambda: len(next(map(f'{{:{FORM}}}'.format, [7]))),
        lambda: len((7).__format__(FORM)), lambda: len(DAY.strftime(MONTH)), lambda: len(f'{DAY}'),
    ],
)  # fmt: skip
def test_the_locale_is_compared_where_it_may_count(cp: Any, monkeypatch: Any, rate: Callable[[], float]) -> None:
    """Few locales are installed everywhere, so another one is pretended."""
    graphed = ck.graphed(lambda x: x * rate())
    for _ in range(3):
        graphed(cp.ones(2))
    launches = sum(variant.launches for variant in graphed.variants)
    monkeypatch.setattr(locale, 'setlocale', lambda category: 'another')
    graphed(cp.ones(2))
    assert sum(variant.launches for variant in graphed.variants) == launches > 0
