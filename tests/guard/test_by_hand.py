"""Captures that a script begins by hand: what it forgets is told by line, in its own words, and the capture goes on."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
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
from tests.guard.manual import by_hand


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


@pytest.mark.parametrize('in_place', [False, True], ids=['new array', 'in place'])
@pytest.mark.parametrize('kind', ['non-blocking', 'blocking', 'beside another stream'])
def test_work_without_the_stream_being_current(watched: Any, kind: str, in_place: bool) -> None:
    """Work in place is held back and told at the end."""
    cp = watched
    x = cp.arange(4.0)
    s, other = cp.cuda.Stream(non_blocking=kind != 'blocking'), cp.cuda.Stream(non_blocking=True)
    with other if kind == 'beside another stream' else contextlib.nullcontext():
        s.begin_capture()
        with pytest.raises(ck.EscapedWorkError) as found:
            at = line() + (2 if in_place else 5)
            if in_place:
                x += 1
                x.ndim  # noqa: B018  (another line between)
                s.end_capture()
            x + 1
    assert found.value.location is not None and found.value.location.line == at
    on_legacy = '1 piece of work on the legacy' if in_place else 'legacy default stream'
    assert (f'{other.ptr:#x}' if kind == 'beside another stream' else on_legacy) in str(found.value)
    assert not re.search(r'\bcap\b', str(found.value))
    went_on(cp, s, x)
    np.testing.assert_array_equal(x.get(), np.arange(4.0))
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
    x, graphs = cp.arange(4.0), []
    s, t = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    for stream in (s, t):
        stream.begin_capture()
    with s:
        y = x + 1
    with t:
        z = x + 2
    graphs.append(s.end_capture())
    with pytest.raises(ck.EscapedWorkError):
        x + 3
    graphs.append(t.end_capture())
    for stream, graph in zip((s, t), graphs):
        graph.launch(stream)
        stream.synchronize()
    assert (y.get().tolist(), z.get().tolist()) == ([1, 2, 3, 4], [2, 3, 4, 5])


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


CALLS = [
    's.synchronize()', 's.done', 'cp.cuda.Device().synchronize()', 's.record().synchronize()', 'float(x[0])',
    's.wait_event(cp.cuda.Stream.null.record())', 'cp.cuda.runtime.memset(x.data.ptr, 0, 8)',
    'cp.cuda.Stream.null.use()', 'cp.concatenate([x] * 20)',
]  # fmt: skip
#: Calls that copy values of the host: each remedy of theirs would be refused again inside of the capture.
VALUES = [
    'x.set(np.ones(4))', 'cp.array([1.0, 2.0])', 'cp.asarray(np.ones(4))', 'x[[0, 1]]', 'x.__setitem__([0, 1], 1)',
    'x[np.array([True, False, True, False])]',
]  # fmt: skip


@pytest.mark.parametrize('call', [*CALLS, *VALUES])
def test_no_remedy_names_what_the_script_has_not(watched: Any, call: str) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=True)
    with s:
        s.begin_capture()
        with pytest.raises(ck.CaptureError) as found:
            eval(call, {'np': np, 'cp': cp, 's': s, 'x': x})
    assert not re.search(r'\bcap\.|ck\.|strict=|mode=', str(found.value)), str(found.value)
    if call in VALUES:
        assert 'before `begin_capture()`' in found.value.remedy and 'asarray' not in found.value.remedy
    went_on(cp, s, x)


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


def recorded(cp: Any, *, inside: bool = False) -> tuple[Any, dict[str, Any]]:
    """A graph, and the arrays that it was recorded with."""
    kept = {'x': cp.arange(4.0), 'y': cp.zeros(4)}
    with by_hand(cp) as made:
        if inside:
            cp.add(kept['x'][1:] * 2, 1, out=kept['y'][1:])
        else:
            cp.multiply(kept['x'], 2, out=kept['y'])
    return made, kept


@pytest.mark.parametrize('name', ['x', 'y'])
def test_an_array_is_gone(cp: Any, name: str) -> None:
    with watch():
        made, kept = recorded(cp)
        made.launch()
        np.testing.assert_array_equal(kept['y'].get(), np.arange(4.0) * 2)
        del kept[name]
        other = cp.full(4, 7.0)
        cp.cuda.Stream.null.synchronize()
        with pytest.raises(ck.FreedMemoryError, match=r'float64\[4\]\) is gone') as found:
            made.launch()
        assert 'capture ended at manual.py:' in str(found.value) and 'Keep a name' in found.value.remedy
        made.stream.synchronize()
        np.testing.assert_array_equal(other.get(), np.full(4, 7.0))


def test_a_view_keeps_its_array(cp: Any) -> None:
    with watch():
        made, kept = recorded(cp, inside=True)
        kept['x'] = kept['x'][:1]
        kept['z'] = kept.pop('y').reshape(2, 2)
        made.launch()
        np.testing.assert_array_equal(kept['z'].get(), [[0, 3], [5, 7]])


def test_memory_that_lives_without_an_array(cp: Any) -> None:
    """It is given to nobody while a pointer to it is kept."""
    y, pointer = cp.zeros(4), cp.cuda.alloc(32)
    cp.ndarray(4, cp.float64, pointer)[...] = 3
    with watch():
        with by_hand(cp) as made:
            x = cp.ndarray(4, cp.float64, pointer)
            cp.multiply(x, 2, out=y)
        del x
        made.launch()
        np.testing.assert_array_equal(y.get(), np.full(4, 6.0))


# -- a read on a stream outside of the capture is refused where only recorded work computes what is read -----------

#: Ways to read an array on another stream.
READS = [
    'y.get(stream=other)', 'y.get(stream=other, blocking=False)', 'cp.asnumpy(y, stream=other)',
    'y[2:].get(stream=other)', 'y.get(stream=cp.cuda.Stream.null)',
]  # fmt: skip


@contextmanager
def in_block(cp: Any, mode: Mode) -> Iterator[Any]:
    """The same as a block of capturekit's."""
    cp.cuda.Stream.null.synchronize()
    with ck.capture(mode=mode.name.lower()) as cap:
        yield cap
    cap.launch = lambda: launched(cp, cap.graph)


