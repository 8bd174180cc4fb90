"""What CuPy's functions read of arrays on the host before they work: they decide, or refuse, by what they read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from . import conversions, launches


def _average(a: Any, axis: Any = None, weights: Any = None, **_: Any) -> None:
    if weights is None:
        return
    weights = _array(weights)
    total = weights.sum(axis) if weights.shape == _array(a).shape else weights.sum()
    if bool((total == 0.0).any()):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")


def _cov(a: Any, y: Any = None, fweights: Any = None, aweights: Any = None, **_: Any) -> None:
    weights = [one for one in (fweights, aweights) if one is not None]
    if weights and float(math.prod(weights).sum()) == 0:
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")


def _within(q: Any, most: float, message: str) -> None:
    """Refuse ``q`` if none is large enough, or none is small enough: of some that are, CuPy takes all."""
    given = launches.as_array(q)
    found: Any = np.asarray(q) if given is None else given
    if not ((found >= 0).any() and (found <= most).any()):
        raise ValueError(message)


def _ravel_multi_index(multi_index: Any, dims: Any, mode: Any = 'wrap', **_: Any) -> None:
    modes = [mode] * len(dims) if isinstance(mode, str) else mode
    for index, length, one in zip(multi_index, dims, modes):
        if one == 'raise' and bool(((index >= length) | (index < 0)).any()):
            raise ValueError('invalid entry in coordinates array')


def _poly(x: Any) -> None:
    if x.ndim == 2 and not bool((x == x.conj().T).all()):
        raise NotImplementedError('Only complex Hermitian and real symmetric 2d arrays are supported currently')


def _all_nan(found: Any) -> None:
    if bool((found != found).any()):
        warnings.warn('All-NaN slice encountered', RuntimeWarning, stacklevel=5)


def _unravel_index(indices: Any, dims: Any, order: str = 'C') -> None:
    indices = _array(indices)
    if bool((indices < 0).any()) or bool((indices // math.prod(dims) > 0).any()):
        raise ValueError('invalid entry in index array')


def _gradient(_f: Any, *distances: Any, **_: Any) -> None:
    for one in distances:
        coordinates = launches.as_array(one)
        if coordinates is not None and coordinates.ndim == 1:
            steps = coordinates[1:] - coordinates[:-1]
            bool((steps == steps[0]).all())


def _linspace(start: Any, stop: Any, num: int = 50, **_: Any) -> None:
    if num > 1 and not all(launches.as_array(end) is None for end in (start, stop)):
        bool((_array(stop - start) == 0).any())


def _polymul(*factors: Any) -> None:
    for factor in factors:
        if launches.as_array(factor) is not None:
            int((factor != 0).sum())  # trim_zeros() looks for the first that is not 0


def _real_if_close(a: Any, tol: float = 100) -> None:
    a = _array(a)
    if a.dtype.kind == 'c':
        bool((abs(a.imag) < tol).all())


def choose(a: Any, choices: Any, out: Any = None, mode: str = 'raise') -> None:
    """What ``choose`` reads."""
    del out
    count = choices.shape[0]
    if mode == 'raise' and not bool(((a >= 0) & (a < count)).all()):
        raise ValueError('invalid entry in choice array')


def repeat(_a: Any, repeats: Any, axis: int | None = None) -> None:
    """What ``repeat`` reads: of counts for each element, which are uploaded if they are a list."""
    del axis
    given = isinstance(repeats, (list, tuple)) and len(repeats) > 1
    counts = conversions.array(repeats, dtype=int) if given else launches.as_array(repeats)
    if counts is not None:
        int(counts.sum())
        if int(counts.min()) < 0:
            raise ValueError("all elements of 'repeats' should not be negative")


def _array(given: Any) -> Any:
    return conversions.array(given, None, None)


READ: dict[str, Callable[..., None]] = {
    'average': _average,
    'cov': _cov,
    'gradient': _gradient,
    'linspace': _linspace,
    'percentile': lambda a, q, **_: _within(q, 100, 'Percentiles must be in the range [0, 100]'),
    'poly': _poly,
    'polymul': _polymul,
    'quantile': lambda a, q, **_: _within(q, 1, 'Quantiles must be in the range [0, 1]'),
    'ravel_multi_index': _ravel_multi_index,
    'real_if_close': _real_if_close,
    'unravel_index': _unravel_index,
}
#: What they read of their results.
READ_AFTERWARDS: dict[str, Callable[[Any], None]] = {'nanmax': _all_nan, 'nanmin': _all_nan}
