"""``capturekit run`` with a test runner, which tells itself what ends it; and work that a capture has held back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import cupy as cp, capturekit as ck, pytest
def test_refused():
    with pytest.raises(ck.HostReadError), ck.capture():
        float(cp.ones(3).sum())
def test_fails():
    assert 0
"""
HELD = """
import cupy as cp
w, s = cp.ones(4), cp.cuda.Stream(non_blocking=True)
s.begin_capture()
w *= 2
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-m', 'capturekit', 'run', '--simulate', *words]
    environment = {'PYTHONPATH': str(ROOT), 'PATH': '', 'NO_COLOR': '1'}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_refusals_that_tests_expect_are_no_causes(tmp_path: Path) -> None:
    (tmp_path / 'test_it.py').write_text(TESTS)
    ran = run(tmp_path, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'test_it.py')
    assert ran.returncode == 1 and '1 failed, 1 passed' in ran.stdout
    assert 'ended the program' not in ran.stderr


def test_work_that_was_held_back_is_named_at_the_end(tmp_path: Path) -> None:
    (tmp_path / 'held.py').write_text(HELD)
    ran = run(tmp_path, 'held.py')
    assert ran.returncode == 1
    assert '1 piece of work' in ran.stderr and 'at held.py:5, was held back and never ran' in ran.stderr
