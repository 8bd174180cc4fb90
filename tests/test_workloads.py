"""The benchmarks' programs are right, way by way, on the simulated device, and a wrong one is an error."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import graphed, graphs, peaks, timing, wild, workloads
from tests.benchmarks.timing import Line
from tests.benchmarks.workloads import CheckFailed, Gelu, Way, largest_error, lines

pytestmark = pytest.mark.slow

#: The parts of each table, and how many ways of CuPy's each program has at least.
PARTS = {
    'workloads': (['gelu', 'training', 'classifier', 'stencil', 'dsp', 'solver'], 7),
    'peers': (['gelu', 'heat', 'options', 'attention', 'training', 'sum'], 7),
    'lanes': (['net', 'ensemble', 'attention', 'folds', 'solves', 'spectra', 'summaries', 'copies', 'filters', 'chains',
               'plates', 'large'], 1),
    'memory': (['memory'], 6),
}  # fmt: skip


@pytest.mark.parametrize(('table', 'part'), [(table, part) for table in PARTS for part in PARTS[table][0]])
def test_every_way_is_right(sim: Any, table: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, 'VARIANTS', 3)
    with sim.cuda.Stream(non_blocking=True):
        made = command.parts_of(table, sim, True, False)
        assert list(made) == PARTS[table][0]
        found = list(made[part]())
    assert [line.error for line in found] == [''] * len(found)
    assert not any(line.ratio or line.medians for line in found)
    checked = [line for line in found if 'torch' not in line.name and line.note.startswith('checked')]
    assert len(checked) >= PARTS[table][1]
    notes = [line.note for line in found if line.name.endswith(': graphed / eager')]
    assert [note for note in notes if 'recorded' not in note] == []


@pytest.mark.parametrize('part', PARTS['workloads'][0])
def test_references_do_not_stand_still(sim: Any, part: str) -> None:
    """A call that did nothing would be noticed: no reference is the state that the ways start from."""
    for workload in workloads.parts(sim, small=True)[part]():
        for name, value in workload.reference().items():
            assert np.abs(value).max() > 1e-3, (workload.title, name)


@pytest.mark.parametrize('sections', [graphed.calls, graphed.stateful, lambda _cp, n: wild.lines(n)])
def test_costs_are_ratios(sim: Any, sections: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be told of them without a GPU: that they run to their end."""
    monkeypatch.setattr(wild, 'STEPS', 6)
    monkeypatch.setattr(timing, 'REPEATS', 2)
    monkeypatch.setattr(graphed, 'ROW', 3)
    found = list(sections(sim, 1) if sections is not graphed.stateful else sections(sim))
    assert len(found) >= 4 and all(line.ratio is not None and line.ratio > 0 for line in found)


def test_relaning_and_rebinding(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, 'REPEATS', 1)
    monkeypatch.setattr(graphs, 'MEGA', 1 << 10)
    monkeypatch.setattr(graphs, 'GIGA', 1 << 10)
    assert [line.error for line in (*graphs.relaning(sim, 200), *graphs.rebinding(sim))] == [''] * 12


def test_a_wrong_way_is_an_error_and_the_others_go_on(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = Gelu.ways

    def broken() -> Way:
        raise ValueError('no such kernel')

    def one_wrong(self: Gelu) -> dict[str, Any]:
        found = ways(self)

        def wrong() -> Way:
            way = found['graphed, fast']()
            return Way(way.call, lambda: {'0': way.results()['0'] + np.float32(1e-3)})

        return {**found, 'graphed': wrong, 'graph': broken}

    monkeypatch.setattr(Gelu, 'ways', one_wrong)
    found = {line.name: line.error for line in lines(sim, Gelu(sim, (2, 3)), timed=False) if line.error}
    assert found.keys() == {'GELU (2, 3): graphed / eager', 'GELU (2, 3): graph / eager'}
    assert found['GELU (2, 3): graphed / eager'].startswith('CheckFailed: off by 0.00')
    assert found['GELU (2, 3): graph / eager'] == 'ValueError: no such kernel'
    with pytest.raises(CheckFailed, match='shape'):
        largest_error('y', np.zeros((2, 1)), np.ones(2))
    assert largest_error('y', np.array([1, np.nan]), np.ones(2)) == np.inf


def test_parts_and_errors_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    def status(only: list[str] | None, *found: Line) -> int:
        return command.run(argparse.Namespace(only=only, json=None), {'one': lambda: iter(found)}, {})

    assert status(['nothing'], Line('one', 1.0)) == 2
    assert 'no such part: nothing; there are one' in capsys.readouterr().err
    assert status(None, Line('one', 1.0)) == 0
    assert status(None, Line('one', 1.0), Line('two', error='why')) == 1
    assert '1 of 2 lines are errors' in capsys.readouterr().err
