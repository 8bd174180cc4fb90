"""What tests of the guard share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import capturekit as ck
from tests.captured import simulated


@pytest.fixture(params=['simulated', pytest.param('gpu', marks=pytest.mark.gpu)])
def several(request: pytest.FixtureRequest) -> Iterator[Any]:
    """CuPy with at least two devices."""
    if request.param == 'gpu':
        cupy = pytest.importorskip('cupy')
        count = cupy.cuda.runtime.getDeviceCount()
        if count < 2:
            pytest.skip(f'this needs two devices, and there are {count}')
        yield cupy
        assert cupy.cuda.Device().id == 0
        return
    with simulated(7, devices=3) as cp:
        yield cp
        assert cp.cuda.Device().id == 0
        assert ck.guard.GUARD.state.placeholders == {}  # type: ignore[attr-defined]
