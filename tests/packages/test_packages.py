"""The tool that runs programs on public packages: tested without these packages and without a GPU."""

from __future__ import annotations

import csv
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.packages import judge, registry, run
from tests.packages.child import run as run_child
from tests.packages.compare import compare, leaves
from tests.packages.registry import PROGRAMS, Case, Draw, Program, load, program

FOLDER = Path(__file__).parent


@pytest.fixture
def own_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    load()
    monkeypatch.setattr(registry, 'PROGRAMS', dict(PROGRAMS))
    yield


def judged(make: Any, cp: Any = np) -> dict[str, Any]:
    return judge.judge(Program('none', make), cp)


def apart(want: Any, got: Any) -> tuple[str, str]:
    found = compare(list(leaves(want, np)), list(leaves(got, np)))
    return found.outcome, found.text


# -- the programs


def test_every_program_says_in_a_sentence_what_it_does() -> None:
    for some in load().values():
        for one in some:
            assert re.fullmatch(r'[A-Z].*\.', one.about), f'{one.package}.{one.name}: {one.about!r}'


def test_no_two_programs_have_one_name(own_programs: None) -> None:
    assert sum(map(len, load().values())) >= 60

    def twice(cp: Any, draw: Draw) -> Case:
        raise NotImplementedError

    program('none')(twice)
    with pytest.raises(ValueError, match=r'two programs none\.twice'):
        program('none')(twice)


def test_every_package_is_required_in_one_version() -> None:
    lines = [line for line in (FOLDER / 'requirements.txt').read_text().splitlines() if not line.startswith('#')]
    assert all(re.fullmatch(r'[\w-]+==[\w.]+', line) for line in lines), lines
    assert load().keys() <= {line.partition('==')[0] for line in lines}


def test_equal_seeds_draw_equal_arrays() -> None:
    assert apart(Draw(np, 3).complexes(4, 5), Draw(np, 3).complexes(4, 5)) == ('equal', '')
    assert apart(Draw(np, 3).normal(9), Draw(np, 4).normal(9))[0] == 'wrong'


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
    def doubled(cp: Any, draw: Draw) -> Case:
        """Something is doubled."""
        kept: list[Any] = []

        def step(x: Any) -> Any:
            kept.append(x.sum())
            return 2 * x + cp.random.standard_normal(3)

        return Case(step, lambda draw: (draw.normal(3),), lambda: kept)

    row = judged(doubled)
    assert (row['outcome'], row['text'], row['about']) == ('equal', '', 'Something is doubled.')
    assert row['eager_us'] > 0 < row['other_us']


def test_a_program_that_raises_is_reported() -> None:
    def broken(cp: Any, draw: Draw) -> Case:
        return Case(lambda x: x[5], lambda draw: (draw.normal(3),))

    def unmade(cp: Any, draw: Draw) -> Case:
        registry.module('a_package_that_is_nowhere')
        raise AssertionError

    row = judged(broken)
    assert row['outcome'] == 'fails' and row['text'].startswith('call 1 raises IndexError: index 5')
    row = judged(unmade)
    assert row['outcome'] == 'fails' and row['text'].startswith('ModuleNotFoundError: ')


def test_a_call_that_raises_only_the_second_time_is_wrong() -> None:
    made: list[int] = []

    def uneven(cp: Any, draw: Draw) -> Case:
        made.append(1)
        number = len(made)
        return Case(lambda x: x / (number != 2) if number != 2 else x[7], lambda draw: (draw.normal(3),))

    row = judged(uneven)
    assert row['outcome'] == 'wrong' and row['text'].startswith('call 1 raises IndexError')


def test_a_program_that_differs_from_run_to_run_is_unsteady() -> None:
    made: list[int] = []

    def restless(cp: Any, draw: Draw) -> Case:
        made.append(1)
        number = len(made)
        return Case(lambda x: x + number, lambda draw: (draw.normal(3),))

    row = judged(restless)
    assert row['outcome'] == 'unsteady' and 'two eager runs differ, too' in row['text']


def test_a_result_that_changes_later_is_found() -> None:
    made: list[int] = []

    def reused(cp: Any, draw: Draw) -> Case:
        made.append(1)
        room, shared = cp.zeros(3), len(made) == 2

        def step(x: Any) -> Any:
            room[...] = x
            return room if shared else room.copy()

        return Case(step, lambda draw: (draw.normal(3),))

    row = judged(reused)
    assert row['outcome'] == 'wrong' and row['text'].startswith('later the results[0]: ')


