"""Changes of one graph that another graph, a copy or an array of the same memory would have felt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.captured import recorded, values, values_after

N = 1000


def crowd(cp: Any) -> list[Any]:
    """Memory that nobody holds is somebody else's."""
    return [cp.full(N, np.nan) for _ in range(8)]


def untouched(arrays: list[Any]) -> bool:
    return all(bool(one.get().size) and np.isnan(one.get()).all() for one in arrays)


def embedded(graph: ck.Graph) -> ck.Graph:
    with ck.capture() as cap:
        cap.embed(graph)
    return cap.graph


#: Makes another graph that uses the arrays of the first one, as they are then.
OTHERS: dict[str, Callable[[ck.Graph], ck.Graph]] = {'a copy': lambda graph: graph.clone(), 'around it': embedded}


@pytest.mark.parametrize('other', OTHERS)
@pytest.mark.parametrize('options', [{}, {'lanes': 'auto'}])
def test_what_one_graph_no_longer_uses_another_may(cp: Any, other: str, options: dict[str, Any]) -> None:
    x = cp.arange(N, dtype='f8')
    graph, y = recorded(lambda: cp.sqrt(x) * 2, **options)
    first, second = cp.empty_like(y), cp.empty_like(y)
    graph.rebind((y, first))
    memory = cp.cuda.UnownedMemory(first.data.ptr, first.nbytes, None, 0)
    del first  # a capture keeps the arrays that it finds
    more = OTHERS[other](graph)
    graph.rebind((cp.ndarray(N, 'f8', cp.cuda.MemoryPointer(memory, 0)), second))
    others = crowd(cp)
    more.launch()
    assert untouched(others)
    assert values_after(graph, second) == (np.sqrt(np.arange(N)) * 2).tolist()


def test_a_copy_drops_what_it_no_longer_uses_itself(sim: Any) -> None:
    x = sim.arange(N, dtype='f8')
    graph, y = recorded(lambda: sim.sqrt(x) * 2)
    copy = graph.clone()
    pool = sim.get_default_memory_pool()
    used = []
    for _ in range(6):
        copy.rebind((y, other := sim.empty_like(y)))
        y = other
        used.append(pool.used_bytes())
    assert used[1:] == [used[1]] * 5


TEMPORARIES: dict[str, Callable[[Any, Any], Any]] = {
    'elements': lambda cp, x: x * x,
    'a product': lambda cp, x: x @ x.T,
    'a scan': lambda cp, x: cp.cumsum(x),
    'rows sorted': lambda cp, x: cp.sort(x, axis=0),
}


@pytest.mark.parametrize('temporary', TEMPORARIES)
def test_no_larger_array_that_lay_there_before_is_moved(sim: Any, temporary: str) -> None:
    """It would reach beyond the new array."""
    x, w = sim.ones((40, 24), 'f4'), sim.ones((24, 24), 'f4')
    graph, (_mean, y) = recorded(lambda: (TEMPORARIES[temporary](sim, x).mean(), w * 2))
    two = sim.zeros((2, 24, 24), 'f4')
    with pytest.raises(ck.UpdateError, match='reaches beyond the end of the old array'):
        graph.rebind((y, two[0]))
    assert values_after(graph, y) == [2.0] * w.size and values(two) == [0.0] * two.size


def test_a_smaller_one_is(cp: Any) -> None:
    x, w = cp.ones((4, 4), 'f4'), cp.ones((24, 24), 'f4')
    graph, (_mean, y) = recorded(lambda: ((x * x).mean(), w * 2))
    other = cp.empty_like(y)
    assert graph.rebind((y, other)) >= 1
    assert values_after(graph, other) == [2.0] * w.size


@pytest.mark.parametrize('fused', ['this', 'other'])
def test_a_refused_update_leaves_both_launchable(cp: Any, fused: str) -> None:
    """The other graph was fused, or the fused kernels were taken apart, to be like this one."""
    x = cp.arange(8.0)
    graph, y = recorded(lambda: cp.sqrt(x) * 2 + 1, fuse=fused == 'this')
    other, z = recorded(lambda: cp.cumsum(cp.sqrt(x) * 3 + 1), fuse=fused == 'other')
    for one in (graph, other):  # the next launches go to the executable graph that is there now
        one.launch()
    with pytest.raises(ck.UpdateError):
        graph.update(other)
    host = np.sqrt(np.arange(8.0))
    assert values_after(other, z) == pytest.approx(np.cumsum(host * 3 + 1).tolist())
    assert values_after(graph, y) == (host * 2 + 1).tolist()
