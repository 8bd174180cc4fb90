"""Threads on the GPU: captures side by side, other threads' work beside a capture, and their waits for the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.gpu.world import Started, captured_nodes, in_thread, node_count, status

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

N = 1024


def warm() -> Any:
    x = cp.arange(N, dtype='f8')
    for made in (x + 1, x * 2, x + x, x.sum()):
        del made
    cp.cuda.Device().synchronize()
    return x


def test_each_captures_in_a_mode_of_its_own() -> None:
    """In their blocks the threads don't hurt each other, whatever the modes. (Outside of any block CuPy's pool, which
    no wrapper sees, may call cudaMalloc and cudaFree, which a *global* capture of another thread can't bear.)"""
    x = warm()
    together = threading.Barrier(3)

    def run(mode: str) -> bool:
        with cp.cuda.Stream(non_blocking=True) as own:
            with ck.capture(mode=mode) as cap:
                together.wait(30)
                y = x + cp.ones(1 << 20)[:N]
                together.wait(30)
            together.wait(30)
            cap.graph.launch()
            return bool(np.array_equal(y.get(stream=own), np.arange(N) + 1.0))

    threads = [Started(lambda m=m: run(m)) for m in ('global', 'thread_local', 'relaxed')]
    assert [thread.result() for thread in threads] == [True] * 3


def with_new_memory() -> list[float]:
    """Ordinary work: new streams, new memory, copies both ways, waits for streams and events, the legacy stream."""
    seen = []
    with cp.cuda.Stream(non_blocking=True) as own:
        for n in range(20):
            big = cp.full((n + 1) << 16, 1.0)
            y = cp.asarray(np.arange(N) + n) * 2 + big[:N]
            e = own.record()
            e.synchronize()
            own.synchronize()
            seen.append(float(y[1].get(stream=own)))
        assert own.done
    with cp.cuda.Stream.null:
        seen.append(float((cp.arange(4.0) + 1).sum()))
    return seen


def in_old_memory(y: Any, own: Any) -> list[float]:
    """Work that needs no cudaMalloc: what a global capture lets other threads do."""
    seen = []
    with own:
        for n in range(20):
            y.fill(1 + n)
            y *= 2
            e = own.record()
            e.synchronize()
            own.synchronize()
            seen.append(float(y.get(stream=own)[1]))
        assert own.done
        assert e.done
    return seen


@pytest.mark.parametrize('mode', ['relaxed', 'thread_local', 'global'])
def test_another_threads_work_goes_on_and_is_not_recorded(mode: str) -> None:
    x, y, own = warm(), cp.zeros(N), cp.cuda.Stream(non_blocking=True)
    in_old_memory(y, own)
    other = with_new_memory
    want = other()
    cp.get_default_memory_pool().free_all_blocks()  # so that the pool has to grow
    with ck.capture(mode=mode) as cap:
        a = x + 1
        assert captured_nodes(cap.stream) == 1
        assert in_thread(other) == want
        assert captured_nodes(cap.stream) == 1
        assert status(cap.stream) == 'Active'
        b = a + 1
    assert node_count(cap.graph.graph) == cap.recording.node_count == 2
    cap.graph.launch()
    assert np.array_equal(b.get(), np.arange(N) + 2.0)


@pytest.mark.parametrize(
    'wait',
    [lambda: cp.cuda.Device().synchronize(), lambda: cp.cuda.runtime.deviceSynchronize()],
    ids=['Device', 'runtime'],
)
def test_a_device_wait_in_another_thread_waits_for_the_capture(wait: Callable[[], Any]) -> None:
    x = warm()

    def waited() -> float:
        wait()
        return time.monotonic()

    with ck.capture() as cap:
        a = x + 1
        other = Started(waited)
        time.sleep(0.3)
        assert other.waiting
        assert status(cap.stream) == 'Active'
        b = a + 1
        closing = time.monotonic()
    assert other.result() >= closing
    cap.graph.launch()
    assert np.array_equal(b.get(), np.arange(N) + 2.0)


def test_two_capturing_threads_may_not_wait_for_the_device() -> None:
    """Each holds what the other waits for: no deadlock, since each has a capture of its own."""
    x = warm()
    together = threading.Barrier(2)

    def run() -> bool:
        with cp.cuda.Stream(non_blocking=True) as own:
            with ck.capture() as cap:
                y = x + 1
                together.wait(30)
                with pytest.raises(ck.SynchronizationError):
                    cp.cuda.Device().synchronize()
                together.wait(30)
            cap.graph.launch()
            return bool(np.array_equal(y.get(stream=own), np.arange(N) + 1.0))

    assert [thread.result() for thread in [Started(run), Started(run)]] == [True, True]


def test_one_graph_launched_from_many_threads() -> None:
    x = warm()
    counter = cp.zeros(1)
    with ck.capture() as cap:
        counter += 1
        y = x + counter
    stream = cp.cuda.Stream(non_blocking=True)
    threads = [Started(lambda: [cap.graph.launch(stream) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.result()
    stream.synchronize()
    assert float(counter[0]) == 200
    assert np.array_equal(y.get(), np.arange(N) + 200.0)
