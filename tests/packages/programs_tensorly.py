"""Tensor algebra and decompositions of tensorly, with CuPy as its backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tests.packages.registry import Case, Draw, calls, program


def with_backend(*modules: str) -> Callable[[Callable[..., Case]], None]:
    """Register a program that uses these modules, and tensorly with arrays of ``cp`` as its tensors."""

    def register(make: Callable[..., Case]) -> None:
        @functools.wraps(make)
        def made(cp: Any, draw: Draw, tl: Any, *more: Any) -> Case:
            tl.set_backend(cp.__name__)
            return make(cp, draw, tl, *more)

        program('tensorly', 'tensorly', *modules)(made)

    return register


def taken_apart(result: Any) -> Any:
    """The parts of a decomposition, in which an array or a list of arrays follows the other."""
    weights, factors = result
    return weights, list(factors)


@calls(with_backend(), lambda draw: (draw.normal(6, 7, 8),))
def unfold_and_fold(cp: Any, tl: Any, x: Any) -> Any:
    """A tensor is unfolded along each mode, changed, and folded again."""
    return [tl.fold(tl.unfold(x, mode) * (mode + 1), mode, x.shape) for mode in range(3)]


@calls(
    with_backend('tensorly.tenalg'),
    lambda draw: (draw.normal(6, 7, 8), draw.normal(4, 6), draw.normal(5, 7), draw.normal(8)),
)
def mode_products(cp: Any, tl: Any, tenalg: Any, x: Any, a: Any, b: Any, v: Any) -> Any:
    """A tensor is multiplied by a matrix along each mode, and by a vector along one."""
    return (tenalg.multi_mode_dot(x, [a, b], modes=[0, 1]), tenalg.mode_dot(x, v, 2))


@calls(with_backend('tensorly.tenalg'), lambda draw: (draw.normal(4, 3), draw.normal(5, 3), draw.normal(6, 3)))
def products_of_matrices(cp: Any, tl: Any, tenalg: Any, *matrices: Any) -> Any:
    """The Khatri-Rao and the Kronecker product of three matrices are made."""
    return (tenalg.khatri_rao(list(matrices)), tenalg.kronecker(list(matrices)))


@calls(with_backend('tensorly.tenalg'), lambda draw: (draw.normal(9, 5), draw.normal(9, 5), draw.normal(6)))
def inner_and_outer(cp: Any, tl: Any, tenalg: Any, x: Any, y: Any, v: Any) -> Any:
    """Inner and outer products of tensors and of batches of vectors are made."""
    return (tenalg.inner(x, y), tenalg.outer([v, v, v]), tenalg.batched_outer([x, y]))


@calls(
    with_backend('tensorly.tenalg'),
    lambda draw: (draw.normal(6, 7, 8), draw.normal(6, 3), draw.normal(7, 3), draw.normal(8, 3)),
)
def mttkrp(cp: Any, tl: Any, tenalg: Any, x: Any, *factors: Any) -> Any:
    """The product of an unfolded tensor with a Khatri-Rao product is made, as each step of ALS does."""
    product = tenalg.unfolding_dot_khatri_rao
    return product(x, (None, list(factors)), 1)


@calls(with_backend('tensorly.decomposition'), lambda draw: (draw.normal(6, 7, 8),), tell=taken_apart)
def parafac(cp: Any, tl: Any, decomposition: Any, x: Any) -> Any:
    """A tensor is decomposed by a few iterations of ALS from random factors."""
    decompose = decomposition.parafac
    options = {'rank': 3, 'n_iter_max': 4, 'init': 'random', 'random_state': 0, 'tol': 0}
    return decompose(x, **options)


@calls(with_backend('tensorly.decomposition'), lambda draw: (draw.normal(6, 7, 8),), tell=taken_apart)
def parafac_from_svd(cp: Any, tl: Any, decomposition: Any, x: Any) -> Any:
    """A tensor is decomposed by ALS from singular vectors until the error is steady."""
    decompose = decomposition.parafac
    options = {'rank': 2, 'n_iter_max': 5, 'init': 'svd', 'tol': 1e-2}
    return decompose(x, **options)


@calls(with_backend('tensorly.decomposition'), lambda draw: (draw.uniform(6, 7, 8),), tell=taken_apart)
def nonnegative_parafac(cp: Any, tl: Any, decomposition: Any, x: Any) -> Any:
    """A positive tensor is decomposed into positive factors."""
    decompose = decomposition.non_negative_parafac
    options = {'rank': 3, 'n_iter_max': 4, 'init': 'random', 'random_state': 0, 'tol': 0}
    return decompose(x, **options)


@with_backend('tensorly.tenalg')
def als_by_hand(cp: Any, draw: Draw, tl: Any, tenalg: Any) -> Case:
    """A user's own ALS updates a list of factors by one sweep at each call."""
    factors = [draw.normal(size, 3) for size in (6, 7, 8)]

    def sweep(x: Any) -> Any:
        for mode in range(3):
            others = [factor for number, factor in enumerate(factors) if number != mode]
            gram = (others[0].T @ others[0]) * (others[1].T @ others[1])
            target = tenalg.unfolding_dot_khatri_rao(x, (None, factors), mode)
            factors[mode] = tl.transpose(tl.solve(gram, tl.transpose(target)))
        return tl.norm(x - tl.cp_to_tensor((None, factors)))

    return Case(sweep, lambda draw: (draw.normal(6, 7, 8),), lambda: factors)


