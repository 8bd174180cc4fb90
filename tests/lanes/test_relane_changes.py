"""Graphs with the edges that their data needs, changed afterwards: what they need is found out again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.analysis.node_memory import TooManyError
from capturekit.lanes import new_order
from tests.captured import values
from tests.lanes.test_relane import SAME, chain, launch_right, wanted


def test_an_array_put_in_anothers_place_is_ordered(cp: Any) -> None:
    """Node 2 now writes what node 0 reads: the order of the recording has to come back."""
    a, b, c, d = (cp.arange(8.0) for _ in range(4))
    with ck.capture() as cap:
        cp.add(a, 1, out=b)
        cp.add(c, 2, out=d)
    graph = cap.graph
    assert graph.relane() and graph.edges == []
    graph.set_kernel(1, args={2: a})
    assert graph.edges == [(0, 1)]
    for _ in range(4):
        a[...] = cp.arange(8.0)
        graph.launch()
        assert (values(a), values(b)) == ((np.arange(8.0) + 2).tolist(), (np.arange(8.0) + 1).tolist())


def test_rebinding_keeps_the_order_that_is_needed(cp: Any) -> None:
    graph, outs, x = chain(cp, 2)
    graph.relane()
    new = [cp.zeros(8) for _ in range(2)]
    graph.rebind((outs[0], new[0]), (outs[1], new[1]))
    assert graph.edges == [(0, 1), (2, 3)]
    launch_right(graph, new)
    graph.rebind((new[0], new[1]), (new[1], new[0]))
    graph.launch()
    assert [values(out) for out in new] == wanted(2)[::-1]
    del x


def test_what_is_switched_off_may_be_switched_on_again(cp: Any) -> None:
    graph, outs, _x = chain(cp, 2)
    graph.disable(2)
    report = graph.relane()
    assert graph.edges == [(0, 1), (2, 3)] and not graph.enabled(2)
    graph.launch()
    assert [values(out) for out in outs] == [wanted(1)[0], [0.0] * 8] and report.compared == SAME
    graph.enable(2)
    launch_right(graph, outs)
    graph, outs, _x = chain(cp, 2)
    report = graph.relane()
    graph.disable(0)
    assert report.compared == 'not compared: a node was switched on or off before the first launch'
    graph.launch()
    assert values(outs[1]) == wanted(2)[1]


def test_a_copy_orders_its_changes_too(cp: Any) -> None:
    graph, _outs, x = chain(cp, 2)
    graph.relane()
    copy = graph.clone()
    assert copy.edges == graph.edges == [(0, 1), (2, 3)]
    copy.rebind((x, x.copy()))
    assert copy.edges == [(0, 1), (2, 3)]
    copy.launch()
    copy.close()
    graph.launch()


@pytest.mark.parametrize('how', ['update', 'update of a launched one', 'capture'])
def test_another_recording_is_taken_over_in_place(cp: Any, how: str) -> None:
    """CUDA updates a graph to one of the same edges only: the other one gets those that its data needs as well."""
    graph, _outs, x = chain(cp, 3)
    graph.relane()
    if how == 'capture':
        outs = [cp.zeros(8) for _ in range(3)]
        with ck.capture(update=graph) as cap:
            for number, out in enumerate(outs):
                cp.sqrt(x, out=out)
                cp.multiply(out, number + 1, out=out)
        assert cap.graph is graph
    else:
        if 'launched' in how:
            graph.launch()
        other, outs, _more = chain(cp, 3)
        assert graph.update(other).how == 'updated'
    assert graph.edges == [(0, 1), (2, 3), (4, 5)] and graph.recording.edge_count == 3
    launch_right(graph, outs)


def test_a_child_graph_in_the_place_of_another_one(cp: Any) -> None:
    """What the new child writes is read by the node behind it."""
    x, y, z = cp.arange(8.0), cp.zeros(8), cp.zeros(8)

    def child(out: Any) -> ck.Graph:
        with ck.capture() as cap:
            cp.add(x, 1, out=out)
        return cap.graph

    first = child(cp.zeros(8))
    with ck.capture() as cap:
        cap.embed(first)
        cp.add(y, 1, out=z)
    assert cap.graph.relane() and cap.graph.edges == []
    cap.graph.set_child(0, child(y))
    assert cap.graph.edges == [(0, 1)]
    cap.graph.launch()
    assert values(z) == (np.arange(8.0) + 2).tolist()


def test_where_the_order_can_not_be_found_again_it_is_told(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, outs, _x = chain(sim, 2)
    graph.relane()

    def too_many(*_args: Any) -> None:
        raise TooManyError('9 nodes')

    monkeypatch.setattr(new_order, 'needed_edges', too_many)
    with pytest.raises(ck.UpdateError, match='the order that they need can not be found: 9 nodes'):
        graph.rebind((outs[0], sim.zeros(8)))


def test_graphs_that_are_too_large_or_allocate_stay_as_they_are(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _outs, _x = chain(sim)
    edges = graph.edges
    with monkeypatch.context() as patch:
        patch.setattr('capturekit.analysis.node_memory.MOST_NODES', 7)
        assert graph.relane().kept == '8 nodes, and 7 are the most'
    monkeypatch.setattr('capturekit.lanes.new_order._MEMORY', ('kernel',))
    assert graph.relane().kept == 'it allocates memory as it runs, and CUDA removes no edge of such a graph'
    assert graph.edges == edges


def test_a_recording_that_can_not_be_taken_over_is_as_it_was(cp: Any) -> None:
    graph, outs, _x = chain(cp, 3)
    graph.relane()
    other, others, _more = chain(cp, 2)
    edges = other.edges
    with pytest.raises(ck.UpdateError):
        graph.update(other)
    assert other.edges == edges and graph.edges == [(0, 1), (2, 3), (4, 5)]
    assert (other.recording.edge_count, graph.recording.edge_count) == (len(edges), 3)
    other.launch()
    graph.launch()
    assert [values(out) for out in (*outs, *others)] == [*wanted(3), *wanted(2)]
    assert graph.update(other, instantiate=True).how == 'instantiated'
    assert graph.edges == [(0, 1), (2, 3)]
    launch_right(graph, others)
