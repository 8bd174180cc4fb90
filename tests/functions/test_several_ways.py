"""Launches reckon with numbers that decide which way a call goes: each way has a recording, and a launch finds its own.

The same holds for numbers in attributes and in items of dicts that others change between the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from tests.functions.test_reckoned_reads import launches, outcome, told

MODULE = """
class Model:
    def __init__(self, cp):
        self.n, self.rate, self.best, self.bad = 0, 0.5, 1e9, 0
        self.settings = {'rate': 0.5, 'every': 3, 'name': 'sgd'}
        self.weights, self.seen = cp.ones(3), []

def scaled(x, rate):
    return x * rate

def work(one, x):
{body}
    return x
"""
#: What the function decides about, and at how many of 24 calls it is launched at least.
WAYS: dict[str, tuple[str, int]] = {
    'every third call': ('one.n += 1\nif one.n % 3 == 0:\n    x = x * 2\nelse:\n    x = x + one.n', 16),
    'every fourth call, counted': ('one.n += 1\nif one.n % 4 == 0: one.bad += 1\nx = x * one.n', 16),
    'from some call on': ('one.n += 1\nif one.n < 9: x = x * one.n\nelse: x = x * 1.5', 16),
    'three ways': ('one.n += 1\nif one.n % 3 == 0: x = x * 2\nelif one.n % 3 == 1: x = x - one.n\nelse: x = x / 3', 12),
    'two decisions': ('one.n += 1\nif one.n % 2 == 1: x = x * 2\nif one.n % 4 == 0: x = x + one.n', 10),
    'the best so far': (
        'loss = float(x.sum())\nif loss < one.best:\n    one.best = loss\n    one.bad = 0\nelse:\n    one.bad += 1\n'
        'x = x * loss',
        8,
    ),
    'the least so far': ('one.best = min(one.best, float(x.sum()))\nx = x / one.best', 8),
    'a rate that is halved at times': (
        'one.n += 1\nif one.n % 5 == 0:\n    one.rate *= 0.5\none.weights -= one.rate * x\nx = one.weights * 1',
        12,
    ),
    'a number that is read decides': ('v = float(x.sum())\nx = x * v if v > 40 else x - v', 12),
}
OTHERS: dict[str, str] = {
    'an attribute': 'x * one.rate',
    'computed from it': 'x / math.sqrt(one.rate) + one.rate ** 2',
    'an item': "x * one.settings['rate']",
    'both': "one.weights -= one.rate * x * one.settings['rate']; x = one.weights * 1",
    'with a count': 'one.n += 1; x = x * one.rate / one.n',
    'compared': 'x * 2 if one.rate > 0.2 else x * one.rate',
    'passed on': 'scaled(x, one.rate)',
    'kept': 'one.seen.append(one.rate); x = x * one.rate',
    'returned': 'return x * 2, one.rate',
}
SEEN: dict[str, str] = {
    'the type': 'x * (2 if type(one.rate) is float else 3)',
    'as a text': 'x * len(str(one.rate))',
    'as JSON of all': 'x * len(repr(one.settings))',
    'by getattr': 'x * getattr(one, "ra" + "te")',
    'by vars': 'x * sum(v for v in vars(one).values() if type(v) is float)',
    'a truth value': 'x * (2 if one.rate else 3)',
    'rounded': 'x * round(one.rate, 1)',
    'as an index': 'x[int(one.rate * 10) % 3]',
    'items in a loop': 'x * sum(v for v in one.settings.values() if type(v) is float)',
    'an alias': "one.seen[:] = [one.settings]; x = x * one.seen[0]['rate']",
}


def made(cp: Any, text: str) -> tuple[Any, Any]:
    """A model, and the function of this text that works with it."""
    if '=' not in text.split('\n')[0].split('==')[0] and not text.startswith(('one.', 'return')):
        text = f'x = {text}'
    space: dict[str, Any] = {'math': math}
    exec(MODULE.replace('{body}', '\n'.join('    ' + line for line in text.split('\n'))), space)
    model, work = space['Model'](cp), space['work']
    return model, lambda x: work(model, x)


def compared(cp: Any, text: str, calls: int, change: Callable[[Any, int], None] | None = None) -> Any:
    """Call it plainly and graphed, and change its model in between; return the graphed function."""
    (plain_model, plain), (model, function) = made(cp, text), made(cp, text)
    fn = ck.graphed(function)
    for number in range(calls):
        for one in (plain_model, model):
            if change is not None:
                change(one, number)
        x = cp.arange(3.0) + (7 * number) % 19
        assert outcome(fn, x) == outcome(plain, x), number
        assert told(vars(model)) == told(vars(plain_model)), number
    return fn


def less(one: Any, number: int) -> None:
    one.rate = 0.5 * 0.9**number
    one.settings['rate'] = 0.25 + number


def now_and_then(one: Any, number: int) -> None:
    if number % 5 == 4:
        one.rate *= 0.5
        one.settings['rate'] += 1


def of_another_type(one: Any, number: int) -> None:
    one.rate = [0.5, 2, 0.25, 3, 0.75, True][number % 6] if number < 12 else number + 0.5
    one.settings['rate'] = number if number % 2 else float(number)


def given_up(one: Any, number: int) -> None:
    one.rate = [0.5, float('nan'), 0.0, -0.0, float('inf'), 1e-320, -3.0][number % 7]
    one.settings['rate'] = 10**number


@pytest.mark.parametrize('how', WAYS)
def test_each_way_is_launched(sim: Any, how: str) -> None:
    text, least = WAYS[how]
    assert launches(compared(sim, text, 24)) >= least


@pytest.mark.parametrize('how', OTHERS)
def test_what_others_change_is_read_anew(sim: Any, how: str) -> None:
    fn = compared(sim, OTHERS[how], 11, less)
    assert launches(fn) >= 4
    assert any(place.how == 'read anew' for one in fn.variants if one.carried for place in one.carried.places)


@pytest.mark.parametrize('number', range(len(OTHERS | SEEN)), ids=[*OTHERS, *SEEN])
def test_what_others_change_is_right(sim: Any, number: int) -> None:
    change = [less, now_and_then, of_another_type, given_up][number % 4]
    compared(sim, [*(OTHERS | SEEN).values()][number], 12, change)


#: Numbers that move between attributes: an equal one may be put where one was, which is no change.
MOVED = [
    'one.n, one.bad = one.bad, one.n; one.n += 1; x = x * one.bad',
    'one.n, one.bad = one.bad, one.n\nif one.n > 6: one.n = 0\nelse: one.n += 1',
    'one.bad = one.n; one.n = one.bad + 1; x = x * one.n',
    'one.rate, one.best = one.best, one.rate; x = x * one.rate; one.best *= 0.5',
    "d = one.settings; d['every'], d['rate'] = d['rate'], d['every'] + 1; x = x * one.settings['every']",
    "one.n = one.settings['every']; one.settings['every'] = one.bad; one.bad = one.n + 1; x = x * one.n",
    'one.n = int(x.max()) // 9; x = x * one.n',
    'one.n += 1; one.bad = one.n // 4; x = x * one.bad + one.n',
    "one.n += 1; one.settings['every'] = one.n // 3; x = x * one.n",
]


@pytest.mark.parametrize('text', MOVED)
def test_equal_numbers_that_are_put_there_are_right(sim: Any, text: str) -> None:
    assert launches(compared(sim, text, 12)) >= 3


@pytest.mark.parametrize('how', ['every third call', 'the best so far'])
def test_ways_on_a_device(cp: Any, how: str) -> None:
    assert launches(compared(cp, WAYS[how][0], 24)) >= WAYS[how][1]


@pytest.mark.parametrize('how', ['computed from it', 'both'])
def test_others_on_a_device(cp: Any, how: str) -> None:
    assert launches(compared(cp, OTHERS[how], 16, less)) >= 9
