"""Random programs told to the driver, the simulated device and the topology, longer ones than the tests' own."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from capturekit.model.progress import each
from tests.agreement import simulated_machine, topology_machine
from tests.agreement.programs import Program, random_program
from tests.agreement.test_agreement import ancestors, compare, finished

FIRST_SEED = 20_000_000
LENGTHS = (30, 60, 120, 200)
ILLEGAL = (0.0, 0.02, 0.05, 0.2, 0.5, 1.0)


def told_to_all(program: Program) -> list[tuple[str, list[Any]]]:
    """Run a program on the driver and on both models; return the driver's answers.

    Meanwhile nothing is collected: a destructor of what an earlier test has left would lose the driver's captures.
    """
    from tests.gpu import driver_machine

    gc.disable()
    try:
        answers = driver_machine.run(program)
    finally:
        gc.enable()
    compare(program, finished(answers), simulated_machine.run(program), 'the simulated device')
    compare(program, ancestors(answers), topology_machine.run(program), 'the topology')
    return answers


def run(count: int, part: int = 0, say: Callable[[str], None] = print) -> dict[str, Any]:
    """``count`` programs, those of ``part``: parts are different programs."""
    done: Counter[str] = Counter()
    wrong: list[str] = []
    first = FIRST_SEED + part * count
    for seed in each('agreement', range(first, first + count)):
        program = random_program(seed, length=LENGTHS[seed % len(LENGTHS)], illegal=ILLEGAL[seed % len(ILLEGAL)])
        try:
            answers = told_to_all(program)
        except AssertionError as error:
            wrong.append(f'seed {seed}: {error}\n  {json.dumps(program.to_json())}')
        else:
            done['steps'] += len(answers)
            done['refused'] += sum(not code.startswith('cudaSuccess') for code, _state in answers)
        if (seed - first) % 1000 == 999:
            say(f'agreement: {seed - first + 1:,} of {count:,}, {len(wrong)} disagree')
    assert not wrong, f'{len(wrong)} of {count} programs disagree\n' + '\n'.join(wrong[:5])
    return {'programs': count, **done, 'disagreements': 0, 'first seed': first}
