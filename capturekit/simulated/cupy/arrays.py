"""``cupy.ndarray``: operators, methods and transfers on top of :mod:`layout` and :mod:`launches`.

``ndarray`` is a Python class over ``_ndarray_base``, which has all the methods, as in CuPy: what is set on
``cupy.ndarray`` shadows the inherited one and is found by everything that reads an array, since all reads go through
``self.get()``.
"""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Any

import numpy as np

from capturekit.simulated.cupy.signatures import declared, signature_like
from capturekit.simulated.cupy.surface import METHODS
from capturekit.simulated.unchecked_functions import UNCHECKED

from . import conversions, indexing, launches, runtime, runtime_calls, streams, syncdetect
from .layout import Layout, Shape, check_dtype
from .runtime_calls import cupy
from .ufuncs import TABLE, ufunc

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
    return cupy.matmul(a, b)


def _is_operand(x: Any) -> bool:
    return (
        isinstance(x, (*_SCALARS, Layout, np.ndarray))
        or hasattr(x, '__cuda_array_interface__')
        or hasattr(x, '__cupy_get_ndarray__')
    )


_CLIP = ufunc('clip', 3, 1, np.clip)


def _bound(dtype: Any, given: Any, end: str) -> Any:
    """What CuPy gives its kernel where one end of ``clip`` is not given."""
    if given is not None or dtype.kind not in 'fiu':
        return given
    return dtype.type({'min': '-inf', 'max': 'inf'}[end] if dtype.kind == 'f' else getattr(np.iinfo(dtype), end))


def _inside(indices: Any, size: int) -> Any:
    return (indices >= -size) & (indices < size)


def _read_choices(a: Any, choices: Any, out: Any = None, mode: str = 'raise') -> None:
    """What ``choose`` reads."""
    del out
    count = choices.shape[0]
    if mode == 'raise' and not bool(((a >= 0) & (a < count)).all()):
        raise ValueError('invalid entry in choice array')


def _read_counts(_a: Any, repeats: Any, axis: int | None = None) -> None:
    """What ``repeat`` reads: of counts for each element, which are uploaded if they are a list."""
    del axis
    given = isinstance(repeats, (list, tuple)) and len(repeats) > 1
    counts = conversions.array(repeats, dtype=int) if given else launches.as_array(repeats)
    if counts is not None:
        int(counts.sum())
        if int(counts.min()) < 0:
            raise ValueError("all elements of 'repeats' should not be negative")


def _not_simulated(name: str, instead: str = '') -> property:
    def refuse(self: Any) -> Any:
        raise NotImplementedError(f'cupy.ndarray.{name} is not simulated{instead}')

    return property(refuse)


