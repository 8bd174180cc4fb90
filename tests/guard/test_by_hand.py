"""Captures that a script begins by hand: what it forgets is told by line, in its own words, and the capture goes on."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD, watch
from capturekit.guard.remedies import REMEDIES, without_cap
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Code, Mode
from capturekit.model.source_line import here
from capturekit.simulated.kernel_bodies import body


@pytest.fixture
def watched(cp: Any, no_garbage: None) -> Iterator[Any]:
    """CuPy, and the guard in force as under ``capturekit run``."""
    with watch():
        yield cp


def went_on(cp: Any, s: Any, x: Any) -> None:
    """The capture that is open on a stream goes on to a good graph."""
    assert GUARD.state.platform.device.stream_status(s.ptr) is CaptureStatus.ACTIVE
    with s:
        y = x * 2
        graph = s.end_capture()
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    cp.cuda.Stream.null.synchronize()  # it made x, and s does not wait for it
    graph.launch(s)
    s.synchronize()
    np.testing.assert_array_equal(y.get(), x.get() * 2)


def line() -> int:
    at = here(sys._getframe(1))
    assert at is not None
    return at.line


@pytest.mark.parametrize('non_blocking', [True, False], ids=['non-blocking', 'blocking'])
def test_work_without_the_stream_being_current(watched: Any, non_blocking: bool) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=non_blocking)
    s.begin_capture()
    with pytest.raises(ck.EscapedWorkError, match='legacy default stream') as found:
        at = line() + 1
        x + 1
    assert found.value.location is not None
    assert found.value.location.line == at
    assert '`with stream:`' in found.value.remedy
    assert not re.search(r'\bcap\b', str(found.value))
    went_on(cp, s, x)


@pytest.mark.parametrize('non_blocking', [True, False], ids=['non-blocking', 'blocking'])
def test_work_in_place_is_held_back_and_told_at_the_end(watched: Any, non_blocking: bool) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=non_blocking)
    s.begin_capture()
    at = line() + 1
    x += 1
    x.ndim  # noqa: B018  (another line between)
    with pytest.raises(ck.EscapedWorkError, match='1 piece of work on the legacy') as found:
        s.end_capture()
    assert found.value.location is not None
    assert found.value.location.line == at
    went_on(cp, s, x)
    np.testing.assert_array_equal(x.get(), np.arange(4.0))


@pytest.mark.parametrize('in_place', [True, False])
def test_work_on_another_stream_that_was_current(watched: Any, in_place: bool) -> None:
    cp = watched
    x = cp.arange(4.0)
    s, other = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    with other:
        s.begin_capture()
        with pytest.raises(ck.EscapedWorkError, match=f'{other.ptr:#x}') as found:
            if in_place:
                x += 1
                s.end_capture()
            else:
                x + 1
    assert 'cap.' not in found.value.remedy
    went_on(cp, s, x)
    assert GUARD.state.platform.device.stream_status(other.ptr) is CaptureStatus.NONE


def test_questions_meanwhile_are_about_the_legacy_stream(watched: Any) -> None:
    cp = watched
    x = cp.arange(4.0)
    x += 1
    s = cp.cuda.Stream(non_blocking=True)
    s.begin_capture()
    np.testing.assert_array_equal(x.get(), np.arange(4.0) + 1)
    with pytest.raises(ck.LegacyStreamError):
        cp.cuda.get_current_stream().synchronize()
    with pytest.raises(ck.LegacyStreamError):
        cp.cuda.get_current_stream().wait_event(s.record())
    went_on(cp, s, x)


def test_two_captures_at_once(watched: Any) -> None:
    cp = watched
    x = cp.arange(4.0)
    s, t = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    s.begin_capture()
    t.begin_capture()
    with s:
        y = x + 1
    with t:
        z = x + 2
    graphs = [s.end_capture()]
    with pytest.raises(ck.EscapedWorkError):
        x + 3
    graphs.append(t.end_capture())
    for graph, stream in zip(graphs, (s, t)):
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) + 1)
    np.testing.assert_array_equal(z.get(), np.arange(4.0) + 2)


@pytest.mark.parametrize('mode', [0, 1], ids=['global', 'thread_local'])
def test_an_allocation_that_the_mode_keeps_away(watched: Any, mode: int) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=True)
    cp.get_default_memory_pool().free_all_blocks()
    with s:
        y = cp.empty_like(x)
        s.begin_capture(mode)
        with pytest.raises(ck.UnsupportedCallError, match='mode of this capture') as found:
            cp.zeros(3 << 20)
        error: Any = found.value
        assert isinstance(error, cp.cuda.runtime.CUDARuntimeError)
        assert error.status == Code.cudaErrorStreamCaptureUnsupported
        assert 'which is relaxed' in found.value.remedy
        assert "mode='relaxed'" not in found.value.remedy
        cp.multiply(x, 2, out=y)
        graph = s.end_capture()
    graph.launch(s)
    s.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def test_an_open_capture_that_nobody_ends_leaves_nothing_behind(cp: Any) -> None:
    s = cp.cuda.Stream(non_blocking=True)
    with watch():
        s.begin_capture()
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    s.end_capture()


@pytest.mark.parametrize('does', ['zeros(4)', 'cuda.Device(0).use()', 'cuda.Stream.null.use()'])
def test_destructors_at_the_end_are_no_part_of_a_capture(cp: Any, does: str) -> None:
    """Garbage is collected as soon as a capture lets it. No stream stands in for the legacy one afterwards."""
    ran = []

    class Late:
        def __del__(self) -> None:
            ran.append(eval(f'cp.{does}', {'cp': cp}))

    s, x = cp.cuda.Stream(non_blocking=True), cp.arange(4.0)
    before = gc.get_threshold()
    with watch():
        s.begin_capture()
        with s:
            y = x * 2
        late: Any = Late()
        late.me = late
        del late
        gc.set_threshold(1)
        try:
            graph = s.end_capture()
            [[] for _ in range(9)]  # lists that the collector counts
        finally:
            gc.set_threshold(*before)
    assert ran and GUARD.state.placeholders == {}
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    cp.cuda.Stream.null.synchronize()
    graph.launch(s)
    s.synchronize()
    np.testing.assert_array_equal(y.get(), x.get() * 2)


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    'synchronize': lambda cp, s, x: s.synchronize(),
    'done': lambda cp, s, x: s.done,
    'device': lambda cp, s, x: cp.cuda.Device().synchronize(),
    'event': lambda cp, s, x: s.record().synchronize(),
    'read': lambda cp, s, x: float(x[0]),
    'legacy': lambda cp, s, x: cp.cuda.Stream.null.use(),
    'memset': lambda cp, s, x: cp.cuda.runtime.memset(x.data.ptr, 0, 8),
    'isolation': lambda cp, s, x: s.wait_event(cp.cuda.Stream.null.record()),
    'set': lambda cp, s, x: x.set(np.ones(4)),
    'array': lambda cp, s, x: cp.array([1.0, 2.0]),
    'asarray': lambda cp, s, x: cp.asarray(np.ones(4)),
    'list as an index': lambda cp, s, x: x[[0, 1]],
    'mask as an index': lambda cp, s, x: x[np.array([True, False, True, False])],
    'assigned list': lambda cp, s, x: x.__setitem__([0, 1], 1),
    'concatenate': lambda cp, s, x: cp.concatenate([x] * 20),
}


@pytest.mark.parametrize('call', CALLS)
def test_no_remedy_names_what_the_script_has_not(watched: Any, call: str) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=True)
    with s:
        s.begin_capture()
        with pytest.raises(ck.CaptureError) as found:
            CALLS[call](cp, s, x)
    assert not re.search(r'\bcap\.|ck\.|strict=|mode=', str(found.value)), str(found.value)
    if call in VALUES:
        assert 'before `begin_capture()`' in found.value.remedy and 'asarray' not in found.value.remedy
    went_on(cp, s, x)


#: Calls that copy values of the host: each remedy of theirs would be refused again inside of the capture.
VALUES = ('set', 'array', 'asarray', 'list as an index', 'mask as an index', 'assigned list')


def test_remedies_of_all_rules() -> None:
    assert REMEDIES.keys() <= RULES.keys()
    for rule in (*RULES.values(), *VARIANTS.values()):
        assert not re.search(r'\bcap\.|ck\.|mode=|strict=', without_cap(rule.remedy)), rule.name
        assert not re.search(r'\bcap\.|mode=', without_cap(rule.waited)), rule.name


@pytest.mark.parametrize('current', [True, False])
def test_a_lost_capture_is_told_in_the_words_of_the_script(watched: Any, current: bool) -> None:
    """Also where another stream is kept out, whose own capture was lost with it."""
    cp = watched
    s = cp.cuda.Stream(non_blocking=True)
    with s if current else contextlib.nullcontext():
        s.begin_capture()
        with contextlib.suppress(Exception):
            GUARD.state.platform.device.device_synchronize()
        with pytest.raises(ck.InvalidatedError, match='Make that call before `begin_capture'):
            s.end_capture()


# -- arrays of graphs captured by hand: those from outside that are gone, and results that no launch has filled -------


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
        assert GUARD.state.platform.device.stream_status(stream.ptr) is CaptureStatus.ACTIVE
        made.append(stream.end_capture())


@contextmanager
def in_block(cp: Any, mode: Mode) -> Iterator[Any]:
    """The same as a block of capturekit's."""
    made: list[Any] = []
    with ck.capture(mode=mode.name.lower()) as cap:
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
