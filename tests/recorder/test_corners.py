"""What a hard look at the guard found: each of these once gave a wrong number, lost work or left something behind."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from capturekit.recorder.options import CheckedOptions
from tests.captured import launched

N = 4


def test_an_allocator_brought_back_is_up_to_date(sim: Any) -> None:
    """A fork inside `using_allocator`: what its end brings back must not be the allocator of before the fork."""
    inp = sim.arange(N, dtype='f8')
    other, side = sim.cuda.MemoryPool(), sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        x = inp * 1
        with sim.cuda.using_allocator(other.malloc):
            side.wait_event(cap.stream.record())
            with side:
                a = x + 1
        first = x.data.ptr
        del x
        y = inp * 100
        assert y.data.ptr != first
        cap.join(side)
    for _ in range(20):
        cap.graph.launch()
        assert np.array_equal(a.get(), np.arange(N) + 1)


def test_an_allocator_of_the_users_stays_in_force(sim: Any) -> None:
    calls: list[int] = []
    pool = sim.cuda.MemoryPool()

    def counting(size: int) -> Any:
        calls.append(size)
        return pool.malloc(size)

    x = sim.arange(N, dtype='f8')
    with ck.capture() as cap, sim.cuda.using_allocator(counting):
        x + 1
        cap.stream.record()
        x + 2
    assert len(calls) == 2


@pytest.mark.parametrize(
    'key',
    [
        np.array([True, False, True, False]),
        (slice(None), np.array([True, False, True, False])),
        (..., [True, False, True, False]),
        ([0, 2], slice(1, 3)),
        ((0, 2),),
        ([0, 1], [1, 2]),
        np.array([], dtype=int),
    ],
    ids=str,
)
def test_host_indices_mean_what_they_mean_eagerly(sim: Any, key: Any) -> None:
    a = sim.arange(16, dtype='f8').reshape(4, 4)
    expected = np.arange(16.0).reshape(4, 4)[key]
    written = np.arange(16.0).reshape(4, 4)
    written[key] = -1
    b = a.copy()
    with ck.capture() as cap:
        y = a[key] * 1
        b[key] = -1
    cap.graph.launch()
    assert y.shape == expected.shape
    assert np.array_equal(y.get(), expected)
    assert np.array_equal(b.get(), written)


def test_escaped_work_behind_an_exception_is_told_at_the_end(sim: Any) -> None:
    a, side = sim.ones(N), sim.cuda.Stream(non_blocking=True)
    with pytest.raises(ck.EscapedWorkError), ck.capture():
        with contextlib.suppress(ValueError), side:
            a += 1
            raise ValueError
    assert np.array_equal(a.get(), np.ones(N))


def test_a_stream_stays_in_its_trap_after_a_refusal(sim: Any) -> None:
    a, b, side = sim.ones(N), sim.ones(N), sim.cuda.Stream(non_blocking=True)
    with pytest.raises(ck.EscapedWorkError), ck.capture():
        side.use()
        a += 1
        with pytest.raises(ck.EscapedWorkError):
            side.synchronize()
        b += 1
    assert np.array_equal(b.get(), np.ones(N)), 'it ran at once'


def test_a_capture_begun_by_hand_and_left_open_is_ended(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    with pytest.raises(ck.UnmatchedError, match='begun by hand was left open'), ck.capture():
        stream.begin_capture()
    assert not stream.is_capturing()
    with pytest.raises(KeyError), ck.capture():
        stream.begin_capture()
        raise KeyError
    assert GUARD.lives == {} and GUARD.ledger.captures == []
    with ck.capture(stream):
        pass


@pytest.mark.parametrize('depth', [2, 3])
def test_captures_that_end_in_the_wrong_order_all_fail(sim: Any, depth: int) -> None:
    x, before = sim.arange(4.0), sim.cuda.get_current_stream()
    captures = [ck.capture() for _ in range(depth)]
    for cap in captures:
        cap.__enter__()
        y = x * 2
    with pytest.raises(ck.UnmatchedError, match='inner capture was left open') as info:
        captures[0].__exit__(None, None, None)
    assert 'test_corners.py' in info.value.rule and 'leave the inner block first' in info.value.remedy
    assert GUARD.lives == {} and not GUARD.installation.installed and sim.cuda.get_current_stream() == before
    for cap in captures[1:]:
        with pytest.raises(ck.ClosedError, match='failed'):
            cap.__exit__(None, None, None)
    y = x + 1  # runs at once
    assert y.get().tolist() == [1, 2, 3, 4]


def test_an_exception_closes_inner_captures_and_stays(sim: Any) -> None:
    before = sim.cuda.get_current_stream()
    with pytest.raises(ZeroDivisionError) as info, ck.capture():
        inner = ck.capture()
        inner.__enter__()
        1 / 0  # noqa: B018
    notes = '\n'.join(info.value.__notes__)
    assert 'inner capture was left open' in notes and repr(inner) == '<capturekit.Capture failed>'
    assert GUARD.lives == {} and sim.cuda.get_current_stream() == before and not current().device.graphs


def test_an_inner_capture_that_can_not_be_ended_stops_nothing(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, inner = sim.arange(4.0), ck.capture()
    end = current().device.end_capture
    faults = [RuntimeError('first')]

    def failing(stream: int) -> int:
        graph = end(stream)
        if faults:
            raise faults.pop()
        return int(graph)

    with pytest.raises(ck.UnmatchedError, match='inner capture was left open'), ck.capture():
        x * 2
        inner.__enter__()
        monkeypatch.setattr(current().device, 'end_capture', failing)
    assert faults == [] and GUARD.lives == {} and not GUARD.installation.installed
    with ck.capture() as cap:
        y = x * 2
    assert launched(cap, y) == [[0, 2, 4, 6]]


def test_lanes_that_a_capture_still_holds_are_not_lent_to_others(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    x = sim.arange(N, dtype='f8')
    stream.begin_capture()  # past the guard: nothing is installed
    with stream, ck.fork(2) as (a, b):
        held = {a.ptr, b.ptr}
        with a:
            x * 1
        with b:
            x * 2
    with ck.fork(2) as lanes:
        assert held.isdisjoint(lane.ptr for lane in lanes)
    stream.end_capture()


def test_two_captures_do_not_wait_for_the_legacy_stream(sim: Any) -> None:
    opened, close = threading.Event(), threading.Event()

    def blocking_capture() -> None:
        with ck.capture(sim.cuda.Stream()):
            opened.set()
            close.wait(5)

    a = sim.ones(N)
    thread = threading.Thread(target=blocking_capture)
    thread.start()
    opened.wait(5)
    try:
        with ck.capture() as cap:
            y = a + 1
            with pytest.raises(ck.LegacyStreamError):
                sim.cuda.runtime.memset(a.data.ptr, 0, 8)
    finally:
        close.set()
        thread.join()
    cap.graph.launch()
    assert np.array_equal(y.get(), np.full(N, 2.0))


def test_the_users_exception_survives_a_failing_clean_up(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_memory: Any) -> None:
        raise RuntimeError('freeing failed')

    monkeypatch.setattr('capturekit.launch.graph_memory.GraphMemory._release', failing)
    with pytest.raises(KeyError), ck.capture():
        raise KeyError


def through_a_stack() -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(ck.capture())
        yield 1


async def coroutine() -> None:
    with ck.capture():
        await asyncio.sleep(0)


@pytest.mark.parametrize('suspend', [lambda: next(through_a_stack()), lambda: asyncio.run(coroutine())])
def test_what_else_may_not_suspend_inside_the_block(sim: Any, suspend: Callable[[], Any]) -> None:
    with pytest.raises(ck.GeneratorError):
        suspend()


def test_default_streams_are_no_origins(sim: Any) -> None:
    with pytest.raises(ValueError, match='legacy default stream'):
        ck.capture(sim.cuda.Stream.null)
    with pytest.raises(ValueError, match='per-thread default stream'):
        ck.capture(sim.cuda.Stream.ptds)


def test_stream_of_another_device(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    stream.device_id = 1
    with pytest.raises(ValueError, match='the stream is of device 1 and the current device is 0'), ck.capture(stream):
        raise AssertionError('the block must not be entered')


def test_a_keyword_that_is_none_is_refused_at_the_call() -> None:
    unknown: Any = {'modus': 'global'}
    with pytest.raises(TypeError, match="unexpected keyword argument 'modus'"):
        ck.capture(**unknown)


def test_each_keyword_is_described_and_checked() -> None:
    named = {*inspect.signature(ck.capture).parameters, *ck.CaptureOptions.__annotations__} - {'stream', 'options'}
    assert {*named, 'temporaries'} == CheckedOptions.__dataclass_fields__.keys()
    for name in ck.CaptureOptions.__annotations__:
        assert f'\n    {name}: ' in inspect.getdoc(ck.CaptureOptions)  # type: ignore[operator]


def test_before_and_after_the_block(sim: Any) -> None:
    cap = ck.capture()
    branches = [pytest.fail]
    parallel = lambda: cap.parallel(*branches)  # noqa: E731
    for use in (lambda: cap.graph, lambda: cap.stream, lambda: cap.recording, lambda: cap.fork(2), parallel):
        with pytest.raises(ck.ClosedError, match='has not been entered'):
            use()
    with cap:
        with pytest.raises(ck.ClosedError, match='The block is still open'):
            cap.graph  # noqa: B018
        with pytest.raises(ck.ClosedError):
            cap.__enter__()
        with pytest.raises(ck.UnmatchedError, match='Only a lane of this capture'):
            cap.join(sim.cuda.Stream())
        fork = cap.fork(2)
    for use in (lambda: cap.fork(2), lambda: cap.join(cap.stream), parallel, cap.__enter__, fork.__enter__):
        with pytest.raises(ck.ClosedError, match='The capture is over') as info:
            use()
        assert info.value.location is not None and info.value.location.file == __file__
    with pytest.raises(ck.ClosedError):
        cap.__exit__(None, None, None)
    assert cap.graph is not None


def test_what_only_an_option_makes(sim: Any) -> None:
    cap = ck.capture()
    with pytest.raises(ck.ClosedError, match='has not been entered'):
        cap.fused  # noqa: B018
    with cap, pytest.raises(ck.ClosedError, match=r'Use `cap\.fused` after the block'):
        cap.fused  # noqa: B018
    for name, option in (('fused', 'fuse=True'), ('relaned', "lanes='auto'"), ('update', 'update=graph')):
        with pytest.raises(ck.ClosedError, match=f'opened without `{option}`'):
            getattr(cap, name)


def test_a_fork_is_entered_once(sim: Any) -> None:
    scope = ck.fork(2)
    with scope, pytest.raises(ck.ClosedError):
        scope.__enter__()


def test_closed_graph(sim: Any) -> None:
    x = sim.arange(4)
    with ck.capture() as cap:
        x + 1
    graph, launch = cap.graph, cap.graph.launch
    graph.close()
    graph.close()
    assert graph.closed and graph.graph == 0 and graph.graphExec == 0
    for use in (graph.launch, launch, graph.upload, graph.debug_dot_str, lambda: graph.launch(sim.cuda.Stream())):
        with pytest.raises(ck.ClosedError, match=r'given back by close\(\)'):
            use()


def test_a_call_in_the_middle_of_another_is_refused(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a destructor makes one, or a handler of signals."""
    x, stream = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        x += 1
    monkeypatch.setattr(type(current().device), 'graph_upload', lambda *_: cap.graph.launch(stream))
    with pytest.raises(ck.UpdateError, match='in the middle of another call on the same graph'):
        cap.graph.upload()
    cap.graph.launch(stream)
    stream.synchronize()
    assert x.get().tolist() == [1, 2, 3, 4]


