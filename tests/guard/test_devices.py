"""Captures whose lanes are on several devices: on the simulated machine, and on GPUs where there are two or more."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver import cupti
from tests.guard.several_devices import arrays, of, side_of, value


@pytest.fixture
def cp(several: Any) -> Any:
    return several


# -- lanes ----------------------------------------------------------------------------------------------------


def test_a_lane_on_each_device(cp: Any) -> None:
    xs = arrays(cp)
    found: list[Any] = [None] * len(xs)
    with ck.capture() as cap, cap.fork(devices=range(len(xs))) as lanes:
        for lane, x in zip(lanes, xs):
            with lane:
                assert cp.cuda.Device().id == lane.device
                assert cp.cuda.get_current_stream().ptr == lane.ptr
                found[lane.device] = x * 2 + 1
        assert cp.cuda.Device().id == 0
    assert [array.device.id for array in found] == list(range(len(xs)))
    assert cap.recording.devices == list(range(len(xs)))
    assert [lane.device for lane in cap.recording.lanes] == [0, *range(len(xs))]
    assert 'device 1' in str(cap.recording)
    for _ in range(2):
        cap.graph.launch()
        for device, array in enumerate(found):
            np.testing.assert_array_equal(value(cp, array), of(cp, device) * 2 + 1)
    assert cap.graph.memory_bytes >= len(xs) * 8000
    cap.graph.close()


def test_leaving_a_lane_brings_its_device_back(cp: Any) -> None:
    """Whatever device its body has made current."""
    x = arrays(cp)[0]
    with ck.capture() as cap, cap.fork(2) as (left, right):
        with left:
            y = x * 2
            cp.cuda.Device(1).use()
        assert cp.cuda.Device().id == 0 and cp.cuda.get_current_stream().ptr == cap.stream.ptr
        with right:
            z = x + 1
    cap.graph.launch()
    assert np.array_equal(value(cp, y), of(cp, 0) * 2) and np.array_equal(value(cp, z), of(cp, 0) + 1)


@pytest.mark.parametrize(
    ('options', 'error', 'words'),
    [
        ({'devices': 2}, TypeError, 'sequence'),
        ({'devices': '01'}, TypeError, 'sequence'),
        ({'devices': [0, 1.0]}, TypeError, 'number or a cupy.cuda.Device'),
        ({'devices': [0, True]}, TypeError, 'number or a cupy.cuda.Device'),
        ({'devices': []}, ValueError, 'at least one lane'),
        ({'n': 3, 'devices': [0, 1]}, ValueError, 'one for each of 3 lanes, got 2'),
        ({'devices': [0, 99]}, ValueError, 'no device 99'),
        ({'devices': [0, -1]}, ValueError, 'no device -1'),
        ({}, TypeError, 'number of lanes'),
    ],
)
def test_devices_that_are_none(cp: Any, options: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words), ck.fork(**options):
        pass
    with ck.capture() as cap:
        with pytest.raises(error, match=words), cap.fork(**options):
            pass
    cap.graph.close()


@pytest.mark.parametrize('how', ['with', 'use'])
def test_an_event_forks_a_stream_of_another_device(cp: Any, how: str) -> None:
    """Used there, it stays the current one, and is a lane there."""
    xs, side = arrays(cp), side_of(cp, 1)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with cp.cuda.Device(1):
            if how == 'use':
                side.use()
            with side if how == 'with' else contextlib.nullcontext():
                y = xs[1] + 1
                done = side.record()
        x = xs[0] + 2
        if how == 'use':
            with cp.cuda.Device(1):
                y += 1
                done = side.record()
        cap.stream.wait_event(done)
        z = y.copy()
        with pytest.raises(ck.UnsupportedCallError, match='An event belongs to the device'):
            side.record()
    assert cp.cuda.get_current_stream(1) == cp.cuda.Stream.null
    assert (y.device.id, z.device.id) == (1, 0)
    assert [(lane.device, lane.parent) for lane in cap.recording.lanes] == [(0, None), (1, 0)]
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, z), of(cp, 1) + 1 + (how == 'use'))
    np.testing.assert_array_equal(value(cp, x), of(cp, 0) + 2)


def test_a_capture_on_another_device_than_0(cp: Any) -> None:
    """The same scope works eagerly."""

    def work() -> list[Any]:
        found = []
        with ck.fork(devices=[1, 0]) as lanes:
            for lane in lanes:
                with lane:
                    found.append(xs[lane.device] * 3)
        return found

    xs = arrays(cp)
    with cp.cuda.Device(1):
        with ck.capture() as cap:
            recorded = work()
        assert cp.cuda.Device().id == 1
        cap.graph.launch()
    for found in (recorded, work()):
        assert [array.device.id for array in found] == [1, 0]
        for array in found:
            with cp.cuda.Device(1):
                np.testing.assert_array_equal(value(cp, array), of(cp, array.device.id) * 3)


# -- devices without a lane -----------------------------------------------------------------------------------


@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize('how', ['with', 'use', 'set'])
def test_work_on_a_device_without_a_lane_is_refused(cp: Any, in_place: bool, how: str) -> None:
    xs = arrays(cp)
    with pytest.raises(ck.EscapedWorkError, match='on device 1') as info:
        with ck.capture():
            y = xs[0] + 1
            if how != 'with':
                cp.cuda.Device(1).use() if how == 'use' else cp.cuda.runtime.setDevice(1)
            with cp.cuda.Device(1) if how == 'with' else contextlib.nullcontext():
                xs[1].__imul__(2) if in_place else xs[1] * 2
    assert info.value.location is not None and info.value.location.file == __file__
    assert 'cap.fork(devices=[0, 1])' in info.value.remedy
    assert cp.cuda.Device().id == 0
    assert cp.cuda.get_current_stream(1) == cp.cuda.Stream.null
    np.testing.assert_array_equal(value(cp, xs[1]), of(cp, 1))  # it was held back
    del y


def test_a_device_without_a_lane_may_be_visited(cp: Any) -> None:
    """Nothing is wrong as long as no work is sent: streams are made, arrays are made and not filled."""
    xs = arrays(cp)
    with ck.capture() as cap:
        with cp.cuda.Device(1):
            side = cp.cuda.Stream(non_blocking=True)
            y = cp.empty_like(xs[1])
        side.wait_event(cap.stream.record())
        with cp.cuda.Device(1), side:
            cp.multiply(xs[1], 2, out=y)
        cap.join(side)
    assert y.device.id == 1
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, y), of(cp, 1) * 2)


def test_adapting_forks_a_lane_where_a_device_is_visited(cp: Any) -> None:
    xs = arrays(cp)
    with ck.capture(strict=False) as cap:
        y = xs[0] + 1
        with cp.cuda.Device(1):
            z = xs[1] * 2
            z += 1
        with cp.cuda.Device(1):
            z *= 3  # the same lane again, so behind what it has done
            cp.cuda.Device(1).synchronize()  # a join
        w = z.copy()
    assert [lane.device for lane in cap.recording.lanes] == [0, 1]
    assert any('forked' in step.text for step in cap.recording.adaptations)
    assert cp.cuda.get_current_stream(1) == cp.cuda.Stream.null
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, z), (of(cp, 1) * 2 + 1) * 3)
    np.testing.assert_array_equal(value(cp, w), (of(cp, 1) * 2 + 1) * 3)
    np.testing.assert_array_equal(value(cp, y), of(cp, 0) + 1)
    assert (z.device.id, w.device.id) == (1, 0)


def test_a_device_that_takes_no_part_may_be_waited_for(cp: Any) -> None:
    """Also by another thread."""
    xs = arrays(cp)

    def wait() -> None:
        with cp.cuda.Device(1):
            cp.arange(10) + 1
            cp.cuda.Device().synchronize()

    thread = threading.Thread(target=wait, daemon=True)
    with ck.capture() as cap:
        xs[0] += 1
        cp.cuda.Device(1).synchronize()
        with cp.cuda.Device(1):
            cp.cuda.Device().synchronize()
        with pytest.raises(ck.SynchronizationError):
            cp.cuda.Device(0).synchronize()
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, xs[0]), of(cp, 0) + 1)


def test_graphs_of_several_devices_decide_on_the_host_alone(cp: Any) -> None:
    """A conditional node beside work for another device: CUDA refuses some, and lets others fail as they run."""
    xs, going = arrays(cp), cp.ones((), dtype=bool)
    with pytest.raises(ck.UnsupportedCallError, match='A decision on the device'):
        with ck.capture() as cap:
            with cap.fork(devices=[1]) as (lane,), lane:
                xs[1] += 1
            with cap.if_(going):
                xs[0] += 1
    for work in (lambda: xs[1].copy(), lambda: cp.copyto(xs[0], xs[1])):
        with pytest.raises(ck.UnsupportedCallError, match='A copy between two devices'):
            with ck.capture() as cap, cap.if_(going):
                work()

    def copies() -> Any:
        return xs[1].copy() if float(xs[0][1]) > 0 else xs[0]

    def forks() -> None:
        if float(xs[0][1]) > 0:
            with ck.fork(devices=[1]) as (lane,), lane:
                xs[1] += 1

    for reads, refused in ((copies, 'A copy between two devices'), (forks, 'A lane of another device')):
        rehearsal = ck.rehearse(reads)
        with pytest.raises(ck.UnsupportedCallError, match=refused):
            with ck.capture(rehearsal=rehearsal):
                reads()


def test_a_decision_has_no_lane_of_another_device(cp: Any) -> None:
    xs, going = arrays(cp), cp.ones((), dtype=bool)
    for strict in (True, False):
        with pytest.raises(ck.UnsupportedCallError, match='another device'):
            with ck.capture(strict=strict) as cap, cap.while_(going, limit=3):
                if strict:
                    with cap.fork(devices=[1]) as (lane,), lane:
                        xs[1] += 1
                else:
                    with cp.cuda.Device(1):
                        xs[1] += 1
    with ck.capture() as cap:
        y = xs[0] + 1
        with cp.cuda.Device(1):
            with pytest.raises(ck.UnsupportedCallError, match='A decision on the device: if'):
                with cap.if_(going):
                    pass
        with cap.if_(going):
            y += 1
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, y), of(cp, 0) + 2)


# -- copies ---------------------------------------------------------------------------------------------------


COPIES = [
    'cp.copyto(to, of)', 'to.__setitem__(Ellipsis, of)', 'to.data.copy_from_device_async(of.data, of.nbytes)',
    'cp.multiply(of, 1, out=to)',
]  # fmt: skip


@pytest.mark.parametrize('to', [0, 1])
@pytest.mark.parametrize('on', [0, 1])
@pytest.mark.parametrize('how', COPIES)
def test_copies_between_devices_are_recorded(cp: Any, how: str, on: int, to: int) -> None:
    xs = arrays(cp)
    with cp.cuda.Device(to):
        target = cp.zeros_like(xs[to])
        cp.cuda.Device().synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # CuPy's, of kernels that read another device
        with ck.capture() as cap, cap.fork(devices=[on]) as (lane,), lane:
            eval(how, {'cp': cp, 'to': target, 'of': xs[1 - to]})
    np.testing.assert_array_equal(value(cp, target), 0)
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, target), of(cp, 1 - to))


@pytest.mark.parametrize('there', [True, False])
def test_what_cupy_rearranges_over_there_is_refused(cp: Any, there: bool) -> None:
    """CuPy goes to the other device by itself, to what is current there, in no order with anything."""
    xs = arrays(cp)
    devices = [1, 0] if there else [1]
    for work in (lambda: xs[0][::2].copy(), lambda: cp.copyto(xs[0][::2], xs[1][:500])):
        with pytest.raises(ck.EscapedWorkError, match='on device 0 by itself'):
            with ck.capture() as cap, cap.fork(devices=devices) as lanes, lanes[0]:
                work()
    np.testing.assert_array_equal(value(cp, xs[0]), of(cp, 0))


# -- memory ---------------------------------------------------------------------------------------------------


def test_blocks_stay_on_their_device(cp: Any) -> None:
    """What is dropped on one device is not handed out on another, though in order it might be."""
    xs = arrays(cp)
    with ck.capture() as cap:
        for _ in range(3):
            for device in (0, 1):
                with cap.fork(devices=[device]) as (lane,), lane:
                    y = xs[device] + 1
                    assert y.device.id == cp.cuda.runtime.pointerGetAttributes(y.data.ptr).device == device
                    del y
    cap.graph.launch()


@pytest.mark.serial
def test_memory_of_all_devices_comes_back(cp: Any) -> None:
    xs = arrays(cp)

    def record() -> Any:
        with ck.capture() as cap, cap.fork(devices=[0, 1]) as lanes:
            for lane in lanes:
                with lane:
                    cp.sin(xs[lane.device]) + cp.empty(1 << 20)[:1000]
        return cap.graph

    def free() -> list[int]:
        gc.collect()
        if not hasattr(cp, '__capturekit_simulated__'):
            return [0, 0]  # others on the same GPU change it, too
        return [cp.cuda.Device(device).mem_info[0] for device in (0, 1)]

    record().close()
    before = free()
    graph = record()
    assert graph.memory_bytes > 2 * 8 << 20
    assert all(now < was or not was for now, was in zip(free(), before))
    memory = graph._state.memory
    assert memory.devices == [0, 1]
    graph.close()
    assert free() == before
    assert memory.used_bytes() == 0


# -- what looks at graphs of several devices, and changes them: simulated, and on GPUs where there are two or more ----


def both(cp: Any) -> tuple[Any, list[Any]]:
    xs = arrays(cp)
    with ck.capture() as cap:
        with cap.fork(devices=[0, 1]) as lanes:
            made = []
            for lane in lanes:
                with lane:
                    made.append(xs[lane.device] * 2)
        total = made[0] + made[1].copy()
    return cap, [*xs, *made, total]


def test_races_are_found_across_devices(cp: Any) -> None:
    xs = arrays(cp)
    with ck.capture(check_races=False) as cap, cap.fork(devices=[0, 1]) as (here, there):
        with here:
            xs[0] += 1
        with there:
            y = xs[0].copy()  # before, or after?
    report = cap.graph.races()
    assert len(report.races) == 1 and report.races[0].certain
    assert 'several devices' in ' '.join(cap.graph.races(observe=True).notes)
    cap, _ = both(cp)
    assert not cap.graph.races().races
    del y


@pytest.mark.serial
def test_several_devices_are_measured_by_one_clock(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, 'active_count', lambda: 1)  # threads of pytest-xdist do not use the device
    cap, _ = both(cp)
    with pytest.raises(ck.UpdateError, match='no common clock'):
        cap.graph.measure(by='events')
    simulated = hasattr(cp, '__capturekit_simulated__')
    if not simulated and isinstance(found := cupti.profiler(), str):
        with pytest.raises(ck.UpdateError, match=re.escape(found)):
            cap.graph.measure()
        pytest.skip(found)
    line = cap.graph.measure()
    assert line.by == ('model' if simulated else 'profiler') and None not in line.nodes
    spans = [span for span in line.nodes if span is not None]
    assert all(spans[b][0] >= spans[a][1] - 2 for a, b in cap.graph.edges)
    report = cap.graph.concurrency(line)
    assert report.devices == {0: 0, 1: 0, 2: 1} and set(report.lanes) == {0, 1, 2}
    assert 'lanes 1 and 2 (devices 0 and 1)' in str(report)


def test_a_graph_of_several_devices_in_another_needs_lanes_there(cp: Any) -> None:
    inner, (x, *_rest, total) = both(cp)
    with ck.capture() as cap:
        before = total + 1
        with pytest.raises(ck.UnsupportedCallError, match='works on device 1, too') as info:
            cap.embed(inner.graph)
        assert 'test_devices.py' in str(info.value.location)
        with cap.fork(devices=[0, 1]) as lanes, lanes[0]:
            cap.embed(inner.graph)
        after = total + 1
    assert cap.recording.devices == [0, 1]
    for step in range(3):
        first = value(cp, total)
        x += 1
        cp.cuda.Device().synchronize()
        cap.graph.launch()
        wanted = (of(cp, 0) + of(cp, 1) + step + 1) * 2
        np.testing.assert_array_equal(value(cp, total), wanted)
        np.testing.assert_array_equal(value(cp, after), wanted + 1)
        np.testing.assert_array_equal(value(cp, before), first + 1)


def test_updating_and_copying_go_on(cp: Any) -> None:
    cap, (x, *_rest) = both(cp)
    other, values = both(cp)
    total = values[-1]
    cap.graph.update(other.graph)
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, total), (of(cp, 0) + of(cp, 1)) * 2)
    copy = cap.graph.clone()
    with pytest.warns(cp._util.PerformanceWarning, match='different from the current device'):
        values[1] += 1
    copy.launch()
    np.testing.assert_array_equal(value(cp, total), (of(cp, 0) + of(cp, 1) + 1) * 2)
    del x


def test_a_rehearsed_read_after_other_devices_have_joined(cp: Any) -> None:
    xs = arrays(cp)

    def program() -> Any:
        with ck.fork(devices=[1]) as (lane,), lane:
            y = xs[1] + 1
        return (y.copy() if float(xs[0][1]) > 0 else xs[0]) * 2

    rehearsal = ck.rehearse(program)
    with ck.capture(rehearsal=rehearsal) as cap:
        z = program()
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, z), (of(cp, 1) + 1) * 2)


def test_two_captures_at_once_one_on_each_device(cp: Any) -> None:
    xs = arrays(cp)
    with ck.capture() as first, cp.cuda.Device(1):
        with ck.capture() as second:
            y = xs[1] * 2
            with cp.cuda.Device(0):
                z = xs[0] * 3  # on the first one's origin, which is current there
    with cp.cuda.Device(1):
        second.graph.launch()
        np.testing.assert_array_equal(value(cp, y), of(cp, 1) * 2)
    first.graph.launch()
    np.testing.assert_array_equal(value(cp, z), of(cp, 0) * 3)
    assert first.recording.devices == [0] and second.recording.devices == [1]


def test_streams_known_by_handle_alone(cp: Any) -> None:
    """A stream's device can only be asked for before the stream is captured."""
    xs, side, rt = arrays(cp), side_of(cp, 1), cp.cuda.runtime
    with ck.capture() as cap:
        rt.streamWaitEvent(side.ptr, cap.stream.record().ptr)
        with cp.cuda.Device(1), side:
            y = xs[1] + 1
        cap.join(side)
    assert cap.recording.devices == [0, 1]
    cap.graph.launch()
    np.testing.assert_array_equal(value(cp, y), of(cp, 1) + 1)
    with ck.guard.watch(), cp.cuda.Device(1):  # type: ignore[attr-defined]
        rt.streamBeginCapture(side.ptr, 2)
        with side:
            xs[1] += 1
        rt.graphDestroy(rt.streamEndCapture(side.ptr))


