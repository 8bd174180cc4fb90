"""Where an array's elements lie: shape, strides, dtype and a pointer, with no operation on them yet.

New arrays hold poison while a capture is open: nothing has been computed, and it must show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.cupy.signatures import Elements

from . import devices, memory, runtime, runtime_memory
from .runtime_calls import get_current_stream_ptr

Shape = tuple[int, ...]

_SUPPORTED = frozenset('?bhilqBHILQefdFD')
_MAX_NDIM = 32


def _extent(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Return the first and one past the last byte that elements lie in, relative to the first element."""
    low = high = 0
    for n, s in zip(shape, strides):
        if s < 0:
            low += (n - 1) * s
        else:
            high += (n - 1) * s
    return low, high + itemsize


def _contiguous_strides(shape: Shape, itemsize: int, c_order: bool) -> Shape:
    if 0 in shape:
        return (0,) * len(shape)  # as CuPy has it, unlike NumPy
    strides, step = [], itemsize
    for n in reversed(shape) if c_order else shape:
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides)) if c_order else tuple(strides)


def _is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    step = itemsize
    for n, s in zip(reversed(shape), reversed(strides)):
        if n == 0:
            return True
        if n != 1:
            if s != step:
                return False
            step *= n
    return True


class Slot(Elements):
    """Elements at an address: all that a recorded piece of work knows of its operands.

    It owns nothing. Once the array is gone its block may belong to someone else, and the work will read and write it
    all the same, as a kernel in a CUDA graph does.
    """

    def view(self) -> NDArray[Any]:
        """Return the elements as they are now, sharing the device's bytes."""
        if 0 in self.shape:
            return np.lib.stride_tricks.as_strided(np.empty(0, self.dtype), self.shape, self.strides)
        low, high = _extent(self.shape, self.strides, self.dtype.itemsize)
        block, offset = runtime_memory.device_block(self.ptr + low, high - low)
        found: NDArray[Any] = np.ndarray(self.shape, self.dtype, block, offset - low, self.strides)
        return found


def is_recording() -> bool:
    """Whether the current stream is being captured, as far as it will say."""
    try:
        return runtime.streamIsCapturing(get_current_stream_ptr())
    except RuntimeError:
        return False


def poison(view: NDArray[Any]) -> None:
    """Fill with a visible constant: NaN, the smallest signed int, the largest unsigned int, True."""
    kind = view.dtype.kind
    if kind == 'f':
        view[...] = np.nan
    elif kind == 'c':
        view[...] = complex(np.nan, np.nan)
    elif kind == 'i':
        view[...] = np.iinfo(view.dtype).min
    elif kind == 'u':
        view[...] = np.iinfo(view.dtype).max
    elif kind == 'b':
        view[...] = True
    else:
        view[...] = np.frombuffer(b'\xff' * view.dtype.itemsize, view.dtype)[0]


class Flags:
    """Contiguity and ownership."""

    def __init__(self, c_contiguous: bool, f_contiguous: bool, owndata: bool) -> None:
        self._flags = {'C_CONTIGUOUS': c_contiguous, 'F_CONTIGUOUS': f_contiguous, 'OWNDATA': owndata}

    c_contiguous = property(lambda self: self._flags['C_CONTIGUOUS'])
    f_contiguous = property(lambda self: self._flags['F_CONTIGUOUS'])
    owndata = property(lambda self: self._flags['OWNDATA'])
    fnc = property(lambda self: self.f_contiguous and not self.c_contiguous)
    forc = property(lambda self: self.f_contiguous or self.c_contiguous)

    def __getitem__(self, name: str) -> bool:
        if name not in self._flags:
            raise KeyError(f'{name} is not defined for cupy.ndarray.flags')
        return self._flags[name]

    def __repr__(self) -> str:
        return '\n'.join(f'  {name} : {value}' for name, value in self._flags.items())


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """Return ``dtype`` as NumPy's, in native byte order; raises ValueError where CuPy has no such elements."""
    found: np.dtype[Any] = np.dtype(dtype)
    if found.char not in _SUPPORTED and found.fields is None:
        raise ValueError(f'Unsupported dtype {found}')
    if found.isnative:
        return found  # NumPy has one object for each, and arrays of CuPy have that
    native: np.dtype[Any] = found.newbyteorder('=')
    return native


