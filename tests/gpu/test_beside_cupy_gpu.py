"""torch, Numba, ``cuda.core`` and a C library beside CuPy in one capture: each way works, or is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.gpu.beside_cupy import WAYS
from tests.gpu.world import ROOT

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize('name', sorted(WAYS))
def test_a_library_beside_cupy(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, '-m', 'tests.gpu.beside_cupy', name], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    said = ran.stdout.strip().splitlines()[-1:]
    assert ran.returncode == 0 and said, f'{ran.stdout[-1000:]}\n{ran.stderr[-3000:]}'
    if said[0].startswith('skipped'):
        pytest.skip(said[0])
    assert said == ['good']
