"""What the draws of ``cupy.random`` are asked for: shapes, dtypes and parameters, checked as CuPy checks them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from . import layout, operators


class _Namespace:
    """The module ``cupy``, by what it holds at each call."""

    def __getattr__(self, name: str) -> Any:
        return getattr(operators.namespace, name)


cupy: Any = _Namespace()


def common_shape(*values: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(*(v._shape if isinstance(v, layout.Layout) else np.shape(v) for v in values))


def shape_of(size: Any) -> tuple[int, ...]:
    if size is None:
        return ()
    return tuple(size) if isinstance(size, (tuple, list)) else (operator.index(size),)


def check_and_get_dtype(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(dtype)
    if found.char not in ('f', 'd'):
        raise TypeError('cupy.random only supports float32 and float64')
    return found


def is_scalar(value: Any) -> bool:
    return bool(np.isscalar(value))


def refuse_where(condition: Any, message: str) -> None:
    """Raise ValueError where a condition holds for any element: the host reads it, as in CuPy."""
    if condition.any():
        raise ValueError(message)


def dtype_of(name: str, kwarg: dict[str, Any]) -> Any:
    dtype = kwarg.pop('dtype', float)
    if kwarg:
        raise TypeError(f'{name}() got unexpected keyword arguments {", ".join(kwarg)}')
    return dtype
