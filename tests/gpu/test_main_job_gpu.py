"""The main job on real input: a signal pipeline of two branches on 2**22 samples, each recorded on a lane.

It takes ``fork``: ``ck.fork`` runs it eagerly on two streams, ``cap.fork`` records it, and :func:`one_stream` runs it
on the current stream alone. The input is read where it lies, so that a graph can be launched again on new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

import capturekit as ck

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

Fork = Callable[[int], Any]


@contextmanager
def one_stream(n: int) -> Iterator[tuple[Any, ...]]:
    """In place of a fork: the same program on the current stream."""
    yield tuple(nullcontext() for _ in range(n))


def signal(xp: Any, samples: int = 1 << 22) -> Any:
    """Two tones and a slow drift, as float32."""
    t = xp.arange(samples, dtype='f4') * np.float32(1e-3)
    return xp.sin(t * 7) + xp.sin(t * 120) * np.float32(0.3) + t * np.float32(1e-4)


def pipeline(xp: Any, x: Any, out: Any, fork: Fork) -> None:
    """Split a signal into a smooth and a fast part, each worked on in a branch of its own, and combine them.

    Left: a 9-tap average, rectified, compressed. Right: differences, squared, averaged over 5. Then: the ratio of the
    two, scaled by its own largest value, into ``out`` (as long as ``x``).
    """
    with fork(2) as (left, right):
        with left:
            smooth = sliding_mean(xp, x, 9)
            envelope = xp.log1p(xp.abs(smooth) * np.float32(4))
        with right:
            fast = xp.zeros_like(x)
            fast[1:] = x[1:] - x[:-1]
            energy = sliding_mean(xp, fast * fast, 5)
            loudness = xp.sqrt(energy + np.float32(1e-6))
    ratio = envelope / (loudness + np.float32(1))
    xp.divide(ratio, xp.abs(ratio).max() + np.float32(1e-6), out)


def sliding_mean(xp: Any, x: Any, taps: int) -> Any:
    """The mean of the last ``taps`` samples; the first ones stay as they are."""
    total = x.copy()
    inner = total[taps - 1 :]
    for k in range(1, taps):
        inner += x[taps - 1 - k : x.size - k]
    inner *= np.float32(1 / taps)
    return total


def test_the_pipeline_recorded_equals_the_pipeline_run() -> None:
    x = signal(cp)
    assert x.size == 1 << 22
    alone, eager, recorded = (cp.zeros_like(x) for _ in range(3))
    pipeline(cp, x, alone, one_stream)
    pipeline(cp, x, eager, ck.fork)
    with ck.capture() as cap:
        pipeline(cp, x, recorded, cap.fork)
    assert not recorded.any()
    assert len(cap.graph.recording.lanes) == 3
    cap.graph.launch()
    assert float(recorded.max()) > 0.5
    for other in (eager, recorded):
        assert np.array_equal(cp.asnumpy(other), cp.asnumpy(alone))
    again_on_new_input(cap.graph, x, alone, recorded)


def again_on_new_input(graph: ck.Graph, x: Any, alone: Any, recorded: Any) -> None:
    """The graph reads its input where it lies: new values, new results, also on another stream."""
    stream = cp.cuda.Stream(non_blocking=True)
    for factor in (2, 3):
        x *= np.float32(factor)
        x[: x.size // factor] = 0
        pipeline(cp, x, alone, one_stream)
        recorded.fill(0)
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(cp.asnumpy(recorded), cp.asnumpy(alone))


def test_the_pipeline_equals_numpy() -> None:
    x = signal(np, 1 << 16)
    want = np.zeros_like(x)
    pipeline(np, x, want, one_stream)
    on_gpu, got = cp.asarray(x), cp.zeros(x.size, 'f4')
    with ck.capture() as cap:
        pipeline(cp, on_gpu, got, cap.fork)
    cap.graph.launch()
    np.testing.assert_allclose(cp.asnumpy(got), want, rtol=1e-3, atol=1e-4)
