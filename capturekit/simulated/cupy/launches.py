"""How a NumPy function becomes work on a stream.

On a stream that runs, the function is called at once and its results are put into device memory; on a late device it is
called at once for shapes and dtypes alone, and again when its turn comes. On a stream that is being captured only
shapes and dtypes are found out, by calling it on whatever the operands hold now; the results' memory is filled with
poison, and the recorded work calls the function again at each launch, on what the operands hold then. So code that
looks at a result too early, or a graph that misses an edge, shows wrong numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.device.constants import PerformanceWarning
from capturekit.simulated.device.graph_nodes import Given

from . import memory, runtime, runtime_calls
from .runtime_calls import get_current_stream_ptr, is_captured

Shape = tuple[int, ...]

_SUPPORTED = frozenset('?bhilqBHILQefdFD')
_MAX_NDIM = 32


def _extent(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Return the first and one past the last byte that elements lie in, relative to the first element."""
    reach = [(n - 1) * s for n, s in zip(shape, strides)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + itemsize


def _contiguous_strides(shape: Shape, itemsize: int, c_order: bool) -> Shape:
    if 0 in shape:
        return (0,) * len(shape)  # as CuPy has it, unlike NumPy
    lengths = shape[::-1] if c_order else shape
    strides = tuple(itertools.accumulate(lengths[:-1], operator.mul, initial=itemsize))[: len(shape)]
    return strides[::-1] if c_order else strides


@dataclass(frozen=True)
class Slot:
    """Elements at an address, with strides in bytes: all that a recorded piece of work knows of its operands.

    It owns nothing. Once the array is gone its block may belong to someone else, and the work will read and write it
    all the same, as a kernel in a CUDA graph does.
    """

    ptr: int
    shape: Shape
    strides: Shape
    dtype: np.dtype[Any]

    def view(self) -> Any:
        """Return the elements as they are now, sharing the device's bytes."""
        if 0 in self.shape:
            return np.lib.stride_tricks.as_strided(np.empty(0, self.dtype), self.shape, self.strides)
        low, high = _extent(self.shape, self.strides, self.dtype.itemsize)
        block, offset = runtime.device_block(self.ptr + low, high - low)
        return np.ndarray(self.shape, self.dtype, block, offset - low, self.strides)


def poison(view: NDArray[Any]) -> None:
    """Fill with a visible constant: NaN, the smallest signed int, the largest unsigned int, True."""
    kind = view.dtype.kind
    if kind in 'iu':
        limits = np.iinfo(view.dtype)
        view[...] = limits.min if kind == 'i' else limits.max
    else:
        view[...] = {'f': np.nan, 'c': complex(np.nan, np.nan), 'b': True}[kind]


@dataclass(eq=False)
class Flags:
    """Contiguity and ownership."""

    c_contiguous: bool
    f_contiguous: bool
    owndata: bool

    fnc = property(lambda self: self.f_contiguous and not self.c_contiguous)
    forc = property(lambda self: self.f_contiguous or self.c_contiguous)

    def __getitem__(self, name: str) -> bool:
        if name not in ('C_CONTIGUOUS', 'F_CONTIGUOUS', 'OWNDATA'):
            raise KeyError(f'{name} is not defined for cupy.ndarray.flags')
        return bool(getattr(self, name.lower()))

    def __repr__(self) -> str:
        return '\n'.join(f'  {name.upper()} : {value}' for name, value in vars(self).items())


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """Return ``dtype`` as NumPy's, in native byte order; raises ValueError where CuPy has no such elements."""
    found: np.dtype[Any] = np.dtype(dtype)
    if found.fields is not None:
        raise NotImplementedError(f'the simulated CuPy has no arrays of records: {found}')
    if found.char not in _SUPPORTED:
        raise ValueError(f'Unsupported dtype {found}')
    if found.isnative:
        return found  # NumPy has one object for each, and arrays of CuPy have that
    return found.newbyteorder('=')


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
        self.data = memptr
        if memptr is None:
            self.data = memory.alloc(_extent(shape, self._strides, found.itemsize)[1] if self.size else 0)
            if (
                self.size
                and is_captured(get_current_stream_ptr())
                and runtime.first_recorded(self.data.ptr, self.nbytes)
            ):
                poison(self._slot().view())

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
        self._shape: Shape = shape
        self._strides: Shape = strides
        self.dtype = dtype
        self.size = int(math.prod(shape))
        flags = np.lib.stride_tricks.as_strided(np.empty(0, dtype), shape, strides).flags
        self._c_contiguous, self._f_contiguous = flags.c_contiguous, flags.f_contiguous

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

    flags = property(lambda self: Flags(self._c_contiguous, self._f_contiguous, self.base is None))
    strides = property(lambda self: self._strides)
    ndim = property(lambda self: len(self._shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    device = property(lambda self: self.data.device)


#: Numbers of the host, which kernels take as they are.
SCALARS = (bool, int, float, complex, np.generic)


def from_cuda_array_interface(owner: Any) -> Any:
    """Return an array over another library's device memory; waits for the stream that it names, as CuPy does."""
    description = owner.__cuda_array_interface__
    if description.get('mask') is not None:
        raise ValueError('CuPy currently does not support masked arrays.')
    dtype = np.dtype(description['typestr'])
    shape, strides, ptr = description['shape'], description.get('strides'), description['data'][0]
    if strides is None:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    else:
        nbytes = max((abs(n * s) for n, s in zip(shape, strides)), default=0)
    # Looked up where programs find them: what is replaced there is honoured, as in CuPy.
    mem = runtime_calls.public['cupy.cuda.memory'].UnownedMemory(
        ptr, nbytes, owner, runtime.getDevice() if nbytes == 0 else -1
    )
    if description.get('stream') is not None and runtime_calls.public['cupy._util'].CUDA_ARRAY_INTERFACE_SYNC:
        runtime.streamSynchronize(description['stream'])
    return Layout.array_class(shape, dtype, memory.MemoryPointer(mem, 0), strides)


def as_array(value: Any) -> Any:
    """Return ``value`` as an array if it is one, or offers device memory; otherwise None."""
    if isinstance(value, Layout):
        return value
    if hasattr(value, '__cuda_array_interface__'):
        return from_cuda_array_interface(value)
    if hasattr(value, '__cupy_get_ndarray__'):
        return value.__cupy_get_ndarray__()
    return None


def array_of(value: Any) -> Any:
    """Return what :func:`as_array` does; raises TypeError for what is no array."""
    found = as_array(value)
    if found is None:
        raise TypeError(f'Unsupported type {type(value)}')
    return found


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return lists, tuples and dictionaries with another value for each one in them."""
    if isinstance(value, (list, tuple)):
        found = [mapped(one, change) for one in value]
        return found if isinstance(value, list) else tuple(found)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """The values in lists and tuples, but for None."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from leaves(one)
    elif value is not None:
        yield value


def lower(value: Any) -> Any:
    """Return ``value`` with every array in it replaced by its :class:`Slot`; host arrays are refused."""
    return mapped(value, _lowered)


def _lowered(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        raise TypeError(f'Unsupported type {type(value)}')
    if isinstance(value, SCALARS) or value is None or isinstance(value, (str, slice, type)):
        return value
    array = as_array(value)
    return value if array is None else _reachable(array)


def lift(value: Any, of: Callable[[Slot], Any] = Slot.view) -> Any:
    """Return ``value`` with every :class:`Slot` replaced by NumPy's view of its elements."""
    return mapped(value, lambda one: of(one) if isinstance(one, Slot) else one)


def quietly(fn: Callable[..., Any], recipe: Any, of: Callable[[Slot], Any] = Slot.view) -> Any:
    """Call a function of NumPy's on views. A GPU raises no floating point warnings."""
    args, kwargs = lift(recipe, of)
    with np.errstate(all='ignore'):
        return fn(*args, **kwargs)


def _try(fn: Callable[..., Any], recipe: Any) -> Any:
    try:
        return quietly(fn, recipe)
    except Exception:
        # Poison as an operand may be refused (an index, say) where the value at launch will not be.
        if not is_captured(get_current_stream_ptr()) and not runtime_calls.is_late():
            raise
    return quietly(fn, recipe, lambda slot: np.ones(slot.shape, slot.dtype))


def _leaves(result: Any) -> Iterator[NDArray[Any]]:
    return map(np.asarray, leaves(result))


def _rebuild(result: Any, arrays: Iterator[Any]) -> Any:
    return mapped(result, lambda one: None if one is None else next(arrays))


def _store(view: NDArray[Any], value: NDArray[Any]) -> None:
    if view.shape != value.shape:
        # A result whose length depends on values: the memory was laid out for the length of that time.
        common = tuple(slice(min(a, b)) for a, b in zip(view.shape, value.shape))
        view, value = view[common], value[common]
    view[...] = value


def _submit(
    name: str,
    recipe: tuple[tuple[Any, ...], dict[str, Any]],
    slots: Sequence[Slot],
    write: Callable[..., None],
    ready: Sequence[NDArray[Any]] | None,
    elementwise: bool = False,
    opaque: bool = False,
) -> None:
    """Give the current stream a kernel of CuPy's, which decides about its grid itself.

    Its arguments are inputs followed by outputs; ``write(outputs, *inputs, **keywords)`` does it on arrays.
    ``ready``: the results, for work that runs at once. ``opaque``: nobody knows which arguments are outputs.
    """
    inputs, kwargs = recipe
    count = len(inputs)
    if runtime_calls.is_late():
        ready = None

    def whole(values: Sequence[Any]) -> None:
        quietly(lambda *a, **k: write(a[count:], *a[:count], **k), (tuple(values), kwargs))

    def work() -> None:
        nonlocal ready
        found, ready = ready, None
        if found is None:
            whole((*inputs, *slots))
        else:
            for slot, value in zip(slots, found):
                _store(slot.view(), value)

    given = Given(
        {'args': (*inputs, *slots), 'grid': None, 'block': None, 'shared': 0},
        lambda args, **_shape: functools.partial(whole, args),
        writes=None if opaque else frozenset(range(count, count + len(slots))),
        beside=kwargs,
        each=whole if elementwise else None,
        whole=whole,
    )
    if runtime_calls.submit(get_current_stream_ptr(), work, name, 'kernel', given):
        ready = None


def _rehearsed(write: Callable[..., None], recipe: Any, slots: Sequence[Slot]) -> list[NDArray[Any]]:
    """What outputs would hold, so that wrong shapes raise at the call and not at the launch."""
    scratch = [np.array(slot.view()) for slot in slots]
    _try(functools.partial(write, scratch), recipe)
    return scratch


def launch(
    name: str,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    out: Any = None,
    shapes: Sequence[Shape] | None = None,
    elementwise: bool = False,
    opaque: bool = False,
) -> Any:
    """Call the pure function ``fn`` on the device and return its results as arrays.

    ``out`` is passed to ``fn`` as a scratch array and then stored. ``shapes`` fixes the results' shapes, for results
    whose length depends on values. ``elementwise``: each element of the results depends on one of each array.
    ``opaque``: nobody knows which of its arguments the kernel writes, as of kernels of libraries; with ``out``.
    """
    recipe = (lower(tuple(args)), lower(dict(kwargs or {})))
    if out is not None:
        return _launch_into(name, fn, recipe, out, elementwise, opaque)
    result = _try(fn, recipe)
    values = list(_leaves(result))
    derived = [a for a in args if isinstance(a, Layout) and type(a) is not Layout.array_class] if elementwise else []
    arrays = [
        Layout.for_result(v.shape if shapes is None else shapes[i], v.dtype, *derived[:1]) for i, v in enumerate(values)
    ]
    slots = [a._slot() for a in arrays]

    def write(outputs: Sequence[NDArray[Any]], /, *args: Any, **kwargs: Any) -> None:
        for output, value in zip(outputs, _leaves(fn(*args, **kwargs))):
            _store(output, value)

    if not all(0 in slot.shape for slot in slots):
        _submit(name, recipe, slots, write, values, elementwise)
    return _rebuild(result, iter(arrays))


def _reachable(array: Any) -> Any:
    check_access(array.data.device_id)
    return array._slot()


def _launch_into(name: str, fn: Callable[..., Any], recipe: Any, out: Any, elementwise: bool, opaque: bool) -> Any:
    several = isinstance(out, tuple)  # what is submitted must not hold the arrays: a kernel does not
    targets = out if several else (out,)
    if not all(isinstance(target, Layout) for target in targets):
        raise TypeError('Output arguments type must be cupy.ndarray')
    slots = [_reachable(target) for target in targets]

    def write(outputs: Sequence[NDArray[Any]], /, *args: Any, **kwargs: Any) -> None:
        scratch = [np.array(one) for one in outputs]
        fn(*args, **kwargs, out=tuple(scratch) if several else scratch[0])
        for output, value in zip(outputs, scratch):
            output[...] = value

    _submit(name, recipe, slots, write, _rehearsed(write, recipe, slots), elementwise, opaque)
    return out


def mutate(
    name: str,
    fn: Callable[..., Any],
    target: Any,
    args: Sequence[Any] = (),
    *,
    rehearse: bool = True,
    elementwise: bool = False,
) -> None:
    """Run ``fn(view of target, *args)``, which writes into its first argument.

    ``rehearse``: first on a copy, so that wrong shapes raise here and not at the launch. ``elementwise``: it writes
    each element, from one element of each array.
    """
    slots = [_reachable(target)]
    recipe: tuple[Any, dict[str, Any]] = (lower(tuple(args)), {})

    def write(outputs: Sequence[NDArray[Any]], /, *args: Any) -> None:
        fn(outputs[0], *args)

    ready = _rehearsed(write, recipe, slots) if rehearse else None
    if target.size:
        _submit(name, recipe, slots, write, ready, elementwise)


def run(
    name: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    grid: tuple[int, ...] = (),
    block: tuple[int, ...] = (),
    shared: int = 0,
) -> None:
    """Run ``fn(grid, block, args)`` on NumPy views of the arrays in ``args``; it writes into whichever it likes."""

    def make(args: tuple[Any, ...], grid: tuple[int, ...], block: tuple[int, ...], shared: int) -> Callable[[], None]:
        return lambda: quietly(lambda *a: fn(grid, block, a), (args, {}))

    given = Given({'args': lower(tuple(args)), 'grid': grid, 'block': block, 'shared': shared}, make)
    runtime_calls.submit(get_current_stream_ptr(), given.work(), name, 'kernel', given)


def view(fn: Callable[..., Any], array: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``fn(array, ...)`` for a function that returns views; where NumPy would copy, a copy is launched."""
    slot = array._slot()
    now = slot.view()
    result = fn(now, *args, **kwargs)
    found = [_same_bytes(array, now, v) for v in _leaves(result)]
    if any(v is None for v in found):
        return launch(f'cupy_{fn.__name__}', fn, (array, *args), kwargs)
    return _rebuild(result, iter(found))


def _same_bytes(array: Any, now: NDArray[Any], seen: NDArray[Any]) -> Any:
    """Return the array whose elements are those of ``seen``, a NumPy view taken from ``now``; None if it is a copy."""
    subtype = type(array)
    if now.size == 0 or seen.size == 0:
        return array._view(subtype, array.data.ptr, seen.shape, seen.strides, seen.dtype)
    if not np.may_share_memory(now, seen):
        return None
    ptr = array.data.ptr + (seen.ctypes.data - now.ctypes.data)
    return array._view(subtype, ptr, seen.shape, seen.strides, seen.dtype)


# -- arrays of one device used from another: copies by memcpy, kernels by peer access, with a warning ----------------


def check_access(device_id: int) -> None:
    """A kernel of the current device is given an array of ``device_id``: warn where that is another one."""
    here = runtime.getDevice()
    if device_id != here:
        runtime._deviceEnsurePeerAccess(device_id)
        warnings.warn(
            f'The device where the array resides ({device_id}) is different from the current device ({here}). '
            'Peer access has been activated automatically.',
            PerformanceWarning,
            stacklevel=2,
        )


def copy_here(array: Any, order: str) -> Any:
    """A copy on the current device of an array of another: made contiguous over there, on what is current there."""
    with runtime._on(array.data.device_id):
        source = array._astype(array.dtype, order, None, None, None)
    found = Layout.array_class(source.shape, source.dtype, None, source.strides)
    found.data.copy_from_device_async(source.data, source.nbytes)
    return found


def copied_across(dst: Any, src: Any) -> bool:
    """``dst[...] = src`` by memcpy if an array is of another device than the current one and they lie in one piece.

    On one device CuPy does the same, which is a kernel here.
    """
    if not dst.size or dst.data.device_id == src.data.device_id == runtime.getDevice():
        return False
    if (dst.shape, dst.strides, dst.dtype) != (src.shape, src.strides, src.dtype) or not dst.flags.c_contiguous:
        return False
    dst.data.copy_from_device_async(src.data, src.nbytes)
    return True


def copy_across(dst: Any, src: Any) -> bool:
    """``copyto`` between two devices by memcpy, on the current stream; False where the elements lie otherwise."""
    flags = dst.flags, src.flags
    alike = all(f.c_contiguous for f in flags) or all(f.f_contiguous for f in flags)
    if not alike or dst.dtype != src.dtype or dst.size != src.size:
        return False
    dst.data.copy_from_device_async(src.data, src.nbytes)
    return True
