"""Refused means untouched: each illegal call raises its exception, the capture stays good and makes a good graph.

``tests/gpu/test_entry_points.py`` makes the calls of every entry point, on both devices; here is what is said of them,
and which of CuPy's errors a refusal is as well.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import watch
from capturekit.model.errors import CaptureError
from capturekit.model.rules import Code, Operation, Target, row
from capturekit.model.rules import Mode as ModeOf
from tests.command import called
from tests.guard.manual import by_hand


@pytest.fixture
def x(sim: Any) -> Any:
    return sim.arange(8, dtype='f8')


@pytest.fixture
def outside(sim: Any) -> Any:
    return sim.cuda.Stream(non_blocking=True)


@pytest.mark.parametrize('mode', ['global', 'thread_local'])
def test_modes_keep_unsafe_calls_away(sim: Any, x: Any, outside: Any, mode: Any) -> None:
    """The capture's own allocations are no matter of mode."""
    from cupyx.profiler import profile

    with ck.capture(mode=mode) as cap:
        for kind, call in (
            (ck.SynchronizationError, outside.synchronize),
            (ck.UnsupportedCallError, lambda: sim.cuda.runtime.malloc(512)),
            (ck.UnsupportedCallError, profile().__enter__),
        ):
            with pytest.raises(kind, match=r"mode='relaxed'"):
                call()
        y = x * 2
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 2)


def test_the_bodys_own_exception_is_not_replaced_by_escaped_work(x: Any, outside: Any) -> None:
    with pytest.raises(ZeroDivisionError), ck.capture():
        with outside:
            x += 1
            raise ZeroDivisionError


def test_a_call_on_an_outside_stream_is_made_on_it_itself(x: Any, outside: Any) -> None:
    """An outside stream that is current sits in a trap; calls on it must see it as it is."""
    with ck.capture() as cap:
        y = x + 1
        with outside:
            assert outside.is_capturing() is False
            outside.synchronize()
            assert outside.done
            outside.wait_event(cap.stream.record())  # and now it is a lane
            z = y * 2
        cap.join(outside)
    cap.graph.launch()
    assert np.array_equal(z.get(), (np.arange(8) + 1) * 2)


def test_using_another_allocator_inside_is_held(sim: Any, x: Any) -> None:
    pool = sim.cuda.MemoryPool()
    with ck.capture() as cap:
        with sim.cuda.using_allocator(pool.malloc):
            y = x + 1
            address = y.data.ptr
        z = y * 2
        del y
    assert pool.used_bytes() > 0, 'the block must not go back to the pool while the graph lives'
    with sim.cuda.using_allocator(pool.malloc):
        assert sim.empty(8).data.ptr != address
    cap.graph.launch()
    assert np.array_equal(z.get(), (np.arange(8) + 1) * 2)
    assert any('another allocator' in note.text for note in cap.recording.notes)


def test_host_constants_are_uploaded_and_noted(sim: Any, x: Any) -> None:
    with ck.capture() as cap:
        k = sim.array([1.0, 2.0, 3.0])
        z = x[[1, 2, 3]] * k + sim.array(x)[1]  # an array of the device is no constant
        for _ in range(20):
            sim.array([9.0, 9.0, 9.0])  # must not be given the memory of the first
    cap.graph.launch()
    assert np.array_equal(z.get(), [2, 5, 10])
    first = cap.recording.constants[0]
    assert first.nbytes == 24 and first.at is not None and first.at[0] == __file__
    assert len(cap.recording.constants) == 22


def test_the_legacy_streams_flags_are_known(sim: Any) -> None:
    """CUDA loses a capture with a blocking stream where the legacy stream is asked."""
    x, blocking = sim.arange(4), sim.cuda.Stream()
    with blocking, ck.capture(stream=blocking) as cap:
        y = x + 1
        assert sim.cuda.Stream.null.is_non_blocking is False
        assert [sim.cuda.runtime.streamGetFlags(handle) for handle in (0, 1)] == [0, 0]
        assert sim.cuda.Stream.null.priority == 0
        assert [sim.cuda.runtime.streamGetPriority(handle) for handle in (0, 1)] == [0, 0]
    cap.graph.launch()
    assert y.get().tolist() == [1, 2, 3, 4]


