"""Bad arguments and wrong order get a clear error at the call, before anything has started."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck


def test_legacy_origin(sim: Any) -> None:
    with pytest.raises(ValueError, match='legacy default stream'):
        ck.capture(sim.cuda.Stream.null)


def test_stream_of_another_device(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    stream.device_id = 1
    with pytest.raises(ValueError, match='the stream is of device 1 and the current device is 0'), ck.capture(stream):
        raise AssertionError('the block must not be entered')


@pytest.mark.parametrize('name', ck.CaptureOptions.__dataclass_fields__)
def test_an_option_among_the_keywords(name: str) -> None:
    with pytest.raises(TypeError, match=rf'write ck\.capture\(options=ck\.CaptureOptions\({name}=\.\.\.\)\)'):
        ck.capture(**{name: None})


def test_join(sim: Any) -> None:
    with ck.capture() as cap:
        with pytest.raises(ck.UnmatchedError, match='Only a lane of this capture'):
            cap.join(sim.cuda.Stream())


def test_before_and_after_the_block(sim: Any) -> None:
    cap = ck.capture()
    for use in (lambda: cap.graph, lambda: cap.stream, lambda: cap.recording, lambda: cap.fork(2)):
        with pytest.raises(ck.ClosedError, match='has not been entered'):
            use()
    with cap:
        with pytest.raises(ck.ClosedError, match='The block is still open'):
            cap.graph  # noqa: B018
        with pytest.raises(ck.ClosedError):
            cap.__enter__()
        fork = cap.fork(2)
    for use in (lambda: cap.fork(2), lambda: cap.join(cap.stream), cap.__enter__, fork.__enter__):
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


def test_a_launch_that_is_kept_alone_launches(cp: Any) -> None:
    x = cp.arange(4.0)

    def build(stream: Any) -> Any:
        with stream, ck.capture() as cap:
            y = x + 1
        return cap.graph.launch, y, weakref.ref(cap.graph)

    stream = cp.cuda.Stream(non_blocking=True)
    launch, y, graph = build(stream)
    assert graph() is None
    for number, given in enumerate(((), (stream,))):
        x[...] = number
        cp.cuda.Device().synchronize()
        launch(*given)
        cp.cuda.Device().synchronize()
        assert y.get().tolist() == [number + 1] * 4


def test_a_launch_of_parts_is_kept_alone_too(cp: Any) -> None:
    x = cp.eye(3)

    def build() -> Any:
        with ck.capture(pieces=True) as cap:
            y = cp.linalg.eigh(x + 1)[0] * 2
        return cap.graph.launch, y

    launch, y = build()
    launch()
    np.testing.assert_allclose(y.get(), np.linalg.eigh(np.eye(3) + 1)[0] * 2)


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
    cap.graph.launch()
    assert np.array_equal(z.get(), [2, 3, 4, 5])


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
    assert ('yield' if sys.version_info >= (3, 12) else 'plain function') in str(info.value)


def test_a_coroutine_that_suspends_inside_the_block(sim: Any) -> None:
    async def coroutine() -> None:
        with ck.capture():
            await asyncio.sleep(0)

    with pytest.raises(ck.GeneratorError):
        asyncio.run(coroutine())


@pytest.mark.skipif(sys.version_info < (3, 12), reason='before Python 3.12 a capture in a generator is refused at once')
def test_a_generator_that_does_not_suspend_inside_may_capture(sim: Any) -> None:
    def good(x: Any) -> Iterator[Any]:
        for _ in range(2):
            with ck.capture() as cap:
                y = x + 1
            yield cap, y

    for cap, y in good(sim.arange(4)):
        cap.graph.launch()
        assert np.array_equal(y.get(), [1, 2, 3, 4])
    assert sys.monitoring.get_tool(4) is None and sys.monitoring.get_tool(3) is None  # type: ignore[attr-defined]


def test_a_context_manager_of_ones_own_may_wrap_a_capture(sim: Any) -> None:
    @contextlib.contextmanager
    def recorded() -> Iterator[ck.Capture]:
        with ck.capture() as cap:
            yield cap

    x = sim.arange(4)
    with recorded() as cap:
        y = x + 1
    cap.graph.launch()
    assert np.array_equal(y.get(), [1, 2, 3, 4])


@pytest.mark.parametrize('call', [
    lambda graph: ck.fork(0), lambda graph: ck.graphed(limit=0), lambda graph: graph.measure(0),
    lambda graph: ck.capture(options=ck.CaptureOptions(mode='loose')), lambda graph: ck.graphed(checks='never'),
    lambda graph: ck.parallel(len, lanes=0),
])  # fmt: skip
def test_a_number_or_word_that_means_nothing(sim: Any, call: Any) -> None:
    x = sim.ones(2)
    with ck.capture() as cap:
        y = x * 2
    with pytest.raises(ValueError):
        call(cap.graph)
    cap.graph.launch()
    assert y.get().tolist() == [2, 2]
