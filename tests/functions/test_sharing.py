"""Which objects show memory that others show, too."""

from __future__ import annotations

import array

import numpy as np

from capturekit.functions.sharing import extent_of, overlapping, shared_memory


def test_the_extents_that_overlap() -> None:
    assert overlapping([(0, 8), (8, 16), (5, 5)]) == []
    assert overlapping([(16, 32), (100, 108), (24, 40), (36, 44)]) == [[0, 2, 3]]
    assert overlapping([(0, 8), (50, 60), (4, 6), (55, 56)]) == [[0, 2], [1, 3]]


def test_the_objects_that_share_their_memory() -> None:
    whole, alone = bytearray(24), np.ones(3)
    view = memoryview(whole)[8:]
    assert shared_memory([alone, whole, 'text', view]) == [(whole, extent_of(whole)), (view, extent_of(view))]


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
