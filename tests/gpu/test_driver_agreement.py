"""On the GPU: the driver, the simulated device and the topology answer every step of random programs alike.

``tests/agreement`` holds the two models against recorded traces; this asks the driver itself, about programs that no
trace holds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from capturekit.driver.cuda import current
from tests.model.followed_programs import KINDS, STEPS, Step, agree
from tests.soak import agreement

pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

PARTS, IN_A_PART = 25, 40


@pytest.mark.parametrize('part', range(PARTS))
def test_random_programs(part: int) -> None:
    assert agreement.run(IN_A_PART, part)['refused'] > IN_A_PART / 4


@pytest.fixture
def target() -> Iterator[tuple[Any, Any]]:
    """CuPy, and memory to write into. Nothing is collected meanwhile, for a destructor may lose a capture."""
    import cupy as cp

    memory = cp.zeros(16)
    cp.cuda.Device().synchronize()
    gc.collect()
    gc.disable()
    yield cp, memory
    gc.enable()


@pytest.mark.serial
@given(STEPS, KINDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_account_agrees_with_the_driver(target: tuple[Any, Any], steps: list[Step], kinds: list[bool]) -> None:
    """The account that is made of CUPTI's callbacks, after every call."""
    cp, memory = target
    runtime = cp.cuda.runtime

    def work(stream: int) -> None:
        runtime.memsetAsync(memory.data.ptr, 0, 64, stream)

    def unsafe() -> None:
        runtime.free(runtime.malloc(256))

    agree(current().device, work, unsafe, steps, kinds)
