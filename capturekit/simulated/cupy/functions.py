"""``cupy``'s functions that do what NumPy's function of the same name does, made from tables of names.

Arguments are bound to CuPy's signature, which is NumPy's or a part of it, so that what CuPy does not take is refused
here as well.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from capturekit.simulated.cupy import surface
from capturekit.simulated.cupy.surface import Call, declared, named, signature, signature_like
from capturekit.simulated.unchecked_functions import UNCHECKED, info_of

from . import arrays, launches, runtime, runtime_calls, vendor
from .launches import Layout, array_of
from .runtime_calls import cupy, get_current_stream_ptr
from .ufuncs import ufunc

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
    return _core.array(obj, dtype, copy, order, subok, ndmin, blocking)


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, blocking: bool = False
) -> Any:
    return _core.array(a, dtype, copy, order, blocking=blocking)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    return arrays.array(a, dtype, None, 'C', ndmin=1)


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
    if subok is not None:
        raise TypeError('subok is not supported yet')
    found = np.dtype(prototype.dtype if dtype is None else dtype)
    if shape is not None:
        return empty(shape, found, order if order in ('C', 'F') else 'C')
    return arrays.ndarray(prototype.shape, found, None, arrays.strides_like(prototype, found, order.upper()), 'C')


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    start, stop, step = (one.item() if isinstance(one, arrays.ndarray) else one for one in (start, stop, step))
    first, last = (0, start) if stop is None else (start, stop)
    return launches.launch('cupy_arange', np.arange, (first, last, 1 if step is None else step), {'dtype': dtype})


class _Grid:
    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def __getitem__(self, key: Any) -> Any:
        return launches.launch('cupy_grid', self._grid.__getitem__, (key,))


mgrid, ogrid, r_, c_ = _Grid(np.mgrid), _Grid(np.ogrid), _Grid(np.r_), _Grid(np.c_)


def _from_numpy(name: str) -> Any:
    return lambda *args, **kwargs: asarray(getattr(np, name)(*args, **kwargs))


def _broadcast_arrays(*args: Any) -> Any:
    shape = np.broadcast_shapes(*(a.shape for a in args))
    return [launches.view(np.broadcast_to, a, shape) for a in args]


def _one(found: Any) -> Any:
    found.fill(1)
    return found


def asnumpy(a: Any, stream: Any = None, order: str = 'C', out: Any = None, *, blocking: bool = True) -> Any:
    found = launches.as_array(a)
    if found is not None:
        return found.get(stream=stream, order=order, out=out, blocking=blocking)
    host = np.asarray(a, order=order)  # type: ignore[call-overload]
    if out is None:
        return host
    out[...] = host
    return out


def get_array_module(*args: Any) -> Any:
    return runtime_calls.public['cupy'] if any(launches.as_array(a) is not None for a in args) else np


def load(file: Any, mmap_mode: Any = None, allow_pickle: bool | None = None) -> Any:
    found = np.load(file, mmap_mode, bool(allow_pickle))
    if not isinstance(found, np.ndarray):
        raise NotImplementedError(
            "the simulated CuPy's load() reads .npy files alone. Write: cupy.asarray(numpy.load(file)[name])"
        )
    return array(found)


# -- where ------------------------------------------------------------------------------------------------------


def argwhere(a: Any) -> Any:
    a = array_of(a)
    n = arrays.count_true(a)
    return launches.launch('cupy_argwhere', np.argwhere, (a,), shapes=[(n, a.ndim)])


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    missing = (x is None, y is None).count(True)
    if missing == 1:
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    if missing == 2:
        return array_of(condition).nonzero()
    return _WHERE(condition, x, y)


_WHERE = ufunc('where', 3, 1, np.where)


def delete(arr: Any, indices: Any, axis: int | None = None) -> Any:
    arr = array_of(arr)
    if axis is None:
        arr, axis = arr.ravel(), 0
    mask = arrays.ndarray((arr.shape[axis],), bool)
    mask.fill(True)
    mask[indices] = False
    return arr[(slice(None),) * (axis % arr.ndim) + (mask,)]


# -- sets -------------------------------------------------------------------------------------------------------


def _set_operation(name: str, fn: Callable[..., Any]) -> Call:
    """NumPy's function, with the length of its results read by the host first; that of the inverse is known."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        axis = kwargs.get('axis') or 0
        inverse = 1 + bool(kwargs.get('return_index')) if kwargs.get('return_inverse') else -1

        def several(*a: Any, **k: Any) -> list[Any]:
            found = fn(*a, **k)
            return list(found) if isinstance(found, tuple) else [found]

        n = int(launches.launch(f'cupy_{name}_count', lambda *a, **k: several(*a, **k)[0].shape[axis], args, kwargs))

        def fixed(*a: Any, **k: Any) -> Any:
            # The results' memory is laid out for n, however many there are at launch.
            return tuple(r if i == inverse else _resized(r, n, axis) for i, r in enumerate(several(*a, **k)))

        found = launches.launch(f'cupy_{name}', fixed, args, kwargs)
        return found if len(found) > 1 else found[0]

    return call


