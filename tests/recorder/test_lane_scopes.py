"""Lanes of ``fork`` have what remedies tell people to write: ``record``, ``wait_event``, ``synchronize``, ``done``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck


def test_lanes_are_ordered_by_events_of_theirs(cp: Any) -> None:
    x = cp.arange(4.0)
    with ck.capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                y = x * 2
            right.wait_event(left.record())
            with right:
                z = y + 1
            event = cp.cuda.Event()
            assert right.record(event) is event
            left.wait_event(event)
            with left:
                w = z * 3
        w -= 1
    cap.graph.launch()
    assert np.array_equal(w.get(), (np.arange(4.0) * 2 + 1) * 3 - 1)
    assert not cap.graph.races().certain


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
