"""``experiment()``: which ways are run, what is compared, what the report says. Times are those of the model."""

from __future__ import annotations

import json
import logging
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.lab.experiment_report import Experiment, ExperimentRow
from capturekit.recorder.forks import assigned
from capturekit.render.experiment import Point, Series, to_svg
from tests.captured import simulated
from tests.examples import examples

Branch = Callable[[], Any]


def independent(cp: Any, count: int) -> list[Branch]:
    x = cp.linspace(0, 1, 8)
    return [lambda n=n: cp.sin(x * n) + n for n in range(count)]  # type: ignore[misc]


def dependent(cp: Any) -> list[Branch]:
    """The second one reads what the first one has made."""
    x = cp.linspace(0, 1, 8)
    made: dict[str, Any] = {}

    def first() -> Any:
        made['x'] = x * 2
        return made['x']

    return [first, lambda: made['x'] + 1]


def ways(report: Experiment) -> list[tuple[bool, int, str]]:
    return [(row.captured, row.lanes, row.assignment) for row in report.rows]


# -- which ways are run -----------------------------------------------------------------------------------------


def test_rows_of_branches(sim: Any) -> None:
    assert {row.lanes for row in ck.experiment(independent(sim, 4), lanes=2, rounds=1).rows} == {2}
    report = ck.experiment(independent(sim, 4), lanes=(1, 2, 4, 8), rounds=2)
    laid = [(1, '-'), (2, 'round robin'), (2, 'blocks'), (4, 'round robin = blocks')]
    assert ways(report) == [(True, *one) for one in laid]
    assert (report.ok, report.branches, report.rounds) == (True, [4], 2)
    assert report.compared.startswith('4 arrays, rtol')
    notes = '\n'.join(report.notes)
    assert '8 lanes are left out: there are 4 branches at most' in notes and 'eager rows are left out' in notes
    assert len({row.nodes for row in report.rows}) == 1


def test_a_function_runs_branches_as_often_as_it_likes(sim: Any) -> None:
    x = sim.linspace(0, 1, 8)

    def program(parallel: Any) -> Any:
        y = x * 2
        parts = parallel(*[lambda n=n: sim.sin(y + n) for n in range(5)])
        a, b = parallel(lambda: sum(parts[:2]), lambda: sum(parts[2:]))
        return {'whole': [a + b], 'parts': tuple(parts)}

    report = ck.experiment(program, lanes=(1, 2, 5), rounds=1)
    assert report.branches == [5, 2]
    assert report.ok
    assert report.compared.startswith('6 arrays')
    assert str(report).startswith('2 to 5 branches in 2 calls, on the simulated device; modelled times')
    assert ways(report)[-1] == (True, 5, 'round robin = blocks')


def test_lane_numbers_are_a_way_of_their_own(sim: Any) -> None:
    report = ck.experiment(independent(sim, 4), lanes=(1, 2), assignments=['round robin', [0, 1, 0, 1], (0, 0, 2, 1)])
    assert ways(report) == [(True, 1, '-'), (True, 2, 'round robin = 0 1 0 1'), (True, 3, '0 0 2 1')]


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(0, 3))
def test_each_way_is_run_once_and_none_is_forgotten(count: int, lanes: list[int], seed: int) -> None:
    with simulated(seed) as cp:
        report = ck.experiment(independent(cp, count), lanes=lanes, rounds=1)
        names = ('round robin', 'blocks')
        wanted = {assigned(count, n, name) for n in lanes if n <= count for name in names}
        assert len(report.rows) == len(wanted)
        assert {assigned(count, row.lanes, name) for row in report.rows for name in row.assignments} == wanted
        assert report.ok


def test_graphs_with_priorities_are_rows_of_their_own(sim: Any) -> None:
    report = ck.experiment(independent(sim, 2), lanes=(1, 2), priorities=[None, -1, (-1,), ()], rounds=1)
    assert [row.priorities for row in report.rows] == [[], [], [-1, -1], [-1, None]]
    assert report.ok
    assert sum('the model ignores priorities' in note for note in report.notes) == 1
    assert len({row.median_us for row in report.rows[1:]}) == 1
    plain = ck.experiment(independent(sim, 2), lanes=(1, 2), rounds=1)
    assert not any('priorities' in note for note in plain.notes)


