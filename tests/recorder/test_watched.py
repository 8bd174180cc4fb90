"""``ck.capture(watch=True)``: what other libraries do to a capture is named. The device's verbs play the library."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.driver.cupti import Untraceable
from capturekit.guard import GUARD
from capturekit.model.rules import CaptureStatus


def library_waits(stream: int) -> None:
    with contextlib.suppress(RuntimeError):
        current().device.stream_synchronize(stream)  # <-- here


def guilty(function: Any) -> int:
    lines, start = inspect.getsourcelines(function)
    return start + next(number for number, line in enumerate(lines) if '# <-- here' in line)


def test_the_call_that_lost_a_capture_is_named(sim: Any) -> None:
    x = sim.arange(4.0)
    with pytest.raises(ck.InvalidatedError) as caught, ck.capture(watch=True) as cap:
        x + 1
        library_waits(cap.stream.ptr)
    error = caught.value
    assert (error.function, error.answer) == ('cudaStreamSynchronize', 'cudaErrorStreamCaptureUnsupported')
    assert error.location is not None and error.location.line == guilty(library_waits)
    assert error.location == error.lost_at and error.active_at is not None
    first, second, third = str(error).splitlines()
    assert first.startswith('The capture was lost by cudaStreamSynchronize() on lane 0, the origin (stream 0x')
    assert 'no running work to wait for (CUDA answered cudaErrorStreamCaptureUnsupported' in second
    assert '`cap.join(side)`' in third


def test_the_next_call_of_cupy_names_it_too(sim: Any) -> None:
    with pytest.raises(ck.InvalidatedError, match='lost by cudaStreamSynchronize'), ck.capture(watch=True) as cap:
        library_waits(cap.stream.ptr)
        cap.stream.record()


def test_an_exception_of_the_block_is_told_what_lost_it(sim: Any) -> None:
    with pytest.raises(KeyError) as caught, ck.capture(watch=True) as cap:
        library_waits(cap.stream.ptr)
        raise KeyError('mine')
    assert any('The capture was lost by cudaStreamSynchronize()' in note for note in caught.value.__notes__)


def test_work_on_a_stream_outside_is_a_note(sim: Any) -> None:
    x, device = sim.arange(4.0), current().device
    side, ran = device.stream_create(True), []
    with ck.capture(watch=True) as cap:
        y = x + 1
        for _ in range(2):
            device.submit(side, lambda: ran.append(1), 'kernel of a library')
    (note,) = cap.recording.notes
    assert note.text.startswith(f'work escaped: EscapedWorkError: cuLaunchKernel() on stream {side:#x}')
    assert note.text.endswith('its work ran at once and is missing from the graph. It was made 2 times.')
    assert note.at is not None and note.at[0] == __file__ and ran == [1, 1]
    cap.graph.launch()
    assert float(y.sum()) == 10


@pytest.mark.parametrize('watch', [True, False])
def test_lanes_that_a_library_leaves_open_are_named(sim: Any, watch: bool) -> None:
    """Without a watch, CUDA's own error comes out."""
    device = current().device
    side, event = device.stream_create(True), device.event_create()
    with pytest.raises(ck.UnjoinedError if watch else RuntimeError) as caught, ck.capture(watch=watch) as cap:
        device.event_record(event, cap.stream.ptr)
        device.stream_wait_event(side, event)
        device.submit(side, lambda: None, 'kernel of a library')
    if watch:
        assert f'lane 1 (stream {side:#x}) forked from lane 0 at test_watched.py' in str(caught.value)
        assert caught.value.lanes and isinstance(caught.value.__cause__, RuntimeError)
    else:
        assert not isinstance(caught.value, ck.CaptureError)
    assert device.stream_status(side) is CaptureStatus.NONE


def test_a_refusal_of_the_guard_comes_as_ever(sim: Any) -> None:
    x = sim.arange(4.0)
    with pytest.raises(ck.HostReadError), ck.capture(watch=True):
        float(x.sum())
    assert not GUARD.state.call_watch.watching


def test_blocks_within_blocks_and_in_parts_are_watched(sim: Any) -> None:
    """And are as good as others."""
    x = sim.arange(16.0).reshape(4, 4) + sim.eye(4)
    with ck.capture(watch=True, pieces=True) as cap:
        values = sim.linalg.eigvalsh(x @ x.T)
        with ck.capture(watch=True) as inner, inner.fork(1) as (lane,):
            with lane:
                y = x + 1
        z = values * 2
    assert cap.recording.notes == [] and inner.recording.notes == [] and not GUARD.state.call_watch.watching
    cap.graph.launch()
    inner.graph.launch()
    assert float(y.sum()) == float(x.sum()) + 16 and z.shape == (4,)


def test_an_outer_block_may_go_without_a_watch(sim: Any) -> None:
    x = sim.arange(4.0)
    with ck.capture() as outer:
        x + 1
        with ck.capture(watch=True) as inner:
            x + 2
            current().device.submit(outer.stream.ptr, lambda: None, 'kernel of a library')
    assert inner.recording.notes == []


def test_where_nothing_can_be_watched_the_block_is_not_entered(sim: Any, monkeypatch: Any) -> None:
    def missing() -> Any:
        raise Untraceable('CUPTI is not installed')

    monkeypatch.setattr(current().device, 'call_source', missing)
    with pytest.raises(Untraceable, match='CUPTI is not installed'), ck.capture(watch=True):
        raise AssertionError('the block was entered')
    assert not GUARD.state.call_watch.watching
