"""The figures in docs/evidence are those of the committed runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.benchmarks import readme

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / 'tests' / 'benchmarks' / 'results'
RESULTS = FOLDER / 'h100_2026-11-26.json'
COSTS = ROOT / 'docs' / 'evidence' / 'costs.md'


def test_the_table_of_ratios_is_the_committed_run() -> None:
    lines = {line['name']: line for line in json.loads(RESULTS.read_text())['lines']}
    section = COSTS.read_text().split('\n## Ratios\n')[1].split('\n## ')[0]
    rows = re.findall(r'^\| (.+) \| (\d+\.\d\d) \|$', section, re.MULTILINE)
    assert len(rows) >= 10
    for name, ratio in rows:
        assert f'{lines[name]["ratio"]:.2f}' == ratio, name


def test_what_a_watch_costs_is_the_committed_run() -> None:
    run = sorted(FOLDER.glob('watching_h100_*.json'))[-1]
    lines = {line['name']: line for line in json.loads(run.read_text())['lines']}
    section = COSTS.read_text().split('\n## Watching\n')[1].split('\n## ')[0]
    rows = re.findall(r'^\| (.+) \| ([\d.,]+) \| ([\d.,]+) \| (\d+\.\d\d) \|$', section, re.MULTILINE)
    assert [name for name, *_ in rows] == list(lines)
    for name, without, watched, ratio in rows:
        found = lines[name]['medians']
        assert (readme.number(found['without']), readme.number(found['watched'])) == (without, watched), name
        assert f'{lines[name]["ratio"]:.2f}' == ratio, name


def test_the_table_of_peers_is_the_committed_run() -> None:
    run = sorted(FOLDER.glob('peers_h100_*.json'))[-1]
    assert readme.rendered(json.loads(run.read_text())) in COSTS.read_text()


#: Committed runs are named TABLE_DEVICE_DATE.json; the page shows the H100's latest.
@pytest.mark.parametrize(('table', 'head'), [('workloads', '| workload | CuPy eager'), ('memory', '| memory | MB')])
def test_a_table_is_the_committed_run_of(table: str, head: str) -> None:
    text = COSTS.read_text()
    runs = sorted(FOLDER.glob(f'{table}_h100_*.json'))
    if not runs:
        assert head not in text, f'the page tells of {table}, and no run of it is committed'
        return
    assert readme.rendered(json.loads(runs[-1].read_text())) in text


@pytest.mark.parametrize('path', sorted(FOLDER.glob('*.json')), ids=lambda path: path.stem)
def test_committed_runs_name_their_machine_and_have_no_errors(path: Path) -> None:
    run = json.loads(path.read_text())
    assert {'device', 'driver', 'runtime', 'python', 'torch', 'numpy'} <= run['machine'].keys()
    assert [line['name'] for line in run['lines'] if line.get('error')] == []


def test_every_guarded_call_left_the_capture_good() -> None:
    text = (ROOT / 'docs' / 'evidence' / 'guarded_calls.md').read_text()
    rows = [line.strip('| ').split(' | ') for line in text.splitlines() if line.startswith('| cupy')]
    assert len(rows) > 350
    assert {row[4] for row in rows} == {'Active, Active'}
    assert {row[5] for row in rows} == {'yes'}
