"""Which line made which nodes, on which lane; and between which lines a capture was lost."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import LISTENERS, line_trace
from capturekit.guard.line_trace import TRACING
from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Recording


@pytest.fixture(params=['monitoring', 'settrace'])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways of following lines, where this Python has both; afterwards nothing of either is left."""
    if request.param == 'settrace':
        if sys.gettrace() is not None:
            pytest.skip('somebody traces this run')
        monkeypatch.setattr(line_trace, '_monitoring', None)
    elif line_trace._monitoring is None:
        pytest.skip('sys.monitoring came with Python 3.12')
    yield request.param
    assert sys.gettrace() is None
    assert not TRACING._traces and not TRACING._codes and TRACING._tool is None
    if hasattr(sys, 'monitoring'):
        assert 'capturekit' not in [sys.monitoring.get_tool(number) for number in range(6)]


def told(recording: Recording, start: int) -> list[tuple[int, int, int | None]]:
    """(count, line after ``start``, lane) of each span; the spans leave no node out."""
    at = 0
    for span in recording.spans:
        assert span.first == at
        at += span.count
    assert at == recording.node_count
    return [(span.count, span.at[1] - start if span.at else 0, span.lane) for span in recording.spans]


def line() -> int:
    """The caller's line."""
    return sys._getframe(1).f_lineno


def test_lines_of_a_block_and_of_functions_in_it(sim: Any, way: str) -> None:
    x = sim.arange(8.0)

    def twice(a: Any) -> Any:
        b = a * 2
        return b + 1

    with ck.capture() as cap:
        start = line()
        y = twice(x) + (x - 1)
        z = [
            y * 2,
            y * 3,
        ]
        for _ in range(3):
            z[0] = z[0] + 1
    inside = twice.__code__.co_firstlineno - start
    assert told(cap.recording, start) == [
        (1, inside + 1, 0), (1, inside + 2, 0), (2, 1, 0), (1, 3, 0), (1, 4, 0), (3, 7, 0),
    ]  # fmt: skip
    functions = {span.at[2] for span in cap.recording.spans if span.at}
    assert functions == {'twice', 'test_lines_of_a_block_and_of_functions_in_it'}
    assert {span.at[0] for span in cap.recording.spans if span.at} == {__file__}


def test_lanes(sim: Any, way: str) -> None:
    x = sim.arange(8.0)
    side = sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        start = line()
        with cap.fork(2) as (left, right):
            with left: a = x + 1  # fmt: skip # noqa: E701
            with right:
                b = x + 2
        side.wait_event(cap.stream.record())
        with side:
            c = a + b
        d = x * 2; cap.join(side); e = c + d  # fmt: skip # noqa: E702
    made = [(count, at, lane) for count, at, lane in told(cap.recording, start) if count]
    assert made == [(1, 2, 1), (1, 4, 2), (1, 7, 3), (2, 8, 0)]
    cap.graph.launch()
    assert e.get().tolist() == [4.0 * i + 3 for i in range(8)]


def test_generators_and_exceptions(sim: Any, way: str) -> None:
    x = sim.arange(4.0)

    def parts() -> Iterator[Any]:
        yield x + 1
        yield x + 2

    def fails() -> None:
        _ = x * 5
        raise KeyError

    with ck.capture() as cap:
        start = line()
        for part in parts():
            part * 2
        try:
            fails()
        except KeyError:
            x * 3
    first, wrong = parts.__code__.co_firstlineno - start, fails.__code__.co_firstlineno - start
    assert told(cap.recording, start) == [
        (1, first + 1, 0), (1, 2, 0), (1, first + 2, 0), (1, 2, 0), (1, wrong + 1, 0), (1, 6, 0),
    ]  # fmt: skip


def test_each_thread_has_its_own(sim: Any, way: str) -> None:
    x, both = sim.arange(4.0), threading.Barrier(2)

    def work(number: int) -> list[tuple[int, int, int | None]]:
        with ck.capture() as cap:
            start = line()
            both.wait(30)
            for _ in range(number):
                x * 2
            both.wait(30)
        return told(cap.recording, start)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, (3, 5))) == [[(3, 3, 0)], [(5, 3, 0)]]


def test_following_keeps_no_variables(sim: Any, way: str) -> None:
    x = sim.arange(4.0)
    with ck.capture() as cap:
        y = x + 1
    memory = weakref.ref(x.data.mem)
    cap.graph.close()
    del x, y, cap
    gc.collect()
    assert memory() is None


def test_what_locals_gave_is_left_alone(sim: Any, way: str) -> None:
    x = sim.arange(4.0)
    with ck.capture():
        given = locals()
        x + 1
    assert given['x'] is x


def test_lines_can_be_left_out(sim: Any) -> None:
    x = sim.arange(4.0)
    with ck.capture(lines=False) as cap:
        assert not TRACING._traces
        x + 1
    assert cap.recording.spans == []
    with pytest.raises(TypeError, match='lines must be True or False'):
        ck.capture(lines=1)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(sys, 'monitoring'), reason='sys.monitoring came with Python 3.12')
