"""Numbers among the arguments that decide something, or that functions take: the host reckons with them at launches."""

from __future__ import annotations

import math
from typing import Any

import pytest

import capturekit as ck
from tests.functions.test_reckoned_reads import launches, outcome, told

MODULE = """
def schedule(n, base=0.1):
    return base * (1 + math.cos(math.pi * n / 20))

def between(x, low, top):
    return x * low if top > 3 else x - top

class Model:
    def __init__(self, cp):
        self.weights, self.rate, self.n = cp.ones(3), 0.5, 0
        self.state = {'n': 0}

    def step(self, x, rate):
        self.weights -= rate * x

MODEL = Model(cp)

def work(x, n):
    {body}
"""
FOLLOWED: dict[str, str] = {
    'a function of math': 'return x * math.sin(n * 0.1)',
    'a schedule': 'return x * schedule(n), x - schedule(n, base=n)',
    'two ways': 'return x * 2 if n % 3 == 0 else x + n',
    'from some call on': 'return x * min(n, 9.0) / max(n, 2)',
    'between two': 'return cp.clip(x, 0, n), cp.where(x > n, x, n), cp.maximum(x, n)',
    'returned': 'return x * n, n + 1, n',
    'through a function': 'return between(x, n, n * 2)',
    'a read of what it made': 'v = (x * n).sum().item(); return x / (v + 1)',
    'with state': 'MODEL.step(x, math.exp(-n)); return MODEL.weights * n',
    'with a count': 'MODEL.n += 1; return x * n / MODEL.n, math.sqrt(n)',
    'put in an attribute': 'MODEL.rate = n * 0.5; return x * MODEL.rate, math.sqrt(n)',
    'calls of the host': 'return cp.linalg.eigh(cp.outer(x, x) + n * cp.eye(3))[0] * 2',
    'a local name': 'm = n; n = m * 2; return x * math.floor(n * 0.5) + m',
    'asked for None': 'return x if n is None else x * abs(n)',
}
SEEN: dict[str, str] = {
    'as an index': 'return x[int(n) % 3]',
    'a range': 'for _ in range(int(n) % 4): x = x + 1\n    return x',
    'a text': 'return x * len(f"{n}"), math.sqrt(n)',
    'the type': 'return x * (2 if type(n) is int else 3), math.sqrt(n)',
    'a truth value': 'return x * n if n else x',
    'in a set': 'return x * len({n, 1, 2})',
    'a default': 'return (lambda m=n: x * m)()',
    'a comprehension': 'return sum([x * n for _ in (1, 2)]) * (1 if n < 5 else 2)',
    'an inner function': 'def inner(): return x * n\n    return inner() * (1 if n < 5 else 2)',
    'a caught error': 'try:\n        return x * math.log(n - 4)\n    except ValueError:\n        return x',
    'compared with what is read': 'return x * 2 if float(x.sum()) < n else x - 1',
    'kept beside it': 'v = float(x.sum()); return x * n, v if v < n else 0.0',
    'the identity': 'MODEL.rate = n; return x * (2 if MODEL.rate is n else 3)',
    'NumPy': 'return x * float(np.exp(-n))',
    'rounded': 'return x * round(n, 1)',
    'an array of it': 'return x * np.array([n, 1.0, 2.0]).sum()',
    'a size': 'return cp.ones(int(n) % 3 + 1) * x[0]',
    'handed on': 'return x * sum(map(math.sqrt, [n]))',
}
ORDINARY: list[Any] = [n * 0.75 + 0.5 for n in range(20)]
ODD: list[Any] = [1.0, 2, 0.0, -0.0, float('nan'), True, 3.5, float('inf'), -1.0, 1e300, 5, 2**60, 4.0, 0.25, None, 7.5]


def made(cp: Any, text: str) -> tuple[Any, Any]:
    """The function, and its model."""
    import numpy as np

    space: dict[str, Any] = {'math': math, 'cp': cp, 'np': np}
    exec(MODULE.replace('{body}', text), space)
    return space['work'], space['MODEL']


def compared(cp: Any, text: str, numbers: list[Any]) -> Any:
    """Call it plainly and graphed with these numbers; return the graphed function."""
    (plain, plain_model), (work, model) = made(cp, text), made(cp, text)
    fn = ck.graphed(work)
    for number, n in enumerate(numbers):
        x = cp.arange(3.0) + (7 * number) % 19
        calls = [outcome(lambda x, one=one, n=n: one(x, n), x) for one in (fn, plain)]
        assert calls[0] == calls[1], (number, n)
        assert told(vars(model)) == told(vars(plain_model)), (number, n)
    return fn


@pytest.mark.parametrize('how', FOLLOWED)
def test_launches_reckon_with_the_number(sim: Any, how: str) -> None:
    assert launches(compared(sim, FOLLOWED[how], ORDINARY[:11])) >= 3


@pytest.mark.parametrize('number', range(len(FOLLOWED | SEEN)), ids=[*FOLLOWED, *SEEN])
@pytest.mark.filterwarnings('ignore:invalid value', 'ignore:overflow', 'ignore:divide by zero')
def test_any_number_is_right(sim: Any, number: int) -> None:
    compared(sim, [*(FOLLOWED | SEEN).values()][number], [*ORDINARY[:5], *ODD[number % 2 :: 2], 1.5])


@pytest.mark.parametrize('how', ['a schedule', 'two ways', 'between two', 'with state', 'calls of the host'])
def test_on_a_device(cp: Any, how: str) -> None:
    assert launches(compared(cp, FOLLOWED[how], ORDINARY[:11])) >= 3
