"""A script that is observed: its calls are answered as without capturekit, and what is refused else is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import GUARD, watch
from capturekit.guard.observer import Observer
from capturekit.model.errors import CaptureError

pytestmark = pytest.mark.usefixtures('no_garbage')


@contextmanager
def observing() -> Iterator[Observer]:
    observer = Observer(GUARD)
    with watch():
        observer.open()
        try:
            yield observer
        finally:
            observer.close()


def answer_of(cp: Any, call: Callable[[], Any]) -> str:
    """The name of the code that CuPy raises, or the words of its own RuntimeError; '' for none."""
    try:
        call()
    except cp.cuda.runtime.CUDARuntimeError as error:
        assert not isinstance(error, CaptureError), error
        return str(error).partition(':')[0].removeprefix('cudaError')
    except RuntimeError as error:
        assert not isinstance(error, CaptureError), error
        return str(error)
    return ''


def free(*streams: Any) -> None:
    """No stream is captured any more, and each can be waited for."""
    for stream in streams:
        assert not stream.is_capturing()
        stream.synchronize()


def names(observer: Observer) -> list[tuple[str, bool]]:
    return [(one.name, one.loses) for one in observer.found]


def numbers(cp: Any) -> Any:
    x = cp.arange(4.0)
    cp.cuda.Stream.null.synchronize()
    return x


def two(cp: Any) -> Any:
    return cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)


#: A call in a capture on ``stream``; what CuPy answers, and whether that loses the capture; the guard's refusal, '' for
#: a call that it answers otherwise.
CALLS = [
    ('stream.synchronize()', 'StreamCaptureUnsupported', True, 'SynchronizationError'),
    ('stream.done', '', True, 'SynchronizationError'),
    ('stream.is_non_blocking', 'StreamCaptureUnsupported', True, ''),
    ('bool(x.sum() > 0)', 'the current stream is capturing', False, 'HostReadError'),
    ('cp.where(x > 0.5)', 'the current stream is capturing', False, 'HostReadError'),
    ('side.end_capture()', 'IllegalState', False, 'UnmatchedError'),
    ('stream.wait_event(before)', 'StreamCaptureIsolation', True, 'IsolationError'),
    ('cp.cuda.Device().synchronize()', 'StreamCaptureUnsupported', True, 'SynchronizationError'),
    ('stream.add_callback(print, None)', 'StreamCaptureUnsupported', True, 'UnsupportedCallError'),
]


@pytest.mark.parametrize(('call', 'answer', 'loses', 'name'), CALLS)
def test_a_call_is_let_through_and_listed(cp: Any, call: str, answer: str, loses: bool, name: str) -> None:
    (stream, side), x = two(cp), numbers(cp)
    given = {'cp': cp, 'stream': stream, 'side': side, 'x': x, 'before': side.record()}
    with observing() as observer:
        with stream:
            stream.begin_capture()
            y = x + 1
            assert answer_of(cp, lambda: eval(call, given)).startswith(answer)
            ends = answer_of(cp, lambda: given.update(graph=stream.end_capture()))
        assert ends == ('StreamCaptureInvalidated' if loses else '')
        if not loses:
            given['graph'].launch(stream)
        free(stream, side)
    assert loses or (y == x + 1).all()
    (one,) = observer.found
    assert (one.loses, name or one.name) == (loses, one.name)
    assert bool(one.answer) == bool(answer) and answer in one.answer
    assert 'test_observer.py:' in one.message or '<string>' in one.message
    assert 'cap.' not in one.message


def test_a_lane_left_open(cp: Any) -> None:
    (stream, side), x = two(cp), numbers(cp)
    with observing() as observer:
        with stream:
            stream.begin_capture()
            side.wait_event(stream.record())
            with side:
                assert 'is capturing' in answer_of(cp, lambda: cp.where(x > 0.5))
            assert answer_of(cp, stream.end_capture) == 'StreamCaptureUnjoined'
        free(stream, side)
    assert names(observer) == [('UnjoinedError', True), ('HostReadError', False)]
    assert 'origin.wait_event' in observer.found[0].message


def test_ends_elsewhere_and_the_one_that_loses_comes_first(cp: Any) -> None:
    (stream, side), x = two(cp), numbers(cp)
    with observing() as observer:
        with stream:
            stream.begin_capture()
            assert answer_of(cp, side.end_capture) == 'IllegalState'
            side.wait_event(stream.record())
            with side:
                y = x**3
            assert answer_of(cp, side.end_capture) == 'StreamCaptureUnmatched'
            assert answer_of(cp, stream.end_capture) == 'StreamCaptureInvalidated'
        free(stream, side)
    del y
    assert names(observer) == [('UnmatchedError', True), ('UnmatchedError', False)]
    first, second = observer.found
    assert 'on lane 1' in first.message and 'which is not in the capture' in second.message


def test_a_loss_that_only_the_pool_sees_is_one_finding(sim: Any) -> None:
    stream, x = sim.cuda.Stream(), sim.arange(1 << 16)
    with observing() as observer:
        stream.begin_capture()
        assert answer_of(sim, lambda: x + 1) == 'StreamCaptureImplicit'
        assert answer_of(sim, stream.end_capture) == 'StreamCaptureInvalidated'
        free(stream)
    assert names(observer) == [('LegacyStreamError', True)]


def test_a_loss_that_nobody_saw_is_told_with_its_lines(sim: Any) -> None:
    stream, _other = two(sim)
    with observing() as observer:
        with stream:
            stream.begin_capture()
            with GUARD.inside, pytest.raises(RuntimeError):
                stream.synchronize()
            assert answer_of(sim, stream.end_capture) == 'StreamCaptureInvalidated'
        free(stream)
    (one,) = observer.found
    assert (one.name, one.loses) == ('InvalidatedError', True)
    assert 'Active after' in one.message


def test_calls_on_a_lost_capture_are_no_findings(cp: Any) -> None:
    """Every thread is observed."""
    (stream, side), x = two(cp), numbers(cp)

    def record() -> Any:
        with stream:
            stream.begin_capture()
            assert answer_of(cp, stream.synchronize) == 'StreamCaptureUnsupported'
            assert answer_of(cp, lambda: stream.record()) == 'StreamCaptureInvalidated'
            assert answer_of(cp, stream.end_capture) == 'StreamCaptureInvalidated'
            stream.begin_capture()
            y = x + 1
            return y, stream.end_capture()

    with observing() as observer:
        with ThreadPoolExecutor(1) as threads:
            y, graph = threads.submit(record).result()
        graph.launch(stream)
        free(stream, side)
        assert (y == x + 1).all()
    assert names(observer) == [('SynchronizationError', True)]


def test_a_block_of_capturekits_own_names_what_lost_it(cp: Any) -> None:
    x = numbers(cp)
    with observing() as observer:
        with pytest.raises(ck.InvalidatedError) as lost, ck.capture() as cap:
            y = x + 1
            assert answer_of(cp, cap.stream.synchronize) == 'StreamCaptureUnsupported'
        del y
        with ck.capture() as cap:
            y = x + 2
            assert 'is capturing' in answer_of(cp, y.get)
        cap.graph.launch()
        assert y.get().tolist() == [2, 3, 4, 5]
        cap.graph.close()
    assert 'lost by Stream.synchronize(), which was let through, at test_observer.py:' in str(lost.value)
    assert names(observer) == [
        ('SynchronizationError', True),
        ('HostReadError', False),
    ]


@pytest.mark.parametrize('by_hand', [True, False])
def test_work_that_escapes_runs_and_is_named_at_its_line(cp: Any, by_hand: bool) -> None:
    (stream, side), x = two(cp), numbers(cp)
    with observing() as observer:
        with stream if by_hand else ck.capture(stream) as cap:
            if by_hand:
                stream.begin_capture()
            y = x + 1
            with side:
                z = x * 2
            if by_hand:
                graph, w = stream.end_capture(), z
            else:
                with cp.cuda.Stream.null:
                    w = x * 2
        side.synchronize()
        assert z.get().tolist() == w.get().tolist() == [0, 2, 4, 6]
        (graph if by_hand else cap.graph).launch(stream)
        free(stream, side)
        assert y.get().tolist() == [1, 2, 3, 4]
    names = [(one.name, one.loses, one.answer) for one in observer.found]
    assert names == [('EscapedWorkError', False, ''), ('LegacyStreamError', False, '')][: 1 if by_hand else 2]
    assert observer.found[0].message.splitlines()[0].startswith('Work on stream')


def test_graphed_functions_are_left_to_the_guard(cp: Any) -> None:
    @ck.graphed
    def step(x: Any) -> Any:
        y = x + 1
        return y * float(y.sum())

    x = numbers(cp)
    with observing() as observer:
        for _ in range(4):
            assert step(x).tolist() == [10, 20, 30, 40]
    assert observer.found == []
