"""Streams that ``use()`` made current, and those that became current by CuPy's own methods, which no wrapper sees."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from tests.captured import launched
from tests.guard.several_devices import arrays, of, value


def launched_plan(cp: Any, other: Any) -> None:
    with ck.capture() as cap:
        _y = cp.random.random(3) * 2
    cap.graph.launch(other)
    cap.graph.launch()


def failed_check(cp: Any, _other: Any) -> None:
    fn = ck.graphed(lambda x: x * (2 if float(x[0]) < 3 else 1), checks='later')
    for n in (0, 1, 2, 9):
        fn(cp.arange(3.0) + n)
    assert not fn.last.holds()


def failed_recording_in_pieces(cp: Any, _other: Any) -> None:
    def step(x: Any) -> Any:
        y = cp.linalg.eigvalsh(cp.outer(x, x)) * 2
        return y * (2 if float(x[0]) < 3 else 1)

    fn = ck.graphed(step)
    for n in (0, 9, 1):
        fn(cp.arange(3.0) + n)
    assert {one.state for one in fn.variants} <= {'pieces', 'rehearsed'}


def called_between_parts(cp: Any, _other: Any) -> None:
    x = cp.arange(3.0)
    with ck.capture(pieces=True) as cap:
        _y = cp.linalg.eigvalsh(cp.outer(x, x)) * 2
    cap.graph.launch()


@pytest.mark.parametrize('work', [launched_plan, failed_check, failed_recording_in_pieces, called_between_parts])
def test_the_callers_stream_stays_current(sim: Any, work: Callable[[Any, Any], None]) -> None:
    mine, other = sim.cuda.Stream(non_blocking=True), sim.cuda.Stream(non_blocking=True)
    mine.use()
    try:
        work(sim, other)
        assert sim.cuda.get_current_stream() == mine
    finally:
        sim.cuda.Stream.null.use()


def test_checks_are_asked_for_on_another_device(several: Any) -> None:
    """What the launch wrote is put back on its own device and stream."""
    cp, total = several, several.zeros(3)

    def step(x: Any) -> None:
        total[...] += x
        total[...] *= 2 if float(x[0]) < 3 else 1

    fn = ck.graphed(step, checks='later')
    for n in (0, 1, 2):
        fn(cp.arange(3.0) + n)
    before = value(cp, total)
    fn(cp.arange(3.0) + 9)
    with cp.cuda.Device(1):
        assert not fn.last.holds()
        assert cp.cuda.runtime.getDevice() == 1 and cp.cuda.get_current_stream() == cp.cuda.Stream.null
    assert np.array_equal(value(cp, total), before)


def test_a_lane_that_was_used_stays_current_over_a_constant(sim: Any) -> None:
    side, x = sim.cuda.Stream(non_blocking=True), sim.arange(3.0)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        side.use()
        y = x + sim.asarray([1.0, 2.0, 3.0])
        assert sim.cuda.get_current_stream() == side
        cap.stream.use()
        cap.join(side)
    assert [node.lane for node in cap.graph.nodes] == [1, 1]
    assert launched(cap, y) == [[1.0, 3.0, 5.0]]


def test_work_behind_a_constant_over_there_is_recorded(several: Any) -> None:
    """The guard's own stream is in the place of the null stream there, and an upload must not bring that back."""
    cp, xs = several, arrays(several, 3)
    with ck.capture(strict=False) as cap, cp.cuda.Device(1):
        y = xs[1] + cp.asarray([1.0, 2.0, 3.0])
        xs[1][...] = y * 2
    assert np.array_equal(value(cp, xs[1]), of(cp, 1, 3))
    for _ in range(2):
        wanted = (value(cp, xs[1]) + np.arange(1.0, 4.0)) * 2
        cap.graph.launch()
        assert np.array_equal(value(cp, xs[1]), wanted)


def test_a_constant_over_there_is_held_back_with_its_work(several: Any) -> None:
    cp, xs = several, arrays(several, 3)
    with pytest.raises(ck.EscapedWorkError, match='on device 1'):
        with ck.capture(), cp.cuda.Device(1):
            constant = cp.asarray([1.0, 2.0, 3.0])
            xs[1] += constant
    assert np.array_equal(value(cp, xs[1]), of(cp, 1, 3))
    assert cp.cuda.get_current_stream(1) == cp.cuda.Stream.null


# -- CuPy's own methods --------------------------------------------------------------------------------------------

Switch = Callable[[], object]


def left_stack(_cp: Any, side: Any) -> Switch:
    stack = contextlib.ExitStack()
    stack.enter_context(side)
    return stack.close


def resumed_generator(_cp: Any, side: Any) -> Switch:
    def stages() -> Iterator[int]:
        with side:
            yield 1

    made = stages()
    next(made)
    return lambda: list(made)


#: What makes ``side``, or the legacy stream, current in the block; the first two leave a stream that ``side`` is under.
SWITCHES: dict[str, Callable[[Any, Any], Switch]] = {
    'a stack is left': left_stack,
    'a generator goes on': resumed_generator,
    'use': lambda _cp, side: side.use,
    'enter': lambda _cp, side: inspect.unwrap(type(side).__enter__).__get__(side),  # CuPy's own, also in late runs
    'a partial': lambda _cp, side: functools.partial(type(side).use, side),
    'use of the null stream': lambda cp, _side: cp.cuda.Stream.null.use,
}
KINDS = {'use of the null stream': ck.LegacyStreamError}


@pytest.fixture
def side(cp: Any) -> Iterator[Any]:
    yield cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.use()
    assert GUARD.lives == {} and GUARD.state.placeholders == {}


