"""The tool that plants mistakes finds a planted survivor, and a planted kill, and leaves the checkout alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import report
from tests.mutation.mutants import mutants
from tests.mutation.subjects import SUBJECTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCE = """def old(age: int) -> bool:
    return age >= 18


def unused() -> int:
    return 3
"""
TEST = """from planted import old, unused

def test_old():
    assert unused
    assert old(18) and not old(17)
"""


def test_a_planted_survivor_and_a_planted_kill(tmp_path: Path) -> None:
    (tmp_path / 'planted.py').write_text(SOURCE)
    (tmp_path / 'test_planted.py').write_text(TEST)
    done = subprocess.run(
        [sys.executable, '-m', 'tests.mutation', 'planted.py', '--tests', 'test_planted.py'],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert '- return 3\n  + return None' in done.stdout
    assert 'age' not in done.stdout, 'every change of the tested function is noticed'
    assert '8 tried: 5 killed, 0 timed out, 0 without a change in meaning, 3 survived' in done.stdout
    assert (tmp_path / 'planted.py').read_text() == SOURCE


def changes(source: str, *prose: str) -> set[str]:
    return {mutant.lines(source)[1] for mutant in mutants(source, prose)}


def test_what_is_changed() -> None:
    assert changes('x = 1 if not a and b else 2') >= {
        'x = 1 if (a) and b else 2',
        'x = 1 if (not a or b) else 2',
        'x = 1 if (b) else 2',
        'x = 2 if not a and b else 2',
    }
    assert changes('def f(x):\n    work(x)\n    return x in (1,)') >= {'pass', 'return None', 'return x not in (1,)'}
    table = "T = (\n    ('a', A, 1),\n    ('b', B, 1),\n    ('c', B, 1),\n)\n"
    assert changes(table) == {"('b', A, 1),", "('c', B, 1),", "('a', B, 1),", "('c', A, 1),", '*(),'}
    colours = 'class Colour(Enum):\n    RED = 1\n    BLUE = 2\n\n\ndef f(x):\n    return x is Colour.RED\n'
    assert 'return x is Colour.BLUE' in changes(colours)


def test_texts_for_people_are_left() -> None:
    said = 'def f(x: int) -> str:\n    "Says it."\n    raise ValueError("do not do this")\n'
    assert changes(said) == {'pass'}
    assert changes('R = Rule("name", "says this to people")', 'Rule') == {'R = Rule(\'name_\', "says this to people")'}


def test_subjects_name_files_that_are_there() -> None:
    for module, subject in SUBJECTS.items():
        assert (ROOT / module).exists()
        assert all((ROOT / test).exists() for test in subject.tests), module


def test_the_page_follows_the_results_and_gives_reasons() -> None:
    assert (ROOT / 'docs' / 'evidence' / 'mutants.md').read_text() == report.page(), (
        'python -m tests.mutation --page > docs/evidence/mutants.md'
    )
    results = json.loads(report.RESULTS.read_text())
    for module, listed in json.loads(report.EQUIVALENT.read_text()).items():
        survived = results[module]['survived']
        unused = [e for e in listed if not any(report.same(e, s) for s in survived)]
        assert unused == [], 'these are noticed by now, or were not tried'
