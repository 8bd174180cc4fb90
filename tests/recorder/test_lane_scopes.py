"""Lanes of ``fork`` have what remedies tell people to write: ``record``, ``wait_event``, ``synchronize``, ``done``."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from tests.captured import capture


@pytest.mark.parametrize('call', ['synchronize', 'done'])
def test_what_a_lane_can_not_answer_is_refused(cp: Any, call: str) -> None:
    """The remedy, word for word, with a lane in the place of its streams."""
    x = cp.arange(4.0)
    with ck.capture() as cap:
        with cap.fork(2) as (side, stream):
            with side:
                y = x * 2
            with pytest.raises(ck.SynchronizationError) as refused:
                ask = getattr(side, call)
                ask()
            assert refused.value.lane == 1
            if call == 'synchronize':
                assert '`cap.join(side)` or `stream.wait_event(side.record())`' in refused.value.remedy
            stream.wait_event(side.record())
            with stream:
                y += 1
        cap.join(side)
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(4.0) * 2 + 1)


def test_eager_lanes_wait_and_answer(cp: Any) -> None:
    x = cp.arange(4.0)
    with ck.fork(2) as (left, right):
        with left:
            y = x * 2
        right.wait_event(left.record())
        with right:
            y += 1
        right.synchronize()
        assert right.done and left.done
    assert np.array_equal(y.get(), np.arange(4.0) * 2 + 1)


def test_a_switch_of_lanes_asks_the_driver_once(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device, asked = current().device, []
    with ck.capture(options=ck.CaptureOptions(lines=False)) as cap, cap.fork(2) as (left, _right):
        for name in ('capture_info', 'stream_status'):  # the first of these asks the second on this device
            ask = getattr(device, name)
            monkeypatch.setattr(device, name, lambda s, ask=ask, name=name: asked.append((name, s)) or ask(s))
        with left:
            entered = len(asked)
        assert entered == 2 and asked == [
            (name, stream) for stream in (cap.stream.ptr, left.ptr) for name in ('capture_info', 'stream_status')
        ]
    switches = [step.lane for step in cap.recording.steps if step.kind == 'switch']
    assert switches == [1, 0]


def test_the_parents_allocator_notices_the_fork(cp: Any) -> None:
    """What a lane reads must not go to the stream that it was forked from, although that stays current."""
    x = cp.arange(4.0)
    with ck.capture() as cap:
        before = x + 1
        address = before.data.ptr
        with cap.fork(1) as (side,):
            with side:
                y = before * 2
            with cap.fork(1):
                del before
                z = x + 5
                assert z.data.ptr != address
    cap.graph.launch()
    assert np.array_equal(y.get(), (np.arange(4.0) + 1) * 2) and np.array_equal(z.get(), np.arange(4.0) + 5)


@pytest.mark.parametrize('lines', [True, False])
def test_a_lost_capture_is_told_when_a_lane_is_entered(sim: Any, lines: bool) -> None:
    with (
        pytest.raises(ck.InvalidatedError),
        capture(lines=lines) as cap,
        cap.fork(2) as (left, right),
    ):
        with left, GUARD.inside, contextlib.suppress(sim.cuda.runtime.CUDARuntimeError):
            left.stream.synchronize()
        with right:
            pytest.fail('a lane of a lost capture was entered')


@pytest.mark.parametrize('lines', [True, False])
def test_a_lost_capture_is_told_when_lanes_are_forked(sim: Any, lines: bool) -> None:
    with pytest.raises(ck.InvalidatedError), capture(lines=lines) as cap:
        with GUARD.inside, contextlib.suppress(sim.cuda.runtime.CUDARuntimeError):
            cap.stream.synchronize()
        with cap.fork(2):
            pytest.fail('a lost capture was forked')


def test_scopes_of_a_capture_share_an_event(cp: Any) -> None:
    """Each wait has been made before the next record; what the event stood for then stays in the graph."""
    x = cp.arange(4.0)
    with ck.capture() as cap:
        y = x + 1
        for _ in range(3):
            with cap.fork(2) as (left, right):
                with left:
                    a = y * 2
                    with cap.fork(2) as (inner, _):
                        with inner:
                            b = a + 1
                    a = a + b
                with right:
                    c = y * 3
            y = a - c
    cap.graph.launch()
    expected = np.arange(4.0) + 1
    for _ in range(3):
        expected = expected * 2 + (expected * 2 + 1) - expected * 3
    assert np.array_equal(y.get(), expected)
    assert not cap.graph.races().certain
    recorded = [step.event for step in cap.recording.steps if step.kind == 'record']
    assert len(recorded) == 18 and len({*recorded}) == 1


def test_a_fork_is_checked_where_it_is_entered(cp: Any) -> None:
    with ck.capture() as cap:
        early, late = cap.fork(2), cap.fork(2)
        with ck.capture(), pytest.raises(ck.UnmatchedError, match='Another capture'):
            early.__enter__()
    with pytest.raises(ck.ClosedError, match='The capture is over'):
        late.__enter__()
