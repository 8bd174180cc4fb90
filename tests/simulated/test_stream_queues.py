"""Streams of the simulated device that are late: work waits until the host has to know."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from capturekit.simulated import SimulatedDevice
from tests.captured import simulated

SEEDS = range(3)
SYMMETRIC = np.add.outer(np.arange(6.0), np.arange(6.0)) * 5 % 7


@pytest.fixture(params=SEEDS)
def late(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The simulated CuPy on a device whose work waits."""
    with simulated(request.param, late=True) as cp:
        yield cp


def outcomes(program: Any, **options: Any) -> set[Any]:
    """What a program of (device, log) gives, with one seed or another."""
    found = set()
    for seed in range(24):
        device, log = SimulatedDevice(seed, late=True, **options), list[Any]()
        program(device, log)
        found.add(tuple(log))
    return found


def give(device: SimulatedDevice, s: int, log: list[Any], what: Any) -> None:
    device.submit(s, lambda: log.append(what), str(what))


# -- the device -------------------------------------------------------------------------------------------------------


def test_work_waits_until_the_host_has_to_know() -> None:
    device, log = SimulatedDevice(0, late=True), []
    s = device.stream_create()
    give(device, s, log, 1)
    give(device, s, log, 2)
    assert log == [] and device.busy()
    device.stream_synchronize(s)
    assert log == [1, 2] and not device.busy()
    give(device, s, log, 3)
    device.stream_synchronize(0)  # s is a blocking stream
    assert log == [1, 2, 3]


def test_without_the_mode_it_runs_at_once() -> None:
    device, log = SimulatedDevice(0, late=False), []
    give(device, device.stream_create(), log, 1)
    assert log == [1] and not device.busy()
    device.be_late()
    give(device, 0, log, 2)
    assert log == [1]
    device.be_late(False)
    assert log == [1, 2]


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CAPTUREKIT_LATE', '1')
    assert SimulatedDevice().queue is not None
    assert SimulatedDevice(late=False).queue is None
    monkeypatch.setenv('CAPTUREKIT_LATE', '0')
    assert SimulatedDevice().queue is None


def test_streams_overlap() -> None:
    def program(device: SimulatedDevice, log: list[Any]) -> None:
        a, b = device.stream_create(True), device.stream_create(True)
        for s, what in ((a, 'a1'), (b, 'b1'), (a, 'a2'), (b, 'b2')):
            give(device, s, log, what)
        device.stream_synchronize(a)
        assert [one for one in log if one[0] == 'a'] == ['a1', 'a2']
        device.device_synchronize()

    found = outcomes(program)
    assert {('a1', 'a2', 'b1', 'b2'), ('b1', 'b2', 'a1', 'a2')} <= found
    assert all(one.index('b1') < one.index('b2') for one in found)


def test_an_event_orders_streams() -> None:
    def program(device: SimulatedDevice, log: list[Any]) -> None:
        a, b = device.stream_create(True), device.stream_create(True)
        e = device.event_create()
        give(device, a, log, 1)
        device.event_record(e, a)
        give(device, a, log, 'after')
        device.stream_wait_event(b, e)
        device.event_record(e, device.stream_create(True))  # the wait is for what the event stood for
        give(device, b, log, 2)
        device.stream_synchronize(b)

    assert {tuple(one for one in log if one != 'after') for log in outcomes(program)} == {(1, 2)}


def test_an_event_can_be_waited_for() -> None:
    def program(device: SimulatedDevice, log: list[Any]) -> None:
        a, e = device.stream_create(True), device.event_create()
        assert device.event_query(e)
        give(device, a, log, 1)
        device.event_record(e, a)
        give(device, a, log, 2)
        device.event_synchronize(e)
        assert log[0] == 1
        assert device.event_query(e)

    assert outcomes(program) == {(1,), (1, 2)}


