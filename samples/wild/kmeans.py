"""K-means: Lloyd's algorithm on a cloud of points, until the centres rest.

python samples/wild/kmeans.py [--n POINTS] [--steps MAX_ITERATIONS]                       on a GPU
python -m capturekit run samples/wild/kmeans.py [--n POINTS] [--steps MAX_ITERATIONS]     anywhere
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp
import cupyx
from side_by_side import Results, arguments, compare

CLUSTERS = 32
DIMENSIONS = 16
TOLERANCE = 1e-4
SIZES = {'gpu': (100_000, 60), 'simulated': (640, 30)}  # n, steps


def blobs(n: int, seed: int = 0) -> cp.ndarray:
    """Return points around as many random places as there are clusters; the clouds overlap."""
    cp.random.seed(seed)
    places = cp.random.uniform(-4, 4, (CLUSTERS, DIMENSIONS))
    which = cp.random.randint(0, CLUSTERS, n)
    return places[which] + cp.random.normal(0, 1.5, (n, DIMENSIONS))


def assign(points: cp.ndarray, centers: cp.ndarray) -> cp.ndarray:
    """Return the number of the nearest centre of each point."""
    distances = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    return distances.argmin(axis=1)


def lloyd_step(points: cp.ndarray, centers: cp.ndarray) -> tuple[cp.ndarray, cp.ndarray, bool]:
    """Move each centre to the mean of its points; return centres, labels, and whether the centres rest."""
    labels = assign(points, centers)
    sums = cp.zeros_like(centers)
    cupyx.scatter_add(sums, labels, points)
    counts = cp.bincount(labels, minlength=len(centers))
    moved = sums / cp.maximum(counts, 1)[:, None]
    empty = counts == 0
    moved[empty] = centers[empty]  # a centre without points stays
    shift = cp.linalg.norm(moved - centers, axis=1).max()
    if shift < TOLERANCE:
        return moved, labels, True
    return moved, labels, False


def kmeans(
    points: cp.ndarray, centers: cp.ndarray, max_iter: int, step: Callable[..., Any] = lloyd_step
) -> tuple[cp.ndarray, cp.ndarray]:
    """Return centres and labels."""
    labels = cp.zeros(len(points), dtype=cp.int64)
    for _ in range(max_iter):
        centers, labels, rest = step(points, centers)
        if rest:
            break
    return centers, labels


def run(step: Callable[..., Any], n: int, steps: int) -> Results:
    points = blobs(n)
    centers = points[:CLUSTERS].copy()
    centers, labels = kmeans(points, centers, steps, step)
    inertia = ((points - centers[labels]) ** 2).sum()
    return {'centers': centers, 'labels': labels, 'inertia': inertia}


step = lloyd_step  # what tests and benchmarks call it


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv, __doc__, SIZES)
    found = compare(run, lloyd_step, given.n, given.steps)
    print(f'mean squared distance to the centres: {float(found["inertia"]) / given.n:.4f}')


if __name__ == '__main__':
    main()
