"""The shapes in which elements are gone through: brought to their shortest form, and several brought to one.

CuPy numbers the elements of an iteration in C order. Two arrays belong to one iteration if they have as many elements;
their axes can be split and joined as long as each element keeps its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod

Shape = tuple[int, ...]


def shortest(shape: Sequence[int], strides: Sequence[int]) -> tuple[Shape, Shape]:
    """The same elements in the same order, with as few axes as possible."""
    lengths: list[int] = []
    steps: list[int] = []
    for length, stride in zip(shape, strides):
        if length == 1:
            continue
        if lengths and steps[-1] == length * stride:
            lengths[-1], steps[-1] = lengths[-1] * length, stride
        else:
            lengths.append(length)
            steps.append(stride)
    return tuple(lengths), tuple(steps)


def common(shapes: Iterable[Shape]) -> Shape | None:
    """The shape with the fewest axes into which all of these, of one size, can be split; None if there is none."""
    found = {1}
    for shape in shapes:
        inner = 1
        for length in reversed(shape):
            inner *= length
            found.add(inner)
    inner_first = sorted(found)
    if any(b % a for a, b in pairwise(inner_first)):
        return None
    return tuple(b // a for a, b in pairwise(inner_first))[::-1]


def split(shape: Shape, strides: Shape, to: Shape) -> Shape:
    """The strides of an array of ``shape`` whose axes are split into those of ``to``."""
    found: list[int] = []
    axes = list(zip(shape, strides))
    length, stride = axes.pop() if axes else (1, 0)
    for wanted in reversed(to):
        while length == 1 and axes:
            length, stride = axes.pop()
        found.append(stride if length > 1 else 0)
        length, stride = max(length // wanted, 1), stride * wanted
    return tuple(reversed(found))


def apart(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """True if surely no two elements share a byte."""
    reach = itemsize
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, shape) if n > 1):
        if stride < reach:
            return False
        reach += stride * (length - 1)
    return True


def size(shape: Shape) -> int:
    """The number of elements."""
    return prod(shape)
