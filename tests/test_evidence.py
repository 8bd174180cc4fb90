"""What the committed results have to hold; tests/test_docs.py holds docs/evidence.md against them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import evidence


@pytest.mark.parametrize('path', sorted(evidence.BENCHMARKS.glob('*.json')), ids=lambda path: path.stem)
def test_committed_runs_name_their_machine_and_have_no_errors(path: Path) -> None:
    run = json.loads(path.read_text())
    assert {'device', 'driver', 'runtime', 'python', 'torch', 'numpy'} <= run['machine'].keys()
    assert [line['name'] for line in run['lines'] if line.get('error')] == []


def test_every_guarded_call_left_the_capture_good() -> None:
    calls = evidence.rows(evidence.GUARDED)
    assert len(calls) > 350
    assert {(row['origin'], row['lane'], row['launched']) for row in calls} == {('Active', 'Active', 'yes')}
