"""A launch of a graph that was captured by hand is refused where an array from outside is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import watch


def recorded(cp: Any, *, inside: bool = False) -> tuple[Any, dict[str, Any], Any]:
    """A graph, the arrays that it was recorded with, and its stream."""
    kept = {'x': cp.arange(4.0), 'y': cp.zeros(4)}
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with stream:
        stream.begin_capture()
        if inside:
            cp.add(kept['x'][1:] * 2, 1, out=kept['y'][1:])
        else:
            cp.multiply(kept['x'], 2, out=kept['y'])
        graph = stream.end_capture()
    return graph, kept, stream


@pytest.mark.parametrize('name', ['x', 'y'])
def test_an_array_is_gone(cp: Any, name: str) -> None:
    with watch():
        graph, kept, stream = recorded(cp)
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(kept['y'].get(), np.arange(4.0) * 2)
        del kept[name]
        other = cp.full(4, 7.0)
        cp.cuda.Stream.null.synchronize()
        with pytest.raises(ck.FreedMemoryError, match=r'float64\[4\]\) is gone') as found:
            graph.launch(stream)
        assert 'in recorded' in str(found.value) and 'Keep a name' in found.value.remedy
        stream.synchronize()
        np.testing.assert_array_equal(other.get(), np.full(4, 7.0))


def test_a_view_keeps_its_array(cp: Any) -> None:
    with watch():
        graph, kept, stream = recorded(cp, inside=True)
        kept['x'] = kept['x'][:1]
        kept['z'] = kept.pop('y').reshape(2, 2)
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(kept['z'].get(), [[0, 3], [5, 7]])


def test_what_the_capture_allocated_is_left_out(cp: Any) -> None:
    x, stream = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with watch(), stream:
        stream.begin_capture()
        between = x * 2
        y = between + 1
        graph = stream.end_capture()
        del between
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2 + 1)


def test_arrays_that_the_graph_does_not_use_may_go(cp: Any) -> None:
    with watch():
        beside = cp.ones(4)
        graph, kept, stream = recorded(cp)
        del beside
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(kept['y'].get(), np.arange(4.0) * 2)


def test_memory_that_lives_without_an_array(cp: Any) -> None:
    """It is given to nobody while a pointer to it is kept."""
    stream, y = cp.cuda.Stream(non_blocking=True), cp.zeros(4)
    pointer = cp.cuda.alloc(32)
    cp.ndarray(4, cp.float64, pointer)[...] = 3
    cp.cuda.Stream.null.synchronize()
    with watch(), stream:
        stream.begin_capture()
        x = cp.ndarray(4, cp.float64, pointer)
        cp.multiply(x, 2, out=y)
        graph = stream.end_capture()
        del x
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(y.get(), np.full(4, 6.0))
