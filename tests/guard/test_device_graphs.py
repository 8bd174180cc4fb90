"""What looks at graphs of several devices, and changes them: simulated, and on GPUs where there are two or more."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver import cupti
from tests.guard.several_devices import arrays, of, side_of, value
from tests.test_import import BLOCK, ROOT


@pytest.fixture
def cp(several: Any) -> Any:
    return several


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


def test_pictures_show_the_device_of_each_lane(cp: Any) -> None:
    cap, _ = both(cp)
    recording = cap.graph.describe()
    for render in (ck.render.to_text, ck.render.to_svg, ck.render.to_html):
        assert 'lane 2, device 1' in render(recording)
    assert ck.Recording.from_json(recording.to_json()).devices == [0, 1]
    assert [node.lane for node in cap.graph.nodes] == [1, 2, 0, 0]


def test_a_graph_of_one_device_says_nothing_of_it(cp: Any) -> None:
    with ck.capture() as cap, cap.fork(2):
        pass
    assert 'lane 1, device' not in ck.render.to_text(cap.graph.describe())


def test_races_are_found_across_devices(cp: Any) -> None:
    xs = arrays(cp)
    with ck.capture(options=ck.CaptureOptions(check_races=False)) as cap, cap.fork(devices=[0, 1]) as (here, there):
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
        assert 'test_device_graphs.py' in str(info.value.location)
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


def test_the_warning_of_another_device_is_told_by_name(sim: Any) -> None:
    """As pytest-xdist's workers tell their controller of a warning, in a process that has no CuPy at all."""
    kind = sim._util.PerformanceWarning
    code = f'import importlib; print(importlib.import_module({kind.__module__!r}).{kind.__name__}.__mro__[1].__name__)'
    ran = subprocess.run(
        [sys.executable, '-c', BLOCK.format(blocked=('cupy',)) + code], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.stdout == 'RuntimeWarning\n', ran.stderr
    assert pickle.loads(pickle.dumps(kind('slow'))).args == ('slow',)


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
