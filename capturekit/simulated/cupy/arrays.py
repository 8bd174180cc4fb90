"""``cupy.ndarray``: arrays of host data, in other orders and by DLPack; operators, methods and transfers; indexing.

``ndarray`` is a Python class over ``_ndarray_base``, which has all the methods, as in CuPy: what is set on
``cupy.ndarray`` shadows the inherited one and is found by everything that reads an array, since all reads go through
``self.get()``.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import launches, memory, pinned, runtime, runtime_calls, streams, syncdetect
from .launches import SCALARS, Layout, Shape, check_dtype
from .runtime_calls import cupy
from .ufuncs import TABLE, ufunc

#: ``_concatenate`` in ``cupy/_core/_routines_manipulation.pyx``.
_JOINED, _SMALL = 8, 2 << 20
#: Kinds of devices in DLPack.
_CPU, _CUDA = 1, 2


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str | None = 'K',
    subok: bool = False,
    ndmin: int = 0,
    blocking: bool = False,
) -> Any:
    if subok:
        raise NotImplementedError
    order = order or 'K'
    given = launches.as_array(obj)
    if given is not None:
        return _from_device(given, dtype, copy, order, ndmin)
    if isinstance(obj, (list, tuple)) and _shape_of_nested(obj) is not None:
        return _from_nested(obj, dtype, order, ndmin, blocking)
    return _from_host(obj, dtype, order, ndmin, blocking)  # of other lists NumPy asks the arrays, which refuse


def _from_device(given: Any, dtype: Any, copy: bool | None, order: str, ndmin: int) -> Any:
    if given.size and given.data.device_id != runtime.getDevice():
        given, copy = given.copy(order), None
    found = given._astype(given.dtype if dtype is None else dtype, order, None, None, copy)
    if ndmin > found.ndim:
        return found.reshape((1,) * (ndmin - found.ndim) + found.shape)
    return found


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
    flat = list(launches.leaves(obj))
    if all(isinstance(one, Layout) for one in flat):
        _upload_table(flat, flat[0].dtype)
    found = launches.launch('cupy_concatenate', np.array, (obj,), options)
    if blocking:
        streams.get_current_stream().synchronize()
    return found


def concatenate_method(tup: Any, axis: int, out: Any = None, dtype: Any = None, casting: str = 'same_kind') -> Any:
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


def fits(array: Any, order: str) -> bool:
    """Return whether the array is laid out in ``order`` already."""
    return bool({'K': True, 'A': array.flags.forc, 'C': array._c_contiguous, 'F': array._f_contiguous}[order])


def strides_like(array: Any, dtype: np.dtype[Any], order: str) -> Shape | None:
    """Return the strides of a new array in ``order``; None in that of C."""
    if order not in ('C', 'F', 'A', 'K'):
        raise ValueError(f'order not understood. order={order}')
    if order == 'C' or (order in 'AK' and array._c_contiguous):
        return None
    if not array.size:
        return (0,) * int(array.ndim)
    strides: Shape = np.empty_like(array._slot().view(), dtype, order).strides  # type: ignore[call-overload]
    return strides


def in_order(array: Any, order: str) -> Any:
    """Return the array in 'C' or 'F' order, copied on the current stream if need be."""
    if array._c_contiguous if order == 'C' else array._f_contiguous:
        return array
    made = Layout.array_class(array.shape, array.dtype, order=order)
    launches.mutate('cupy_copy', assign, made, (array,), rehearse=False)
    return made


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
    if (array.dtype, array.shape) != (out.dtype, out.shape):
        raise ValueError(f'out has shape {out.shape} of {out.dtype}, and the array {array.shape} of {array.dtype}')
    if not out.flags.forc:
        raise RuntimeError('`out` cannot be specified when copying to non-contiguous ndarray')
    return 'C' if out.flags.c_contiguous else 'F'


# -- DLPack -----------------------------------------------------------------------------------------------------


def device_of(array: Any) -> tuple[int, int]:
    return _CUDA, array.data.device_id


def to_dlpack(array: Any, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """``ndarray.__dlpack__``: makes the consumer's stream wait for the current one, or reads to the host."""
    if dl_device is None or tuple(dl_device) == device_of(array):
        if copy is True:
            raise BufferError('copy=True only supported for copy to CPU.')
    elif tuple(dl_device) == (_CPU, 0):
        if copy is False:
            raise ValueError('GPU memory cannot be exported to CPU without copy.')
        return array.get(stream=None, order='A', out=None, blocking=True).__dlpack__()
    else:
        raise BufferError('unsupported device requested.')
    consumer = runtime_calls.STREAM_LEGACY if stream is None else stream
    if not isinstance(consumer, int) or consumer < -1:
        raise ValueError(f'the valid stream for the DLPack protocol is -1, 1, 2 or larger, but {stream} was provided')
    consumer = consumer or runtime_calls.STREAM_LEGACY  # as CuPy takes it
    producer = streams.get_current_stream()
    if consumer >= 0 and consumer != (producer.ptr or runtime_calls.STREAM_LEGACY):
        streams._BaseStream(consumer, -1).wait_event(producer.record())
    return array  # stands for the capsule, which nobody else can open


