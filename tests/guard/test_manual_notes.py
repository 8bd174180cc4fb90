"""What is said of captures holds when it is read: notes, captures that were left open. Garbage waits for the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD, watch
from capturekit.guard.verdicts import unended
from capturekit.model import counters
from capturekit.model.rules import Mode
from tests.command import called
from tests.guard.manual import by_hand

HERE = Path(__file__).name


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the logger of capturekit has said in the test."""
    return [record.getMessage() for record in caplog.records if record.name == 'capturekit']


def line_of(function: Any, below: int) -> str:
    """A line of a function, so many below its ``def``, as messages name it."""
    return f'{HERE}:{function.__code__.co_firstlineno + below} in {function.__name__}'


def forked(cp: Any, origin: Any, side: Any, *, work: bool = False, join: bool = False) -> None:
    side.wait_event(origin.record())
    if work:
        with side:
            cp.zeros(4)
    if join:
        origin.wait_event(side.record())


def test_a_fork_that_is_given_nothing(cp: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is told by the logger, and in a block by a note."""
    side = cp.cuda.Stream(non_blocking=True)
    with by_hand(cp) as made:
        forked(cp, made.stream, side)
    text = 'lane 1 was forked and given no work, and it was never joined: it adds nothing'
    assert said(caplog) == [f'{line_of(forked, 1)}: {text}']
    caplog.clear()
    with ck.capture() as cap:
        forked(cp, cap.stream, side)
    assert [note.text for note in cap.recording.notes if 'given no work' in note.text] != []
    assert said(caplog) == []


@pytest.mark.parametrize('work', [False, True])
def test_a_fork_that_is_joined(cp: Any, caplog: pytest.LogCaptureFixture, work: bool) -> None:
    side = cp.cuda.Stream(non_blocking=True)
    with by_hand(cp) as made:
        forked(cp, made.stream, side, work=work, join=True)
    with ck.capture() as cap:
        forked(cp, cap.stream, side, work=work, join=True)
        with ck.fork(2) as (left, _right), left:
            cp.zeros(4)
    assert [note for note in cap.recording.notes if 'given no work' in note.text] == said(caplog) == []


def test_a_copy_to_the_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = tmp_path / 'script.py'
    script.write_text(
        'import cupy as cp, numpy as np\n'
        's, host = cp.cuda.Stream(non_blocking=True), np.zeros(4)\n'
        'with s:\n'
        '    s.begin_capture()\n'
        '    y = cp.arange(4.0)\n'
        '    cp.cuda.runtime.memcpyAsync(host.ctypes.data, y.data.ptr, 32, 2, s.ptr)\n'
        '    graph = s.end_capture()\n'
        'print(host.sum())\n'
    )
    ran = called('run', '--simulate', str(script))
    assert (ran.returncode, ran.stdout) == (0, '0.0\n')
    (told,) = said(caplog)
    assert 'script.py:6: cupy.cuda.runtime.memcpyAsync(): each launch copies to its address of the host' in told
    assert 'nothing is copied before the first launch' in told


def test_a_refusal_that_is_caught_is_told_once(
    cp: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, '_TOLD', set())
    x = cp.ones(4)

    def reads() -> None:
        with pytest.raises(ck.HostReadError):
            x.get()

    line = f'{line_of(reads, 2)}: refused, and caught in the block: HostReadError: '
    for _ in range(2):
        with ck.capture():
            reads()
    assert [text.startswith(line) for text in said(caplog)] == [True]
    with by_hand(cp):
        reads()
    assert [text.startswith(line) for text in said(caplog)] == [True, True]  # its remedy has other words


@pytest.mark.parametrize('waits', [False, True])
def test_a_task_that_waits_while_its_capture_is_open(cp: Any, caplog: pytest.LogCaptureFixture, waits: bool) -> None:
    origin, x = cp.cuda.Stream(non_blocking=True), cp.ones(4)

    async def records() -> None:
        with origin:
            origin.begin_capture()
            if waits:
                await asyncio.sleep(0)
            origin.end_capture()
        await asyncio.sleep(0)

    async def works() -> None:
        x.__iadd__(1)  # on the stream that is current in this thread

    async def both() -> None:
        await asyncio.gather(records(), works())

    with watch():
        asyncio.run(both())
    text = (
        'the capture was open while its task waited here: what other tasks gave to its stream meanwhile is in the graph'
    )
    assert said(caplog) == [f'{line_of(records, 4)}: {text}'] * waits
    assert x.get().tolist() == [1 if waits else 2] * 4


# -- a capture begun by hand that an exception has left open -------------------------------------------------------

OPEN = 'The capture begun at test_manual_notes.py:'


@pytest.fixture
def watched(cp: Any) -> Iterator[Any]:
    """A stream whose captures are followed; what is open at the end is ended."""
    stream = cp.cuda.Stream(non_blocking=True)
    with cp.cuda.Stream.null, watch():  # which is current again afterwards
        yield stream
        if stream.is_capturing():
            with stream:
                stream.end_capture()


def ended(stream: Any) -> None:
    """End the capture, and launch the graph."""
    with stream:
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()


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


def test_a_second_begin_says_where_the_first_one_was(cp: Any, watched: Any) -> None:
    x = cp.ones(4)
    leave_open(watched, x)
    with pytest.raises(ck.UnmatchedError, match=OPEN):
        record(watched, x, False)
    ended(watched)
    assert x.get().tolist() == [2] * 4


def test_nobody_waits_for_a_thread_that_has_ended(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    with watch():
        with ThreadPoolExecutor(1) as threads:
            threads.submit(lambda: stream.begin_capture()).result()
        before = time.monotonic()
        with pytest.raises(
            ck.CaptureError, match=r'the capture at test_manual_notes\.py:\d+ .*has ended and has left it'
        ):
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
        with pytest.raises(
            ck.SynchronizationError, match=f'{OPEN}.* because its end was refused at test_manual_notes.py'
        ):
            watched.synchronize()
        watched.wait_event(side.record())
        ended(watched)
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


# -- no garbage is collected while a capture begun by hand is open -------------------------------------------------


@pytest.fixture
def collects() -> Iterator[None]:
    """The collector comes whenever it may: other tests have made it come seldom."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize('does', ['zeros(4)', 'cuda.Device(0).use()', 'cuda.Stream.null.use()'])
@pytest.mark.parametrize('mode', Mode)
def test_garbage_is_no_part_of_a_capture(cp: Any, collects: None, mode: Mode, does: str) -> None:
    """``cudaFree`` loses a capture of another mode than relaxed. No stream stands in for the legacy one afterwards."""
    ran = []

    class Garbage:
        """In a cycle with itself, so that only the collector frees it."""

        def __init__(self, held: Any) -> None:
            self.held, self.itself = held, self

        def __del__(self) -> None:
            ran.append(eval(f'cp.{does}', {'cp': cp}))

    x, stream, memory = cp.arange(4.0), cp.cuda.Stream(non_blocking=True), cp.cuda.memory.Memory(512)
    y = x * 3  # the kernel is compiled before
    cp.cuda.Stream.null.synchronize()
    with watch():
        stream.begin_capture(int(mode))
        Garbage(memory)
        del memory
        with stream:
            cp.multiply(x, 2, out=y)
        lists = [[] for _ in range(99)]  # the collector counts them
        assert ran == [] and not gc.isenabled()
        graph = stream.end_capture()
        lists += [[] for _ in range(99)]
        assert len(ran) == 1 and gc.isenabled() and GUARD.state.placeholders == {}
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    cp.cuda.Stream.null.synchronize()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def test_it_is_collected_again_after_a_capture_that_is_refused(sim: Any) -> None:
    with watch():
        with pytest.raises(ck.LegacyStreamError, match='Capture on another stream'):
            sim.cuda.Stream.null.begin_capture()
        assert gc.isenabled()
        stream = sim.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        with pytest.raises(ck.CaptureError):
            stream.begin_capture()
        assert not gc.isenabled()
        stream.end_capture()
        assert gc.isenabled()


# -- what is said of captures --------------------------------------------------------------------------------------


def left_by(stream: Any, x: Any) -> Any:
    stream.begin_capture()
    try:
        return float((x * 2).sum())
    finally:
        stream.end_capture()


def test_what_goes_through_was_not_caught(cp: Any, watched: Any, caplog: pytest.LogCaptureFixture) -> None:
    with watched, pytest.raises(ck.HostReadError) as found:
        left_by(watched, cp.ones(4))
    assert said(caplog) == [] and found.value.still_open == '' and not watched.is_capturing()
    with watched:
        watched.begin_capture()
        y = cp.ones(4) * 2
        with contextlib.suppress(ck.HostReadError):
            float(y.sum())
        watched.end_capture().launch(watched)
    watched.synchronize()
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
def test_a_capture_that_was_ended_is_not_still_open(cp: Any, watched: Any, ends: bool) -> None:
    x = cp.ones(4)
    with pytest.raises(ck.HostReadError) as found, recording(watched, ends):
        x += 1
        try:
            float(x.sum())
        except ck.HostReadError as error:
            assert 'still open' not in str(error)  # its generator will go on
            raise
    assert 'still open' not in str(found.value)
    if not ends:
        with watched, pytest.raises(ck.HostReadError, match=r'still open: .*`finally`'):
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


def test_the_same_line_again_tells_of_the_first(cp: Any, watched: Any) -> None:
    x = cp.ones(4)
    with pytest.raises(ck.SynchronizationError) as found:
        falls_back(watched, x)
    assert [cause.name for cause in found.value.earlier] == ['SynchronizationError']
    begun, caught = line_of(falls_back, 3), line_of(falls_back, 4)
    assert f'The capture begun at {begun} is still open: ' in found.value.still_open
    assert f'was raised before, at {caught}, and caught' in found.value.still_open
    ended(watched)
    assert x.tolist() == [4] * 4


class Recorder:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def start(self) -> None:
        self.stream.begin_capture()

    def stop(self) -> Any:
        return self.stream.end_capture()


def test_what_a_method_begins_another_one_ends(cp: Any, watched: Any) -> None:
    recorder, x = Recorder(watched), cp.ones(4)
    with watched:
        recorder.start()
        x += 1
        with pytest.raises(ck.HostReadError) as found:
            float(x.sum())
        recorder.stop().launch(watched)
    watched.synchronize()
    assert found.value.still_open == '' and x.tolist() == [2] * 4


def test_a_stream_that_is_no_more_current_was_so(cp: Any, watched: Any) -> None:
    x = cp.ones(4)
    with watched:
        watched.begin_capture()
    with pytest.raises(ck.EscapedWorkError, match='was current when its capture was begun'):
        float((x * 2).sum())
    with watched:
        watched.end_capture()
    watched.begin_capture()
    with pytest.raises(ck.EscapedWorkError, match='does not make its stream current'):
        float((x * 2).sum())
    watched.end_capture()


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