def test_a_read_with_another_device_current(cp: Any) -> None:
    """It is checked on the device of the launch, to which the value is copied: kernels reach no other device."""
    xs = arrays(cp, 3)

    def program() -> Any:
        with cp.cuda.Device(1):
            y = xs[1] * 2
            largest = y.max()
            cp.cuda.get_current_stream().synchronize()
            out[...] = y + 1 if float(largest) > 0 else y
        return xs[0] + 1

    with cp.cuda.Device(1):
        out = cp.zeros(3)
        cp.cuda.Device().synchronize()
    rehearsal = ck.rehearse(program)
    with warnings.catch_warnings():
        warnings.simplefilter('error')  # of a kernel that reads memory of another device
        with ck.capture(strict=False, rehearsal=rehearsal) as cap:
            z = program()
            assert cp.cuda.runtime.getDevice() == 0
    cap.graph.launch()
    assert np.array_equal(value(cp, out), of(cp, 1, 3) * 2 + 1) and np.array_equal(value(cp, z), of(cp, 0, 3) + 1)
    with cp.cuda.Device(1):
        xs[1] -= 100
        out[...] = 0
        cp.cuda.Device().synchronize()
    with pytest.raises(ck.AssumptionError, match=r'It was 24\.0 in the rehearsal and is -176\.0'):
        cap.graph.launch()
    assert not value(cp, out).any()
