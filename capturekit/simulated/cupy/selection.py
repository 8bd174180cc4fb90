"""``cupy``'s functions whose results' lengths depend on values, and those that write into an array.

CuPy has to know the length before it can allocate, so the host reads it first: a wait, and in a capture a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from capturekit.simulated.cupy.signatures import UniqueAllResult, UniqueCountsResult, UniqueInverseResult, named
from capturekit.simulated.unchecked_functions import UNCHECKED

from . import arrays, creation, launches
from .launches import array_of
from .ufuncs import ufunc

# -- where ------------------------------------------------------------------------------------------------------


def argwhere(a: Any) -> Any:
    """Return the indices of what is not zero, a row each."""
    a = array_of(a)
    n = arrays.count_true(a)
    return launches.launch('cupy_argwhere', np.argwhere, (a,), shapes=[(n, a.ndim)])


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return elements of ``x`` or ``y``, or with neither the indices of what is not zero."""
    missing = (x is None, y is None).count(True)
    if missing == 1:
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    if missing == 2:
        return array_of(condition).nonzero()
    if any(hasattr(one, '__cupy_override_elementwise_kernel__') for one in (x, y)):
        return _WHERE(condition, x, y)
    return launches.launch('cupy_where', np.where, (condition, x, y), elementwise=True)


_WHERE = ufunc('where', 3, 1, np.where)


def delete(arr: Any, indices: Any, axis: int | None = None) -> Any:
    """Return the array without some slices."""
    arr = array_of(arr)
    if axis is None:
        arr, axis = arr.ravel(), 0
    mask = arrays.ndarray((arr.shape[axis],), bool)
    mask.fill(True)
    mask[indices] = False
    return arr[(slice(None),) * (axis % arr.ndim) + (mask,)]


def trim_zeros(filt: Any, trim: str = 'fb') -> Any:
    """Return the array without its leading and trailing zeros."""
    filt = array_of(filt)

    def leading(a: Any) -> Any:
        found = np.flatnonzero(a)
        return found[0] if found.size else a.size

    start, stop = 0, filt.size
    if 'f' in trim.lower():
        start = int(launches.launch('cupy_first_nonzero', leading, (filt,)))
    if 'b' in trim.lower():
        stop -= int(launches.launch('cupy_first_nonzero', leading, (filt[::-1],)))
    return filt[start:stop]


# -- sets -------------------------------------------------------------------------------------------------------


def _set_operation(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], varying: tuple[int, ...] = (0,)) -> Any:
    """Launch NumPy's function with the length of its results ``varying`` read by the host first."""
    fn: Callable[..., Any] = getattr(np, name)

    axis = kwargs.get('axis') or 0

    def length(*a: Any, **k: Any) -> int:
        found = fn(*a, **k)
        n: int = (found[0] if isinstance(found, tuple) else found).shape[axis]
        return n

    n = int(launches.launch(f'cupy_{name}_count', length, args, kwargs))

    def fixed(*a: Any, **k: Any) -> Any:
        found = fn(*a, **k)
        several = found if isinstance(found, tuple) else (found,)
        # The results' memory is laid out for n, however many there are at launch.
        held = [_resized(r, n, axis) if i in varying else r for i, r in enumerate(several)]
        return tuple(held) if isinstance(found, tuple) else held[0]

    return launches.launch(f'cupy_{name}', fixed, args, kwargs)


def _resized(a: Any, n: int, axis: int) -> Any:
    axis = axis if a.ndim > 1 else 0
    if a.shape[axis] == n:
        return a
    wanted = np.zeros((*a.shape[:axis], n, *a.shape[axis + 1 :]), a.dtype)
    kept = (slice(None),) * axis + (slice(min(n, a.shape[axis])),)
    wanted[kept] = a[kept]
    return wanted


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
) -> Any:
    """Return the sorted values without repetition."""
    order = ['values'] + ['index'] * return_index + ['inverse'] * return_inverse + ['counts'] * return_counts
    flags = {
        'return_index': return_index, 'return_inverse': return_inverse, 'return_counts': return_counts,
        'axis': axis, 'equal_nan': equal_nan,
    }  # fmt: skip
    varying = tuple(i for i, what in enumerate(order) if what != 'inverse')
    return _set_operation('unique', (array_of(ar),), flags, varying)


def unique_all(x: Any) -> UniqueAllResult:
    """Return values, first indices, inverse indices and counts."""
    values, index, inverse, counts = unique(x, True, True, True, equal_nan=False)
    return UniqueAllResult(values, index, inverse.reshape(x.shape), counts)


def unique_inverse(x: Any) -> UniqueInverseResult:
    values, inverse = unique(x, return_inverse=True, equal_nan=False)
    return UniqueInverseResult(values, inverse.reshape(x.shape))


# -- histograms -------------------------------------------------------------------------------------------------