def test_eager_only_on_the_simulated_device_leaves_nothing(sim: Any) -> None:
    report = ck.experiment(independent(sim, 2), capture=[False], rounds=1)
    assert (report.rows, report.best, report.ok) == ([], None, True)
    assert 'eager rows are left out' in str(report) and 'no times' in report.svg()


# -- as on a GPU ------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in's own clock, as if it were a GPU's: all that a GPU's experiment does, and times without meaning."""
    monkeypatch.setattr('capturekit.lab.experiment._models', lambda platform: False)
    return sim


def test_all_ways_are_timed(timed: Any) -> None:
    report = ck.experiment(independent(timed, 4), lanes=(2, 4), priorities=(None, (-1, None)), rounds=3, launches=2)
    laid = [(2, 'round robin'), (2, 'blocks'), (4, 'round robin = blocks')]
    laid_twice = [(captured, *one) for captured in (False, True) for one in laid for _priority in range(2)]
    assert ways(report) == [(False, 1, '-'), *laid_twice]
    different = [[-1, None], [-1, None], [-1, None, None, None]]
    assert [row.priorities for row in report.rows if row.priority] == different * 2
    assert {row.priority for row in report.rows} == {'', '-1 -'}
    for row in report.rows:
        assert len(row.times_us) == 3
        assert row.source == 'measured' and row.host_us is not None
        assert (row.recording_us is not None) == (row.nodes is not None) == row.captured
    assert report.ok and report.launches == 2
    assert 'eager, 2 lanes, blocks, priority -1 -' in [str(row) for row in report.rows]
    assert 'eager, blocks, priority -1 -' in report.svg()


def test_each_run_counts(timed: Any) -> None:
    runs: list[int] = []

    def program(parallel: Any) -> Any:
        runs.append(1)
        return parallel(*independent(timed, 2))

    ck.experiment(program, lanes=(1, 2), capture=[False], rounds=4, launches=3)
    ways_run, looks, rounds = 2, 2, 1 + 4
    assert len(runs) == looks + ways_run * (1 + rounds * 3)
    assert 1 <= ck.experiment(program, lanes=(1,), capture=[False], rounds=1).launches <= 200


# -- results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('sim', [0, 1, 2], indirect=True)
def test_branches_that_depend_on_each_other_are_told(sim: Any) -> None:
    report = ck.experiment(dependent(sim), lanes=(1, 2), rounds=5)
    one, two = report.rows
    assert one.largest is None and two.largest is not None and two.largest > 0
    assert not report.ok and report.best is one
    assert 'differs by up to' in str(report) and 'Their branches race' in str(report)
    assert 'other results than one lane' in report.svg()


def test_results_that_can_not_be_compared_are_said(sim: Any) -> None:
    x, runs = sim.zeros(8), list[int]()

    def grows() -> Any:
        runs.append(1)
        return x[: 4 if len(runs) <= 2 else 5] + 1

    unchecked = ck.experiment(dependent(sim), lanes=(1, 2), rounds=1, check=False)
    assert unchecked.ok and unchecked.compared == ''
    for branch, note in (
        (lambda: x.fill(1), 'returns no arrays'),
        (lambda: x.__iadd__(1), 'something else when it ran again'),
    ):
        report = ck.experiment([branch, lambda: None], lanes=(1, 2), rounds=1)
        assert report.ok and any(note in said for said in report.notes)
    other_shapes = ck.experiment([grows], lanes=(1,), rounds=1)
    assert [row.largest for row in other_shapes.rows] == [float('inf')]


def test_tolerances(sim: Any) -> None:
    x = sim.linspace(0, 1, 8)
    runs: list[int] = []

    def drifts() -> Any:
        runs.append(1)
        return x + 1e-9 * len(runs)

    assert ck.experiment([drifts, drifts], lanes=(1, 2), rounds=1).compared
    strict = ck.experiment([drifts, drifts], lanes=(1, 2), rounds=1, rtol=0, atol=0)
    assert any('ran again' in note for note in strict.notes)
    whole = ck.experiment([lambda: sim.arange(4), lambda: sim.arange(3)], lanes=(1,), rounds=1)
    assert whole.compared == '2 arrays, equal to the last bit'