class _ndarray_base(Layout):
    """Everything that an array on the device can do."""

    __slots__ = ()
    __array_priority__ = 100

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError('Must not be directly instantiated')

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
        return conversions.to_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return conversions.device_of(self)

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

    @property
    def T(self) -> Any:
        return self if self.ndim < 2 else launches.view(np.transpose, self)

    @property
    def mT(self) -> Any:
        if self.ndim < 2:
            raise ValueError('matrix transpose with ndim < 2 is undefined')
        return launches.view(np.swapaxes, self, -1, -2)

    flat = _not_simulated('flat', '; use ravel()')
    cstruct = _not_simulated('cstruct')

    def mdspan(self, *, index_type: Any, allow_unsafe: bool = False) -> Any:
        raise NotImplementedError('cupy.ndarray.mdspan is not simulated')

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
        """Return the elements in another shape: a view where that can be."""
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
        """Return the elements in one dimension: a view where that can be."""
        found = launches.view(np.ravel, self, order=order)
        return conversions.ascontiguous(found)

    def view(self, dtype: Any = None, array_class: type | None = None) -> Any:
        if isinstance(dtype, type) and issubclass(dtype, Layout):
            dtype, array_class = None, dtype
        found = self if dtype is None else launches.view(lambda a: a.view(np.dtype(dtype)), self)
        return found._view(array_class or type(self), found.data.ptr, found._shape, found._strides, found.dtype)

    def reduced_view(self, dtype: Any = None) -> Any:
        """Return a view with as few axes as it can have."""
        return self.ravel() if self._c_contiguous else self

    # -- conversion ---------------------------------------------------------------------------------------------

    def get(self, stream: Any = None, order: str = 'C', out: Any = None, blocking: bool = True) -> Any:
        """Return a copy on the host. Refused while the stream is being captured."""
        if stream is None:
            stream = streams.get_current_stream()
        if out is None and self.size == 0:
            return np.ndarray(self._shape, dtype=self.dtype)
        order = conversions.order_for(self, order, out)
        source = self
        if not (self._c_contiguous if order == 'C' else self._f_contiguous):
            with stream:
                source = conversions.in_order(self, order)
        host = np.empty(self._shape, self.dtype, order) if out is None else out  # type: ignore[call-overload]
        syncdetect._declare_synchronize()
        source.data.copy_to_host_async(host.ctypes.data, source.nbytes, stream)
        if blocking:
            stream.synchronize()
        return host

    def set(self, arr: Any, stream: Any = None) -> None:
        """Copy an array of the host, of the same shape and dtype, into this one."""
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

    def tobytes(self, order: str = 'C') -> bytes:
        found: bytes = self.get().tobytes(order)
        return found

    def tofile(self, fid: Any, sep: str = '', format: str = '%s') -> None:
        self.get().tofile(fid, sep, format)

    def dump(self, file: Any) -> None:
        pickle.dump(self, file, -1)

    def dumps(self) -> bytes:
        return pickle.dumps(self, -1)

    def toDlpack(self) -> Any:
        """(Deprecated) Return a DLPack capsule."""
        return self.__dlpack__()

    def _astype(
        self, dtype: Any, order: str | None = 'K', casting: Any = None, subok: Any = None, copy: bool | None = True
    ) -> Any:
        if casting is not None or subok is not None:
            raise TypeError(f'{"subok" if casting is None else "casting"} is not supported yet')
        order = (order or 'K').upper()
        found = check_dtype(dtype)
        if found == self.dtype and not copy and conversions.fits(self, order):
            return self
        if copy is False:
            raise ValueError('Unable to avoid copy while creating an array as requested.')
        order = conversions.resolve(self, order)
        made = ndarray(self.shape, found, None, conversions.strides_like(self, found, order), 'C')
        launches.mutate('cupy_copy', conversions.assign, made, (self,), rehearse=False, elementwise=True)
        return made

    def astype(self, dtype: Any, order: str = 'K', casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        """Return a copy of another dtype; ``copy=False`` returns the array itself where it can."""
        return self._astype(dtype, order, casting, subok, True if copy else None)

    def copy(self, order: str = 'C') -> Any:
        """Return a copy, on the current device."""
        if self.size and self.data.device_id != runtime.getDevice():
            return launches.copy_here(self, order)
        return self.astype(self.dtype, order=order)

    def byteswap(self, inplace: bool = False) -> Any:
        found = launches.launch('cupy_byteswap', lambda a: a.byteswap(), (self,))
        if not inplace:
            return found
        self[...] = found
        return self

    def fill(self, value: Any) -> None:
        given = launches.as_array(value)
        if given is not None:
            if given.shape != ():
                raise ValueError('non-scalar cupy.ndarray cannot be used for fill')
            launches.mutate('cupy_fill', conversions.assign, self, (given,), rehearse=False)
            return
        scalar = np.asarray(value, dtype=self.dtype)
        if scalar.shape != ():
            raise ValueError('non-scalar numpy.ndarray cannot be used for fill')
        if self.dtype.kind != 'V' and scalar == 0 and self._c_contiguous:
            self.data.memset_async(0, self.nbytes)
        else:
            launches.mutate('cupy_fill', conversions.assign, self, (scalar[()],), rehearse=False, elementwise=True)

    # -- selection ----------------------------------------------------------------------------------------------

    def take(self, indices: Any, axis: Any = None, out: Any = None) -> Any:
        """Return the elements at ``indices``; those out of bounds wrap around."""
        if launches.as_array(indices) is None and not np.isscalar(indices):
            indices = conversions.array(indices, dtype=int)

        def wrapping(a: Any, i: Any, out: Any = None) -> Any:
            length = a.size if axis is None else a.shape[axis]
            # Reduced first: NumPy wraps one length at a time, and indices that nothing has computed yet are anything.
            return np.take(a, np.asarray(i) % length if length else i, axis, out, 'wrap')

        return launches.launch('cupy_take', wrapping, (self, indices), out=out)

    def put(self, indices: Any, values: Any, mode: str = 'wrap') -> None:
        """Set the elements at flat ``indices``."""
        if mode not in ('raise', 'wrap', 'clip'):
            raise ValueError('clipmode not understood')
        given = [
            v if launches.as_array(v) is not None else conversions.array(v, dtype=d)
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
        _read_counts(self, repeats, axis)
        if launches.as_array(repeats) is not None:
            repeats = repeats.get().tolist()
        return launches.launch('cupy_repeat', np.repeat, (self, repeats, axis))

    def choose(self, choices: Any, out: Any = None, mode: str = 'raise') -> Any:
        """Return elements of ``choices`` picked by this array."""
        _read_choices(self, choices, out, mode)
        return launches.launch('cupy_choose', np.choose, (self, choices), {'mode': mode}, out=out)

    @staticmethod
    def _check_kind_sort(kind: Any) -> None:
        if kind is not None and kind != 'stable':
            raise ValueError("kind can only be None or 'stable'")

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        self._check_kind_sort(kind)
        launches.mutate('cupy_sort', lambda a: a.sort(axis=axis, kind='stable'), self)

    def argsort(self, axis: int | None = -1, kind: Any = None) -> Any:
        self._check_kind_sort(kind)
        return launches.launch('cupy_argsort', np.argsort, (self,), {'axis': axis, 'kind': 'stable'})

    def partition(self, kth: Any, axis: int = -1) -> None:
        """Partition in place: here, sort."""
        launches.mutate('cupy_partition', lambda a: a.partition(kth, axis=axis), self)

    def argpartition(self, kth: Any, axis: int | None = -1) -> Any:
        return launches.launch('cupy_argpartition', np.argpartition, (self, kth, axis))

    def nonzero(self) -> tuple[Any, ...]:
        """Return the indices of elements that are not zero; the host waits for their number."""
        return indexing.nonzero(self)

    def compress(self, condition: Any, axis: int | None = None, out: Any = None) -> Any:
        """Return slices where ``condition`` holds; the host waits for their number."""
        if np.isscalar(condition):
            raise ValueError('condition must be a 1-d array')
        if launches.as_array(condition) is None:
            condition = conversions.array(condition, dtype=int)
        return self.take(indexing.nonzero(condition)[0], axis, out)

    # -- calculation --------------------------------------------------------------------------------------------

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        if min is None and max is None:
            raise ValueError('array_clip: must set either max or min')
        ends = [_bound(self.dtype, one, end) for one, end in ((min, 'min'), (max, 'max'))]
        if any(hasattr(one, '__cupy_override_elementwise_kernel__') for one in ends):
            return _CLIP(self, *ends)
        return launches.launch('cupy_clip', np.clip, (self, *ends), out=out, elementwise=True)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
        return launches.view(np.diagonal, self, offset, axis1, axis2).sum(-1, dtype, out, False)

    def dot(self, b: Any, out: Any = None) -> Any:
        return runtime_calls.cupy.dot(self, b, out)

    def conj(self) -> Any:
        return TABLE['conjugate'](self) if self.dtype.kind == 'c' else self

    conjugate = conj

    def scatter_add(self, slices: Any, value: Any) -> None:
        """(Deprecated) Use ``cupy.add.at``."""
        self._deprecated_scatter(slices, value, 'add', 'add')

    def scatter_max(self, slices: Any, value: Any) -> None:
        """(Deprecated) Use ``cupy.maximum.at``."""
        self._deprecated_scatter(slices, value, 'max', 'maximum')

    def scatter_min(self, slices: Any, value: Any) -> None:
        """(Deprecated) Use ``cupy.minimum.at``."""
        self._deprecated_scatter(slices, value, 'min', 'minimum')

    def _deprecated_scatter(self, slices: Any, value: Any, op: str, instead: str) -> None:
        warnings.warn(
            f'`ndarray.scatter_{op}` is deprecated. Please use `cupy.{instead}.at` instead.',
            DeprecationWarning,
            stacklevel=3,
        )
        self._scatter_op(slices, value, op)

    def _scatter_op(self, slices: Any, value: Any, op: str) -> None:
        indexing.scatter(self, slices, value, op)

    # -- operators and NumPy's protocols ----------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        operands = inputs
        if 'out' in kwargs:
            out = kwargs['out']
            if len(out) != 1:
                raise ValueError("The 'out' parameter must have exactly one array value")
            operands += out
            kwargs['out'] = out[0]
        function = getattr(cupy, ufunc.__name__, None)
        if method != '__call__':
            function = getattr(function, method, None)
        if function is None or not all(_is_operand(x) for x in operands):
            return NotImplemented
        if ufunc.__name__ in _COMPARISONS:
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

    # -- Python ---------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        if self.size == 0:
            warnings.warn(
                'The truth value of an empty array is ambiguous. Returning '
                'False, but in future this will result in an error. Use '
                '`array.size > 0` to check that an array is not empty.',
                DeprecationWarning,
                stacklevel=2,
            )
            return False
        if self.size == 1:
            return bool(self.get())
        raise ValueError('The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()')

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()

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
        return indexing.getitem(self, slices)

    def __setitem__(self, slices: Any, value: Any) -> None:
        indexing.setitem(self, slices, value)

    def __class_getitem__(cls, item: Any) -> Any:
        return GenericAlias(ndarray, item)


def _of_host(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: function(self.get(), *args)


def _view_by(name: str) -> Callable[..., Any]:
    function = getattr(np, name)
    return declared(
        name,
        signature_like(f'ndarray.{name}', function),
        lambda args, kwargs: launches.view(function, *args, **kwargs),
    )


for _name in ('diagonal', 'squeeze', 'swapaxes'):
    setattr(_ndarray_base, _name, _view_by(_name))
for _function in (int, float, complex, bytes, repr, str, format):
    setattr(_ndarray_base, f'__{_function.__name__}__', _of_host(_function))


#: Python's operators, by CuPy's functions.
_BINARY = {
    'add': 'add', 'sub': 'subtract', 'mul': 'multiply', 'matmul': 'matmul', 'truediv': 'true_divide',
    'floordiv': 'floor_divide', 'mod': 'remainder', 'divmod': 'divmod', 'pow': 'power', 'lshift': 'left_shift',
    'rshift': 'right_shift', 'and': 'bitwise_and', 'or': 'bitwise_or', 'xor': 'bitwise_xor',
}  # fmt: skip
_UNARY = {'neg': 'negative', 'abs': 'absolute', 'invert': 'invert'}

for _short, _name in _BINARY.items():
    setattr(_ndarray_base, f'__{_short}__', _binary(_name))
    setattr(_ndarray_base, f'__r{_short}__', _reflected(_name))
    if _short not in ('divmod', 'matmul'):
        setattr(_ndarray_base, f'__i{_short}__', _in_place(_name))
for _short, _name in _UNARY.items():
    setattr(_ndarray_base, f'__{_short}__', _unary(_name))


def _method(name: str) -> Callable[..., Any]:
    own = getattr(np, name)
    function = UNCHECKED.get(name, own)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = kwargs.pop('out', None)
        dtype = kwargs.pop('dtype', None) if name in ('argmax', 'argmin') else None  # NumPy's have none
        given = {key: value for key, value in kwargs.items() if value is not None and value is not False}
        found = launches.launch(f'cupy_{name}', function, args, given, out=out)
        return found if dtype is None else found.astype(dtype, copy=False)

    return declared(name, signature_like(f'ndarray.{name}', own), call)


for _name in METHODS:
    setattr(_ndarray_base, _name, _method(_name))


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

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        return super().view(dtype=dtype, array_class=type)


Layout.array_class = ndarray
