"""Optimal transport by POT, which finds its backend by the arrays that it gets."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, calls, program


def masses_and_costs(draw: Draw) -> tuple[Any, ...]:
    return draw.weights(20), draw.weights(25), draw.uniform(20, 25)


@calls(program('POT', 'ot'), lambda draw: (draw.normal(20, 3), draw.normal(25, 3)))
def distances(cp: Any, ot: Any, x: Any, y: Any) -> Any:
    """The squared and the Euclidean distances between two clouds of points are computed."""
    return (ot.dist(x, y), ot.dist(x, y, metric='euclidean'))


@calls(program('POT', 'ot'), masses_and_costs)
def sinkhorn(cp: Any, ot: Any, a: Any, b: Any, costs: Any) -> Any:
    """A plan is found by a fixed number of Sinkhorn iterations."""
    options = {'numItermax': 20, 'stopThr': 0, 'warn': False}
    return ot.sinkhorn(a, b, costs, 0.5, **options)


@calls(program('POT', 'ot'), masses_and_costs)
def sinkhorn_to_a_tolerance(cp: Any, ot: Any, a: Any, b: Any, costs: Any) -> Any:
    """A plan is found by Sinkhorn iterations until its error is small."""
    return ot.sinkhorn(a, b, costs, 1.0, stopThr=1e-6)


@calls(program('POT', 'ot'), masses_and_costs)
def sinkhorn_in_logarithms(cp: Any, ot: Any, a: Any, b: Any, costs: Any) -> Any:
    """The cost of a plan is found by Sinkhorn iterations on logarithms."""
    options = {'method': 'sinkhorn_log', 'numItermax': 10, 'stopThr': 0, 'warn': False}
    return ot.sinkhorn2(a, b, costs, 0.3, **options)


@calls(program('POT', 'ot'), masses_and_costs)
def stabilized_sinkhorn(cp: Any, ot: Any, a: Any, b: Any, costs: Any) -> Any:
    """A plan is found by Sinkhorn iterations that move large factors into the potentials."""
    options = {'method': 'sinkhorn_stabilized', 'numItermax': 10, 'stopThr': 0, 'warn': False}
    return ot.sinkhorn(a, b, costs, 0.3, **options)


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


@calls(program('POT', 'ot'), masses_and_costs)
def unbalanced(cp: Any, ot: Any, a: Any, b: Any, costs: Any) -> Any:
    """A plan between masses that need not be equal is found by few iterations."""
    solve = ot.unbalanced.sinkhorn_unbalanced
    return solve(a * 2, b, costs, 0.5, 1.0, numItermax=10, stopThr=0)


@calls(program('POT', 'ot'), lambda draw: (draw.uniform(12, 2), draw.uniform(14, 3)))
def entropic_gromov(cp: Any, ot: Any, x: Any, y: Any) -> Any:
    """Two clouds in different spaces are matched by few iterations with entropy."""
    options = {'epsilon': 0.5, 'max_iter': 2, 'tol': 0, 'numItermax': 5, 'warn': False}
    return ot.gromov.entropic_gromov_wasserstein(ot.dist(x, x), ot.dist(y, y), symmetric=True, **options)


@program('POT', 'ot')
def sliced_distance(cp: Any, draw: Draw, ot: Any) -> Case:
    """The distance of two clouds is found along given directions."""
    directions = draw.normal(3, 10)
    directions /= cp.sqrt((directions**2).sum(axis=0))
    return Case(
        lambda x, y: ot.sliced_wasserstein_distance(x, y, projections=directions),
        lambda draw: (draw.normal(20, 3), draw.normal(20, 3)),
    )


@calls(program('POT', 'ot'), lambda draw: (draw.normal(20, 3), draw.normal(20, 3)))
def random_slices(cp: Any, ot: Any, x: Any, y: Any) -> Any:
    """The distance of two clouds is found along random directions of a given seed."""
    return ot.sliced_wasserstein_distance(x, y, n_projections=8, seed=3)


@calls(program('POT', 'ot'), lambda draw: (draw.normal(40), draw.normal(40)))
def one_dimension(cp: Any, ot: Any, x: Any, y: Any) -> Any:
    """The distance of samples on a line is found by sorting."""
    return ot.wasserstein_1d(x, y, p=2)


@program('POT', 'ot')
def gaussians(cp: Any, draw: Draw, ot: Any) -> Case:
    """The distance between two normal distributions is found by matrix roots."""
    return Case(
        ot.gaussian.bures_wasserstein_distance,
        lambda draw: (draw.normal(4), draw.normal(4), draw.definite(4), draw.definite(4)),
    )


@calls(program('POT', 'ot'), lambda draw: (draw.uniform(3, 12, 12, low=0.5),))
def convolutional_barycenter(cp: Any, ot: Any, images: Any) -> Any:
    """The barycenter of images is found by convolutions, few times."""
    whole = images / images.sum(axis=(1, 2), keepdims=True)
    return ot.bregman.convolutional_barycenter2d(whole, 0.1, numItermax=4, stopThr=0, warn=False)


@calls(program('POT', 'ot'), masses_and_costs)
def solve_by_one_name(cp: Any, ot: Any, a: Any, b: Any, costs: Any) -> Any:
    """The function ot.solve gives an object, whose plan and value are returned."""
    found = ot.solve(costs, a, b, reg=0.5, max_iter=10, tol=0)
    return found.plan, found.value_linear


@calls(program('POT', 'ot'), lambda draw: (draw.uniform(20, 3), draw.uniform(25, 3)))
def color_transfer(cp: Any, ot: Any, x: Any, y: Any) -> Any:
    """An object of the class SinkhornTransport is fitted, and moves the samples."""
    moved = ot.da.SinkhornTransport(reg_e=1.0, max_iter=10, tol=1e-30).fit(Xs=x, Xt=y)
    return moved.transform(Xs=x)
