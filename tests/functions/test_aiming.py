"""Large arguments of graphed functions are not copied: the graph's nodes are aimed at them."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions import variant_recorder
from capturekit.graph.executable import Graph
from capturekit.model.errors import UpdateError
from tests.recorder.test_conditional import values


@pytest.fixture(autouse=True)
def small_arrays_are_aimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant_recorder, 'AIMED_BYTES', 1024)


def aims(fn: Any) -> list[int]:
    """Which arguments the first variant's nodes are aimed at."""
    (found,) = fn.variants
    assert found.state == 'recorded'
    return sorted(found.aims)


def test_fresh_arguments_at_each_call(cp: Any) -> None:
    fn = ck.graphed(lambda x, y, z: x * 2 + y + z)
    kept = []
    for n in range(8):
        x, y, z = cp.full(256, float(n)), cp.full(256, 10.0 * n), cp.full((), 0.5)
        out = fn(x, y, z)
        kept.append(out)
        assert values(x) == [float(n)] * 256
    assert [values(out)[:1] for out in kept] == [[12.0 * n + 0.5] for n in range(8)]
    assert aims(fn) == [0, 1]
    kernels = [node.name for node in fn.variants[0].graph.nodes if node.kind == 'kernel']
    assert kernels.count('capturekit_fetch') == 1


def test_work_in_place_and_arrays_that_change_places(cp: Any) -> None:
    def step(a: Any, b: Any) -> None:
        b[1:-1] = (a[:-2] + a[2:]) * 0.5
        b[0], b[-1] = a[0], a[-1]

    fn = ck.graphed(step)
    start = cp.arange(256.0) ** 2
    mine, wanted = [start.copy(), start.copy()], [start.copy(), start.copy()]
    for _ in range(9):
        fn(*mine)
        step(*wanted)
        mine.reverse()
        wanted.reverse()
        assert [values(array) for array in mine] == [values(array) for array in wanted]
    assert aims(fn) == [0, 1]


def test_results_that_are_arguments_and_views_of_them(cp: Any) -> None:
    def fn(x: Any) -> Any:
        x += 1
        return x, x[::2], x * 3

    graphed = ck.graphed(fn)
    for n in range(8):
        x = cp.full(256, float(n))
        same, view, total = graphed(x)
        assert same is x and values(view) == [n + 1.0] * 128 and view.data.ptr == x.data.ptr
        assert values(total) == [3 * (n + 1.0)] * 256
    assert aims(graphed) == [0]


def test_the_last_arguments_are_all_that_is_held(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * 2)
    used = cp.get_default_memory_pool().used_bytes
    for _ in range(4):
        fn(cp.ones(1 << 16))
    gc.collect()
    before = used()
    for n in range(6):
        assert values(fn(cp.full(1 << 16, float(n)))[:1]) == [2.0 * n]
        gc.collect()
        assert used() <= before
    fn.clear()
    gc.collect()
    assert used() <= before - (1 << 19)


def test_arguments_that_share_memory_are_not_aimed_at(cp: Any) -> None:
    fn = ck.graphed(lambda x, y: x[1:] + y[:-1])
    base = cp.arange(1024.0)
    for _ in range(4):
        assert values(fn(base[:512], base[256:768])[:2]) == [257.0, 259.0]
    assert values(fn(cp.ones(512), cp.ones(512))[:1]) == [2.0]


@pytest.mark.parametrize('when', ['recording', 'a call'])
def test_where_nodes_can_not_be_aimed_the_answer_is_right_all_the_same(
    cp: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    original = Graph.rebind
    calls: list[int] = []

    def refuses(self: Any, *pairs: Any) -> int:
        calls.append(len(pairs))
        if (when == 'recording') is not bool(pairs):
            raise UpdateError('Graph.rebind()')
        return original(self, *pairs)

    monkeypatch.setattr(Graph, 'rebind', refuses)
    fn = ck.graphed(lambda x: x * 2)
    for n in range(6):
        assert values(fn(cp.full(256, float(n)))[:1]) == [2.0 * n]
    assert calls
    if when == 'recording':
        assert calls == [0] and aims(fn) == []


@pytest.mark.gpu
def test_libraries_are_given_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    cp = pytest.importorskip('cupy')
    monkeypatch.setattr(variant_recorder, 'AIMED_BYTES', 1024)
    fn = ck.graphed(lambda a, b: a @ b + 1)
    for _ in range(5):
        a, b = cp.random.random_sample((64, 64)), cp.random.random_sample((64, 64))
        assert bool(cp.allclose(fn(a, b), a @ b + 1))
    assert aims(fn) == []
