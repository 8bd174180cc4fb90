"""What is said of nodes, when memory of theirs lies elsewhere now."""

from __future__ import annotations

import pytest

from capturekit.driver.node_accesses import linear
from capturekit.launch.declared import Declared

#: An array from 1000 to 1199, named by a call.
NAMED = Declared(True, True, (linear(1000, 200, True),), ((1000, 1200),), 'cublas.sgemm()')


def test_an_array_is_where_it_lies_now() -> None:
    moved = NAMED.moved([(1000, 1200, 5000)])
    assert moved is not None and [one.extent for one in moved.accesses] == [(5000, 5200)]
    assert moved.has(5000) and moved.has(5199) and not moved.has(1000) and not moved.has(5200)


def test_other_memory_that_moves_is_not_named() -> None:
    """A workspace is known by its address among the node's arguments, as long as no named array has it."""
    moved = NAMED.moved([(1000, 1200, 5000), (2000, 2100, 6000)])
    assert moved is not None and not moved.has(6000) and not moved.has(2000)


def test_a_workspace_is_a_block_of_its_own_afterwards() -> None:
    """It is known by its first address and its last one, because the packed memory around it is of others, too."""
    moved = NAMED.moved_with([linear(2000, 100, True, False)], [(1000, 1200, 5000), (2000, 2100, 6000)])
    assert moved is not None and [one.extent for one in moved.accesses] == [(5000, 5200), (6000, 6100)]
    assert moved.has(6000) and not moved.has(6100)


def test_of_a_workspace_that_moves_in_part_nothing_is_noted() -> None:
    moves = [(1000, 1200, 5000), (2000, 2050, 6000)]
    assert NAMED.moved_with([linear(2000, 100, True, False)], moves) == NAMED.moved(moves)


@pytest.mark.parametrize('low, high', [(1000, 1100), (1100, 1300), (900, 1001)])
def test_of_a_part_nothing_can_be_said(low: int, high: int) -> None:
    assert NAMED.moved([(low, high, 5000)]) is None


def test_a_block_of_several_parts_is_where_they_are() -> None:
    """The block that an array lies in may hold more than what moves."""
    said = Declared(True, True, (linear(1000, 100, True),), ((1000, 1600),))
    moved = said.moved([(1000, 1200, 5000), (1400, 1500, 7000)])
    assert moved is not None and moved.blocks == ((5000, 5200), (1200, 1400), (7000, 7100), (1500, 1600))