BEGUN = pytest.mark.parametrize('begun', [by_hand, in_block])


def launched(cp: Any, graph: Any) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    graph.launch(stream)
    stream.synchronize()


@BEGUN
@pytest.mark.parametrize('read', READS)
@pytest.mark.parametrize('mode', Mode)
def test_what_the_capture_computes(cp: Any, begun: Any, read: str, mode: Mode) -> None:
    """Its own arrays, and those from outside that it writes."""
    x, z, other = cp.arange(4.0), cp.zeros(4), cp.cuda.Stream(non_blocking=True)
    x * 2 + 1  # the kernels are compiled before
    with begun(cp, mode) as made:
        cp.multiply(x, 2, out=z)
        made_here = [x * 3, cp.empty(4)] if mode is Mode.RELAXED else [z]  # by hand, the others forbid to allocate
        y = made_here[0]
        for array in (z, *made_here):
            with pytest.raises(ck.HostReadError, match='not computed yet') as found:
                eval(read, {'cp': cp, 'y': array, 'other': other})
        y += 1
    assert ('cap.graph' in str(found.value)) is (begun is in_block)
    made.launch()
    assert y.get().tolist() == ([1, 4, 7, 10] if mode is Mode.RELAXED else [1, 3, 5, 7])


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
    with begun(cp, Mode.RELAXED) as made:
        fill((1,), (4,), (y,))
        with pytest.raises(ck.HostReadError, match='It may write it, and nobody can tell') as found:
            y.get(stream=other)
        np.testing.assert_array_equal(x.get(stream=other), np.arange(4.0))
        y += 1
    assert ('cap.graph' in found.value.remedy) is (begun is in_block)
    made.launch()
    np.testing.assert_array_equal(y.get(), np.full(4, 5.0))


@BEGUN
def test_a_driver_whose_nodes_can_not_be_read(cp: Any, begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_g: int) -> Any:
        raise CudaCallError(Code.cudaErrorNotSupported, 'reading a graph')

    x, y, other = cp.arange(4.0), cp.zeros(4), cp.cuda.Stream(non_blocking=True)
    with begun(cp, Mode.RELAXED) as made:
        cp.multiply(x, 2, out=y)
        with monkeypatch.context() as patch:
            patch.setattr(current().device, 'graph_accesses', unsupported)
            with pytest.raises(ck.HostReadError, match='can not be seen which memory it writes'):
                y.get(stream=other)
        y += 1
    made.launch()
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
    launched(cp, cap.graph)
    np.testing.assert_array_equal(y.get(), np.ones(4))


@BEGUN
def test_what_the_capture_only_reads_can_be_read(cp: Any, begun: Any) -> None:
    x, rest, other = cp.arange(8.0), cp.zeros(8), cp.cuda.Stream(non_blocking=True)
    with begun(cp, Mode.RELAXED) as made:
        cp.multiply(x[:4], 2, out=rest[:4])
        np.testing.assert_array_equal(x.get(stream=other), np.arange(8.0))
        np.testing.assert_array_equal(rest[4:].get(stream=other), np.zeros(4))
    made.launch()
    np.testing.assert_array_equal(rest.get()[:4], np.arange(4.0) * 2)


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
    launched(cp, graph)
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def told(caplog: pytest.LogCaptureFixture) -> int:
    """How often it was said that a graph has not been launched."""
    return sum('has not been launched' in record.getMessage() for record in caplog.records)


@BEGUN
def test_a_result_that_is_read_before_the_launch(cp: Any, begun: Any, caplog: pytest.LogCaptureFixture) -> None:
    x = cp.arange(4.0)
    with watch():
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
        made.launch()
        np.testing.assert_array_equal(y.get(), np.arange(4.0) * 3)
        assert told(caplog) == 1


def test_what_is_known_before_a_launch(cp: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Results that a clone has computed, and memory that was a result's before."""
    x, stream = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    with watch():
        with ck.capture() as cap:
            y = x * 2
        clone = cap.graph.clone()
        launched(cp, clone)
        assert y.get().tolist() == [0, 2, 4, 6]
        with stream:
            stream.begin_capture()
            y = x * 2
            graph = stream.end_capture()
            del y
            assert (x + 1).get().tolist() == [1, 2, 3, 4]
    assert told(caplog) == 0
    del graph
