"""Arrays of one device that code uses with another device current, in CuPy's stand-in."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from capturekit.simulated import SimulatedDevice, install, uninstall


@pytest.fixture
def cp() -> Iterator[Any]:
    install(SimulatedDevice(devices=2))
    try:
        yield sys.modules['cupy']
    finally:
        uninstall()


def test_an_array_is_assigned_by_memcpy_from_another_device(cp: Any) -> None:
    """CuPy does so where shapes, strides and dtypes are alike: no kernel has to reach the other device."""
    here = cp.arange(6.0).reshape(2, 3)
    with cp.cuda.Device(1):
        there = cp.zeros((2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        there[...] = here
        assert there.get().tolist() == here.get().tolist()
        there[1:] = here[:1]
        assert there[1].get().tolist() == here[0].get().tolist()
    for work in (lambda: there.__setitem__(Ellipsis, here[0]), lambda: there.T.__setitem__(Ellipsis, here.T)):
        with pytest.warns(cp._util.PerformanceWarning, match='different from the current device'):
            work()