def test_priorities_of_other_streams_are_asked_for(sim: Any) -> None:
    urgent, lane = (sim.cuda.Stream(non_blocking=True, priority=priority) for priority in (-3, -2))
    with ck.capture(stream=urgent) as cap:
        lane.wait_event(cap.stream.record())
        assert [urgent.priority, lane.priority] == [-3, -2]
        assert [sim.cuda.runtime.streamGetPriority(stream.ptr) for stream in (urgent, lane)] == [-3, -2]


def test_benchmark_in_a_block_is_named(sim: Any) -> None:
    import cupyx

    x = sim.arange(4)
    with ck.capture(), pytest.raises(ck.SynchronizationError) as caught:
        cupyx.profiler.benchmark(lambda: x + 1)
    assert 'Here `benchmark()` of CuPy does so' in caught.value.rule
    assert caught.value.remedy == 'Time the graph instead, after the capture: `benchmark(cap.graph.launch)`.'


def test_a_stream_entered_by_the_same_with_statement(sim: Any) -> None:
    x, stream, ptds = sim.arange(4), sim.cuda.Stream(non_blocking=True), sim.cuda.Stream.ptds
    for allocates in True, False:
        with pytest.raises(ck.EscapedWorkError, match=r'Give it to the capture, `with ck.capture\(stream\) as cap:`'):
            with ck.capture(), stream:
                x = x + 1 if allocates else x.__iadd__(1)
    with pytest.raises(ck.EscapedWorkError, match='Fork it first'):
        with ck.capture():
            with stream:
                x += 1
    with pytest.raises(ck.EscapedWorkError, match='on the per-thread default stream, which is not in the capture'):
        with ck.capture(), ptds:
            x = x + 1


# -- refusals are caught by code that knows only CuPy's exceptions ----------------------------------------------------


@pytest.mark.parametrize(
    ('call', 'operation', 'target'),
    [
        ('stream.synchronize()', 'STREAM_SYNCHRONIZE', 'ORIGIN'),
        ('cp.cuda.runtime.streamSynchronize(stream.ptr)', 'STREAM_SYNCHRONIZE', 'ORIGIN'),
        ('cp.cuda.Device().synchronize()', 'DEVICE_SYNCHRONIZE', 'NONE'),
        ('stream.record().synchronize()', 'EVENT_SYNCHRONIZE', 'CAPTURED_EVENT'),
        ('stream.wait_event(before)', 'WAIT_EVENT', 'OUTSIDE_EVENT'),
        ('stream.add_callback(print, None)', 'STREAM_ADD_CALLBACK', 'ORIGIN'),
        ('stream.begin_capture()', 'BEGIN_CAPTURE', 'ORIGIN'),
        ('other.end_capture()', 'END_CAPTURE', 'OUTSIDE'),
        ('cp.cuda.get_elapsed_time(stream.record(), stream.record())', 'EVENT_ELAPSED_TIME', 'CAPTURED_EVENT'),
    ],
)
def test_the_status_is_the_measured_code(cp: Any, call: str, operation: str, target: str) -> None:
    """The code with which the driver answers in relaxed mode, beside a non-blocking origin."""
    pattern, _rule = row(Operation[operation], Target[target])
    other = cp.cuda.Stream(non_blocking=True)
    names = {'cp': cp, 'other': other, 'before': other.record(cp.cuda.Event())}
    with by_hand(cp) as made:
        names['stream'] = made.stream
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as found:
            eval(call, names)
        assert isinstance(found.value, CaptureError)
        assert found.value.status == pattern(ModeOf.RELAXED, False).code != 0
        assert Code(found.value.status).name in str(found.value)


@pytest.mark.parametrize('call', ['stream.done', 'stream.record().done', 'cp.cuda.runtime.streamQuery(stream.ptr)'])
def test_where_cupy_returns_the_code_it_is_a_plain_refusal(cp: Any, call: str) -> None:
    with by_hand(cp) as made, pytest.raises(ck.SynchronizationError) as found:
        eval(call, {'cp': cp, 'stream': made.stream})
    assert type(found.value) is ck.SynchronizationError
    assert not isinstance(found.value, cp.cuda.runtime.CUDARuntimeError)


@pytest.mark.parametrize('call', ['x.get()', 'x.set(host)', 'float(x.sum())', 'cp.where(x > 0.5)'])
def test_where_cupy_refuses_by_itself_its_words_are_there(cp: Any, call: str) -> None:
    x = cp.arange(3.0)
    names = {'cp': cp, 'x': x, 'host': x.get()}
    with by_hand(cp), pytest.raises(RuntimeError, match='is capturing') as found:
        eval(call, names)
    assert isinstance(found.value, CaptureError)
    assert not isinstance(found.value, cp.cuda.runtime.CUDARuntimeError)


