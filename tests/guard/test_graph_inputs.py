"""Arrays of graphs captured by hand: those from outside that are gone, and results that no launch has filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD, watch
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Code, Mode
from capturekit.simulated.kernel_bodies import body


def recorded(cp: Any, *, inside: bool = False) -> tuple[Any, dict[str, Any], Any]:
    """A graph, the arrays that it was recorded with, and its stream."""
    kept = {'x': cp.arange(4.0), 'y': cp.zeros(4)}
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with stream:
        stream.begin_capture()
        if inside:
            cp.add(kept['x'][1:] * 2, 1, out=kept['y'][1:])
        else:
            cp.multiply(kept['x'], 2, out=kept['y'])
        graph = stream.end_capture()
    return graph, kept, stream


@pytest.mark.parametrize('name', ['x', 'y'])
def test_an_array_is_gone(cp: Any, name: str) -> None:
    with watch():
        graph, kept, stream = recorded(cp)
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(kept['y'].get(), np.arange(4.0) * 2)
        del kept[name]
        other = cp.full(4, 7.0)
        cp.cuda.Stream.null.synchronize()
        with pytest.raises(ck.FreedMemoryError, match=r'float64\[4\]\) is gone') as found:
            graph.launch(stream)
        assert 'in recorded' in str(found.value) and 'Keep a name' in found.value.remedy
        stream.synchronize()
        np.testing.assert_array_equal(other.get(), np.full(4, 7.0))


def test_a_view_keeps_its_array(cp: Any) -> None:
    with watch():
        graph, kept, stream = recorded(cp, inside=True)
        kept['x'] = kept['x'][:1]
        kept['z'] = kept.pop('y').reshape(2, 2)
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(kept['z'].get(), [[0, 3], [5, 7]])


def test_what_the_capture_allocated_is_left_out(cp: Any) -> None:
    x, stream = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with watch(), stream:
        stream.begin_capture()
        between = x * 2
        y = between + 1
        graph = stream.end_capture()
        del between
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2 + 1)


def test_arrays_that_the_graph_does_not_use_may_go(cp: Any) -> None:
    with watch():
        beside = cp.ones(4)
        graph, kept, stream = recorded(cp)
        del beside
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(kept['y'].get(), np.arange(4.0) * 2)


def test_memory_that_lives_without_an_array(cp: Any) -> None:
    """It is given to nobody while a pointer to it is kept."""
    stream, y = cp.cuda.Stream(non_blocking=True), cp.zeros(4)
    pointer = cp.cuda.alloc(32)
    cp.ndarray(4, cp.float64, pointer)[...] = 3
    cp.cuda.Stream.null.synchronize()
    with watch(), stream:
        stream.begin_capture()
        x = cp.ndarray(4, cp.float64, pointer)
        cp.multiply(x, 2, out=y)
        graph = stream.end_capture()
        del x
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(y.get(), np.full(4, 6.0))


# -- a read on a stream outside of the capture is refused where only recorded work computes what is read -----------

#: Ways to read an array on another stream.
READS: dict[str, Callable[[Any, Any, Any], Any]] = {
    'stream=': lambda cp, y, other: y.get(stream=other),
    'not blocking': lambda cp, y, other: y.get(stream=other, blocking=False),
    'asnumpy': lambda cp, y, other: cp.asnumpy(y, stream=other),
    'a view': lambda cp, y, other: y[2:].get(stream=other),
    'null': lambda cp, y, other: y.get(stream=cp.cuda.Stream.null),
}


@contextmanager
def by_hand(cp: Any, mode: Mode) -> Iterator[Any]:
    """A capture begun and ended by hand; yields a list that gets the graph."""
    stream = cp.cuda.Stream(non_blocking=True)
    made: list[Any] = []
    with watch(), stream:
        stream.begin_capture(int(mode))
        yield made
        assert GUARD.platform.device.stream_status(stream.ptr) is CaptureStatus.ACTIVE
        made.append(stream.end_capture())


@contextmanager
def in_block(cp: Any, mode: Mode) -> Iterator[Any]:
    """The same as a block of capturekit's."""
    made: list[Any] = []
    with ck.capture(options=ck.CaptureOptions(mode=mode.name.lower())) as cap:
        yield made
    made.append(cap.graph)


