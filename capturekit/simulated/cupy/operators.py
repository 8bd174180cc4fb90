"""What ``+``, ``<`` and NumPy's functions mean to an array: by CuPy's rules for who gets the operation.

With another array the operation is launched at once; with anything else NumPy is asked, which asks the operands'
``__array_ufunc__``, and so comes back here.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from .layout import Layout, Shape
from .ufuncs import TABLE

#: The module that ``__array_ufunc__`` and ``__array_function__`` look names up in: ``cupy``.
namespace: ModuleType | None = None

_NOTHING = object()
_COMPARISONS = ('equal', 'greater', 'greater_equal', 'less', 'less_equal', 'not_equal')
_SCALARS = (bool, int, float, complex, np.generic)


def _should_use_rop(x: Any, y: Any) -> bool:
    y_ufunc = getattr(y, '__array_ufunc__', _NOTHING)
    if y_ufunc is not _NOTHING:
        return y_ufunc is None
    lower: bool = getattr(x, '__array_priority__', 0) < getattr(y, '__array_priority__', 0)
    return lower


def _binary(name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        if isinstance(other, Layout):
            return TABLE[name](self, other) if name in TABLE else _matmul(self, other)
        if _should_use_rop(self, other):
            return NotImplemented
        # By way of NumPy, so that other libraries' __array_ufunc__ are asked.
        return getattr(np, name)(self, other)

    return operator


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return getattr(np, name)(other, self)

    return operator


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return TABLE[name](self, other, self)

    return operator


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: TABLE[name](self)


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        if isinstance(other, Layout):
            return TABLE[name](self, other)
        if _should_use_rop(self, other):
            return NotImplemented
        if isinstance(other, np.ndarray) and other.ndim == 0:
            other = other.item()
        plain: Any = type(other).__eq__
        if name in ('equal', 'not_equal') and (other is None or plain is object.__eq__):
            return full(self.shape, np.dtype(bool), name == 'not_equal')
        return getattr(np, name)(self, other)

    return operator


def full(shape: Shape, dtype: np.dtype[Any], value: Any) -> Any:
    found = Layout.array_class(shape, dtype)
    found.fill(value)
    return found


def _matmul(a: Any, b: Any) -> Any:
    assert namespace is not None
    return namespace.matmul(a, b)


def _is_operand(x: Any) -> bool:
    return (
        isinstance(x, (*_SCALARS, Layout, np.ndarray))
        or hasattr(x, '__cuda_array_interface__')
        or hasattr(x, '__cupy_get_ndarray__')
    )


class Operators(Layout):
    """Python's operators and NumPy's protocols."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        operands = inputs
        if 'out' in kwargs:
            out = kwargs['out']
            if len(out) != 1:
                raise ValueError("The 'out' parameter must have exactly one array value")
            operands += out
            kwargs['out'] = out[0]
        function = getattr(namespace, ufunc.__name__, None)
        if method != '__call__':
            function = getattr(function, method, None)
        if function is None or not all(_is_operand(x) for x in operands):
            return NotImplemented
        if ufunc.__name__ in _COMPARISONS:
            inputs = tuple(x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs)
        return function(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            module = functools.reduce(getattr, func.__module__.split('.')[1:], namespace)
            function = getattr(module, func.__name__)
        except AttributeError:
            return NotImplemented
        if function is func or not all(issubclass(t, (Layout.array_class, np.ndarray)) for t in types):
            return NotImplemented
        return function(*args, **kwargs)

    __lt__, __le__ = _comparison('less'), _comparison('less_equal')
    __gt__, __ge__ = _comparison('greater'), _comparison('greater_equal')
    __eq__, __ne__ = _comparison('equal'), _comparison('not_equal')
    __hash__ = None  # type: ignore[assignment]

    def __pos__(self: Any) -> Any:
        if self.dtype == np.bool_:
            warnings.warn(
                "Applying '+' to a non-numerical array is ill-defined. "
                'Returning a copy, but in the future this will error.',
                DeprecationWarning,
                stacklevel=2,
            )
            return self.copy()
        return TABLE['positive'](self)


#: Python's operators, by CuPy's functions.
_BINARY = {
    'add': 'add', 'sub': 'subtract', 'mul': 'multiply', 'matmul': 'matmul', 'truediv': 'true_divide',
    'floordiv': 'floor_divide', 'mod': 'remainder', 'divmod': 'divmod', 'pow': 'power', 'lshift': 'left_shift',
    'rshift': 'right_shift', 'and': 'bitwise_and', 'or': 'bitwise_or', 'xor': 'bitwise_xor',
}  # fmt: skip
_UNARY = {'neg': 'negative', 'abs': 'absolute', 'invert': 'invert'}

for _short, _name in _BINARY.items():
    setattr(Operators, f'__{_short}__', _binary(_name))
    setattr(Operators, f'__r{_short}__', _reflected(_name))
    if _short not in ('divmod', 'matmul'):
        setattr(Operators, f'__i{_short}__', _in_place(_name))
for _short, _name in _UNARY.items():
    setattr(Operators, f'__{_short}__', _unary(_name))
