"""Maxwell's equations in two dimensions by Yee's scheme (FDTD): a pulse in an open square with a block of glass.

The fields are updated in place, slice by slice; the time is a scalar on the device; at the edges waves leave (first-
order Mur).

python samples/wild/fdtd.py [--n SIDE] [--steps STEPS]                       on a GPU
python -m capturekit run samples/wild/fdtd.py [--n SIDE] [--steps STEPS]     anywhere
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp
from side_by_side import Results, arguments, compare

COURANT = 0.5
MUR = (COURANT - 1) / (COURANT + 1)
SIZES = {'gpu': (512, 1_000), 'simulated': (32, 60)}  # n, steps


def fdtd_step(ez: cp.ndarray, hx: cp.ndarray, hy: cp.ndarray, eps: cp.ndarray, t: cp.ndarray) -> None:
    """One step in time: magnetic field, electric field, source, edges."""
    hx -= COURANT * (ez[:, 1:] - ez[:, :-1])
    hy += COURANT * (ez[1:, :] - ez[:-1, :])

    before = ez.copy()
    curl = (hy[1:, 1:-1] - hy[:-1, 1:-1]) - (hx[1:-1, 1:] - hx[1:-1, :-1])
    ez[1:-1, 1:-1] += COURANT / eps[1:-1, 1:-1] * curl

    middle = ez.shape[0] // 2
    ez[middle, middle // 2] += cp.exp(-(((t - 30) / 10) ** 2))

    ez[0, :] = before[1, :] + MUR * (ez[1, :] - before[0, :])
    ez[-1, :] = before[-2, :] + MUR * (ez[-2, :] - before[-1, :])
    ez[:, 0] = before[:, 1] + MUR * (ez[:, 1] - before[:, 0])
    ez[:, -1] = before[:, -2] + MUR * (ez[:, -2] - before[:, -1])
    t += 1


def glass(side: int) -> cp.ndarray:
    """Return the permittivity: 1, and 2.25 in a block right of the middle."""
    eps = cp.ones((side, side), dtype=cp.float32)
    eps[side // 3 : 2 * side // 3, 5 * side // 8 : 7 * side // 8] = 2.25
    return eps


def run(step: Callable[..., Any], n: int, steps: int) -> Results:
    ez = cp.zeros((n, n), dtype=cp.float32)
    hx = cp.zeros((n, n - 1), dtype=cp.float32)
    hy = cp.zeros((n - 1, n), dtype=cp.float32)
    t = cp.zeros((), dtype=cp.float32)
    eps = glass(n)
    for _ in range(steps):
        step(ez, hx, hy, eps, t)
    return {'ez': ez, 'hx': hx, 'hy': hy, 't': t}


step = fdtd_step  # what tests and benchmarks call it


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv, __doc__, SIZES)
    found = compare(run, fdtd_step, given.n, given.steps)
    print(f'after {float(found["t"]):g} steps the field is at most {float(abs(found["ez"]).max()):.4f}')


if __name__ == '__main__':
    main()
