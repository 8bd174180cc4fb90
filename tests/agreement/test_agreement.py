"""The topology, the simulated device and the driver answer every step of random programs alike."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.agreement import simulated_machine, topology_machine
from tests.agreement.programs import Program, random_program
from tests.examples import examples

TRACES = Path(__file__).parents[1] / 'data' / 'driver_traces.json.gz'
Answers = list[tuple[str, list[Any]]]


@pytest.fixture(scope='module')
def traces() -> Any:
    """What the driver answered. They are 200,000 lists, and other tests, which go through all objects, get slow."""
    return json.loads(gzip.decompress(TRACES.read_bytes()))['traces']


def finished(answers: Any) -> Answers:
    """Answers with 'not ready' read as success: the driver may still be working, the others never are."""
    return [('cudaSuccess' if code == 'cudaErrorNotReady' else code, state) for code, state in answers]


def ancestors(answers: Any) -> Answers:
    """Answers with each stream's dependencies widened to all nodes that lie before its next one."""
    before: dict[tuple[int, int], set[int]] = {}
    previous: list[Any] = []
    result: Answers = []
    for code, state in finished(answers):
        rows: list[Any] = []
        for i, x in enumerate(state):
            if not x or x[0] != 'Active':
                rows.append(x)
                continue
            _status, capture, nodes = x
            for node in nodes:
                if (capture, node) not in before:
                    old = previous[i] if previous and previous[i] else [None, None, []]
                    known = old[2] if old[0] == 'Active' and old[1] == capture else []
                    before[capture, node] = set(known).union(*(before[capture, k] for k in known))
            rows.append(['Active', capture, sorted(set(nodes).union(*(before[capture, n] for n in nodes)))])
        result.append((code, rows))
        previous = state
    return result


def compare(program: Program, expected: Any, got: Any, who: str) -> None:
    for i, (want, have) in enumerate(zip(expected, got, strict=True)):
        assert tuple(have) == tuple(want), (
            f'{who} disagrees at step {i} of\n'
            + '\n'.join(f'  {step}' for step in program.steps[: i + 1])
            + f'\n  streams blocking: {program.blocking}'
        )


@pytest.mark.parametrize('part', range(10))
def test_both_agree_with_recorded_traces_of_the_driver(part: int, traces: Any) -> None:
    mine = traces[part::10]
    assert len(mine) == 150
    for trace in mine:
        program = Program.from_json(trace)
        compare(program, finished(trace['answers']), simulated_machine.run(program), 'the simulated device')
        compare(program, ancestors(trace['answers']), topology_machine.run(program), 'the topology')


@pytest.mark.parametrize(('length', 'illegal', 'count'), [(40, 1.0, 400), (400, 0.02, 240)])
def test_topology_and_simulated_device_agree(length: int, illegal: float, count: int) -> None:
    for seed in range(1_000_000, 1_000_000 + examples(count)):
        program = random_program(seed, length=length, illegal=illegal)
        compare(program, ancestors(simulated_machine.run(program)), topology_machine.run(program), 'the topology')


def test_a_wrong_answer_is_seen(traces: Any) -> None:
    """The comparison itself can fail: a flipped code, status and dependency are each found."""
    trace = next(t for t in traces if any(a[0] == 'cudaSuccess' and any(a[1]) for a in t['answers']))
    program = Program.from_json(trace)
    good = simulated_machine.run(program)
    at = next(i for i, a in enumerate(good) if any(a[1]))
    for wrong in (('cudaErrorInvalidValue', good[at][1]), (good[at][0], [['Active', 0, [99]] for _ in good[at][1]])):
        with pytest.raises(AssertionError, match=f'step {at}'):
            compare(program, finished(trace['answers']), [*good[:at], wrong, *good[at + 1 :]], 'a liar')
