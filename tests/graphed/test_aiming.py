"""Large arguments of graphed functions are not copied: the graph's nodes are aimed at them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import capturekit as ck
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graphed import aiming, policy
from capturekit.graphed.aiming import Aimer
from tests.captured import values
from tests.twins import plain


@pytest.fixture(autouse=True)
def small_arrays_are_aimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, 'AIMED_BYTES', 1024)
    monkeypatch.setattr(Aimer, 'too_dear', lambda *_: [])


def aims(fn: Any) -> list[int]:
    """Which arguments the first variant's nodes are aimed at."""
    (found,) = fn.variants
    assert found.state == 'recorded'
    return sorted(found.aims)


def in_place(a: Any, b: Any) -> None:
    b[1:-1] = (a[:-2] + a[2:]) * 0.5
    b[0], b[-1] = a[0], a[-1]


def views_of_the_argument(x: Any, _y: Any) -> Any:
    x += 1
    return x, x[::2], x * 3


def after_a_larger_temporary(x: Any, _y: Any) -> Any:
    wide = x[:4].reshape(4, 1) * x + 1.0
    total = wide[0] + wide[3]  # no kernel of CUB's, whose arguments are not known
    del wide
    return x * 2.0 + total  # may get the block of what was there before, which reached beyond it


def parts_of_a_result(x: Any, _y: Any) -> Any:
    y = x * 2.0
    return y, y[10:20], y.reshape(16, 16)


def changed_before_it_returns(x: Any, y: Any) -> Any:
    a = x + y
    b = a * 3.0
    a -= 1.0
    return a, b


#: What functions do with two arrays of 256.
WORKS: dict[str, Callable[[Any, Any], Any]] = {
    'in place': in_place,
    'views of the argument': views_of_the_argument,
    'after a larger temporary': after_a_larger_temporary,
    'parts of a result': parts_of_a_result,
    'two results': changed_before_it_returns,
    'by columns': lambda x, y: (x.reshape(8, 32) * 2.0).T,
}