def bincount(x: Any, weights: Any = None, minlength: int | None = None) -> Any:
    """Return how often each number occurs; the host reads the largest first."""
    if x.ndim != 1:
        raise ValueError('object too deep for desired array' if x.ndim else 'object of too small depth')
    if x.size and bool((x < 0).any()):
        raise ValueError('The first argument of bincount must be non-negative')
    if weights is not None and x.shape != weights.shape:
        raise ValueError("The weights and list don't have the same length.")
    if minlength is not None and int(minlength) < 0:
        raise ValueError('minlength must be non-negative')
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


def _edges(bins: Any) -> Any:
    return bins if isinstance(bins, (str, int)) or np.isscalar(bins) else creation._core.array(bins, None, None)


def histogram(x: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None) -> Any:
    """Return counts and edges; the host reads the range first, or checks the edges."""
    x, bins = array_of(x), _edges(bins)
    if isinstance(bins, str):
        raise NotImplementedError('only integer and array bins are implemented')
    options: dict[str, Any] = {'bins': bins, 'density': density, 'weights': weights}
    if np.isscalar(bins):
        options['range'] = _range(x, range)
    else:
        _check_edges(bins, '`bins` must increase monotonically, when an array')
    return launches.launch('cupy_histogram', np.histogram, (x,), options)


def _check_edges(edges: Any, message: str) -> None:
    if bool((edges[:-1] > edges[1:]).any()):
        raise ValueError(message)


def histogramdd(sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False) -> Any:
    columns = [sample[:, i] for i in np.arange(sample.shape[1])] if hasattr(sample, 'ndim') else list(sample)
    per_axis = [bins] * len(columns) if np.isscalar(bins) else [_edges(b) for b in bins]
    ranges: list[Any] = [None] * len(columns)
    for i, edges in enumerate(per_axis):
        if np.isscalar(edges):
            ranges[i] = _range(columns[i], None if range is None else range[i])
        else:
            _check_edges(edges, f'`bins[{i}]` must be monotonically increasing, when an array')
    options = {'bins': per_axis, 'range': ranges, 'weights': weights, 'density': density}

    def counted(c: Any, **k: Any) -> Any:
        counts, edges = np.histogramdd(tuple(c), **k)
        return counts, list(edges)

    return launches.launch('cupy_histogramdd', counted, (columns,), options)


def histogram2d(x: Any, y: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: Any = None) -> Any:
    pair = bins if not np.isscalar(bins) and len(bins) == 2 else [bins, bins]
    counts, edges = histogramdd([x, y], pair, range, weights, bool(density))
    return counts, edges[0], edges[1]


# -- writing ----------------------------------------------------------------------------------------------------


def _can_copy(src: Any, dtype: np.dtype[Any], casting: Any) -> bool:
    if launches.as_array(src) is not None:
        return np.can_cast(src.dtype, dtype, casting)
    # A scalar may fit by its value where its dtype does not.
    return np.can_cast(np.asarray(src).dtype, dtype, casting) or np.can_cast(np.result_type(src, dtype), dtype, casting)


def copyto(dst: Any, src: Any, casting: Any = 'same_kind', where: Any = None) -> None:
    """Copy values into ``dst``."""
    if not _can_copy(src, dst.dtype, casting):
        raise TypeError(f'Cannot cast {getattr(src, "dtype", type(src))} to {dst.dtype} in {casting} casting mode')

    def write(a: Any, v: Any, w: Any) -> None:
        np.copyto(a, v, 'unsafe', **({} if w is None else {'where': w}))

    given = launches.as_array(src)
    if given is not None and where is None and given.data.device_id != dst.data.device_id and dst.size:
        if launches.copy_across(dst, given):
            return
        with launches.on(dst.data.device_id):
            launches.mutate('cupy_copy', write, dst, (given.copy(), where))
        return
    launches.mutate('cupy_copyto', write, dst, (src, where))


def place(arr: Any, mask: Any, vals: Any) -> None:
    """Set the elements where ``mask`` holds, to ``vals`` in order."""
    mask = creation._core.array(mask, None, None).astype(bool)
    vals = creation._core.array(vals, arr.dtype, None)
    if arr.size != mask.size:
        raise ValueError('Mask and data must be the same size.')
    if not int(mask.sum()):  # CuPy looks for the places, whose number the host has to know
        return
    if vals.size == 0:
        raise ValueError('Cannot insert from an empty array.')
    launches.mutate('cupy_place', np.place, arr, (mask, vals))


def putmask(a: Any, mask: Any, values: Any) -> None:
    """Set the elements where ``mask`` holds, to those of ``values`` at the same place."""
    given = launches.as_array(values)
    if given is not None and given.shape == a.shape:
        int(array_of(mask).sum())  # CuPy writes a[mask] = values[mask]
    launches.mutate('cupy_putmask', np.putmask, a, (array_of(mask), creation._core.array(values, None, None)))