BEGUN = pytest.mark.parametrize('begun', [by_hand, in_block])


def launched(cp: Any, made: list[Any]) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    made[0].launch(stream)
    stream.synchronize()


@BEGUN
@pytest.mark.parametrize('read', READS)
def test_what_the_capture_computes(cp: Any, begun: Any, read: str) -> None:
    x, other = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with begun(cp, Mode.RELAXED) as made:
        y = x * 2
        with pytest.raises(ck.HostReadError, match='not computed yet') as found:
            READS[read](cp, y, other)
        z = y + 1
    assert ('cap.graph' in str(found.value)) is (begun is in_block)
    launched(cp, made)
    np.testing.assert_array_equal(z.get(), np.arange(4.0) * 2 + 1)


@BEGUN
@pytest.mark.parametrize('mode', [Mode.GLOBAL, Mode.THREAD_LOCAL, Mode.RELAXED])
def test_an_array_from_outside_that_the_capture_writes(cp: Any, begun: Any, mode: Mode) -> None:
    x, y, other = cp.arange(4.0), cp.zeros(4), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with begun(cp, mode) as made:
        cp.multiply(x, 2, out=y)
        with pytest.raises(ck.HostReadError, match='not computed yet'):
            y.get(stream=other)
    launched(cp, made)
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


@body('fill_with_four')
def fill_with_four(_grid: Any, _block: Any, args: Any) -> None:
    args[0][...] = 4


#: It writes into its argument, which its arguments do not tell.
SOURCE = 'extern "C" __global__ void fill_with_four(double* y) { y[threadIdx.x] = 4; }'


@BEGUN
def test_an_argument_of_a_kernel_that_nobody_knows(cp: Any, begun: Any) -> None:
    x, y, other = cp.arange(4.0), cp.zeros(4), cp.cuda.Stream(non_blocking=True)
    fill = cp.RawKernel(SOURCE, 'fill_with_four')
    fill.compile()
    cp.cuda.Stream.null.synchronize()
    with begun(cp, Mode.RELAXED) as made:
        fill((1,), (4,), (y,))
        with pytest.raises(ck.HostReadError, match='It may write it, and nobody can tell') as found:
            y.get(stream=other)
        np.testing.assert_array_equal(x.get(stream=other), np.arange(4.0))
        y += 1
    assert ('cap.graph' in found.value.remedy) is (begun is in_block)
    launched(cp, made)
    np.testing.assert_array_equal(y.get(), np.full(4, 5.0))


@BEGUN
def test_a_driver_whose_nodes_can_not_be_read(cp: Any, begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_g: int) -> Any:
        raise CudaCallError(Code.cudaErrorNotSupported, 'reading a graph')

    x, y, other = cp.arange(4.0), cp.zeros(4), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with begun(cp, Mode.RELAXED) as made:
        cp.multiply(x, 2, out=y)
        with monkeypatch.context() as patch:
            patch.setattr(current().device, 'graph_accesses', unsupported)
            with pytest.raises(ck.HostReadError, match='can not be seen which memory it writes'):
                y.get(stream=other)
        y += 1
    launched(cp, made)
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2 + 1)


def test_the_bodies_of_decisions_write_too(cp: Any) -> None:
    flag, y, other = cp.ones((), '?'), cp.zeros(4), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with ck.capture() as cap:
        with cap.if_(flag):
            y += 1
            with pytest.raises(ck.HostReadError, match='not computed yet'):
                y.get(stream=other)
        with pytest.raises(ck.HostReadError, match='not computed yet'):
            y.get(stream=other)
        with cap.if_(flag):
            with pytest.raises(ck.HostReadError, match='not computed yet'):
                y.get(stream=other)
    launched(cp, [cap.graph])
    np.testing.assert_array_equal(y.get(), np.ones(4))


