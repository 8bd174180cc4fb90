"""The programs of ``samples/wild`` on the GPU at real sizes, each in a process of its own: graphed equals eager."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.command import ROOT

pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    'command', ['kmeans.py', 'conjugate_gradient.py', 'kalman.py', 'fdtd.py', 'mlp.py', 'mlp.py --generator']
)
def test_graphed_equals_eager(command: str) -> None:
    """The program itself ends with an error where its results differ."""
    name, *args = command.split()
    ran = subprocess.run(
        [sys.executable, str(ROOT / 'samples' / 'wild' / name), *args],
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(ran.stdout, ran.stderr, sep='')
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert 'simulated' not in ran.stdout
    times = re.search(r'eager ([\d.]+) us, graphed ([\d.]+) us', ran.stdout)
    assert times, ran.stdout
    eager, graphed = (1e6 / float(time) for time in times.groups())
    print(f'{command}: {graphed:,.0f} calls a second graphed, {eager:,.0f} eagerly')
