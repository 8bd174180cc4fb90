"""Arrays from host data, in other orders, and by DLPack, with the transfers that each makes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.device.constants import CONSTANTS

from . import launches, memory, pinned, runtime, runtime_calls, streams
from .layout import Layout, Shape, check_dtype

#: ``_concatenate`` in ``cupy/_core/_routines_manipulation.pyx``.
_JOINED, _SMALL = 8, 2 << 20
#: Kinds of devices in DLPack.
_CPU, _CUDA, _MANAGED = 1, 2, 13


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


# -- orders and copies ------------------------------------------------------------------------------------------


def assign(a: NDArray[Any], value: Any) -> None:
    """``a[...] = value``, whatever the dtypes."""
    np.copyto(a, value, casting='unsafe')


def resolve(array: Any, order: str) -> str:
    """Return 'C', 'F' or 'K' for 'A' and 'K', as far as the array decides it."""
    if order == 'A':
        return 'F' if array.flags.fnc else 'C'
    if order == 'K':
        return 'C' if array._c_contiguous else 'F' if array._f_contiguous else 'K'
    if order not in 'CF':
        raise ValueError(f'order not understood. order={order}')
    return order


def fits(array: Any, order: str) -> bool:
    """Return whether the array is laid out in ``order`` already."""
    fine: bool = {'K': True, 'A': array.flags.forc, 'C': array._c_contiguous, 'F': array._f_contiguous}[order]
    return fine


def strides_like(array: Any, dtype: np.dtype[Any], order: str) -> Shape | None:
    """Return the strides of a new array in ``order``."""
    if order == 'C':
        return None
    if order == 'F':
        axes = list(range(array.ndim))
    else:
        axes = sorted(range(array.ndim), key=lambda i: (abs(array.strides[i]), -i))
    strides, step = [0] * array.ndim, dtype.itemsize
    for axis in axes:
        strides[axis] = step
        step *= max(array.shape[axis], 1)
    return tuple(strides)


def in_order(array: Any, order: str) -> Any:
    """Return the array in 'C' or 'F' order, copied on the current stream if need be."""
    if array._c_contiguous if order == 'C' else array._f_contiguous:
        return array
    made = Layout.array_class(array.shape, array.dtype, order=order)
    launches.mutate('cupy_copy', assign, made, (array,), rehearse=False)
    return made


def ascontiguous(array: Any) -> Any:
    return in_order(array, 'C')


def order_for(array: Any, order: str, out: Any) -> str:
    """Return the order to read an array in, for ``get(order=..., out=...)``."""
    if out is None:
        order = order.upper()
        order = ('F' if array._f_contiguous else 'C') if order == 'A' else order
        if order not in ('C', 'F'):
            raise ValueError(f'unsupported order: {order}')
        return order
    if not isinstance(out, np.ndarray):
        raise TypeError('Only numpy.ndarray can be obtained fromcupy.ndarray')
    if array.dtype != out.dtype:
        raise TypeError(f'{out.dtype} array cannot be obtained from {array.dtype} array')
    if array.shape != out.shape:
        raise ValueError(f'Shape mismatch. Expected shape: {array.shape}, actual shape: {out.shape}')
    if out.flags.c_contiguous and (array._c_contiguous or not out.flags.f_contiguous):
        return 'C'
    if out.flags.f_contiguous:
        return 'F' if array._f_contiguous or not out.flags.c_contiguous else 'C'
    raise RuntimeError('`out` cannot be specified when copying to non-contiguous ndarray')


# -- DLPack -----------------------------------------------------------------------------------------------------


class Capsule:
    """A DLPack capsule of the simulated device: only :func:`from_dlpack` of the same one can open it."""

    def __init__(self, array: Any) -> None:
        self.array = array


def device_of(array: Any) -> tuple[int, int]:
    """Return DLPack's type and number of the array's device."""
    managed = runtime.pointerGetMemoryType(array.data.ptr) == CONSTANTS['memoryTypeManaged']
    return (_MANAGED if managed else _CUDA, array.data.device_id)


def to_dlpack(array: Any, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """``ndarray.__dlpack__``: makes the consumer's stream wait for the current one, or reads to the host."""
    if dl_device is None or tuple(dl_device) == device_of(array):
        if copy is True:
            raise BufferError('copy=True only supported for copy to CPU.')
    elif tuple(dl_device) == (_CPU, 0):
        if copy is False:
            raise ValueError('GPU memory cannot be exported to CPU without copy.')
        return _host_capsule(array.get(stream=None, order='A', out=None, blocking=True), max_version)
    else:
        raise BufferError('unsupported device requested.')
    _order_after_current(stream)
    return Capsule(array)


def _host_capsule(host: NDArray[Any], max_version: Any) -> Any:
    try:
        return host.__dlpack__(max_version=max_version)
    except TypeError:
        return host.__dlpack__()


def _order_after_current(stream: Any) -> None:
    consumer = runtime_calls.STREAM_LEGACY if stream is None else int(stream) if isinstance(stream, int) else -2
    if stream is not None and consumer < -1:
        raise ValueError(
            'On CUDA, the valid stream for the DLPack protocol is -1,'
            f' 1, 2, or any larger value, but {stream} was provided'
        )
    if consumer == 0:
        warnings.warn(
            'Stream 0 is passed from a library that you are'
            ' converting to; CuPy assumes 0 as a legacy default '
            'stream. Please report this problem to the library as this'
            ' violates the DLPack protocol.',
            stacklevel=4,
        )
        consumer = runtime_calls.STREAM_LEGACY
    producer = streams.get_current_stream()
    if consumer >= 0 and consumer != (producer.ptr or runtime_calls.STREAM_LEGACY):
        streams._BaseStream(consumer, -1).wait_event(producer.record())


def from_dlpack(array: Any, *, device: Any = None, copy: bool | None = None) -> Any:
    """Return an array over, or copied from, an object with ``__dlpack__``."""
    kind = array.__dlpack_device__()[0]
    if kind == _CPU:
        return array(np.from_dlpack(array))
    stream = runtime_calls.get_current_stream_ptr() or runtime_calls.STREAM_LEGACY
    found = _open(array.__dlpack__(stream=stream, max_version=(1, 0)))
    return found.copy() if copy else found


def fromDlpack(dltensor: Any) -> Any:
    """(Deprecated) Return an array over a DLPack capsule."""
    return _open(dltensor)


def _open(capsule: Any) -> Any:
    if not isinstance(capsule, Capsule):
        raise BufferError('the simulated device cannot open a DLPack capsule of another library')
    source = capsule.array
    mem = memory.UnownedMemory(source.data.ptr, source.nbytes, source, source.data.device_id)
    return Layout.array_class(source.shape, source.dtype, memory.MemoryPointer(mem, 0), source.strides)
