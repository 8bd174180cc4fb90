"""Adapting mode, row by row of the design's table: equal to the eager run, and each change is noted.

Each program of ``adapting.txt`` is written as people write it eagerly: its first line has its name, the kind of notes
that it must leave, and pieces of them. It runs once eagerly with all its streams being one, so that its own races don't
count, and once recorded with ``strict=False`` on streams of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.gpu.world import programs_of, status, world

N = 4096
FILE = Path(__file__).with_name('adapting.txt')
PROGRAMS = programs_of(FILE)


def slowly(cp: Any, a: Any) -> Any:
    """Enough work that what does not wait for it would see it unfinished."""
    for _ in range(20):
        a = cp.sqrt(a * a + 1)
    return a


def eager(cp: Any, program: Callable[..., Any], x: Any) -> Any:
    """The program on one stream, so in the order in which it is written; it is a blocking one, so in order with the
    legacy stream, too."""
    one = cp.cuda.Stream()
    cp.cuda.Device().synchronize()
    before = cp.cuda.get_current_stream()
    with one:
        result = program(x, one, one)
    before.use()
    cp.cuda.Device().synchronize()
    return result.get()


@pytest.mark.parametrize('name', PROGRAMS)
def test_equal_to_the_eager_run_and_noted(cp: Any, name: str) -> None:
    _name, kind, *notes = PROGRAMS[name].head
    names = {'N': N, 'rt': cp.cuda.runtime, 'null': cp.cuda.Stream.null, 'slowly': functools.partial(slowly, cp)}
    program, x = PROGRAMS[name].compiled('x, s, t', {'cp': cp, 'np': np, **names}), cp.linspace(0, 1, N)
    want = eager(cp, program, x)
    s, t = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    before = world()
    with ck.capture(strict=False) as cap:
        result = program(x, s, t)
        assert status(cap.stream) == 'Active'
    assert world() == before
    for factor in (1, 3, 0.5):
        x *= factor
        if factor != 1:
            want = eager(cp, program, x)
        cap.graph.launch()
        np.testing.assert_array_equal(result.get(), want)
    found = [step for step in cap.recording.steps if step.kind == kind]
    for words in notes:
        assert any(words in step.text for step in found), [step.text for step in found]
    for step in found:
        if 'left unjoined' not in step.text:
            assert step.at is not None and step.at[0] == str(FILE) and step.at[2] == name


def test_constants_are_noted_in_strict_mode_as_well(cp: Any) -> None:
    x = cp.linspace(0, 1, N)
    with ck.capture() as cap:
        result = x[[1, 2]] * cp.array([2.0, 4.0])
    cap.graph.launch()
    assert result.tolist() == (x[1:3] * cp.asarray([2.0, 4.0])).tolist()
    assert len(cap.recording.constants) == 2
    assert cap.recording.adaptations == []
