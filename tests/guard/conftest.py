"""What tests of the guard share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall


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
    install(SimulatedDevice(7, devices=3))
    try:
        yield sys.modules['cupy']
        assert sys.modules['cupy'].cuda.Device().id == 0
        assert ck.guard.GUARD.state.placeholders == {}  # type: ignore[attr-defined]
    finally:
        uninstall()