def test_the_legacy_stream_is_refused_by_cupy_itself(sim: Any) -> None:
    null = sim.cuda.Stream.null
    with by_hand(sim):
        with pytest.raises(ck.LegacyStreamError) as by_method:
            null.begin_capture()
        with pytest.raises(ck.LegacyStreamError) as by_function:
            sim.cuda.runtime.streamBeginCapture(null.ptr)
    assert not isinstance(by_method.value, sim.cuda.runtime.CUDARuntimeError)
    pattern, _rule = row(Operation.BEGIN_CAPTURE, Target.LEGACY)
    assert isinstance(by_function.value, sim.cuda.runtime.CUDARuntimeError)
    assert by_function.value.status == pattern(ModeOf.RELAXED, False).code


def test_a_synchronous_copy_has_a_code_where_cupy_asks_cuda(sim: Any) -> None:
    """CuPy looks only whether the current stream captures; beside that CUDA refuses the legacy stream."""
    blocking, x = sim.cuda.Stream(), sim.arange(3.0)
    y = sim.empty_like(x)
    with watch():
        for current, of_cupy in ((blocking, True), (sim.cuda.Stream.null, False)):
            with current:
                blocking.begin_capture()
                with pytest.raises(ck.LegacyStreamError) as found:
                    y.data.copy_from_device(x.data, x.nbytes)
                blocking.end_capture()
            assert ('is capturing' in str(found.value)) is of_cupy
            assert isinstance(found.value, sim.cuda.runtime.CUDARuntimeError) is not of_cupy


def test_under_lint_code_of_today_catches_it_too(tmp_path: Path) -> None:
    path = tmp_path / 'script.py'
    path.write_text(
        'import cupy as cp\nstream = cp.cuda.Stream(non_blocking=True)\nstream.begin_capture()\n'
        'try:\n    stream.add_callback(print, None)\nexcept cp.cuda.runtime.CUDARuntimeError as error:\n'
        '    print(error.status)\nstream.end_capture()\n'
    )
    ran = called('lint', '--simulate', str(path))
    assert '900' in ran.stdout.split()
    assert '[callback]' in ran.stdout


def test_unjoined_and_lost_captures_end_as_cupys_errors(cp: Any) -> None:
    side, x = cp.cuda.Stream(non_blocking=True), cp.ones(4)
    with by_hand(cp) as made:
        side.wait_event(made.stream.record())
        with side:
            y = x + 1
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as unjoined:
            made.stream.end_capture()
        made.stream.wait_event(side.record())
    assert isinstance(unjoined.value, ck.UnjoinedError)
    assert unjoined.value.status == Code.cudaErrorStreamCaptureUnjoined
    del y
    with watch():
        side.begin_capture()
        device = ck.guard.GUARD.state.platform.device
        with ck.guard.GUARD.inside, pytest.raises(ck.model.errors.CudaCallError):
            device.stream_synchronize(side.ptr)
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as lost:
            side.end_capture()
        assert isinstance(lost.value, ck.InvalidatedError)
        assert lost.value.status == Code.cudaErrorStreamCaptureInvalidated


def test_it_pickles_and_copies_with_both_classes(sim: Any) -> None:
    """A process without CuPy reads the pickle, too."""
    with ck.capture() as cap, pytest.raises(ck.SynchronizationError) as found:
        cap.stream.synchronize()
    error: Any = found.value
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(again, ck.SynchronizationError)
        assert isinstance(again, sim.cuda.runtime.CUDARuntimeError)
        assert (str(again), again.status, again.args) == (str(error), 900, error.args)
        assert again.location == error.location
    code = (
        'import pickle, sys\n'
        'error = pickle.loads(bytes.fromhex(sys.argv[1]))\n'
        "assert 'cupy' not in sys.modules\n"
        'print(type(error).__name__, error.status)'
    )
    given = [sys.executable, '-c', code, pickle.dumps(error).hex()]
    asked = subprocess.run(given, capture_output=True, text=True, timeout=60)
    assert asked.stdout.split() == ['SynchronizationError', '900'], asked.stderr
