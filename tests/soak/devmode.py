"""The whole suite under Python's development mode, where a file or process that is left open is an error.

By hand: ``PYTHONDEVMODE=1 python -m pytest tests -W error::ResourceWarning``, and the same for pytest's own warnings
below. As ``python -X dev``, but by the environment, so that processes of the tests and of pytest-xdist are in it, too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_ERRORS = (
    'ResourceWarning',
    'pytest.PytestUnraisableExceptionWarning',
    'pytest.PytestUnhandledThreadExceptionWarning',
)


def run(say: Callable[[str], None] = print, tests: Sequence[str] = ('tests',)) -> dict[str, Any]:
    """How many tests passed; none fails."""
    command = [sys.executable, '-m', 'pytest', '-q', '-m', '', '-p', 'no:cacheprovider', *tests]
    for warning in _ERRORS:
        command += ['-W', f'error::{warning}']
    if importlib.util.find_spec('xdist') is not None:
        command += ['-n', 'auto']
    say(f'dev: {" ".join(command)}')
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=root, env={**os.environ, 'PYTHONDEVMODE': '1'})
    counts = {
        what: int(count)
        for count, what in re.findall(r'(\d+) (passed|failed|skipped|errors?|warnings?)', ran.stdout[-300:])
    }
    assert ran.returncode == 0, ran.stdout[-3500:] + ran.stderr[-500:]
    return counts
