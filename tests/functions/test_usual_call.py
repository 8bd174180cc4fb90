"""The quick look at a call's arguments: it takes no call for one of the last kind that is of another."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.examples import examples
from tests.twins import plain


class Text(str):
    """A text that is equal to another one and of another class."""


#: Arguments, as expressions: equal ones of other types, and arrays of every layout, alone and in containers.
NUMBERS = """0.0 | -0.0 | float('nan') | 1.0 | 1 | True | 0 | False | 2.5 | '1' | Text('1') | b'a' | None | 1j | (1, 2)
    (1, 2.0)""".replace('\n', '|').split('|')
ARRAYS = """a | b | cp.ones(()) | cp.ones(1) | cp.ones(12)[::2] | cp.ones((2, 3)) | cp.ones((3, 2)) | cp.ones((3, 2)).T
    cp.ones((2, 3), order='F') | cp.ones((6, 1)) | cp.ones((6, 4))[:, :1] | cp.ones((7, 6))[:1] | cp.ones((1, 6))
    cp.ones((0, 3)) | cp.ones((0,)) | cp.ones(6, 'f4') | cp.ones(6, 'i8') | cp.ones((1, 2, 3)) | [a] | [b] | [a, b]
    (a, b) | (b,) | [] | [a, 1] | {'a': a, 'b': b} | {'b': b, 'a': a} | {'a': a} | {'a': a, 'c': b} | {'a': a, 'b': a}
    {'a': a, 'b': 1} | {Text('a'): a, 'b': b} | {1: a}""".replace('\n', '|').split('|')
VALUES = st.sampled_from(NUMBERS) | st.sampled_from(ARRAYS)


def told(x: Any, one: Any, *, two: Any = None) -> Any:
    """A function whose result shows all of its arguments."""
    return x * 2.0, [(type(given).__name__, given) for given in (one, two)], one is two


@given(st.lists(st.tuples(VALUES, VALUES, st.booleans()), min_size=4, max_size=12))
@settings(max_examples=examples(60), deadline=None)
def test_calls_in_any_order_answer_as_without_recording(calls: list[tuple[str, str, bool]]) -> None:
    install(SimulatedDevice())
    try:
        cp = sys.modules['cupy']
        fn, x = ck.graphed(told, limit=4), cp.ones(3)
        names = {'cp': cp, 'a': cp.arange(3.0), 'b': cp.zeros(3), 'Text': Text}
        for one, two, again in calls:
            for _ in range(3 if again else 1):
                given = [eval(text.strip(), names) for text in (one, two)]
                results = [call(x, given[0], two=given[1]) for call in (fn, told)]
                assert plain(results[0], cp) == plain(results[1], cp), (one, two)
    finally:
        uninstall()
