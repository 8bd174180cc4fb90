"""Arrays from host data: what ``cupy.array`` does, with the transfers that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import launches, pinned, runtime, streams
from .layout import Layout, check_dtype

#: ``_concatenate`` in ``cupy/_core/_routines_manipulation.pyx``.
_JOINED, _SMALL = 8, 2 << 20


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str | None = 'K',
    subok: bool = False,
    ndmin: int = 0,
    blocking: bool = False,
) -> Any:
    """Return an array on the device: ``cupy._core.array``."""
    if subok:
        raise NotImplementedError
    order = order or 'K'
    given = launches.as_array(obj)
    if given is not None:
        return _from_device(given, dtype, copy, order, ndmin)
    if isinstance(obj, (list, tuple)) and _holds_arrays(obj):
        if _shape_of_nested(obj) is None:
            return _from_host(obj, dtype, order, ndmin, blocking)  # NumPy asks the arrays, which refuse
        return _from_nested(obj, dtype, order, ndmin, blocking)
    return _from_host(obj, dtype, order, ndmin, blocking)


def _from_device(given: Any, dtype: Any, copy: bool | None, order: str, ndmin: int) -> Any:
    if given.size and given.data.device_id != runtime.getDevice():
        given, copy = given.copy(order), None
    found = given._astype(given.dtype if dtype is None else dtype, order, None, None, copy)
    if ndmin > found.ndim:
        return found.reshape((1,) * (ndmin - found.ndim) + found.shape)
    return found


def _holds_arrays(obj: Any) -> bool:
    if isinstance(obj, (list, tuple)):
        return any(_holds_arrays(o) for o in obj)
    return launches.as_array(obj) is not None


def _shape_of_nested(obj: Any) -> tuple[int, ...] | None:
    """The shape of what CuPy joins: nested lists of arrays of the device of one shape; None for all else."""
    if not isinstance(obj, (list, tuple)):
        found = launches.as_array(obj)
        return None if found is None else tuple(found.shape)
    shapes = {_shape_of_nested(part) for part in obj}
    shape = shapes.pop() if len(shapes) == 1 else None
    return None if shape is None else (len(obj), *shape)


def _from_nested(obj: Any, dtype: Any, order: str, ndmin: int, blocking: bool) -> Any:
    options = {'dtype': dtype, 'order': 'F' if order[0] in 'Ff' else 'C', 'ndmin': ndmin}
    flat = list(_flat(obj))
    if all(isinstance(one, Layout) for one in flat):
        _upload_table(flat, flat[0].dtype)
    found = launches.launch('cupy_concatenate', np.array, (obj,), options)
    if blocking:
        streams.get_current_stream().synchronize()
    return found


def _flat(obj: Any) -> Iterator[Any]:
    if isinstance(obj, (list, tuple)):
        for part in obj:
            yield from _flat(part)
    else:
        yield obj


def concatenate_method(tup: Any, axis: int, out: Any = None, dtype: Any = None, casting: str = 'same_kind') -> Any:
    """Join arrays: ``cupy._core.concatenate_method``."""
    arrays = list(tup)
    if all(isinstance(one, Layout) for one in arrays) and arrays:
        _upload_table(arrays, arrays[0].dtype if out is None and dtype is None else np.dtype(dtype or out.dtype))
    options = {'axis': axis, 'casting': casting, **({} if dtype is None else {'dtype': dtype})}
    return launches.launch('cupy_concatenate', np.concatenate, (arrays,), options, out=out)


def _upload_table(arrays: list[Any], dtype: Any) -> None:
    """Of many small arrays CuPy's one kernel reads the addresses from a table, which it uploads."""
    small = sum(one.nbytes for one in arrays) < _SMALL * len(arrays)
    if len(arrays) > _JOINED and small and all(one.dtype == dtype for one in arrays):
        _from_host(np.array([one.data.ptr for one in arrays], np.int64), None, 'C', 0, False)


def _from_host(obj: Any, dtype: Any, order: str, ndmin: int, blocking: bool) -> Any:
    if order[0] in 'KkAa':
        order = 'F' if isinstance(obj, np.ndarray) and obj.flags.fnc else 'C'
    host = np.array(obj, dtype=dtype, order=order, ndmin=ndmin)  # type: ignore[call-overload]
    host = host.astype(check_dtype(host.dtype), copy=False)
    found = Layout.array_class(host.shape, dtype=host.dtype, order=order)
    if host.ndim == 0:
        found.fill(host)
        return found
    upload(host, found)
    if blocking:
        streams.get_current_stream().synchronize()
    return found


def upload(host: NDArray[Any], found: Any) -> None:
    """Copy ``host`` to an array of the same layout, through pinned memory unless it is pinned already."""
    stream = streams.get_current_stream()
    if host.nbytes == 0:
        return
    if pinned.is_memory_pinned(host.ctypes.data):
        found.data.copy_from_host_async(host.ctypes.data, host.nbytes, stream)
        pinned._add_to_watch_list(stream.record(), host)
        return
    mem = pinned.alloc_pinned_memory(host.nbytes)
    staged = np.ndarray(host.shape, host.dtype, mem, strides=host.strides)
    staged[...] = host
    found.data.copy_from_host_async(mem.ptr, host.nbytes, stream)
    pinned._add_to_watch_list(stream.record(), mem)