@pytest.mark.parametrize('legacy', [0, 1])
def test_the_legacy_stream_and_blocking_streams(legacy: int) -> None:
    def program(device: SimulatedDevice, log: list[Any]) -> None:
        blocking, free = device.stream_create(), device.stream_create(True)
        give(device, blocking, log, 1)
        give(device, free, log, 'free')
        give(device, legacy, log, 2)
        give(device, 2, log, 3)  # this thread's default stream
        give(device, blocking, log, 3)
        device.stream_synchronize(blocking)
        device.stream_synchronize(2)
        device.stream_synchronize(free)

    found = outcomes(program)
    assert {tuple(one for one in log if one != 'free') for log in found} == {(1, 2, 3, 3)}
    assert len({log.index('free') for log in found}) > 2


def test_legacy_streams_of_two_devices() -> None:
    def program(device: SimulatedDevice, log: list[Any]) -> None:
        for number in (0, 1):
            device.set_device(number)
            give(device, 0, log, number)
        device.device_synchronize()
        assert 1 in log
        device.set_device(0)
        device.device_synchronize()

    assert outcomes(program, devices=2) == {(0, 1), (1, 0)}


@pytest.mark.parametrize('seed', SEEDS)
def test_asking_ends(seed: int) -> None:
    device, log = SimulatedDevice(seed, late=True), []
    s = device.stream_create()
    e = device.event_create()
    for number in range(300):
        give(device, s, log, number)
    device.event_record(e, s)
    answers = 0
    while not device.event_query(e):
        answers += 1
        assert answers < 1000
    assert log == list(range(300))
    give(device, s, log, 300)
    while not device.stream_query(s):
        assert log[-1] == 299
    assert log[-1] == 300


def test_time_between_events_that_are_not_done() -> None:
    device = SimulatedDevice(0, late=True)
    s, e = device.stream_create(), device.event_create()
    device.event_record(e, s)
    with pytest.raises(CudaCallError) as caught:
        device.event_elapsed_time(e, e)
    assert caught.value.code == Code.cudaErrorNotReady
    device.event_synchronize(e)
    assert device.event_elapsed_time(e, e) == 0


def test_a_queue_is_not_endless() -> None:
    device, log = SimulatedDevice(0, late=True), []
    for number in range(5000):
        give(device, 0, log, number)
    assert len(log) > 3000 and log == list(range(len(log)))


def test_work_that_fails_tells_who_waits() -> None:
    """And the work behind it goes on; host functions wait for their turn."""
    device, log = SimulatedDevice(0, late=True), []
    s = device.stream_create()
    device.submit(s, lambda: log[5], 'fails')
    give(device, s, log, 1)
    device.launch_host_func(s, lambda: log.append('function'))
    device.add_callback(s, lambda: log.append('callback'))
    with pytest.raises(IndexError):
        device.stream_synchronize(s)
    device.stream_synchronize(s)
    assert log == [1, 'function', 'callback']


def test_launches_of_one_graph_take_turns_and_are_as_they_were() -> None:
    def program(device: SimulatedDevice, log: list[Any]) -> None:
        a, b = device.stream_create(True), device.stream_create(True)

        def graph(what: str) -> int:
            device.begin_capture(a)
            for number in (1, 2):
                device.submit(a, lambda number=number: log.append((what, number)), 'kernel')
            return device.end_capture(a)

        x = device.graph_instantiate(graph('first'))
        device.graph_launch(x, a)
        assert device.graph_exec_update(x, graph('second')) == ('', 0)
        device.graph_launch(x, b)
        device.graph_exec_destroy(x)
        device.stream_synchronize(b)

    assert outcomes(program) == {(('first', 1), ('first', 2), ('second', 1), ('second', 2))}


# -- CuPy -------------------------------------------------------------------------------------------------------------


def results(program: Any) -> list[bool]:
    """Whether a program of CuPy's module gives what it should, by seed."""
    found = []
    for seed in range(16):
        with simulated(seed, late=True) as cp:
            found.append(bool(program(cp)))
    return found


@pytest.mark.parametrize('waits', [True, False])
def test_a_missing_wait_is_a_wrong_number(waits: bool) -> None:
    def program(cp: Any) -> bool:
        s = cp.cuda.Stream(non_blocking=True)
        x = cp.arange(4.0) * 3
        if waits:
            s.wait_event(cp.cuda.get_current_stream().record())
        with s:
            return (x + 1).tolist() == [1, 4, 7, 10]

    assert all(results(program)) is waits


