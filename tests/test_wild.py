"""Programs written without capture in mind (``samples/wild``): graphed they are equal to eager."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from tests.benchmarks import wild
from tests.command import started
from tests.test_samples import run_sample

Load = Callable[[str], Any]

#: Each program's n and steps in these tests.
TINY = {'kmeans': (200, 40), 'conjugate_gradient': (32, 10), 'kalman': (3, 40), 'fdtd': (16, 60), 'mlp': (4, 9)}


@pytest.fixture
def load(sim: Any) -> Iterator[Load]:
    """Imports a program on the simulated device of this test."""
    with wild.wild_modules() as load:
        yield load


def test_every_program_is_here() -> None:
    assert TINY.keys() == set(wild.PROGRAMS)
    assert {path.stem for path in wild.WILD.glob('*.py')} == TINY.keys() | {'side_by_side'}


@pytest.mark.parametrize(('name', 'options'), [*((name, {}) for name in TINY), ('mlp', {'generator': True})])
def test_graphed_equals_eager(load: Load, name: str, options: dict[str, bool]) -> None:
    program, beside = load(name), load('side_by_side')
    graphed = ck.graphed(program.step)
    eager, launched = beside.Timed(program.step), beside.Timed(graphed)
    want = program.run(eager, *TINY[name], **options)
    for _ in range(2):  # a second time with what the first one recorded
        launched.calls = 0
        found = program.run(launched, *TINY[name], **options)
        assert launched.calls == eager.calls
        assert beside.largest_error(found, want) <= beside.tolerance(want)
    assert graphed.variants
    graphed.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    'command', [*('{} --n {} --steps {}'.format(name, *TINY[name]) for name in ('fdtd', 'kalman')), 'mlp --generator']
)
def test_script(command: str) -> None:
    name, *args = command.split()
    # What is logged comes to standard error in a process of its own alone.
    where, times, *rest = run_sample(Path(wild.WILD, f'{name}.py'), *args, said=[], way=started)
    assert re.fullmatch(r'on the simulated device: n = \d+, (\d+) calls eagerly, \1 graphed', where)
    assert re.fullmatch(r'per call: eager [\d.]+ us, graphed [\d.]+ us, [\d.]+ times as fast', times)
    assert re.fullmatch(r'\w+, variant 0: \w+, \d+ calls, \d+ launches, \d+ seams.*', rest[0])
    assert any(re.fullmatch(r'largest error against eager: [\d.e-]+', line) for line in rest)
    if name == 'kalman':
        assert any(line.startswith('GraphedFilter.update, variant 0: recorded, ') for line in rest)


def test_a_difference_is_noticed(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    """The programs would say so if a graphed run came out otherwise."""
    program, beside = load('fdtd'), load('side_by_side')

    def run(step: Any, n: int, steps: int) -> Any:
        found = program.run(step, n, steps)
        found['ez'] *= 1 + 1e-3 * (step.function is not program.step)
        return found

    with pytest.raises(SystemExit, match='the graphed run differs from the eager run'):
        beside.compare(run, program.step, *TINY['fdtd'])
    assert 'largest error against eager: 0.001' in capsys.readouterr().out
