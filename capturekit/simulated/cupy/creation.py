"""``cupy``'s functions that make arrays: from shapes, from host data, from text."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from capturekit.simulated.cupy.signatures import named

from . import arrays, launches, runtime_calls
from .ufuncs import TABLE

#: The module published as ``cupy._core``. What is on it is looked up at every call, so that it can be replaced.
_core: Any = ModuleType('cupy._core')
_core.array = arrays.array
_core.concatenate_method = arrays.concatenate_method


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


def asarray_chkfinite(a: Any, dtype: Any = None, order: str | None = None) -> Any:
    """Return ``a`` as an array; raises ValueError for NaN and infinity, which the host has to look for."""
    found = asarray(a, dtype=dtype, order=order)
    if not TABLE['isfinite'](found).all():
        raise ValueError('array must not contain Infs or NaNs')
    return found


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """Return ``a`` in C order."""
    return arrays.array(a, dtype, None, 'C', ndmin=1)


def require(a: Any, dtype: Any = None, requirements: Any = None) -> Any:
    wanted = [requirements] if isinstance(requirements, str) else list(requirements or ())
    order = 'F' if any(r.upper().startswith('F') for r in wanted) else 'C' if wanted else 'A'
    return arrays.array(a, dtype, None, order)


def empty(shape: Any, dtype: Any = float, order: str = 'C') -> Any:
    return arrays.ndarray(shape, dtype, order=order)


def _zeroed(found: Any) -> Any:
    found.data.memset_async(0, found.nbytes)
    return found


def _dtype_of(value: Any) -> Any:
    return value.dtype if launches.as_array(value) is not None else np.array(value).dtype


def _filled(found: Any, value: Any) -> Any:
    if launches.as_array(value) is None:
        value = np.asarray(value)[()]
    launches.mutate('cupy_fill', arrays.assign, found, (value,))
    return found


def empty_like(prototype: Any, dtype: Any = None, order: str = 'K', subok: None = None, shape: Any = None) -> Any:
    """Return an array like another one, that nothing has been written to."""
    if subok is not None:
        raise TypeError('subok is not supported yet')
    found = np.dtype(prototype.dtype if dtype is None else dtype)
    if shape is not None:
        return empty(shape, found, order if order in ('C', 'F') else 'C')
    order = arrays.resolve(prototype, order.upper())
    return arrays.ndarray(prototype.shape, found, None, arrays.strides_like(prototype, found, order), 'C')


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    start, stop, step = (one.item() if isinstance(one, arrays.ndarray) else one for one in (start, stop, step))
    first, last = (0, start) if stop is None else (start, stop)
    return launches.launch('cupy_arange', np.arange, (first, last, 1 if step is None else step), {'dtype': dtype})


class _Grid:
    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def __getitem__(self, key: Any) -> Any:
        return launches.launch('cupy_grid', self._grid.__getitem__, (key,))

    def __len__(self) -> int:
        return 0


mgrid, ogrid, r_, c_ = _Grid(np.mgrid), _Grid(np.ogrid), _Grid(np.r_), _Grid(np.c_)


def _from_numpy(name: str) -> Any:
    return lambda *args, **kwargs: asarray(getattr(np, name)(*args, **kwargs))


def _saving(name: str) -> Any:
    return lambda file, *args, **kwds: getattr(np, name)(
        file, *map(asnumpy, args), **{key: asnumpy(one) for key, one in kwds.items()}
    )


def _broadcast_arrays(*args: Any) -> Any:
    shape = np.broadcast_shapes(*(a.shape for a in args))
    return [launches.view(np.broadcast_to, a, shape) for a in args]


def _one(found: Any) -> Any:
    found.fill(1)
    return found


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
    return runtime_calls.public['cupy'] if any(launches.as_array(a) is not None for a in args) else np


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


def load(file: Any, mmap_mode: Any = None, allow_pickle: bool | None = None) -> Any:
    found = np.load(file, mmap_mode, **_ALLOW[allow_pickle])
    return array(found) if isinstance(found, np.ndarray) else NpzFile(found)


_ALLOW: Any = {None: {}, False: {'allow_pickle': False}, True: {'allow_pickle': True}}
#: The functions that are one expression.
SHORT: dict[str, Callable[..., Any]] = {
    'asanyarray': lambda a, dtype=None, order=None, *, copy=None, blocking=False: _core.array(
        a, dtype, copy, order, blocking=blocking
    ),
    'asfarray': lambda a, dtype=np.float64: asarray(a, dtype if np.issubdtype(dtype, np.inexact) else np.float64),
    'asfortranarray': lambda a, dtype=None: arrays.array(a, dtype, None, 'F', ndmin=1),
    'astype': lambda x, dtype, /, *, copy=True: x.astype(dtype, copy=copy),
    'copy': lambda a, order='K': a.copy(order=order),
    'zeros': lambda shape, dtype=float, order='C': _zeroed(empty(shape, dtype, order)),
    'zeros_like': lambda a, dtype=None, order='K', subok=None, shape=None: _zeroed(
        empty_like(a, dtype, order, subok, shape)
    ),
    'ones': lambda shape, dtype=float, order='C': _one(empty(shape, dtype, order)),
    'ones_like': lambda a, dtype=None, order='K', subok=None, shape=None: _one(
        empty_like(a, dtype, order, subok, shape)
    ),
    'full': lambda shape, fill_value, dtype=None, order='C': _filled(
        empty(shape, _dtype_of(fill_value) if dtype is None else dtype, order), fill_value
    ),
    'full_like': lambda a, fill_value, dtype=None, order='K', subok=None, shape=None: _filled(
        empty_like(a, dtype, order, subok, shape), fill_value
    ),
    'meshgrid': lambda *xi, **kwargs: launches.launch(
        'cupy_meshgrid', lambda *x, **k: list(np.meshgrid(*x, **k)), xi, kwargs
    ),
    'broadcast_arrays': _broadcast_arrays,
    'ix_': lambda *args: launches.launch('cupy_ix_', np.ix_, [asarray(a) for a in args]),
    'save': lambda file, arr, allow_pickle=None: np.save(file, asnumpy(arr), **_ALLOW[allow_pickle]),
    'savez': _saving('savez'),
    'savez_compressed': _saving('savez_compressed'),
    'savetxt': lambda fname, X, *args, **kwargs: np.savetxt(fname, asnumpy(X), *args, **kwargs),
    'array_repr': lambda arr, max_line_width=None, precision=None, suppress_small=None: np.array_repr(
        asnumpy(arr), max_line_width, precision, suppress_small
    ),
    'array_str': lambda arr, max_line_width=None, precision=None, suppress_small=None: np.array_str(
        asnumpy(arr), max_line_width, precision, suppress_small
    ),
    'array2string': lambda a, *args, **kwargs: np.array2string(asnumpy(a), *args, **kwargs),
    **{name: _from_numpy(name) for name in
       ('frombuffer', 'fromfile', 'fromfunction', 'fromiter', 'fromstring', 'genfromtxt', 'loadtxt')},
}  # fmt: skip

for _name, _function in SHORT.items():
    named(_function, _name)
