"""CuPy's choices of libraries for its routines, and of the type that matrix products are computed in.

They are kept, and without effect here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

_CUB = 1
_NAMES = {'cub': _CUB, 'cutensor': 2, 'cutensornet': 3}
_KINDS: dict[str, list[int]] = {'elementwise': [_CUB], 'reduction': [_CUB], 'routine': [_CUB]}
#: Complex numbers go with their parts.
_INDEX = {'e': 0, 'f': 1, 'F': 1, 'd': 2, 'D': 2}
_COMPUTED = [1, 1, 1]


def _set(kind: str, accelerators: Iterable[str | int]) -> None:
    _KINDS[kind] = [_NAMES[one] if isinstance(one, str) else int(one) for one in accelerators]


def set_elementwise_accelerators(accelerators: Iterable[str | int]) -> None:
    _set('elementwise', accelerators)


def set_reduction_accelerators(accelerators: Iterable[str | int]) -> None:
    _set('reduction', accelerators)


def set_routine_accelerators(accelerators: Iterable[str | int]) -> None:
    _set('routine', accelerators)


def get_elementwise_accelerators() -> list[int]:
    return list(_KINDS['elementwise'])


def get_reduction_accelerators() -> list[int]:
    return list(_KINDS['reduction'])


def get_routine_accelerators() -> list[int]:
    return list(_KINDS['routine'])


def set_compute_type(dtype: Any, compute_type: int) -> None:
    """Set in which type products of arrays of a dtype are computed."""
    _COMPUTED[_INDEX[np.dtype(dtype).char]] = int(compute_type)


def get_compute_type(dtype: Any) -> int:
    """Return in which type products of arrays of a dtype are computed."""
    return _COMPUTED[_INDEX[np.dtype(dtype).char]]
