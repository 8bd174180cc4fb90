"""Random programs with conditional nodes, recorded and eager."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from tests.captured import launched, simulated
from tests.examples import examples

_leaf = st.tuples(st.just('work'), st.integers(0, 2), st.integers(1, 5))
_programs = st.recursive(
    st.lists(_leaf, min_size=1, max_size=3),
    lambda inner: st.lists(
        st.one_of(
            _leaf,
            st.tuples(st.just('while'), st.integers(0, 3), inner),
            st.tuples(st.just('if'), st.integers(0, 2), inner),
            st.tuples(st.just('else'), st.integers(0, 2), inner, inner),
        ),
        min_size=1,
        max_size=3,
    ),
    max_leaves=8,
)


def host(program: Any, state: list[float]) -> None:
    """What the program does, in Python."""
    for step in program:
        if step[0] == 'work':
            state[step[1]] = state[step[1]] * 2 + step[2]
        elif step[0] == 'while':
            for _ in range(step[1]):
                host(step[2], state)
        elif step[0] == 'if':
            if step[1]:
                host(step[2], state)
        else:
            host(step[2] if step[1] else step[3], state)


def record(cp: Any, cap: Any, program: Any, arrays: list[Any]) -> None:
    for step in program:
        if step[0] == 'work':
            array = arrays[step[1]]
            cp.add(array * 2, step[2], out=array)
        elif step[0] == 'while':
            left = cp.full((), step[1], 'i4')
            with cap.while_(left):
                record(cp, cap, step[2], arrays)
                cp.subtract(left, 1, out=left)
        elif step[0] == 'if':
            with cap.if_(cp.full((), step[1], 'i4')):
                record(cp, cap, step[2], arrays)
        else:
            with cap.if_else(cp.full((), step[1], 'i4')) as (then, otherwise):
                with then:
                    record(cp, cap, step[2], arrays)
                with otherwise:
                    record(cp, cap, step[3], arrays)


@settings(max_examples=examples(60), deadline=None)
@given(program=_programs, seed=st.integers(0, 5))
def test_any_program_of_decisions_gives_what_the_host_gives(program: Any, seed: int) -> None:
    with simulated(seed) as cp:
        check_program(cp, program)


@pytest.mark.gpu
@settings(max_examples=examples(40), deadline=None)
@given(program=_programs)
def test_any_program_of_decisions_on_a_gpu(program: Any) -> None:
    check_program(pytest.importorskip('cupy'), program)


def check_program(cp: Any, program: Any) -> None:
    arrays = [cp.zeros(8) for _ in range(3)]
    with ck.capture() as cap:
        record(cp, cap, program, arrays)
    want = [0.0, 0.0, 0.0]
    for _ in range(2):
        host(program, want)
        assert launched(cap, *arrays) == [[value] * 8 for value in want]
    cap.graph.close()