class Layout:
    """An array without operations; :class:`arrays._ndarray_base` adds them."""

    __slots__ = ('__weakref__', '_c_contiguous', '_f_contiguous', '_shape', '_strides', 'base', 'data', 'dtype', 'size')

    #: The class of new arrays: ``cupy.ndarray``, which is defined higher up and sets itself here.
    array_class: ClassVar[Any] = None

    base: Any
    data: Any
    dtype: np.dtype[Any]
    size: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cls)
        made.data = None  # so it stays if the allocation is refused
        return made

    def _init(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: memory.MemoryPointer | None = None,
        strides: Sequence[int] | None = None,
        order: str | None = 'C',
    ) -> None:
        shape = tuple(int(n) for n in shape) if isinstance(shape, Sequence) else (int(shape),)
        if len(shape) > _MAX_NDIM:
            raise ValueError(f'maximum supported dimension for an ndarray is {_MAX_NDIM}, found {len(shape)}')
        if min(shape, default=0) < 0:
            raise ValueError('Negative dimensions are not allowed')
        found = check_dtype(dtype) if memptr is None else np.dtype(dtype)
        if strides is None:
            strides = _contiguous_strides(shape, found.itemsize, (order or 'C').upper() != 'F')
        self.base = None
        self._lay_out(shape, tuple(int(s) for s in strides), found)
        if memptr is None:
            memptr = memory.alloc(_extent(shape, self._strides, found.itemsize)[1] if self.size else 0)
            self.data = memptr
            if self.size and is_recording() and runtime_memory.first_recorded(memptr.ptr, self.nbytes):
                poison(self._slot().view())
        else:
            self.data = memptr

    @classmethod
    def for_result(cls, shape: Any, dtype: Any, template: Any = None) -> Any:
        """Return a new array for a result, made as CuPy's compiled code makes one: past ``__init__``.

        ``template``: an input of a class that is derived from ``ndarray``; the result is of this class, too.
        """
        found: Any = cls.array_class.__new__(cls.array_class if template is None else type(template), _no_init=True)
        found._init(shape, dtype)
        if template is not None:
            found.__array_finalize__(template)
        return found

    def _lay_out(self, shape: Shape, strides: Shape, dtype: np.dtype[Any]) -> None:
        if len(shape) != len(strides):
            raise ValueError('len(shape) != len(strides)')
        self._shape: Shape = shape
        self._strides: Shape = strides
        self.dtype = dtype
        self.size = int(math.prod(shape))
        self._c_contiguous = self.size == 0 or _is_contiguous(shape, strides, dtype.itemsize)
        self._f_contiguous = self.size == 0 or _is_contiguous(shape[::-1], strides[::-1], dtype.itemsize)

    def _view(self, subtype: type, ptr: int, shape: Shape, strides: Shape, dtype: np.dtype[Any]) -> Any:
        found: Any = Layout.__new__(subtype)
        found.data = memory.MemoryPointer(self.data.mem, ptr - self.data.mem.ptr)
        found.base = self if self.base is None else self.base
        found._lay_out(shape, strides, dtype)
        if subtype is not Layout.array_class:
            found.__array_finalize__(self)
        return found

    def _slot(self) -> Slot:
        return Slot(self.data.ptr, self._shape, self._strides, self.dtype)

    @property
    def flags(self) -> Flags:
        """``c_contiguous``, ``f_contiguous``, ``owndata``; also by index."""
        return Flags(self._c_contiguous, self._f_contiguous, self.base is None)

    @property
    def strides(self) -> Shape:
        return self._strides

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> devices.Device:
        """The device that holds the array."""
        found: devices.Device = self.data.device
        return found
