"""The topology, the simulated device and the driver answer every step of random programs alike."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agreement import simulated_machine, topology_machine
from tests.agreement.programs import LEGACY, MODES, OPS, Program, Step, random_program
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


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs for hypothesis to shrink."""
    blocking = draw(st.lists(st.booleans(), min_size=1, max_size=5))
    events = draw(st.integers(1, 5))
    streams = st.integers(0, len(blocking) - 1)
    program = Program(blocking, events)
    for _ in range(draw(st.integers(1, 40))):
        op = draw(st.sampled_from(sorted(OPS)))
        takes_stream, takes_event, may_legacy, _weight, _operation = OPS[op]
        program.steps.append(
            Step(
                op,
                s=draw(st.one_of(streams, st.just(LEGACY)) if may_legacy else streams) if takes_stream else None,
                e=draw(st.integers(0, events - 1)) if takes_event else None,
                e2=draw(st.integers(0, events - 1)) if op == 'elapsed' else None,
                mode=draw(st.sampled_from(MODES)) if op == 'begin' else None,
                t=draw(st.integers(0, 1)),
            )
        )
    return program


@settings(max_examples=examples(400), deadline=None)
@given(programs())
def test_topology_and_simulated_device_agree(program: Program) -> None:
    compare(program, ancestors(simulated_machine.run(program)), topology_machine.run(program), 'the topology')


def test_long_programs_agree() -> None:
    for seed in range(60):
        program = random_program(1_000_000 + seed, length=400, illegal=0.02)
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
