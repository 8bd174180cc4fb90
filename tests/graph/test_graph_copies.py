"""Graphs copied: simulated anywhere, and on a GPU."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.captured import launched, recorded, values_after


def test_a_copy_is_changed_by_itself(cp: Any) -> None:
    x = cp.arange(4.0)
    graph, y = recorded(lambda: x * 2.0 + 1.0)
    graph.disable(1)
    copy = graph.clone()
    assert type(copy) is ck.Graph and copy.graphExec != graph.graphExec and copy.graph != graph.graph
    assert [copy.enabled(n) for n in range(2)] == [True, False]
    graph.enable(1)
    copy.enable(1)
    assert [str(node) for node in copy.nodes] == [str(node) for node in graph.nodes]
    copy.set_kernel(0, args={1: 5.0})
    assert values_after(copy, y) == [1, 6, 11, 16]
    assert values_after(graph, y) == [1, 3, 5, 7]
    assert copy.recording is not graph.recording and copy.recording.spans == graph.recording.spans
    assert ck.statistics().graphs >= 2


@pytest.mark.parametrize('first', [0, 1])
def test_memory_is_given_back_with_the_last_copy(cp: Any, first: int) -> None:
    x = cp.arange(4.0)
    graph, y = recorded(lambda: cp.sin(x * 2.0))
    pair = [graph, graph.clone()]
    nbytes = graph.memory_bytes
    assert nbytes == pair[1].memory_bytes > 0
    pair.pop(first).close()
    eager = [cp.full(4, 7.0) for _ in range(8)]
    (left,) = pair
    assert left.memory_bytes == nbytes
    assert values_after(left, y) == pytest.approx(list(np.sin(2 * np.arange(4.0))))
    assert all(one.get().tolist() == [7] * 4 for one in eager)
    left.close()
    assert left.memory_bytes == 0


def test_a_copy_keeps_host_functions(cp: Any) -> None:
    told: list[str] = []
    graph, _ = recorded(lambda: cp.cuda.get_current_stream().launch_host_func(told.append, 'called'))
    copy = graph.clone()
    graph.close()
    gc.collect()
    copy.launch()
    cp.cuda.get_current_stream().synchronize()
    assert told == ['called']


def test_a_copy_has_child_graphs_of_its_own(cp: Any) -> None:
    x = cp.arange(4.0)
    inner, y = recorded(lambda: x * 2.0)
    with ck.capture() as cap:
        cap.embed(inner)
    copy = cap.graph.clone()
    copy.set_child(0, recorded(lambda: x * 3.0)[0])
    assert values_after(cap.graph, y) == [0, 2, 4, 6]
    copy.close()
    assert [len(node.inner) for node in cap.graph.nodes] == [1]
    assert values_after(cap.graph, y) == [0, 2, 4, 6]


@pytest.mark.parametrize('way', [copy.copy, copy.deepcopy, pickle.dumps])
def test_python_makes_no_second_owner(sim: Any, way: Any) -> None:
    """Closing it would close the graph that it was copied from."""
    x = sim.ones(3)
    with ck.capture() as cap:
        y = x * 2
    with pytest.raises(TypeError, match=r'graph\.clone\(\) makes a second graph'):
        way(cap.graph)
    with pytest.raises(TypeError, match=r'open another with ck\.capture\(\)'):
        way(cap)
    assert launched(cap, y) == [[2.0] * 3]
