"""Arguments of wrong types on a GPU, each row in a process of its own: what CUDA takes for a handle would end it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.command import ROOT
from tests.wrong_types import CALLS

pytestmark = pytest.mark.gpu


def _made(name: str) -> str:
    command = [sys.executable, '-m', 'tests.wrong_types', name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return '' if done.returncode == 0 else f'{name}: status {done.returncode}: {done.stdout} {done.stderr}'


def test_refused_and_the_process_goes_on() -> None:
    with ThreadPoolExecutor(6) as pool:
        assert [one for one in pool.map(_made, CALLS) if one] == []