@pytest.mark.parametrize('pinned', [True, False])
def test_copies_between_host_and_device(pinned: bool) -> None:
    """Of pinned memory they read and write when they run; from other memory the bytes are taken at the call."""

    def program(cp: Any) -> bool:
        import cupyx

        host, back = (cupyx.zeros_pinned(4) if pinned else np.zeros(4) for _ in range(2))
        x, y = cp.empty(4), cp.ones(4)
        y.get(out=back, blocking=False)
        assert back.tolist() == [not pinned] * 4
        x.set(host)
        host[:] = 1
        given = x.tolist()
        assert back.tolist() == [1] * 4
        return given == [0] * 4

    found = results(program)
    assert not any(found) if pinned else all(found)


def test_memory_is_spoilt_in_the_order_of_its_stream() -> None:
    def program(cp: Any, ordered: bool) -> bool:
        s = cp.cuda.Stream(non_blocking=True)
        with s:
            x = cp.ones(1024)
        here = cp.cuda.get_current_stream()
        here.wait_event(s.record())
        y = x + 1
        if ordered:
            s.wait_event(here.record())
        del x
        with s:
            cp.empty(1024)
        cp.cuda.Device().synchronize()
        return y.tolist() == [2] * 1024

    assert all(results(lambda cp: program(cp, True)))
    assert not all(results(lambda cp: program(cp, False)))


def test_freed_memory_waits_for_the_device(late: Any) -> None:
    s = late.cuda.Stream(non_blocking=True)
    with late.cuda.using_allocator(None):
        x = late.ones(16)
        s.wait_event(late.cuda.get_current_stream().record())
        with s:
            y = x + 1
        del x
    assert not late.cuda.runtime.is_hip and y.get(stream=s).tolist() == [2] * 16


def test_poison_spares_what_a_later_part_reads(sim: Any) -> None:
    """Memory that recorded work has used holds what it holds when more is recorded over it."""

    @ck.graphed
    def fn(c: Any) -> Any:
        t = c * 3
        _, v = sim.linalg.eigh(c)
        u = t + v
        del t
        w = u * 2
        x = w + 1
        y = x * 2
        z = y + 1
        return z.sum()

    wanted = (((SYMMETRIC * 3 + np.linalg.eigh(SYMMETRIC)[1]) * 2 + 1) * 2 + 1).sum()
    for _ in range(4):
        assert np.allclose(fn(sim.asarray(SYMMETRIC)).get(), wanted)


# -- capturekit -------------------------------------------------------------------------------------------------------


def test_the_second_call_on_another_stream(late: Any) -> None:
    """With calls by the host between graphs: the graph's memory is used by one launch after the other."""
    streams = [late.cuda.Stream(non_blocking=True) for _ in range(2)]

    @ck.graphed
    def fn(c: Any, b: Any) -> Any:
        t = c * 3
        _, v = late.linalg.eigh(c)
        return ((t + v) @ c + b) * 2

    kept = []
    for number in (0, 0, 1, 0, 1):
        given = SYMMETRIC + np.eye(6) * len(kept)
        with streams[number] as stream:
            c, b = late.asarray(given), late.full((6, 6), float(len(kept)))
            kept.append((stream, fn(c, b), given, c, b))
    for number, (stream, y, given, _c, _b) in enumerate(kept):
        wanted = ((given * 3 + np.linalg.eigh(given)[1]) @ given + number) * 2
        assert np.allclose(y.get(stream=stream), wanted), number


def test_dropped_while_launches_wait(late: Any) -> None:
    kept = []
    for number in range(6):
        fn = ck.graphed(lambda x: (x * 2 + 1).cumsum())
        with late.cuda.Stream(non_blocking=True) as stream:
            for more in range(4):
                given = np.arange(50.0) + number + more
                kept.append((stream, fn(late.asarray(given)), given))
        if number % 2:
            fn.clear()
        del fn
        gc.collect()
        blocks = [late.cuda.alloc_pinned_memory(1 << power) for power in range(9, 17)]
        for block in blocks:
            np.frombuffer(block, np.uint8)[:] = 255
        del block, blocks
    for stream, y, given in kept:
        assert np.allclose(y.get(stream=stream), (given * 2 + 1).cumsum())