# -- the rest ---------------------------------------------------------------------------------------------------


def apply_over_axes(func: Callable[..., Any], a: Any, axes: Any) -> Any:
    for axis in (axes,) if np.isscalar(axes) else axes:
        found = func(a, axis)
        a = found if found.ndim == a.ndim else launches.view(np.expand_dims, found, axis)
    return a


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function for each row along an axis, and lay what it returns into one array."""
    rows = launches.view(np.moveaxis, arr, axis, -1)
    axis %= arr.ndim
    found: Any = None
    for place in np.ndindex(rows.shape[:-1]):
        one = creation.asarray(func1d(rows[place], *args, **kwargs))
        if found is None:
            found = creation.empty(rows.shape[:-1] + one.shape, one.dtype)
        found[place] = one
    if found is None:
        raise ValueError('Cannot apply_along_axis when any iteration dimensions are 0')
    new = range(arr.ndim - 1, found.ndim)
    return launches.view(np.moveaxis, found, tuple(new), tuple(range(axis, axis + len(new))))


def byte_bounds(a: Any) -> tuple[int, int]:
    """Return the addresses of the first byte and past the last."""
    reach = [(n - 1) * s for n, s in zip(a.shape, a.strides)]
    low = a.data.ptr + sum(r for r in reach if r < 0)
    return low, a.data.ptr + sum(r for r in reach if r > 0) + a.itemsize


def _put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    write = UNCHECKED['put_along_axis']
    launches.mutate('cupy_put_along_axis', lambda a, i, v: write(a, i, v, axis), arr, (indices, values))


def _part(name: str) -> Callable[[Any], Any]:
    return lambda val: getattr(val, name) if launches.as_array(val) is not None else getattr(np, name)(val)


#: The functions that are one expression.
SHORT: dict[str, Callable[..., Any]] = {
    'compress': lambda condition, a, axis=None, out=None: array_of(a).compress(condition, axis, out),
    'extract': lambda condition, a: array_of(a).ravel()[array_of(condition).ravel().astype(bool)],
    'flatnonzero': lambda a: array_of(a).ravel().nonzero()[0],
    'nonzero': lambda a: array_of(a).nonzero(),
    'put': lambda a, ind, v, mode='wrap': a.put(ind, v, mode),
    'put_along_axis': _put_along_axis,
    'real': _part('real'),
    'imag': _part('imag'),
    'reshape': lambda a, newshape, order='C', *, copy=None: array_of(a).reshape(newshape, order=order, copy=copy),
    'size': lambda a, axis=None: int(a.size if axis is None else a.shape[axis]),
    'take': lambda a, indices, axis=None, out=None: array_of(a).take(indices, axis, out),
    'unique_counts': lambda x: UniqueCountsResult(*unique(x, return_counts=True, equal_nan=False)),
    'unique_values': lambda x: unique(x, equal_nan=False),
    'in1d': lambda ar1, ar2, assume_unique=False, invert=False: launches.launch(
        'cupy_in1d', np.isin, (ar1.ravel(), ar2, assume_unique, invert)
    ),
    'intersect1d': lambda arr1, arr2, assume_unique=False, return_indices=False: _set_operation(
        'intersect1d', (arr1, arr2), {'assume_unique': assume_unique, 'return_indices': return_indices}, (0, 1, 2)
    ),
    'setdiff1d': lambda ar1, ar2, assume_unique=False: _set_operation(
        'setdiff1d', (ar1, ar2), {'assume_unique': assume_unique}
    ),
    'setxor1d': lambda ar1, ar2, assume_unique=False: _set_operation(
        'setxor1d', (ar1, ar2), {'assume_unique': assume_unique}
    ),
    'union1d': lambda arr1, arr2: _set_operation('union1d', (arr1, arr2), {}),
    'msort': lambda a: launches.launch('cupy_msort', lambda x: np.sort(x, axis=0, kind='stable'), (a,)),
    'diag_indices_from': lambda arr: launches.launch('cupy_diag_indices', np.diag_indices, (arr.shape[0], arr.ndim)),
    'tril_indices_from': lambda arr, k=0: launches.launch(
        'cupy_tril_indices', np.tril_indices, (arr.shape[-2], k, arr.shape[-1])
    ),
    'triu_indices_from': lambda arr, k=0: launches.launch(
        'cupy_triu_indices', np.triu_indices, (arr.shape[-2], k, arr.shape[-1])
    ),
    'fill_diagonal': lambda a, val, wrap=False: launches.mutate(
        'cupy_fill_diagonal', lambda x, v: np.fill_diagonal(x, v, wrap), a, (val,)
    ),
}

for _name, _function in SHORT.items():
    named(_function, _name)