def from_dlpack(array: Any, *, device: Any = None, copy: bool | None = None) -> Any:
    if array.__dlpack_device__()[0] == _CPU:
        return _from_host(np.from_dlpack(array), None, 'K', 0, False)
    stream = runtime_calls.get_current_stream_ptr() or runtime_calls.STREAM_LEGACY
    source = array.__dlpack__(stream=stream, max_version=(1, 0))
    if not isinstance(source, Layout):
        raise BufferError('the simulated device cannot open a DLPack capsule of another library')
    given: Any = source
    mem = memory.UnownedMemory(given.data.ptr, given.nbytes, given, given.data.device_id)
    found = Layout.array_class(given.shape, given.dtype, memory.MemoryPointer(mem, 0), given.strides)
    return found.copy() if copy else found


def _should_use_rop(x: Any, y: Any) -> bool:
    if hasattr(y, '__array_ufunc__'):
        return y.__array_ufunc__ is None
    return bool(getattr(x, '__array_priority__', 0) < getattr(y, '__array_priority__', 0))


def _operator(name: str) -> Callable[[Any, Any], Any]:
    plain: Any = object.__eq__

    def operator(self: Any, other: Any) -> Any:
        if isinstance(other, Layout):
            return getattr(cupy, name)(self, other) if name == 'matmul' else TABLE[name](self, other)
        if _should_use_rop(self, other):
            return NotImplemented
        if name in ('equal', 'not_equal') and (other is None or type(other).__eq__ is plain):
            return full(self.shape, np.dtype(bool), name == 'not_equal')
        # By way of NumPy, so that other libraries' __array_ufunc__ are asked.
        return getattr(np, name)(self, other)

    return operator


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: getattr(np, name)(other, self)


def _in_place(name: str) -> Callable[..., Any]:
    """The same of one array, or of two, with the first as the output of the second."""
    return lambda self, *other: TABLE[name](self, *other, *([self] if other else []))


def full(shape: Shape, dtype: np.dtype[Any], value: Any) -> Any:
    found = Layout.array_class(shape, dtype)
    found.fill(value)
    return found


def _is_operand(x: Any) -> bool:
    offers = '__cuda_array_interface__', '__cupy_get_ndarray__'
    return isinstance(x, (*SCALARS, Layout, np.ndarray)) or any(hasattr(x, name) for name in offers)


_CLIP = ufunc('clip', 3, 1, np.clip)


def _bound(dtype: Any, given: Any, end: str) -> Any:
    """What CuPy gives its kernel where one end of ``clip`` is not given."""
    if given is not None or dtype.kind not in 'fiu':
        return given
    return dtype.type({'min': '-inf', 'max': 'inf'}[end] if dtype.kind == 'f' else getattr(np.iinfo(dtype), end))


def stable(kind: Any) -> str:
    """Return NumPy's name for the one kind of sorting that CuPy has."""
    if kind not in (None, 'stable'):
        raise ValueError("kind can only be None or 'stable'")
    return 'stable'


def _inside(indices: Any, size: int, low: int | None = None) -> Any:
    return (indices >= (-size if low is None else low)) & (indices < size)


def _not_simulated(name: str, self: Any) -> Any:
    raise NotImplementedError(f"the simulated CuPy has no 'ndarray.{name}'")


