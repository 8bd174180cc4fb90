"""Two ways to go through the same elements, brought to one: compared with the addresses of NumPy's views."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from capturekit.fusion.reductions import arranged, itself, padded
from capturekit.fusion.runs import shortest
from tests.examples import examples


def addresses(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Where the elements lie, in the order in which they are gone through."""
    found = np.zeros(shape, np.int64)
    for axis, stride in enumerate(strides):
        found += (np.arange(shape[axis]) * stride).reshape((-1, *[1] * (len(shape) - axis - 1)))
    return [int(one) for one in found.reshape(-1)]


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_both_ways_visit_the_same_elements(data: Any) -> None:
    lengths = data.draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4))
    whole = np.zeros(lengths, 'f4')
    axes = data.draw(st.permutations(range(whole.ndim)))
    cut = data.draw(st.integers(0, prod(lengths)))
    mine = shortest(whole.shape, whole.strides)
    one = whole.transpose(axes) if cut % 3 else whole.reshape(-1)
    theirs = (one.shape, one.strides)
    way = arranged(mine, theirs)
    assert way is not None
    assert prod(way.shape) == whole.size
    assert addresses(way.shape, way.mine(mine[1])) == addresses(way.shape, way.theirs(theirs[1]))
    assert addresses(way.shape, way.theirs(theirs[1])) == addresses(*theirs)
    order = addresses(way.shape, way.mine(mine[1]))
    assert way.in_order == (order == sorted(order))


def test_other_elements_have_no_common_way() -> None:
    assert arranged(((6,), (4,)), ((3,), (8,))) is None
    assert arranged(((6,), (4,)), ((2, 3), (16, 4))) is None
    assert arranged(((4,), (4,)), ((6,), (4,))) is None
    assert arranged(((4, 3), (12, 4)), ((6, 2), (8, 4))) is None


def test_a_way_as_it_is_and_with_more_axes() -> None:
    way = itself((4, 1, 3))
    assert way.in_order and way.shape == (4, 1, 3) and way.mine((12, 7, 4)) == (12, 0, 4)
    assert padded((3,), (4,), 3) == ((1, 1, 3), (0, 0, 4))
