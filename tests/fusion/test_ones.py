"""Work on one element as a part of kernels over many: of described nodes alone, without a device."""

from __future__ import annotations

import pytest

from capturekit.fusion.elementwise import ARRAY, ElementOperand, ElementOperation, Elementwise, OperationParameter
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace
from capturekit.fusion.runs import MOST_ONES, MOST_OPEN, Item
from tests.fusion.test_runs import BASE, BLOCK, N, array, fused, fusion, item, memory, other, to


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


QUOTIENT = item(0, one(0), one(1), to_one(2))
SCALED, LATER = item(1, array(3), every(2), to(4)), item(2, array(3), every(2), to(4))
PART = ElementOperand('float32', BASE + 3 * BLOCK, (1,), (4,), None, False, True, True)
MASKED = ElementOperand('float32', BASE + 2 * BLOCK, (1,), (4,), None, True, True)
OVER = item(1, array(3), every(2), to(0))
COPIED = one(0), to_one(1)
COPY, LARGE, LARGE_FIRST = item(0, *COPIED), item(1, array(3), to(4)), item(0, array(3), to(4))
ANOTHER, TOTAL = item(3, one(8), to_one(9)), other(3, array(4), to_one(8))
AFTER_A_LARGE = [item(0, array(3), to(6)), item(1, one(0), to_one(2)), item(2, array(6), every(2), to(4))]

#: Nodes in a row, blocks that are free, and the nodes of each kernel.
FUSED: dict[str, tuple[list[Item], list[int], list[tuple[int, ...]]]] = {
    # computed by each thread
    'the value is read': ([QUOTIENT, SCALED], [2], [(0, 1)]),
    'a value of a value': ([QUOTIENT, item(1, one(2), to_one(2)), LATER], [], [(0, 1, 2)]),
    'the thread of the first element may write before others read': ([item(0, one(2), to_one(2)), SCALED], [], []),
    'so it may with a mask': ([item(0, one(0), MASKED), SCALED], [], []),
    'its input changes in between': ([QUOTIENT, other(1, to_one(0), to(7)), LATER], [2], []),
    'it is read in between': ([QUOTIENT, other(1, one(2), to(7)), LATER], [2], []),
    'it is written in between': ([QUOTIENT, other(1, to_one(2), to(7)), LATER], [2], []),
    'its input is read in between': ([QUOTIENT, other(1, one(0), to(7)), LATER], [2], [(0, 2)]),
    'the array comes to lie where its input is': ([QUOTIENT, OVER], [2], []),
    'that is no memory in the end': ([QUOTIENT, OVER, item(2, array(0), to(4))], [0, 2], [(0, 1, 2)]),
    'the value, needed before, is written over': ([QUOTIENT, item(1, array(3), every(2), to(2))], [], [(0, 1)]),
    'an array has the value in it': ([item(0, one(0), PART), item(1, array(3), every(1), to(4))], [], []),
    'two values': ([QUOTIENT, item(1, one(0), to_one(5)), item(2, every(2), every(5), to(4))], [2, 5], [(0, 1, 2)]),
    'a value behind an array': (AFTER_A_LARGE, [2], [(0, 1, 2)]),
    # done beside other work
    'before it': ([COPY, LARGE], [], [(0, 1)]),
    'behind it': ([LARGE_FIRST, item(1, *COPIED)], [], [(0, 1)]),
    'it writes what the work reads': ([item(0, array(3), every(1), to(4)), item(1, *COPIED)], [], []),
    'its result is read in between': ([COPY, other(1, one(1), to(7)), item(2, array(3), to(4))], [], []),
    "the work's result is read in between": ([LARGE_FIRST, other(1, array(4), to(7)), item(2, *COPIED)], [], []),
    'something else is read in between': ([LARGE_FIRST, other(1, array(8), to(7)), item(2, *COPIED)], [], [(0, 2)]),
    'the first is read before the next is made': ([COPY, LARGE, other(2, one(1), to(7)), ANOTHER], [], [(0, 1)]),
    'a second one': ([COPY, LARGE, other(2, one(10), to(7)), ANOTHER], [], [(0, 1, 3)]),
}  # fmt: skip


