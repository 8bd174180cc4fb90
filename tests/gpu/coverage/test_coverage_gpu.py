"""The given cases on the GPU: nothing wrong, lost or dead in any column, and as many equal as promised."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[3]
EQUAL = {'strict': 75, 'rehearsed': 95, 'graphed': 104}
#: Of the graphed ones so many at least are launched, as one graph or in pieces.
LAUNCHED = 95


@pytest.fixture(scope='module')
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp('coverage') / 'results.json'
    command = [sys.executable, '-m', 'tests.gpu.coverage.run', '--given', '--out', str(out), '--columns', *EQUAL]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    return json.loads(out.read_text())['rows']


def test_nothing_is_wrong_lost_or_dead(rows: list[dict[str, Any]]) -> None:
    bad = [row for row in rows if row['outcome'] in ('wrong', 'lost', 'died')]
    assert [(row['label'], row['column'], row['temperature'], row['text'][:200]) for row in bad] == []


def test_a_refused_capture_leaves_nothing_behind(rows: list[dict[str, Any]]) -> None:
    assert {row['after'] for row in rows if 'after' in row} <= {'good'}


@pytest.mark.parametrize('temperature', ['warm', 'cold'])
@pytest.mark.parametrize('column', EQUAL)
def test_as_many_are_equal_as_promised(rows: list[dict[str, Any]], column: str, temperature: str) -> None:
    mine = [row for row in rows if (row['column'], row['temperature']) == (column, temperature)]
    assert len(mine) == 106
    assert sum(row['outcome'] == 'equal' for row in mine) >= EQUAL[column]


@pytest.mark.parametrize('temperature', ['warm', 'cold'])
def test_graphed_cases_are_launched(rows: list[dict[str, Any]], temperature: str) -> None:
    mine = [row for row in rows if (row['column'], row['temperature']) == ('graphed', temperature)]
    assert sum(row.get('how') in ('recorded', 'pieces') for row in mine) >= LAUNCHED