def _resized(a: Any, n: int, axis: int) -> Any:
    axis = axis if a.ndim > 1 else 0
    if a.shape[axis] == n:
        return a
    wanted = np.zeros((*a.shape[:axis], n, *a.shape[axis + 1 :]), a.dtype)
    kept = (slice(None),) * axis + (slice(min(n, a.shape[axis])),)
    wanted[kept] = a[kept]
    return wanted


# -- histograms -------------------------------------------------------------------------------------------------


def bincount(x: Any, weights: Any = None, minlength: int | None = None) -> Any:
    """Return how often each number occurs; the host reads the largest first."""
    if x.size and bool((x < 0).any()):
        raise ValueError('The first argument of bincount must be non-negative')
    size = max(int(x.max()) + 1 if x.size else 0, int(minlength or 0))

    def counted(a: Any, w: Any) -> Any:
        return np.bincount(a[a >= 0] if w is None else a, w, size)[:size]

    return launches.launch('cupy_bincount', counted, (x, weights))


def _range(x: Any, given: Any) -> tuple[float, float]:
    if given is not None:
        first, last = given
        if first > last:
            raise ValueError('max must be larger than min in range parameter.')
    else:
        first, last = (x.min(), x.max()) if x.size else (0, 1)
    first, last = float(first), float(last)
    if not math.isfinite(first) or not math.isfinite(last):
        how = 'autodetected' if given is None else 'supplied'
        raise ValueError(f'{how} range of [{first}, {last}] is not finite')
    return first, last


def histogram(x: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None) -> Any:
    """Return counts and edges; the host reads the range first, or checks the edges."""
    if isinstance(bins, str):
        raise NotImplementedError('only integer and array bins are implemented')
    x, options = array_of(x), {'density': density, 'weights': weights}
    if np.isscalar(bins):
        options['range'] = _range(x, range)
    else:
        bins = _core.array(bins, None, None)
        if bool((bins[:-1] > bins[1:]).any()):
            raise ValueError('`bins` must increase monotonically, when an array')
    return launches.launch('cupy_histogram', np.histogram, (x, bins), options)


# -- writing ----------------------------------------------------------------------------------------------------


def copyto(dst: Any, src: Any, casting: Any = 'same_kind', where: Any = None) -> None:
    given = launches.as_array(src)
    # A scalar may fit by its value where its dtype does not.
    kinds = [_dtype_of(src), *([np.result_type(src, dst.dtype)] if given is None else [])]
    if not any(np.can_cast(kind, dst.dtype, casting) for kind in kinds):
        raise TypeError(f'Cannot cast {getattr(src, "dtype", type(src))} to {dst.dtype} in {casting} casting mode')

    def write(a: Any, v: Any, w: Any) -> None:
        np.copyto(a, v, 'unsafe', **({} if w is None else {'where': w}))

    if given is not None and where is None and given.data.device_id != dst.data.device_id and dst.size:
        if launches.copy_across(dst, given):
            return
        with runtime._on(dst.data.device_id):
            launches.mutate('cupy_copy', write, dst, (given.copy(), where))
        return
    launches.mutate('cupy_copyto', write, dst, (src, where))


