"""What tests of the simulated device share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulated.bench import Bench, CudaBench, SimulatedBench
from tests.simulated.standin import fresh


@pytest.fixture(params=['simulated', pytest.param('cuda', marks=pytest.mark.gpu)])
def bench(request: pytest.FixtureRequest, no_garbage: None) -> Iterator[Bench]:
    if request.param == 'cuda':
        pytest.importorskip('cupy')
        pytest.importorskip('cuda.bindings')
    made = CudaBench() if request.param == 'cuda' else SimulatedBench()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def standin() -> Iterator[Any]:
    """The stand-in for CuPy, built and not installed."""
    modules = set(sys.modules)
    found = fresh()
    yield found
    left = {m for m in set(sys.modules) - modules if m.startswith(('cupy', '_capturekit'))}
    assert not left
    assert found.cuda.get_current_stream() == found.cuda.Stream.null
    assert found.cuda.memory._get_thread_local_allocator() is None
    assert not found.__capturekit_simulated__.captures


@pytest.fixture
def side(cp: Any) -> Any:
    return cp.cuda.Stream(non_blocking=True)
