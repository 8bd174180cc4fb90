"""A graph's memory is its own; inside a capture a block goes out again only behind all that may have touched it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.launch import graph_memory
from capturekit.launch.graph_memory import WORKSPACE_BYTES, Workspaces, count_of
from tests.captured import launched, simulated
from tests.examples import examples


def test_a_block_another_lane_may_still_read_is_not_handed_out(sim: Any) -> None:
    """A block of lane 1, read on lane 2, is dropped; then lane 1 allocates."""
    x = sim.arange(64, dtype='f8')
    with ck.capture() as cap, cap.fork(2) as (one, two):
        with one:
            u = x + 1
        two.wait_event(one.record())
        with two:
            v = u * 2
        first = u.data.ptr
        del u
        with one:
            w = x + 5
    assert first != w.data.ptr
    for _ in range(20):
        cap.graph.launch()
        assert np.array_equal(v.get(), (np.arange(64) + 1) * 2)
        assert np.array_equal(w.get(), np.arange(64) + 5)


def test_a_chain_of_temporaries_uses_a_few_blocks(sim: Any) -> None:
    x = sim.arange(1024, dtype='f8')
    with ck.capture() as cap:
        y = x + 0
        for _ in range(500):
            y = y * 1.0 + 1
    assert cap.graph.memory_bytes <= 4 * 8192
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(1024) + 500)


def test_a_lane_uses_its_own_blocks_again_while_others_are_open(sim: Any) -> None:
    x = sim.arange(1024, dtype='f8')
    streams = [sim.cuda.Stream(non_blocking=True) for _ in range(3)]
    with ck.capture() as cap:
        for stream in streams:
            stream.wait_event(cap.stream.record())
        results = []
        for n, stream in enumerate(streams):
            with stream:
                y = x + n
                for _ in range(100):
                    y = y * 1.0 + 1
                results.append(y)
        for stream in streams:
            cap.join(stream)
    assert cap.graph.memory_bytes <= 3 * 4 * 8192
    cap.graph.launch()
    assert all(np.array_equal(y.get(), np.arange(1024) + n + 100) for n, y in enumerate(results))


def test_memory_goes_back_with_the_graph(sim: Any) -> None:
    device = sim.__capturekit_simulated__
    x = sim.arange(1 << 16, dtype='f8')
    before = device.mem_get_info()[0]
    with ck.capture() as cap:
        x + 1
    assert device.mem_get_info()[0] < before
    cap.graph.close()
    del cap
    assert device.mem_get_info()[0] == before


def test_pinned_memory_goes_back_when_the_device_has_waited(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's pool of pinned memory hands a block out again at once, while a launch may still read its table."""
    told: list[str] = []

    class Pinned:
        def __del__(self) -> None:
            told.append('pinned')

    memory = graph_memory.GraphMemory(sim)
    memory.keep_pinned(Pinned())
    memory.grow(1 << 20)
    pool = type(memory.pool)
    monkeypatch.setattr(pool, 'free_all_blocks', lambda _pool, stream=None: told.append('device'))
    memory.hold().release()
    assert told == ['device', 'device', 'pinned']


def test_a_pool_of_the_callers_gives_and_keeps(sim: Any) -> None:
    pool = sim.cuda.MemoryPool()
    x = sim.arange(64, dtype='f8')
    with ck.capture(pool=pool) as cap:
        y = x + 1
        for _ in range(10):
            y = y * 1.0
        with pytest.raises(ck.UnsupportedCallError, match='memory of an open capture'):
            pool.free_all_blocks()
    held = pool.used_bytes()
    assert 0 < held <= 3 * 512
    pool.free_all_blocks()
    assert pool.used_bytes() == held
    with sim.cuda.using_allocator(pool.malloc):
        later = [sim.zeros(64) for _ in range(4)]
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(64) + 1)
    assert all(not a.get().any() for a in later)