def putmask(a: Any, mask: Any, values: Any) -> None:
    given = launches.as_array(values)
    if given is not None and given.shape == a.shape:
        int(array_of(mask).sum())  # CuPy writes a[mask] = values[mask]
    launches.mutate('cupy_putmask', np.putmask, a, (array_of(mask), _core.array(values, None, None)))


# -- the rest ---------------------------------------------------------------------------------------------------


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    rows = launches.view(np.moveaxis, arr, axis, -1)
    axis %= arr.ndim
    found: Any = None
    for place in np.ndindex(rows.shape[:-1]):
        one = asarray(func1d(rows[place], *args, **kwargs))
        if found is None:
            found = empty(rows.shape[:-1] + one.shape, one.dtype)
        found[place] = one
    if found is None:
        raise ValueError('Cannot apply_along_axis when any iteration dimensions are 0')
    new = range(arr.ndim - 1, found.ndim)
    return launches.view(np.moveaxis, found, tuple(new), tuple(range(axis, axis + len(new))))


def matmul(
    x1: Any, x2: Any, /, out: Any = None, *, axes: Any = None, axis: Any = None, keepdims: bool = False,
    casting: str = 'same_kind', dtype: Any = None, signature: Any = None, order: str = 'K',
) -> Any:  # fmt: skip
    if _needs_cublas((x1, x2)):
        vendor.use(vendor.cublas)
    options = {k: v for k, v in {'axes': axes, 'dtype': dtype}.items() if v is not None}
    if out is None and not options and vendor.can_multiply(x1, x2):
        found = arrays.ndarray.for_result((x1.shape[0], x2.shape[1]), x1.dtype)
        make = functools.partial(launches.launch, 'cupy_matmul', np.matmul, (x1, x2), out=found, opaque=True)
        vendor.multiplied(x1, x2, found, make)
        return found
    return launches.launch('cupy_matmul', np.matmul, (x1, x2), options, out=out)


def _part(name: str) -> Callable[[Any], Any]:
    return lambda val: getattr(val, name) if launches.as_array(val) is not None else getattr(np, name)(val)


#: The functions that are one expression.
SHORT: dict[str, Callable[..., Any]] = {
    'asanyarray': lambda a, dtype=None, order=None, *, copy=None, blocking=False: _core.array(
        a, dtype, copy, order, blocking=blocking
    ),
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
    **{name: _from_numpy(name) for name in
       ('frombuffer', 'fromfile', 'fromfunction', 'fromiter', 'fromstring', 'genfromtxt', 'loadtxt')},
    'compress': lambda condition, a, axis=None, out=None: array_of(a).compress(condition, axis, out),
    'extract': lambda condition, a: array_of(a).ravel()[array_of(condition).ravel().astype(bool)],
    'flatnonzero': lambda a: array_of(a).ravel().nonzero()[0],
    'nonzero': lambda a: array_of(a).nonzero(),
    'put': lambda a, ind, v, mode='wrap': a.put(ind, v, mode),
    'real': _part('real'),
    'imag': _part('imag'),
    'reshape': lambda a, newshape, order='C', *, copy=None: array_of(a).reshape(newshape, order=order, copy=copy),
    'size': lambda a, axis=None: int(a.size if axis is None else a.shape[axis]),
    'take': lambda a, indices, axis=None, out=None: array_of(a).take(indices, axis, out),
    'diag_indices_from': lambda arr: cupy.diag_indices(arr.shape[0], arr.ndim),
    'tril_indices_from': lambda arr, k=0: cupy.tril_indices(arr.shape[-2], k, arr.shape[-1]),
    'triu_indices_from': lambda arr, k=0: cupy.triu_indices(arr.shape[-2], k, arr.shape[-1]),
    'fill_diagonal': lambda a, val, wrap=False: launches.mutate(
        'cupy_fill_diagonal', lambda x, v: np.fill_diagonal(x, v, wrap), a, (val,)
    ),
}  # fmt: skip

