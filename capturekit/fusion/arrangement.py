"""Two ways to go through the same elements of memory, brought to one: axes split and put into another order.

A reduction goes through its input with the axes that it reduces first; the kernel that made the input went through it
in C order of another shape. As each element has an address, the two ways can be compared by their strides alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from capturekit.fusion.iteration_space import Shape


@dataclass(frozen=True)
class _Axis:
    """An axis of both ways: its length, which axis of each it is a part of, and its step there, in elements."""

    length: int
    mine: int
    my_step: int
    theirs: int
    their_step: int


@dataclass(frozen=True)
class Arrangement:
    """How one way to go through elements is gone through in the order of another one."""

    axes: tuple[_Axis, ...]

    @property
    def shape(self) -> Shape:
        """The shape of both, in the order of the other one."""
        return tuple(one.length for one in self.axes)

    @property
    def in_order(self) -> bool:
        """Whether both number the elements alike."""
        return list(self.axes) == sorted(self.axes, key=lambda one: (one.mine, -one.my_step))

    def mine(self, strides: Sequence[int]) -> Shape:
        """The strides of an array of the one way."""
        return tuple(strides[one.mine] * one.my_step if one.length > 1 else 0 for one in self.axes)

    def theirs(self, strides: Sequence[int]) -> Shape:
        """The strides of an array of the other way."""
        return tuple(strides[one.theirs] * one.their_step if one.length > 1 else 0 for one in self.axes)


def arranged(mine: tuple[Shape, Shape], theirs: tuple[Shape, Shape]) -> Arrangement | None:
    """Bring two ways together, each given by the shape and the strides of elements that lie apart.

    None if they do not go through the same elements, or no axes can be found for both.
    """
    left, right = (_steps(*one) for one in (mine, theirs))
    found: list[_Axis] = []
    while left and right:
        (length, stride, at, step), (other, same, there, place) = left.pop(), right.pop()
        part, more = min(length, other), max(length, other)
        if stride != same or more % part:
            return None
        found.append(_Axis(part, at, step, there, place))
        if length > part:
            left.append((length // part, stride * part, at, step * part))
        elif other > part:
            right.append((other // part, same * part, there, place * part))
    if left or right:
        return None
    return Arrangement(tuple(sorted(found, key=lambda one: (one.theirs, -one.their_step))))


def itself(shape: Shape) -> Arrangement:
    """A way as it is."""
    return Arrangement(tuple(_Axis(length, n, 1, n, 1) for n, length in enumerate(shape)))


def _steps(shape: Shape, strides: Shape) -> list[tuple[int, int, int, int]]:
    """Axes by falling strides: length, stride, number, and how many elements of the axis one step is."""
    axes = [(n, s, at, 1) for at, (n, s) in enumerate(zip(shape, strides)) if n > 1]
    return sorted(axes, key=lambda one: -abs(one[1]))


def padded(shape: Shape, strides: Shape, ndim: int) -> tuple[Shape, Shape]:
    """The same elements with so many axes."""
    more = ndim - len(shape)
    return (1,) * more + shape, (0,) * more + strides


def count(shape: Shape) -> int:
    """How many elements there are."""
    return prod(shape)