def test_a_graphed_program_tells_how_it_runs(sim: Any) -> None:
    def recorded(cp: Any, draw: Draw) -> Case:
        return Case(lambda x: x * 2 + 1, lambda draw: (draw.normal(3),))

    def eager(cp: Any, draw: Draw) -> Case:
        calls: list[int] = []

        def step(x: Any) -> Any:
            calls.insert(0, 1)
            return x * 2

        return Case(step, lambda draw: (draw.normal(3),), lambda: calls)

    row = judged(recorded, sim)
    assert (row['outcome'], row['state'], row['launches'], row['reason']) == ('equal', 'recorded', 5, '')
    row = judged(eager, sim)
    assert (row['outcome'], row['state'], row['launches']) == ('equal', 'eager', 0)
    assert 'calls' in row['reason']


# -- the processes


def test_a_child_writes_each_program_as_it_goes(own_programs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(cp: Any, draw: Draw) -> Case:
        """Something is halved."""
        return Case(lambda x: x / 2, lambda draw: (draw.normal(3),))

    program('numpy')(halved)
    told: list[Any] = []
    assert run_child(np, 'numpy', ['halved'], told.append) == 0
    assert [next(iter(one)) for one in told] == ['machine', 'begun', 'row']
    assert told[0]['machine']['numpy'] == np.__version__


def family(monkeypatch: pytest.MonkeyPatch, folder: Path, names: list[str]) -> run.Family:
    """A family whose processes run a script: it ends in the program ``dies`` and hangs in ``hangs``."""
    script = folder / 'script.py'
    script.write_text(
        'import json, os, sys, time\n'
        'print(json.dumps({"machine": {"gpu": "none"}}))\n'
        'for name in sys.argv[3:]:\n'
        '    print(json.dumps({"begun": name}), flush=True)\n'
        '    print("about to go", file=sys.stderr, flush=True) if name == "dies" else None\n'
        '    os._exit(5) if name == "dies" else time.sleep(60 if name == "hangs" else 0)\n'
        '    row = {"package": "none", "program": name, "outcome": "equal"}\n'
        '    print(json.dumps({"row": row}), flush=True)\n'
    )
    started = subprocess.Popen
    monkeypatch.setattr(
        subprocess, 'Popen', lambda command, **more: started([command[0], str(script), *command[3:]], **more)
    )
    return run.Family('none', names, 'numpy', '', 3.0, {})


def test_a_crash_ends_one_program_and_not_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = list(family(monkeypatch, tmp_path, ['a', 'dies', 'b']).rows())
    assert [(row['program'], row['outcome']) for row in rows] == [('a', 'equal'), ('dies', 'died'), ('b', 'equal')]
    assert rows[1]['text'] == 'status 5: about to go'


def test_a_program_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = list(family(monkeypatch, tmp_path, ['hangs', 'a']).rows())
    assert [row['outcome'] for row in rows] == ['died', 'equal']
    assert rows[0]['text'].startswith(f'status {-signal.SIGKILL}')


# -- what is written

ROWS: list[dict[str, Any]] = [
    {
        'package': 'einops', 'program': 'rearrange', 'about': 'Something is moved.', 'outcome': 'equal', 'text': '',
        'state': 'recorded', 'reason': '', 'launches': 5, 'variants': 1, 'eager_us': 100.0, 'other_us': 25.0,
    },
    {
        'package': 'einops', 'program': 'repeat', 'about': 'It is repeated.', 'outcome': 'near',
        'text': 'call 1: a | b', 'state': 'eager', 'reason': 'it reads /home/me/x.py', 'launches': 0, 'variants': 1,
    },
    {'package': 'POT', 'program': 'emd', 'outcome': 'died', 'text': 'status -11: '},
    {'package': 'POT', 'program': 'dist', 'about': 'A.', 'outcome': 'fails', 'text': 'ImportError: no'},
]  # fmt: skip


def test_results_are_written_without_folders(tmp_path: Path) -> None:
    run.write(tmp_path / 'results.csv', ROWS)
    assert (tmp_path / 'results.csv').read_text().splitlines() == [
        'package,program,outcome,state,launches,ratio,reason',
        'einops,rearrange,equal,recorded,5,0.25,',
        'einops,repeat,near,eager,0,,it reads x.py',
        'POT,emd,died,,,,status -11:',
        'POT,dist,fails,,,,ImportError: no',
    ]


def test_committed_results_have_each_program() -> None:
    with (FOLDER / 'results.csv').open(newline='') as file:
        found = [(row['package'], row['program']) for row in csv.DictReader(file)]
    assert sorted(found) == sorted((one.package, one.name) for some in load().values() for one in some)


def test_the_summary_counts_outcomes_ways_and_reasons() -> None:
    assert list(run.summary(ROWS)) == [
        '4 programs: 1 do not run here; of the other 3 2 are right',
        '1 equal, 1 near, 1 died, 1 fails',
        '1 recorded, 1 eager',
        '1 were timed, of which these take more than 1.05 times as long graphed:',
        '   1 it reads /home/me/x.py',
    ]
