"""A watch follows captures as long as somebody watches, and never stands in the way of a program."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

import capturekit as ck
from capturekit.cli.script_runner import WatchReport
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from capturekit.guard.call_watch import CallWatch
from capturekit.model.cuda_functions import ApiCall
from capturekit.model.followed_captures import FollowedCapture, Follower
from capturekit.model.rules import CaptureStatus, Mode, Operation

WATCH = GUARD.state.call_watch


@pytest.fixture
def ended(sim: Any) -> Any:
    found: list[FollowedCapture] = []
    WATCH.open(current(), found.append)
    yield found
    if WATCH.watching:
        WATCH.close(found.append)
    assert not WATCH.watching and 'begin_capture' not in vars(current().device)


def lose(device: Any, mode: Mode = Mode.RELAXED) -> int:
    s = int(device.stream_create(True))
    device.begin_capture(s, mode)
    with pytest.raises(RuntimeError):
        device.stream_synchronize(s)
    with pytest.raises(RuntimeError):
        device.end_capture(s)
    return s


def test_the_line_is_that_of_the_call(ended: list[FollowedCapture]) -> None:
    lose(current().device)
    (one,) = ended
    assert one.loss is not None and one.loss.at is not None and one.at is not None
    assert (one.loss.at.function, one.at.function) == ('lose', 'lose')
    assert one.loss.at.line == one.at.line + 2 and one.maker == ''


def test_cupy_s_captures_are_known_as_its_own(ended: list[FollowedCapture], sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        stream.end_capture()
    with ck.capture():
        pass
    assert [one.maker for one in ended] == ['cupy', 'capturekit']


def test_a_failure_of_the_watch_reaches_nobody(ended: list[FollowedCapture], monkeypatch: Any) -> None:
    device = current().device
    monkeypatch.setattr(Follower, '_judged', lambda *_: 1 / 0)
    s = device.stream_create(True)
    device.begin_capture(s)
    assert gc.isenabled(), 'garbage is collected without it'
    device.end_capture(s)
    assert isinstance(WATCH.failure, ZeroDivisionError) and ended == [] and WATCH.idle
    assert not WATCH.worked(s)


class Source:
    """A source whose question about a status runs a destructor, which calls CUDA."""

    def open(self, listener: Any) -> None:
        self.listener = listener

    def close(self) -> None:
        del self.listener

    def status(self, stream: int) -> CaptureStatus:
        self.listener.after(ApiCall('cudaEventDestroy', Operation.EVENT_DESTROY, 1, None, 5), 0)
        return CaptureStatus.INVALIDATED

    def blocking(self, stream: int) -> bool:
        return False

    def device(self) -> int:
        return 0

    def libraries(self) -> tuple[str, ...]:
        return ()


def test_a_destructor_s_call_within_a_step_comes_after_it() -> None:
    source = Source()
    watch = CallWatch(SimpleNamespace(active=lambda: False))
    ended: list[FollowedCapture] = []
    hear = ended.append
    watch.open(SimpleNamespace(device=SimpleNamespace(call_source=lambda: source)), hear)  # type: ignore[arg-type]
    begin = ApiCall('cudaStreamBeginCapture', Operation.BEGIN_CAPTURE, 1, 16, mode=Mode.GLOBAL)
    watch.before(begin)
    watch.after(begin, 0)
    watch.after(ApiCall('cudaEventRecord', Operation.EVENT_RECORD, 1, 16, 5), 0)
    watch.after(ApiCall('cudaEventSynchronize', Operation.EVENT_SYNCHRONIZE, 1, None, 5), 907)
    (one,) = watch.open_captures()
    assert one.loss is not None and one.loss.subject == 'an event of the capture (0x5)'
    watch.after(ApiCall('cudaStreamWaitEvent', Operation.WAIT_EVENT, 1, 32, 5), 0)
    assert len(one.capture.lanes) == 1 and watch.failure is None
    assert not gc.isenabled()
    watch.close(hear)
    assert not watch.watching and ended == [] and gc.isenabled()


def test_nothing_is_collected_while_a_capture_is_open(ended: list[FollowedCapture]) -> None:
    device = current().device
    first, second = device.stream_create(True), device.stream_create(True)
    device.begin_capture(first)
    device.begin_capture(second)
    with pytest.raises(RuntimeError):
        device.begin_capture(second)
    device.end_capture(second)
    assert not gc.isenabled()
    device.end_capture(first)
    assert gc.isenabled() and len(ended) == 2


def test_a_capture_that_was_lost_unseen_and_never_ended_is_told(sim: Any) -> None:
    report, device = WatchReport(), current().device
    hear = report.hear
    WATCH.open(current(), hear)
    s = device.stream_create(True)
    device.begin_capture(s)
    device.captures[0].status = CaptureStatus.INVALIDATED
    for one in WATCH.open_captures():
        hear(one)
    WATCH.close(hear)
    assert gc.isenabled() and '1 capture was followed; 1 was lost:' in report.text()
    assert 'InvalidatedError: A call that was not seen on lane 0, the origin' in report.text()


def test_the_guard_s_own_work_does_not_escape(ended: list[FollowedCapture], sim: Any) -> None:
    x = sim.arange(8)
    with ck.capture() as cap:
        y = x + sim.array([1, 2, 3, 4, 5, 6, 7, 8])  # which is uploaded at once, past the capture
        with cap.fork(2) as (left, right):
            with left:
                a = y + 1
            with right:
                b = y + 2
        del a, b
    assert [(one.maker, one.findings) for one in ended if not one.own] == [('capturekit', [])]
