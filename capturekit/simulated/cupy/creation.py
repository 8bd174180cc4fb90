"""``cupy``'s functions that make arrays: from shapes, from host data, from text."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from . import arrays, conversions, exchange, launches, operators
from .ufuncs import TABLE

#: The module published as ``cupy._core``. What is on it is looked up at every call, so that it can be replaced.
_core: Any = ModuleType('cupy._core')
_core.array = conversions.array
_core.concatenate_method = conversions.concatenate_method


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str = 'K',
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> Any:
    """Return an array on the device."""
    return _core.array(obj, dtype, copy, order, subok, ndmin, blocking)


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, blocking: bool = False
) -> Any:
    """Return ``a`` as an array on the device, copied only if need be."""
    return _core.array(a, dtype, copy, order, blocking=blocking)


def asanyarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, blocking: bool = False
) -> Any:
    """Return ``a`` as an array on the device, copied only if need be."""
    return _core.array(a, dtype, copy, order, blocking=blocking)


def asfarray(a: Any, dtype: Any = np.float64) -> Any:
    """Return ``a`` as an array of floats."""
    return asarray(a, dtype if np.issubdtype(dtype, np.inexact) else np.float64)


def asarray_chkfinite(a: Any, dtype: Any = None, order: str | None = None) -> Any:
    """Return ``a`` as an array; raises ValueError for NaN and infinity, which the host has to look for."""
    found = asarray(a, dtype=dtype, order=order)
    if not TABLE['isfinite'](found).all():
        raise ValueError('array must not contain Infs or NaNs')
    return found


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """Return ``a`` in C order."""
    return conversions.array(a, dtype, None, 'C', ndmin=1)


def asfortranarray(a: Any, dtype: Any = None) -> Any:
    """Return ``a`` in Fortran order."""
    return conversions.array(a, dtype, None, 'F', ndmin=1)


def require(a: Any, dtype: Any = None, requirements: Any = None) -> Any:
    wanted = [requirements] if isinstance(requirements, str) else list(requirements or ())
    order = 'F' if any(r.upper().startswith('F') for r in wanted) else 'C' if wanted else 'A'
    return conversions.array(a, dtype, None, order)


def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    """Return ``x`` as another dtype."""
    return x.astype(dtype, copy=copy)


def copy(a: Any, order: str = 'K') -> Any:
    return a.copy(order=order)


def empty(shape: Any, dtype: Any = float, order: str = 'C') -> Any:
    return arrays.ndarray(shape, dtype, order=order)


def zeros(shape: Any, dtype: Any = float, order: str = 'C') -> Any:
    found = empty(shape, dtype, order)
    found.data.memset_async(0, found.nbytes)
    return found


def ones(shape: Any, dtype: Any = float, order: str = 'C') -> Any:
    found = empty(shape, dtype, order)
    found.fill(1)
    return found


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = 'C') -> Any:
    found = empty(shape, _dtype_of(fill_value) if dtype is None else dtype, order)
    _set(found, fill_value)
    return found


def _dtype_of(value: Any) -> Any:
    return value.dtype if launches.as_array(value) is not None else np.array(value).dtype


def _set(found: Any, value: Any) -> None:
    if launches.as_array(value) is None:
        value = np.asarray(value)[()]
    launches.mutate('cupy_fill', exchange.assign, found, (value,))


def empty_like(prototype: Any, dtype: Any = None, order: str = 'K', subok: None = None, shape: Any = None) -> Any:
    """Return an array like another one, that nothing has been written to."""
    if subok is not None:
        raise TypeError('subok is not supported yet')
    found = np.dtype(prototype.dtype if dtype is None else dtype)
    if shape is not None:
        return empty(shape, found, order if order in ('C', 'F') else 'C')
    order = exchange.resolve(prototype, order.upper())
    return arrays.ndarray(prototype.shape, found, None, exchange.strides_like(prototype, found, order), 'C')


def zeros_like(a: Any, dtype: Any = None, order: str = 'K', subok: None = None, shape: Any = None) -> Any:
    found = empty_like(a, dtype, order, subok, shape)
    found.data.memset_async(0, found.nbytes)
    return found


def ones_like(a: Any, dtype: Any = None, order: str = 'K', subok: None = None, shape: Any = None) -> Any:
    found = empty_like(a, dtype, order, subok, shape)
    found.fill(1)
    return found


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = 'K', subok: None = None, shape: Any = None
) -> Any:
    found = empty_like(a, dtype, order, subok, shape)
    _set(found, fill_value)
    return found


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    start, stop, step = (one.item() if isinstance(one, arrays.ndarray) else one for one in (start, stop, step))
    first, last = (0, start) if stop is None else (start, stop)
    return launches.launch('cupy_arange', np.arange, (first, last, 1 if step is None else step), {'dtype': dtype})


def meshgrid(*xi: Any, **kwargs: Any) -> Any:
    return launches.launch('cupy_meshgrid', lambda *x, **k: list(np.meshgrid(*x, **k)), xi, kwargs)


def broadcast_arrays(*args: Any) -> Any:
    shape = np.broadcast_shapes(*(a.shape for a in args))
    return [launches.view(np.broadcast_to, a, shape) for a in args]


def ix_(*args: Any) -> Any:
    return launches.launch('cupy_ix_', np.ix_, [asarray(a) for a in args])


class _Grid:
    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def __getitem__(self, key: Any) -> Any:
        return launches.launch('cupy_grid', self._grid.__getitem__, (key,))

    def __len__(self) -> int:
        return 0


mgrid, ogrid, r_, c_ = _Grid(np.mgrid), _Grid(np.ogrid), _Grid(np.r_), _Grid(np.c_)


def _from_numpy(name: str) -> Any:
    function = getattr(np, name)

    def make(*args: Any, **kwargs: Any) -> Any:
        return asarray(function(*args, **kwargs))

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Return what NumPy's function of this name does, on the device: see :func:`numpy.{name}`."
    return make


frombuffer, fromfile, fromfunction, fromiter, fromstring, genfromtxt, loadtxt = (
    _from_numpy(name)
    for name in ('frombuffer', 'fromfile', 'fromfunction', 'fromiter', 'fromstring', 'genfromtxt', 'loadtxt')
)


# -- to the host ------------------------------------------------------------------------------------------------


def asnumpy(a: Any, stream: Any = None, order: str = 'C', out: Any = None, *, blocking: bool = True) -> Any:
    """Return ``a`` on the host."""
    found = launches.as_array(a)
    if found is not None:
        return found.get(stream=stream, order=order, out=out, blocking=blocking)
    host = np.asarray(a, order=order)  # type: ignore[call-overload]
    if out is None:
        return host
    out[...] = host
    return out


def get_array_module(*args: Any) -> Any:
    """Return ``cupy`` if any argument is on the device, otherwise ``numpy``."""
    return operators.namespace if any(launches.as_array(a) is not None for a in args) else np


def save(file: Any, arr: Any, allow_pickle: bool | None = None) -> None:
    np.save(file, asnumpy(arr), **({} if allow_pickle is None else {'allow_pickle': allow_pickle}))


def savez(file: Any, *args: Any, **kwds: Any) -> None:
    np.savez(file, *map(asnumpy, args), **{k: asnumpy(v) for k, v in kwds.items()})


def savez_compressed(file: Any, *args: Any, **kwds: Any) -> None:
    np.savez_compressed(file, *map(asnumpy, args), **{k: asnumpy(v) for k, v in kwds.items()})


def savetxt(fname: Any, X: Any, *args: Any, **kwargs: Any) -> None:
    np.savetxt(fname, asnumpy(X), *args, **kwargs)


class NpzFile:
    """Arrays of a file, uploaded when asked for."""

    def __init__(self, npz_file: Any) -> None:
        self.npz_file = npz_file

    def __enter__(self) -> NpzFile:
        self.npz_file.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self.npz_file.__exit__(*args)

    def __getitem__(self, key: str) -> Any:
        return array(self.npz_file[key])

    def close(self) -> None:
        self.npz_file.close()


def load(file: Any, mmap_mode: str | None = None, allow_pickle: bool | None = None) -> Any:
    found = np.load(file, mmap_mode, **({} if allow_pickle is None else {'allow_pickle': allow_pickle}))  # type: ignore[arg-type]
    return array(found) if isinstance(found, np.ndarray) else NpzFile(found)


def array_repr(arr: Any, max_line_width: Any = None, precision: Any = None, suppress_small: Any = None) -> str:
    """Return ``repr``."""
    return np.array_repr(asnumpy(arr), max_line_width, precision, suppress_small)


def array_str(arr: Any, max_line_width: Any = None, precision: Any = None, suppress_small: Any = None) -> str:
    """Return ``str``."""
    return np.array_str(asnumpy(arr), max_line_width, precision, suppress_small)


def array2string(a: Any, *args: Any, **kwargs: Any) -> str:
    return np.array2string(asnumpy(a), *args, **kwargs)
