"""Where the elements of an array lie."""

from __future__ import annotations

from typing import Any


def extent(array: Any) -> tuple[int, int]:
    """The first address of an array's elements and the one after its last."""
    low = high = int(array.data.ptr)
    if array.size:
        for length, stride in zip(array.shape, array.strides):
            low += min(0, (length - 1) * stride)
            high += max(0, (length - 1) * stride)
        high += int(array.itemsize)
    return low, high
