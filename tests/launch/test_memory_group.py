"""Graphs that share memory: what they share, what they never share, and that their launches take turns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from tests.captured import simulated

SIZES = (3000, 5000, 4000)


@pytest.fixture(params=['late 1', 'late 2', pytest.param('gpu', marks=pytest.mark.gpu)])
def late(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Simulated devices on which the work of each stream waits until somebody waits for it; and a GPU."""
    if request.param == 'gpu':
        pytest.importorskip('cuda.bindings')
        yield pytest.importorskip('cupy')
        return
    with simulated(int(request.param[-1]), late=True) as cp:
        yield cp


def chain(x: Any) -> Any:
    """Temporaries that live one after the other, and beside each other."""
    parts = [x * k for k in range(1, 5)]
    for _ in range(6):
        parts = [a + b for a, b in zip(parts, parts[1:] + parts[:1])]
    return sum(parts)


def large(cp: Any) -> int:
    """So many elements that launches of a GPU are under way for a while; simulated work waits however small it is."""
    return 1 << 9 if hasattr(cp, '__capturekit_simulated__') else 1 << 16


def right(x: Any) -> Any:
    return chain(x.get())


def recorded(fn: Any, cp: Any, sizes: tuple[int, ...] = SIZES) -> list[Any]:
    """The function recorded for arrays of these sizes, which are returned."""
    arrays = [cp.arange(float(n)) for n in sizes]
    for x in arrays:
        fn(x), fn(x), fn(x)  # on a GPU a first run, which compiles kernels, may be forgiven
    assert {variant.state for variant in fn.variants} == {'recorded'}
    return arrays


# -- what is shared ------------------------------------------------------------------------------------------------


def test_variants_of_a_function_share_temporaries(cp: Any) -> None:
    fn = ck.graphed(chain)
    arrays = recorded(fn, cp)
    assert fn.memory is not None and fn.memory.graphs == len(arrays)
    alone = ck.graphed(chain, memory=ck.MemoryGroup())
    recorded(alone, cp, (max(SIZES),))
    most = alone.memory.memory_bytes
    assert most <= fn.memory.memory_bytes <= 2.5 * most, 'three variants hold little more than the largest'
    for x in arrays:
        assert np.array_equal(fn(x).get(), right(x))


def test_results_and_arguments_are_not_shared(cp: Any) -> None:
    def both(x: Any, y: Any) -> Any:
        y += x
        return x * 2, y * 3

    fn = ck.graphed(both)
    pairs = [(cp.arange(float(n)), cp.ones(n)) for n in SIZES]
    results = [fn(*pair) for _ in range(3) for pair in pairs]
    for number, (_x, y) in enumerate(pairs):
        n = SIZES[number]
        assert np.array_equal(y.get(), np.ones(n) + 3 * np.arange(n))
        for call in range(3):
            twice, thrice = results[call * len(pairs) + number]
            assert np.array_equal(twice.get(), 2.0 * np.arange(n))
            assert np.array_equal(thrice.get(), 3 * (np.ones(n) + (call + 1) * np.arange(n)))


def test_what_outlives_the_function_is_not_shared(cp: Any) -> None:
    class Loop:
        """A cycle, which only the collector takes apart."""

        def __init__(self, kept: Any) -> None:
            self.me, self.kept = self, kept

    def leaves(x: Any) -> Any:
        made = x * 2
        Loop(made)
        return made + 1

    fn = ck.graphed(leaves, pure=True)
    x = cp.arange(100.0)
    gc.disable()
    try:
        for _ in range(3):
            assert np.array_equal(fn(x).get(), 2 * x.get() + 1)
    finally:
        gc.enable()
    (variant,) = fn.variants
    assert variant.state == 'recorded' and variant.graph.memory_bytes > 0
    gc.collect()  # the cycle of the first recording holds an array of a graph that is closed
    assert fn.memory is not None and fn.memory.graphs == 0, 'its memory is its own'


