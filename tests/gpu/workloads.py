"""Real work for tests and benchmarks: a two-branch signal pipeline and a 2-D heat equation, each on two lanes.

Each takes ``fork``: ``ck.fork`` runs it eagerly on two streams, ``cap.fork`` records it, and :func:`one_stream` runs it
on the current stream alone. The arrays given are read where they lie; ``out`` is written, so that a recorded graph can
be launched again and again on new input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

Fork = Callable[[int], Any]

SAMPLES = 1 << 22
SIDE = 2048


@contextmanager
def one_stream(n: int) -> Iterator[tuple[Any, ...]]:
    """In place of a fork: the same program on the current stream."""
    yield tuple(nullcontext() for _ in range(n))


def signal(xp: Any, samples: int = SAMPLES) -> Any:
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


def plate(xp: Any, side: int = SIDE) -> Any:
    """A plate with a hot edge and a warm spot, as float32."""
    u = xp.zeros((side, side), dtype='f4')
    u[0] = 100
    u[side // 3 : side // 2, side // 4 : side // 2] = 50
    return u


def heat(xp: Any, u: Any, v: Any, fork: Fork, steps: int = 10) -> None:
    """``steps`` (even) explicit steps of the heat equation on a plate; upper and lower half on a lane each.

    ``u`` is the plate, and holds the result; ``v`` is room of the same shape, with the same edges.
    """
    middle = u.shape[0] // 2
    for old, new in [(u, v), (v, u)] * (steps // 2):
        with fork(2) as (upper, lower):
            with upper:
                heat_rows(xp, old, new, 1, middle)
            with lower:
                heat_rows(xp, old, new, middle, u.shape[0] - 1)


def heat_rows(xp: Any, old: Any, new: Any, first: int, last: int) -> None:
    """New values of the rows ``first`` to ``last`` (not itself) from the old ones around them."""
    around = old[first - 1 : last - 1, 1:-1] + old[first + 1 : last + 1, 1:-1]
    around += old[first:last, :-2]
    around += old[first:last, 2:]
    here = old[first:last, 1:-1]
    around -= here * np.float32(4)
    around *= np.float32(0.2)
    xp.add(here, around, new[first:last, 1:-1])
