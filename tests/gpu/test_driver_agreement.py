"""On the GPU: the driver, the simulated device and the topology answer every step of random programs alike.

``tests/agreement`` holds the two models against recorded traces; this asks the driver itself, about programs that no
trace holds, and lets hypothesis shrink what they disagree on.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from capturekit.driver.cuda import current
from tests.agreement import simulated_machine, topology_machine
from tests.agreement.programs import Program, random_program
from tests.agreement.test_agreement import ancestors, compare, finished, programs
from tests.model.followed_programs import KINDS, STEPS, Step, agree

pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

#: The recorded traces end far below.
FIRST_SEED = 10_000_000
PARTS, IN_A_PART = 25, 100
ILLEGAL = (0.02, 0.05, 0.2, 0.5, 1.0)


def told_to_all(program: Program) -> list[tuple[str, list[Any]]]:
    """Run a program on the driver and on both models; return the driver's answers."""
    from tests.gpu import driver_machine

    answers = driver_machine.run(program)
    compare(program, finished(answers), simulated_machine.run(program), 'the simulated device')
    compare(program, ancestors(answers), topology_machine.run(program), 'the topology')
    return answers


@pytest.mark.parametrize('part', range(PARTS))
def test_random_programs(part: int) -> None:
    wrong: list[str] = []
    refused = 0
    for seed in range(FIRST_SEED + part * IN_A_PART, FIRST_SEED + (part + 1) * IN_A_PART):
        program = random_program(seed, length=(30, 40, 60)[seed % 3], illegal=ILLEGAL[seed % 5])
        try:
            answers = told_to_all(program)
        except AssertionError as error:
            wrong.append(f'seed {seed}: {error}\n  {json.dumps(program.to_json())}')
            continue
        refused += sum(not code.startswith('cudaSuccess') for code, _state in answers)
    assert not wrong, f'{len(wrong)} of {IN_A_PART} programs disagree\n' + '\n'.join(wrong[:5])
    assert refused > IN_A_PART / 4


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(programs())
def test_programs_that_shrink(program: Program) -> None:
    told_to_all(program)


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