def test_names_of_other_libraries_tell_ours(sim: Any) -> None:
    x = sim.arange(4)
    with ck.capture() as cap:
        x + 1
    with pytest.raises(AttributeError, match=r"a Graph has no attribute 'replay'; call launch\(\)"):
        cap.graph.replay()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"a Graph has no attribute 'other'$"):
        _ = cap.graph.other  # type: ignore[attr-defined]
    assert not hasattr(cap.graph, 'other') and getattr(cap.graph, 'replay', 3) == 3


@pytest.mark.parametrize('pieces', [False, True])
def test_a_launch_that_is_kept_alone_launches(cp: Any, pieces: bool) -> None:
    x = cp.eye(3)

    def build(stream: Any) -> Any:
        with stream, ck.capture(pieces=pieces) as cap:
            y = cp.linalg.eigvalsh(x) + 1 if pieces else x[0] + 1
        return cap.graph.launch, y, weakref.ref(cap.graph)

    stream = cp.cuda.Stream(non_blocking=True)
    launch, y, graph = build(stream)
    assert graph() is None
    for number, given in enumerate(((), (stream,))):
        x[...] = number * cp.eye(3)
        cp.cuda.Device().synchronize()
        launch(*given)
        cp.cuda.Device().synchronize()
        np.testing.assert_allclose(y.get(), [number + 1] * 3 if pieces else [number + 1, 1, 1])


