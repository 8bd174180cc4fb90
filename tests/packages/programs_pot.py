"""Optimal transport by POT, which finds its backend by the arrays that it gets."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, program


def masses_and_costs(draw: Draw) -> tuple[Any, ...]:
    return draw.weights(20), draw.weights(25), draw.uniform(20, 25)


@program('POT', 'ot')
def distances(cp: Any, draw: Draw, ot: Any) -> Case:
    """The squared and the Euclidean distances between two clouds of points are computed."""
    return Case(
        lambda x, y: (ot.dist(x, y), ot.dist(x, y, metric='euclidean')),
        lambda draw: (draw.normal(20, 3), draw.normal(25, 3)),
    )


@program('POT', 'ot')
def sinkhorn(cp: Any, draw: Draw, ot: Any) -> Case:
    """A plan is found by a fixed number of Sinkhorn iterations."""
    options = {'numItermax': 20, 'stopThr': 0, 'warn': False}
    return Case(lambda a, b, costs: ot.sinkhorn(a, b, costs, 0.5, **options), masses_and_costs)


@program('POT', 'ot')
def sinkhorn_to_a_tolerance(cp: Any, draw: Draw, ot: Any) -> Case:
    """A plan is found by Sinkhorn iterations until its error is small."""
    return Case(lambda a, b, costs: ot.sinkhorn(a, b, costs, 1.0, stopThr=1e-6), masses_and_costs)


@program('POT', 'ot')
def sinkhorn_in_logarithms(cp: Any, draw: Draw, ot: Any) -> Case:
    """The cost of a plan is found by Sinkhorn iterations on logarithms."""
    options = {'method': 'sinkhorn_log', 'numItermax': 10, 'stopThr': 0, 'warn': False}
    return Case(lambda a, b, costs: ot.sinkhorn2(a, b, costs, 0.3, **options), masses_and_costs)


@program('POT', 'ot')
def stabilized_sinkhorn(cp: Any, draw: Draw, ot: Any) -> Case:
    """A plan is found by Sinkhorn iterations that move large factors into the potentials."""
    options = {'method': 'sinkhorn_stabilized', 'numItermax': 10, 'stopThr': 0, 'warn': False}
    return Case(lambda a, b, costs: ot.sinkhorn(a, b, costs, 0.3, **options), masses_and_costs)


@program('POT', 'ot')
def exact_transport(cp: Any, draw: Draw, ot: Any) -> Case:
    """A plan is found exactly, which POT does on the host."""
    return Case(ot.emd, masses_and_costs)


@program('POT', 'ot')
def barycenter(cp: Any, draw: Draw, ot: Any) -> Case:
    """The barycenter of four histograms is found by few iterations."""
    costs = draw.uniform(16, 16)

    def step(histograms: Any) -> Any:
        return ot.barycenter(histograms / histograms.sum(axis=0), costs, 0.5, numItermax=8, stopThr=0, warn=False)

    return Case(step, lambda draw: (draw.uniform(16, 4, low=0.5),))


@program('POT', 'ot')
def unbalanced(cp: Any, draw: Draw, ot: Any) -> Case:
    """A plan between masses that need not be equal is found by few iterations."""
    solve = ot.unbalanced.sinkhorn_unbalanced
    return Case(lambda a, b, costs: solve(a * 2, b, costs, 0.5, 1.0, numItermax=10, stopThr=0), masses_and_costs)


@program('POT', 'ot')
def entropic_gromov(cp: Any, draw: Draw, ot: Any) -> Case:
    """Two clouds in different spaces are matched by few iterations with entropy."""
    options = {'epsilon': 0.5, 'max_iter': 2, 'tol': 0, 'numItermax': 5, 'warn': False}

    def step(x: Any, y: Any) -> Any:
        return ot.gromov.entropic_gromov_wasserstein(ot.dist(x, x), ot.dist(y, y), symmetric=True, **options)

    return Case(step, lambda draw: (draw.uniform(12, 2), draw.uniform(14, 3)))


@program('POT', 'ot')
def sliced_distance(cp: Any, draw: Draw, ot: Any) -> Case:
    """The distance of two clouds is found along given directions."""
    directions = draw.normal(3, 10)
    directions /= cp.sqrt((directions**2).sum(axis=0))
    return Case(
        lambda x, y: ot.sliced_wasserstein_distance(x, y, projections=directions),
        lambda draw: (draw.normal(20, 3), draw.normal(20, 3)),
    )


@program('POT', 'ot')
def random_slices(cp: Any, draw: Draw, ot: Any) -> Case:
    """The distance of two clouds is found along random directions of a given seed."""
    return Case(
        lambda x, y: ot.sliced_wasserstein_distance(x, y, n_projections=8, seed=3),
        lambda draw: (draw.normal(20, 3), draw.normal(20, 3)),
    )


@program('POT', 'ot')
def one_dimension(cp: Any, draw: Draw, ot: Any) -> Case:
    """The distance of samples on a line is found by sorting."""
    return Case(lambda x, y: ot.wasserstein_1d(x, y, p=2), lambda draw: (draw.normal(40), draw.normal(40)))


@program('POT', 'ot')
def gaussians(cp: Any, draw: Draw, ot: Any) -> Case:
    """The distance between two normal distributions is found by matrix roots."""
    return Case(
        ot.gaussian.bures_wasserstein_distance,
        lambda draw: (draw.normal(4), draw.normal(4), draw.definite(4), draw.definite(4)),
    )


@program('POT', 'ot')
def convolutional_barycenter(cp: Any, draw: Draw, ot: Any) -> Case:
    """The barycenter of images is found by convolutions, few times."""

    def step(images: Any) -> Any:
        whole = images / images.sum(axis=(1, 2), keepdims=True)
        return ot.bregman.convolutional_barycenter2d(whole, 0.1, numItermax=4, stopThr=0, warn=False)

    return Case(step, lambda draw: (draw.uniform(3, 12, 12, low=0.5),))


@program('POT', 'ot')
def solve_by_one_name(cp: Any, draw: Draw, ot: Any) -> Case:
    """The function ot.solve gives an object, whose plan and value are returned."""

    def step(a: Any, b: Any, costs: Any) -> Any:
        found = ot.solve(costs, a, b, reg=0.5, max_iter=10, tol=0)
        return found.plan, found.value_linear

    return Case(step, masses_and_costs)


@program('POT', 'ot')
def color_transfer(cp: Any, draw: Draw, ot: Any) -> Case:
    """An object of the class SinkhornTransport is fitted, and moves the samples."""

    def step(x: Any, y: Any) -> Any:
        moved = ot.da.SinkhornTransport(reg_e=1.0, max_iter=10, tol=1e-30).fit(Xs=x, Xt=y)
        return moved.transform(Xs=x)

    return Case(step, lambda draw: (draw.uniform(20, 3), draw.uniform(25, 3)))
