"""Arrays that copies fill, read from the sources of the copies: of described nodes, and of programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capturekit.fusion.elementwise import ElementOperand, Elementwise, Piece
from capturekit.fusion.lines import joined
from capturekit.fusion.runs import Item
from tests.fusion.compared import fused
from tests.fusion.test_runs import BASE, BLOCK, array, bytes_moved, fusion, item, memory, other, to

ROWS, COLUMNS = 5, 8
ROW, ALL = 4 * COLUMNS, 4 * ROWS * COLUMNS


def part(block: int, rows: slice, columns: slice, **more: bool) -> ElementOperand:
    """A box of an array of 5 x 8 elements at the start of a block."""
    first, width = rows.start or 0, (columns.start or 0)
    shape = (len(range(ROWS)[rows]), len(range(COLUMNS)[columns]))
    return ElementOperand('float32', BASE + block * BLOCK + first * ROW + width * 4, shape, (ROW, 4), None, **more)


def copy(number: int, source: ElementOperand, target: tuple[int, slice, slice]) -> Item:
    ends = source, part(*target, reads=False, writes=True, sure=True)
    return Item(number, Elementwise('cupy_copy', 'copy', ends, True), memory(*ends))


def rolled(first: int, of: int, into: int) -> list[Item]:
    """Two copies that move all columns one to the right."""
    every = slice(None)
    return [
        copy(first, part(of, every, slice(0, 7)), (into, every, slice(1, 8))),
        copy(first + 1, part(of, every, slice(7, 8)), (into, every, slice(0, 1))),
    ]


def whole(block: int, **more: bool) -> ElementOperand:
    return array(block, (ROWS, COLUMNS), **more)


EVERY, SHAPE = slice(None), (ROWS, COLUMNS)
ROLLED, READER = rolled(0, 0, 1), item(2, whole(1), whole(0), to(2, shape=SHAPE))
LATER = item(3, whole(1), to(2, shape=SHAPE))


def test_a_rolled_array_is_read_from_two_parts() -> None:
    found = joined([*ROLLED, READER], frozenset())
    assert found.used == {2: {0, 1}} and not found.line[0].memory
    does = found.line[2].does
    assert isinstance(does, Elementwise)
    assert does.operands[0].pieces == (
        Piece(BASE, (5, 7), (ROW, 4), (5, 8), (0, 1)),
        Piece(BASE + 28, (5, 1), (ROW, 0), (5, 8), (0, 0)),
    )


@pytest.mark.parametrize(
    ('line', 'needed'),
    [
        ([*ROLLED, READER], {0}),
        ([*ROLLED, other(2, to(0, shape=SHAPE)), LATER], set()),  # a source changes meanwhile
        ([*ROLLED, Item(2, 'unknown', None), LATER], set()),
        ([ROLLED[0], LATER], set()),  # the parts leave a gap
        ([ROLLED[0], copy(1, part(0, EVERY, slice(0, 2)), (1, EVERY, slice(0, 2))), LATER], set()),  # they overlap
    ],
)
def test_what_is_not_joined(line: list[Item], needed: set[int]) -> None:
    assert joined(line, frozenset(needed)).used == {}


def test_copies_that_nobody_else_needs_are_left_out() -> None:
    found = fusion([*ROLLED, READER], [1])
    assert [(one.nodes, one.copies, one.parts) for one in found.kernels] == [((2,), (0, 1), [0, 1, 2])]
    assert found.gone == [0, 1] and found.edges == []
    kernel = found.kernels[0].kernel
    assert kernel.shape == (ROWS, COLUMNS)
    assert [(one.loads, one.stores, len(one.pieces)) for one in kernel.places] == [(1, 0, 0), (0, 1, 0), (1, 0, 2)]


@pytest.mark.parametrize(
    ('behind', 'free', 'kernels'),
    [
        ([READER], [], []),
        ([READER, other(3, whole(1), to(3, shape=SHAPE))], [1], []),
        # the new values go to the old array: another element's kernel would read them
        ([item(2, whole(1), whole(0), to(0, shape=SHAPE))], [1], []),
        ([item(2, whole(1), to(2, shape=SHAPE)), item(3, whole(2), whole(0), to(0))], [1, 2], [(2,)]),
    ],
)
def test_copies_that_somebody_sees_stay(behind: list[Item], free: list[int], kernels: list[tuple[int, ...]]) -> None:
    """And a run does not write what it reads by index."""
    assert [one.nodes for one in fusion([*ROLLED, *behind], free).kernels] == kernels


def test_copies_of_bytes_are_parts_as_well() -> None:
    line = [bytes_moved(0, BASE + BLOCK + ROW, BASE, ALL - ROW), bytes_moved(1, BASE + BLOCK, BASE + ALL - ROW, ROW)]
    (found,) = fusion([*line, item(2, whole(1), to(2, shape=SHAPE))], [1]).kernels
    assert found.copies == (0, 1)
    pieces = Piece(BASE, (32,), (4,), (40,), (8,)), Piece(BASE + 128, (8,), (4,), (40,), (0,))
    assert found.kernel.places[-1].pieces == pieces


def test_copies_over_what_a_run_writes_behind_them_stay() -> None:
    """The first node's memory is given to the copies; in the fused graph it would write behind them."""
    line = [
        item(0, whole(3), to(1, shape=SHAPE, dtype='float64')),
        *rolled(1, 0, 1),
        item(3, whole(3), to(4, shape=SHAPE)),
        item(4, whole(1), to(2, shape=SHAPE)),
        other(5, whole(1), to(5, shape=())),
    ]
    assert not {1, 2} & set(fusion(line, [1]).gone)
    assert {1, 2} <= set(fusion(line[:-1], [1]).gone)