def test_beside_other_tools(sim: Any) -> None:
    """A tool with its own number goes on hearing; where all numbers are taken, nothing is followed and all works."""
    monitoring = sys.monitoring
    heard: list[int] = []
    tool = monitoring.COVERAGE_ID
    x = sim.arange(4.0)
    taken = []
    try:
        monitoring.use_tool_id(tool, 'another')
        monitoring.register_callback(tool, monitoring.events.LINE, lambda code, at: heard.append(at))
        monitoring.set_local_events(tool, work_lines.__code__, monitoring.events.LINE)
        with ck.capture() as cap:
            work_lines(x)
        work_lines(x)
        assert len(heard) == 4 and len(cap.recording.spans) == 2
        for number in range(6):
            if monitoring.get_tool(number) is None:
                monitoring.use_tool_id(number, 'taken')
                taken.append(number)
        with ck.capture() as cap:
            work_lines(x)
        assert cap.recording.node_count == 2
        assert [span.at for span in cap.recording.spans if span.at and span.at[2] == 'work_lines'] == []
    finally:
        monitoring.set_local_events(tool, work_lines.__code__, 0)
        for number in [tool, *taken]:
            monitoring.free_tool_id(number)


def work_lines(x: Any) -> None:
    x + 1
    x + 2


def test_beside_a_debugger_before_3_12(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody traces already: he is left alone, and what the guard sees is all that is known."""
    monkeypatch.setattr(line_trace, '_monitoring', None)

    def debugger(*_args: Any) -> Any:
        return None

    x = sim.arange(4.0)
    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        with ck.capture() as cap:
            x + 1
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)
    assert cap.recording.node_count == 1 and sum(span.count for span in cap.recording.spans) == 1


# -- lost ---------------------------------------------------------------------------------------------------------


def lose(cp: Any) -> None:
    """What a C library might do: the device is asked past every wrapper."""
    with pytest.raises(CudaCallError):
        cp.__capturekit_simulated__.device_synchronize()


@pytest.mark.parametrize('noticed', ['at the end', 'at the next call', 'lines later'])
def test_the_two_lines_between_which_a_capture_was_lost(sim: Any, way: str, noticed: str) -> None:
    x = sim.arange(4.0)
    start = 0
    with pytest.raises(ck.InvalidatedError) as info, ck.capture() as cap:
        start = line()
        x + 1
        call(sim.__capturekit_simulated__.device_synchronize)
        if noticed == 'lines later':
            _between = sum(range(10))
        if noticed != 'at the end':
            cap.stream.record()
    error = info.value
    assert error.active_at is not None and error.lost_at is not None
    assert error.lost_at.function == 'call' and error.location == error.lost_at
    assert (error.active_at.line, error.active_at.function) == (call.__code__.co_firstlineno + 1, 'call')
    name = threading.current_thread().name
    assert f'Invalidated after test_line_trace.py:{error.lost_at.line} in call (thread {name}): `fn()`' in str(error)
    assert start


def call(fn: Callable[[], Any]) -> None:
    with contextlib.suppress(CudaCallError):
        fn()


def test_the_users_own_exception_stays_the_main_one(sim: Any, way: str) -> None:
    with pytest.raises(ZeroDivisionError) as info, ck.capture():
        lose(sim)
        1 / 0  # noqa: B018
    notes = ' '.join(info.value.__notes__)
    assert 'The capture was lost by a call that capturekit did not see' in notes and 'Invalidated after' in notes


def test_without_lines_the_error_says_what_the_guard_has_seen(sim: Any) -> None:
    x = sim.arange(4.0)
    with pytest.raises(ck.InvalidatedError, match=r'Active after test_line_trace\.py:.*, Invalidated now') as info:
        with ck.capture(lines=False) as cap:
            x * 2
            cap.stream.record()
            lose(sim)
    assert info.value.lost_at is None and info.value.active_at is not None


# -- those who listen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize('ends', ['well', 'with an exception', 'refused'])
def test_who_listens_and_fails_replaces_no_exception(sim: Any, ends: str) -> None:
    """And the capture has ended all the same."""
    heard: list[tuple[str, bool]] = []

    def hear(recording: Recording, graph: Any) -> None:
        heard.append((recording.outcome, graph is not None))
        raise OSError('the disk is full')

    x = sim.arange(4.0)
    wanted: type[BaseException] = {'well': OSError, 'refused': ck.UnjoinedError}.get(ends, ZeroDivisionError)
    LISTENERS.append(hear)
    try:
        with pytest.raises(wanted) as info, ck.capture() as cap:
            x * 2
            if ends == 'with an exception':
                1 / 0  # noqa: B018
            if ends == 'refused':
                side = sim.cuda.Stream(non_blocking=True)
                side.wait_event(cap.stream.record())
                with side:
                    x * 3
    finally:
        LISTENERS.remove(hear)
    assert heard == [('good' if ends == 'well' else 'failed', ends == 'well')]
    if ends == 'well':
        cap.graph.launch()
    else:
        assert 'the disk is full' in ' '.join(info.value.__notes__)
        assert [step.kind for step in cap.recording.steps][-1] == 'finding'