def test_graphs_of_one_pool_share_no_memory_while_they_live(sim: Any) -> None:
    """They may run at once, and each keeps its results; what a closed one gave back is the pool's again."""
    pool, x = sim.cuda.MemoryPool(), sim.arange(64, dtype='f8')

    def recorded(factor: int) -> tuple[Any, Any]:
        with ck.capture(pool=pool) as cap:
            y = (x + 1) * factor - 1
        return cap.graph, y

    first, a = recorded(2)
    alone = pool.used_bytes()
    second, b = recorded(3)
    assert pool.used_bytes() == 2 * alone == first.memory_bytes + second.memory_bytes
    for graph in (first, second, first):
        graph.launch()
    assert np.array_equal(a.get(), np.arange(1, 65) * 2.0 - 1)
    assert np.array_equal(b.get(), np.arange(1, 65) * 3.0 - 1)
    del b
    second.close()
    assert (pool.used_bytes(), pool.free_bytes()) == (alone, alone)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(['make', 'make', 'combine', 'combine', 'drop', 'order', 'switch', 'handle', 'scratch']),
        st.integers(0, 3),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    min_size=5,
    max_size=60,
)


@contextlib.contextmanager
def _forked(cap: ck.Capture, streams: list[Any], x: Any, arrays: dict[int, Any]) -> Iterator[None]:
    """Four lanes; some arrays are there before the fork, and blocks lie free from before it."""
    for i in range(4):
        x + 100
        arrays[i] = (x + i, np.arange(4) + float(i), i)
    for stream in streams:
        stream.wait_event(cap.stream.record())
    yield
    for stream in streams:
        cap.stream.wait_event(stream.record())


def _library(array: Any, expected: np.ndarray[Any, Any], found: list[Any]) -> tuple[Callable[[], Any], ...]:
    """Work of a library's, which holds no array: it writes the memory that one lies in, and reads it."""
    there = array._slot()

    def write() -> None:
        there.view()[...] = expected

    return write, lambda: found.append((there.view().copy(), expected))


@settings(max_examples=examples(80), deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**16))
def test_random_programs_on_four_lanes_equal_the_eager_result(steps: Any, seed: int) -> None:
    """Lanes make, combine and drop arrays; every read across lanes is ordered by an event, as correct code does.

    Some of it is done by a library that was given the lanes' handles long ago, of which CuPy sees nothing. The result
    must be the same in whatever order the launch runs what the edges leave open: a block handed out too early would
    show.
    """
    with simulated(seed) as cp:
        device = current().device
        x = cp.arange(4, dtype='f8')
        arrays: dict[int, tuple[Any, np.ndarray[Any, Any], int]] = {}
        found: list[tuple[Any, np.ndarray[Any, Any]]] = []
        lanes = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]
        handles = [lane.ptr for lane in lanes]
        with ck.capture() as cap, _forked(cap, lanes, x, arrays):
            for k, (kind, n, i, j) in enumerate(steps):
                lane = lanes[n]
                if kind == 'drop':
                    arrays.pop(i, None)
                elif kind == 'order':
                    lane.wait_event(lanes[i % 4].record())
                elif kind == 'handle' and i in arrays:
                    lane.wait_event(lanes[arrays[i][2]].record())
                    device.submit(handles[n], _library(*arrays[i][:2], found)[1], 'library')
                    if j % 2:
                        del arrays[i]
                elif kind == 'scratch':  # the library sees to the order, too
                    with lanes[i % 4]:
                        scratch = cp.empty(4)
                    event = device.event_create()
                    device.event_record(event, handles[i % 4])
                    device.stream_wait_event(handles[n], event)
                    for work in _library(scratch, np.full(4, float(k)), found):
                        device.submit(handles[n], work, 'library')
                    del scratch
                elif kind == 'make':
                    with lane:
                        arrays[i] = (x + k, np.arange(4) + float(k), n)
                elif kind == 'combine' and i in arrays and j in arrays:
                    for other in (arrays[i][2], arrays[j][2]):
                        lane.wait_event(lanes[other].record())
                    with lane:
                        value = arrays[i][0] - arrays[j][0] * 0.5
                    arrays[(i + j) % 8] = (value, arrays[i][1] - arrays[j][1] * 0.5, n)
                elif kind == 'switch':
                    with lane:
                        pass
        for _ in range(3):
            cap.graph.launch()
            for value, expected, _n in arrays.values():
                assert np.array_equal(value.get(), expected)
            assert all(np.array_equal(value, expected) for value, expected in found)


def test_work_given_to_a_lane_by_name_counts(sim: Any) -> None:
    """A lane that is never current but named in a call reads a block: the block is not handed out behind its back."""
    x = sim.arange(64, dtype='f8')
    target = sim.zeros(64)
    side = sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        u = x + 1
        side.wait_event(cap.stream.record())
        target.data.copy_from_device_async(u.data, u.nbytes, side)
        first = u.data.ptr
        del u
        w = x + 5
        assert w.data.ptr != first
        cap.join(side)
    for _ in range(20):
        target[:] = 0
        cap.graph.launch()
        assert np.array_equal(target.get(), np.arange(64) + 1)


