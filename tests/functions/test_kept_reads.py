"""Host reads whose value is only kept are made anew at each launch; all others are assumed and checked."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.model.host_reads import Read
from tests.functions import keeping, looking

VALUES = (1.0, 2.0, 0.0, float('nan'), -0.0, 3.0, float('inf'), 3.0, 4.0)
NEEDS_LINES = pytest.mark.skipif(sys.version_info < (3, 12), reason='which lines ran is known from Python 3.12 on')


def plainly(value: Any) -> Any:
    """What can be seen of a value: arrays with dtype, shape, strides and bytes; all else as text, with types."""
    if isinstance(value, np.ndarray):
        return 'numpy', value.dtype, value.shape, value.strides, value.flags.writeable, value.tobytes()
    if hasattr(value, 'get') and hasattr(value, 'strides'):
        return plainly(value.get())[1:]
    if isinstance(value, (tuple, list)):
        return type(value), [plainly(part) for part in value]
    if isinstance(value, dict):
        return [(repr(key), plainly(part)) for key, part in value.items()]
    return type(value), repr(value)


def launches_of(cp: Any, make: Callable[[Any], Any], values: tuple[float, ...] = VALUES) -> int:
    """Call it with arrays of these values, plainly and graphed, and compare; return how many calls were launched."""
    (plain, told), (other, told_too) = make(cp), make(cp)
    fn = ck.graphed(other)
    for value in values:
        mine, theirs = cp.arange(4.0) * 0.5 + value, cp.arange(4.0) * 0.5 + value
        want, got = plain(mine), fn(theirs)
        assert plainly(want) == plainly(got)
        assert plainly(mine) == plainly(theirs)
        assert plainly(told()) == plainly(told_too())
    found = sum(variant.launches for variant in fn.variants)
    fn.clear()
    return found


@pytest.mark.parametrize('make', keeping.CASES, ids=lambda make: make.__name__)
def test_what_only_keeps_is_launched(cp: Any, make: Callable[[Any], Any]) -> None:
    assert launches_of(cp, make) >= len(VALUES) - 2


@pytest.mark.parametrize('make', looking.CASES, ids=lambda make: make.__name__)
def test_what_looks_at_a_value_is_right(cp: Any, make: Callable[[Any], Any]) -> None:
    assert launches_of(cp, make, (1.0, 1.0, 1.0, 2.0, 5.0, -7.0, float('inf'), 5.0)) < 7


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
    from capturekit.functions.late_reads import LateReads

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
    from capturekit.functions.late_reads import LateReads
    from capturekit.model.errors import UnsupportedCallError

    late = LateReads(sim, [Read(np.array(1.0), None, ())], {0: ()})
    for then, now in (((float, 1.0), (float, other)), ((float, 2.0), (float, other)), ((int, 1), (int, 2))):
        with pytest.raises(UnsupportedCallError, match=r'differs|computed'):
            late.placed(now, then, now, 1)


@NEEDS_LINES
def test_lines_that_do_not_run_do_not_count(cp: Any) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any) -> Any:
            total = float(x.sum())
            if x.size > 100:
                print(total)
            return x + 1, total

        return fn, tuple

    assert launches_of(cp, make) >= len(VALUES) - 2


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


def test_an_equal_value_that_is_stored_first(cp: Any) -> None:
    trainer = keeping.Trainer()
    trainer.last = 12.0
    fn = ck.graphed(trainer.step)
    for value in (1.0, 1.0, 1.0, 2.0, 3.0, 2.0, 1.0):
        fn(cp.arange(4.0) + value)
        assert trainer.last == 12.0 + 8 * value
        trainer.last = 12.0 + 8 * value


def generated(_cp: Any) -> Any:
    def numbers(x: Any) -> Iterator[float]:
        yield float(x.sum())

    return (lambda x: (x + 1, list(numbers(x)))), tuple


def test_values_of_generators_are_right(cp: Any) -> None:
    assert launches_of(cp, generated, (1.0, 2.0, 3.0, 3.0, 3.0, 4.0)) < 6