for _name, _function in SHORT.items():
    named(_function, _name)


def without_warnings(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return fn(*args, **kwargs)

    return quiet


def _plain(name: str, fn: Callable[..., Any]) -> Call:
    if name in _JOINING:
        return _joining(name, fn)
    if name in ('clip', 'choose', 'repeat'):  # CuPy's call the methods
        return lambda args, kwargs: getattr(args[0], name)(*args[1:], **kwargs)
    if name.startswith(('nan', 'corrcoef', 'cov', 'polyfit')):
        fn = without_warnings(fn)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out, kwargs = kwargs.pop('out', None), dict(kwargs)
        if name in _READ:
            _READ[name](*args, **kwargs)
        args, kwargs = _uploaded(name, args, kwargs)
        dtype = kwargs.pop('dtype', None) if name in ('argmax', 'argmin') else None  # NumPy's have none
        if name in ('sort', 'argsort'):
            kwargs['kind'] = arrays.stable(kwargs.get('kind'))
        if name in surface.CUSOLVER:
            vendor.use_cusolver(name)
        elif name in surface.CUBLAS and _needs_cublas(args):
            vendor.use(vendor.cublas)
        found = launches.launch(f'cupy_{name}', fn, args, kwargs, out=out)
        vendor.allocate_inside(name)
        if name in surface.WAITING and runtime_calls.is_late():
            runtime.streamSynchronize(get_current_stream_ptr())
        if name in surface.LOOKING_AT_INFO and vendor.get_config_linalg() == 'raise':
            _check_info(name, args, kwargs)
        if name in _READ_AFTERWARDS:
            _READ_AFTERWARDS[name](found)
        return found if dtype is None else found.astype(dtype, copy=False)

    return call


# -- what CuPy's functions read of arrays on the host before they work: they decide, or refuse, by what they read -----


def _read_array(given: Any) -> Any:
    return arrays.array(given, None, None)


def _average(a: Any, axis: Any = None, weights: Any = None, **_: Any) -> None:
    if weights is None:
        return
    weights = _read_array(weights)
    total = weights.sum(axis) if weights.shape == _read_array(a).shape else weights.sum()
    if bool((total == 0.0).any()):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")


def _cov(a: Any, y: Any = None, fweights: Any = None, aweights: Any = None, **_: Any) -> None:
    if fweights is not None or aweights is not None:
        raise NotImplementedError("the simulated CuPy's cov() takes no weights")


def _within(q: Any, most: float, message: str) -> None:
    """Refuse ``q`` if none is large enough, or none is small enough: of some that are, CuPy takes all."""
    given = launches.as_array(q)
    found: Any = np.asarray(q) if given is None else given
    if not ((found >= 0).any() and (found <= most).any()):
        raise ValueError(message)


def _ravel_multi_index(multi_index: Any, dims: Any, mode: Any = 'wrap', **_: Any) -> None:
    modes = [mode] * len(dims) if isinstance(mode, str) else mode
    for index, length, one in zip(multi_index, dims, modes):
        if one == 'raise' and bool(((index >= length) | (index < 0)).any()):
            raise ValueError('invalid entry in coordinates array')


def _all_nan(found: Any) -> None:
    if bool((found != found).any()):
        warnings.warn('All-NaN slice encountered', RuntimeWarning, stacklevel=5)


def _unravel_index(indices: Any, dims: Any, order: str = 'C') -> None:
    indices = _read_array(indices)
    if bool((indices < 0).any()) or bool((indices // math.prod(dims) > 0).any()):
        raise ValueError('invalid entry in index array')


def _gradient(_f: Any, *distances: Any, **_: Any) -> None:
    for one in distances:
        coordinates = launches.as_array(one)
        if coordinates is not None and coordinates.ndim == 1:
            steps = coordinates[1:] - coordinates[:-1]
            bool((steps == steps[0]).all())


def _linspace(start: Any, stop: Any, num: int = 50, **_: Any) -> None:
    if num > 1 and not all(launches.as_array(end) is None for end in (start, stop)):
        bool((_read_array(stop - start) == 0).any())


_READ: dict[str, Callable[..., None]] = {
    'average': _average,
    'cov': _cov,
    'gradient': _gradient,
    'linspace': _linspace,
    'percentile': lambda a, q, **_: _within(q, 100, 'Percentiles must be in the range [0, 100]'),
    'quantile': lambda a, q, **_: _within(q, 1, 'Quantiles must be in the range [0, 1]'),
    'ravel_multi_index': _ravel_multi_index,
    'unravel_index': _unravel_index,
}
#: What they read of their results.
_READ_AFTERWARDS: dict[str, Callable[[Any], None]] = {'nanmax': _all_nan, 'nanmin': _all_nan}


# -- how each is called -----------------------------------------------------------------------------------------------


def _check_info(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    function = getattr(np.linalg, name, getattr(np, name, None))
    assert function is not None
    info = launches.launch('cusolver_info', info_of(function), args, kwargs)
    if (info != 0).any():
        raise np.linalg.LinAlgError(
            f'Error reported by {name} in cuSOLVER. devInfo = {info}. Please refer to the cuSOLVER documentation.'
        )


#: Functions that take host data for these arguments, by position or keyword, and upload it first.
_UPLOADS: dict[str, tuple[int | str, ...]] = {
    'append': (0, 1),
    'average': (0, 'weights'),
    'corrcoef': (0, 'y'),
    'cov': (0, 'y'),
    'percentile': (1,),
    'quantile': (1,),
    'resize': (0,),
    'searchsorted': (1,),
    'tile': (0,),
}


def _uploaded(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found = list(args)
    for which in _UPLOADS.get(name, ()):
        if isinstance(which, int):
            found[which] = asarray(found[which])
        elif kwargs.get(which) is not None:
            kwargs[which] = asarray(kwargs[which])
    return tuple(found), kwargs


def _concatenate(tup: Any, axis: int | None, kwargs: dict[str, Any]) -> Any:
    arrays = [array_of(one) for one in tup] if isinstance(tup, (list, tuple)) else list(tup)
    if axis is None:
        arrays, axis = [one.ravel() for one in arrays], 0
    out, dtype = kwargs.get('out'), kwargs.get('dtype')
    return _core.concatenate_method(arrays, axis, out, dtype, kwargs.get('casting', 'same_kind'))


def _joining(name: str, fn: Callable[..., Any]) -> Call:
    """What CuPy makes of ``concatenate``."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tup, axis = args[0], kwargs.pop('axis', 0)
        if name in ('concatenate', 'concat'):
            return _concatenate(tup, axis, kwargs)
        if name == 'stack':
            return _concatenate([launches.view(np.expand_dims, array_of(one), axis) for one in tup], axis, kwargs)
        axes = {'hstack': 1, 'dstack': 3}.get(name, 2)
        least: Callable[..., Any] = (np.atleast_1d, np.atleast_2d, np.atleast_3d)[axes - 1]
        arrays = [launches.view(least, array_of(one)) for one in tup]
        along = {'hstack': min(arrays[0].ndim - 1, 1), 'dstack': 2}.get(name, 0)
        return _concatenate(arrays, along, kwargs)

    return call


#: Functions that come to :func:`_concatenate`.
_JOINING = ('concat', 'concatenate', 'dstack', 'hstack', 'row_stack', 'stack', 'vstack')


def _needs_cublas(args: tuple[Any, ...]) -> bool:
    """Integers, and the product of two vectors, go without."""
    arrays = [a for a in args if isinstance(a, Layout)]
    if not arrays or np.result_type(*(a.dtype for a in arrays)).kind not in 'fc':
        return False
    if len(args) and isinstance(args[0], str):
        return len(arrays) > 1
    return not all(a.ndim <= 1 for a in arrays)


def _viewing(name: str, fn: Callable[..., Any]) -> Call:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name.startswith('atleast'):
            found = [launches.view(fn, array_of(a)) for a in args]
            return found[0] if len(found) == 1 else found
        return launches.view(fn, array_of(args[0]), *args[1:], **kwargs)

    return call


def _answering(fn: Callable[..., Any]) -> Call:
    return lambda args, kwargs: launches.quietly(fn, (launches.lower(args), launches.lower(kwargs)))


def _of_host(fn: Callable[..., Any]) -> Call:
    return lambda args, kwargs: fn(*on_host(args), **on_host(kwargs))


def on_host(value: Any) -> Any:
    """Return a value with the arrays in it, and sparse matrices, read to the host."""
    return launches.mapped(value, _read_one)


def _read_one(value: Any) -> Any:
    array = launches.as_array(value)
    if array is None and hasattr(value, 'format') and hasattr(value, 'get'):
        return value.get()  # a sparse matrix
    return value if array is None else array.get()


def _made(
    names: list[str], source: ModuleType, way: Callable[[str, Callable[..., Any]], Call], module: str
) -> dict[str, Any]:
    """Return those of CuPy's functions for which NumPy, whatever its version, has what they are made of."""
    found = {}
    for name in names:
        own = getattr(source, surface.SAME_AS.get(name, name), None)
        if own is not None:
            found[name] = declared(name, signature_like(name, own), way(name, UNCHECKED.get(name, own)), module)
    return found


def _top_level() -> dict[str, Any]:
    """Return the functions of ``cupy`` that follow a rule."""
    ways: tuple[tuple[list[str], Callable[[str, Callable[..., Any]], Call]], ...] = (
        (surface.PLAIN, _plain), (surface.VIEWS, _viewing), (surface.SETS, _set_operation),
        (surface.HOST, lambda _, fn: _answering(fn)), (surface.READ_WHOLE, lambda _, fn: _of_host(fn)),
    )  # fmt: skip
    found: dict[str, Any] = {}
    for names, way in ways:
        found.update(_made(names, np, way, 'cupy'))
    return found


for _name in (*surface.METHODS, 'diagonal', 'squeeze', 'swapaxes'):
    _own = getattr(np, _name)
    _call = _plain(_name, UNCHECKED.get(_name, _own)) if _name in surface.METHODS else _viewing(_name, _own)
    setattr(arrays._ndarray_base, _name, declared(_name, signature_like(f'ndarray.{_name}', _own), _call))


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    axes = axis if isinstance(axis, tuple) else (axis,)
    matrix = len(axes) == 2 or (axis is None and x.ndim == 2)
    if matrix and ord in (2, -2, 'nuc'):
        # asked of the public svd(), as CuPy does: whoever guards that sees the call
        cupy.linalg.svd(x if axis is None else launches.view(np.moveaxis, x, axes, (-2, -1)), compute_uv=False)
    return launches.launch('cupy_norm', UNCHECKED['norm'], (x, ord, axis, keepdims))


def _linalg() -> dict[str, Any]:
    """Return the functions of ``cupy.linalg``."""
    found = _made(surface.LINALG, np.linalg, _plain, 'cupy.linalg')
    turned = _viewing('matrix_transpose', np.matrix_transpose)
    found['matrix_transpose'] = declared('matrix_transpose', signature('a'), turned, 'cupy.linalg')
    found.update(norm=named(_norm, 'norm', module='cupy.linalg'), LinAlgError=np.linalg.LinAlgError)
    return found


def _fft() -> dict[str, Any]:
    """Return the functions of ``cupy.fft``."""
    return _made(surface.FFT, np.fft, lambda name, fn: vendor.transforming(name, _plain(name, fn)), 'cupy.fft')
