"""Nodes laid on few lanes: a lane is a row, the order stays whole, and no edge is one that others make."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capturekit.analysis.concurrency import Capacity
from capturekit.analysis.node_view import Node
from capturekit.driver.node_accesses import Touched, linear
from capturekit.lanes.lane_order import as_in_a_graph, behind_one, laid, lower_bound, on_lanes, why_one_lane
from capturekit.model.dag import Order
from tests.examples import examples


def closure(count: int, edges: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """All pairs of nodes with a path from the first to the second, found step by step; lanes may turn numbers round."""
    found = set(edges)
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


edges = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30)


@settings(deadline=None, max_examples=examples(200))
@given(edges=edges, took=st.lists(st.integers(0, 9), min_size=12, max_size=12), lanes=st.integers(1, 5))
def test_lanes_are_rows_and_keep_the_order(edges: list[tuple[int, int]], took: list[int], lanes: int) -> None:
    needed = sorted({(min(pair), max(pair)) for pair in edges if pair[0] != pair[1]})
    pairs = on_lanes(Order(12, needed), [float(us) for us in took], lanes)
    assert len({a for a, _b in pairs}) == len({b for _a, b in pairs}) == len(pairs), 'each is followed by one'
    assert 12 - len(pairs) <= lanes
    found = laid(12, needed, pairs)
    assert closure(12, set(found)) == closure(12, {*needed, *pairs})
    assert all(edge not in closure(12, set(found) - {edge}) for edge in found)


def test_the_longest_path_comes_first() -> None:
    chain = [(0, 1), (1, 2), (2, 3)]
    pairs = on_lanes(Order(7, chain), [5.0] * 4 + [7.0] * 3, 2)
    assert set(chain) <= set(pairs), 'the chain has a lane for itself'
    assert on_lanes(Order(4, []), [1.0] * 4, 1) == [(0, 1), (1, 2), (2, 3)]


def test_branches_of_their_own_stay_whole() -> None:
    """As one would lay them by hand: eight chains on four lanes, two of them on each."""
    chains = [[n * 5 + step for step in range(5)] for n in range(8)]
    order = Order(40, [pair for chain in chains for pair in pairwise(chain)])
    pairs = on_lanes(order, [2.0] * 40, 4)
    assert len(pairs) == 36 and laid(40, [], pairs) == laid(40, sorted(order.redundant()), pairs)
    assert {pair for chain in chains for pair in pairwise(chain)} <= set(pairs)


def test_a_short_branch_stays_beside_what_waits_for_it() -> None:
    """Going to another lane costs a wait, which the short one is not worth."""
    edges = [(0, 1), (1, 2), (3, 2), (4, 5), (5, 6), (7, 6)]
    pairs = on_lanes(Order(8, edges), [9.0, 9.0, 9.0, 1.0, 9.0, 9.0, 9.0, 1.0], 2)
    assert {frozenset((2, 3)), frozenset((6, 7))} <= {frozenset(pair) for pair in pairs}


def test_branches_that_are_joined_stay_whole() -> None:
    """Four chains, and sums that join them one after the other: two whole chains on each of two lanes."""
    chains = [[n * 6 + step for step in range(6)] for n in range(4)]
    joins = [(5, 24), (11, 24), (24, 25), (17, 25), (25, 26), (23, 26)]
    order = Order(27, [*(pair for chain in chains for pair in pairwise(chain)), *joins])
    pairs = set(on_lanes(order, [4.0] * 27, 2))
    assert {pair for chain in chains for pair in pairwise(chain)} <= pairs and len(pairs) == 25


def test_a_branch_does_not_wait_for_the_middle_of_another() -> None:
    """Short side branches of four long chains, on three lanes: no path is longer than what a lane has to do."""
    edges, nodes = [], 0
    for _ in range(4):
        first = nodes
        for step in range(10):
            edges += [(nodes - 3, nodes)] if step else []
            edges += [(nodes + 1, nodes + 2), (nodes, nodes + 2)] if step < 9 else []
            nodes += 3 if step < 9 else 1
        assert nodes == first + 28
    edges += [(a + 2, a + 3) for a in range(nodes) if a % 28 < 25 and a % 28 % 3 == 0]
    order = Order(nodes, edges)
    took = [2.0] * nodes
    found = Order(nodes, laid(nodes, sorted(set(edges)), on_lanes(order, took, 3)))
    assert max(found.longest(took)[0]) <= 2.0 * 2 * 28


def test_one_beginning_is_the_shortest() -> None:
    assert behind_one(Order(5, [(0, 1), (2, 1)]), [3.0, 1.0, 2.0, 2.5, 9.0]) == [(2, 0), (2, 3), (2, 4)]
    assert behind_one(Order(4, [(0, 1)]), [2.0, 1.0, 1.0, 1.0], [(0, 1), (2, 3)]) == [(0, 1), (2, 3), (2, 0)]
    assert behind_one(Order(3, [(0, 1), (1, 2)]), [1.0] * 3) == [] == behind_one(Order(0, []), [])


def test_times_of_nodes_add_up_to_a_launch() -> None:
    """Events around each node took 10 us more than the node; a profiler does not see the time between two."""
    order = Order(4, [(0, 1), (1, 2), (0, 3)])
    assert as_in_a_graph(order, [12.0, 14.0, 13.0, 11.0], 9.0) == [2.0, 4.0, 3.0, 1.0]
    assert as_in_a_graph(order, [1.0, 2.0, 3.0, 0.5], 9.0) == [2.0, 3.0, 4.0, 1.5]
    assert as_in_a_graph(order, [12.0, 14.0, 13.0, 9.0], 9.0)[3] == 0.25
    assert as_in_a_graph(Order(0, []), [], 5.0) == []


def test_lanes_for_another_order_are_given_up() -> None:
    assert laid(3, [(0, 1), (1, 2)], [(2, 0)]) == [(0, 1), (1, 2)]
    assert laid(3, [(0, 2)], []) == [(0, 2)]
    assert laid(3, [(0, 2)], [(0, 1), (1, 2)]) == [(0, 1), (1, 2)]


# -- why one lane is best ---------------------------------------------------------------------------------------

H100 = Capacity(132 * 2048, 3_350_000.0)


def reasons(grid: int, nbytes: int, needed: list[tuple[int, int]], capacity: Capacity = H100) -> str:
    nodes = [Node(n, 'kernel', 'k', detail={'grid': (grid, 1, 1), 'block': (256, 1, 1)}) for n in range(4)]
    touched = [Touched((linear(1 << 40, nbytes, True),))] * 4
    return why_one_lane(nodes, touched, [10.0] * 4, (Order(4, pairwise(range(4))), Order(4, needed)), capacity)


@pytest.mark.parametrize(
    ('grid', 'nbytes', 'needed', 'why'),
    [
        (1, 1, [(0, 1), (1, 2), (2, 3)], 'one chain of nodes takes 100 % of the time'),
        (1, 30_000_000, [], "nodes that are held up by the device's memory take 100 % of the time"),
        (2000, 1, [], 'kernels that fill the device take 100 % of the time'),
        (1, 1, [], 'forks and joins cost as much as they bring'),
    ],
)
def test_the_reason_is_told(grid: int, nbytes: int, needed: list[tuple[int, int]], why: str) -> None:
    assert reasons(grid, nbytes, needed) == why


def test_what_is_not_known_of_a_device_is_no_reason() -> None:
    assert reasons(2000, 1 << 40, [], Capacity()) == 'forks and joins cost as much as they bring'


def test_the_capacity_of_a_device() -> None:
    told = {'MultiProcessorCount': 132, 'MaxThreadsPerMultiProcessor': 2048}
    clock = {'MemoryClockRate': 2_619_000, 'GlobalMemoryBusWidth': 5120}
    found = Capacity.of(SimpleNamespace(attributes={**told, **clock}))
    assert found.threads == 270_336 and found.bytes_per_us == pytest.approx(3_352_320, rel=1e-6)
    assert Capacity.of(SimpleNamespace(attributes={})) == Capacity()


# -- what no order falls below -------------------------------------------------------------------------------------


#: Addresses from here on are the device's.
DEVICE = 1000


def kernel(number: int, threads: int) -> Node:
    return Node(number, 'kernel', 'cupy_add', detail={'grid': (threads // 32, 1, 1), 'block': (32, 1, 1)})


def copy(number: int, dst: int, src: int) -> Node:
    return Node(number, 'memcpy', detail={'dst': dst, 'src': src, 'bytes': 8})


def bound(nodes: list[Node], took: list[float], edges: list[tuple[int, int]]) -> tuple[float, str]:
    found = lower_bound(nodes, took, Order(len(nodes), edges), Capacity(64, 0.0), lambda address: address >= DEVICE)
    return found.us, found.why


@pytest.mark.parametrize(
    ('nodes', 'edges', 'wanted'),
    [
        ([kernel(n, 32) for n in range(3)], [(0, 1)], (5.0, 'the longest path')),
        ([kernel(n, 64) for n in range(3)], [], (9.0, 'kernels that fill the device')),
        ([kernel(0, 64), kernel(1, 32), kernel(2, 128)], [], (6.0, 'kernels that fill the device')),
        ([copy(0, DEVICE, 0), copy(1, DEVICE, 8), copy(2, 0, DEVICE)], [], (5.0, 'copies to the device')),
        ([copy(0, 8, DEVICE), copy(1, DEVICE, 8), copy(2, 0, DEVICE)], [], (6.0, 'copies to the host')),
        ([copy(n, DEVICE + 8, DEVICE) for n in range(3)], [], (4.0, 'the longest path')),
    ],
)
def test_the_largest_reason_counts(nodes: list[Node], edges: list[tuple[int, int]], wanted: Any) -> None:
    assert bound(nodes, [2.0, 3.0, 4.0], edges) == wanted


def test_a_graph_without_nodes_takes_no_time() -> None:
    assert bound([], [], []) == (0.0, 'the longest path')
