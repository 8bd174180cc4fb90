"""The tool that runs programs on public packages: tested without these packages and without a GPU."""

from __future__ import annotations

import csv
import importlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.packages import judge, registry
from tests.packages.compare import compare, leaves
from tests.packages.registry import Case, Draw, Program, load

FOLDER = Path(__file__).parent


def judged(step_of: Callable[[Any, int], Any], cp: Any = np) -> dict[str, Any]:
    """What becomes of a program that is called with an array of three numbers.

    ``step_of`` makes its function, or that and what tells its state, of CuPy and the number of the making.
    """
    numbers = itertools.count(1)

    def make(cp: Any, _draw: Draw) -> Case:
        step = step_of(cp, next(numbers))
        call, state = step if isinstance(step, tuple) else (step, registry.nothing)
        return Case(call, lambda draw: (draw.normal(3),), state)

    return judge.judge(Program('none', 'one', 'Something is done.', make), cp)


def apart(want: Any, got: Any) -> tuple[str, str]:
    found = compare(list(leaves(want, np)), list(leaves(got, np)))
    return found.outcome, found.text


# -- the programs


def test_every_program_says_in_a_sentence_what_it_does() -> None:
    assert sum(map(len, load().values())) >= 60
    for some in load().values():
        for one in some:
            assert re.fullmatch(r'[A-Z].*\.', one.about), f'{one.package}.{one.name}: {one.about!r}'


def test_every_package_is_required_in_one_version() -> None:
    lines = [line for line in (FOLDER / 'requirements.txt').read_text().splitlines() if not line.startswith('#')]
    assert all(re.fullmatch(r'[\w-]+==[\w.]+', line) for line in lines), lines
    assert load().keys() <= {line.partition('==')[0] for line in lines}


# -- the comparison


@pytest.mark.parametrize(
    ('want', 'got', 'outcome', 'text'),
    [
        (np.arange(3), np.arange(3), 'equal', ''),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), 'equal', ''),
        (np.ones(3), np.ones(3) + 1e-12, 'near', ': by up to 1.0e-12 of the largest'),
        (np.ones(3), np.ones(3) + 1e-6, 'wrong', ': 3 of 3; at [0] 1.000001 and not 1.0'),
        (np.ones(2, 'f4'), np.ones(2, 'f4') + np.float32(1e-6), 'near', None),
        (np.ones(2), np.array([1.0, np.nan]), 'wrong', ': 1 of 2; at [1] nan and not 1.0'),
        (np.arange(3), np.array([0, 1, 3]), 'wrong', ': 1 of 3 elements differ'),
        (np.ones(3), np.ones((3, 1)), 'wrong', ': shape (3, 1) and not (3,)'),
        (np.ones(3), np.ones(3, 'f4'), 'wrong', ': dtype float32 and not float64'),
        ({'a': [1.0]}, {'a': [2.0]}, 'wrong', "['a'][0]: 1 of 1; at [] 2.0 and not 1.0"),
        ([1], (1,), 'wrong', ' is of kind tuple, and  of kind list'),
        ([1, 2], [1], 'wrong', '2 parts and not 3'),
        ('a', 'b', 'wrong', ": 'b' and not 'a'"),
        ({'a': None}, {'b': None}, 'wrong', None),
    ],
)
def test_a_difference_is_found(want: Any, got: Any, outcome: str, text: str | None) -> None:
    found = apart(want, got)
    assert found[0] == outcome
    assert text is None or found[1] == text


def test_what_can_not_be_compared_is_told() -> None:
    with pytest.raises(TypeError, match=r'\[1\]: a object can not be compared'):
        list(leaves([1, object()], np))


# -- one program


def test_a_program_that_does_the_same_each_time_is_right() -> None:
    def keeping(cp: Any, _number: int) -> Any:
        kept: list[Any] = []

        def step(x: Any) -> Any:
            kept.append(x.sum())
            return 2 * x + cp.random.standard_normal(3)

        return step, lambda: kept

    row = judged(keeping)
    assert (row['outcome'], row['text'], row['about']) == ('equal', '', 'Something is done.')
    assert row['eager_us'] > 0 < row['other_us']


def reusing(cp: Any, number: int) -> Any:
    """A function whose second making returns the same array each time."""
    room = cp.zeros(3)

    def step(x: Any) -> Any:
        room[...] = x
        return room if number == 2 else room.copy()

    return step


@pytest.mark.parametrize(
    ('step_of', 'outcome', 'text'),
    [
        pytest.param(lambda cp, n: lambda x: x[5], 'fails', 'call 1 raises IndexError: index 5', id='it raises'),
        pytest.param(lambda cp, n: importlib.import_module('nowhere'), 'fails', 'ModuleNotFoundError: ', id='unmade'),
        pytest.param(
            lambda cp, n: lambda x: x[7 * (n == 2)], 'wrong', 'call 1 raises IndexError', id='it raises later'
        ),
        pytest.param(lambda cp, n: lambda x: x + n, 'unsteady', '.*two eager runs differ, too', id='unsteady'),
        pytest.param(reusing, 'wrong', r'later the results\[0\]: ', id='a result changes'),
    ],
)
def test_what_is_not_right_is_told(step_of: Callable[[Any, int], Any], outcome: str, text: str) -> None:
    row = judged(step_of)
    assert row['outcome'] == outcome and re.match(text, row['text']), row


def test_a_graphed_program_tells_how_it_runs(sim: Any) -> None:
    def counting(cp: Any, _number: int) -> Any:
        calls: list[int] = []

        def step(x: Any) -> Any:
            calls.insert(0, 1)
            return x * 2

        return step, lambda: calls

    row = judged(lambda cp, n: lambda x: x * 2 + 1, sim)
    assert (row['outcome'], row['state'], row['launches'], row['reason']) == ('equal', 'recorded', 5, '')
    row = judged(counting, sim)
    assert (row['outcome'], row['state'], row['launches']) == ('equal', 'eager', 0)
    assert 'calls' in row['reason']


def test_committed_results_have_each_program() -> None:
    with (FOLDER / 'results.csv').open(newline='') as file:
        found = [(row['package'], row['program']) for row in csv.DictReader(file)]
    assert sorted(found) == sorted((one.package, one.name) for some in load().values() for one in some)
