"""Launches reckon on where a number that was read is passed to a function of the user's, which may do more with it."""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest

import capturekit as ck
from tests.functions.test_number_functions import written
from tests.functions.test_reckoned_reads import ODD, alike, launches, ordinary

HELPERS = """
import functools

def scaled(x, s):
    return x * s

def between(x, low=0.0, top=1.0, *, more=1.0):
    return (x - low) / (top - low + more)

def optional(x, s=None):
    if s is None:
        s = 1.0
    return x * s

def outer(x, s):
    return scaled(x, s * 2) + between(x, top=s)

def half(s):
    return s / 2

def of_two(pair):
    x, s = pair
    return x + s

def again(x, s, count):
    return x * s if count == 0 else again(x + s, s / 2, count - 1)

def decided(x, s):
    return x * s if s > 2.5 else x

def rooted(x, s):
    return x * math.sqrt(s * s)

def named_anew(x, s):
    s = s + 1.0
    t = s
    return x * t

def both(x, s, t):
    return x * s + t

class Way:
    def __init__(self):
        self.last = 0.0

    def go(self, x, s):
        return x - s

    @staticmethod
    def plainly(x, s):
        return x + s

    def through(self, x, s):
        return self.go(x, s) * self.plainly(x, s)

WAY = Way()
"""
#: What a function makes of the number.
TEXTS: dict[str, str] = {
    'a function': 'scaled(x, v)',
    'by its name': 'between(x, top=v), between(x, more=v, low=2.0)',
    'in the place of a default': 'between(x, v, 3.0)',
    'one that asks for None': 'optional(x, v), optional(x)',
    'functions in each other': 'outer(x, v)',
    'one that returns it': 'x * half(v), half(half(v))',
    'in a tuple': 'of_two((x, v))',
    'one that calls itself': 'again(x, v, 3)',
    'one that compares it': 'decided(x, v)',
    'one that gives it to math': 'rooted(x, v)',
    'one that names it anew': 'named_anew(x, v)',
    'another number elsewhere': 'scaled(x, 3) + scaled(x, v) + scaled(x, 2.5)',
    'twice the same': 'both(x, v, v * 2)',
    'a method': 'WAY.go(x, v)',
    'methods in each other': 'WAY.go(x, v) + WAY.go(x, 2.0)',
}
#: A function that shows more of it than arithmetic.
SEERS = """
KEPT = []
SEEN = {}

def kept(x, s):
    KEPT.append(s)
    return x * len(KEPT) * KEPT[-1]

def put(x, s):
    SEEN['last'] = s
    return x * SEEN['last']

def attribute(x, s):
    WAY.last = s
    return x * WAY.last

def typed(x, s):
    return x * (2 if isinstance(s, float) else 3)

def typed_by_is(x, s):
    return x * (2 if type(s) is float else 3)

def as_text(x, s):
    return x * len(f'{s}'), '%r' % s

def as_key(x, s):
    return x * {2.5: 3.0, 3.0: 4.0}.get(s, 5.0)

def as_count(x, s):
    return x * sum(range(int(s) if 0 < s < 9 else 2))

def rounded(x, s):
    return x * round(s if -1e3 < s < 1e3 else 1.0, 1)

def truth(x, s):
    return x * 2 if s else x * 3

def inside(x, s):
    return (lambda: x * s)()

def listed(x, s):
    return [x * t for t in [s, 1.0] if isinstance(t, float)][0]

def made(x, s):
    yield x * s

def any_number(x, *args, **named):
    return x * args[0] * named.get('t', 1.0)

def copied(x, s):
    found = locals()
    return x * found['s']

def not_none(x, s):
    return x * 2 if s is not None and s is not KEPT else x

@functools.lru_cache(4)
def cached(s):
    return len(str(s))

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **named):
        return function(*args, **named)
    return wrapper

@decorated
def below(x, s):
    return x * (s if isinstance(s, float) else 7.0)

class Pair:
    def __init__(self, x, s):
        self.x, self.s = x, s

    def of(self):
        return self.x * (self.s if type(self.s) is float else 9.0)

class OfC:
    go = staticmethod(isinstance)
    asked = isinstance

class OfPython:
    @staticmethod
    def go(s, kind):
        return s * 2.0

def by_either(one, s):
    return one.go(s, float)

def by_any(function, s):
    return function(s, float)

class Other:
    def go(self, x, s):
        return x * s if isinstance(s, float) else x

    def shifted(self, s, kind=float):
        return 3.0 if isinstance(s, kind) else 4.0

    def __call__(self, x, s):
        return x * (2 if type(s) is float else 3)

class Strange:
    @staticmethod
    def shifted(s, kind=1.0):
        return s * kind

OTHER, STRANGE, CALLED = Other(), Strange(), Other()
"""
SEEN: dict[str, str] = {
    **{name: f'{name}(x, v)' for name in (
        'kept put attribute typed typed_by_is as_text as_key as_count rounded truth inside listed any_number copied '
        'not_none below CALLED'
    ).split()},
    'a static method of the same name': 'WAY.through(x, v)',
    'named arguments': 'any_number(x, 2.0, t=v)',
    'a generator': 'next(made(x, v))',
    'a cache': 'x * cached(v)',
    'by map': 'next(map(typed, [x], [v]))',
    'by a partial': 'functools.partial(typed, x)(v)',
    'by a star': 'typed(*(x, v))',
    'an object': 'Pair(x, v).of()',
    'a method of another class': 'sum(one.go(x, v) for one in (WAY, OTHER))',
    'a function in C under the same name': 'x * (OfC.go(v, float) + 1) + WAY.go(x, v)',
    'one call of Python and of C': 'x * by_either(OfPython, v) * (by_either(OfC, v) + 1)',
    'a variable that holds Python and C': 'x * by_any(OfPython.go, v) * (by_any(isinstance, v) + 1)',
    'a method, and a static one of another class': 'x * OTHER.shifted(v) * STRANGE.shifted(v)',
    'a variable that holds one of two': 'x * [half, str][len(KEPT)](v) * (half if x.size else str)(v)',
    'one that is another one later': 'changing(x, v)',
}  # fmt: skip
LATER = """
def changing(x, s):
    global half
    found = half(s) if isinstance(half(1.0), float) else 1.0
    SEEN['calls'] = SEEN.get('calls', 0) + 1
    if SEEN['calls'] == 9:
        def half(s):
            return 3.0 if isinstance(s, float) else 4.0
    return x * found
"""