def here() -> int:
    return sys._getframe(1).f_lineno


@pytest.mark.parametrize('lines', [True, False])
@pytest.mark.parametrize('name', SWITCHES)
def test_it_is_refused_at_its_line_and_has_not_run(cp: Any, side: Any, name: str, lines: bool) -> None:
    """A new array at once; work in place at the end, with its line where lines are followed."""
    x, y, switch = cp.arange(4.0), cp.zeros(4), SWITCHES[name](cp, side)
    with (
        pytest.raises(KINDS.get(name, ck.EscapedWorkError)) as info,
        ck.capture(lines=lines),
    ):
        x * 2
        switch()
        at = here() + 1
        x * 3
    error: Any = info.value
    assert error.location.line == at
    assert 'bound before' in error.remedy and 'with stream:' in error.remedy
    for strict in (True,) if lines else (True, False):
        switch = SWITCHES[name](cp, side)
        with pytest.raises(KINDS.get(name, ck.EscapedWorkError), match=None if lines else 'lines=False') as info:
            with ck.capture(strict=strict, lines=lines):
                switch()
                at = here() + 1
                y += x
                y.fill(7)
        error = info.value
        assert not lines or (error.location.line == at and '2 pieces of work' in str(error))
        assert not lines or cp.asnumpy(y).tolist() == [0] * 4


@pytest.mark.parametrize('name', SWITCHES)
@pytest.mark.parametrize(('strict', 'works'), [(True, True), (True, False), (False, True)])
def test_what_was_refused_has_harmed_nothing(cp: Any, side: Any, name: str, strict: bool, works: bool) -> None:
    """An adapting capture records the work, and a switch without work is no fault."""
    x, z, switch = cp.arange(4.0), cp.zeros(4), SWITCHES[name](cp, side)
    with ck.capture(strict=strict) as cap:
        y = x * 2
        switch()
        if works:
            with pytest.raises(ck.CaptureError) if strict else contextlib.nullcontext():
                z += (x + 1) * 2
            cap.stream.use()
            y += 1
    cap.graph.launch()
    assert cp.asnumpy(y).tolist() == [0 + works, 2 + works, 4 + works, 6 + works]
    assert cp.asnumpy(z).tolist() == ([2, 4, 6, 8] if works and not strict else [0] * 4)
    assert bool(cap.recording.adaptations) == (works and not strict)


def test_a_lane_may_be_made_current_so(cp: Any, side: Any) -> None:
    x, use = cp.arange(4.0), side.use
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        use()
        y = x * 2
        y += 1
        cap.stream.use()
        cap.join(side)
        y += 1
    assert launched(cap, y) == [[2, 4, 6, 8]]
    assert [span.lane for span in cap.recording.spans] == [1, 1, 0]


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    'joined': lambda cap, side: cap.join(side),
    'waited': lambda cap, side: cap.stream.wait_event(side.record()),
    '': lambda cap, side: None,
}


@pytest.mark.parametrize('join', JOINS)
@pytest.mark.parametrize('strict', [True, False])
def test_a_fork_by_a_bound_method_is_followed(cp: Any, side: Any, strict: bool, join: str) -> None:
    x, wait = cp.arange(4.0), side.wait_event
    with pytest.raises(ck.UnjoinedError) if strict and not join else contextlib.nullcontext():
        with ck.capture(strict=strict) as cap:
            y = x * 2
            wait(cap.stream.record())
            with side:
                z = y + 1
            JOINS[join](cap, side)
            if join:
                z *= 2
        cap.graph.launch()
        assert cp.asnumpy(z).tolist() == ([2, 6, 10, 14] if join else [1, 3, 5, 7])
        assert bool(cap.recording.adaptations) == (not join)
        assert [lane.parent for lane in cap.recording.lanes] == [None, 0]


def test_an_event_that_a_bound_method_recorded_is_followed(cp: Any, side: Any) -> None:
    x, done = cp.arange(4.0), cp.cuda.Event()
    record = done.record
    with ck.capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                y = x * 2
                record()
            with right:
                right.wait_event(done)
                y += 1
        record(cap.stream)
        side.wait_event(done)
        with side:
            y += 1
        cap.join(side)
    assert launched(cap, y) == [[2, 4, 6, 8]]


def test_an_event_of_another_capture_is_none_of_this(cp: Any, side: Any) -> None:
    x, done = cp.arange(4.0), cp.cuda.Event()
    begin, record = side.begin_capture, side.record
    with ck.capture() as cap:
        y = x * 2
        begin()
        record(done)
        with pytest.raises(ck.CaptureError):
            cap.stream.wait_event(done)
        GUARD.own('cupy.cuda.stream._BaseStream.end_capture', side)
        y += 1
    assert launched(cap, y) == [[1, 3, 5, 7]]


def test_a_lane_keeps_what_a_bound_wait_has_ordered(cp: Any, side: Any) -> None:
    """A later wait of the lane, which is seen, takes no edge away."""
    x, y, other = cp.arange(4.0), cp.ones(4), cp.cuda.Stream(non_blocking=True)
    wait = side.wait_event
    with ck.capture() as cap:
        other.wait_event(cap.stream.record())
        with other:
            y += 1
        x *= 2
        wait(cap.stream.record())
        side.wait_event(other.record())
        with side:
            z = x + y
        cap.join(side)
    assert sorted(cap.graph.edges) == [(0, 2), (1, 2)]
    assert launched(cap, z) == [[2, 4, 6, 8]]