class _ndarray_base(Layout):
    """Everything that an array on the device can do."""

    __slots__ = ()
    __array_priority__ = 100

    # -- protocols ----------------------------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            'shape': self.shape,
            'typestr': self.dtype.str,
            'descr': self.dtype.descr,
            'stream': runtime_calls.get_current_stream_ptr() or runtime_calls.get_default_stream_ptr(),
            'version': 3,
            'strides': None if self._c_contiguous else self.strides,
            'data': (self.data.ptr if self.size else 0, False),
        }

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        return to_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return device_of(self)

    def __array__(self, dtype: Any = None) -> Any:
        raise TypeError(
            'Implicit conversion to a NumPy array is not allowed. '
            'Please use `.get()` to construct a NumPy array explicitly.'
        )

    # -- layout -------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """Lengths of the axes; setting reshapes without a copy."""
        return self._shape

    @shape.setter
    def shape(self, newshape: Any) -> None:
        found = launches.view(np.reshape, self, newshape)
        if found.size and found.data.ptr != self.data.ptr:
            raise AttributeError('incompatible shape')
        self._lay_out(found.shape, found.strides, self.dtype)

    T = property(lambda self: self if self.ndim < 2 else launches.view(np.transpose, self))

    mT = property(lambda self: launches.view(np.matrix_transpose, self))

    @property
    def real(self) -> Any:
        return launches.view(np.real, self) if self.dtype.kind == 'c' else self

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        return launches.view(np.imag, self) if self.dtype.kind == 'c' else full(self.shape, self.dtype, 0)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != 'c':
            raise TypeError('cupy.ndarray does not have imaginary part to set')
        self.imag[...] = value

    def reshape(self, *shape: Any, order: str = 'C', copy: bool | None = None) -> Any:
        wanted = shape[0] if len(shape) == 1 else shape
        found = launches.view(np.reshape, self, wanted, order=order)
        if not found.size and found.shape == self.shape:
            found = self.view()
        shares = found.size == 0 or found.data.mem is self.data.mem
        if copy is False and not shares:
            raise ValueError('Unable to avoid creating a copy while reshaping.')
        return found.copy() if copy and shares else found

    def transpose(self, *axes: Any) -> Any:
        wanted = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))) else axes
        return launches.view(np.transpose, self, wanted or None)

    def flatten(self, order: str = 'C') -> Any:
        return launches.launch('cupy_flatten', lambda a: a.flatten(order), (self,))

    def ravel(self, order: str = 'C') -> Any:
        return in_order(launches.view(np.ravel, self, order=order), 'C')

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        if inspect.isclass(dtype) and issubclass(dtype, Layout):
            dtype, type = None, dtype
        found = self if dtype is None else launches.view(lambda a: a.view(np.dtype(dtype)), self)
        return found._view(type or self.__class__, found.data.ptr, found._shape, found._strides, found.dtype)

    # -- conversion ---------------------------------------------------------------------------------------------

    def get(self, stream: Any = None, order: str = 'C', out: Any = None, blocking: bool = True) -> Any:
        """Return a copy on the host. Refused while the stream is being captured."""
        if stream is None:
            stream = streams.get_current_stream()
        if out is None and self.size == 0:
            return np.ndarray(self._shape, dtype=self.dtype)
        order = order_for(self, order, out)
        source = self
        if not (self._c_contiguous if order == 'C' else self._f_contiguous):
            with stream:
                source = in_order(self, order)
        host = np.empty(self._shape, self.dtype, order) if out is None else out  # type: ignore[call-overload]
        syncdetect._declare_synchronize()
        source.data.copy_to_host_async(host.ctypes.data, source.nbytes, stream)
        if blocking:
            stream.synchronize()
        return host

    def set(self, arr: Any, stream: Any = None) -> None:
        if not isinstance(arr, np.ndarray):
            raise TypeError('Only numpy.ndarray can be set to cupy.ndarray')
        if self.dtype != arr.dtype:
            raise TypeError(f'{arr.dtype} array cannot be set to {self.dtype} array')
        if self.shape != arr.shape:
            raise ValueError(f'Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}')
        if not self.flags.forc:
            raise RuntimeError('Cannot set to non-contiguous array')
        arr = np.ascontiguousarray(arr) if self._c_contiguous else np.asfortranarray(arr)
        if stream is None:
            stream = streams.get_current_stream()
        self.data.copy_from_host_async(arr.ctypes.data, self.nbytes, stream)

    def item(self) -> Any:
        if self.size != 1:
            raise ValueError('can only convert an array of size 1 to a Python scalar')
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def tobytes(self, order: str = 'C') -> Any:
        return self.get().tobytes(order)

    def _astype(
        self, dtype: Any, order: str | None = 'K', casting: Any = None, subok: Any = None, copy: bool | None = True
    ) -> Any:
        if casting is not None or subok is not None:
            raise TypeError(f'{"subok" if casting is None else "casting"} is not supported yet')
        order = (order or 'K').upper()
        found = check_dtype(dtype)
        if found == self.dtype and not copy and fits(self, order):
            return self
        if copy is False:
            raise ValueError('Unable to avoid copy while creating an array as requested.')
        made = ndarray(self.shape, found, None, strides_like(self, found, order), 'C')
        launches.mutate('cupy_copy', assign, made, (self,), rehearse=False, elementwise=True)
        return made

    def astype(self, dtype: Any, order: str = 'K', casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        """Return a copy of another dtype; ``copy=False`` returns the array itself where it can."""
        return self._astype(dtype, order, casting, subok, True if copy else None)

    def copy(self, order: str = 'C') -> Any:
        if self.size and self.data.device_id != runtime.getDevice():
            return launches.copy_here(self, order)
        return self.astype(self.dtype, order=order)

    def fill(self, value: Any) -> None:
        given = launches.as_array(value)
        known = given is None
        scalar = np.asarray(value, dtype=self.dtype) if known else given
        if scalar.shape != ():
            raise ValueError(f'non-scalar {"numpy" if known else "cupy"}.ndarray cannot be used for fill')
        if known and scalar == 0 and self._c_contiguous:
            self.data.memset_async(0, self.nbytes)
        else:
            wanted = scalar[()] if known else given
            launches.mutate('cupy_fill', assign, self, (wanted,), rehearse=False, elementwise=known)

    # -- selection ----------------------------------------------------------------------------------------------

    def take(self, indices: Any, axis: Any = None, out: Any = None) -> Any:
        """Return the elements at ``indices``; those out of bounds wrap around."""
        if launches.as_array(indices) is None and not np.isscalar(indices):
            indices = array(indices, dtype=int)

        def wrapping(a: Any, i: Any, out: Any = None) -> Any:
            length = a.size if axis is None else a.shape[axis]
            # Reduced first: NumPy wraps one length at a time, and indices that nothing has computed yet are anything.
            return np.take(a, np.asarray(i) % length if length else i, axis, out, 'wrap')

        return launches.launch('cupy_take', wrapping, (self, indices), out=out)

    def put(self, indices: Any, values: Any, mode: str = 'wrap') -> None:
        if mode not in ('raise', 'wrap', 'clip'):
            raise ValueError('clipmode not understood')
        given = [
            v if launches.as_array(v) is not None else array(v, dtype=d)
            for v, d in ((indices, None), (values, self.dtype))
        ]

        def put(a: Any, i: Any, v: Any) -> None:
            if mode == 'raise':  # the kernel leaves out what is out of bounds, and tells the host
                there = _inside(i, a.size)
                v, i = np.resize(v, i.shape)[there], i[there]
            np.put(a, i if mode == 'clip' or not a.size else i % a.size, v, 'clip')  # as in take()

        launches.mutate('cupy_put', put, self, given)
        if mode == 'raise' and not bool(_inside(given[0], self.size).all()):
            raise IndexError('invalid entry in indices array')

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:
        """Return repeated elements. CuPy uploads counts that are a list, and reads their sum and the least of them."""
        given = isinstance(repeats, (list, tuple)) and len(repeats) > 1
        counts = array(repeats, dtype=int) if given else launches.as_array(repeats)
        if counts is not None:
            int(counts.sum())
            if int(counts.min()) < 0:
                raise ValueError("all elements of 'repeats' should not be negative")
        if launches.as_array(repeats) is not None:
            repeats = repeats.get().tolist()
        return launches.launch('cupy_repeat', np.repeat, (self, repeats, axis))

    def choose(self, choices: Any, out: Any = None, mode: str = 'raise') -> Any:
        if mode == 'raise' and not bool(_inside(self, choices.shape[0], 0).all()):
            raise ValueError('invalid entry in choice array')
        return launches.launch('cupy_choose', np.choose, (self, choices), {'mode': mode}, out=out)

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        launches.mutate('cupy_sort', lambda a: a.sort(axis=axis, kind=stable(kind)), self)

    def partition(self, kth: Any, axis: int = -1) -> None:
        launches.mutate('cupy_partition', lambda a: a.partition(kth, axis=axis), self)

    def nonzero(self) -> Any:
        """Return the indices of elements that are not zero; the host waits for their number."""
        return nonzero(self)

    def compress(self, condition: Any, axis: int | None = None, out: Any = None) -> Any:
        """Return slices where ``condition`` holds; the host waits for their number."""
        if launches.as_array(condition) is None:
            condition = array(condition, dtype=int)
        return self.take(nonzero(condition)[0], axis, out)

    # -- calculation --------------------------------------------------------------------------------------------

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        if min is None and max is None:
            raise ValueError('array_clip: must set either max or min')
        ends = [_bound(self.dtype, one, end) for one, end in ((min, 'min'), (max, 'max'))]
        if any(hasattr(one, '__cupy_override_elementwise_kernel__') for one in ends):
            return _CLIP(self, *ends)
        return launches.launch('cupy_clip', np.clip, (self, *ends), out=out, elementwise=True)

    def dot(self, b: Any, out: Any = None) -> Any:
        return runtime_calls.cupy.dot(self, b, out)

    def conj(self) -> Any:
        return TABLE['conjugate'](self) if self.dtype.kind == 'c' else self

    conjugate = conj

    def _scatter_op(self, slices: Any, value: Any, op: str) -> None:
        scatter(self, slices, value, op)

    # -- operators and NumPy's protocols ----------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.get('out', ())
        if len(out) == 1:
            kwargs['out'] = out[0]
        function = getattr(cupy, ufunc.__name__, None)
        if method != '__call__':
            function = getattr(function, method, None)
        if function is None or not all(map(_is_operand, (*inputs, *out))):
            return NotImplemented
        if ufunc.__name__ in _COMPARISONS.values():
            inputs = tuple(x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs)
        return function(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            module = functools.reduce(getattr, func.__module__.split('.')[1:], cupy)
            function = getattr(module, func.__name__)
        except AttributeError:
            return NotImplemented
        if function is func or not all(issubclass(t, (Layout.array_class, np.ndarray)) for t in types):
            return NotImplemented
        return function(*args, **kwargs)

    __eq__, __ne__ = _operator('equal'), _operator('not_equal')
    __hash__ = None  # type: ignore[assignment]

    # -- Python ---------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        if self.size > 1:
            message = 'The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()'
            raise ValueError(message)
        return self.size == 1 and bool(self.get())

    def __copy__(self, memo: Any = None) -> Any:
        return self.copy()

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[Any, ...]:
        return runtime_calls.cupy.array, (self.get(order='A'),)

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise TypeError('iteration over a 0-d array')
        return (self[i] for i in range(self.shape[0]))

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError('len() of unsized object')
        return self.shape[0]

    def __getitem__(self, slices: Any) -> Any:
        seen, operands, where, shape = _located(self, slices)
        if not operands:
            return seen
        name, shapes = ('cupy_take', None) if shape is None else ('cupy_getitem_mask', [shape])
        return launches.launch(name, lambda a, *given: a[where(a, *given)], (seen, *operands), shapes=shapes)

    def __setitem__(self, slices: Any, value: Any) -> None:
        scatter(self, slices, value, 'update')

    def __class_getitem__(cls, item: Any) -> Any:
        return GenericAlias(ndarray, item)


def _of_host(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: function(self.get(), *args)


_ABSENT = 'byteswap cstruct dump dumps flat mdspan reduced_view scatter_add scatter_max scatter_min toDlpack tofile'
for _name in _ABSENT.split():
    setattr(_ndarray_base, _name, property(functools.partial(_not_simulated, _name)))
for _function in (int, float, complex, bytes, repr, str, format):
    setattr(_ndarray_base, f'__{_function.__name__}__', _of_host(_function))


#: Python's operators, by CuPy's functions.
_BINARY = {
    'add': 'add', 'sub': 'subtract', 'mul': 'multiply', 'matmul': 'matmul', 'truediv': 'true_divide',
    'floordiv': 'floor_divide', 'mod': 'remainder', 'divmod': 'divmod', 'pow': 'power', 'lshift': 'left_shift',
    'rshift': 'right_shift', 'and': 'bitwise_and', 'or': 'bitwise_or', 'xor': 'bitwise_xor',
}  # fmt: skip
_COMPARISONS = {
    'lt': 'less', 'le': 'less_equal', 'gt': 'greater', 'ge': 'greater_equal', 'eq': 'equal', 'ne': 'not_equal',
}  # fmt: skip
_UNARY = {'pos': 'positive', 'neg': 'negative', 'abs': 'absolute', 'invert': 'invert'}

for _short, _name in {**_BINARY, **_COMPARISONS}.items():
    setattr(_ndarray_base, f'__{_short}__', _operator(_name))
for _short, _name in _BINARY.items():
    setattr(_ndarray_base, f'__r{_short}__', _reflected(_name))
    if _short not in ('divmod', 'matmul'):
        setattr(_ndarray_base, f'__i{_short}__', _in_place(_name))
for _short, _name in _UNARY.items():
    setattr(_ndarray_base, f'__{_short}__', _in_place(_name))


class ndarray(_ndarray_base):
    """An array on the device."""

    __module__ = 'cupy'
    __slots__ = ()

    def __new__(cls, *args: Any, _obj: Any = None, _no_init: bool = False, **kwargs: Any) -> Any:
        x = super().__new__(cls, *args, **kwargs)
        if _no_init:
            return x
        x._init(*args, **kwargs)
        if cls is not ndarray:
            x.__array_finalize__(_obj)
        return x

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make an array of ``shape``, ``dtype``, ``memptr``, ``strides`` and ``order``."""

    def __array_finalize__(self, obj: Any) -> None:
        pass


Layout.array_class = ndarray


_UPDATES: dict[str, Callable[..., None]] = {
    'add': np.add.at, 'sub': np.subtract.at, 'max': np.maximum.at, 'min': np.minimum.at, 'and': np.bitwise_and.at,
    'or': np.bitwise_or.at, 'xor': np.bitwise_xor.at,
}  # fmt: skip


def _prepare(key: Any) -> list[Any]:
    """Return the key as a list whose lists and host arrays have been uploaded."""
    prepared = []
    for k in key if isinstance(key, tuple) else (key,):
        plain = k is None or k is Ellipsis or isinstance(k, (slice, Layout))
        if plain or (np.isscalar(k) and not isinstance(k, (bool, np.bool_))):
            prepared.append(k)
            continue
        try:
            found = array(k, None, None)
        except ValueError:
            raise IndexError(
                'only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or '
                'boolean arrays are valid indices'
            ) from None
        if isinstance(k, (list, tuple)) and found.size == 0:
            found = found.astype(np.int32)
        prepared.append(found)
    return prepared


def _split(array: Any, key: Any) -> tuple[Any, list[tuple[int, Any]]]:
    """Return the view that the key's scalars and slices make, and its arrays with the axis of the view they index."""
    prepared = _prepare(key)
    if not any(k is Ellipsis for k in prepared):
        prepared.append(Ellipsis)
    used = sum(map(_axes_used, prepared))
    basic: list[Any] = []
    arrays = []
    axis = 0
    for k in prepared:
        if isinstance(k, Layout):
            arrays.append((axis, k))
            basic.extend([slice(None)] * _axes_used(k))
            axis += _axes_used(k)
            continue
        basic.append(k)
        if k is Ellipsis:
            axis += array.ndim - used
        elif k is None or isinstance(k, slice):
            axis += 1
    return launches.view(operator.getitem, array, tuple(basic)), arrays  # refuses too many of them


def _axes_used(k: Any) -> int:
    if k is None or k is Ellipsis:
        return 0
    if not isinstance(k, Layout) or k.dtype.kind in 'iu':
        return 1
    if k.dtype.kind != 'b':
        raise IndexError(f'arrays used as indices must be of integer or boolean type. (actual: {k.dtype.type})')
    return int(k.ndim)


def _check_mask(array: Any, mask: Any, axis: int) -> None:
    """Let NumPy refuse a mask of another shape."""
    _ = np.broadcast_to(False, array.shape)[(slice(None),) * axis + (np.zeros(mask.shape, bool),)]


def count_true(mask: Any) -> int:
    """Return how many elements are not zero; the host waits for it."""
    return int(launches.launch('cupy_count_nonzero', np.count_nonzero, (mask,)))


def nonzero(array: Any) -> Any:
    """Return the indices of what is not zero; the host waits for their number."""
    if array.ndim == 0:
        raise ValueError('Calling nonzero on 0d arrays is not allowed. Use cp.atleast_1d(scalar).nonzero() instead.')
    n = count_true(array)
    return launches.launch('cupy_nonzero', np.nonzero, (array,), shapes=[(n,)] * array.ndim)


def _integers(array: Any, arrays: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Return the arrays of a key with every mask replaced by the indices that it stands for."""
    found = []
    for axis, k in arrays:
        if k.dtype.kind != 'b':
            found.append((axis, k))
            continue
        _check_mask(array, k, axis)
        found.extend((axis + i, index) for i, index in enumerate(nonzero(k)))
    return found


def _wrapped(shape: Shape, axes: list[int], indices: tuple[Any, ...]) -> tuple[Any, ...]:
    key: list[Any] = [slice(None)] * len(shape)
    for axis, index in zip(axes, indices):
        key[axis] = index % shape[axis] if shape[axis] else index
    return tuple(key)


# -- indexing ---------------------------------------------------------------------------------------------------
# Indices that are out of bounds wrap around; scalars in a key take views before arrays in it gather; a mask's length is
# read by the host first, since it decides the result's shape.


def _located(array: Any, key: Any) -> tuple[Any, list[Any], Callable[..., Any], Shape | None]:
    """Where a key leads.

    Returns the view that its scalars and slices make, its arrays, what makes NumPy's key for the view of their values,
    and the shape of what is there if a mask decides it.
    """
    seen, arrays = _split(array, key)
    if len(arrays) == 1 and arrays[0][1].dtype.kind == 'b':
        axis, mask = arrays[0]
        _check_mask(seen, mask, axis)
        shape = (*seen.shape[:axis], count_true(mask), *seen.shape[axis + mask.ndim :])
        return seen, [mask], lambda _a, m: (*(slice(None),) * axis, m), shape
    indexed = _integers(seen, arrays)
    axes = [axis for axis, _ in indexed]
    return seen, [one for _, one in indexed], lambda a, *indices: _wrapped(a.shape, axes, indices), None


def scatter(target: Any, key: Any, value: Any, op: str) -> None:
    """Combine ``value`` into ``target[key]``: 'update', 'add', 'max' and so on."""
    if op != 'update' and op not in _UPDATES:
        raise ValueError('this op is not supported')
    seen, operands, where, shape = _located(target, key)
    if not operands:
        _assign(seen, value, op)
        return
    if shape is not None and 0 in shape:
        return
    if launches.as_array(value) is None:
        value = array(value, dtype=seen.dtype)
    if shape is not None:
        np.broadcast_shapes(value.shape, shape)

    def write(a: NDArray[Any], v: NDArray[Any], *given: Any) -> None:
        place = where(a, *given)
        if shape is not None:
            v = _stretched(v, a[place].shape)
        if op == 'update':
            a[place] = v
        else:
            _UPDATES[op](a, place, v)

    name = f'cupy_scatter_{op}' + ('' if shape is None else '_mask')
    launches.mutate(name, write, seen, (value, *operands))


def _stretched(v: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """Values for places of a shape: a kernel looks at a mask anew, whatever its length was when the host asked."""
    lengths = ((1,) * v.ndim + shape)[len(shape) :]
    wanted = tuple(n if n == 1 else length for n, length in zip(v.shape, lengths))
    return v if wanted == v.shape else np.resize(v, wanted)


def _assign(seen: Any, value: Any, op: str) -> None:
    given = launches.as_array(value)
    if op == 'update' and given is None:
        seen.fill(value)
        return
    if op == 'update' and given._slot() == seen._slot():
        return
    if op == 'update' and launches.copied_across(seen, given):
        return

    def write(a: NDArray[Any], v: Any) -> None:
        if op == 'update':
            np.copyto(a, _squeezed(v, a.ndim), casting='unsafe')
        else:
            _UPDATES[op](a, Ellipsis, v)

    launches.mutate('cupy_copy' if op == 'update' else f'cupy_{op}', write, seen, (value,), elementwise=op == 'update')


def _squeezed(v: NDArray[Any], ndim: int) -> NDArray[Any]:
    while v.ndim > ndim and v.shape[0] == 1:
        v = v[0]
    return v