def made(text: str) -> Any:
    def maker(cp: Any) -> Any:
        return written(text, more=HELPERS + SEERS + LATER, collections=collections, functools=functools)(cp)

    return maker


@pytest.mark.parametrize('how', TEXTS)
def test_it_is_followed_into_functions(sim: Any, how: str) -> None:
    assert launches(alike(sim, made(TEXTS[how]), ordinary(12))) >= 7


@pytest.mark.parametrize('how', TEXTS)
def test_odd_numbers_come_out_alike(sim: Any, how: str) -> None:
    alike(sim, made(TEXTS[how]), [*ordinary(5), *ODD, *ordinary(3), *reversed(ODD)])


@pytest.mark.parametrize('how', SEEN)
def test_functions_that_see_more_are_right(sim: Any, how: str) -> None:
    fn = alike(sim, made(SEEN[how]), [*ordinary(6), *ODD, *ordinary(4)])
    assert not any('eager run' in variant.reason for variant in fn.variants), 'it was launched, and was wrong'


def test_a_static_method_gets_it_as_well(sim: Any) -> None:
    assert launches(alike(sim, made('WAY.plainly(x, v)'), ordinary(12))) >= 7


OF_LIBRARIES = """
import collections
Row = collections.namedtuple('Row', 's')

class Own:
    def _replace(self, s):
        return self

OWN, ROW = Own(), Row(1.0)

def by_name(x, v):
    return x * (2 if isinstance(ROW._replace(s=v).s, float) and v > 5 else 1)

def by_either(x, v):
    for one in (OWN, ROW):
        got = one._replace(s=v)
    return x * (2 if isinstance(got.s, float) and v > 5 else 1)

def work(x):
    v = x[0].item() + 0.0
    return {how}(x, v)
"""


@pytest.mark.parametrize('how', ['by_name', 'by_either'])
def test_a_function_of_a_library_may_see_more(sim: Any, how: str) -> None:
    """Code of a library is not followed, and may be entered where the user's is entered, too."""
    space: dict[str, Any] = {}
    exec(OF_LIBRARIES.replace('{how}', how), space)
    fn = ck.graphed(space['work'])
    for value in (1.5, 2.25, 0.5, 0.75, 1.25, 2.5, 1.75, 9.5, 1.0, 12.5):
        assert fn(sim.arange(3.0) + value).tolist() == space['work'](sim.arange(3.0) + value).tolist(), value
