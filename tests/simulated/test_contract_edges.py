"""The verb that moves edges: the simulated device and CUDA, asked the same."""

from __future__ import annotations

import pytest

from capturekit.model.errors import CudaCallError
from tests.simulated.bench import Bench
from tests.simulated.test_contract_changes import fills, launched


def test_edges_are_removed_and_added(bench: Bench) -> None:
    d = bench.device
    g = fills(bench, (0, 1), (1, 2), (2, 3))
    first, second, third = d.graph_nodes(g)
    old = d.graph_instantiate(g)
    d.graph_rewire(g, [(first, second)], [(first, third)])
    assert d.graph_nodes(g) == [first, second, third]
    assert sorted(d.graph_edges(g)) == sorted([(first, third), (second, third)])
    for removed, added in (([(first, second)], []), ([], [(first, third)])):
        with pytest.raises(CudaCallError):
            d.graph_rewire(g, removed, added)
        assert sorted(d.graph_edges(g)) == sorted([(first, third), (second, third)])
    new = d.graph_instantiate(g)
    for x in (old, new):
        assert launched(bench, x, 0, 1, 2) == [1, 2, 3]
        d.graph_exec_destroy(x)


def decided(bench: Bench, *cells: tuple[int, int]) -> tuple[int, int]:
    """A graph of one conditional node, whose body fills cells one after the other; and the body."""
    d = bench.device
    g = d.graph_create()
    _node, body = d.add_if(g, [], d.condition_create(g, 1))
    s = bench.stream()
    d.begin_capture_to(s, body)
    for cell in cells:
        bench.fill(s, *cell)
    d.end_capture(s)
    return g, body


def test_edges_of_a_conditional_nodes_body_are_removed(bench: Bench) -> None:
    d = bench.device
    g, body = decided(bench, (0, 1), (1, 2))
    for rewired in (False, True):
        if rewired:
            d.graph_rewire(body, d.graph_edges(body), [])
            assert d.graph_edges(body) == []
        x = d.graph_instantiate(g)
        assert launched(bench, x, 0, 1) == [1, 2]
        d.graph_exec_destroy(x)
    d.graph_destroy(g)


def test_with_conditional_nodes_one_executable_at_a_time(bench: Bench) -> None:
    d = bench.device
    g, _body = decided(bench, (0, 1))
    first = d.graph_instantiate(g)
    with pytest.raises(CudaCallError, match='cudaErrorNotSupported'):
        d.graph_instantiate(g)
    assert launched(bench, first, 0) == [1]
    d.graph_exec_destroy(first)
    second = d.graph_instantiate(g)
    assert launched(bench, second, 0) == [1]
    d.graph_exec_destroy(second)
    d.graph_destroy(g)
