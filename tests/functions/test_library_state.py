"""What libraries and Python itself hold, and what the user may put in its place."""

from __future__ import annotations

import builtins
import datetime
import enum
import fractions
import json
import locale
import sys
import types
import typing
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import capturekit as ck

HALF: Any = fractions.Fraction(1, 2)
TABLE: Any = UserDict(a=1)
LONG = 10**1000
FORM, DAY, MONTH = 'n', datetime.date(2020, 1, 1), '%B'
TRUE = True


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


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


@contextmanager
def set_by(function: Callable[[Any], Any], before: Any, value: Any) -> Iterator[None]:
    function(value)
    try:
        yield
    finally:
        function(before)


def attribute() -> float:
    try:
        return float(HALF.rate)
    except AttributeError:
        return 3.0


def index() -> float:
    try:
        return [4.0, 5.0][fractions.Fraction(HALF * 2)]  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return 3.0


def digits() -> float:
    try:
        return float(len(f'{LONG}'))
    except ValueError:
        return 3.0


def depth(count: int = 60) -> float:
    return 2.0 if count == 0 else depth(count - 1)


def deep() -> float:
    try:
        return depth()
    except RecursionError:
        return 3.0


def inverted() -> float:
    try:
        return float(~TRUE)
    except DeprecationWarning:
        return 3.0


def found() -> float:
    return 2.0 if Mode(1) is Mode.FAST else 3.0


def named() -> float:
    return 2.0 if Mode['FAST'] is Mode.FAST else 3.0


def missing() -> float:
    try:
        return float(Mode(7).value)
    except ValueError:
        return 3.0


def imported() -> float:
    import math

    return math.pi


def made() -> float:
    class Rated:
        rate = 2.0

    return Rated.rate


def with_rate(*args: Any, **kwargs: Any) -> Any:
    cls = BUILD(*args, **kwargs)
    cls.rate = 3.0
    return cls


def shallow() -> Any:
    frame: Any = sys._getframe()
    count = 0
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return set_by(sys.setrecursionlimit, sys.getrecursionlimit(), count + 50)


BUILD: Any = builtins.__build_class__
IMPORT: Any = builtins.__import__
PI = types.SimpleNamespace(pi=3.0)
ENCODER: Any = vars(json)['_default_encoder']
Case = tuple[Callable[[], float], Callable[[], Any]]
CASES: dict[str, Case] = {
    'a truth value': (lambda: 2.0 if TABLE else 3.0, lambda: put(UserDict, '__bool__', lambda self: False)),
    'an attribute': (attribute, lambda: put(fractions.Fraction, '__getattr__', lambda self, name: 2.0)),
    'an index': (index, lambda: put(fractions.Fraction, '__index__', lambda self: 1)),
    'an object of a module': (lambda: len(json.dumps([1, 2])), lambda: put(ENCODER, 'item_separator', ' ,  ')),
    'a member of a value': (found, lambda: put(Mode._value2member_map_, 1, Mode.SLOW)),  # type: ignore[arg-type]
    'a member of a name': (named, lambda: put(Mode._member_map_, 'FAST', Mode.SLOW)),
    'a missing member': (missing, lambda: put(Mode, '_missing_', classmethod(lambda cls, value: cls.SLOW))),
    'annotations': (
        lambda: float(len(typing.get_type_hints(Typed))), lambda: put(Typed.__annotations__, 'other', float),
    ),
    'an import': (
        imported,
        lambda: put(builtins, '__import__', lambda name, *rest: PI if name == 'math' else IMPORT(name, *rest)),
    ),
    'a class statement': (made, lambda: put(builtins, '__build_class__', with_rate)),
    'calls in calls': (deep, shallow),
    'digits': (digits, lambda: set_by(sys.set_int_max_str_digits, sys.get_int_max_str_digits(), 700)),
}  # fmt: skip


@pytest.mark.parametrize('name', CASES)
def test_a_change_of_what_a_library_holds_is_seen(cp: Any, name: str) -> None:
    rate, changed = CASES[name]

    def fn(x: Any) -> Any:
        return x * rate()

    graphed = ck.graphed(fn)
    plain = fn(cp.ones(2)).get().tolist()
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == plain
    assert sum(variant.launches for variant in graphed.variants) > 0
    with changed():
        other = fn(cp.ones(2)).get().tolist()
        for _ in range(3):
            assert graphed(cp.ones(2)).get().tolist() == other != plain
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == plain


@pytest.mark.skipif(sys.version_info < (3, 12), reason='the complement of a truth value does not warn')
def test_a_warning_without_a_call_becomes_an_error(cp: Any) -> None:
    def fn(x: Any) -> Any:
        return x * inverted()

    graphed = ck.graphed(fn)
    with warnings.catch_warnings():
        for action, result in (('ignore', -2.0), ('error', 3.0), ('ignore', -2.0)):
            warnings.simplefilter(action)  # type: ignore[arg-type]
            for _ in range(3):
                assert graphed(cp.ones(2)).get().tolist() == [result] * 2
    assert sum(variant.launches for variant in graphed.variants) > 0


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


def test_an_encoding_that_is_registered_later(cp: Any) -> None:
    import codecs

    def rate() -> float:
        try:
            return float(len('ab'.encode('of this test')))
        except LookupError:
            return 3.0

    def search(name: str) -> Any:
        return codecs.lookup('utf-16') if name == 'of_this_test' else None

    graphed = ck.graphed(lambda x: x * rate())
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == [3.0, 3.0]
    codecs.register(search)
    try:
        for _ in range(3):
            assert graphed(cp.ones(2)).get().tolist() == [6.0, 6.0]
    finally:
        codecs.unregister(search)
