"""Nodes that copy bytes as members of fused kernels: of described nodes, and of programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.fusion.elementwise import ElementOperand, copying
from capturekit.fusion.runs import Item
from tests.fusion import compared
from tests.fusion.test_runs import BASE, BLOCK, FIRST, N, array, bytes_moved, fused, fusion, item, to


def moved(number: int, into: int, of: int, nbytes: int = 4 * N, at: int = 0) -> Item:
    """A copy of the bytes at the start of a block (or ``at`` bytes behind it)."""
    return bytes_moved(number, BASE + into * BLOCK, BASE + of * BLOCK + at, nbytes)


def test_a_copy_of_what_a_kernel_computes_is_written_by_it() -> None:
    nodes = [FIRST, moved(1, 2, 1), item(2, array(2), array(0), to(3))]
    (found,) = fusion(nodes, [1]).kernels
    assert found.nodes == (0, 1, 2) and found.names == ('cupy_op0', 'cupy_copy', 'cupy_op2')
    assert [(one.loads, one.stores) for one in found.kernel.places] == [(1, 0), (0, 0), (0, 1), (0, 1)]
    assert found.kernel.steps[1].operation == copying('float32') and found.kernel.steps[1].operands == (1, 2)
    assert fusion(nodes[:2], [], copying=None).kernels == []


def test_a_register_that_was_used_again_is_not_copied_from() -> None:
    """The bytes are those of the later array, of which only a part is copied."""
    nodes = [item(0, array(0), to(1)), item(1, array(1), to(1, dtype='float64')), moved(2, 2, 1)]
    assert fused(nodes, []) == [(0, 1)]
    nodes[1] = item(1, array(1), to(1, dtype='int32'))
    (found,) = fusion(nodes, []).kernels
    assert found.nodes == (0, 1, 2) and found.kernel.steps[2].operation == copying('int32')


STRIDED = ElementOperand('float32', BASE + BLOCK, (N,), (8,), None, False, True, True)
TRUTHS = item(0, array(0, dtype='bool'), to(1)), item(0, array(0), to(1, dtype='bool'))
LARGE, LATER = item(1, array(3), to(4)), item(2, array(0), to(3))


@pytest.mark.parametrize(
    ('nodes', 'kernels'),
    [
        # only the same bytes are taken from registers
        ([FIRST, moved(1, 2, 1, 4 * N - 4, 0), LATER], []),
        ([FIRST, moved(1, 2, 1, 4 * N - 4, 4), LATER], []),
        ([FIRST, moved(1, 2, 1, 4 * N, 4), LATER], []),
        ([item(0, array(0), STRIDED), moved(1, 2, 1), LATER], []),
        # a byte that stands for a truth value and is only read may hold another number than 0 and 1
        ([TRUTHS[0], moved(1, 2, 0, N)], []),
        ([TRUTHS[1], moved(1, 2, 1, N)], [(0, 1)]),
        # copies alone are no kernel; one word is copied beside other work
        ([moved(0, 1, 0, 8), moved(1, 3, 2, 8)], []),
        ([moved(0, 1, 0, 8), LARGE], [(0, 1)]),
        ([moved(0, 1, 0, 4), LARGE], [(0, 1)]),
        ([moved(0, 1, 0, 12), LARGE], []),
        ([moved(0, 1, 0, 8, 4), LARGE], []),
    ],
)
def test_which_copies_kernels_do(nodes: list[Item], kernels: list[tuple[int, ...]]) -> None:
    assert fused(nodes, []) == kernels


# -- copies that a run could do without, where what they write is seen ---------------------------------------------


def written_before(cp: Any, x: Any) -> list[Any]:
    """A member of a run writes the array that copies fill afterwards; the run goes on behind them."""
    other, kept = x * 2, x + 1
    kept[1:], kept[:1] = other[:-1], other[-1:]
    return [kept, kept * (x - 3)]


def block_of_another(cp: Any, x: Any) -> list[Any]:
    """The same with a scalar copied into a block that a temporary of the run had."""
    found = cp.where(x > 0, x, 1)
    small = (x.sum(axis=0)[0] * 2).copy()
    return [small, small - 3, found + 1]


def read_and_written(cp: Any, x: Any) -> list[Any]:
    """A node reads what it writes over: so what was there is read."""
    y = x + 1
    y[...] = y[::-1]
    y[...] = y[::-1]
    return [y, y[0] * 2]


@pytest.mark.parametrize('work', [written_before, block_of_another, read_and_written])
def test_what_copies_write_is_there(cp: Any, work: Callable[[Any, Any], list[Any]]) -> None:
    x = cp.asarray(np.random.default_rng(0).uniform(-3, 3, (6, 8)).astype('f4'))
    compared.fused(lambda: work(cp, x))


# -- programs -----------------------------------------------------------------------------------------------------


def move(to: Any, of: Any) -> None:
    """As CuPy copies arrays that lie in one piece (the simulated device does it by a kernel)."""
    to.data.copy_from_device_async(of.data, of.nbytes)


def last_of_all(cp: Any, x: Any, y: Any) -> Any:
    move(y, (x - 2) * x + 1)
    return y


def in_the_midst(cp: Any, x: Any, y: Any) -> Any:
    z = x * 2 - 1
    move(y, z)
    return y * x + y


def of_an_input(cp: Any, x: Any, y: Any) -> Any:
    z = x * 2 - 1
    move(y, x)
    return z + y


def back_and_forth(cp: Any, x: Any, y: Any) -> Any:
    for _ in range(3):
        z = x - y * 2
        move(y, x)
        move(x, z)
    return x


@pytest.mark.parametrize('dtype', ['f4', 'f8', 'f2', 'i4', 'u1'])
@pytest.mark.parametrize('work', [last_of_all, in_the_midst, of_an_input, back_and_forth])
def test_programs_with_copies_have_equal_bits(cp: Any, work: Callable[..., Any], dtype: str) -> None:
    values = np.random.default_rng(0).uniform(0, 3, (40, 30))
    given = [(values * n).astype(dtype) for n in (1, 2)]
    x, y = (cp.asarray(one) for one in given)
    cap = compared.fused(lambda: [work(cp, x, y)], [x, y])
    assert cap.fused.compared == compared.SAME and len(cap.graph.nodes) == 1, cap.fused


def test_bytes_that_are_seen_as_truth_values_are_copied(cp: Any) -> None:
    x, y = cp.arange(64, dtype='u1'), cp.zeros(64, 'u1')
    with ck.capture(fuse=True) as cap:
        z = cp.logical_not(x.view('?'))
        move(y, x)
        z = cp.logical_not(z)
    for _ in range(2):
        cap.graph.launch()
        assert (y == x).all() and z.dtype == bool


def test_a_kernel_stands_for_a_copy_that_comes_last(cp: Any) -> None:
    """Whose node can run no kernel: another one of the run does, in its place and with its line."""
    x, y = cp.linspace(-3, 3, 60), cp.zeros(60)  # so that no array begins where another ends
    with ck.capture(fuse=True) as cap:
        total = last_of_all(cp, x, y).sum()
    kernel, *others = cap.graph.nodes
    assert len(kernel.inner) == 4 and kernel.inner[-1].kind == 'memcpy' and kernel.kind == 'kernel'
    assert kernel.at is not None and kernel.at.function == 'move' and others[0].at.function != 'move'
    for _ in range(2):
        cap.graph.launch()
    expected = (x - 2) * x + 1
    assert (y == expected).all() and total == expected.sum() and not cap.graph.races()
    other, copy = x * 2, cap.graph.clone()
    cap.graph.rebind((x, other))
    cap.graph.launch()
    assert (y == (other - 2) * other + 1).all()
    copy.launch()
    assert (y == expected).all()