@pytest.mark.parametrize('what', FUSED)
def test_kernels_have_these_nodes(what: str) -> None:
    nodes, free, kernels = FUSED[what]
    assert fused(nodes, free) == kernels


def test_a_value_that_is_broadcast_is_computed_by_each_thread() -> None:
    (found,) = fusion([QUOTIENT, SCALED], [2]).kernels
    kernel = found.kernel
    assert isinstance(kernel, FusedKernel) and kernel.shape == (N,)
    assert [(p.in_memory, p.strides) for p in kernel.places] == [
        (True, (0,)), (True, (0,)), (False, ()), (True, (4,)), (True, (4,)),
    ]  # fmt: skip
    assert [step.operands for step in kernel.steps] == [(0, 1, 2), (3, 2, 4)]


def test_its_result_is_written_if_somebody_sees_it() -> None:
    place = place_of([QUOTIENT, SCALED], [], 2)
    assert place is not None and place.one and (place.loads, place.stores) == (False, True)
    assert place_of([QUOTIENT, SCALED, other(2, one(2), to(5))], [2], 2) == place
    assert place_of([QUOTIENT, SCALED], [2], 2) is None
    copied = place_of([COPY, LARGE], [], 1)
    assert copied is not None and copied.one and copied.stores


def test_two_kernels_that_read_it_are_both_fused() -> None:
    nodes = [QUOTIENT, SCALED, other(2, array(4), to_one(5)), item(3, array(3), every(2), to(4))]
    nodes.append(item(4, array(4), to(6)))
    assert fused(nodes, [2]) == [(0, 1), (3, 4)]
    place = place_of(nodes, [2], 2)
    assert place is not None and place.stores


def test_an_operation_that_asks_for_its_number_stays_alone() -> None:
    x = OperationParameter('x', 'float32', 'float32', ARRAY)
    parameters = x, OperationParameter('y', 'float32', 'float32', ARRAY, True)
    for code, nodes in (('y = x + i', []), ('y = x + 1', [(0, 1)])):
        does = Elementwise('mine', ElementOperation(code, '', parameters, (), False), (one(0), to_one(2)))
        assert fused([Item(0, does, memory(one(0), to_one(2))), SCALED], [2]) == nodes


def test_each_thread_does_so_much_work_at_most() -> None:
    for more in (0, 1):
        count = MOST_ONES + more
        line = [QUOTIENT, *(item(n, one(2), to_one(2)) for n in range(1, count))]
        together = [(*range(count), count)] if not more else [tuple(range(count))]
        assert fused([*line, item(count, array(3), every(2), to(4))], [2]) == together


def test_a_kernel_that_was_lost_sight_of_is_not_moved() -> None:
    """So many can be moved at a time; of others it is not known what needs its order with them."""
    sizes = [item(n, array(20 + n, (2 + n,)), to(40 + n, shape=(2 + n,))) for n in range(MOST_OPEN)]
    again = [item(n, array(40 + n, (2 + n,)), to(40 + n, shape=(2 + n,))) for n in range(1, MOST_OPEN)]
    more = item(0, array(60, (2,)), to(61, shape=(2,)))
    nodes = [*sizes, LARGE_FIRST, *again, more, Item(0, 'unknown', None), item(1, *COPIED)]
    assert all(len(nodes) - 1 not in found for found in fused(nodes, []))


def test_a_copied_element_is_read_where_it_was() -> None:
    copy = Item(0, Elementwise('cupy_copy', 'copy', COPIED, True), memory(*COPIED))
    nodes = [copy, item(1, one(1), to_one(2)), LATER]
    (found,) = fusion(nodes, [1, 2]).kernels
    assert (found.nodes, found.copies) == ((1, 2), (0,)) and not any(place.pieces for place in found.kernel.places)
    assert found.kernel.places[0].address == BASE


def test_it_does_not_keep_a_reduction_from_what_is_in_front() -> None:
    """The value is read before the reduction, so a kernel that makes it could not be moved there."""
    for read, apart in ((1, []), (9, [(0, 1)])):
        nodes = [COPY, LARGE, other(2, one(read), to(7)), TOTAL]
        assert (fused(nodes, []), fused(nodes, [], reduces=(3,))) == ([(0, 1)], apart)
