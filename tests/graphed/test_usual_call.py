"""The quick look at a call's arguments: it takes no call for one of the last kind that is of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.twins import plain


class Text(str):
    """A text that is equal to another one and of another class."""


#: Arguments of a call, as expressions: equal ones of other types, and arrays of every layout, alone and in containers.
CALLS: dict[str, str] = {
    'numbers': """a, 0.0 | a, -0.0 | a, float('nan') | a, 1.0 | a, 1 | a, True | a, 0 | a, False | a, 2.5 | a, '1'
        a, Text('1') | a, b'1' | a, None | a, 1j | a, (1, 2) | a, (1, 2.0) | a, ''.join(['1'])""",
    'one array': """a, | a[:0], | cp.ones(()), | cp.ones(1), | cp.ones(6), | cp.ones(12)[::2], | cp.ones((2, 3)),
        cp.ones((3, 2)), | cp.ones((3, 2)).T, | cp.ones((2, 3), order='F'), | cp.ones((6, 1)), | cp.ones((6, 4))[:, :1],
        cp.ones((7, 6))[:1], | cp.ones((1, 6)), | cp.ones((0, 3)), | cp.ones(6, 'f4'), | cp.ones(6, 'i8'),
        cp.ones((1, 2, 3)), | np.ones(6),""",
    'two arrays': """a, b | b, a | a, a | a, c | a, | a, b, b | a, b[:2] | a, cp.ones(3, 'f4') | a, cp.ones(6)[::2]
        a, np.ones(3) | a, a[:1]""",
    'three arrays': 'a, b, c | a, b, a | b, a, c | c, b, b | a, a, a',
    'containers': """a, [b] | a, [c] | a, [a] | a, [] | a, [b, b] | a, [b, c] | a, (b,) | a, b | a, [1]
        a, [np.zeros(3)] | a, [b, 1] | [a], [a] | [a], [b] | twice, twice | a, [b[:2]] | a, (b, c)""",
    'dicts': """{'a': a, 'b': b}, c | {'a': b, 'b': a}, c | {'b': b, 'a': a}, c | {'a': a}, c | {'a': a, 'c': b}, c
        {'a': a, 'b': a}, c | {'a': a, 'b': 1}, c | {Text('a'): a, 'b': b}, c | [a, b], c | {'a': a, 'b': c[:2]}, c
        {1: a}, c | {1.0: a}, c | {Text('a'): a}, c""",
}  # fmt: skip


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return [(type(key).__name__, key, shown(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [shown(one) for one in value]
    return value + 1 if hasattr(value, 'dtype') else (type(value).__name__, repr(value))


def told(*given: Any) -> Any:
    """A function whose result shows all of its arguments; it changes the first array in place."""
    first = next(iter(given[0].values())) if isinstance(given[0], dict) else given[0]
    first = first[0] if isinstance(first, list) else first
    if first.ndim:
        first += 1
    return [shown(one) for one in given]


@pytest.mark.parametrize('what', CALLS)
def test_each_call_after_each_other_is_as_without_recording(cp: Any, what: str) -> None:
    texts = [text.strip() for line in CALLS[what].split('\n') for text in line.split(' | ')]

    def outcome(fn: Any, text: str) -> Any:
        a = cp.arange(3.0)
        names = {'cp': cp, 'np': np, 'a': a, 'b': cp.zeros(3), 'c': cp.ones(3), 'Text': Text, 'twice': [a]}
        given = eval(f'({text})', names)
        return plain((fn(*given), given), cp)

    right = {text: outcome(told, text) for text in texts}
    for number, first in enumerate(texts):
        fn = ck.graphed(told, limit=100)
        for _ in range(3):
            outcome(fn, first)
        for other in texts[number + 1 :]:
            assert outcome(fn, other) == right[other], (first, other)
            assert outcome(fn, first) == right[first], (other, first)