def test_launch_arguments(sim: Any) -> None:
    x = sim.arange(4)
    with ck.capture() as cap:
        y = x + 1
    with pytest.raises(TypeError, match='expected a CuPy stream or an object with __cuda_stream__, got int'):
        cap.graph.launch(5)
    other = sim.cuda.Stream()
    other.device_id = 1
    with pytest.raises(ValueError, match='the graph lives on device 0, the stream on device 1'):
        cap.graph.launch(other)

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, other.ptr)

    cap.graph.launch(Protocol())
    assert np.array_equal(y.get(), [1, 2, 3, 4])


def test_graph_and_lane_have_no_public_constructor() -> None:
    with pytest.raises(TypeError, match='made by a capture'):
        ck.Graph()


def test_nested_captures_on_one_stream(sim: Any) -> None:
    x = sim.arange(4)
    with ck.capture() as cap:
        y = x + 1
        with pytest.raises(ck.UnmatchedError, match='already in a capture'), ck.capture(cap.stream):
            raise AssertionError('the block must not be entered')
        z = y + 1
    assert launched(cap, z) == [[2, 3, 4, 5]]


def test_a_stream_captured_behind_our_back(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    with pytest.raises(ck.UnmatchedError, match='does not know'), ck.capture(stream):
        raise AssertionError('the block must not be entered')
    stream.end_capture()


def generator(x: Any, out: list[Any]) -> Iterator[int]:
    with ck.capture() as cap:
        out.append(x + 1)
        yield 1
    out.append(cap)


def test_a_generator_that_suspends_inside_the_block(sim: Any) -> None:
    out: list[Any] = []
    suspending = generator(sim.arange(4), out)
    with pytest.raises(ck.GeneratorError) as info:
        next(suspending)
    assert info.value.location is not None and info.value.location.function == 'generator'
    assert '`yield`' in str(info.value) and 'plain function' in str(info.value)
    assert info.value.location.line == generator.__code__.co_firstlineno + 3 and out == []


def test_who_does_not_suspend_inside_may_capture(sim: Any) -> None:
    """A generator that yields after the block, and a context manager of one's own around a capture."""

    @contextlib.contextmanager
    def wrapped() -> Iterator[ck.Capture]:
        with ck.capture() as cap:
            yield cap

    def good(x: Any) -> Iterator[Any]:
        for _ in range(2):
            with ck.capture() as cap:
                y = x + 1
            yield cap, y
        with wrapped() as cap:
            y = x + 1
        yield cap, y

    for cap, y in good(sim.arange(4)):
        assert launched(cap, y) == [[1, 2, 3, 4]]
