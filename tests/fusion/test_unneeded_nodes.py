"""Nodes that are taken out of a fused graph: those whose results nobody reads, and those that compute again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capturekit.fusion.elementwise import ElementOperand, Elementwise
from capturekit.fusion.lines import Definition
from capturekit.fusion.unneeded_nodes import UNREAD, thinned
from capturekit.model.dag import Order
from capturekit.model.errors import UpdateError
from tests.fusion.compared import fused
from tests.fusion.test_runs import BASE, pages, row


@pytest.fixture
def x(cp: Any) -> Any:
    return cp.asarray(np.random.default_rng(0).uniform(-3, 3, (64, 32)).astype('f4'))


def test_zeros_that_are_written_over_are_not_filled(cp: Any, x: Any) -> None:
    def work() -> list[Any]:
        found = cp.zeros_like(x)
        cp.multiply(x, 2, found)
        return [found]

    cap = fused(work)
    graph, report = cap.graph, cap.fused
    assert [why for _node, why in report.unneeded] == [UNREAD] and len(graph.nodes) == 1
    assert report and '2 nodes, 0 of them in 0 fused kernels, 1 taken out' in str(report)
    assert 'taken out: node 0 (' in str(report) and UNREAD in str(report)
    assert graph.nodes[0].at.function == 'work' and graph.recording.node_count == 1


def test_a_result_that_nobody_keeps_is_not_computed(cp: Any, x: Any) -> None:
    def work() -> list[Any]:
        unused = cp.sqrt(cp.abs(x[:, :16]))
        unused.sum(axis=0)
        return [x + 1]

    report = fused(work).fused
    assert {node.name.partition('__')[0] for node, _why in report.unneeded} >= {'cupy_sqrt', 'cupy_absolute'}, report


def test_what_is_seen_stays(cp: Any, x: Any) -> None:
    def work() -> list[Any]:
        y = cp.sqrt(cp.abs(x))
        return [y, y.sum(axis=0)]

    assert not fused(work).fused.unneeded


def test_a_mean_is_computed_once(cp: Any, x: Any) -> None:
    def work() -> list[Any]:
        mean = x.mean(axis=0)
        again = x.mean(axis=0)
        return [mean, cp.sqrt(again * again) + 1]

    cap = fused(work)
    graph, report = cap.graph, cap.fused
    assert [why for _node, why in report.unneeded] == ['node 0 has computed the same']
    first = graph.nodes[0]
    assert [one.number for one in first.inner][:2] == [0, 1]
    with pytest.raises(UpdateError, match='made of'):
        graph.set_kernel(0, args={0: x})
    assert not graph.races()


def test_what_changed_in_between_is_computed_again(cp: Any, x: Any) -> None:
    start = x + 1

    y = x + 0

    def work() -> list[Any]:
        nonlocal y
        y[...] = start
        mean = y.mean(axis=0)
        y *= 2
        again = y.mean(axis=0)
        return [mean, cp.sqrt(again * again) + 1]

    report = fused(work).fused
    assert not any('computed the same' in why for _node, why in report.unneeded), report


# -- without a device -------------------------------------------------------------------------------------------


def array(place: int, writes: bool = False, dtype: str = 'float32') -> ElementOperand:
    return ElementOperand(
        dtype, BASE + 4096 * place, (8,), (np.dtype(dtype).itemsize,), None, not writes, writes, writes
    )


def node(name: str, reads: list[int], writes: int, number: bytes | None = None) -> Elementwise:
    numbers = [] if number is None else [ElementOperand('float32', number=number)]
    return Elementwise(name, name, (*map(array, reads), *numbers, array(writes, True)))


def look(does: list[Any], free: list[int], edges: list[tuple[int, int]] | None = None) -> Any:
    """What becomes of nodes in a row, where pages of these numbers are free."""
    memory = [
        [o.access for o in one.operands if o.number is None] if isinstance(one, Elementwise) else None for one in does
    ]
    order = row(len(does)) if edges is None else Order(len(does), edges)
    return thinned(Definition(order, does, memory, pages(free)))


def test_a_chain_that_nobody_reads_goes_as_a_whole() -> None:
    found = look([node('a', [0], 1), node('b', [1], 2), node('c', [2], 3), node('d', [0], 4)], [1, 2, 3])
    assert found.unread == {0, 1, 2} and found.memory[1] == () and found.does[1] is None


def test_not_all_nodes_of_a_graph_go() -> None:
    assert not look([node('a', [0], 1)], [1]).gone


def test_readers_of_an_equal_node_go_to_the_first() -> None:
    found = look([node('a', [0], 1), node('a', [0], 2), node('b', [2], 3)], [1, 2])
    assert found.again == {1: 0} and found.moved == {2}
    assert [one.address for one in found.does[2].operands] == [BASE + 4096, BASE + 3 * 4096]
    assert [one.address for one in found.memory[2]] == [BASE + 4096, BASE + 3 * 4096]


A, AGAIN, READER = node('a', [0], 1), node('a', [0], 2), node('b', [2], 3)
#: It sees a part of something else.
WIDE = Elementwise('w', 'w', (ElementOperand('float32', BASE + 2 * 4096, (16,), (4,)), array(3, True)))
BESIDE = [node('s', [5], 6), A, AGAIN, node('b', [1], 3), node('c', [2], 4)]


@pytest.mark.parametrize(
    ('does', 'free', 'edges'),
    [
        ([A, node('x', [5], 0), AGAIN, READER], [1, 2], None),  # the input changes
        ([A, AGAIN, node('x', [5], 1), READER], [1, 2], None),  # the result changes
        ([node('a', [0], 1, bytes(4)), node('a', [0], 2, b'\0\0\0\x80'), READER], [1, 2], None),  # 0.0 and -0.0
        ([A, node('a', [4], 2), READER], [1, 2], None),  # another input
        ([A, node('c', [0], 2), READER], [1, 2], None),  # another operation
        ([A, 'a raw kernel', AGAIN, READER], [1, 2], None),  # who knows
        ([A, AGAIN, 'a raw kernel', READER], [1, 2], None),
        ([A, AGAIN, READER], [1], None),  # somebody sees the second result
        ([A, AGAIN, WIDE], [1, 2], None),
        (BESIDE, [1, 2], [(0, 1), (0, 2), (1, 3), (2, 4)]),  # neither comes first
    ],
)
def test_nodes_are_equal_only_if_all_is_known_to_be(does: list[Any], free: list[int], edges: Any) -> None:
    found = look(does, free, edges)
    assert not found.again and not found.moved


def test_what_writes_the_same_to_the_same_place_goes() -> None:
    found = look([node('a', [0], 1), node('b', [1], 3), node('a', [0], 1), node('b', [1], 4)], [])
    assert found.again == {2: 0} and not found.moved
