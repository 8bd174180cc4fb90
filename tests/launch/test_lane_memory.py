"""Blocks while lanes are open: who else may still touch one, in sequences that programs at random seldom have.

Each makes the block's reuse wrong in one way: the launches' results, in the orders that the edges leave open, tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

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


def in_a_thread(work: Callable[[], Any]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []


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
    with ck.capture(options=ck.CaptureOptions(lines=False)) as cap:
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

        in_a_thread(work)
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


def test_the_device_tells_all_that_the_next_work_comes_after(sim: Any) -> None:
    one, other = streams(sim, 2)
    device = sim.__capturekit_simulated__
    ends = device.next_after()
    assert ends(one.ptr) == (-2,)
    with ck.capture() as cap:
        assert ends(cap.stream.ptr) == ()
        one.wait_event(cap.stream.record())
        other.wait_event(cap.stream.record())
        for stream in (one, other):
            with stream:
                sim.zeros(4)
        both = (*ends(one.ptr), *ends(other.ptr))
        assert len(both) == 2
        for stream in (one, other):
            cap.join(stream)
        assert sorted(ends(cap.stream.ptr)) == sorted(both)
