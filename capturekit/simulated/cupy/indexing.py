"""``array[key]`` and ``array[key] = value``, with CuPy's rules where they differ from NumPy's.

Indices that are out of bounds wrap around; scalars in a key take views before arrays in it gather; a mask's length is
read by the host first, since it decides the result's shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import conversions, launches, runtime_calls, runtime_memory
from .layout import Layout, Shape

_UPDATES: dict[str, Callable[..., None]] = {
    'add': np.add.at,
    'sub': np.subtract.at,
    'max': np.maximum.at,
    'min': np.minimum.at,
    'and': np.bitwise_and.at,
    'or': np.bitwise_or.at,
    'xor': np.bitwise_xor.at,
}


def _prepare(key: Any) -> list[Any]:
    """Return the key as a list whose lists and host arrays have been uploaded."""
    prepared = []
    for k in key if isinstance(key, tuple) else (key,):
        plain = k is None or k is Ellipsis or isinstance(k, (slice, Layout))
        if plain or (np.isscalar(k) and not isinstance(k, (bool, np.bool_))):
            prepared.append(k)
            continue
        try:
            found = conversions.array(k, None, None)
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
    used = sum(_axes_used(k) for k in prepared)
    if used > array.ndim:
        raise IndexError(f'too many indices for array: array is {array.ndim}-dimensional, but {used} were indexed')
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
    return launches.view(_basic, array, tuple(basic)), arrays


def _basic(a: NDArray[Any], key: tuple[Any, ...]) -> Any:
    return a[key]


def _axes_used(k: Any) -> int:
    if k is None or k is Ellipsis:
        return 0
    if not isinstance(k, Layout):
        return 1
    if k.dtype.kind == 'b':
        return k.ndim
    if k.dtype.kind in 'iu':
        return 1
    raise IndexError(f'arrays used as indices must be of integer or boolean type. (actual: {k.dtype.type})')


def _check_mask(array: Any, mask: Any, axis: int) -> None:
    for i, n in enumerate(mask.shape):
        if array.shape[axis + i] != n:
            raise IndexError(
                f'boolean index did not match indexed array along dimension {axis + i}; '
                f'dimension is {array.shape[axis + i]} but corresponding boolean dimension is {n}'
            )


def count_true(mask: Any) -> int:
    """Return how many elements are not zero; the host waits for it."""
    return int(launches.launch('cupy_count_nonzero', np.count_nonzero, (mask,)))


def nonzero(array: Any) -> tuple[Any, ...]:
    """Return the indices of what is not zero; the host waits for their number."""
    if array.ndim == 0:
        raise ValueError('Calling nonzero on 0d arrays is not allowed. Use cp.atleast_1d(scalar).nonzero() instead.')
    n = count_true(array)
    found: tuple[Any, ...] = launches.launch('cupy_nonzero', np.nonzero, (array,), shapes=[(n,)] * array.ndim)
    return found


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


def _check_length(shape: Shape, axes: list[int], indices: list[Shape]) -> None:
    """Raise cudaErrorIllegalAddress for indices into an axis of length 0.

    CuPy's kernel takes them modulo the length and writes outside of the array (seen on an H200, driver 580.159.04).
    """
    others = math.prod(n for axis, n in enumerate(shape) if axis not in axes)
    written = math.prod(np.broadcast_shapes(*indices)) * others
    if written and not all(shape[axis] for axis in axes):
        raise runtime_calls.CUDARuntimeError(runtime_memory.ILLEGAL_ADDRESS)


def getitem(array: Any, key: Any) -> Any:
    """Return ``array[key]``: a view, or a gathered copy where the key has arrays."""
    if array.dtype.fields is not None and isinstance(key, (str, list)):
        return launches.view(_basic, array, key)
    seen, arrays = _split(array, key)
    if not arrays:
        return seen
    if len(arrays) == 1 and arrays[0][1].dtype.kind == 'b':
        return _compressed(seen, *arrays[0])
    indexed = _integers(seen, arrays)
    axes = [axis for axis, _ in indexed]

    def gather(a: NDArray[Any], *indices: Any) -> NDArray[Any]:
        found: NDArray[Any] = a[_wrapped(a.shape, axes, indices)]
        return found

    return launches.launch('cupy_take', gather, (seen, *(index for _, index in indexed)))


def _compressed(seen: Any, axis: int, mask: Any) -> Any:
    _check_mask(seen, mask, axis)
    shape = (*seen.shape[:axis], count_true(mask), *seen.shape[axis + mask.ndim :])
    before = (slice(None),) * axis

    def compress(a: NDArray[Any], m: NDArray[Any]) -> Any:
        where: Any = (*before, m)
        return a[where]

    return launches.launch('cupy_getitem_mask', compress, (seen, mask), shapes=[shape])


def _scatter_masked(seen: Any, axis: int, mask: Any, value: Any, op: str) -> None:
    _check_mask(seen, mask, axis)
    n = count_true(mask)
    shape = (*seen.shape[:axis], n, *seen.shape[axis + mask.ndim :])
    if 0 in shape:
        return
    if launches.as_array(value) is None:
        value = conversions.array(value, dtype=seen.dtype)
    np.broadcast_shapes(value.shape, shape)
    before = (slice(None),) * axis

    def write(a: NDArray[Any], m: NDArray[Any], v: NDArray[Any]) -> None:
        where: Any = (*before, m)
        # The kernel looks at the mask anew, whatever its length was when the host asked.
        now = np.count_nonzero(m)
        at = len(shape) - axis
        if now != n and v.ndim >= at and v.shape[-at] != 1:
            v = np.resize(v, (*v.shape[:-at], now, *v.shape[v.ndim - at + 1 :]))
        if op == 'update':
            a[where] = v
        else:
            _UPDATES[op](a, where, v)

    launches.mutate(f'cupy_scatter_{op}_mask', write, seen, (mask, value))


def setitem(array: Any, key: Any, value: Any) -> None:
    """``array[key] = value``."""
    if array.dtype.fields is not None and isinstance(key, (str, list)):
        array, key = launches.view(_basic, array, key), Ellipsis
    scatter(array, key, value, 'update')


def scatter(array: Any, key: Any, value: Any, op: str) -> None:
    """Combine ``value`` into ``array[key]``: 'update', 'add', 'max' and so on."""
    if op != 'update' and op not in _UPDATES:
        raise ValueError('this op is not supported')
    seen, arrays = _split(array, key)
    if not arrays:
        _assign(seen, value, op)
        return
    if len(arrays) == 1 and arrays[0][1].dtype.kind == 'b':
        _scatter_masked(seen, *arrays[0], value, op)
        return
    indexed = _integers(seen, arrays)
    if launches.as_array(value) is None:
        value = conversions.array(value, dtype=seen.dtype)
    axes = [axis for axis, _ in indexed]
    _check_length(seen.shape, axes, [index.shape for _, index in indexed])

    def write(a: NDArray[Any], v: NDArray[Any], *indices: Any) -> None:
        where = _wrapped(a.shape, axes, indices)
        if op == 'update':
            a[where] = v
        else:
            _UPDATES[op](a, where, v)

    launches.mutate(f'cupy_scatter_{op}', write, seen, (value, *(index for _, index in indexed)))


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
