"""``fn.explain()``: what it says of kinds of calls, and that it says the same only once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.graphed.explanation import explanation
from capturekit.graphed.number_arguments import NumberArguments
from capturekit.graphed.tally import Tally
from tests.graphed.test_faster_way import in_short


def explained(fn: Any) -> list[str]:
    return in_short(fn).splitlines()


class Plan:
    by = 3


@pytest.mark.parametrize(
    ('fn', 'calls', 'kinds'),
    [
        (
            lambda x, parts, mode, *, scale: x * parts[1] * scale['by'],
            lambda fn, cp: fn(cp.ones(3), [cp.ones((2, 3)), 2.5], 'reflect', scale={'by': 2}),
            ["float64[3], [float64[2, 3], 2.5], 'reflect', scale={'by': 2}"],
        ),
        (
            lambda x, plan, nothing: x * plan.by,
            lambda fn, cp: fn(cp.ones(3), Plan(), None),
            ['float64[3], a Plan object, None'],
        ),
        (lambda: None, lambda fn, cp: fn(), ['no arguments']),
        (
            lambda x, word: x * len(word),
            lambda fn, cp: [fn(cp.ones(3), word) for word in 'ab'],
            ["float64[3], 'a'", "float64[3], 'b'"],
        ),
        (
            lambda x, rate: x * rate,
            lambda fn, cp: [fn(cp.ones(3), 0.5 + step) for step in range(10)],
            ['float64[3], any float'],
        ),
    ],
)
def test_a_kind_names_all_that_was_given(sim: Any, fn: Any, calls: Any, kinds: list[str]) -> None:
    """What has no value is named by its type, and so is a number that each call brings."""
    graphed = ck.graphed(fn)
    calls(graphed, sim)
    told = [line.partition(': ')[2] for line in explained(graphed) if line.startswith('  kind ')]
    assert told[-len(kinds) :] == kinds


def test_what_is_compared_is_listed_once(sim: Any) -> None:
    """With the time that comparing and following take, which a promise saves."""
    factor = [2.0]
    fn, pure = ck.graphed(lambda x: x * factor[0]), ck.graphed(pure=True)(lambda x: x * factor[0])
    for size in (3, 4):
        for _ in range(3):
            fn(sim.ones(size)), pure(sim.ones(size))
    told = explained(fn)
    assert sum('shapes, dtypes and values of the arguments' in line for line in told) == 1
    assert sum('compared at each call: the arguments, and the same' in line for line in told) == 1
    said = r'  comparing takes up to \d+ us at a call, and following runs has taken \d+ ms; pure=True saves both'
    assert re.fullmatch(said, told[-1]) and not any('comparing takes' in line for line in explained(pure))
    factor[0] = 3.0
    assert fn(sim.ones(4)).get().tolist() == [3.0] * 4


def test_a_method_is_compared_without_an_empty_line(sim: Any) -> None:
    class Net:
        def __init__(self) -> None:
            self.weight = sim.ones(3)

        def step(self, x: Any) -> Any:
            return self.weight * x

    fn = ck.graphed(Net().step)
    for _ in range(3):
        fn(sim.ones(3))
    told = explained(fn)
    assert '      attribute weight of a Net object' in told
    assert all(line.strip() for line in told)


def test_the_sentences_of_a_refusal_stay_sentences(sim: Any) -> None:
    fn = ck.graphed(lambda x, limit: x if float(x[0]) < limit else -x)
    for limit in range(40):
        fn(sim.ones(3), float(limit))
    told = '\n'.join(explained(fn))
    assert 'at test_explanation.py:' in told and ' in <lambda>. It changes from call to call' in told


def test_calls_that_were_not_watched_are_counted(sim: Any) -> None:
    fn = ck.graphed(lambda x, word: x * len(word), limit=2)
    fn(sim.ones(3), bytearray(b'a'))
    before = explained(fn)[0]
    for number in range(20):
        fn(sim.ones(3), f'word {number}')
    after = explained(fn)[0]
    fn.clear()
    why = '12 unwatched, because nearly each call was of another kind, 9 to see what they read'
    assert before == 'launched 0 of 1; 1 eager: 1 to see what they read'
    assert after == f'launched 0 of 21; 21 eager: {why}'
    assert explained(fn)[0] == 'launched 0 of 0'


def test_a_capture_in_the_function_is_the_reason(sim: Any) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        with ck.capture() as cap:
            y = x * 2
        cap.graph.launch()
        return y

    for _ in range(3):
        assert fn(sim.ones(3)).get().tolist() == [2] * 3
    told = '\n'.join(explained(fn))
    assert 'eager because the function opens a capture of its own at test_explanation.py:' in told
    assert 'Leave that capture out: the decorator records the function.' in told


def test_reasons_are_told_in_one_short_line() -> None:
    tally = Tally(len)
    for number in range(9):
        tally.ran(f'because st["n"] is {number + 1} and was {number} before')
        tally.ran(f'because the function opens f.py:{number}')
    text = explanation('f', {}, '', NumberArguments(), 3, tally.eager)
    assert text.startswith('launched 3 of 21; 18 eager: 9 because st["n"] is 1 and was 0 before, 1 because')
    assert text.partition('\n')[0].endswith('f.py:2, 6 for other reasons')


def test_reads_and_refusals_are_explained(sim: Any) -> None:
    factor = [2.0]

    def refused(x: Any) -> Any:
        y = x * 2
        try:
            y.set(np.full(3, 5.0))
        except Exception:
            y = x * 100
        return y

    told = []
    for work in (lambda x: x * factor[0] if float(x[0]) < 5 else x, lambda x: (x * 2, float(x.sum())), refused):
        fn = ck.graphed(work)
        for _ in range(3):
            fn(sim.ones(3))
        told.append('\n'.join(explained(fn)))
    assert 'float64[3]' in told[0] and 'recorded: 3 calls, 2 launches' in told[0] and 'factor' in told[0]
    assert 'checked on the device' in told[0] and 'read anew at each launch: float64[] at' in told[1]
    assert 'eager because' in told[2] and 'what would change that' in told[2]
