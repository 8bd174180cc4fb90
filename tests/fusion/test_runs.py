"""Which nodes of a line become one kernel: of described nodes alone, without a device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from capturekit.analysis.node_memory import FreeMemory
from capturekit.driver.node_accesses import Access
from capturekit.fusion.elementwise import ElementOperand, Elementwise, copying
from capturekit.fusion.lines import Definition, Does, Fusion, Liveness, fusion_of
from capturekit.fusion.reduction import Reduction
from capturekit.fusion.runs import FusionPlan, Item, access_of, key_of, runs_of
from capturekit.model.dag import Order

BASE, BLOCK, N = 1 << 40, 4096, 100


def array(
    block: int, shape: tuple[int, ...] = (N,), dtype: str = 'float32', offset: int = 0, **more: bool
) -> ElementOperand:
    """An operand at the start of a block (or ``offset`` bytes behind it), in C order."""
    size = np.dtype(dtype).itemsize
    strides = tuple(size * int(np.prod(shape[n + 1 :])) for n in range(len(shape)))
    return ElementOperand(dtype, BASE + block * BLOCK + offset, shape, strides, None, **more)


def to(block: int, **more: object) -> ElementOperand:
    return array(block, reads=False, writes=True, sure=True, **more)  # type: ignore[arg-type]


def item(number: int, *operands: ElementOperand) -> Item:
    return Item(number, Elementwise(f'cupy_op{number}', ('op', number), operands), memory(*operands))


def other(number: int, *operands: ElementOperand) -> Item:
    """A node that is no elementwise kernel."""
    return Item(number, 'it is no kernel', memory(*operands))


def bytes_moved(number: int, into: int, of: int, nbytes: int) -> Item:
    """A node that copies bytes between addresses."""
    source = ElementOperand('uint8', of, (nbytes,), (1,))
    target = ElementOperand('uint8', into, (nbytes,), (1,), None, False, True, True)
    return Item(number, 'it is no kernel', memory(source, target), (into, of, nbytes))


def memory(*operands: ElementOperand) -> list[Access]:
    return [access_of(key_of(one), one.writes) for one in operands if one.number is None]


def members(plan: FusionPlan) -> list[list[int]]:
    return [run.members for run in plan.runs]


def pages(free: Collection[int]) -> FreeMemory:
    """The memory of blocks that is free."""
    return FreeMemory((BASE + block * BLOCK, BASE + (block + 1) * BLOCK) for block in free)


def row(count: int) -> Order:
    return Order(count, pairwise(range(count)))


def fusion(
    nodes: Sequence[Item], free: Collection[int], edges: Sequence[tuple[int, int]] | None = None, **more: Any
) -> Fusion:
    """What becomes of nodes in a row, or with other edges, where these blocks are free. ``reduces``: reductions."""
    does: list[Does] = [one.does for one in nodes]
    for n in more.pop('reduces', ()):
        does[n] = Reduction('sum', None, (array(0),), to(0))
    copies = {one.number: one.copies for one in nodes if one.copies is not None}
    more = {'copying': copying, **more}
    order = row(len(nodes)) if edges is None else Order(len(nodes), edges)
    return fusion_of(Definition(order, does, [one.memory for one in nodes], pages(free), copies=copies, **more))


def fused(nodes: Sequence[Item], free: Collection[int], **more: Any) -> list[tuple[int, ...]]:
    """The nodes of each kernel."""
    return [one.nodes for one in fusion(nodes, free, **more).kernels]


# -- runs -------------------------------------------------------------------------------------------------------


FIRST, LAST = item(0, array(0), to(1)), item(2, array(1), to(2))
TURNED = ElementOperand('float32', BASE + BLOCK, (10, 10), (4, 40))
IN_THE_MIDST = [
    FIRST,
    item(1, array(1), to(1, dtype='float64')),
    item(2, array(1), to(2)),
    item(3, array(2), to(3)),
]
#: Nodes in a row, and the members of the runs that they make.
RUNS: dict[str, tuple[list[Item], list[list[int]]]] = {
    'of one size': ([FIRST, item(1, array(1), array(0), to(2)), item(2, array(2), to(1))], [[0, 1, 2]]),
    'a node between that reads': ([FIRST, other(1, array(1)), LAST], []),
    'a node between that writes': ([FIRST, other(1, to(0)), LAST], []),
    'a node between of unknown memory': ([FIRST, Item(1, 'unknown', None), LAST], []),
    'a shifted view of what is written': ([FIRST, item(1, array(1, offset=4), to(2))], []),
    'overlapping views that are only read': ([FIRST, item(1, array(0, offset=4), array(1), to(2))], [[0, 1]]),
    'read in another order than written': ([FIRST, item(1, TURNED, to(2, shape=(10, 10)))], []),
    'memory used for something else is not read again': (IN_THE_MIDST, [[0, 1], [2, 3]]),
}


@pytest.mark.parametrize('what', RUNS)
def test_members_of_runs(what: str) -> None:
    line, found = RUNS[what]
    assert members(runs_of(line)) == found


ACROSS = [item(0, array(0, offset=3600), to(1)), item(1, array(1), to(0, dtype='float64', offset=3900))]
OVER = [FIRST, item(1, array(1), to(0, dtype='float64')), item(2, array(0, dtype='float64'), to(2))]


@pytest.mark.parametrize(
    ('nodes', 'free', 'kernels'),
    [
        ([item(0, array(0, offset=4), to(2)), item(1, array(2), to(0))], [], []),
        (OVER, [0, 1], [(0, 1, 2)]),
        (OVER, [1], [(1, 2)]),  # the new array has to be written, which another thread may not have read yet
        (ACROSS, [0, 1], []),  # neither is needed, but one has to be written, and the second lies across both
        ([item(0, array(0), to(0, dtype='float64')), item(1, array(0, dtype='float64'), to(1))], [0], []),
    ],
)
def test_nothing_is_written_over_what_is_read(nodes: list[Item], free: list[int], kernels: list[Any]) -> None:
    """Over memory that is read first only registers lie."""
    assert fused(nodes, free) == kernels


def test_nodes_that_touch_nothing_of_a_run_do_not_end_it() -> None:
    plan = runs_of(
        [FIRST, item(1, array(5, (7,)), to(6, shape=(7,))), other(2, array(7), to(8)), item(3, array(1), to(2))]
    )
    assert members(plan) == [[0, 3]]
    assert plan.why == {1: 'no elementwise kernel of the same elements is next to it', 2: 'it is no kernel'}


def test_elements_that_are_written_twice_are_in_no_run() -> None:
    row = ElementOperand('float32', BASE + BLOCK, (10, 10), (0, 4), None, False, True, True)
    plan = runs_of([item(0, array(0, (10, 10)), row), item(1, array(0), to(2))])
    assert members(plan) == [] and plan.why[0] == 'it writes elements more than once'


def test_memory_is_used_in_turns_by_arrays_of_other_dtypes() -> None:
    line = [
        item(0, array(0), to(1)),
        item(1, array(1), to(2, dtype='bool')),
        item(2, array(2, dtype='bool'), to(1, dtype='float64')),
        item(3, array(1, dtype='float64'), to(2)),
        item(4, array(2), to(1)),
        item(5, array(1), array(2), to(3)),
    ]
    plan = runs_of(line)
    assert members(plan) == [[0, 1, 2, 3, 4, 5]]
    turns = [(key.dtype, key.turn, use.gone) for key, use in plan.runs[0].used.items() if key.address == BASE + BLOCK]
    assert turns == [('float32', 0, 2), ('float64', 0, 4), ('float32', 1, -1)]
    (kernel,) = fusion(line, [1, 2]).kernels
    assert [(one.address, one.loads) for one in kernel.kernel.places if one.in_memory] == [
        (BASE, True),
        (BASE + 3 * BLOCK, False),
    ]
    assert [step.operands for step in kernel.kernel.steps] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 4, 6)]


def test_what_is_read_from_memory_may_be_written_in_the_end() -> None:
    nodes = [
        item(0, array(0), to(1)),
        item(1, array(1), to(0, dtype='int32')),
        item(2, array(0, dtype='int32'), to(1)),
        item(3, array(1), to(0)),
    ]
    (kernel,) = fusion(nodes, [1]).kernels
    found = [(one.address, one.loads, one.stores) for one in kernel.kernel.places if one.in_memory]
    assert found == [(BASE, True, False), (BASE, False, True)]


# -- what is written --------------------------------------------------------------------------------------------


def stored(line: list[Item], free: list[int], edges: list[tuple[int, int]] | None = None) -> list[int]:
    """The blocks that the first run of a line writes, where these blocks are free."""
    run = runs_of(line).runs[0]
    order = Order(len(line), edges) if edges else row(len(line))
    live = Liveness(order, [one.memory for one in line], [(run, run.members)], pages(free))
    return [(key.address - BASE) // BLOCK for key, needed in live.stores(run, run.members).items() if needed]


SECOND = item(1, array(1), to(2))


@pytest.mark.parametrize(
    ('later', 'free', 'blocks'),
    [
        ([], [], [1, 2]),
        ([], [1], [2]),
        ([other(2, array(1), to(3))], [1], [1, 2]),
        ([other(2, array(0), to(1)), other(3, array(1), to(3))], [1], [2]),
        ([other(2, array(0), to(1))], [], [2]),
        ([Item(2, 'unknown', None)], [1], [1, 2]),
    ],
)
def test_what_anybody_sees_is_written(later: list[Item], free: list[int], blocks: list[int]) -> None:
    """That is what is there in the end, and what a later node reads."""
    assert stored([FIRST, SECOND, *later], free) == blocks


def test_a_node_in_no_order_with_the_run_may_read_what_it_writes() -> None:
    assert stored([FIRST, SECOND, other(2, array(1), to(3))], [1], [(0, 1)]) == [1, 2]


def test_of_an_array_that_is_gone_the_rest_may_belong_to_another() -> None:
    line = [FIRST, SECOND]
    run = runs_of(line).runs[0]
    half = FreeMemory([(BASE + BLOCK + 200, BASE + 2 * BLOCK)])  # the first bytes are a smaller array's now
    live = Liveness(Order(2, [(0, 1)]), [one.memory for one in line], [(run, run.members)], half)
    assert [key.address - BASE for key, needed in live.stores(run, run.members).items() if needed] == [2 * BLOCK]


# -- a whole definition -----------------------------------------------------------------------------------------


def test_the_edges_of_what_is_left_keep_the_order() -> None:
    nodes = [FIRST, SECOND, *(item(n, array(2), to(n + 1)) for n in (2, 3, 4))]
    found = fusion(nodes, [], [(0, 1), (1, 2), (1, 3), (3, 4)])
    assert [one.nodes for one in found.kernels] == [(0, 1), (3, 4)]
    assert sorted(found.edges) == [(1, 2), (1, 4)]


def test_a_register_that_somebody_reads_makes_two_runs() -> None:
    nodes = [
        FIRST,
        SECOND,
        item(2, array(2), to(1, dtype='float64')),
        item(3, array(1, dtype='float64'), to(3)),
    ]
    assert fused(nodes, [1]) == [(0, 1, 2, 3)]
    nodes.append(other(4, array(1, offset=4), to(9, offset=4)))
    assert fused(nodes, []) == [(0, 1, 2, 3)]  # what the reader sees was written over
    assert fused(nodes, [], edges=[(0, 1), (1, 2), (2, 3)]) == [(0, 1), (2, 3)]
