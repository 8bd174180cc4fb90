"""What no order of some nodes can fall below: which of the reasons is the largest, and by how much."""

from __future__ import annotations

from typing import Any

import pytest

from capturekit.analysis.concurrency import Capacity
from capturekit.analysis.node_view import Node
from capturekit.lanes.lower_bound import lower_bound
from capturekit.model.dag import Order

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
