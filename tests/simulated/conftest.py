"""What tests of the simulated device share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulated.bench import Bench, CudaBench, SimulatedBench


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
def side(sim: Any) -> Any:
    return sim.cuda.Stream(non_blocking=True)
