"""Work on one element as a part of kernels over many: of described nodes alone, without a device."""

from __future__ import annotations

import pytest

from capturekit.fusion.elementwise import ARRAY, ElementOperand, ElementOperation, Elementwise, OperationParameter
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace
from capturekit.fusion.runs import MOST_ONES, MOST_OPEN, Item
from tests.fusion.test_runs import BASE, BLOCK, N, array, fused, fusion, item, memory, to


def one(block: int, **more: object) -> ElementOperand:
    return array(block, (1,), **more)  # type: ignore[arg-type]


def to_one(block: int) -> ElementOperand:
    return to(block, shape=(1,))


def every(block: int) -> ElementOperand:
    """One element that is read for each of N."""
    return ElementOperand('float32', BASE + block * BLOCK, (N,), (0,))


def place_of(nodes: list[Item], free: list[int], block: int) -> FusedPlace | None:
    """The place of a block in the first kernel, if it is in memory there."""
    kernel = fusion(nodes, free).kernels[0].kernel
    found = [place for place in kernel.places if place.in_memory and place.address == BASE + block * BLOCK]
    return found[0] if found else None


# -- computed by each thread --------------------------------------------------------------------------------------

QUOTIENT = item(0, one(0), one(1), to_one(2))
SCALED = item(1, array(3), every(2), to(4))


def test_a_value_that_is_broadcast_is_computed_by_each_thread() -> None:
    (found,) = fusion([QUOTIENT, SCALED], [2]).kernels
    kernel = found.kernel
    assert found.nodes == (0, 1) and isinstance(kernel, FusedKernel) and kernel.shape == (N,)
    assert [(p.in_memory, p.strides) for p in kernel.places] == [
        (True, (0,)), (True, (0,)), (False, ()), (True, (4,)), (True, (4,)),
    ]  # fmt: skip
    assert [step.operands for step in kernel.steps] == [(0, 1, 2), (3, 2, 4)]


def test_its_result_is_written_if_somebody_sees_it() -> None:
    place = place_of([QUOTIENT, SCALED], [], 2)
    assert place is not None and place.one and (place.loads, place.stores) == (False, True)
    later = Item(2, 'other', memory(one(2), to(5)))
    assert place_of([QUOTIENT, SCALED, later], [2], 2) == place
    assert place_of([QUOTIENT, SCALED], [2], 2) is None


def test_two_kernels_that_read_it_are_both_fused() -> None:
    nodes = [QUOTIENT, SCALED, Item(2, 'other', memory(array(4), to_one(5))), item(3, array(3), every(2), to(4))]
    nodes.append(item(4, array(4), to(6)))
    assert fused(nodes, [2]) == [(0, 1), (3, 4)]
    place = place_of(nodes, [2], 2)
    assert place is not None and place.stores


def test_what_every_thread_reads_is_changed_by_none() -> None:
    """The thread of the first element may write before others read."""
    changed = item(0, one(2), to_one(2))
    assert fused([changed, SCALED], []) == []
    assert fused([QUOTIENT, item(1, one(2), to_one(2)), item(2, array(3), every(2), to(4))], []) == [(0, 1, 2)]
    masked = item(0, one(0), ElementOperand('float32', BASE + 2 * BLOCK, (1,), (4,), None, True, True))
    assert fused([masked, SCALED], []) == []


def test_an_operation_that_asks_for_its_number_stays_alone() -> None:
    parameters = (
        OperationParameter('x', 'float32', 'float32', ARRAY),
        OperationParameter('y', 'float32', 'float32', ARRAY, True),
    )
    for code, nodes in (('y = x + i', []), ('y = x + 1', [(0, 1)])):
        does = Elementwise('mine', ElementOperation(code, '', parameters, (), False), (one(0), to_one(2)))
        assert fused([Item(0, does, memory(one(0), to_one(2))), SCALED], [2]) == nodes


@pytest.mark.parametrize('touched', [to_one(0), one(2), to_one(2)])
def test_a_node_between_that_needs_its_order_keeps_it_alone(touched: ElementOperand) -> None:
    nodes = [QUOTIENT, Item(1, 'other', memory(touched, to(7))), item(2, array(3), every(2), to(4))]
    assert fused(nodes, [2]) == []
    nodes[1] = Item(1, 'other', memory(one(0), to(7)))
    assert fused(nodes, [2]) == [(0, 2)]


def test_the_kernel_writes_nothing_that_a_thread_reads_for_it() -> None:
    """The array comes to lie where the value's input is: written, other threads would read it instead."""
    over = item(1, array(3), every(2), to(0))
    assert fused([QUOTIENT, over], [2]) == []
    assert fused([QUOTIENT, over, item(2, array(0), to(4))], [0, 2]) == [(0, 1, 2)]
    around = item(1, array(3), every(2), to(2))  # the value itself is written over: it is needed before that only
    assert fused([QUOTIENT, around], []) == [(0, 1)]


