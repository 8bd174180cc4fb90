"""What tests on a GPU share."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from capturekit.driver import cupti


@pytest.fixture
def gpu() -> Any:
    """CuPy, where it and cuda-bindings are there."""
    pytest.importorskip('cuda.bindings')
    return pytest.importorskip('cupy')


@pytest.fixture
def profiler_beside_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what the profiler tells. The threads that are there, as pytest-xdist's, do not count."""
    real, others = threading.active_count, threading.active_count() - 1
    monkeypatch.setattr(threading, 'active_count', lambda: real() - others)
    if isinstance(found := cupti.profiler(), str):
        pytest.skip(found)