# -- programs ---------------------------------------------------------------------------------------------------


def roll(cp: Any, a: Any, shift: int, axis: int) -> Any:
    """As ``cupy.roll``: two copies, which the simulated device does in one node."""
    found = cp.empty_like(a)
    to, of = (found, a) if axis == 0 else (found.T, a.T)
    to[shift:], to[:shift] = of[:-shift], of[-shift:]
    return found


def heat(cp: Any, u: Any, steps: int = 4) -> Any:
    for _ in range(steps):
        around = roll(cp, u, 1, 0) + roll(cp, u, -1, 0) + roll(cp, u, 1, 1) + roll(cp, u, -1, 1)
        u = u + 0.125 * (around - 4 * u)
    return u


@pytest.mark.parametrize('shape', [(64, 48), (5, 7), (2, 300)])
def test_a_heat_equation_is_one_kernel_for_each_step(cp: Any, shape: tuple[int, int]) -> None:
    u = cp.asarray(np.random.default_rng(0).uniform(0, 1, shape).astype('f4'))
    cap = fused(lambda: [heat(cp, u)])
    assert len(cap.fused.kernels) <= 8 and sum(len(one.nodes) for one in cap.fused.kernels) > 40, cap.fused


def test_rolled_arrays_of_other_dtypes_and_joined_ones(cp: Any) -> None:
    values = np.random.default_rng(1)
    for dtype in ('f8', 'f2', 'i4', '?', 'c8'):
        given = [values.uniform(-3, 3, (12, 16)) for _ in range(2)]
        a, b = (cp.asarray(one > 0 if dtype == '?' else one.astype(dtype)) for one in given)

        def work(a: Any = a, b: Any = b) -> list[Any]:
            unlike = a != b  # first: later it may get the block of what rolls, whose end then counts as kept
            joined = cp.empty((24, 16), a.dtype)
            joined[:12], joined[12:] = a, b
            both = cp.where(joined != roll(cp, joined, 3, 1), joined, roll(cp, joined, -2, 0))
            return [both, unlike]

        assert fused(work).fused


def test_only_the_copies_that_are_needed_stay() -> None:
    """A joined array that is rolled is read by index, and so has to be there; the rolled one has not."""
    line = [
        copy(0, part(4, EVERY, slice(0, 3)), (1, EVERY, slice(0, 3))),
        copy(1, part(5, EVERY, slice(0, 5)), (1, EVERY, slice(3, 8))),
        *rolled(2, 1, 2),
        item(4, whole(1), whole(2), to(3, shape=SHAPE)),
    ]
    found = fusion(line, [1, 2])
    assert [(one.nodes, one.copies) for one in found.kernels] == [((4,), (2, 3))]
