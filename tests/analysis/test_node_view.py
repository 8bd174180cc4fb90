"""A graph looked into: its nodes with their lines and lanes, and its edges."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from capturekit.analysis.node_view import Look
from capturekit.driver.node_reader import NodeInfo
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Part
from capturekit.model.recording import Span


def test_nodes_and_edges(sim: Any) -> None:
    x = sim.arange(8.0)
    with ck.capture() as cap:
        y = x * 2
        with cap.fork(2) as (left, right):
            with left:
                a = sim.sin(y)
            with right:
                b = sim.cos(y)
        z = a + b
    nodes, edges = cap.graph.nodes, cap.graph.edges
    assert [(node.kind, node.name, node.lane) for node in nodes] == [
        ('kernel', 'cupy_multiply', 0), ('kernel', 'cupy_sin', 1), ('kernel', 'cupy_cos', 2), ('kernel', 'cupy_add', 0),
    ]  # fmt: skip
    assert {(0, 1), (0, 2), (1, 3), (2, 3)} <= set(edges) <= {(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)}
    assert [node.number for node in nodes] == [0, 1, 2, 3]
    lines = [node.at.line for node in nodes if node.at]
    assert lines == [lines[0] + n for n in (0, 3, 5, 6)]
    assert str(nodes[1]).startswith('1: kernel cupy_sin on lane 1, at test_node_view.py:')
    cap.graph.launch()
    assert z.shape == (8,)


def test_parts_bodies_and_conditional_nodes(sim: Any) -> None:
    x = sim.arange(4.0)

    def fn() -> Any:
        y = x + 1
        if float(y.sum()) > 3:
            y = y * 2
        if float(y.sum()) > 3:
            y = y - 1
        return y

    rehearsal = ck.rehearse(fn)
    with ck.capture(rehearsal=rehearsal) as cap:
        fn()
    nodes, edges = cap.graph.nodes, cap.graph.edges
    plain = [node for node in nodes if node.kind == 'kernel']
    assert len(plain) == cap.recording.node_count and all(node.at for node in plain)
    names = [node.name for node in plain]
    assert names == [
        'cupy_add', 'cupy_sum', 'capturekit_check', 'cupy_multiply', 'cupy_sum', 'capturekit_check', 'cupy_subtract',
    ]  # fmt: skip
    first, second = (node for node in nodes if node.kind == 'conditional')
    assert [node.name for node in first.inner] == ['cupy_multiply', 'cupy_sum', 'capturekit_check']
    assert [node.name for node in second.inner] == ['cupy_subtract']
    assert {(2, first.number), (first.number, 3), (second.number, 6)} <= set(edges)
    assert (first.number, 4) not in edges, 'a conditional node comes before the first nodes of its body'


def test_children_pointers_and_nodes_that_no_line_made(sim: Any) -> None:
    class Device:
        def node_infos(self, graph: int) -> list[NodeInfo]:
            if graph == 9:
                return [NodeInfo(5, 'memset', detail={'dst': 64})]
            return [
                NodeInfo(1, 'kernel', 'k', {'grid': (1, 1, 1)}, (own, kept, other, 7, own)),
                NodeInfo(2, 'graph', inner=9),
                NodeInfo(3, 'host'),
            ]

        def graph_edges(self, _graph: int) -> list[tuple[int, int]]:
            return [(1, 2), (2, 3)]

    memory = GraphMemory(sim)
    block = memory.grow(512)
    outside = sim.arange(64.0)
    memory.keep([outside.data])  # as keeping does, at the end of a capture
    own, kept = int(block.ptr) + 8, int(outside.data.ptr) + 16
    other = int(sim.arange(64.0).data.ptr)
    look = Look(Device(), [Part(8)], [Span(0, 2, 3, ['f.py', 7, 'g'])], memory)
    kernel, child, host = look.nodes
    assert [(p.address, p.of) for p in kernel.pointers] == [(own, 'own'), (kept, 'kept')]
    assert (kernel.lane, kernel.at and kernel.at.line, host.lane, host.at) == (3, 7, None, None)
    assert [(node.kind, node.detail) for node in child.inner] == [('memset', {'dst': 64})]
    assert look.edges == [(0, 1), (1, 2)]
    memory.hold().release()


def test_a_closed_graph_is_not_looked_into(sim: Any) -> None:
    with ck.capture() as cap:
        sim.arange(4.0) + 1
    cap.graph.close()
    for look in (lambda: cap.graph.nodes, lambda: cap.graph.edges, cap.graph.describe):
        with pytest.raises(ck.ClosedError):
            look()


def test_notebooks_show_graphs_and_recordings(sim: Any) -> None:
    x = sim.arange(4.0)
    with ck.capture() as cap:
        x + 1
    for shown in (cap.recording, cap.graph):
        bundle = shown._repr_mimebundle_()
        assert set(bundle) == {'text/plain', 'text/html', 'image/svg+xml'}
        assert bundle['text/html'].startswith('<iframe') and bundle['image/svg+xml'].startswith('<svg')
    assert 'cupy_add' in cap.graph._repr_mimebundle_()['image/svg+xml']
    cap.graph.close()
    assert 'cupy_add' in cap.graph._repr_mimebundle_()['text/html']
