"""One graph in the place of another: what CUDA takes, why it refuses, and what becomes of both graphs' memory.

The simulated half runs anywhere, the other one on a GPU.
"""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.recorder.capture import Capture
from tests.captured import launched, recorded, values_after
from tests.examples import examples


def two_lanes(cp: Any, x: Any, scale: float, *, swapped: bool = False, more: bool = False) -> Any:
    """A fork behind a product: a kernel on one lane, a copy of arrays and a memset on the other, and a sum."""
    y = x * scale
    z = cp.empty_like(x)
    cap = cp.cuda.get_current_stream()
    side = cp.cuda.Stream(non_blocking=True)
    side.wait_event(cap.record())

    def left() -> Any:
        return cp.sin(y)

    def right() -> None:
        with side:
            z.data.memset_async(0, z.nbytes, side)
            z.data.copy_from_device_async(y.data, y.nbytes // 2, side)

    if swapped:
        right()
        a = left()
    else:
        a = left()
        right()
    cap.wait_event(side.record())
    result = a + z
    return result + 1 if more else result


def wanted(x: Any, scale: float) -> Any:
    y = x.get() * scale
    z = np.where(np.arange(y.size) < y.size // 2, y, 0)
    return np.sin(y) + z


# -- updates --------------------------------------------------------------------------------------------------------


def test_a_graph_does_what_another_recording_does(cp: Any) -> None:
    x = cp.arange(8.0)
    graph, first = recorded(lambda: two_lanes(cp, x, 2))
    go, executable = graph.launch, graph.graphExec
    go()
    assert cp.allclose(first, cp.asarray(wanted(x, 2)))
    other, second = recorded(lambda: two_lanes(cp, x, 3))
    told = graph.update(other)
    assert (told.how, told.why, told.differences) == ('updated', '', ())
    assert 0 < told.seconds < 60
    assert graph.graphExec == executable and graph.recording is other.recording
    go()
    assert cp.allclose(second, cp.asarray(wanted(x, 3)))
    assert [node.number for node in graph.nodes] == list(range(5))
    assert graph.nodes[0].at is not None and graph.nodes[0].at.function == 'two_lanes'


def test_old_arrays_keep_their_memory_and_are_not_written(cp: Any) -> None:
    x = cp.arange(512.0)
    graph, first = recorded(lambda: x * 2)
    graph.launch()
    other, second = recorded(lambda: x * 3)
    graph.update(other)
    x += 1
    graph.launch()
    assert cp.allclose(first, cp.arange(512.0) * 2)
    assert cp.allclose(second, (cp.arange(512.0) + 1) * 3)
    eager = [cp.full(512, 7.0) for _ in range(8)]
    graph.launch()
    assert all(bool((one == 7).all()) for one in eager)
    assert cp.allclose(first, cp.arange(512.0) * 2)


def test_the_other_graph_is_used_up(cp: Any) -> None:
    x = cp.arange(8.0)
    graph, _ = recorded(lambda: x * 2)
    other, second = recorded(lambda: x * 3)
    launch, nbytes = other.launch, other.memory_bytes
    graph.update(other)
    assert other.closed and other.memory_bytes == 0 and graph.memory_bytes == nbytes
    for call in (launch, other.upload, other.describe, partial(graph.update, other)):
        with pytest.raises(ck.ClosedError):
            call()
    other.close()
    del other
    gc.collect()
    graph.launch()
    assert cp.allclose(second, x * 3)
    graph.close()
    assert graph.memory_bytes == 0


def test_the_loop_instantiates_anew_only_where_cuda_refuses(cp: Any) -> None:
    """And holds no more than the last recording's memory."""
    x = cp.arange(1 << 14, dtype='f8')
    graph, _ = recorded(lambda: x * 2)
    go, told, held = graph.launch, [], []
    for n in (1, 2, 2, 2, 2, 1):
        with ck.capture(update=graph) as cap:
            y = x
            for _ in range(n):
                y = y * 3
        go()
        assert cap.graph is graph and cp.allclose(y, x * 3**n)
        told.append((cap.update.how, bool(cap.update.why), len(cap.update.differences)))
        held.append(graph.memory_bytes)
    updated, anew = ('updated', False, 0), ('instantiated', True, 1)
    assert told == [updated, anew, updated, updated, updated, anew]
    assert len(set(held[1:5])) == 1 and held[0] == held[5] < held[1]


def test_large_graphs_are_compared_only_for_an_error(cp: Any) -> None:
    x = cp.zeros(4)

    def work(count: int) -> None:
        for _ in range(count):
            cp.add(x, 1, x)

    graph, _ = recorded(lambda: work(1001))
    other, _ = recorded(lambda: work(1002))
    assert [one.kind for one in refusal(graph, other).differences] == ['added']
    told = graph.update(other, instantiate=True)
    assert (told.how, told.why, told.differences) == ('instantiated', 'topology changed', ())
    graph.launch()
    assert x.get().tolist() == [1002] * 4


def test_a_block_that_fails_leaves_the_graph_as_it_was(cp: Any) -> None:
    x = cp.arange(8.0)
    graph, y = recorded(lambda: x * 2)
    cap = ck.capture(update=graph)
    with pytest.raises(ZeroDivisionError), cap:
        x * 3
        1 / 0  # noqa: B018
    with pytest.raises(ck.ClosedError):
        _ = cap.update
    graph.launch()
    assert cp.allclose(y, x * 2)


def test_launches_under_way_are_not_touched(cp: Any) -> None:
    x = cp.arange(1 << 18, dtype='f8')

    def work(step: float) -> Any:
        y = x * 1
        for _ in range(50):
            y += step
        return y

    graph, first = recorded(lambda: work(1))
    total = cp.zeros_like(x)
    for n in range(1, 4):
        graph.launch()
        total += first
        with ck.capture(update=graph):
            second = work(1 + n)
        first = second
    assert cp.allclose(total, 3 * x + 50 * (1 + 2 + 3))


def test_host_functions_and_events_live_with_the_graph(cp: Any) -> None:
    called: list[Any] = []

    class Argument:
        pass

    def record(word: str) -> weakref.ref[Any]:
        argument = Argument()
        cp.cuda.get_current_stream().launch_host_func(lambda _: called.append(word), argument)
        return weakref.ref(argument)

    graph, _ = recorded(lambda: record('first'))
    for n in range(3):
        other, second = recorded(lambda n=n: record(f'update {n}'))
        graph.update(other)
        del other
        gc.collect()
        graph.launch()
        cp.cuda.get_current_stream().synchronize()
        assert second() is not None
    assert called == ['update 0', 'update 1', 'update 2']
    graph.close()
    gc.collect()
    assert second() is None


# -- refusals -------------------------------------------------------------------------------------------------------


def refusal(graph: ck.Graph, other: ck.Graph) -> ck.UpdateError:
    with pytest.raises(ck.UpdateError) as info:
        graph.update(other)
    return info.value


def test_a_refusal_names_the_node_and_changes_nothing(cp: Any) -> None:
    x = cp.arange(8.0)
    graph, y = recorded(lambda: two_lanes(cp, x, 2))
    other, z = recorded(lambda: two_lanes(cp, x, 2, more=True))
    error = refusal(graph, other)
    assert (error.reason, error.cuda_error) == ('topology changed', 'cudaErrorGraphExecUpdateFailure')
    (added,) = error.differences
    assert (added.kind, added.number) == ('added', 5)
    assert 'node 5 (kernel cupy_add' in str(error) and 'test_update.py:' in added.text and 'is new' in added.text
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.differences) == (str(error), error.differences)
    for one, result in ((graph, y), (other, z)):
        one.launch()
        assert cp.allclose(result, cp.asarray(wanted(x, 2) + (one is other)))
    told = graph.update(other, instantiate=True)
    assert (told.how, told.why, told.differences) == ('instantiated', 'topology changed', error.differences)
    x += 1
    graph.launch()
    assert cp.allclose(z, cp.asarray(wanted(x, 2) + 1))


def test_other_edges_are_told_by_the_node_they_lead_to(cp: Any) -> None:
    x = cp.arange(8.0)

    def work(forked: bool) -> None:
        origin, side = cp.cuda.get_current_stream(), cp.cuda.Stream(non_blocking=True)
        y = x * 2
        side.wait_event(origin.record())
        cp.add(y, 1, y)
        with side if forked else origin:
            cp.sin(x, x)
        if forked:
            origin.wait_event(side.record())
        cp.add(y, x, y)
        del y

    graph, _ = recorded(lambda: work(True))
    other, _ = recorded(lambda: work(False), strict=False)
    error = refusal(graph, other)
    assert {one.kind for one in error.differences} == {'edges'}
    assert 'node 2 (kernel cupy_sin' in str(error) and 'comes after node 1, and came after node 0' in str(error)


def test_what_can_not_be_updated(cp: Any) -> None:
    x = cp.arange(8.0)
    graph, _ = recorded(lambda: x * 2)
    with pytest.raises(ValueError, match='itself'):
        graph.update(graph)

    def branching() -> Any:
        return x * 2 if float(x.max()) > 1 else x

    rehearsal = ck.rehearse(branching)
    with pytest.raises(ValueError, match='rehearsal'):
        ck.capture(rehearsal=rehearsal, update=graph)
    parts, _ = recorded(branching, rehearsal=rehearsal)
    for call in (
        lambda: graph.update(parts),
        lambda: parts.update(graph),
        lambda: ck.capture(update=parts),
        parts.clone,
        lambda: parts.set_kernel(0, grid=1),
        lambda: parts.disable(0),
    ):
        with pytest.raises(ck.UpdateError, match='several parts'):
            call()
    assert not graph.closed and not parts.closed
    graph.close()
    for call in (lambda: graph.update(recorded(lambda: x + 1)[0]), lambda: ck.capture(update=graph)):
        with pytest.raises(ck.ClosedError):
            call()


def test_conditional_nodes_are_updated_with_their_bodies(cp: Any) -> None:
    x, flag = cp.arange(8.0), cp.zeros((), 'i4')

    def record(scale: float, **options: Any) -> Capture:
        with ck.capture(**options) as cap:
            cp.multiply(x, 1, x)
            with cap.if_(flag):
                cp.multiply(x, scale, x)
        return cap

    graph = record(2).graph
    told = record(3, update=graph).update
    assert told.how == 'updated', told
    for value, result in ((0, 1), (1, 3)):
        x[...], flag[...] = 1, value
        graph.launch()
        assert cp.allclose(x, result)
    with pytest.raises(ck.UpdateError, match='conditional'):
        graph.clone()


def test_updates_and_launches_of_several_threads_take_turns(cp: Any) -> None:
    x, total = cp.arange(64.0), cp.zeros(64)

    def work() -> Any:
        cp.add(total, x * 2, total)

    graph, _ = recorded(work)
    others = [recorded(work)[0] for _ in range(12)]
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with ThreadPoolExecutor(2) as pool:
        updates = pool.submit(lambda: [graph.update(other) for other in others])
        launches = pool.submit(lambda: [graph.launch(stream) for _ in others])
        assert len(updates.result()) == len(launches.result()) == 12
    stream.synchronize()
    assert cp.allclose(total, 12 * 2 * x)


class Slow:
    """A lock that gives others time to take theirs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        time.sleep(0.1)

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()


def test_two_graphs_that_take_each_other_over_do_not_hang(cp: Any) -> None:
    x = cp.arange(8.0)
    one, two = (recorded(lambda: x * 2)[0] for _ in range(2))
    done: list[str] = []
    for graph in (one, two):
        graph._state.lock = Slow()  # type: ignore[assignment]

    def run(a: ck.Graph, b: ck.Graph) -> None:
        try:
            a.update(b)
            done.append('updated')
        except ck.ClosedError:
            done.append('closed')

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == ['closed', 'updated'] and one.closed != two.closed


# -- random programs ------------------------------------------------------------------------------------------------

#: A program: lanes are forked and joined in turn, and each step does something on a lane to one of four arrays.
steps = st.lists(
    st.tuples(st.sampled_from(('fork', 'join', 'add', 'scale', 'clear', 'copy')), st.integers(0, 2), st.integers(0, 3)),
    max_size=8,
)


def perform(cp: Any, program: list[tuple[str, int, int]], arrays: list[Any], factor: float) -> None:
    """Do a program on lanes, each with arrays of its own, so that no order of lanes matters."""
    origin = cp.cuda.get_current_stream()
    lanes = [origin, cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)]
    open_ = {0}
    for what, lane, which in program:
        if what == 'fork' and lane not in open_:
            lanes[lane].wait_event(origin.record())
            open_.add(lane)
        elif what == 'join' and lane in open_ - {0}:
            origin.wait_event(lanes[lane].record())
            open_.discard(lane)
        elif what in ('add', 'scale', 'clear', 'copy') and lane in open_:
            array, other = arrays[4 * lane + which], arrays[4 * lane + (which + 1) % 4]
            with lanes[lane]:
                if what == 'add':
                    cp.add(array, factor, array)
                elif what == 'scale':
                    cp.multiply(array, factor, array)
                elif what == 'clear':
                    array.data.memset_async(0, array.nbytes // 2, lanes[lane])
                else:
                    array.data.copy_from_device_async(other.data, array.nbytes, lanes[lane])
    for lane in sorted(open_ - {0}):
        origin.wait_event(lanes[lane].record())


def changed(program: list[tuple[str, int, int]], how: str, at: int) -> list[tuple[str, int, int]]:
    """A program like another one: the same, with other arrays, without a step, or with two steps in another order."""
    at = at % len(program) if program else 0
    if how == 'arrays':
        return [(what, lane, (which + 1) % 4) for what, lane, which in program]
    if how == 'shorter':
        return program[:at] + program[at + 1 :]
    if how == 'swapped':
        return program[:at] + program[at : at + 2][::-1] + program[at + 2 :]
    return program


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.sampled_from(('same', 'arrays', 'shorter', 'swapped')), st.integers(0, 7), st.booleans())
def test_an_update_is_whole_or_leaves_the_old_graph(
    cp: Any, program: list[tuple[str, int, int]], how: str, at: int, anew: bool
) -> None:
    arrays = [cp.zeros(4) for _ in range(12)]

    def ran(graph: ck.Graph) -> list[list[float]]:
        for n, array in enumerate(arrays):
            array[...] = n + 1
        graph.launch()
        return [array.get().tolist() for array in arrays]

    second = changed(program, how, at)
    graph, _ = recorded(lambda: perform(cp, program, arrays, 2.0))
    other, _ = recorded(lambda: perform(cp, second, arrays, 3.0))
    before, fresh = ran(graph), ran(other)
    nodes = [(n.kind, n.name, n.detail) for n in other.nodes]
    try:
        told = graph.update(other, instantiate=anew)
    except ck.UpdateError as error:
        assert not anew and how != 'same' and error.differences
        assert ran(graph) == before and ran(other) == fresh
    else:
        assert how != 'same' or told.how == 'updated'
        assert ran(graph) == fresh
        assert [(n.kind, n.name, n.detail) for n in graph.nodes] == nodes
        assert other.closed
    for one in (graph, other):
        one.close()


# -- copies -----------------------------------------------------------------------------------------------------------


def test_a_copy_is_a_graph_of_its_own(cp: Any) -> None:
    x = cp.arange(4.0)
    graph, _ = recorded(lambda: x * 2.0 + 1.0)
    graph.disable(1)
    copy = graph.clone()
    assert type(copy) is ck.Graph and copy.graphExec != graph.graphExec and copy.graph != graph.graph
    assert [copy.enabled(n) for n in range(2)] == [True, False]
    assert [str(node) for node in copy.nodes] == [str(node) for node in graph.nodes]
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
