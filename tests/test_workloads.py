"""The benchmarks' workloads are right, way by way, on the simulated device, and a wrong one is an error."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import peaks, peers, readme, workloads
from tests.benchmarks.timing import Line
from tests.benchmarks.workloads import gelu, training
from tests.benchmarks.workloads.lines import lines
from tests.benchmarks.workloads.way import CheckFailed, InTorch, Last, Way, Workload, check, largest_error
from tests.conftest import why_no_gpu

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CUPYS = ['eager', 'fused', 'graph', 'fused graph', 'graph, fused', 'graph, fast', 'graphed']
PARTS = ['gelu', 'training', 'classifier', 'stencil', 'dsp', 'solver']


def made(cp: Any, part: str) -> Iterator[Workload]:
    return workloads.parts(cp, small=True)[part]()


def test_all_parts_are_here(sim: Any) -> None:
    assert list(workloads.parts(sim, small=True)) == PARTS


@pytest.mark.parametrize('part', PARTS)
def test_every_way_is_right(sim: Any, part: str) -> None:
    with sim.cuda.Stream(non_blocking=True):
        for workload in made(sim, part):
            decides = 'to convergence' in workload.title  # on the device: such a graph is not fused
            ways = [way for way in CUPYS if not (decides and way in ('graph, fused', 'graph, fast'))]
            assert list(workload.ways())[: len(ways)] == ways
            found = list(lines(sim, workload, timed=False))
            assert [line.error for line in found] == [''] * len(found)
            assert [line.ratio for line in found] == [None] * len(found)
            assert not any(line.medians for line in found)
            (graphed,) = [line for line in found if line.name.endswith(': graphed / eager')]
            assert graphed.note.endswith('recorded'), graphed.note
            cupys = [line for line in found if 'torch' not in line.name]
            assert len(cupys) == len(ways) and all(line.note.startswith('checked') for line in cupys)


def test_references_do_not_stand_still(sim: Any) -> None:
    """A call that did nothing would be noticed: no reference is the state that the ways start from."""
    for part in PARTS:
        for workload in made(sim, part):
            for name, value in workload.reference().items():
                assert np.abs(value).max() > 1e-3, (workload.title, name)
    (step,) = made(sim, 'training')
    assert isinstance(step, training.Training)
    with_dropout, without = step.reference(), step.without_dropout()
    assert largest_error('moved', with_dropout['moved'], without['moved']) > 0.1


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
    assert 'ERROR: ValueError: no such kernel' in str(found['GELU (2, 3): graph / eager'])


def test_checks_see_shapes_and_what_is_no_number() -> None:
    with pytest.raises(CheckFailed, match='shape'):
        largest_error('y', np.zeros((2, 1)), np.ones(2))
    assert largest_error('y', np.array([1, np.nan]), np.ones(2)) == np.inf


def test_a_twin_is_checked_in_a_ways_place(sim: Any) -> None:
    """Torch's dropout: what is held against the reference is the same step without it."""
    closed: list[str] = []
    workload = gelu.Gelu(sim, (2, 3))
    right, wrong = {'y': workload.reference()['y']}, {'y': workload.reference()['y'] + 1}
    for results in (right, wrong):
        twin = Way(Last(int, ()), lambda results=results: results, lambda: closed.append('twin'))
        way = Way(Last(int, ()), lambda: wrong, twin=(twin, workload.reference()))
        if results is right:
            check(workload, way, {})
        else:
            with pytest.raises(CheckFailed):
                check(workload, way, {})
    assert closed == ['twin', 'twin']
    assert InTorch(int, dict).changes == ()


def test_memory(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, 'VARIANTS', 3)
    found = list(peaks.peaks(sim, small=True))
    assert [line.error for line in found] == [''] * 6
    assert all(line.ratio is not None and line.ratio > 0 and len(line.medians) == 4 for line in found)


def test_memory_of_a_wrong_result_is_an_error(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, 'VARIANTS', 2)
    monkeypatch.setattr(peaks.np, 'allclose', lambda *args, **kwargs: False)
    found = list(peaks.peaks(sim, small=True, measured=False))
    assert [line.error for line in found] == ['CheckFailed: differs from the eager run'] * 6


# -- the command --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(why_no_gpu() is None, reason='on a GPU the command measures')
def test_without_a_gpu_it_checks_and_says_that_it_times_nothing(tmp_path: Path) -> None:
    path = tmp_path / 'results.json'
    args = [sys.executable, '-m', 'tests.benchmarks', 'workloads', '--json', str(path), '--only', 'gelu', 'stencil']
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 'checks alone, at small sizes; nothing is measured and no file written' in done.stdout
    assert 'GELU' in done.stdout and 'heat equation' in done.stdout and 'classifier' not in done.stdout
    assert ' us' not in done.stdout and not path.exists()


