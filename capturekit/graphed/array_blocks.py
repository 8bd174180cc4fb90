"""Which arrays and other objects share memory, and new arrays of the same layout as others."""

from __future__ import annotations

import array
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from capturekit.launch.array_extent import extent

#: Kinds of objects that show memory of the host, which others may show, too.
_WITH_MEMORY = (np.ndarray, memoryview, bytearray, array.array)
#: The first address of some memory, and the one after its last.
Extent = tuple[int, int]


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
    groups = groups_of([extent(one) for _, one in arrays])
    return [(low, high, [arrays[number] for number in numbers]) for low, high, numbers in groups]


def groups_of(extents: Sequence[Extent]) -> list[tuple[int, int, list[int]]]:
    """The numbers of extents in groups that overlap, at once or by others, with the extent of each group."""
    groups: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(extents)), key=extents.__getitem__):
        low, high = extents[number]
        if groups and low < groups[-1][1]:
            start, end, numbers = groups[-1]
            groups[-1] = start, max(end, high), [*numbers, number]
        else:
            groups.append((low, high, [number]))
    return groups


def overlapping(extents: Sequence[Extent]) -> list[list[int]]:
    """The numbers of extents that overlap, in groups of two or more. One of no bytes overlaps none."""
    groups = [[n for n in numbers if extents[n][0] < extents[n][1]] for _, _, numbers in groups_of(extents)]
    return [group for group in groups if len(group) > 1]


def overlap(arrays: Sequence[Any], others: Iterable[Any]) -> bool:
    """Whether one of some arrays of the host shares memory with another one of them, or with one of the others."""
    shown = [*arrays, *(one for one in others if issubclass(type(one), _WITH_MEMORY))]
    return any(number < len(arrays) for group in overlapping([*map(extent_of, shown)]) for number in group)


def shared_memory(values: Iterable[Any]) -> list[tuple[Any, Extent]]:
    """The objects that show memory which another one of them shows, too, each with where that lies."""
    shown = [one for one in values if issubclass(type(one), _WITH_MEMORY)]
    extents = [*map(extent_of, shown)]
    return [(shown[number], extents[number]) for group in overlapping(extents) for number in group]


def extent_of(value: Any) -> Extent:
    """Where the memory lies that an object shows; (0, 0) if there is none."""
    if type(value) is array.array:
        start, length = value.buffer_info()
        return start, start + length * value.itemsize
    try:
        seen = value if issubclass(type(value), np.ndarray) else np.asarray(memoryview(value))
    except (ValueError, TypeError):  # it is released, or of a format that NumPy does not know
        return 0, 0
    low, high = np.lib.array_utils.byte_bounds(seen) if seen.size else (0, 0)
    return low, high


def same_array(array: Any) -> Any:
    """Another object for the same elements."""
    return type(array)(array.shape, array.dtype, array.data, array.strides)


def elsewhere(arrays: Sequence[Any], memory: Callable[[Any, int, int], Any]) -> list[Any]:
    """Arrays like these in other memory. Those that share memory share it there in the same way.

    ``memory``: gives the other memory, for an array and the extent of all that share memory with it.
    """
    found: dict[int, Any] = {}
    for low, high, members in spans(list(enumerate(arrays))):
        base = memory(members[0][1], low, high)
        for index, one in members:
            found[index] = type(one)(one.shape, one.dtype, base + (int(one.data.ptr) - low), one.strides)
    return [found[index] for index in range(len(arrays))]
