"""The README's figures are those of the committed run."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / 'tests' / 'benchmarks' / 'results' / 'h100_2026-11-21.json'


def test_the_readmes_table_is_the_committed_run() -> None:
    lines = {line['name']: line for line in json.loads(RESULTS.read_text())['lines']}
    section = (ROOT / 'README.md').read_text().split('## What it costs')[1].split('\n## ')[0]
    rows = re.findall(r'^\| (.+) \| (\d+\.\d\d) \|$', section, re.MULTILINE)
    assert len(rows) >= 10
    for name, ratio in rows:
        assert f'{lines[name]["ratio"]:.2f}' == ratio, name


def test_every_guarded_call_of_the_committed_table_left_the_capture_good() -> None:
    text = (ROOT / 'docs' / 'guarded_calls.md').read_text()
    rows = [line.strip('| ').split(' | ') for line in text.splitlines() if line.startswith('| cupy')]
    assert len(rows) > 350
    assert {row[4] for row in rows} == {'Active, Active'}
    assert {row[5] for row in rows} == {'yes'}
