"""Attributes whose names reach ``getattr`` and its like on other ways than by a variable; amounts that see a number.

Each program is run eagerly and graphed, each with a module of its own, and what it reads changes between the calls.
"""

from __future__ import annotations

import types
from typing import Any

import pytest

import capturekit as ck

SHARED = """
import functools, operator
class S:
    factor = 3.0
    def __init__(self):
        self.scale = 2.0
        self.count = 0
ONE = S()
NAMES = ['scale']
TEXT = '{0.scale}'
AGAIN = {number: number + (1 if number < 5 else 7) for number in range(99)}
def changed(number):
    if number in (2, 3, 5):
        ONE.scale += 1.5
"""

READING = {
    'map beside a call': 'def work(x): return x * sum(map(getattr, [ONE], NAMES), float(0))',
    'reduce beside a call': 'def work(x): return x * max(functools.reduce(getattr, NAMES, ONE), float(0))',
    'its result called': """
class Doubles:
    def __call__(self, x): return x * 2
class Triples:
    def __call__(self, x): return x * 3
ONE.scale = Doubles()
def work(x):
    name = NAMES[0]
    return getattr.__call__(ONE, name)(x)
def changed(number):
    if number == 4:
        ONE.scale = Triples()
""",
    'one name or another': """
def work(x):
    name, other = NAMES[0], 'factor'
    return x * getattr(ONE, name or other)
""",
    'a variable of a comprehension': """
def work(x):
    name = 'factor'
    read = lambda: [getattr(ONE, name) for name in NAMES][0] + 0.0 * len(name)
    inner = lambda: ([getattr(ONE, name) for name in NAMES][0], name)[0]
    return x * inner() + 0.0 * read()
""",
    'in a namespace of its own': """
class Space(dict):
    def __getitem__(self, key): return NAMES[0] if key == 'name' else dict.__getitem__(self, key)
class Meta(type):
    @classmethod
    def __prepare__(cls, name, bases): return Space(name='factor')
    def __new__(cls, name, bases, space): return type.__new__(cls, name, bases, dict(space))
def work(x):
    name = 'factor'
    class Inner(metaclass=Meta):
        value = getattr(ONE, name)
    return x * Inner.value
""",
    'by the dictionary': "def work(x): return x * getattr(ONE, '__dict__')[NAMES[0]]",
    'by the method that reads': "def work(x): return x * getattr(ONE, '__getattribute__')(NAMES[0])",
    'by a method without an object': 'READ = object.__getattribute__\ndef work(x): return x * READ(ONE, NAMES[0])',
    'by attrgetter': 'from operator import attrgetter as made\ndef work(x): return x * made(NAMES[0])(ONE)',
    'by attrgetter in a list': 'MADE = [operator.attrgetter]\ndef work(x): return x * MADE[0](NAMES[0])(ONE)',
    'by a format that is handed on': 'def work(x): return x * float(list(map(TEXT.format, [ONE]))[0])',
    'by the method of all texts': 'def work(x): return x * float(list(map(str.format, [TEXT], [ONE]))[0])',
    'by the globals': """
SCALE = 2.0
def other(): return SCALE
def work(x): return x * getattr(other, '__globals__')[NAMES[0].upper()]
def changed(number):
    global SCALE
    SCALE += number
""",
    'by the defaults': """
def other(scale=2.0): return scale
def work(x): return x * other.__defaults__[0]
def changed(number): other.__defaults__ = (float(number),)
""",
}

COUNTING = {
    'a function under another name': """
class Amount:
    def seen(self, number): return AGAIN[number]
    __radd__ = seen
AMOUNT = Amount()
""",
    'a method of a dict': 'class Amount:\n    __radd__ = AGAIN.__getitem__\nAMOUNT = Amount()',
    'a class in an array': """
import numpy as np
class Amount:
    __radd__ = lambda self, number: AGAIN[number]
AMOUNT = np.array(Amount(), dtype=object)
""",
    'a class that is made': """
class Maker:
    @property
    def amount(self):
        class Amount:
            __radd__ = seen
        return Amount()
def seen(self, number): return AGAIN[number]
MAKER = Maker()
def work(x):
    ONE.count += MAKER.amount
    return x * 2
""",
    'a class of a dict': """
def seen(self, number): return AGAIN[number]
METHODS = {'__radd__': seen}
def work(x):
    amount = type('Amount', (), METHODS)()
    ONE.count += amount
    return x * 2
""",
}
COUNTED = 'def work(x):\n    ONE.count += AMOUNT\n    return x * 2\n'


def module(text: str) -> Any:
    made = types.ModuleType('handed_on')
    exec(compile(SHARED + text, 'handed_on.py', 'exec'), made.__dict__)
    return made


def compared(cp: Any, text: str) -> None:
    plain, other = module(text), module(text)
    fn = ck.graphed(other.work)
    for number in range(9):
        x = cp.arange(3.0) + number
        assert fn(x).get().tolist() == plain.work(x).get().tolist(), number
        assert (type(other.ONE.count), other.ONE.count) == (type(plain.ONE.count), plain.ONE.count), number
        plain.changed(number)
        other.changed(number)


@pytest.mark.parametrize('name', READING)
def test_what_is_read_on_another_way_counts(cp: Any, name: str) -> None:
    compared(cp, READING[name])


@pytest.mark.parametrize('name', COUNTING)
def test_an_amount_that_sees_the_number_is_not_counted(cp: Any, name: str) -> None:
    compared(cp, COUNTED + COUNTING[name])
