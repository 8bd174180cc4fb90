"""What is said of captures, refusals and joins holds when it is read; else it is not said."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions.kinds import Kind
from capturekit.guard import GUARD, watch
from capturekit.guard.refusals import unended
from tests.guard.test_manual_notes import said

HERE = 'test_said_of_captures.py'


@pytest.fixture
def stream(cp: Any) -> Iterator[Any]:
    """A stream whose captures are followed; what is open at the end is ended."""
    made = cp.cuda.Stream(non_blocking=True)
    with watch():
        yield made
        if made.is_capturing():
            made.end_capture()


def line_of(function: Any, below: int) -> str:
    """A line of a function, so many below its ``def``, as messages name it."""
    return f'{HERE}:{function.__code__.co_firstlineno + below} in {function.__name__}'


def left_by(stream: Any, x: Any) -> Any:
    stream.begin_capture()
    try:
        return float((x * 2).sum())
    finally:
        stream.end_capture()


def test_what_goes_through_was_not_caught(cp: Any, stream: Any, caplog: pytest.LogCaptureFixture) -> None:
    with stream, pytest.raises(ck.HostReadError) as found:
        left_by(stream, cp.ones(4))
    assert said(caplog) == [] and found.value.still_open == '' and not stream.is_capturing()
    with stream:
        stream.begin_capture()
        y = cp.ones(4) * 2
        with contextlib.suppress(ck.HostReadError):
            float(y.sum())
        stream.end_capture().launch(stream)
    stream.synchronize()
    assert y.tolist() == [2] * 4
    assert [text.partition(': ')[2][:28] for text in said(caplog)] == ['refused, and caught in the b']


@contextlib.contextmanager
def recording(stream: Any, ends: bool) -> Iterator[None]:
    with stream:
        stream.begin_capture()
        try:
            yield
        except Exception:
            if ends:
                stream.end_capture()
            raise
        stream.end_capture()


@pytest.mark.parametrize('ends', [True, False])
def test_a_capture_that_was_ended_is_not_still_open(cp: Any, stream: Any, ends: bool) -> None:
    x = cp.ones(4)
    with pytest.raises(ck.HostReadError) as found, recording(stream, ends):
        x += 1
        try:
            float(x.sum())
        except ck.HostReadError as error:
            assert 'still open' not in str(error)  # its generator will go on
            raise
    assert 'still open' not in str(found.value)
    if not ends:
        with stream, pytest.raises(ck.HostReadError, match=r'still open: .*`finally`'):
            float(x.sum())


def fetched(stream: Any, x: Any) -> None:
    x *= 2
    stream.synchronize()


def falls_back(stream: Any, x: Any) -> None:
    with stream:
        with contextlib.suppress(ck.CaptureError):
            stream.begin_capture()
            fetched(stream, x)
            stream.end_capture()
        fetched(stream, x)


def test_the_same_line_again_tells_of_the_first(cp: Any, stream: Any) -> None:
    x = cp.ones(4)
    with pytest.raises(ck.SynchronizationError) as found:
        falls_back(stream, x)
    assert [cause.name for cause in found.value.earlier] == ['SynchronizationError']
    begun, caught = line_of(falls_back, 3), line_of(falls_back, 4)
    assert f'The capture begun at {begun} is still open: ' in found.value.still_open
    assert f'was raised before, at {caught}, and caught' in found.value.still_open
    with stream:
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert x.tolist() == [4] * 4


def test_a_loop_of_one_line_is_told_once(cp: Any, stream: Any) -> None:
    with stream:
        stream.begin_capture()
        errors = []
        for _ in range(3):
            try:
                stream.synchronize()
            except ck.SynchronizationError as error:
                errors.append(error)
        stream.end_capture()
    assert [len(error.earlier) for error in errors] == [0, 0, 0]


class Recorder:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def start(self) -> None:
        self.stream.begin_capture()

    def stop(self) -> Any:
        return self.stream.end_capture()


def test_what_a_method_begins_another_one_ends(cp: Any, stream: Any) -> None:
    recorder, x = Recorder(stream), cp.ones(4)
    with stream:
        recorder.start()
        x += 1
        with pytest.raises(ck.HostReadError) as found:
            float(x.sum())
        recorder.stop().launch(stream)
    stream.synchronize()
    assert found.value.still_open == '' and x.tolist() == [2] * 4


def test_a_stream_that_is_no_more_current_was_so(cp: Any, stream: Any) -> None:
    x = cp.ones(4)
    with stream:
        stream.begin_capture()
    with pytest.raises(ck.EscapedWorkError, match='was current when its capture was begun'):
        float((x * 2).sum())
    with stream:
        stream.end_capture()
    stream.begin_capture()
    with pytest.raises(ck.EscapedWorkError, match='does not make its stream current'):
        float((x * 2).sum())
    stream.end_capture()


@pytest.mark.parametrize('early', [True, False])
def test_a_join_by_an_early_event_is_told_as_one(cp: Any, early: bool) -> None:
    x, side, done = cp.ones(4), cp.cuda.Stream(non_blocking=True), cp.cuda.Event()
    with pytest.raises(ck.UnjoinedError) as found, ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x * 2
            done.record()
            if early:
                y += 1
        cap.stream.wait_event(done) if early else cap.join(side)
        if not early:
            with side:
                y += 1
    assert ('before its last work' in str(found.value)) is early
    assert ('and then worked on again' in str(found.value)) is not early


def test_a_block_is_left_and_not_ended_by_hand(cp: Any) -> None:
    with ck.capture():
        (live,) = GUARD.lives.values()
        assert unended(live).endswith('leave its block, `with ck.capture() as cap:`')


def test_launches_that_there_were_are_counted() -> None:
    kind, variant = Kind([]), SimpleNamespace(launches=8)
    assert kind.gained() == 'none could be launched so far'
    kind.variants = (variant,)  # type: ignore[assignment]
    assert kind.gained() == 'only 8 calls could be launched'


def test_a_number_is_named_at_the_line_that_uses_it(sim: Any) -> None:
    @ck.graphed
    def step(x: Any, t: float) -> Any:
        y = x * 2
        sim.add(y, t, out=x)
        return y

    x = sim.zeros(4)
    for number in range(12):
        step(x, 0.01 * number)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        step.explain()
    assert f'it is given to a function, at {line_of(step.__wrapped__, 3)}' in out.getvalue()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason='later Pythons tell of a suspension')
def test_a_coroutine_is_told_what_would_work(sim: Any) -> None:
    def plain(x: Any) -> Any:
        with ck.capture() as cap:
            y = x * 2
        cap.graph.launch()
        return y

    async def opens() -> None:
        with ck.capture():
            pass

    async def calls() -> Any:
        return plain(sim.ones(4))

    with pytest.raises(ck.GeneratorError, match='into a plain function, and call that here'):
        asyncio.run(opens())
    assert asyncio.run(calls()).tolist() == [2] * 4