def test_outside_memory_is_not_handed_out_again(sim: Any) -> None:
    outside = sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        with outside:
            buffer = sim.empty(64)
        first = buffer.data.ptr
        buffer[:] = 1
        y = buffer + 1
        del buffer
        with outside:
            again = sim.empty(64)
        assert again.data.ptr != first
        cap.stream.record()
    cap.graph.launch()
    assert np.array_equal(y.get(), np.full(64, 2.0))


@pytest.mark.parametrize('stream_ordered', [True, False])
def test_users_of_the_stream_ordered_allocator_are_told(sim: Any, stream_ordered: bool) -> None:
    x = sim.arange(4.0)
    with sim.cuda.using_allocator(sim.cuda.malloc_async if stream_ordered else sim.cuda.MemoryPool().malloc):
        with ck.capture() as cap:
            y = x * 2
    assert [note for note in cap.recording.notes if 'stream-ordered' in note.text] == cap.recording.notes
    assert len(cap.recording.notes) == stream_ordered
    assert {node.kind for node in cap.graph.nodes} == {'kernel'}
    assert launched(cap, y) == [[0.0, 2.0, 4.0, 6.0]]


@pytest.mark.parametrize(
    ('late', 'count'),
    [(None, 1), (0, 80), (1, 1), (4 * WORKSPACE_BYTES, 2), (16 * WORKSPACE_BYTES, 8), (1 << 40, 128)],
)
def test_half_of_a_limit_is_for_them(late: int | None, count: int) -> None:
    runtime = SimpleNamespace(memGetInfo=lambda: (0, 80 << 30))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    assert count_of(cupy, late) == count
    assert count_of(cupy, late, stay=True) == min(count, 32)


def test_they_take_turns_and_are_counted() -> None:
    taken: list[int] = []

    def grow(size: int) -> Any:
        taken.append(size)
        return SimpleNamespace(ptr=1000 * len(taken))

    made = Workspaces(grow, 2)
    assert [made.next(7)[0] for _ in range(5)] == [1000, 2000, 1000, 2000, 1000]
    assert made.next(8) == (3000, WORKSPACE_BYTES)
    assert made.taken == 3 * WORKSPACE_BYTES == sum(taken)
    made.clear()
    assert made.taken == 0


# -- blocks while lanes are open: who else may still touch one, in sequences that programs at random seldom have ------


N = 64


def streams(sim: Any, count: int) -> list[Any]:
    return [sim.cuda.Stream(non_blocking=True) for _ in range(count)]


def order(sim: Any, earlier: int, later: int) -> None:
    """What a library does that has handles: neither CuPy nor the guard sees it."""
    device = sim.__capturekit_simulated__
    event = device.event_create()
    device.event_record(event, earlier)
    device.stream_wait_event(later, event)


def reads(sim: Any, stream: int, array: Any, found: list[Any]) -> None:
    """A library, which holds no array, reads one's memory on a stream."""
    there = array._slot()
    sim.__capturekit_simulated__.submit(stream, lambda: found.append(there.view().copy()), 'library')


def wrong(cap: ck.Capture, found: list[Any], expected: Any) -> int:
    """In how many launches something else was read."""
    count = 0
    for _ in range(30):
        found.clear()
        cap.graph.launch()
        assert found
        count += any(not np.array_equal(one, expected) for one in found)
    return count


def by_handle(cap: ck.Capture) -> list[str]:
    return [str(step.text) for step in cap.recording.notes if 'by its handle' in step.text]


def test_work_by_a_handle_after_the_lanes_last_event_counts(sim: Any) -> None:
    """The lane was active, and seemed done with its event: what came after that is not in front of the join."""
    x, found = sim.arange(N, dtype='f8'), list[Any]()
    side, third = streams(sim, 2)
    handle = side.ptr
    with ck.capture() as cap:
        third.wait_event(cap.stream.record())
        with third:
            x * 3
        block = x + 1
        side.wait_event(cap.stream.record())
        with side:
            block * 2
        done = side.record()
        reads(sim, handle, block, found)
        address = block.data.ptr
        del block
        cap.stream.wait_event(done)
        assert (x + 5).data.ptr != address
        cap.join(side)
        cap.join(third)
    assert wrong(cap, found, np.arange(N) + 1.0) == 0
    assert by_handle(cap) == []


