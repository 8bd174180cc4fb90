"""What CuPy's functions read of arrays on the host before they work: they decide, or refuse, by what they read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import conversions, launches


def _average(a: Any, axis: Any = None, weights: Any = None, **_: Any) -> None:
    if weights is None:
        return
    weights = _array(weights)
    total = weights.sum(axis) if weights.shape == _array(a).shape else weights.sum()
    if bool((total == 0.0).any()):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")


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
    if mode == 'raise' and not bool(((a >= 0) & (a < len(choices))).all()):
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
    'choose': choose,
    'gradient': _gradient,
    'linspace': _linspace,
    'polymul': _polymul,
    'real_if_close': _real_if_close,
    'repeat': repeat,
    'unravel_index': _unravel_index,
}