def test_unknown_parts_are_told(sim: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(only=['nothing'], json=None, rows=None, ways=None)
    assert command.run(options, command.workloads(sim, True, False), {}) == 2
    assert f'no such part: nothing; there are {", ".join(PARTS)}' in capsys.readouterr().err


def test_rows_and_ways_can_be_chosen(sim: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def told(rows: list[str], ways: list[str]) -> tuple[int, str, str]:
        options = argparse.Namespace(only=['sum', 'attention'], json=None, rows=rows, ways=ways, table='peers')
        status = command.run(options, command.made(options, sim, True, False), {})
        return status, *capsys.readouterr()

    status, out, _ = told(['2.5 x'], ['graph, fused'])
    assert status == 0 and out.count('eager') == 2 and '2.5 x + y 256: graph, fused / eager' in out
    assert told(['no title'], [])[::2] == (2, 'no such row: no title\n')
    assert told([], ['no way'])[::2] == (2, 'no such way: no way\n')


def test_an_error_ends_in_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(only=None, json=None, rows=None, ways=None)
    assert command.run(options, {'good': lambda: iter([Line('one', 1.0)])}, {}) == 0
    assert command.run(options, {'bad': lambda: iter([Line('one', 1.0), Line('two', error='why')])}, {}) == 1
    assert '1 of 2 lines are errors' in capsys.readouterr().err


# -- the README's table -------------------------------------------------------------------------------------------


def result(name: str, ratio: float | None, part: str = 'gelu', **medians: float) -> dict[str, Any]:
    return {'part': part, **Line(name, ratio, medians=medians).to_json()}


def test_table_of_workloads() -> None:
    about = {'device': 'A GPU', 'runtime': 'CUDA 13000', 'cupy-cuda13x': '14.2.0', 'torch': '2.11.0', 'TF32': 'off'}
    found = [
        result('GELU (2, 3): eager', None, eager=1251.26, fused=10.0, graph=5.0, own=2.0),
        result('GELU (2, 3): fused / eager', 0.204),
        result('GELU (2, 3): graph / eager', 0.1),
        result('GELU (2, 3): own / eager', 0.04),
        result('GELU (2, 3): torch eager / eager', None),
        result('GELU (2, 3): graph / torch graph', 0.9),
        result('GELU (2, 3): graph, fused / eager', 0.05),
        result('GELU (2, 3): graph, fused / fused graph', 0.88),
    ]
    assert readme.rendered({'machine': about, 'lines': found}).splitlines() == [
        'A GPU, CUDA 13000, cupy-cuda13x 14.2.0, torch 2.11.0, TF32 off.',
        '',
        '| workload | CuPy eager, us | fused | graph | fused + graph | graph, `fuse=True` | that / fused + graph '
        '| `@ck.graphed` | torch eager | torch graph |',
        '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |',
        '| GELU (2, 3) | 1,251 | 0.20 | 0.10 | - | 0.05 | 0.88 | - | - | - |',
        '',
        'GELU (2, 3): own 0.04.',
    ]


def test_table_of_peers() -> None:
    about = {'device': 'A GPU', 'runtime': 'CUDA 13000', 'torch': 'absent', 'jax': '0.11'}
    found = [
        result('GELU 2 x 3: eager', None, eager=91.2, graphed=26.1, jax=40.0),
        result('GELU 2 x 3: graphed / eager', 0.29),
        result('GELU 2 x 3: jax / eager', 0.44),
    ]
    assert readme.rendered({'machine': about, 'lines': found}).splitlines()[2:] == [
        '| microseconds a call | CuPy eager | `@ck.graphed` | `@ck.graphed(fuse=True)` | graph | fused graph '
        '| torch eager | torch.compile | jax.jit |',
        '| --- | --- | --- | --- | --- | --- | --- | --- | --- |',
        '| GELU 2 x 3 | 91.2 | 26.1 | - | - | - | - | - | 40 |',
    ]


@pytest.mark.parametrize('part', ['gelu', 'heat', 'options', 'attention', 'training', 'sum'])
def test_programs_of_peers_are_right_in_each_way_of_cupy(sim: Any, part: str) -> None:
    (program,) = peers.parts(sim, True)[part]()
    found = list(lines(sim, program, timed=False))
    assert [line.error for line in found] == [''] * 10
    assert sum(line.note.startswith('checked') for line in found) == 7 + 3 * (why_no_gpu() is None)


def test_table_of_memory() -> None:
    about = {'device': 'A GPU', 'runtime': 'CUDA 13000', 'torch': 'absent'}
    line = result('memory, a job: one graph / eager', 0.5, 'memory', **{'one graph': 1.0, 'eager': 2.0})
    assert readme.rendered({'machine': about, 'lines': [line]}).splitlines()[2:] == [
        '| memory | MB | eager, MB | ratio |',
        '| --- | --- | --- | --- |',
        '| a job: one graph | 1 | 2 | 0.50 |',
    ]


def test_timed_lines(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of a run that is timed, on a clock that goes by one at each look: nothing is told of a real one."""
    clock = SimpleNamespace(at=0.0)

    def tick() -> float:
        clock.at += 1.0
        return clock.at

    monkeypatch.setattr('tests.benchmarks.workloads.lines.now', tick)
    found = {line.name: line for line in lines(sim, gelu.Gelu(sim, (2, 3)))}
    eager = found['GELU (2, 3): eager']
    assert list(eager.medians) == CUPYS and set(eager.medians.values()) == {1e6}
    assert found['GELU (2, 3): graph / eager'].ratio == 1
    assert found['GELU (2, 3): fused graph / fused'].medians == {'fused graph': 1e6, 'fused': 1e6}
