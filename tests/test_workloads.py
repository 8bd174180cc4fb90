"""The benchmarks' programs are right, way by way, on the simulated device, and a wrong one is an error."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import graphed, graphs, peaks, timing, wild
from tests.benchmarks.timing import Line
from tests.benchmarks.workloads import gelu
from tests.benchmarks.workloads.lines import lines
from tests.benchmarks.workloads.way import CheckFailed, Last, Way, check, largest_error
from tests.conftest import why_no_gpu

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NO_CHOICE = argparse.Namespace(only=None, json=None, rows=None, ways=None)
#: The parts of each table, and how many ways of CuPy's each program has.
PARTS = {
    'workloads': (['gelu', 'training', 'classifier', 'stencil', 'dsp', 'solver'], 5),
    'peers': (['gelu', 'heat', 'options', 'attention', 'training', 'sum'], 7),
    'lanes': (['net', 'ensemble', 'attention', 'folds', 'solves', 'spectra', 'summaries', 'copies', 'filters', 'chains',
               'plates', 'large'], 1),
    'memory': (['memory'], 6),
}  # fmt: skip


@pytest.mark.parametrize(('table', 'part'), [(table, part) for table in PARTS for part in PARTS[table][0]])
def test_every_way_is_right(sim: Any, table: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, 'VARIANTS', 3)
    with sim.cuda.Stream(non_blocking=True):
        made = command.TABLES[table](sim, NO_CHOICE, True, False)
        assert list(made) == PARTS[table][0]
        found = list(made[part]())
    assert [line.error for line in found] == [''] * len(found)
    assert not any(line.ratio or line.medians for line in found)
    checked = [line for line in found if 'torch' not in line.name and line.note.startswith('checked')]
    assert len(checked) >= PARTS[table][1]
    assert [
        line.note for line in found if line.name.endswith(': graphed / eager') and 'recorded' not in line.note
    ] == []


@pytest.mark.parametrize('part', PARTS['workloads'][0])
def test_references_do_not_stand_still(sim: Any, part: str) -> None:
    """A call that did nothing would be noticed: no reference is the state that the ways start from."""
    from tests.benchmarks import workloads

    for workload in workloads.parts(sim, small=True)[part]():
        for name, value in workload.reference().items():
            assert np.abs(value).max() > 1e-3, (workload.title, name)


@pytest.mark.parametrize('sections', [graphed.calls, graphed.stateful, lambda _cp, n: wild.lines(n)])
def test_costs_are_ratios(sim: Any, sections: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be told of them without a GPU: that they run to their end."""
    monkeypatch.setattr(wild, 'STEPS', 6)
    monkeypatch.setattr(timing, 'REPEATS', 2)
    found = list(sections(sim, 1) if sections is not graphed.stateful else sections(sim))
    assert len(found) >= 5 and all(line.ratio is not None and line.ratio > 0 for line in found)


def test_relaning_and_rebinding(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, 'REPEATS', 1)
    monkeypatch.setattr(graphs, 'MEGA', 1 << 10)
    monkeypatch.setattr(graphs, 'GIGA', 1 << 10)
    assert [line.error for line in (*graphs.relaning(sim, 200), *graphs.rebinding(sim))] == [''] * 18


def test_a_wrong_way_is_an_error_and_the_others_go_on(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = gelu.Gelu.ways

    def one_wrong(self: gelu.Gelu) -> dict[str, Any]:
        found = ways(self)
        right = found['fused']

        def wrong() -> Way:
            way = right()
            return Way(way.call, lambda: {'y': way.results()['y'] + np.float32(1e-3)})

        def broken() -> Way:
            raise ValueError('no such kernel')

        return {**found, 'fused': wrong, 'graph': broken}

    monkeypatch.setattr(gelu.Gelu, 'ways', one_wrong)
    found = {line.name: line for line in lines(sim, gelu.Gelu(sim, (2, 3)), timed=False)}
    assert found['GELU (2, 3): fused / eager'].error.startswith('CheckFailed: off by 0.00')
    assert found['GELU (2, 3): graph / eager'].error == 'ValueError: no such kernel'
    assert sum(bool(line.error) for line in found.values()) == 2


def test_checks_see_shapes_and_what_is_no_number() -> None:
    with pytest.raises(CheckFailed, match='shape'):
        largest_error('y', np.zeros((2, 1)), np.ones(2))
    assert largest_error('y', np.array([1, np.nan]), np.ones(2)) == np.inf


def test_a_twin_is_checked_in_a_ways_place(sim: Any) -> None:
    """Torch's dropout: what is held against the reference is the same step without it."""
    workload = gelu.Gelu(sim, (2, 3))
    right = workload.reference()
    wrong = {'y': right['y'] + 1}
    check(workload, Way(Last(int, ()), lambda: wrong, twin=(Way(Last(int, ()), lambda: right), right)), {})
    with pytest.raises(CheckFailed):
        check(workload, Way(Last(int, ()), lambda: right, twin=(Way(Last(int, ()), lambda: wrong), right)), {})


@pytest.mark.skipif(why_no_gpu() is None, reason='on a GPU the command measures')
def test_without_a_gpu_it_checks_and_says_that_it_times_nothing(tmp_path: Path) -> None:
    path = tmp_path / 'results.json'
    args = [sys.executable, '-m', 'tests.benchmarks', 'workloads', '--json', str(path), '--only', 'gelu', 'stencil']
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 'checks alone, at small sizes; nothing is measured and no file written' in done.stdout
    assert 'GELU' in done.stdout and 'heat equation' in done.stdout and 'classifier' not in done.stdout
    assert ' us' not in done.stdout and not path.exists()


def test_parts_and_errors_are_told(sim: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = argparse.Namespace(only=['nothing'], json=None, rows=None, ways=['no way'])
    assert command.run(asked, {'one': lambda: iter([Line('one: fused / eager', 1.0)])}, {}) == 2
    assert 'no such part: nothing; there are one' in capsys.readouterr().err
    asked.only = None
    assert command.run(asked, {'one': lambda: iter([Line('one: fused / eager', 1.0)])}, {}) == 2
    assert command.run(NO_CHOICE, {'good': lambda: iter([Line('one', 1.0)])}, {}) == 0
    assert command.run(NO_CHOICE, {'bad': lambda: iter([Line('one', 1.0), Line('two', error='why')])}, {}) == 1
    assert '1 of 2 lines are errors' in capsys.readouterr().err