def test_everything_is_given_back(sim: Any) -> None:
    before = ck.statistics().graphs
    ck.experiment(independent(sim, 3), rounds=1)
    assert ck.statistics().graphs == before

    def fails(parallel: Any) -> Any:
        results = parallel(*independent(sim, 3))
        if ck.statistics().graphs > before + 1:
            raise LookupError('the user')
        return results

    with pytest.raises(LookupError, match='the user'):
        ck.experiment(fails, rounds=1)
    assert ck.statistics().graphs == before


# -- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('error', 'said', 'args'),
    [
        (TypeError, 'lanes must be a whole number', {'lanes': [2.0]}),
        (ValueError, 'lanes must be 1 or more', {'lanes': [1, 0]}),
        (ValueError, 'lanes must not be empty', {'lanes': ()}),
        (ValueError, "'round robin', 'blocks' or lane numbers", {'assignments': ['random']}),
        (ValueError, 'each of 2 branches', {'assignments': [(0, 1, 1)]}),
        (ValueError, 'has none', {'assignments': [()]}),
        (ValueError, '0 or more', {'assignments': [(0, -1)]}),
        (TypeError, 'priority must be', {'priorities': ['high']}),
        (TypeError, 'priority must be', {'priorities': [None, (0, 0.5)]}),
        (TypeError, 'True and False', {'capture': [None]}),
        (ValueError, 'launches must be', {'launches': 0}),
        (ValueError, 'rounds must be', {'rounds': 0}),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_called(
    sim: Any, error: type[Exception], said: str, args: dict[str, Any]
) -> None:
    called: list[int] = []
    with pytest.raises(error, match=said):
        ck.experiment([lambda: called.append(1)] * 2, **args)
    assert not called


@pytest.mark.parametrize(
    ('error', 'program', 'said'),
    [
        (TypeError, 1, 'branch'), (TypeError, 'abc', 'branch'), (TypeError, [len, 1], 'branch'),
        (ValueError, [], 'branch'), (ValueError, lambda parallel: None, 'ran no branches'),
    ],
)  # fmt: skip
def test_bad_programs_are_refused(sim: Any, error: type[Exception], program: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        ck.experiment(program)


def test_refusals_come_out_and_no_experiment_is_in_a_capture(sim: Any) -> None:
    x = sim.ones(4)
    with pytest.raises(ck.HostReadError):
        ck.experiment([lambda: x * float(x.sum())], rounds=1)
    with ck.capture(), pytest.raises(ck.UnmatchedError, match='Experiment outside of it'):
        ck.experiment(independent(sim, 2))


# -- progress ---------------------------------------------------------------------------------------------------


def test_progress(sim: Any, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    ck.experiment(independent(sim, 2), lanes=(1, 2), rounds=2, progress=told.append)
    assert told == [
        'prepared: graph, 1 lane',
        'prepared: graph, 2 lanes, round robin = blocks',
        'round 1 of 2',
        'round 2 of 2',
    ]
    with caplog.at_level(logging.INFO, 'capturekit'):
        ck.experiment(independent(sim, 2), lanes=(1,), rounds=1)
    assert 'experiment: round 1 of 1' in caplog.messages


# -- the report -------------------------------------------------------------------------------------------------


def made(lanes: Sequence[int] = (1, 2, 4), wrong: int = 0) -> Experiment:
    rows = []
    for captured, first, recording in ((False, 900, None), (True, 100, 5000.0)):
        for n in lanes:
            names = ['round robin', 'blocks'][: 2 if n == 1 else 1]
            times, largest = [first / n + share for share in (0.0, 1.0, 2.0, 3.0)], 0.5 if n == wrong else None
            rows.append(ExperimentRow(captured, n, names, '', [], times, 8.0, recording, 4, largest, 'measured'))
    for row in rows:
        row.ratio = (row.median_us or 0) / (rows[0].median_us or 0)
    return Experiment(rows, 'device 0', [4], 20, 4, '4 arrays')


def test_the_table_and_the_best_that_is_right() -> None:
    assert str(made().best) == 'graph, 4 lanes, round robin' and Experiment().best is None
    assert str(made(wrong=4).best) == 'graph, 2 lanes, round robin'
    head, titles, *lines = str(made(wrong=2)).splitlines()
    assert head == '4 branches, on device 0; device time of one run: median of 4 times 20 runs, with the quartiles'
    assert titles.split() == 'way lanes assignment median us quartiles ratio host us nodes recording us'.split()
    assert lines[0].split()[:4] == ['eager', '1', '-', '901.5']
    assert lines[1].endswith('differs by up to 0.5') and 'best: graph, 4 lanes' in '\n'.join(lines)


def test_json(tmp_path: Path) -> None:
    report = made(wrong=4)
    report.save(tmp_path / 'report.json')
    data = json.loads((tmp_path / 'report.json').read_text())
    assert data['ok'] is False
    assert data['rows'][0]['median_us'] == 901.5
    assert data['rows'][0]['quartiles_us'] == [900.75, 902.25]
    assert Experiment.load(tmp_path / 'report.json') == report
    (tmp_path / 'other.json').write_text('{"version": 99}')
    with pytest.raises(ValueError, match='not a report of an experiment'):
        Experiment.load(tmp_path / 'other.json')


@pytest.mark.parametrize('lanes', [(1,), (1, 2, 4, 8, 16), (3,)])
def test_picture(lanes: Sequence[int]) -> None:
    report = made(lanes, wrong=lanes[-1])
    root = ElementTree.fromstring(report.svg())
    text = ''.join(root.itertext())
    assert 'graph, round robin' in text
    assert f'{lanes[-1]} lane' in text
    bundle = report._repr_mimebundle_()
    assert bundle == {'text/plain': str(report), 'image/svg+xml': report.svg()}


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(1e-3, 1e9), st.floats(1, 3), st.booleans()), min_size=1, max_size=12
    ),
    st.text(max_size=20),
)
def test_any_times_can_be_drawn(points: list[tuple[int, float, float, bool]], name: str) -> None:
    drawn = tuple(Point(lanes, us, us / spread, us * spread, wrong) for lanes, us, spread, wrong in points)
    root = ElementTree.fromstring(to_svg(name, name, [Series(name, drawn), Series('none', ())]))
    for circle in root.iter('{http://www.w3.org/2000/svg}circle'):
        assert 0 <= float(circle.get('cy', '-1')) <= float(root.get('height', '0'))


