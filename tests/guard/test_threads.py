"""Captures in several threads, threads beside a capture, and calls for the whole device, which take turns with it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD, verdicts, watch
from capturekit.guard.entry_points import ENTRIES
from capturekit.guard.line_trace import TRACING, Trace
from capturekit.model.rules import Mode
from tests.captured import line_of
from tests.guard.manual import by_hand


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


def elsewhere(fn: Callable[[], Any]) -> Any:
    """What a call in another thread gives, or raises."""
    thread, found = in_thread(fn)
    thread.join(20)
    return found[0]


def test_eight_captures_at_once(cp: Any) -> None:
    x = cp.arange(8, dtype='f8')
    x * 2 + (x + 1)  # its kernels are compiled before
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


def test_the_wait_is_bounded(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, 'WAIT_SECONDS', 0.05)
    x = sim.arange(8, dtype='f8')
    with ck.capture() as cap:
        y = x * 2
        # the deadlock that the bound is for: the block waits for the thread that waits for the block
        error = elsewhere(sim.cuda.Device().synchronize)
        assert isinstance(error, ck.SynchronizationError)
        assert 'has held a capture open for 0.05 s' in str(error)
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 2)


def test_a_thread_can_work_on_a_lane(sim: Any) -> None:
    """Its work is recorded, and its allocator is its own again afterwards, also where it stays on the lane."""
    x, inside, over = sim.arange(8, dtype='f8'), threading.Event(), threading.Event()
    allocator = sim.cuda.memory._get_thread_local_allocator
    results: list[Any] = []
    with ck.capture() as cap:
        with cap.fork(1) as (lane,):

            def work() -> list[bool]:
                before = allocator()
                with lane:
                    results.append(x * 3)
                unchanged = allocator() is before
                with lane:
                    inside.set()
                    over.wait(5)
                    return [unchanged, cap.graph._state.memory.owns(sim.empty(8).data.mem)]

            thread, found = in_thread(work)
            assert inside.wait(5)
        y = results[0] + 1
    over.set()
    thread.join()
    assert found == [[True, False]], 'memory of the graph was handed to eager work'
    assert cap.recording.node_count == 2
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 3 + 1)


def test_other_threads_may_not_use_the_capture(sim: Any) -> None:
    with ck.capture() as cap:
        for call in (lambda: cap.fork(2), lambda: cap.join(cap.stream)):
            assert isinstance(elsewhere(call), ck.WrongThreadError)


#: Ways in which the host reads an array.
READS = [
    'y.get()', 'float(y[0])', 'bool(y[0])', 'cp.asnumpy(y)', 'str(y)', 'y.tolist()', 'y[2:6].reshape(2, 2).get()',
    'y.get(stream=cp.cuda.Stream(non_blocking=True))', 'y.data.copy_to_host(np.empty(8).ctypes.data, 64)',
    "np.from_dlpack(y, device='cpu')",
]  # fmt: skip


@pytest.mark.parametrize('read', READS)
@pytest.mark.parametrize('how', ['a block', 'by hand', 'a lane'])
def test_another_thread_can_not_read_what_is_only_being_recorded(sim: Any, how: str, read: str) -> None:
    if 'dlpack' in read and tuple(map(int, np.__version__.split('.')[:2])) < (2, 1):
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
        error = elsewhere(lambda: eval(read, {'np': np, 'cp': sim, 'y': y}))
        assert isinstance(error, ck.HostReadError), error
        assert 'of the capture that was begun at test_threads.py' in str(error)
        assert ('cap.' in error.remedy) == (how != 'by hand')
        assert elsewhere(lambda: x.get().tolist()) == list(range(8))
    graph = made[0] if how == 'by hand' else made[0].graph
    graph.launch(stream)
    stream.synchronize()
    assert np.array_equal(y.get(), np.arange(8) * 2)


# -- device-wide calls of one thread and captures of others take turns ---------------------------------------------

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


def test_code_that_begins_as_the_last_capture_ends_is_let_go(hasty: None) -> None:
    """What was noted too late would count as followed in the next capture, whose lines it then lacked."""
    for _ in range(100):
        TRACING.open(trace := Trace(lambda _: 0, 1, lambda _: 0, None), sys._getframe())
        code = compile('def f(): pass\nf()\n' * 20, 'made.py', 'exec')
        (thread := threading.Thread(target=exec, args=(code, {}))).start()
        TRACING.close(trace)
        thread.join()
        assert not TRACING._codes


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
    device, entry = sim.cuda.Device(), next(one for one in ENTRIES if str(one).endswith('Device.synchronize'))

    def slow(*_args: Any) -> None:
        inside.set()
        assert go_on.wait(20)

    with watch():
        calling, called = in_thread(lambda: GUARD.waits.device_wait(entry, slow, device))
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


# -- capturekit's own waits for the device go through one door -----------------------------------------------------


@pytest.mark.parametrize('inside', [False, True])
def test_such_a_wait_comes_after_the_captures_of_others(sim: Any, inside: bool) -> None:
    x, platform = sim.arange(8.0), current()
    recorder = Recorder(sim, x, 2)

    def wait() -> bool:
        with GUARD.inside if inside else contextlib.nullcontext():
            GUARD.waits.for_devices(platform, [0])
        return recorder.may_end.is_set()

    recorder.begin()
    waiting, waited = in_thread(wait)
    until(lambda: GUARD.state.waiting == 1)
    assert not waited
    recorder.end()
    waiting.join(20)
    assert waited == [True]
    cap, z = recorder.found[0]
    cap.graph.launch()
    assert np.array_equal(z.get(), np.arange(8) * 2 + 1)


def decides(sim: Any, x: Any) -> Any:
    with ck.capture() as cap:
        y, going = x * 1, sim.ones((), bool)
        with cap.while_(going, limit=20):
            y *= 2
            sim.less(y.sum(), 100, out=going)
    cap.graph.launch()
    return y


def calls_between(sim: Any, x: Any) -> Any:
    return sim.linalg.svd(sim.outer(x, x) + 1)[1] + x


@pytest.mark.parametrize('fn', [calls_between, decides])
def test_no_part_begins_beside_a_wait(sim: Any, monkeypatch: pytest.MonkeyPatch, fn: Any) -> None:
    """The driver's capture begins, and goes on in each further part, while nobody can begin to wait."""
    device, begun = current().device, []

    def held(begin: Any) -> Any:
        def begins(*args: Any, **kwargs: Any) -> Any:
            begun.append(GUARD.lock._is_owned())  # type: ignore[attr-defined]
            return begin(*args, **kwargs)

        return begins

    for name in ('begin_capture', 'begin_capture_to'):
        monkeypatch.setattr(device, name, held(getattr(device, name)))
    step = ck.graphed(fn) if fn is calls_between else fn
    for number in range(1, 6):
        step(sim, sim.arange(3.0) + number % 3)
    assert len(begun) > 1
    assert all(begun)


