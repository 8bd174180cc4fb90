"""A Kalman filter over a long series, for a batch of tracks at once; some measurements are missing.

Twice: as a function that returns new arrays, and as a class whose method rebinds ``self.x`` and ``self.P``.

python samples/wild/kalman.py [--n TRACKS] [--steps LENGTH]                       on a GPU
python -m capturekit run samples/wild/kalman.py [--n TRACKS] [--steps LENGTH]     anywhere
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp
from side_by_side import Results, arguments, compare, largest_error, report, tolerance

import capturekit as ck

DT = 0.1
F = cp.array([[1, 0, DT, 0], [0, 1, 0, DT], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=cp.float64)
H = cp.array([[1, 0, 0, 0], [0, 1, 0, 0]], dtype=cp.float64)
Q = 0.05 * cp.diag(cp.array([DT**2, DT**2, 1.0, 1.0]))
R = 0.25 * cp.eye(2)
SIZES = {'gpu': (1_000, 1_000), 'simulated': (8, 40)}  # n, steps


def kalman_step(x: cp.ndarray, P: cp.ndarray, z: cp.ndarray) -> tuple[cp.ndarray, cp.ndarray]:
    """Predict, and correct by the measurements ``z``; tracks whose measurement is NaN are only predicted."""
    x = x @ F.T
    P = F @ P @ F.T + Q
    y = z - x @ H.T
    S = H @ P @ H.T + R
    K = P @ H.T @ cp.linalg.inv(S)
    seen = ~cp.isnan(z).any(axis=1)
    x = cp.where(seen[:, None], x + cp.einsum('bij,bj->bi', K, y), x)
    P = cp.where(seen[:, None, None], (cp.eye(4) - K @ H) @ P, P)
    return x, P


class KalmanFilter:
    """The same for one measurement after the other, with the state in attributes."""

    def __init__(self, tracks: int) -> None:
        self.F, self.H, self.Q, self.R = F, H, Q, R
        self.x = cp.zeros((tracks, 4, 1))
        self.P = cp.tile(cp.eye(4), (tracks, 1, 1))
        self.steps = 0

    def update(self, z: cp.ndarray) -> None:
        self.x = self.F @ self.x
        self.P = self.F @ self.P @ self.F.T + self.Q
        S = self.H @ self.P @ self.H.T + self.R
        K = self.P @ self.H.T @ cp.linalg.inv(S)
        seen = ~cp.isnan(z).any(axis=1)
        K[~seen] = 0
        y = cp.where(cp.isnan(z), 0, z)[:, :, None] - self.H @ self.x
        self.x = self.x + K @ y
        self.P = self.P - K @ self.H @ self.P
        self.steps += 1


class GraphedFilter(KalmanFilter):
    """The method graphed, as a decorator in the class would do it."""

    update = ck.graphed(KalmanFilter.update)


def measurements(tracks: int, length: int, seed: int = 0) -> cp.ndarray:
    """Return noisy positions of shape (length, tracks, 2); one in ten is missing."""
    cp.random.seed(seed)
    velocity = cp.cumsum(cp.random.normal(0, 0.1, (length, tracks, 2)), axis=0)
    position = cp.cumsum(velocity * DT, axis=0)
    z = position + cp.random.normal(0, 0.5, position.shape)
    z[cp.random.random((length, tracks)) < 0.1] = cp.nan
    return z


def run(step: Callable[..., Any], n: int, steps: int) -> Results:
    z = measurements(n, steps)
    x = cp.zeros((n, 4))
    P = cp.tile(cp.eye(4), (n, 1, 1))
    history = cp.empty((steps, n, 4))
    for t in range(steps):
        x, P = step(x, P, z[t])
        history[t] = x
    return {'history': history, 'P': P}


def run_filter(kind: type[KalmanFilter], n: int, steps: int) -> Results:
    """The same as :func:`run` by the class."""
    z = measurements(n, steps)
    tracker = kind(n)
    history = cp.empty((steps, n, 4))
    for t in range(steps):
        tracker.update(z[t])
        history[t] = tracker.x[:, :, 0]
    if tracker.steps != steps:
        raise SystemExit(f'the filter counted {tracker.steps} steps of {steps}')
    return {'history': history, 'P': tracker.P}


step = kalman_step  # what tests and benchmarks call it


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv, __doc__, SIZES)
    wanted = compare(run, kalman_step, given.n, given.steps)
    for kind in (KalmanFilter, GraphedFilter):
        error = largest_error(run_filter(kind, given.n, given.steps), wanted)
        print(f'{kind.__name__}.update, error against the function: {error:.2g}')
        if not error <= tolerance(wanted):
            raise SystemExit(f'{kind.__name__} differs from the function')
    report('GraphedFilter.update', GraphedFilter.update)
    GraphedFilter.update.clear()


if __name__ == '__main__':
    main()