def test_plot_draws_a_line_for_each_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into axes of matplotlib's shape: the library itself is no dependency."""
    drawn: list[tuple[Any, ...]] = []
    axes = types.SimpleNamespace(
        errorbar=lambda *args, **kwargs: drawn.append((*args, kwargs)), set=lambda **kwargs: None, legend=lambda: None
    )
    assert made().plot(axes) is axes
    labels = [kwargs['label'] for _lanes, _medians, kwargs in drawn]
    assert labels == ['eager, round robin', 'eager, blocks', 'graph, round robin', 'graph, blocks']
    assert drawn[0][0] == [1, 2, 4] and drawn[1][0] == [1]
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    with pytest.raises(ImportError, match='pip install matplotlib'):
        made().plot()


def test_a_race_that_makes_no_difference_is_found_all_the_same(sim: Any) -> None:
    total = sim.zeros(8)

    def program(parallel: Any) -> Any:
        total[...] = 0
        parallel(lambda: sim.add(total, 1, out=total), lambda: sim.add(total, 2, out=total))
        return total

    report = ck.experiment(program, lanes=(1, 2), rounds=1)
    racing, alone = (next(row for row in report.rows if row.lanes == n) for n in (2, 1))
    assert (racing.races, racing.largest, alone.races) == (1, None, 0)
    assert not report.ok and report.best is alone
    assert '1 race' in str(report) and 'total is accessed in no fixed order' in str(report)
    assert not any(row.races for row in ck.experiment(program, lanes=(1, 2), rounds=1, check=False).rows)
