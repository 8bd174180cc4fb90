"""NumPy's functions as CuPy's kernels do them: none raises by the values of its operands.

What CuPy looks at on the host before it launches is in :mod:`capturekit.simulated.cupy.functions`. Values that it does
not look at may be any: :data:`UNCHECKED` has a function of its own for each of NumPy's that would refuse some.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _power(a: Any, b: Any, **kwargs: Any) -> Any:
    """``integral_power`` of CuPy: an integer to a negative power is that of 1 or -1, else 0."""
    try:
        return np.power(a, b, **kwargs)
    except ValueError:
        a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0))
    found = np.asarray(np.power(a, np.maximum(b, 0), **kwargs))
    np.copyto(found, inverse, 'unsafe', where=b < 0)
    return found


def _digitize(x: Array, bins: Array, right: bool = False) -> Any:
    if x.dtype.kind == 'c':
        raise TypeError('x may not be complex')
    side: Any = 'left' if right else 'right'
    if bins.size < 2 or bins[0] <= bins[-1] or (np.isnan(bins[-1]) and not np.isnan(bins[0])):
        return np.searchsorted(bins, x, side)
    return bins.size - np.searchsorted(bins[::-1], x, 'right' if right else 'left')


def _searchsorted(a: Array, v: Any, side: Any = 'left', sorter: Any = None) -> Any:
    return np.searchsorted(a if sorter is None else np.take(a, sorter, mode='wrap'), v, side)


def _within(fn: Callable[..., Any], most: float) -> Callable[..., Any]:
    def call(a: Array, q: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(a, np.clip(np.nan_to_num(q), 0, most), *args, **kwargs)

    return call


def _ravel_multi_index(multi_index: Any, dims: Any, mode: Any = 'wrap', order: Any = 'C') -> Any:
    modes: Any = [mode] * len(dims) if isinstance(mode, str) else mode
    modes = tuple('wrap' if one == 'raise' else one for one in modes)
    return np.ravel_multi_index(tuple(multi_index), dims, modes, order)


def _take_along_axis(a: Array, indices: Array, axis: Any) -> Any:
    length = a.size if axis is None else a.shape[axis]
    return np.take_along_axis(a, np.asarray(indices % length if length else indices), axis)


# -- numpy.linalg as cuSOLVER does it -----------------------------------------------------------------------------
# cuSOLVER counts in a number on the device, ``info``, where a factorization has failed, and goes on. Only under
# ``cupyx.errstate(linalg='raise')`` does CuPy read ``info``.


def _unfailing(function: Callable[..., Any], complex_always: bool = False) -> Callable[..., Any]:
    """Return ``function`` of matrices or stacks, with NaN in all results for a matrix that can't be factored."""

    def once(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if not complex_always:  # NumPy's dtype would depend on the values
            return found
        parts = [np.asarray(part) for part in (found if isinstance(found, tuple) else (found,))]
        parts = [part.astype(np.result_type(part, np.complex64), copy=False) for part in parts]
        return tuple(parts) if isinstance(found, tuple) else parts[0]

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return once(*args, **kwargs)
        except np.linalg.LinAlgError:
            arrays = [one for one in args if isinstance(one, np.ndarray)]
            stacked = all(one.ndim > 2 and len(one) == len(arrays[0]) for one in arrays)
        if stacked:
            rest = args[len(arrays) :]
            several = [call(*one, *rest, **kwargs) for one in zip(*arrays)]
            return tuple(map(np.stack, zip(*several))) if isinstance(several[0], tuple) else np.stack(several)
        return _nan_like(once(*map(_regular, args), **kwargs))  # raises for a wrong shape

    return call


def _regular(value: Any) -> Any:
    """An array of the same shape that any function takes: the identity, or different numbers."""
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 2:
        return np.eye(*value.shape, dtype=value.dtype)
    if value.ndim < 2:
        return np.resize([1.0, 2.0, 0.5], value.shape)
    return np.eye(math.isqrt(value.size) or 1).reshape(value.shape)  # of a tensor that is a square matrix


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


def _solve(a: Array, b: Array) -> Array:
    if b.ndim > 1 and a.shape[:-1] != b.shape[:-1]:
        raise ValueError('a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b')
    wide = np.broadcast_to(b, a.shape[:-1])[..., None] if b.ndim == 1 else b
    found = _unfailing(np.linalg.solve)(a, wide)
    return np.asarray(found[..., 0] if b.ndim == 1 else found)


_OF_MATRICES = """
    cholesky cond eigh eigvalsh inv lstsq matrix_power matrix_rank norm pinv svd tensorinv tensorsolve
""".split()
#: By CuPy's name: what its kernels do, where NumPy's function of that name would raise for some values.
UNCHECKED: dict[str, Callable[..., Any]] = {
    'digitize': _digitize, 'percentile': _within(np.percentile, 100), 'polyfit': _unfailing(np.polyfit),
    'power': _power, 'quantile': _within(np.quantile, 1), 'ravel_multi_index': _ravel_multi_index,
    'roots': _unfailing(np.roots), 'searchsorted': _searchsorted, 'take_along_axis': _take_along_axis, 'solve': _solve,
    **{name: _unfailing(getattr(np.linalg, name)) for name in _OF_MATRICES},
    **{name: _unfailing(getattr(np.linalg, name), True) for name in ('eig', 'eigvals')},
}  # fmt: skip
