"""Captures in several threads, and threads beside a capture."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD, verdicts, watch


def in_thread(fn: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(fn())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_eight_captures_at_once(sim: Any) -> None:
    x = sim.arange(8, dtype='f8')
    barrier = threading.Barrier(8)

    def record(k: int) -> Any:
        barrier.wait()
        with ck.capture() as cap:
            y = x * k
            with cap.fork(2) as (a, b):
                with a:
                    u = y + 1
                barrier.wait()
                with b:
                    v = y + 2
            w = u + v
        barrier.wait()
        cap.graph.launch()
        return cap.recording.node_count, w.get()

    running = [in_thread(lambda k=k: record(k)) for k in range(8)]  # type: ignore[misc]
    for k, (thread, found) in enumerate(running):
        thread.join()
        nodes, w = found[0]
        assert nodes == 4
        assert np.array_equal(w, np.arange(8) * k * 2 + 3)


def test_work_of_another_thread_goes_on_and_is_not_recorded(sim: Any) -> None:
    x = sim.arange(8, dtype='f8')

    def work() -> float:
        stream = sim.cuda.Stream(non_blocking=True)
        with stream:
            y = sim.asarray(np.arange(8.0)) * 2
            stream.synchronize()
            assert stream.done
            event = stream.record()
            event.synchronize()
            return float(y.sum())

    with ck.capture() as cap:
        y = x + 1
        thread, found = in_thread(work)
        thread.join()
        z = y * 2
    assert found == [56.0]
    assert cap.recording.node_count == 2
    cap.graph.launch()
    assert np.array_equal(z.get(), (np.arange(8) + 1) * 2)


@pytest.mark.parametrize('mode', ['relaxed', 'thread_local', 'global'])
def test_device_synchronize_of_another_thread_waits_for_the_end(sim: Any, mode: str) -> None:
    x = sim.arange(8, dtype='f8')
    times: dict[str, float] = {}

    def synchronize() -> None:
        sim.cuda.Device().synchronize()
        times['synchronized'] = time.monotonic()

    with ck.capture(mode=mode) as cap:
        thread, found = in_thread(synchronize)
        while thread.is_alive() and not GUARD.state.closed._waiters:  # type: ignore[attr-defined]
            pass
        assert not found and thread.is_alive()
        y = x * 2
        times['last line'] = time.monotonic()
    thread.join(5)
    assert found == [None]
    assert times['synchronized'] >= times['last line']
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 2)


def test_another_threads_unsafe_calls_lose_no_global_capture(sim: Any) -> None:
    x = sim.arange(8, dtype='f8')

    def unsafe() -> float:
        stream = sim.cuda.Stream(non_blocking=True)
        stream.synchronize()
        assert stream.done
        sim.cuda.runtime.free(sim.cuda.runtime.malloc(512))
        with stream:
            return float((x.get() + sim.ones(5000)[:8].get()).sum())  # the pool has to grow: nobody sees that call

    with ck.capture(mode='global') as cap:
        y = x * 2
        thread, found = in_thread(unsafe)
        thread.join()
    assert found == [36.0]
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 2)
    noted = [note.text.partition(' of another thread was made in relaxed mode')[0] for note in cap.recording.notes]
    assert noted == ['Stream.synchronize()', 'Stream.done', 'runtime.malloc()', 'runtime.free()', 'ndarray.get()']


def test_the_wait_is_bounded(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, 'WAIT_SECONDS', 0.05)
    x = sim.arange(8, dtype='f8')
    with ck.capture() as cap:
        y = x * 2
        thread, found = in_thread(sim.cuda.Device().synchronize)
        thread.join(5)  # the deadlock that the bound is for: the block waits for the thread that waits for the block
        assert isinstance(found[0], ck.SynchronizationError)
        assert 'has held a capture open for 0.05 s' in str(found[0])
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 2)


def test_a_thread_can_work_on_a_lane(sim: Any) -> None:
    """Another thread makes a lane current: its work is recorded, and its allocator is its own again afterwards."""
    x = sim.arange(8, dtype='f8')
    results: list[Any] = []
    with ck.capture() as cap:
        with cap.fork(1) as (lane,):

            def work() -> Any:
                before = sim.cuda.memory._get_thread_local_allocator()
                with lane:
                    results.append(x * 3)
                return sim.cuda.memory._get_thread_local_allocator() is before

            thread, found = in_thread(work)
            thread.join()
        assert found == [True]
        y = results[0] + 1
    assert cap.recording.node_count == 2
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 3 + 1)


def test_a_thread_that_stays_on_a_lane_gets_its_allocator_back(sim: Any) -> None:
    x = sim.arange(8, dtype='f8')
    inside, over = threading.Event(), threading.Event()
    with ck.capture() as cap:
        with cap.fork(1) as (lane,):

            def work() -> bool:
                with lane:
                    y = x * 3
                    inside.set()
                    over.wait(5)
                    z = sim.empty(8)
                    ours = cap.graph._state.memory.owns(z.data.mem)
                del y
                return ours

            thread, found = in_thread(work)
            inside.wait(5)
    over.set()
    thread.join()
    assert found == [False], 'memory of the graph was handed to eager work'


def test_other_threads_may_not_use_the_capture(sim: Any) -> None:
    with ck.capture() as cap:
        for call in (lambda: cap.fork(2), lambda: cap.join(cap.stream)):
            thread, found = in_thread(call)
            thread.join()
            assert isinstance(found[0], ck.WrongThreadError)


#: Ways in which the host reads an array.
READS: dict[str, Callable[[Any, Any], Any]] = {
    'get': lambda cp, y: y.get(),
    'float': lambda cp, y: float(y[0]),
    'bool': lambda cp, y: bool(y[0]),
    'asnumpy': lambda cp, y: cp.asnumpy(y),
    'print': lambda cp, y: str(y),
    'tolist': lambda cp, y: y.tolist(),
    'view': lambda cp, y: y[2:6].reshape(2, 2).get(),
    'on a stream of its own': lambda cp, y: y.get(stream=cp.cuda.Stream(non_blocking=True)),
    'copy_to_host': lambda cp, y: y.data.copy_to_host(np.empty(8).ctypes.data, 64),
    'dlpack': lambda cp, y: np.from_dlpack(y, device='cpu'),
}


@pytest.mark.parametrize('read', READS)
@pytest.mark.parametrize('how', ['a block', 'by hand', 'a lane'])
def test_another_thread_can_not_read_what_is_only_being_recorded(sim: Any, how: str, read: str) -> None:
    if read == 'dlpack' and tuple(map(int, np.__version__.split('.')[:2])) < (2, 1):
        pytest.skip('NumPy takes a device since 2.1')
    x, stream = sim.arange(8, dtype='f8'), sim.cuda.Stream(non_blocking=True)
    with contextlib.ExitStack() as stack:
        if how == 'by hand':
            stack.enter_context(watch())
            stack.enter_context(stream)
            stream.begin_capture()
            stack.callback(lambda: made.append(stream.end_capture()))
        else:
            cap = stack.enter_context(ck.capture(stream))
            stack.callback(lambda: made.append(cap))
        if how == 'a lane':
            (lane,) = stack.enter_context(cap.fork(1))
            stack.enter_context(lane)
        made: list[Any] = []
        y = x * 2
        thread, found = in_thread(lambda: READS[read](sim, y))
        thread.join()
        assert isinstance(found[0], ck.HostReadError), found
        assert 'of the capture that was begun at test_threads.py' in str(found[0])
        assert ('cap.' in found[0].remedy) == (how != 'by hand')
        before, after = in_thread(lambda: x.get().tolist())
        before.join()
        assert after == [list(range(8))]
    graph = made[0] if how == 'by hand' else made[0].graph
    graph.launch(stream)
    stream.synchronize()
    assert np.array_equal(y.get(), np.arange(8) * 2)


def test_another_thread_reads_what_is_there_already(sim: Any) -> None:
    """Constants were uploaded when they were recorded, and arrays from before the block have their values."""
    with ck.capture() as cap:
        constant = sim.asarray(np.arange(4.0))
        y = constant * 2
        thread, found = in_thread(lambda: constant.get().tolist())
        thread.join()
    assert found == [[0, 1, 2, 3]]
    cap.graph.launch()
    thread, found = in_thread(lambda: y.get().tolist())
    thread.join()
    assert found == [[0, 2, 4, 6]]


def test_freed_memory_of_a_capture_by_hand_is_forgotten(sim: Any) -> None:
    """What was freed, and may be somebody else's by now, has nothing to do with the capture."""
    x, stream = sim.arange(8, dtype='f8'), sim.cuda.Stream(non_blocking=True)
    with watch(), stream:
        stream.begin_capture()
        y = x * 2
        z = y + 1
        del z
        (live,) = GUARD.lives.values()
        assert len(live.pooled) == 1
        graph = stream.end_capture()
    graph.launch(stream)
    assert np.array_equal(y.get(), np.arange(8) * 2)
