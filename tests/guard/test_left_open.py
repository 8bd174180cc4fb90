"""A capture begun by hand that an exception has left open: later errors say so, and nothing reads old values."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import watch

OPEN = 'The capture begun at test_left_open.py:'


@pytest.fixture
def watched(cp: Any) -> Iterator[Any]:
    """A stream whose captures are followed; what is open at the end is ended."""
    stream = cp.cuda.Stream(non_blocking=True)
    with watch():
        yield stream
        if stream.is_capturing():
            with stream:
                stream.end_capture()


def record(stream: Any, x: Any, fails: bool) -> Any:
    with stream:
        stream.begin_capture()
        x *= 2
        if fails:
            raise OSError('disk full')
        return stream.end_capture()


def leave_open(stream: Any, x: Any) -> None:
    with pytest.raises(OSError, match='disk full'):
        record(stream, x, True)


def test_work_that_is_held_back_is_told_when_it_is_read(cp: Any, watched: Any) -> None:
    w, x = cp.ones(4), cp.ones(4)
    leave_open(watched, x)
    w *= 2
    with pytest.raises(ck.EscapedWorkError, match=OPEN) as caught:
        w.get()
    assert 'in record is still open' in caught.value.still_open


def test_a_read_alone_gives_the_value(cp: Any, watched: Any) -> None:
    w, x = cp.full(4, 3.0), cp.ones(4)
    leave_open(watched, x)
    assert w.get().tolist() == [3] * 4
    with watched:
        graph = watched.end_capture()
    graph.launch(watched)


def test_a_second_begin_says_where_the_first_one_was(cp: Any, watched: Any) -> None:
    x = cp.ones(4)
    leave_open(watched, x)
    with pytest.raises(ck.UnmatchedError, match=OPEN):
        record(watched, x, False)
    with watched:
        graph = watched.end_capture()
    graph.launch(watched)
    watched.synchronize()
    assert x.get().tolist() == [2] * 4


def test_a_function_that_is_not_over_left_nothing_open(cp: Any, watched: Any) -> None:
    x = cp.ones(4)
    with watched:
        watched.begin_capture()
        x += 1
        with pytest.raises(ck.HostReadError) as caught:
            x.get()
        graph = watched.end_capture()
    assert caught.value.still_open == ''
    graph.launch(watched)
    watched.synchronize()
    assert x.get().tolist() == [2] * 4


def test_another_error_in_such_a_capture_says_it_too(cp: Any, watched: Any) -> None:
    x = cp.ones(4)
    leave_open(watched, x)
    with watched, pytest.raises(ck.HostReadError, match=OPEN):
        x.get()


def test_nobody_waits_for_a_thread_that_has_ended(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    with watch():
        begins = threading.Thread(target=lambda: stream.begin_capture())
        begins.start()
        begins.join()
        before = time.monotonic()
        with pytest.raises(ck.CaptureError, match=r'the capture at test_left_open\.py:\d+ .*has ended and has left it'):
            sim.cuda.Device().synchronize()
        assert time.monotonic() - before < 30
        stream.end_capture()


def test_a_refused_end_says_how_to_end_the_capture(cp: Any, watched: Any) -> None:
    x, side = cp.ones(4), cp.cuda.Stream(non_blocking=True)
    with watched:
        watched.begin_capture()
        side.wait_event(watched.record())
        with side:
            y = x * 2
        with pytest.raises(ck.UnjoinedError, match=OPEN) as caught:
            watched.end_capture()
        assert caught.value.still_open.endswith('is still open: after that, call `end_capture()` again.')
        with pytest.raises(ck.SynchronizationError, match=f'{OPEN}.* because its end was refused at test_left_open.py'):
            watched.synchronize()
        watched.wait_event(side.record())
        graph = watched.end_capture()
    graph.launch(watched)
    watched.synchronize()
    assert y.get().tolist() == [2] * 4


def test_an_end_refused_for_escaped_work_can_be_repeated(cp: Any, watched: Any) -> None:
    x, y, side = cp.ones(4), cp.ones(4), cp.cuda.Stream(non_blocking=True)
    with watched:
        watched.begin_capture()
        x *= 2
        with side:
            y *= 2
            with pytest.raises(ck.EscapedWorkError, match='ends it, without this work'):
                watched.end_capture()
        watched.end_capture().launch(watched)
    watched.synchronize()
    assert (x.get().tolist(), y.get().tolist()) == ([2] * 4, [1] * 4)
