"""``cupy.ufunc``: NumPy's universal functions as launches, with what CuPy lets them take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from capturekit.simulated.unchecked_functions import UNCHECKED

from . import launches
from .launches import Layout, array_of

#: CuPy's universal functions that NumPy has under the same name.
NAMES = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_count bitwise_or bitwise_xor
    cbrt ceil conjugate copysign cos cosh deg2rad degrees divmod equal exp exp2 expm1 fabs float_power floor
    floor_divide fmax fmin fmod frexp gcd greater greater_equal heaviside hypot invert isfinite isinf isnan lcm ldexp
    left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    maximum minimum modf multiply negative nextafter not_equal positive power rad2deg radians reciprocal remainder
    right_shift rint sign signbit sin sinh sqrt square subtract tan tanh true_divide trunc
""".split()

#: CuPy's other names for them.
ALIASES = {
    'abs': 'absolute', 'acos': 'arccos', 'acosh': 'arccosh', 'asin': 'arcsin', 'asinh': 'arcsinh', 'atan': 'arctan',
    'atan2': 'arctan2', 'atanh': 'arctanh', 'bitwise_invert': 'invert', 'bitwise_left_shift': 'left_shift',
    'bitwise_not': 'invert', 'bitwise_right_shift': 'right_shift', 'conj': 'conjugate', 'divide': 'true_divide',
    'mod': 'remainder', 'pow': 'power',
}  # fmt: skip

#: Those that ``ufunc.at`` takes, by their atomic operations on the device.
_SCATTERING = {
    'add': 'add', 'subtract': 'sub', 'maximum': 'max', 'minimum': 'min', 'bitwise_and': 'and', 'bitwise_or': 'or',
    'bitwise_xor': 'xor',
}  # fmt: skip


class ufunc:
    """A universal function on the device."""

    def __init__(self, name: str, nin: int, nout: int, function: Callable[..., Any]) -> None:
        self.name = f'cupy_{name}'
        self.__name__ = name
        self.nin = nin
        self.nout = nout
        self._function = function

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    nargs = property(lambda self: self.nin + self.nout)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if hasattr(arg, '__cupy_override_elementwise_kernel__'):
                return arg.__cupy_override_elementwise_kernel__(self, *args, **kwargs)
        out = self._out(args, kwargs)
        unknown = sorted(set(kwargs) - {'dtype', 'casting'})
        if unknown:
            raise TypeError(f'Wrong arguments {unknown}')
        if not self.nin <= len(args) <= self.nargs:
            raise TypeError(f'Wrong number of arguments for {self.__name__}')
        inputs = [_apart(a if isinstance(a, launches.SCALARS) else array_of(a), out) for a in args[: self.nin]]
        options = {k: v for k, v in kwargs.items() if v is not None}
        function = UNCHECKED.get(self.__name__, self._function)
        return launches.launch(self.name, function, inputs, options, out=out, elementwise=True)

    def _out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = kwargs.pop('out', None)
        given = args[self.nin :]
        if given and out is not None:
            raise ValueError("Cannot specify 'out' as both a positional and keyword argument")
        if isinstance(out, tuple):
            given, out = out, None
        if out is not None:
            return out
        if not given or all(g is None for g in given):
            return None
        return given[0] if self.nout == 1 else tuple(given)

    def _method(self, method: str, array: Any, *args: Any, out: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        options = kwargs if dtype is None else {**kwargs, 'dtype': dtype}
        return launches.launch(
            f'{self.name}_{method}', getattr(self._function, method), (array, *args), options, out=out
        )

    def outer(self, A: Any, B: Any, **kwargs: Any) -> Any:
        return self._method('outer', A, B, **kwargs)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        if self.__name__ not in _SCATTERING:
            raise NotImplementedError(f'`{self.name}.at` is not supported yet')
        a._scatter_op(indices, b, _SCATTERING[self.__name__])

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        kept = {'keepdims': keepdims} if keepdims else {}
        return self._method('reduce', array, axis=axis, dtype=dtype, out=out, **kept)

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        return self._method('accumulate', array, axis=axis, dtype=dtype, out=out)

    def reduceat(self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        return self._method('reduceat', array, indices % array.shape[axis], axis=axis, dtype=dtype, out=out)


def _apart(value: Any, out: Any) -> Any:
    """An input as it is, or a copy if it lies across an output that is another array object."""
    others = [one for one in launches.leaves(out) if isinstance(one, Layout) and one is not value]
    if isinstance(value, Layout) and others:
        seen = value._slot().view()
        if any(np.may_share_memory(seen, one._slot().view()) for one in others):
            return value.copy()  # type: ignore[attr-defined]
    return value


#: Every universal function by name.
TABLE = {name: ufunc(name, own.nin, own.nout, own) for name, own in ((name, getattr(np, name)) for name in NAMES)}
TABLE |= {alias: TABLE[name] for alias, name in ALIASES.items()}
TABLE |= {name: ufunc(name, 1, 1, getattr(np, name)) for name in ('fix', 'sinc', 'i0')}
