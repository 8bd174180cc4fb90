"""The last nodes of a run that a later one takes in: where bytes are saved, and where not."""

from __future__ import annotations

import pytest

from capturekit.fusion import lines as fusion
from capturekit.fusion.runs import Item
from tests.fusion.test_ones import QUOTIENT, every
from tests.fusion.test_runs import array, fused, item, memory, to

#: A kernel that makes block 1, and another one that reads a view of it.
FIRST = item(0, array(0), to(1))
VIEW = item(2, array(1, offset=4), array(2), to(3))


def test_a_result_for_a_later_kernel_is_computed_there() -> None:
    nodes = [FIRST, item(1, array(1), to(2)), VIEW, item(3, array(3), array(1), to(4))]
    assert fused(nodes, [2, 3]) == [(1, 2, 3)]
    nodes.insert(0, item(9, array(0), to(0)))
    assert fused(renumbered(nodes), [2, 3]) == [(0, 1), (2, 3, 4)]


def renumbered(nodes: list[Item]) -> list[Item]:
    return [Item(n, one.does, one.memory) for n, one in enumerate(nodes)]


TWO = [item(0, array(0), to(1)), item(1, array(1), to(1))]


def line(*more: Item) -> list[Item]:
    return renumbered([*TWO, *more])


def test_several_nodes_go_together() -> None:
    made = [item(0, array(1), to(2)), item(1, array(2), to(2)), item(2, array(2), array(1), to(5))]
    shifted, last = item(3, array(1, offset=4), array(5), to(3)), item(4, array(3), array(1), to(4))
    assert fused(line(*made, shifted, last), [2, 3, 5]) == [(0, 1), (2, 3, 4, 5, 6)]


def test_what_would_have_to_be_read_again_stays() -> None:
    """Of arrays that the later kernel does not read anyway."""
    reads = item(0, array(1), array(7), array(8), to(2))
    later = item(1, array(1, offset=4), array(2), to(3)), item(2, array(3), array(1), to(4))
    assert fused(line(reads, *later), [2, 3]) == [(0, 1), (2, 3, 4)]  # its arrays are only read there then
    first = item(0, array(0), array(7), array(8), to(1))
    assert fused(renumbered([first, reads, *later]), [2, 3]) == [(0, 1), (2, 3)]


def test_what_was_in_a_register_only_stays() -> None:
    first = [item(0, array(0), to(6)), item(1, array(6), to(1)), item(2, array(6), to(2))]
    later = item(3, array(1, offset=4), array(2), to(3)), item(4, array(3), array(1), to(4))
    assert fused([*first, *later], [2, 3, 6]) == [(0, 1, 2), (3, 4)]
    assert fused([*first, *later], [2, 3]) == [(0, 1, 2), (3, 4)]


@pytest.mark.parametrize(
    'touched, moves', [(memory(array(9), to(10)), True), (memory(array(2), to(10)), False), (None, False)]
)
def test_a_node_between_that_needs_its_order_keeps_it(touched: list[object] | None, moves: bool) -> None:
    between = Item(0, 'other', touched)  # type: ignore[arg-type]
    nodes = line(item(0, array(1), to(2)), between, VIEW, item(2, array(3), array(1), to(4)))
    assert fused(nodes, [2, 3]) == ([(0, 1), (2, 4, 5)] if moves else [(0, 1, 2), (4, 5)])


def test_what_can_not_be_moved_keeps_nothing_else() -> None:
    between = Item(0, 'other', memory(array(2), to(10)))
    nodes = [*line(item(0, array(1), to(2)), between, VIEW, item(2, array(3), array(1), to(4)))]
    more = item(0, array(11), to(11)), item(1, array(11), to(12)), item(2, array(11, offset=4), array(12), to(13))
    found = fused(renumbered([*nodes, *more, item(3, array(13), array(11), to(14))]), [2, 3, 12, 13])
    assert found == [(0, 1, 2), (4, 5, 6), (7, 8, 9)]


def test_what_makes_one_kernel_more_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [FIRST, item(1, array(1), to(2)), item(2, array(2), to(3))]
    monkeypatch.setattr(fusion, 'later', lambda *_given: {2})
    assert fused(nodes, [1, 2]) == [(0, 1, 2)]


def test_a_value_of_one_element_stays_with_its_readers() -> None:
    """Else its kernel would be one more; and nothing else would be moved then."""
    nodes = [QUOTIENT, item(1, array(3), every(2), to(3)), item(2, array(3), every(2), to(4))]
    later = item(3, array(3, offset=4), array(4), to(5)), item(4, array(5), array(3), to(6))
    assert fused([*nodes, *later], [2, 4, 5]) == [(0, 1, 2), (3, 4)]
    more = item(1, array(11), to(11)), item(2, array(11), to(12)), item(3, array(11, offset=4), array(12), to(13))
    found = fused(renumbered([*nodes, *later, *more, item(4, array(13), array(11), to(14))]), [2, 4, 5, 12, 13])
    assert found[:2] == [(0, 1, 2), (3, 4, 5)] and found[2] == (6, 7, 8)
