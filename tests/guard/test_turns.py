"""Device-wide calls of one thread and captures of others take turns: neither costs the other anything."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD, verdicts, watch
from tests.guard.test_threads import in_thread

#: Calls that would lose captures of other threads whose origin is a blocking stream.
CALLS: dict[str, Callable[[Any], Any]] = {
    'Device.synchronize': lambda cp: cp.cuda.Device().synchronize(),
    'deviceSynchronize': lambda cp: cp.cuda.runtime.deviceSynchronize(),
    'Stream.null.synchronize': lambda cp: cp.cuda.Stream.null.synchronize(),
    'memset': lambda cp: cp.cuda.runtime.memset(cp.cuda.alloc(8).ptr, 0, 8),
}


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Recorder:
    """A thread that opens a capture when it is told to, and closes it when it is told to."""

    def __init__(self, cp: Any, x: Any, factor: int) -> None:
        self.cp, self.x, self.factor = cp, x, factor
        self.may_begin, self.began, self.may_end = (threading.Event() for _ in range(3))
        self.thread, self.found = in_thread(self.record)

    def record(self) -> Any:
        assert self.may_begin.wait(20)
        with ck.capture(self.cp.cuda.Stream()) as cap:
            y = self.x * self.factor
            self.began.set()
            assert self.may_end.wait(20)
            z = y + 1
        return cap, z

    def begin(self) -> None:
        self.may_begin.set()
        assert self.began.wait(20)

    def end(self) -> None:
        self.may_end.set()
        self.thread.join(20)


@pytest.mark.parametrize('call', CALLS)
def test_a_wait_is_judged_again_when_another_capture_is_open(sim: Any, call: str) -> None:
    x = sim.arange(8.0)
    first, second = Recorder(sim, x, 2), Recorder(sim, x, 3)
    first.begin()
    waiting, waited = in_thread(lambda: CALLS[call](sim))
    until(lambda: GUARD.state.waiting == 1)
    second.begin()  # the wait goes before it for a moment only: the first capture is open for longer
    assert not waited
    first.end()
    time.sleep(0.02)
    assert not waited
    second.end()
    waiting.join(20)
    assert waited and not isinstance(waited[0], BaseException)
    for recorder in (first, second):
        cap, z = recorder.found[0]
        cap.graph.launch()
        assert np.array_equal(z.get(), np.arange(8) * recorder.factor + 1)
    assert (GUARD.state.waiting, GUARD.state.under_way) == (0, [])


def test_captures_back_to_back_in_three_threads_lose_nothing(sim: Any, hasty: None) -> None:
    """The guard stays in force, as in ``capturekit run``: a call that began before it was is seen by nobody."""
    x, over = sim.arange(8.0), threading.Event()

    def record() -> int:
        for _ in range(40):
            with ck.capture() as cap:
                y = x * 2
                z = y + 1
            cap.graph.launch()
            assert np.array_equal(z.get(), np.arange(8) * 2 + 1)
            cap.graph.close()
        return 40

    def wait() -> int:
        count = 0
        while not over.is_set():
            sim.cuda.Device().synchronize()
            count += 1
        return count

    with watch():
        waiting, waits = in_thread(wait)
        running = [in_thread(record) for _ in range(2)]
        for thread, _ in running:
            thread.join(60)
        over.set()
        waiting.join(20)
    assert [found for _, found in running] == [[40], [40]]
    assert waits and waits[0] > 0


def test_a_capture_begins_when_a_device_wide_call_is_over(sim: Any) -> None:
    x, inside, go_on = sim.arange(8.0), threading.Event(), threading.Event()
    device = sim.cuda.Device()

    def slow(*_args: Any) -> None:
        inside.set()
        assert go_on.wait(20)

    with watch():
        calling, called = in_thread(lambda: GUARD.waits.device_synchronize(slow, device))
        assert inside.wait(20)
        recorder = Recorder(sim, x, 2)
        recorder.may_begin.set()
        assert not recorder.began.wait(0.05), 'the capture began beside a call that loses it'
        go_on.set()
        assert recorder.began.wait(20)
        recorder.end()
        calling.join(20)
    assert called == [None]


def test_a_capture_gives_way_for_a_moment_only(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is not over before the first capture is closed, and that may need the second one."""
    monkeypatch.setattr(verdicts, 'MOMENT', 0.01)
    x = sim.arange(8.0)
    with ck.capture() as cap:
        y = x * 2
        waiting, waited = in_thread(sim.cuda.Device().synchronize)
        until(lambda: GUARD.state.waiting == 1)
        recorder = Recorder(sim, x, 3)
        recorder.begin()
        recorder.end()
        assert isinstance(recorder.found[0], tuple) and not waited
        with ck.capture() as inner:
            z = x * 4
    waiting.join(20)
    assert waited == [None]
    for graph in (cap.graph, inner.graph):
        graph.launch()
    assert np.array_equal(y.get() * 2, z.get())
