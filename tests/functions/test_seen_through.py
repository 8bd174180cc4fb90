"""Code that asks for its globals, for addresses, for the attributes in a text, and for the flags of arrays."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

FIRST = 2.0


class Chooses:
    def __init__(self) -> None:
        self.name = 'FIRST'

    def of_this(self, x: Any) -> Any:
        return x * globals()[self.name]


CHOOSES = Chooses()


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


def by_a_text(x: Any) -> Any:
    return x * globals()['FIRST']


def by_a_variable(x: Any) -> Any:
    name = CHOOSES.name
    return x * globals()[name]


def handed_on(x: Any) -> Any:
    here = globals()
    return x * here['FIRST']


def asked_by_a_method(x: Any) -> Any:
    return x * globals().get('FIRST', 1.0)


@pytest.mark.parametrize(
    'function', [by_a_text, by_a_variable, handed_on, asked_by_a_method, CHOOSES.of_this], ids=lambda f: f.__name__
)
def test_code_that_asks_for_its_globals_is_eager(
    cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    fn = ck.graphed(function)
    for value in (2.0, 2.0, 2.0, 5.0, 5.0):
        monkeypatch.setattr(sys.modules[__name__], 'FIRST', value)
        assert fn(cp.ones(2)).get().tolist() == [value] * 2
    assert launches(fn) == 0


# -- ids ---------------------------------------------------------------------------------------------------------------

HELD: dict[str, Any] = {'object': Chooses()}


def same(x: Any) -> Any:
    one = HELD['object']
    return x * (2 if id(one) == id(HELD['object']) else 3)


def same_as_a_global(x: Any) -> Any:
    one = HELD['object']
    return x * (3 if id(CHOOSES) != id(one) else 2)


def of_two_that_nobody_holds(x: Any) -> Any:
    return x * (2 if id(Chooses()) == id(Chooses()) else 3)


def kept(x: Any) -> Any:
    number = id(x)
    return x * (2 if number == id(HELD['object']) else 3)


def reckoned(x: Any) -> Any:
    return x * (id(HELD['object']) % 1000)


def in_order(x: Any) -> Any:
    one = HELD['object']
    return x * (2 if id(one) < id(CHOOSES) else 3)


OF_IDS = [same, same_as_a_global, of_two_that_nobody_holds, kept, reckoned, in_order]


@pytest.mark.parametrize('function', OF_IDS, ids=lambda function: function.__name__)
def test_uses_of_ids_are_eager(cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    for one in (HELD['object'],) * 3 + (CHOOSES,) * 3:
        monkeypatch.setitem(HELD, 'object', one)
        found = fn(cp.ones(2)).get().tolist()
        assert function is of_two_that_nobody_holds or found == function(cp.ones(2)).get().tolist()
    assert launches(fn) == 0


# -- an attribute named format -----------------------------------------------------------------------------------------


class Matrix:
    """Has an attribute of the name of the method by which a text reads attributes."""

    def __init__(self, format: Any) -> None:
        self.format = format
        self.scale = 2.0


class Text(str):
    scale = 2.0

    def scaled(self, x: Any) -> Any:
        return x * float(next(map(super().format, [MATRIX])))


MATRIX = Matrix('csr')
TEXT: dict[str, Any] = {'one': '{0.scale}'}


def of_a_text(x: Any) -> Any:
    text = TEXT['one']
    return x * float(next(map(text.format, [MATRIX])))


def of_a_text_in_a_loop(x: Any) -> Any:
    for text in (MATRIX, TEXT['one']):
        read = text.format
    return x * float(next(map(read, [MATRIX])))


def of_a_text_in_a_comprehension(x: Any) -> Any:
    readers = [text.format for text in (MATRIX, TEXT['one'])]
    return x * float(next(map(readers[1], [MATRIX])))


def of_a_text_on_the_same_line(x: Any) -> Any:
    text = MATRIX
    return x * float(next(map((text := TEXT['one']).format if text else text.format, [MATRIX])))


def of_a_class(x: Any) -> Any:
    text = str
    return x * float(next(map(text.format, [TEXT['one']], [MATRIX])))


def of_an_attribute(x: Any) -> Any:
    one = Matrix(TEXT['one'].format)
    return x * float(next(map(one.format, [MATRIX])))


def of_a_text_of_numpy(x: Any) -> Any:
    text = np.str_(TEXT['one'])
    return x * float(next(map(text.format, [MATRIX])))


def of_a_base(x: Any) -> Any:
    return Text('{0.scale}').scaled(x)


TEXTS = [
    of_a_text, of_a_text_in_a_loop, of_a_text_in_a_comprehension, of_a_text_on_the_same_line, of_a_class,
    of_an_attribute, of_a_text_of_numpy, of_a_base,
]  # fmt: skip


@pytest.mark.parametrize('function', TEXTS, ids=lambda function: function.__name__)
def test_what_a_text_reads_counts(cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    for scale in (2.0, 2.0, 2.0, 6.0, 6.0, 8.0, 8.0):
        monkeypatch.setattr(MATRIX, 'scale', scale)
        assert fn(cp.ones(2)).get().tolist() == [scale] * 2


# -- an attribute named flags ------------------------------------------------------------------------------------------

PATTERNS: dict[str, Any] = {'one': re.compile('a')}


def of_an_array(x: Any) -> Any:
    return x * (2.0 if str(x.flags).count('True') > 2 else 3.0)


def of_an_array_later(x: Any) -> Any:
    found = ''
    for one in (PATTERNS['one'], x):
        found += str(one.flags)
    return x * found.count('OWNDATA : True')


@pytest.mark.parametrize('function', [of_an_array, of_an_array_later], ids=lambda function: function.__name__)
def test_flags_of_an_array_keep_it_eager(cp: Any, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    for x in (cp.ones(4), cp.ones(4), cp.ones(4)[:], cp.ones(8)[:4]):
        assert fn(x).get().tolist() == function(x).get().tolist()
    assert launches(fn) == 0