@pytest.mark.parametrize('name', WORKS)
def test_what_is_aimed_at_is_as_without(cp: Any, name: str) -> None:
    work = WORKS[name]
    graphed, kept, wanted = ck.graphed(work), [], []
    mine, theirs = [cp.arange(256.0) ** 2, cp.arange(256.0)], [cp.arange(256.0) ** 2, cp.arange(256.0)]
    for number in range(9):
        kept.append((graphed(*mine), [one.copy() for one in mine]))
        wanted.append((work(*theirs), [one.copy() for one in theirs]))
        assert plain(kept[-1], cp) == plain(wanted[-1], cp)
        for pair in (mine, theirs):
            pair.reverse() if number % 2 else pair.__setitem__(0, pair[0] + number)
    assert plain(kept, cp) == plain(wanted, cp), 'no call writes where an earlier one has returned something'
    assert aims(graphed) == [0, 1]


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
def test_where_nodes_can_not_be_aimed_the_answer_is_right(cp: Any, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    original = aiming.runners
    calls: list[int] = []

    def runners(state: Any, slots: Any) -> list[Any]:
        def wrapped(run: Any) -> Any:
            def refuses() -> int:
                calls.append(1)
                return 1 if when == 'recording' or len(calls) == 5 else run()

            return refuses

        return [wrapped(run) for run in original(state, slots)]

    monkeypatch.setattr(aiming, 'runners', runners)
    fn = ck.graphed(lambda x: x * 2)
    kept = [fn(cp.full(256, float(n))) for n in range(8)]
    assert [values(one)[0] for one in kept] == [2.0 * n for n in range(8)]
    if when == 'recording':
        assert calls == [1, 1] and aims(fn) == []
    else:
        assert len(calls) > 5


@pytest.mark.gpu
def test_libraries_are_given_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    cp = pytest.importorskip('cupy')
    monkeypatch.setattr(policy, 'AIMED_BYTES', 1024)
    monkeypatch.setattr(Aimer, 'too_dear', lambda *_: [])
    fn = ck.graphed(lambda a, b: a @ b + 1)
    for _ in range(5):
        a, b = cp.random.random_sample((64, 64)), cp.random.random_sample((64, 64))
        assert bool(cp.allclose(fn(a, b), a @ b + 1))
    assert aims(fn) == []


def test_results_are_written_where_the_caller_gets_them(cp: Any) -> None:
    fn = ck.graphed(lambda x: cp.tanh(x) * 2.0 + 1.0)
    kept = [fn(cp.full(256, float(n))) for n in range(6)]
    assert [values(one) for one in kept] == [values(cp.tanh(cp.full(256, float(n))) * 2.0 + 1.0) for n in range(6)]
    kernels = [node.name for node in fn.variants[0].graph.nodes if node.kind == 'kernel']
    assert not [name for name in kernels if name == 'capturekit_store']
    assert fn.variants[0].quick is not None


def test_the_result_of_one_call_is_the_argument_of_the_next(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * 2.0 + 1.0)
    x, wanted = cp.arange(256.0), cp.arange(256.0)
    for _ in range(9):
        x, wanted = fn(x), wanted * 2.0 + 1.0
        assert values(x) == values(wanted)


def test_what_is_copied_sooner_is_copied(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def often(x: Any) -> Any:
        for _ in range(20):
            x += 1.0
        return x * 2.0

    large, small = ck.graphed(often), ck.graphed(lambda x: x * 2.0)
    for n in range(4):
        x = cp.full(1 << 18, float(n))  # 2 MiB
        assert float(large(x)[0].get()) == 2.0 * (n + 20) and float(x[-1].get()) == n + 20
        assert values(small(cp.full(256, float(n)))[:1]) == [2.0 * n]
    assert aims(large) == [] and aims(small) == []


def test_an_open_capture_of_another_thread_is_not_lost(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * 2.0)
    for n in range(3):
        fn(cp.full(256, float(n)))
    opened, done, found = threading.Event(), threading.Event(), []

    def other() -> None:
        side = cp.cuda.Stream(non_blocking=True)
        y = cp.arange(4.0)
        with ck.capture(side) as cap:
            z = y * 3.0
            opened.set()
            done.wait(20)
            z += 1.0
        cap.graph.launch()
        side.synchronize()
        found.append(values(z))

    thread = threading.Thread(target=other)
    thread.start()
    assert opened.wait(20)
    try:
        assert [values(fn(cp.full(256, float(n)))[:1]) for n in range(3)] == [[0.0], [2.0], [4.0]]
    finally:
        done.set()
        thread.join()
    assert found == [[1.0, 4.0, 7.0, 10.0]]


def test_fused_kernels_are_compared_before_nodes_are_aimed(cp: Any) -> None:
    def fn(x: Any, y: Any) -> Any:
        x += 1.0
        return x * 2.0 + y, (x - y) * 3.0

    graphed = ck.graphed(fn, fuse=True)
    kept, wanted = [], []
    for n in range(7):
        x, y = cp.full(256, float(n)), cp.arange(256.0)
        wanted += [values(one) for one in fn(x.copy(), y)]
        kept += graphed(x, y)
        assert values(x) == [n + 1.0] * 256
    assert [values(one) for one in kept] == wanted
    (variant,) = graphed.variants
    assert variant.fused.kernels and variant.fused.compared == 'the same as without fused kernels'
    assert variant.aims == [0, 1] and variant.quick is not None


def test_fused_kernels_that_differ_give_way_to_those_recorded(
    cp: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FirstLaunch, 'run', _differing(FirstLaunch.run))
    fn = ck.graphed(lambda x: (x + 1.0) * 2.0, fuse=True)
    kept = [fn(cp.full(256, float(n))) for n in range(7)]
    assert 'Graph.fuse() is undone' in caplog.text
    assert [values(one)[0] for one in kept] == [2.0 * (n + 1) for n in range(7)]


def _differing(run: Any) -> Any:
    """The first launch, which says that the results differ."""

    def other(self: Any, executable: int, stream: int) -> str:
        found = run(self, self.recorded.graphExec, stream)
        assert found == ''
        return '1 byte differs'

    return other


@pytest.mark.parametrize('fuse', [False, True])
def test_where_nothing_is_copied_nothing_is_fetched(cp: Any, fuse: bool) -> None:
    fn = ck.graphed(lambda x: cp.tanh(x) * 2.0, fuse=fuse)
    kept = [fn(cp.full(256, float(n))) for n in range(200)]  # more than the table has rows
    assert values(kept[-1]) == values(cp.tanh(cp.full(256, 199.0)) * 2.0)
    assert fetching(fn) == [False]
    other = ck.graphed(lambda x, y: x * y)
    for n in range(4):
        other(cp.full(256, float(n)), cp.full((), 2.0))
    assert fetching(other) == [True]


@pytest.mark.parametrize('ordered', [False, True])
def test_a_refused_change_does_not_shift_the_table(cp: Any, monkeypatch: pytest.MonkeyPatch, ordered: bool) -> None:
    """Small arguments go by the table's rows, which are counted: a call that launches nothing takes none."""
    original, refuse = aiming.runners, [False]

    def runners(state: Any, slots: Any) -> list[Any]:
        return [lambda run=run: 1 if refuse[0] else run() for run in original(state, slots)]

    monkeypatch.setattr(aiming, 'runners', runners)
    side = cp.cuda.Stream()  # ordered with the null stream, without events

    def fn(x: Any, small: Any) -> Any:
        with side if ordered else nullcontext():
            twice = x * 2.0
        return twice + small

    graphed, kept, smalls = ck.graphed(fn), [], []
    for n in range(9):
        refuse[0] = n == 5
        smalls.append(cp.full((), n / 4))  # which keeps each at an address of its own
        kept.append(graphed(cp.full(256, float(n)), smalls[-1]))
    assert [values(one)[0] for one in kept] == [2.0 * n + n / 4 for n in range(9)]
    (variant,) = graphed.variants
    assert variant.aims == [0] and (variant.stream_order is not None) == ordered and variant.launches == 7


def fetching(fn: Any) -> list[bool]:
    """Whether the kernels that fetch arguments run."""
    graph = fn.variants[0].graph
    return [graph.enabled(node) for node in graph.nodes if node.name == 'capturekit_fetch']