def test_a_library_that_forks_and_joins_by_itself_counts(sim: Any) -> None:
    """A lane's last node may be what it was: it waits for one more. All that the next work comes after are compared."""
    x, found = sim.arange(N, dtype='f8'), list[Any]()
    side, third, inner = streams(sim, 3)
    handle, within = side.ptr, inner.ptr
    with ck.capture(lines=False) as cap:
        for stream in (side, third):
            stream.wait_event(cap.stream.record())
        with side:
            x * 2
        block = x + 1
        order(sim, cap.stream.ptr, within)
        order(sim, handle, within)
        reads(sim, within, block, found)
        order(sim, within, handle)
        address = block.data.ptr
        del block
        assert (x + 5).data.ptr != address
        cap.join(side)
        cap.join(third)
    assert wrong(cap, found, np.arange(N) + 1.0) == 0


def test_a_fork_in_another_thread_counts(sim: Any) -> None:
    """This thread's allocator was chosen while there was one lane."""
    x, found = sim.arange(N, dtype='f8'), list[Any]()
    (side,) = streams(sim, 1)
    with ck.capture() as cap:
        block = [x + 1]

        def work() -> None:
            side.wait_event(cap.stream.record())
            with side:
                found.append(block[0] * 2)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()
        address = block.pop().data.ptr
        assert (x + 5).data.ptr != address
        cap.join(side)
        assert (x + 6).data.ptr == address  # one lane again: behind all that touched it
    (result,) = found
    for _ in range(30):
        cap.graph.launch()
        assert np.array_equal(result.get(), (np.arange(N) + 1) * 2)


def test_a_lane_that_was_current_in_another_thread_before(sim: Any) -> None:
    """Its leaving there is not counted against its being current here."""
    x = sim.arange(N, dtype='f8')
    side, third = streams(sim, 2)
    ready, go = threading.Event(), threading.Event()

    def worker() -> None:
        side.use()
        ready.set()
        go.wait(30)
        sim.cuda.Stream.null.use()

    thread = threading.Thread(target=worker)
    thread.start()
    assert ready.wait(30)
    with ck.capture() as cap:
        for stream in (side, third):
            stream.wait_event(cap.stream.record())
        go.set()
        thread.join()
        assert cap._live is not None and [lane.current for lane in cap._live.capture.lanes] == [1, 0, 0]
        with third:
            x * 3
        block = x + 1
        side.wait_event(cap.stream.record())
        with side:
            done = side.record()
            result = block * 2
            address = block.data.ptr
            del block
        cap.stream.wait_event(done)
        assert (x + 5).data.ptr != address
        cap.join(side)
        cap.join(third)
    for _ in range(30):
        cap.graph.launch()
        assert np.array_equal(result.get(), (np.arange(N) + 1) * 2)


@pytest.mark.parametrize('strict', [True, False])
def test_a_body_begins_behind_its_decision_and_that_is_no_work(sim: Any, strict: bool) -> None:
    x, going = sim.arange(N, dtype='f8'), sim.ones((), bool)
    (side,) = streams(sim, 1)
    with ck.capture(strict=strict) as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x + 1
            with cap.if_(going):
                assert cap._live is not None and cap._live.memory is not None
                assert not cap._live.memory.worked(cap._live.capture.origin)
                y *= 2
            z = y + 1
        cap.join(side)
    assert by_handle(cap) == []
    cap.graph.launch()
    assert np.array_equal(z.get(), (np.arange(N) + 1) * 2 + 1)


@pytest.mark.parametrize('drops', [True, False])
def test_unforeseen_work_is_noted_however_it_is_found(sim: Any, drops: bool) -> None:
    x, found = sim.arange(N, dtype='f8'), list[Any]()
    side, third = streams(sim, 2)
    handle = side.ptr
    with ck.capture() as cap:
        for stream in (side, third):
            stream.wait_event(cap.stream.record())
            with stream:
                x * 2
        cap.join(side)
        block = x + 1
        cap.join(third)
        pooled = x + 7  # all is joined: from CuPy's own pool
        order(sim, cap.stream.ptr, handle)
        reads(sim, handle, pooled, found)
        del pooled
        x + 5
        if drops:
            del block
        cap.join(side)
    assert len(by_handle(cap)) == 1
