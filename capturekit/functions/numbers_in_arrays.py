"""NumPy arrays that a function makes of numbers with which launches reckon: ``np.array(costs)``.

While the function is recorded, such an array holds the numbers themselves. From then on nothing may compute with these:
an item of the array is a number of NumPy's in eager runs, which computes otherwise than Python's. Each launch makes the
array anew of the numbers that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from capturekit.functions.recorded_number import Number, unfollowed


class NumbersInArray(NamedTuple):
    """An array of a result: its shape, and its items in order, of which some are such numbers."""

    shape: tuple[int, ...]
    items: tuple[Any, ...]

    def filled(self, value_of: Callable[[Number], Any]) -> Any:
        """The array with a value in the place of each number."""
        values = [value_of(one) if type(one) is Number else one for one in self.items]
        return np.array(values).reshape(self.shape).copy()  # it owns its memory, as in an eager run


def as_item(number: Number) -> Any:
    """What NumPy asks a number for, to put it into an array."""
    made = np.empty((), object)
    made[()] = number
    return made


def numbers_in(array: Any, alone: bool) -> NumbersInArray | None:
    """The numbers in an array; None if it has none. ``alone``: refuse other floating-point numbers beside them."""
    if type(array) is not np.ndarray or array.dtype != object:
        return None
    items = list(array.flat)
    if not any(type(one) is Number for one in items):
        return None
    if alone and not all(type(one) is Number for one in items):
        raise unfollowed('an array has other values beside them')
    return NumbersInArray(array.shape, tuple(items))
