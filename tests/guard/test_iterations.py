"""Functions that iterate until a number is small enough: the host reads it, and the number of steps is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck


def matrices(cp: Any, count: int) -> list[Any]:
    """Symmetric matrices whose eigenvalues lie far apart, so that few steps do."""
    draw = np.random.default_rng(5)
    found = []
    for _ in range(count):
        vectors = np.linalg.qr(draw.normal(size=(5, 5)))[0]
        found.append(cp.asarray((vectors * (100.0, 20, 3, 1, 0.1)) @ vectors.T))
    return found


def largest(cp: Any) -> Callable[..., Any]:
    from cupyx.scipy.sparse.linalg import eigsh

    def found(x: Any, factor: float = 2.0) -> Any:
        values, vectors = eigsh(x * factor, 2)
        return values + 1, vectors * values

    return found


def of_sparse(cp: Any) -> Callable[..., Any]:
    from cupyx.scipy.sparse import csr_matrix
    from cupyx.scipy.sparse.linalg import eigsh

    columns, rows = cp.asarray(np.tile(np.arange(5), 5).astype('i')), cp.asarray((np.arange(6) * 5).astype('i'))

    def found(x: Any) -> Any:
        return eigsh(csr_matrix(((x * 2).ravel(), columns, rows), shape=(5, 5)), k=2, return_eigenvectors=False) * 3

    return found


def with_own_vector(cp: Any) -> Callable[..., Any]:
    from cupyx.scipy.sparse.linalg import eigsh

    first = cp.arange(1.0, 6)

    def found(x: Any) -> Any:
        return eigsh(x, 2, v0=first + x[0], which='LM', tol=1e-6)[0]

    return found


WAYS = {'an array': largest, 'a sparse matrix': of_sparse, 'a vector of its own': with_own_vector}


def outcomes(cp: Any, fn: Callable[..., Any], given: list[Any]) -> list[Any]:
    """What calls return, and what is drawn after them."""
    cp.random.seed(11)
    found = [fn(one) for one in given]
    parts = [part for one in found for part in (one if type(one) is tuple else (one,))]
    return [part.get() for part in (*parts, cp.random.random(3))]


@pytest.mark.parametrize('how', WAYS)
def test_calls_take_as_many_steps_as_it_needs(cp: Any, how: str) -> None:
    given, fn = matrices(cp, 3), ck.graphed(WAYS[how](cp))
    for one, other in zip(outcomes(cp, fn, given), outcomes(cp, WAYS[how](cp), given)):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_a_block_in_one_piece_goes_on_after_the_refusal(cp: Any) -> None:
    fn, (x,) = largest(cp), matrices(cp, 1)
    fn(x)
    with ck.capture() as cap:
        before = x * 2
        with pytest.raises(ck.CaptureError):
            fn(x)
        after = before + 1
    cap.graph.launch()
    np.testing.assert_allclose(after.get(), x.get() * 2 + 1)


@pytest.mark.parametrize(('k', 'error'), [(0, ValueError), (9, ValueError)])
def test_what_cupy_refuses_draws_nothing(cp: Any, k: int, error: type[Exception]) -> None:
    from cupyx.scipy.sparse.linalg import eigsh

    fn, (x,) = ck.graphed(lambda x: eigsh(x, k)), matrices(cp, 1)
    cp.random.seed(4)
    for _ in range(3):
        with pytest.raises(error):
            fn(x)
    found = cp.random.random(2).get()
    cp.random.seed(4)
    np.testing.assert_array_equal(found, cp.random.random(2).get())
