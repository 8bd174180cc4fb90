"""What a hard look at the guard found: each of these once gave a wrong number, lost work or left something behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from tests.captured import capture

N = 4


def test_an_allocator_brought_back_is_up_to_date(sim: Any) -> None:
    """A fork inside `using_allocator`: what its end brings back must not be the allocator of before the fork."""
    inp = sim.arange(N, dtype='f8')
    other, side = sim.cuda.MemoryPool(), sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        x = inp * 1
        with sim.cuda.using_allocator(other.malloc):
            side.wait_event(cap.stream.record())
            with side:
                a = x + 1
        first = x.data.ptr
        del x
        y = inp * 100
        assert y.data.ptr != first
        cap.join(side)
    for _ in range(20):
        cap.graph.launch()
        assert np.array_equal(a.get(), np.arange(N) + 1)


def test_an_allocator_of_the_users_stays_in_force(sim: Any) -> None:
    calls: list[int] = []
    pool = sim.cuda.MemoryPool()

    def counting(size: int) -> Any:
        calls.append(size)
        return pool.malloc(size)

    x = sim.arange(N, dtype='f8')
    with ck.capture() as cap, sim.cuda.using_allocator(counting):
        x + 1
        cap.stream.record()
        x + 2
    assert len(calls) == 2


def test_a_block_touched_by_name_outlives_the_next_event(sim: Any) -> None:
    device = sim.__capturekit_simulated__
    inp = sim.arange(N, dtype='f8')
    side = sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            inp + 0
        x = inp * 1
        side.wait_event(cap.stream.record())
        side.record()
        device.submit(side.ptr, lambda: None, 'library')
        event = side.record()
        first = x.data.ptr
        del x
        y = inp * 100
        assert y.data.ptr != first
        cap.stream.wait_event(event)


@pytest.mark.parametrize(
    'key',
    [
        np.array([True, False, True, False]),
        (slice(None), np.array([True, False, True, False])),
        (..., [True, False, True, False]),
        ([0, 2], slice(1, 3)),
        ((0, 2),),
        ([0, 1], [1, 2]),
        np.array([], dtype=int),
    ],
    ids=str,
)
def test_host_indices_mean_what_they_mean_eagerly(sim: Any, key: Any) -> None:
    a = sim.arange(16, dtype='f8').reshape(4, 4)
    expected = np.arange(16.0).reshape(4, 4)[key]
    written = np.arange(16.0).reshape(4, 4)
    written[key] = -1
    b = a.copy()
    with ck.capture() as cap:
        y = a[key] * 1
        b[key] = -1
    cap.graph.launch()
    assert y.shape == expected.shape
    assert np.array_equal(y.get(), expected)
    assert np.array_equal(b.get(), written)


def test_escaped_work_behind_an_exception_is_told_at_the_end(sim: Any) -> None:
    a, side = sim.ones(N), sim.cuda.Stream(non_blocking=True)
    with pytest.raises(ck.EscapedWorkError), ck.capture():
        with contextlib.suppress(ValueError), side:
            a += 1
            raise ValueError
    assert np.array_equal(a.get(), np.ones(N))


def test_a_stream_stays_in_its_trap_after_a_refusal(sim: Any) -> None:
    a, b, side = sim.ones(N), sim.ones(N), sim.cuda.Stream(non_blocking=True)
    with pytest.raises(ck.EscapedWorkError), ck.capture():
        side.use()
        a += 1
        with pytest.raises(ck.EscapedWorkError):
            side.synchronize()
        b += 1
    assert np.array_equal(b.get(), np.ones(N)), 'it ran at once'


def test_a_capture_begun_by_hand_and_left_open_is_ended(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    with pytest.raises(ck.UnmatchedError, match='begun by hand was left open'), ck.capture():
        stream.begin_capture()
    assert not stream.is_capturing()
    with pytest.raises(KeyError), ck.capture():
        stream.begin_capture()
        raise KeyError
    assert GUARD.lives == {} and GUARD.ledger.captures == []
    with ck.capture(stream):
        pass


@pytest.mark.parametrize('depth', [2, 3])
def test_captures_that_end_in_the_wrong_order_all_fail(sim: Any, depth: int) -> None:
    x, before = sim.arange(4.0), sim.cuda.get_current_stream()
    captures = [ck.capture() for _ in range(depth)]
    for cap in captures:
        cap.__enter__()
        y = x * 2
    with pytest.raises(ck.UnmatchedError, match='inner capture was left open') as info:
        captures[0].__exit__(None, None, None)
    assert 'test_corners.py' in info.value.rule and 'leave the inner block first' in info.value.remedy
    assert GUARD.lives == {} and not GUARD.installation.installed and sim.cuda.get_current_stream() == before
    for cap in captures[1:]:
        with pytest.raises(ck.ClosedError, match='failed'):
            cap.__exit__(None, None, None)
    y = x + 1  # runs at once
    assert y.get().tolist() == [1, 2, 3, 4]


def test_an_exception_closes_inner_captures_and_stays(sim: Any) -> None:
    before = sim.cuda.get_current_stream()
    with pytest.raises(ZeroDivisionError) as info, ck.capture():
        inner = ck.capture()
        inner.__enter__()
        1 / 0  # noqa: B018
    notes = '\n'.join(info.value.__notes__)
    assert 'inner capture was left open' in notes and repr(inner) == '<capturekit.Capture failed>'
    assert GUARD.lives == {} and sim.cuda.get_current_stream() == before


def test_an_inner_capture_that_can_not_be_ended_stops_nothing(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, inner = sim.arange(4.0), ck.capture()
    end = current().device.end_capture
    faults = [RuntimeError('first')]

    def failing(stream: int) -> int:
        graph = end(stream)
        if faults:
            raise faults.pop()
        return int(graph)

    with pytest.raises(ck.UnmatchedError, match='inner capture was left open'), ck.capture():
        x * 2
        inner.__enter__()
        monkeypatch.setattr(current().device, 'end_capture', failing)
    assert faults == [] and GUARD.lives == {} and not GUARD.installation.installed
    with ck.capture() as cap:
        y = x * 2
    cap.graph.launch()
    assert y.get().tolist() == [0, 2, 4, 6]


def test_lanes_that_a_capture_still_holds_are_not_lent_to_others(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    x = sim.arange(N, dtype='f8')
    stream.begin_capture()  # past the guard: nothing is installed
    with stream, ck.fork(2) as (a, b):
        held = {a.ptr, b.ptr}
        with a:
            x * 1
        with b:
            x * 2
    with ck.fork(2) as lanes:
        assert held.isdisjoint(lane.ptr for lane in lanes)
    stream.end_capture()


def test_closing_gives_the_memory_of_lanes_back(sim: Any) -> None:
    device = sim.__capturekit_simulated__
    x = sim.arange(1 << 16, dtype='f8')
    before = device.mem_get_info()[0]
    pool = sim.cuda.MemoryPool()
    for kwargs in ({}, {'pool': pool}):
        with capture(**kwargs) as cap, cap.fork(2) as lanes:
            for lane in lanes:
                with lane:
                    x * 2
        cap.graph.close()
    assert pool.used_bytes() == 0
    pool.free_all_blocks()
    assert device.mem_get_info()[0] == before


def test_per_thread_default_stream_is_no_origin(sim: Any) -> None:
    with pytest.raises(ValueError, match='per-thread default stream'):
        ck.capture(sim.cuda.Stream.ptds)


def test_two_captures_do_not_wait_for_the_legacy_stream(sim: Any) -> None:
    opened, close = threading.Event(), threading.Event()

    def blocking_capture() -> None:
        with ck.capture(sim.cuda.Stream()):
            opened.set()
            close.wait(5)

    a = sim.ones(N)
    thread = threading.Thread(target=blocking_capture)
    thread.start()
    opened.wait(5)
    try:
        with ck.capture() as cap:
            y = a + 1
            with pytest.raises(ck.LegacyStreamError):
                sim.cuda.runtime.memset(a.data.ptr, 0, 8)
    finally:
        close.set()
        thread.join()
    cap.graph.launch()
    assert np.array_equal(y.get(), np.full(N, 2.0))


def test_the_users_exception_survives_a_failing_clean_up(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_memory: Any) -> None:
        raise RuntimeError('freeing failed')

    monkeypatch.setattr('capturekit.launch.graph_memory.GraphMemory._release', failing)
    with pytest.raises(KeyError), ck.capture():
        raise KeyError


@pytest.mark.parametrize('step', ['_open', '_leave'])
def test_an_interrupt_waits_for_the_whole_step(sim: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    from capturekit.recorder.capture import Capture

    original = getattr(Capture, step)

    def interrupted(self: Any, *args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return original(self, *args)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without one
    try:
        monkeypatch.setattr(Capture, step, interrupted)
        with pytest.raises(KeyboardInterrupt), ck.capture():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and the fixture finds the world clean
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_outer_capture_does_not_fork_the_inner(sim: Any) -> None:
    with ck.capture() as outer, ck.capture():
        with pytest.raises(ck.UnmatchedError, match='opened inside this one'):
            outer.fork(2)


def test_a_generator_that_captures_through_an_exit_stack(sim: Any) -> None:
    def suspending() -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(ck.capture())
            yield 1

    with pytest.raises(ck.GeneratorError):
        next(suspending())
