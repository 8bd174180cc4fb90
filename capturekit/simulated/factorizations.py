"""``numpy.linalg`` as cuSOLVER does it: what can't be factored gives NaN or infinity, and nothing raises.

cuSOLVER counts in a number on the device, ``info``, where a factorization has failed, and goes on with the values that
it has: the root of a negative pivot is NaN, and a division by a pivot of zero is infinite. Only under
``cupyx.errstate(linalg='raise')`` does CuPy read ``info``. All functions take stacks of matrices where NumPy's do;
wrong shapes raise as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _each(fn: Callable[..., Any], failed: Callable[..., Any], *given: Array) -> Any:
    """Call ``fn``; where its values make it raise, go through the stack and call ``failed`` for those matrices."""
    try:
        return fn(*given)
    except np.linalg.LinAlgError:
        shape = given[0].shape
        if len(shape) < 2:
            raise
    if len(shape) == 2:
        fn(np.eye(*shape, dtype=given[0].dtype), *given[1:])  # raises for a wrong shape
        return failed(*given)
    several = [_each(fn, failed, *one) for one in zip(*given)]
    return tuple(map(np.stack, zip(*several))) if isinstance(several[0], tuple) else np.stack(several)


def cholesky(a: Array) -> Array:
    """Return the lower factor; what follows from the root of a negative pivot is NaN."""
    return np.asarray(_each(np.linalg.cholesky, _by_columns, a))


def _by_columns(a: Array) -> Array:
    found = np.zeros_like(np.linalg.cholesky(np.eye(len(a), dtype=a.dtype)))
    for j in range(len(a)):
        found[j:, j] = a[j:, j] - found[j:, :j] @ found[j, :j].conj()
        found[j, j] = np.sqrt(found[j, j].real)
        found[j + 1 :, j] /= found[j, j]
    return found


def solve(a: Array, b: Array) -> Array:
    """Return the solution; that of a singular matrix has NaN or infinities."""
    if b.ndim == 1:
        return solve(a, np.broadcast_to(b, a.shape[:-1])[..., None])[..., 0]
    if a.shape[:-1] != b.shape[:-1]:
        raise ValueError('a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b')
    return np.asarray(_each(np.linalg.solve, _by_pivots, a, b))


def _by_pivots(a: Array, b: Array) -> Array:
    n = len(a)
    found = np.concatenate([a, b], axis=1, dtype=np.linalg.solve(np.eye(n, dtype=a.dtype), b).dtype)
    for j in range(n):
        pivot = j + int(np.argmax(np.abs(found[j:, j])))
        found[[j, pivot]] = found[[pivot, j]]
        if found[j, j] != 0:
            found[j + 1 :] -= found[j + 1 :, j, None] / found[j, j] * found[j]
    for j in reversed(range(n)):
        found[j, n:] = (found[j, n:] - found[j, j + 1 : n] @ found[j + 1 :, n:]) / found[j, j]
    return found[:, n:]


def inv(a: Array) -> Array:
    """Return the inverse; that of a singular matrix has NaN or infinities."""
    singular = lambda one: _by_pivots(one, np.eye(len(one), dtype=one.dtype))  # noqa: E731
    return np.asarray(_each(np.linalg.inv, singular, a))


def matrix_power(M: Array, n: int) -> Array:
    return np.asarray(np.linalg.matrix_power(inv(M) if n < 0 else M, abs(n)))


def tensorinv(a: Array, ind: int = 2) -> Array:
    """Return the inverse for ``tensordot`` over the first ``ind`` axes."""
    if ind <= 0:
        raise ValueError('Invalid ind argument')
    rest = a.shape[ind:]
    return inv(a.reshape(int(np.prod(rest)), -1)).reshape(*rest, *a.shape[:ind])


def tensorsolve(a: Array, b: Array, axes: Any = None) -> Array:
    """Return the solution of ``tensordot(a, x) = b``."""
    if axes is not None:
        a = a.transpose([axis for axis in range(a.ndim) if axis not in axes] + list(axes))
    rest = a.shape[-(a.ndim - b.ndim) :]
    return solve(a.reshape(-1, int(np.prod(rest))), b.ravel()).reshape(rest)


def iterating(function: Callable[..., Any], complex_always: bool = False) -> Callable[..., Any]:
    """Return ``function`` of one matrix or a stack, with NaN in all results for a matrix where it does not converge."""

    def call(a: Array, *args: Any, **kwargs: Any) -> Any:
        def once(one: Array) -> Any:
            found = function(one, *args, **kwargs)
            parts = [np.asarray(part) for part in (found if isinstance(found, tuple) else (found,))]
            if complex_always:  # NumPy's dtype would depend on the values
                parts = [part.astype(np.result_type(part, np.complex64), copy=False) for part in parts]
            return tuple(parts) if isinstance(found, tuple) else parts[0]

        return _each(once, lambda one: _nan_like(once(np.eye(*one.shape, dtype=one.dtype))), a)

    return call


def of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, with NaN in all results where LAPACK does not converge for the values of its operands."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except np.linalg.LinAlgError:
            whole = [np.resize([1.0, 2.0, 0.5], a.shape) if isinstance(a, np.ndarray) else a for a in args]
            return _nan_like(function(*whole, **kwargs))

    return call


def _nan_like(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(map(_nan_like, found))
    return np.full_like(found, np.nan if np.asarray(found).dtype.kind in 'fc' else 0)


def info_of(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return what tells cuSOLVER's ``info`` of a call of ``numpy.linalg``: 0, or another number if it has failed."""

    def info(*args: Any, **kwargs: Any) -> Array:
        try:
            function(*args, **kwargs)
        except np.linalg.LinAlgError:
            return np.array([1], np.int32)
        return np.array([0], np.int32)

    return info