@pytest.mark.parametrize('check', [True, False])
def test_functions_that_are_compared_lose_no_recording_of_others(sim: Any, hasty: None, check: bool) -> None:
    scaled = ck.graphed(check=check)(lambda x, k: x * k + k)
    tripled = ck.graphed(lambda x: x * 3)
    ready = threading.Barrier(3)

    def compare(j: int) -> bool:
        ready.wait(20)
        return all(float(scaled(sim.ones(2 + j), float(i))[0]) == 2.0 * i for i in range(12))

    def record() -> bool:
        ready.wait(20)
        return all(float(tripled(sim.ones(2 + i % 14))[0]) == 3.0 for i in range(42))

    running = [in_thread(lambda: compare(0)), in_thread(lambda: compare(1)), in_thread(record)]
    for thread, _found in running:
        thread.join(100)
    assert [found for _thread, found in running] == [[True]] * 3
    assert [one.reason for one in tripled.variants if one.reason] == []


# -- what other threads do while a capture is open: they wait for the device, and they allocate -----------------------


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
    assert f'waits for this one at test_threads.py:{at}' in error.rule
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
    assert f'begun at test_threads.py:{begun}' in text
    assert f'whose thread is at test_threads.py:{held}' in text
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


@pytest.mark.parametrize('begun', [by_hand, ck.capture])
@pytest.mark.parametrize('mode', Mode)
def test_a_pool_of_another_thread_may_grow(sim: Any, begun: Any, mode: Mode) -> None:
    """In every mode: in CUDA's global mode the growth would lose the capture, and nobody sees it."""
    x, y = sim.arange(4.0), sim.zeros(4)
    sim.get_default_memory_pool().free_all_blocks()
    with ThreadPoolExecutor(1) as pool, watch():
        with by_hand(sim, mode) if begun is by_hand else ck.capture(mode=mode.name.lower()) as made:
            sim.multiply(x, 2, out=y)
            got = pool.submit(_prefetched, sim).result()
        made.graph.launch()
    assert got == [3.0, 5.0] and y.get().tolist() == [0.0, 2.0, 4.0, 6.0]
    assert begun is by_hand or made.recording.node_count == 1
