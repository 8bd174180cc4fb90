"""Equal containers count as those that were read only if they are one object, or share memory, in the same places.

Each function changes a container, reads it by another name, and changes it back. Between calls, names that led to one
container come to lead to two equal ones, or the other way round.
"""

from __future__ import annotations

import array

import numpy as np

from capturekit.functions.sharing import extent_of, layout


def test_the_layout_of_memory() -> None:
    assert layout([(0, 8), (8, 16), (5, 5)]) == [None, None, None]
    assert layout([(16, 32), (100, 108), (24, 40), (36, 44)]) == [(0, (0, 16)), None, (0, (8, 24)), (0, (20, 28))]
    moved = [(1016, 1032), (0, 8), (1024, 1040), (1036, 1044)]
    assert layout(moved) == layout([(16, 32), (100, 108), (24, 40), (36, 44)])


def test_where_the_memory_of_objects_lies() -> None:
    whole = bytearray(24)
    view = memoryview(whole)
    low, high = extent_of(whole)
    assert high - low == 24
    assert extent_of(view[8:]) == (low + 8, high)
    assert extent_of(np.frombuffer(whole, np.uint8)[::-1]) == (low, high)
    numbers = array.array('d', [1.0, 2.0])
    assert extent_of(numbers) == extent_of(memoryview(numbers))
    view.release()
    assert extent_of(view) == extent_of(bytearray()) == (0, 0)
