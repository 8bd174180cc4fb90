"""``@ck.graphed``: calls on other streams."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from tests.functions.graphed_calls import Make, seq, states
from tests.twins import twins


def ordered_by_waiting(cp: Any) -> Any:
    s = cp.cuda.Stream(non_blocking=True)

    def fn(x: Any) -> Any:
        y = x + 1
        cp.cuda.get_current_stream().synchronize()
        with s:
            z = y * 2
        s.synchronize()
        return z + x

    return fn


def ordered_by_waiting_around_a_read(cp: Any) -> Any:
    s = cp.cuda.Stream(non_blocking=True)
    w = cp.zeros(4)
    cp.cuda.Stream.null.synchronize()

    def fn(x: Any) -> Any:
        s.wait_event(cp.cuda.get_current_stream().record())  # which may still read what s gave back to the pool
        with s:
            w[...] = w + 1
            z = w * 2
        s.synchronize()
        n = float(z[0]) > 4
        with s:
            z = z + n
        s.synchronize()
        return z + x if n else z - x

    return fn, lambda: w


def ordered_by_events_around_a_read(cp: Any) -> Any:
    s = cp.cuda.Stream(non_blocking=True)

    def fn(x: Any) -> Any:
        e = cp.cuda.Event(disable_timing=True)
        s.wait_event(cp.cuda.get_current_stream().record())
        with s:
            z = x * 2
            e.record(s)
        n = int(x.max())
        cp.cuda.get_current_stream().wait_event(e)
        s.wait_event(e)
        e.synchronize()
        with s:
            w = z + n
        s.synchronize()
        return z[: n % 4] + 1, w

    return fn


@pytest.mark.parametrize('sim', range(3), indirect=True)
@pytest.mark.parametrize(
    'make', [ordered_by_waiting, ordered_by_waiting_around_a_read, ordered_by_events_around_a_read]
)
def test_streams(sim: Any, make: Make) -> None:
    fn = twins(sim, make, seq(0, 0, 0, 3, 3, 0, 3, 3))
    assert 'recorded' in states(fn), fn.variants


def test_calls_on_many_streams(sim: Any) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        return x * 2 if float(x[0]) < 50 else x

    streams = [sim.cuda.Stream(non_blocking=True) for _ in range(4)]
    for v in range(100):
        with streams[v % 4] as s:
            x = sim.arange(4.0) + v
            y = fn(x)
            s.synchronize()
            assert y.get().tolist() == [(i + v) * (2.0 if v < 50 else 1.0) for i in range(4)]
