"""``strict=False``: what has an equal meaning inside a graph is given it, and noted with its line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck

N = 16


def run_twice(cap: ck.Capture, arrays: dict[str, Any], inputs: dict[str, Any]) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Launch, change the inputs, launch again."""
    results = []
    for factor in (1, 3):
        for x in inputs.values():
            x[:] = x * factor
        cap.graph.launch()
        results.append({name: a.get() for name, a in arrays.items()})
    return results


def adapted(cap: ck.Capture) -> str:
    return '\n'.join(step.text for step in cap.recording.adaptations)


def test_side_streams_without_events(sim: Any) -> None:
    """Work on side streams, then synchronize(): recorded as forks and joins, with the eager result, in any order."""
    x = sim.arange(N, dtype='f8')
    s1, s2 = (sim.cuda.Stream(non_blocking=True) for _ in range(2))
    with ck.capture(strict=False) as cap:
        y = x + 1
        with s1:
            a = y * 2
        with s2:
            b = y * 3
        s1.synchronize()
        c = a + 1
        s2.synchronize()
        d = b + c
    first, second = run_twice(cap, {'d': d}, {'x': x})
    for result, base in ((first, np.arange(N)), (second, np.arange(N) * 3)):
        assert np.array_equal(result['d'], (base + 1) * 5 + 1)
    assert adapted(cap).count('forked from lane 0') == 2
    assert adapted(cap).count('became a join') == 2
    assert all(step.at is not None and step.at[0] == __file__ for step in cap.recording.adaptations)


@pytest.mark.parametrize('how', ['stream', 'event'])
@pytest.mark.parametrize('seed', range(8))
def test_a_wait_holds_for_every_lane_also_for_later_ones(seed: int, how: str) -> None:
    """After the host has waited for s1, whatever comes later comes after it, on streams that enter later, too."""
    import sys

    from capturekit.simulated.cupy.assembly import install, uninstall
    from capturekit.simulated.device.machine import SimulatedDevice

    install(SimulatedDevice(seed))
    try:
        cp = sys.modules['cupy']
        x = cp.arange(N, dtype='f8')
        out = cp.zeros(N)
        s1, s2, s3 = (cp.cuda.Stream(non_blocking=True) for _ in range(3))
        with ck.capture(strict=False) as cap:
            early = cap.stream.record()
            with s1:
                out += x
            with s2:
                z = x * 2
            s1.synchronize() if how == 'stream' else s1.record().synchronize()
            with s2:
                out *= 2
            s2.synchronize() if how == 'stream' else s2.record().synchronize()
            s3.wait_event(early)
            with s3:
                out += 1
            s3.synchronize()
            out *= 10
        for _ in range(3):
            out[:] = 0
            cap.graph.launch()
            assert np.array_equal(out.get(), (np.arange(N) * 2 + 1) * 10)
            assert np.array_equal(z.get(), np.arange(N) * 2)
    finally:
        uninstall()


def test_event_synchronize_becomes_a_join(sim: Any) -> None:
    x = sim.arange(N, dtype='f8')
    s1 = sim.cuda.Stream(non_blocking=True)
    with ck.capture(strict=False) as cap:
        with s1:
            a = x * 2
            event = s1.record()
        event.synchronize()
        b = a + 1
    (first, second) = run_twice(cap, {'b': b}, {'x': x})
    assert np.array_equal(first['b'], np.arange(N) * 2 + 1)
    assert np.array_equal(second['b'], np.arange(N) * 6 + 1)
    assert 'Event.synchronize() became a join' in adapted(cap)


def test_device_and_null_synchronize_join_all_lanes(sim: Any) -> None:
    x = sim.arange(N, dtype='f8')
    s1, s2 = (sim.cuda.Stream(non_blocking=True) for _ in range(2))
    with ck.capture(strict=False) as cap:
        with s1:
            a = x * 2
        with s2:
            b = x * 3
        sim.cuda.Device().synchronize()
        c = a + b
        with s1:
            e = a + b
        sim.cuda.Stream.null.synchronize()
        d = c + e
    (first, second) = run_twice(cap, {'d': d}, {'x': x})
    assert np.array_equal(first['d'], np.arange(N) * 10)
    assert np.array_equal(second['d'], np.arange(N) * 30)
    assert adapted(cap).count('join of all lanes') == 2


def test_work_on_the_legacy_stream_moves_to_the_current_lane(sim: Any) -> None:
    x = sim.arange(N, dtype='f8')
    null = sim.cuda.Stream.null
    with ck.capture(strict=False) as cap:
        y = x + 1
        with null:
            y *= 2
        event = null.record()
        null.wait_event(event)
        z = y + 1
    (first, second) = run_twice(cap, {'z': z}, {'x': x})
    assert np.array_equal(first['z'], (np.arange(N) + 1) * 2 + 1)
    assert np.array_equal(second['z'], (np.arange(N) * 3 + 1) * 2 + 1)
    assert adapted(cap).count('moved to lane 0') == 3


def test_lanes_left_unjoined_are_joined_at_the_end(sim: Any) -> None:
    x = sim.arange(N, dtype='f8')
    s1 = sim.cuda.Stream(non_blocking=True)
    with ck.capture(strict=False) as cap:
        s1.wait_event(cap.stream.record())
        with s1:
            y = x * 2
    (first, second) = run_twice(cap, {'y': y}, {'x': x})
    assert np.array_equal(first['y'], np.arange(N) * 2)
    assert np.array_equal(second['y'], np.arange(N) * 6)
    assert 'left unjoined' in adapted(cap)


def test_explicit_work_on_a_stream_outside_forks_it(sim: Any) -> None:
    x = sim.ones(N)
    s1 = sim.cuda.Stream(non_blocking=True)
    with ck.capture(strict=False) as cap:
        x.data.memset_async(0, x.nbytes, s1)
        cap.join(s1)
        y = x + 1
    assert np.array_equal(x.get(), np.ones(N)), 'nothing ran while recording'
    cap.graph.launch()
    assert np.array_equal(y.get(), np.ones(N))


@pytest.mark.parametrize(
    ('kind', 'call'),
    [
        (ck.HostReadError, lambda cp, x, s: float((x + 1).sum())),
        (ck.SynchronizationError, lambda cp, x, s: cp.cuda.get_current_stream().done),
        (ck.UnsupportedCallError, lambda cp, x, s: cp.cuda.get_current_stream().add_callback(print, 1)),
        (ck.UnsupportedCallError, lambda cp, x, s: x.set(np.zeros(N))),
        (ck.IsolationError, lambda cp, x, s: cp.cuda.get_current_stream().wait_event(s.old)),
    ],
)
def test_the_rest_still_raises(sim: Any, kind: type[ck.CaptureError], call: Any) -> None:
    x = sim.arange(N, dtype='f8')
    s = sim.cuda.Stream(non_blocking=True)
    s.old = s.record()
    with ck.capture(strict=False) as cap:
        y = x * 2
        with pytest.raises(kind):
            call(sim, x, s)
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(N) * 2)