def test_a_rehearsed_block_gives_what_the_rehearsal_read(cp: Any) -> None:
    x, y, other = cp.arange(4.0), cp.zeros(4), cp.cuda.Stream(non_blocking=True)

    def step() -> float:
        cp.multiply(x, 2, out=y)
        cp.cuda.get_current_stream().synchronize()
        found: float = y.get(stream=other)[1]
        return found

    cp.cuda.Stream.null.synchronize()
    rehearsal = ck.rehearse(step)
    with ck.capture(rehearsal=rehearsal, strict=False) as cap:
        assert step() == 2
    launched(cp, [cap.graph])
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


@BEGUN
def test_what_the_capture_only_reads_can_be_read(cp: Any, begun: Any) -> None:
    x, rest, other = cp.arange(8.0), cp.zeros(8), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with begun(cp, Mode.RELAXED) as made:
        cp.multiply(x[:4], 2, out=rest[:4])
        np.testing.assert_array_equal(x.get(stream=other), np.arange(8.0))
        np.testing.assert_array_equal(rest[4:].get(stream=other), np.zeros(4))
    launched(cp, made)
    np.testing.assert_array_equal(rest.get()[:4], np.arange(4.0) * 2)


@BEGUN
@pytest.mark.parametrize('mode', [Mode.GLOBAL, Mode.THREAD_LOCAL])
def test_a_mode_that_forbids_to_wait_for_other_streams(cp: Any, begun: Any, mode: Mode) -> None:
    """The driver refuses this one in any case: ``get`` waits for its stream."""
    x, y, other = cp.arange(4.0), cp.zeros(4), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with begun(cp, mode) as made:
        cp.multiply(x, 2, out=y)
        with pytest.raises(ck.CaptureError, match='mode of this capture') as found:
            x.get(stream=other)
    assert not isinstance(found.value, ck.HostReadError)
    launched(cp, made)
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def test_the_outer_of_two_captures_by_hand(cp: Any) -> None:
    x, other = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    s, t = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    with watch(), ExitStack() as current:
        current.enter_context(s)
        s.begin_capture()
        y = x * 2
        current.enter_context(t)
        t.begin_capture()
        with pytest.raises(ck.HostReadError):
            y.get(stream=other)
        t.end_capture()
        graph = s.end_capture()
    launched(cp, [graph])
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def test_a_read_after_the_stream_was_left(cp: Any) -> None:
    """``print(y)`` between ``with stream:`` and ``end_capture`` reads on the legacy stream."""
    x, s = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    with watch():
        s.begin_capture()
        with s:
            y = x * 2
        with pytest.raises(ck.HostReadError):
            str(y)
        graph = s.end_capture()
    launched(cp, [graph])
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def told(caplog: pytest.LogCaptureFixture) -> int:
    """How often it was said that a graph has not been launched."""
    return sum('has not been launched' in record.getMessage() for record in caplog.records)


@BEGUN
def test_a_result_that_is_read_before_the_launch(cp: Any, begun: Any, caplog: pytest.LogCaptureFixture) -> None:
    x = cp.arange(4.0)
    with watch():
        cp.cuda.Stream.null.synchronize()
        with begun(cp, Mode.RELAXED) as made:
            y, z = x * 2, x + 1
        assert told(caplog) == 0
        x.get()
        assert told(caplog) == 0
        y[1:].get()
        z.get()
        assert told(caplog) == 1  # once for each graph
        with begun(cp, Mode.RELAXED) as made:
            y = x * 3
        launched(cp, made)
        np.testing.assert_array_equal(y.get(), np.arange(4.0) * 3)
        assert told(caplog) == 1


def test_what_is_known_before_a_launch(cp: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Constants, results that a clone has computed, and memory that was a result's before."""
    x, stream = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    with watch():
        with ck.capture() as cap:
            constant = cp.array([1.0, 2.0])
            y = x * 2
        assert constant.get().tolist() == [1, 2]
        clone = cap.graph.clone()
        launched(cp, [clone])
        assert y.get().tolist() == [0, 2, 4, 6]
        with stream:
            stream.begin_capture()
            y = x * 2
            graph = stream.end_capture()
            del y
            assert (x + 1).get().tolist() == [1, 2, 3, 4]
    assert told(caplog) == 0
    del graph
