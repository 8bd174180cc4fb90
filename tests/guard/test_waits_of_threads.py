"""What other threads do while a capture is open: they wait for the device, and they allocate."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import verdicts, watch
from tests.captured import line_of


def _joined(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # the capture waits here


def _in_a_pool(work: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:  # the capture waits here
        pool.submit(work)


@pytest.mark.parametrize('way', [_joined, _in_a_pool])
def test_a_wait_that_the_capture_joins_is_refused(sim: Any, way: Callable[[Callable[[], Any]], None]) -> None:
    x, found = sim.arange(4.0), []

    def other() -> None:
        try:
            sim.cuda.Device().synchronize()  # the wait
        except ck.SynchronizationError as error:
            found.append(error)

    with ck.capture() as cap:
        y = x + 1
        way(other)
        y += 1
    (error,) = found
    assert error.location is not None and error.location.line == line_of(__file__, '  # the wait')
    at = line_of(__file__, '.join()  # the capture waits here' if way is _joined else 'pool:  # the capture waits here')
    assert f'waits for this one at test_waits_of_threads.py:{at}' in error.rule
    cap.graph.launch()
    assert y.get().tolist() == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize('shown', [True, False], ids=['a warning', 'an error'])
def test_a_long_wait_is_told(sim: Any, monkeypatch: pytest.MonkeyPatch, shown: bool) -> None:
    """Python shows the warning on standard error; where warnings are errors, the wait ends with it."""
    monkeypatch.setattr(verdicts, 'TOLD', 0.05)
    x, told, go, found = sim.arange(4.0), threading.Event(), threading.Event(), []

    def show(message: Any, _category: Any, file: str, line: int, *_: Any) -> None:
        found.append((str(message), file, line))
        told.set()

    def other() -> None:
        go.wait()
        try:
            sim.cuda.Device().synchronize()  # waits
        except RuntimeWarning as warning:
            show(warning, None, __file__, line_of(__file__, '  # waits'))

    with warnings.catch_warnings():
        warnings.simplefilter('always' if shown else 'error')
        monkeypatch.setattr(warnings, 'showwarning', show)
        thread = threading.Thread(target=other)
        thread.start()
        with ck.capture() as cap:  # begun here
            y = x + 1
            go.set()
            assert told.wait(30)  # held here
            y += 1
        thread.join()
    ((text, file, line),) = found
    begun, held = (line_of(__file__, f'  # {mark}') for mark in ('begun here', 'held here'))
    assert (file, line) == (__file__, line_of(__file__, '  # waits'))
    assert f'begun at test_waits_of_threads.py:{begun}' in text
    assert f'whose thread is at test_waits_of_threads.py:{held}' in text
    cap.graph.launch()
    assert y.get().tolist() == [2.0, 3.0, 4.0, 5.0]


def _prefetched(sim: Any) -> list[float]:
    """A loader's work: it allocates, copies from the host, and waits for its own stream."""
    stream = sim.cuda.Stream(non_blocking=True)
    with stream:
        made = sim.asarray([1.0, 2.0]) * 2 + sim.ones(5000)[:2]
        stream.record().synchronize()
    stream.synchronize()
    assert stream.done
    sim.cuda.runtime.free(sim.cuda.runtime.malloc(512))
    values: list[float] = made.get().tolist()
    return values


@pytest.mark.parametrize('by_hand', [False, True])
def test_a_pool_of_another_thread_may_grow(sim: Any, by_hand: bool) -> None:
    """In every mode: in CUDA's global mode the growth would lose the capture, and nobody sees it."""
    x, y = sim.arange(4.0), sim.zeros(4)
    for mode in (0, 1, 2):
        sim.get_default_memory_pool().free_all_blocks()
        with ThreadPoolExecutor(1) as pool, watch():
            if by_hand:
                stream = sim.cuda.Stream(non_blocking=True)
                with stream:
                    stream.begin_capture(mode)
                    sim.multiply(x, 2, out=y)
                    got = pool.submit(_prefetched, sim).result()
                    graph = stream.end_capture()
            else:
                with ck.capture(options=ck.CaptureOptions(mode=('global', 'thread_local', 'relaxed')[mode])) as cap:  # type: ignore[arg-type]
                    sim.multiply(x, 2, out=y)
                    got = pool.submit(_prefetched, sim).result()
                graph = cap.graph
                assert cap.recording.node_count == 1
            graph.launch()
        assert got == [3.0, 5.0] and y.get().tolist() == [0.0, 2.0, 4.0, 6.0]
        y.fill(0)
