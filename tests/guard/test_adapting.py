"""``strict=False``: what waits hold for, and what is refused all the same. ``tests/gpu/adapting.txt`` has the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck

N = 16


@pytest.mark.parametrize('how', ['stream', 'event'])
@pytest.mark.parametrize('sim', range(8), indirect=True)
def test_a_wait_holds_for_every_lane_also_for_later_ones(sim: Any, how: str) -> None:
    """After the host has waited for s1, whatever comes later comes after it, on streams that enter later, too."""
    x, out = sim.arange(N, dtype='f8'), sim.zeros(N)
    s1, s2, s3 = (sim.cuda.Stream(non_blocking=True) for _ in range(3))
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