@calls(with_backend('tensorly.decomposition'), lambda draw: (draw.normal(6, 7, 8),), tell=taken_apart)
def tucker(cp: Any, tl: Any, decomposition: Any, x: Any) -> Any:
    """A tensor is decomposed into a core and factors by a few iterations of HOOI."""
    decompose = decomposition.tucker
    options = {'rank': [3, 3, 3], 'n_iter_max': 3, 'init': 'svd', 'tol': 0}
    return decompose(x, **options)


@calls(with_backend('tensorly.decomposition'), lambda draw: (draw.normal(6, 7, 8),))
def tensor_train(cp: Any, tl: Any, decomposition: Any, x: Any) -> Any:
    """A tensor is decomposed into a train by singular values."""
    decompose = decomposition.tensor_train
    return list(decompose(x, [1, 3, 3, 1]))


@calls(with_backend('tensorly.decomposition'), lambda draw: (draw.normal(5, 6, 7),))
def robust_pca(cp: Any, tl: Any, decomposition: Any, x: Any) -> Any:
    """A tensor is split into one of low rank and a sparse one, with a mask."""
    split = decomposition.robust_pca
    options = {'n_iter_max': 3, 'verbose': 0, 'tol': 0}
    return split(x, **options)


@with_backend('tensorly.decomposition')
def decomposition_as_an_object(cp: Any, draw: Draw, tl: Any, decomposition: Any) -> Case:
    """An object of the class CP is fitted at each call, and keeps what it found last."""
    fitted = decomposition.CP(rank=2, n_iter_max=3, init='random', random_state=0, tol=0)

    def step(x: Any) -> Any:
        return tl.cp_to_tensor(fitted.fit_transform(x))

    return Case(step, lambda draw: (draw.normal(6, 7, 8),), lambda: list(getattr(fitted, 'decomposition_', (0, []))[1]))


@calls(with_backend(), lambda draw: (draw.normal(3, 3, 3), draw.normal(5, 3), draw.normal(6, 3), draw.normal(7, 3)))
def reconstructions(cp: Any, tl: Any, core: Any, *factors: Any) -> Any:
    """Tensors are made of factors in the forms of CP and Tucker, and compared by a norm."""
    whole = tl.tucker_to_tensor((core, list(factors)))
    return whole, tl.norm(whole - tl.cp_to_tensor((None, list(factors))), 2)


@calls(
    with_backend('tensorly.metrics', 'tensorly.tenalg.proximal'), lambda draw: (draw.normal(8, 9), draw.normal(8, 9))
)
def metrics_and_proximals(cp: Any, tl: Any, metrics: Any, prox: Any, x: Any, y: Any) -> Any:
    """Errors between tensors and thresholds of singular values are computed."""
    return (metrics.RMSE(x, y), prox.soft_thresholding(x, 0.3), prox.svd_thresholding(y, 0.5))