def test_an_array_that_has_the_value_in_it_is_read_after_it() -> None:
    part = item(0, one(0), ElementOperand('float32', BASE + 3 * BLOCK, (1,), (4,), None, False, True, True))
    assert fused([part, item(1, array(3), every(1), to(4))], []) == []


def test_each_thread_does_so_much_work_at_most() -> None:
    line = [QUOTIENT, *(item(n, one(2), to_one(2)) for n in range(1, MOST_ONES))]
    reader = item(MOST_ONES, array(3), every(2), to(4))
    assert fused([*line, reader], [2]) == [(*range(MOST_ONES), MOST_ONES)]
    line.append(item(MOST_ONES, one(2), to_one(2)))
    reader = item(MOST_ONES + 1, array(3), every(2), to(4))
    assert fused([*line, reader], [2]) == [tuple(range(MOST_ONES + 1))]


def test_of_several_values_each_is_in_the_kernel() -> None:
    nodes = [QUOTIENT, item(1, one(0), to_one(5)), item(2, every(2), every(5), to(4))]
    assert fused(nodes, [2, 5]) == [(0, 1, 2)]
    nodes = [item(0, array(3), to(6)), item(1, one(0), to_one(2)), item(2, array(6), every(2), to(4))]
    assert sorted(fused(nodes, [2])[0]) == [0, 1, 2]


# -- done beside other work ----------------------------------------------------------------------------------------

COPIED = one(0), to_one(1)
COPY, LARGE = item(0, *COPIED), item(1, array(3), to(4))


def test_work_that_nobody_in_the_kernel_reads_is_done_beside() -> None:
    assert fused([COPY, LARGE], []) == [(0, 1)]
    assert fused([item(0, array(3), to(4)), item(1, one(0), to_one(1))], []) == [(0, 1)]
    place = place_of([COPY, LARGE], [], 1)
    assert place is not None and place.one and place.stores


def test_it_is_not_done_where_either_needs_its_order() -> None:
    reads = item(0, array(3), every(1), to(4))
    assert fused([reads, item(1, one(0), to_one(1))], []) == []
    assert fused([COPY, Item(1, 'other', memory(one(1), to(7))), item(2, array(3), to(4))], []) == []
    assert fused([item(0, array(3), to(4)), Item(1, 'other', memory(array(4), to(7))), item(2, *COPIED)], []) == []
    assert fused([item(0, array(3), to(4)), Item(1, 'other', memory(array(8), to(7))), item(2, *COPIED)], []) == [
        (0, 2)
    ]


def test_work_beside_ends_where_each_part_of_it_does() -> None:
    """The first value is read before the second one can be made."""
    reads, other = Item(2, 'other', memory(one(1), to(7))), item(3, one(8), to_one(9))
    assert fused([COPY, LARGE, reads, other], []) == [(0, 1)]
    assert fused([COPY, LARGE, Item(2, 'other', memory(one(10), to(7))), other], []) == [(0, 1, 3)]


def test_a_kernel_that_was_lost_sight_of_is_not_moved() -> None:
    """So many can be moved at a time; of others it is not known what needs its order with them."""
    sizes = [item(n, array(20 + n, (2 + n,)), to(40 + n, shape=(2 + n,))) for n in range(MOST_OPEN)]
    again = [item(n, array(40 + n, (2 + n,)), to(40 + n, shape=(2 + n,))) for n in range(1, MOST_OPEN)]
    more = item(0, array(60, (2,)), to(61, shape=(2,)))
    nodes = [*sizes, item(0, array(3), to(4)), *again, more, Item(0, 'unknown', None), item(1, *COPIED)]
    assert all(len(nodes) - 1 not in found for found in fused(nodes, []))


def test_a_copied_element_is_read_where_it_was() -> None:
    ends = one(0), to_one(1)
    copy = Item(0, Elementwise('cupy_copy', 'copy', ends, True), memory(*ends))
    nodes = [copy, item(1, one(1), to_one(2)), item(2, array(3), every(2), to(4))]
    (found,) = fusion(nodes, [1, 2]).kernels
    assert (found.nodes, found.copies) == ((1, 2), (0,)) and not any(place.pieces for place in found.kernel.places)
    assert found.kernel.places[0].address == BASE


def test_it_does_not_keep_a_reduction_from_what_is_in_front() -> None:
    """The value is read before the reduction, so a kernel that makes it could not be moved there."""
    reads, total = Item(2, 'other', memory(one(1), to(7))), Item(3, 'a sum', memory(array(4), to_one(8)))
    assert fused([COPY, LARGE, reads, total], []) == [(0, 1)]
    assert fused([COPY, LARGE, reads, total], [], reduces=(3,)) == []
    apart = Item(2, 'other', memory(one(9), to(7)))
    assert fused([COPY, LARGE, apart, total], [], reduces=(3,)) == [(0, 1)]
