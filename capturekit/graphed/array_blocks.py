"""Arrays that share memory, and new arrays of the same layout as others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from capturekit.launch.array_extent import extent


def block_like(cupy: Any, block: Any) -> Any:
    """A new array of a block's shape, dtype and strides, from CuPy's current allocator."""
    if has_strides_of_a_new_array(block):
        return cupy.ndarray(block.shape, block.dtype)
    low, high = extent(block)
    pointer = cupy.cuda.alloc(max(high - low, 1)) + (block.data.ptr - low)
    return cupy.ndarray(block.shape, block.dtype, pointer, block.strides)


def has_strides_of_a_new_array(array: Any) -> bool:
    """True if the strides are those that CuPy gives a new array: zeros where it has no elements.

    ``c_contiguous`` does not ask that of arrays without elements, nor of axes of length 1.
    """
    if not array.size:
        return not any(array.strides)
    stride = int(array.itemsize)
    for length, own in zip(reversed(array.shape), reversed(array.strides)):
        if own != stride:
            return False
        stride *= length
    return True


def array_maker(cupy: Any, shape: tuple[int, ...], dtype: Any) -> Callable[[], Any]:
    """What makes a new array from CuPy's current allocator at each call, as ``cupy.ndarray(shape, dtype)`` does.

    It takes less than half the time: arguments are not passed on from class to class, and CuPy finds a dtype by its
    letter at once.
    """
    cls = cupy.ndarray
    make, begin = cls.__base__.__new__, cls._init
    kind = dtype.char if np.dtype(dtype.char) is dtype else dtype

    def new_array() -> Any:
        array = make(cls)
        begin(array, shape, kind)
        return array

    return new_array


def layout_of(array: Any) -> tuple[Callable[[Any], Any], Any]:
    """A function that tells arrays of other shapes or strides from this one, and what it says of this one.

    It asks CuPy for little: a shape takes it as long as eight numbers. Strides need no look in a contiguous array, but
    for an axis of length 1, which may have any.
    """
    if not array._c_contiguous or not array.size or 1 in array.shape:
        look: Callable[[Any], Any] = operator.attrgetter('shape', 'strides')
    elif array.ndim == 1:
        look = operator.attrgetter('size', 'ndim', '_c_contiguous')
    else:
        look = operator.attrgetter('shape', '_c_contiguous')
    return look, look(array)


def whole_extent(array: Any) -> tuple[int, int]:
    """First address and end of the memory block that an array lies in."""
    low, high = extent(array)
    memory = array.data.mem
    return min(low, int(memory.ptr)), max(high, int(memory.ptr) + int(memory.size))


def are_whole(arrays: Sequence[Any]) -> bool:
    """True if none of the arrays is a part of another one."""
    return all(array.base is None and array.data.ptr == array.data.mem.ptr for array in arrays)


def spans(arrays: list[tuple[int, Any]]) -> list[tuple[int, int, list[tuple[int, Any]]]]:
    """Arrays in groups that share memory: (first address, end, members)."""
    groups: list[tuple[int, int, list[tuple[int, Any]]]] = []
    for member in sorted(arrays, key=lambda member: extent(member[1])):
        low, high = extent(member[1])
        if groups and low < groups[-1][1]:
            start, end, members = groups[-1]
            groups[-1] = (start, max(end, high), [*members, member])
        else:
            groups.append((low, max(high, low), [member]))
    return groups


def same_array(array: Any) -> Any:
    """Another object for the same elements."""
    return type(array)(array.shape, array.dtype, array.data, array.strides)


def places_of(leaves: Sequence[Any], memory: Any) -> list[Any]:
    """An array in the graph's memory for each argument. Arguments that share memory share it there in the same way."""
    found: dict[int, Any] = {}
    for low, high, members in spans(list(enumerate(leaves))):
        base = memory.slot(max(high - low, 1))
        for index, leaf in members:
            pointer = base + (int(leaf.data.ptr) - low)
            found[index] = type(leaf)(leaf.shape, leaf.dtype, pointer, leaf.strides)
    return [found[i] for i in range(len(leaves))]
