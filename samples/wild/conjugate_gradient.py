"""Conjugate gradients for Poisson's equation on a square, the matrix as a stencil.

Every ``SWEEP`` iterations the host reads the residual and decides whether to go on.

python samples/wild/conjugate_gradient.py [--n SIDE] [--steps MAX_SWEEPS]                       on a GPU
python -m capturekit run samples/wild/conjugate_gradient.py [--n SIDE] [--steps MAX_SWEEPS]     anywhere
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp
from side_by_side import Results, arguments, compare

SWEEP = 20
TOLERANCE = 1e-8
SIZES = {'gpu': (512, 100), 'simulated': (48, 10)}  # n, steps


def laplacian(u: cp.ndarray) -> cp.ndarray:
    """Return minus the 5-point Laplacian of ``u``, which is zero outside of the grid."""
    out = 4 * u
    out[1:, :] -= u[:-1, :]
    out[:-1, :] -= u[1:, :]
    out[:, 1:] -= u[:, :-1]
    out[:, :-1] -= u[:, 1:]
    return out


def cg_sweep(x: cp.ndarray, r: cp.ndarray, p: cp.ndarray, rr: cp.ndarray, stop: float) -> bool:
    """Do ``SWEEP`` iterations in place; return whether the residual is below ``stop``."""
    for _ in range(SWEEP):
        Ap = laplacian(p)
        alpha = rr / (p * Ap).sum()
        x += alpha * p
        r -= alpha * Ap
        rr_new = (r * r).sum()
        p *= rr_new / rr
        p += r
        rr[...] = rr_new
    return float(cp.sqrt(rr)) < stop


def solve(b: cp.ndarray, max_sweeps: int, sweep: Callable[..., Any] = cg_sweep) -> cp.ndarray:
    """Return the solution for the right-hand side ``b``."""
    x = cp.zeros_like(b)
    r = b.copy()
    p = r.copy()
    rr = (r * r).sum()
    stop = TOLERANCE * float(cp.sqrt(rr))
    for _ in range(max_sweeps):
        if sweep(x, r, p, rr, stop):
            break
    return x


def charges(side: int, seed: int = 0) -> cp.ndarray:
    """Return a right-hand side: a smooth hill, and noise."""
    cp.random.seed(seed)
    y, x = cp.mgrid[0:side, 0:side] / side
    return cp.exp(-40 * ((x - 0.3) ** 2 + (y - 0.6) ** 2)) + 0.1 * cp.random.standard_normal((side, side))


def run(step: Callable[..., Any], n: int, steps: int) -> Results:
    return {'x': solve(charges(n), steps, step)}


step = cg_sweep  # what tests and benchmarks call it


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv, __doc__, SIZES)
    found = compare(run, cg_sweep, given.n, given.steps)
    b = charges(given.n)
    left = cp.linalg.norm(b - laplacian(found['x'])) / cp.linalg.norm(b)
    print(f'relative residual: {float(left):.2g}')


if __name__ == '__main__':
    main()
