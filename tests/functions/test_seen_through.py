"""Calls of ``globals`` and ``id``, and attributes named ``format`` or ``flags``, of which code shows what they are."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

TOLD = sys.version_info >= (3, 12)  # of lines

FIRST, SECOND = 2.0, 3.0
NAMES = {'constant': 'FIRST', 'both': ['FIRST', 'SECOND']}


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


def by_several(x: Any) -> Any:
    for name in NAMES['both']:
        x = x * globals()[name]
    return x


def by_a_comprehension(x: Any) -> Any:
    return x * sum(globals()[name] for name in NAMES['both'])


def in_a_condition(x: Any) -> Any:
    return x * (globals()['FIRST'] if x.ndim else globals()['SECOND'])


READING = [by_a_text, by_a_variable, by_several, by_a_comprehension, in_a_condition, CHOOSES.of_this]


@pytest.mark.parametrize('function', READING, ids=lambda function: function.__name__)
def test_a_global_that_is_named_counts(cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    here = sys.modules[__name__]

    def alike() -> None:
        assert fn(cp.ones(2)).get().tolist() == function(cp.ones(2)).get().tolist()

    for _ in range(4):
        alike()
    assert launches(fn) >= 2
    for change in (
        lambda: monkeypatch.setattr(here, 'FIRST', 5.0),
        lambda: monkeypatch.setattr(here, 'SECOND', 7.0),
        lambda: monkeypatch.setattr(CHOOSES, 'name', 'SECOND'),
        lambda: monkeypatch.setitem(NAMES, 'both', ['SECOND', 'SECOND']),
    ):
        change()
        for _ in range(3):
            alike()


def test_a_global_that_is_missing_comes(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(x: Any) -> Any:
        try:
            return x * globals()['COMES']
        except KeyError:
            return x

    fn = ck.graphed(work)
    for _ in range(4):
        assert fn(cp.ones(2)).get().tolist() == [1.0, 1.0]
    monkeypatch.setattr(sys.modules[__name__], 'COMES', 4.0, raising=False)
    for _ in range(3):
        assert fn(cp.ones(2)).get().tolist() == [4.0, 4.0]


def handed_on(x: Any) -> Any:
    here = globals()
    return x * here['FIRST']


def asked_by_a_method(x: Any) -> Any:
    return x * globals().get('FIRST', 1.0)


def asked_by_a_name_that_is_made(x: Any) -> Any:
    return x * globals()[f'FIR{"ST"}' + CHOOSES.name[9:]]


class Says:
    @property
    def name(self) -> str:
        return CHOOSES.name


SAYS = Says()


def asked_by_a_property(x: Any) -> Any:
    return x * globals()[SAYS.name]


UNSEEN = [handed_on, asked_by_a_method, asked_by_a_name_that_is_made, asked_by_a_property]


@pytest.mark.parametrize('function', UNSEEN, ids=lambda function: function.__name__)
def test_other_uses_of_globals_are_eager(
    cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    fn = ck.graphed(function)
    for value in (2.0, 2.0, 2.0, 5.0, 5.0):
        monkeypatch.setattr(sys.modules[__name__], 'FIRST', value)
        assert fn(cp.ones(2)).get().tolist() == [value] * 2
    assert launches(fn) == 0


def test_a_function_that_writes_a_global_by_its_name(cp: Any) -> None:
    def work(x: Any) -> Any:
        globals()['WRITTEN'] = globals().get('WRITTEN', 0) + 1
        return x * globals()['WRITTEN']

    fn = ck.graphed(work)
    assert [fn(cp.ones(1)).get().tolist() for _ in range(4)] == [[1.0], [2.0], [3.0], [4.0]]
    del globals()['WRITTEN']


# -- ids ---------------------------------------------------------------------------------------------------------------

HELD: dict[str, Any] = {'object': Chooses()}


def same(x: Any) -> Any:
    one = HELD['object']
    return x * (2 if id(one) == id(HELD['object']) else 3)


def same_as_a_global(x: Any) -> Any:
    one = HELD['object']
    return x * (3 if id(CHOOSES) != id(one) else 2)


def same_as_what_is_made(x: Any) -> Any:
    one = Chooses()
    return x * (2 if id(Chooses()) == id(one) else 3)


def same_as_a_function_gives(x: Any) -> Any:
    one, gives = HELD['object'], HELD.get
    return x * (2 if id(one) == id(gives('object')) else 3)


SAME = [same, same_as_a_global, same_as_what_is_made, same_as_a_function_gives]


@pytest.mark.parametrize('function', SAME, ids=lambda f: f.__name__)
def test_ids_that_are_compared_are_as_good_as_is(
    cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    fn = ck.graphed(function)
    for one in (HELD['object'],) * 4 + (CHOOSES,) * 4 + (Chooses(),) * 3:
        monkeypatch.setitem(HELD, 'object', one)
        assert fn(cp.ones(2)).get().tolist() == function(cp.ones(2)).get().tolist()
    assert launches(fn) >= 4


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


@pytest.mark.parametrize('function', [of_two_that_nobody_holds, kept, reckoned, in_order], ids=lambda f: f.__name__)
def test_other_uses_of_ids_are_eager(cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
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

    def scaled(self, x: Any) -> Any:
        return x * (self.scale if len([self.format]) == 1 else 1.0)


class Text(str):
    scale = 2.0

    def scaled(self, x: Any) -> Any:
        return x * float(next(map(super().format, [MATRIX])))


class Shape:
    @property
    def format(self) -> str:
        return 'csr'


MATRIX = Matrix('csr')
TEXT: dict[str, Any] = {'one': '{0.scale}', 'shape': Shape()}


def of_an_object(x: Any) -> Any:
    one = MATRIX
    formats = [one.format, TEXT['one']]
    return x * (one.scale if formats[0] == 'csr' else 1.0)


def by_a_property(x: Any) -> Any:
    one = TEXT['shape']
    return x * (MATRIX.scale if (one.format,) == ('csr',) else 1.0)


def beside_builtins(x: Any) -> Any:
    one = MATRIX
    return x * (one.scale if one.format == 'csr' and len(builtins.str(one.format)) == 3 else 1.0)


UNOPENED = [of_an_object, by_a_property, beside_builtins, MATRIX.scaled]


@pytest.mark.parametrize('function', UNOPENED, ids=lambda f: f.__name__)
def test_an_attribute_named_format_opens_nothing(
    cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    fn = ck.graphed(function)
    fn(cp.ones(2))
    for scale in (2.0, 2.0, 2.0, 6.0, 6.0, 6.0):
        monkeypatch.setattr(MATRIX, 'scale', scale)
        MATRIX.__dict__['other'] = object()  # read by nobody, as long as not all attributes count
        assert fn(cp.ones(2)).get().tolist() == [scale] * 2
    assert not TOLD or launches(fn) >= 3


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


def of_a_pattern(x: Any) -> Any:
    pattern, plain = PATTERNS['one'], re.compile('')
    return x * (2.0 if isinstance(pattern, re.Pattern) and pattern.flags == plain.flags else 3.0)


def raises(x: Any) -> Any:
    with pytest.raises(ValueError, match='no'):
        raise ValueError('no')
    return x * 2.0


@pytest.mark.parametrize('function', [of_a_pattern, raises], ids=lambda function: function.__name__)
def test_flags_of_a_pattern_are_no_arrays(
    cp: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    fn = ck.graphed(function)
    for text in 'aaaabbb':
        monkeypatch.setitem(PATTERNS, 'one', re.compile(text, re.IGNORECASE if text == 'b' else 0))
        assert fn(cp.ones(2)).get().tolist() == function(cp.ones(2)).get().tolist()
    assert not TOLD or launches(fn) >= 2


def of_an_array(x: Any) -> Any:
    return x * (2.0 if str(x.flags).count('True') > 2 else 3.0)


def of_an_array_later(x: Any) -> Any:
    found = ''
    for one in (PATTERNS['one'], x):
        found += str(one.flags)
    return x * found.count('OWNDATA : True')


@pytest.mark.skipif(not TOLD, reason='which object is asked is told from Python 3.12 on')
@pytest.mark.parametrize('function', [of_an_array, of_an_array_later], ids=lambda function: function.__name__)
def test_flags_of_an_array_keep_it_eager(cp: Any, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    for x in (cp.ones(4), cp.ones(4), cp.ones(4)[:], cp.ones(8)[:4]):
        assert fn(x).get().tolist() == function(x).get().tolist()
    assert launches(fn) == 0
