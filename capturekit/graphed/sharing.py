"""Which objects show memory that others show, too."""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from capturekit.graphed.value_changes import ALONE
from capturekit.graphed.watched_values import WatchedValue

#: Kinds of objects that show memory, which others may show, too.
_WITH_MEMORY = (np.ndarray, memoryview, bytearray, array.array)
#: The first address of some memory, and the one after its last.
Extent = tuple[int, int]


def holds_containers(entry: WatchedValue) -> bool:
    """Whether a watched value is or holds something that may be reached in another way, too. What settings hold is read
    by nobody else."""
    return entry.kept.kind not in ALONE and entry.kind not in ('state', 'draws', 'contents')


def overlap(arrays: Sequence[Any], others: Iterable[Any]) -> bool:
    """Whether one of some arrays shares memory with another one of them, or with one of the others."""
    shown = [*arrays, *(one for one in others if issubclass(type(one), _WITH_MEMORY))]
    return any(number < len(arrays) for group in overlapping([*map(extent_of, shown)]) for number in group)


def shared_memory(values: Iterable[Any]) -> list[tuple[Any, Extent]]:
    """The objects that show memory which another one of them shows, too, each with where that lies."""
    shown = [one for one in values if issubclass(type(one), _WITH_MEMORY)]
    extents = [*map(extent_of, shown)]
    return [(shown[number], extents[number]) for group in overlapping(extents) for number in group]


def overlapping(extents: Sequence[Extent]) -> list[list[int]]:
    """The numbers of extents that overlap, at once or by others, in groups of two or more."""
    groups: list[list[int]] = []
    end = 0
    for number in sorted(range(len(extents)), key=extents.__getitem__):
        low, high = extents[number]
        if low == high:
            continue
        if low < end:
            groups[-1].append(number)
        else:
            groups.append([number])
        end = max(end, high)
    return [group for group in groups if len(group) > 1]


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