def test_lanes_have_memory_of_their_own(cp: Any) -> None:
    def split(x: Any) -> Any:
        with ck.fork(2) as (left, right):
            with left:
                a = chain(x)
            with right:
                b = chain(x + 1)
        return a - b

    fn = ck.graphed(split)
    arrays = [cp.arange(float(n)) for n in SIZES]
    for _ in range(4):
        for x in arrays:
            assert np.array_equal(fn(x).get(), chain(x.get()) - chain(x.get() + 1))
    assert {variant.state for variant in fn.variants} == {'recorded'}
    assert fn.memory is not None and fn.memory.graphs == len(SIZES)
    assert not any(variant.graph.races() for variant in fn.variants)


@pytest.mark.parametrize('options', [{'fuse': True}, {'lanes': 'auto'}, {'fuse': True, 'lanes': 'auto'}])
def test_changed_graphs_share_as_well(cp: Any, options: dict[str, Any]) -> None:
    fn = ck.graphed(chain, **options)
    arrays = recorded(fn, cp)
    for _ in range(3):
        for x in arrays:
            assert np.array_equal(fn(x).get(), right(x))
    assert fn.memory is not None and fn.memory.graphs == len(arrays)


# -- turns ---------------------------------------------------------------------------------------------------------


def test_launches_of_several_threads_take_turns(late: Any) -> None:
    group = ck.MemoryGroup()
    fns = [ck.graphed(lambda x, k=k: chain(x) * k, memory=group) for k in range(1, 4)]
    arrays = [recorded(fn, late, (large(late),))[0] for fn in fns]
    late.cuda.runtime.deviceSynchronize()

    def wrong(number: int) -> int:
        stream = late.cuda.Stream(non_blocking=True)
        with stream:
            got = [fns[number](arrays[number]) for _ in range(10)]
        stream.synchronize()
        return sum(not np.array_equal(one.get(), right(arrays[number]) * (number + 1)) for one in got)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(wrong, range(3))) == [0] * 3


def test_a_stream_that_is_gone_does_not_end_the_order(late: Any) -> None:
    fn = ck.graphed(chain)
    x, y = recorded(fn, late, (2 * large(late), large(late)))
    late.cuda.runtime.deviceSynchronize()
    for _ in range(10):
        stream = late.cuda.Stream(non_blocking=True)
        with stream:
            one = fn(x)
        done = stream.record()
        del stream
        gc.collect()
        with late.cuda.Stream(non_blocking=True) as other:
            two = fn(y)
            other.synchronize()
        done.synchronize()
        assert np.array_equal(one.get(), right(x)) and np.array_equal(two.get(), right(y))


def test_streams_of_others_take_turns(late: Any) -> None:
    fn = ck.graphed(chain)
    x, y = recorded(fn, late, (2 * large(late), large(late)))
    late.cuda.runtime.deviceSynchronize()
    own = [late.cuda.Stream(non_blocking=True) for _ in range(2)]
    others = [late.cuda.Stream.from_external(one) for one in own]
    for _ in range(5):
        with others[0]:
            one = fn(x)
        with others[1]:
            two = fn(y)
        late.cuda.runtime.deviceSynchronize()
        assert np.array_equal(one.get(), right(x)) and np.array_equal(two.get(), right(y))


def test_a_captured_stream_refuses_the_next_launch(cp: Any) -> None:
    group, x = ck.MemoryGroup(), cp.arange(8.0)
    graphs = []
    for k in range(2):
        with ck.capture(memory=group) as cap:
            y = x + k
        graphs.append((cap.graph, y))
    stream, other = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    with stream:
        graphs[0][0].launch()
    stream.begin_capture()
    try:
        with pytest.raises(ck.UnsupportedCallError, match='is being captured now'), other:
            graphs[1][0].launch()
    finally:
        stream.end_capture()
    with other:
        graphs[1][0].launch()
        other.synchronize()
    assert np.array_equal(graphs[1][1].get(), np.arange(8.0) + 1)


# -- graphs of captures --------------------------------------------------------------------------------------------


def two_of(cp: Any, group: ck.MemoryGroup) -> list[tuple[Any, Any]]:
    """Two graphs of a group, each with the array that it makes."""
    found = []
    for k in range(2):
        x = cp.arange(16.0) + k
        with ck.capture(memory=group) as cap:
            GUARD.libraries.workspace_on(cap.stream.ptr)
            y = chain(x)
        found.append((cap.graph, y))
    return found


