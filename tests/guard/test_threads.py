"""Captures in several threads, and threads beside a capture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD, verdicts


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
            return float(x.get().sum())  # no allocation: a pool that must grow is what mode='global' forbids

    with ck.capture(mode='global') as cap:
        y = x * 2
        thread, found = in_thread(unsafe)
        thread.join()
    assert found == [28.0]
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 2)


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
                    ours = cap.graph._memory.owns(z.data.mem)
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
