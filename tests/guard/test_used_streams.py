"""A stream that ``use()`` made current stays so: CuPy's own ``with`` would bring back another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.guard.several_devices import arrays, of, side_of, value


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
    assert [node.lane for node in cap.graph.nodes] == [1]
    cap.graph.launch()
    assert y.get().tolist() == [1.0, 3.0, 5.0]


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


def test_a_read_of_a_lane_that_was_used(several: Any) -> None:
    """Work behind a checked read goes on where it was."""
    cp, side = several, side_of(several, 0)
    x = arrays(cp, 3)[0]

    def program() -> Any:
        y = x * 2
        side.wait_event(cp.cuda.get_current_stream().record())
        side.use()
        try:
            z = y + 1 if float(y[1]) > 0 else y
            cp.cuda.get_current_stream().synchronize()
            assert cp.cuda.get_current_stream() == side
        finally:
            cp.cuda.Stream.null.use()
        return z

    rehearsal = ck.rehearse(program)
    with ck.capture(strict=False, rehearsal=rehearsal) as cap:
        z = program()
    cap.graph.launch()
    assert np.array_equal(value(cp, z), of(cp, 0, 3) * 2 + 1)
