"""Random programs on a GPU: the account that is made of CUPTI's callbacks agrees with the driver after every call."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from capturekit.driver.cuda import current
from tests.model.followed_programs import KINDS, STEPS, Step, agree

pytestmark = [pytest.mark.gpu, pytest.mark.serial]


@pytest.fixture
def target() -> Iterator[tuple[Any, Any]]:
    """CuPy, and memory to write into. Nothing is collected meanwhile, for a destructor may lose a capture."""
    cp = pytest.importorskip('cupy')
    memory = cp.zeros(16)
    cp.cuda.Device().synchronize()
    gc.collect()
    gc.disable()
    yield cp, memory
    gc.enable()


@given(STEPS, KINDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_account_agrees_with_the_driver(target: tuple[Any, Any], steps: list[Step], kinds: list[bool]) -> None:
    cp, memory = target
    runtime = cp.cuda.runtime

    def work(stream: int) -> None:
        runtime.memsetAsync(memory.data.ptr, 0, 64, stream)

    def unsafe() -> None:
        runtime.free(runtime.malloc(256))

    agree(current().device, work, unsafe, steps, kinds)
