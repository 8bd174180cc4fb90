"""``cupy.ndarray``: operators, methods and transfers on top of :mod:`layout` and :mod:`launches`.

``ndarray`` is a Python class over ``_ndarray_base``, which has all the methods, as in CuPy: what is set on
``cupy.ndarray`` shadows the inherited one and is found by everything that reads an array, since all reads go through
``self.get()``.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Any

import numpy as np

from capturekit.simulated.cupy.signatures import declared, signature_like

from . import conversions, current, indexing, launches, operators, peers, runtime, streams, syncdetect
from .calculations import Calculations
from .layout import Layout, Shape, check_dtype
from .operators import full


def _not_simulated(name: str, instead: str = '') -> property:
    def refuse(self: Any) -> Any:
        raise NotImplementedError(f'cupy.ndarray.{name} is not simulated{instead}')

    return property(refuse)


class _ndarray_base(Calculations):
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
            'stream': current.get_current_stream_ptr() or current.get_default_stream_ptr(),
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
            return peers.copy_here(self, order)
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
        assert operators.namespace is not None
        return operators.namespace.array, (self.get(order='A'),)

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