def takes_its_turn(cp: Any, group: ck.MemoryGroup, launch: Any) -> Any:
    """Launch on a stream of its own, for which the next launch of the group has to wait; the stream."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        launch()
    assert group.turns is not None and group.turns.last is stream
    return stream


def test_graphs_share_the_workspaces_of_libraries(cp: Any) -> None:
    group = ck.MemoryGroup()
    (one, first), (two, second) = two_of(cp, group)
    assert group.graphs == 2 and group.memory_bytes == 32 << 20
    one.launch(), two.launch(), one.launch()
    assert np.array_equal(first.get(), chain(np.arange(16.0))), "arrays that the block made are the graph's alone"
    assert np.array_equal(second.get(), chain(np.arange(16.0) + 1))
    one.close()
    two.launch()
    assert group.graphs == 1 and group.memory_bytes == 32 << 20
    two.close()
    assert group.graphs == group.memory_bytes == 0


def test_a_clone_takes_the_turns_of_its_graph(cp: Any) -> None:
    group = ck.MemoryGroup()
    (one, y), (two, _) = two_of(cp, group)
    clone = one.clone()
    one.close(), two.close()
    takes_its_turn(cp, group, clone.launch).synchronize()
    assert np.array_equal(y.get(), chain(np.arange(16.0)))
    assert group.memory_bytes
    clone.close()
    assert not group.memory_bytes


def test_an_updated_graph_takes_the_turns_of_the_new_one(cp: Any) -> None:
    group, x = ck.MemoryGroup(), cp.arange(16.0)
    with ck.capture() as cap:
        chain(x)
    (one, y), (two, _) = two_of(cp, group)
    graph = cap.graph
    graph.update(one)
    takes_its_turn(cp, group, graph.launch).synchronize()
    two.close()
    assert np.array_equal(y.get(), chain(np.arange(16.0)))


def test_a_graph_around_others_takes_their_turns(cp: Any) -> None:
    group = ck.MemoryGroup()
    (one, first), (two, second) = two_of(cp, group)
    with ck.capture() as cap:
        cap.embed(one)
        cap.embed(two)
    stream = takes_its_turn(cp, group, cap.graph.launch)
    one.close(), two.close()
    assert group.memory_bytes, 'the graph around them uses it'
    with stream:
        cap.graph.launch()
        stream.synchronize()
    assert np.array_equal(first.get(), chain(np.arange(16.0)))
    assert np.array_equal(second.get(), chain(np.arange(16.0) + 1))
    cap.graph.close()
    assert not group.memory_bytes


def test_no_two_of_a_group_run_beside_each_other(cp: Any) -> None:
    group = ck.MemoryGroup()
    (one, _), (two, _) = two_of(cp, group)
    with ck.capture() as cap, cap.fork(2) as (left, right):
        with left:
            cap.embed(one)
        with right, pytest.raises(ck.UnsupportedCallError, match='same memory group'):
            cap.embed(two)
    with (
        ck.capture(memory=group) as cap,
        pytest.raises(ck.UnsupportedCallError, match='shares memory with the graph'),
    ):
        cap.embed(one)


@pytest.mark.parametrize('other', ['pool', 'pieces', 'update'])
def test_a_group_is_refused_beside_other_memory(cp: Any, other: str) -> None:
    with ck.capture() as cap:
        cp.ones(3)
    given = {'pool': cp.cuda.MemoryPool(), 'pieces': True, 'update': cap.graph}[other]
    with pytest.raises(TypeError, match=f'memory= can not be combined with {other}='):
        ck.capture(memory=ck.MemoryGroup(), **{other: given})


def test_a_pool_of_the_users_is_not_shared(cp: Any) -> None:
    pool = cp.cuda.MemoryPool()
    fn = ck.graphed(chain, pool=pool)
    recorded(fn, cp)
    assert fn.memory is None
    with pytest.raises(TypeError, match='memory= can not be combined with pool='):
        ck.graphed(chain, pool=pool, memory=ck.MemoryGroup())
    fn.clear()


def test_launches_that_are_measured_take_turns(cp: Any) -> None:
    group = ck.MemoryGroup()
    (one, _), (two, _) = two_of(cp, group)
    takes_its_turn(cp, group, lambda: one.measure(launches=1, warmup=0, by='events'))
    assert not two.races(observe=True)
