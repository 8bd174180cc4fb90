"""Host reads whose value is only kept are made anew at each launch; all others are assumed and checked."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.model.host_reads import Read


def test_a_read_that_is_made_anew_is_no_assumption(cp: Any) -> None:
    fn = ck.graphed(lambda x: (x * 2, float(x.sum())))
    for number in range(3):
        y, total = fn(cp.arange(3.0) + number)
        assert (y.sum().item(), total) == (2 * total, 3.0 + 3 * number)
    (variant,) = fn.variants
    assert variant.launches == 2 and not variant.assumptions
    assert '1 host read made anew' in repr(variant)
    told = io.StringIO()
    fn.explain(told)
    assert 'read anew at each launch: float64[] at' in told.getvalue()


def test_each_read_has_a_marker_of_its_own(sim: Any) -> None:
    from capturekit.functions.read_numbers import LateReads

    values = [np.array(1.0), np.array(1.0), np.array(1.0, 'f4'), np.array(np.nan), np.arange(3), np.arange(3)]
    reads = [Read(value, None, ()) for value in values]
    late = LateReads(sim, reads, dict.fromkeys([0, 1, 2, 4, 5], ()))
    taken = [late.take(read, sim.asarray(read.value)) for read in reads]
    assert taken[3] is None
    found = [one[0] for one in taken if one is not None]
    assert len({one.tobytes() for one in found}) == 5
    assert len({float(one) for one in found[:3]} | {1.0}) == 4


@pytest.mark.parametrize('other', [7.5, np.nan])
def test_a_result_that_differs_otherwise_is_refused(sim: Any, other: float) -> None:
    from capturekit.functions.read_numbers import LateReads
    from capturekit.model.errors import UnsupportedCallError

    late = LateReads(sim, [Read(np.array(1.0), None, ())], {0: ()})
    for then, now in (((float, 1.0), (float, other)), ((float, 2.0), (float, other)), ((int, 1), (int, 2))):
        with pytest.raises(UnsupportedCallError, match=r'differs|computed'):
            late.placed(now, then, now, 1)


@dataclasses.dataclass
class State:
    last: float = 0.0


def note(state: State, x: Any) -> Any:
    state.last = float(x.sum())
    return x + 1


def test_an_equal_value_in_an_argument_counts(cp: Any) -> None:
    fn, state = ck.graphed(note), State(6.0)
    for value in (1, 1, 1, 2, 3, 2, 1):
        fn(state, cp.arange(3.0) + value)
        assert state.last == 3.0 + 3 * value
