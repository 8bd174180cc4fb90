"""Refusals are caught by code that knows only CuPy's exceptions."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import watch
from capturekit.guard.entry_points import ENTRIES
from capturekit.guard.refusals import HANDED_BACK, REFUSED_BY_CUPY, REFUSED_BY_LIBRARIES, make_catchable
from capturekit.model.errors import CaptureError
from capturekit.model.rules import ROWS, RULES, Code, Operation, Target, row
from capturekit.model.rules import Mode as ModeOf
from tests.command import called


def measured(operation: Operation, target: Target) -> int:
    """The code with which the driver answers in relaxed mode, beside a non-blocking origin."""
    pattern, _rule = row(operation, target)
    return int(pattern(ModeOf.RELAXED, False).code)


def test_a_wait_for_a_captured_stream_is_caught_as_cupys_error(cp: Any) -> None:
    code = measured(Operation.STREAM_SYNCHRONIZE, Target.ORIGIN)
    with ck.capture() as cap:
        y = cp.zeros(3)
        try:
            cap.stream.synchronize()
        except cp.cuda.runtime.CUDARuntimeError as error:
            caught: Any = error
        y += 1
    assert caught.status == code == Code.cudaErrorStreamCaptureUnsupported
    assert isinstance(caught, ck.SynchronizationError)
    assert type(caught).__name__ == 'SynchronizationError'
    assert type(caught).__module__ == ck.SynchronizationError.__module__
    assert 'has no running work to wait for' in str(caught)
    cap.graph.launch()
    assert (y == 1).all()


def test_our_own_class_goes_on_catching_it(cp: Any) -> None:
    with ck.capture() as cap, pytest.raises(ck.SynchronizationError) as found:
        cap.stream.synchronize()
    assert isinstance(found.value, cp.cuda.runtime.CUDARuntimeError)


@pytest.mark.parametrize(
    ('call', 'operation', 'target'),
    [
        ('stream.synchronize()', Operation.STREAM_SYNCHRONIZE, Target.ORIGIN),
        ('cp.cuda.runtime.streamSynchronize(stream.ptr)', Operation.STREAM_SYNCHRONIZE, Target.ORIGIN),
        ('cp.cuda.Device().synchronize()', Operation.DEVICE_SYNCHRONIZE, Target.NONE),
        ('stream.record().synchronize()', Operation.EVENT_SYNCHRONIZE, Target.CAPTURED_EVENT),
        ('stream.wait_event(before)', Operation.WAIT_EVENT, Target.OUTSIDE_EVENT),
        ('stream.add_callback(print, None)', Operation.STREAM_ADD_CALLBACK, Target.ORIGIN),
        ('stream.begin_capture()', Operation.BEGIN_CAPTURE, Target.ORIGIN),
        ('other.end_capture()', Operation.END_CAPTURE, Target.OUTSIDE),
        (
            'cp.cuda.get_elapsed_time(stream.record(), stream.record())',
            Operation.EVENT_ELAPSED_TIME,
            Target.CAPTURED_EVENT,
        ),
    ],
)
def test_the_status_is_the_measured_code(cp: Any, call: str, operation: Operation, target: Target) -> None:
    other = cp.cuda.Stream(non_blocking=True)
    names = {'cp': cp, 'other': other, 'before': other.record(cp.cuda.Event())}
    stream = names['stream'] = cp.cuda.Stream(non_blocking=True)
    with watch(), stream:
        stream.begin_capture()
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as found:
            eval(call, names)
        assert isinstance(found.value, CaptureError)
        assert found.value.status == measured(operation, target) != 0
        assert Code(found.value.status).name in str(found.value)
        assert stream.is_capturing()
        stream.end_capture()


@pytest.mark.parametrize('call', ['stream.done', 'stream.record().done', 'cp.cuda.runtime.streamQuery(stream.ptr)'])
def test_where_cupy_returns_the_code_it_is_a_plain_refusal(cp: Any, call: str) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with watch(), stream:
        stream.begin_capture()
        with pytest.raises(ck.SynchronizationError) as found:
            eval(call, {'cp': cp, 'stream': stream})
        stream.end_capture()
    assert type(found.value) is ck.SynchronizationError
    assert not isinstance(found.value, cp.cuda.runtime.CUDARuntimeError)


@pytest.mark.parametrize('call', ['x.get()', 'x.set(host)', 'float(x.sum())', 'cp.where(x > 0.5)'])
def test_where_cupy_refuses_by_itself_its_words_are_there(cp: Any, call: str) -> None:
    x, stream = cp.arange(3.0), cp.cuda.Stream(non_blocking=True)
    names = {'cp': cp, 'x': x, 'host': x.get()}
    with watch(), stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match='is capturing') as found:
            eval(call, names)
        stream.end_capture()
    assert isinstance(found.value, CaptureError)
    assert not isinstance(found.value, cp.cuda.runtime.CUDARuntimeError)


def test_the_legacy_stream_is_refused_by_cupy_itself(sim: Any) -> None:
    null, stream = sim.cuda.Stream.null, sim.cuda.Stream(non_blocking=True)
    with watch(), stream:
        stream.begin_capture()
        with pytest.raises(ck.LegacyStreamError) as by_method:
            null.begin_capture()
        with pytest.raises(ck.LegacyStreamError) as by_function:
            sim.cuda.runtime.streamBeginCapture(null.ptr)
        stream.end_capture()
    assert not isinstance(by_method.value, sim.cuda.runtime.CUDARuntimeError)
    pattern, _rule = row(Operation.BEGIN_CAPTURE, Target.LEGACY)
    assert isinstance(by_function.value, sim.cuda.runtime.CUDARuntimeError)
    assert by_function.value.status == pattern(ModeOf.RELAXED, False).code


def test_an_allocation_that_the_mode_forbids_has_its_code(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    with watch(), stream:
        stream.begin_capture(sim.cuda.runtime.streamCaptureModeGlobal)
        with pytest.raises(sim.cuda.runtime.CUDARuntimeError) as found:
            sim.empty(1 << 24)
        stream.end_capture()
    assert isinstance(found.value, ck.UnsupportedCallError)
    assert found.value.status == Code.cudaErrorStreamCaptureUnsupported


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


def test_in_a_block_of_capturekits_own_messages_are_as_they_were(sim: Any) -> None:
    x = sim.arange(3.0)
    with ck.capture() as cap:
        y = x + 1
        with pytest.raises(ck.HostReadError) as found:
            y.get()
    assert 'is capturing' not in str(found.value)
    assert type(found.value) is ck.HostReadError
    cap.graph.close()


def test_unjoined_and_lost_captures_end_as_cupys_errors(cp: Any) -> None:
    stream, side = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cp.ones(4)
    with watch():
        with stream:
            stream.begin_capture()
            side.wait_event(stream.record())
            with side:
                y = x + 1
            with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as unjoined:
                stream.end_capture()
            stream.wait_event(side.record())
            stream.end_capture()
        assert isinstance(unjoined.value, ck.UnjoinedError)
        assert unjoined.value.status == Code.cudaErrorStreamCaptureUnjoined
        del y
        stream.begin_capture()
        device = ck.guard.GUARD.platform.device
        with ck.guard.GUARD.inside, pytest.raises(ck.model.errors.CudaCallError):
            device.stream_synchronize(stream.ptr)
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as lost:
            stream.end_capture()
        assert isinstance(lost.value, ck.InvalidatedError)
        assert lost.value.status == Code.cudaErrorStreamCaptureInvalidated


def test_it_pickles_and_copies_with_both_classes(sim: Any) -> None:
    with ck.capture() as cap, pytest.raises(ck.SynchronizationError) as found:
        cap.stream.synchronize()
    error: Any = found.value
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(again, ck.SynchronizationError)
        assert isinstance(again, sim.cuda.runtime.CUDARuntimeError)
        assert (str(again), again.status, again.args) == (str(error), 900, error.args)
        assert again.location == error.location


def test_a_process_without_cupy_reads_the_pickle(sim: Any) -> None:
    with ck.capture() as cap, pytest.raises(ck.SynchronizationError) as found:
        cap.stream.synchronize()
    code = (
        'import pickle, sys\n'
        'error = pickle.loads(bytes.fromhex(sys.argv[1]))\n'
        "assert 'cupy' not in sys.modules\n"
        'print(type(error).__name__, error.status)'
    )
    given = [sys.executable, '-c', code, pickle.dumps(found.value).hex()]
    asked = subprocess.run(given, capture_output=True, text=True, timeout=60)
    assert asked.stdout.split() == ['SynchronizationError', '900'], asked.stderr


def test_the_class_is_made_once_for_each_pair(sim: Any) -> None:
    cupys = sim.cuda.runtime.CUDARuntimeError
    first, second = (ck.MergeError('a', cuda_error=Code.cudaErrorStreamCaptureMerge.name) for _ in range(2))
    make_catchable(first, cupys)
    make_catchable(second, cupys)
    make_catchable(second, cupys)
    assert type(first) is type(second)
    plain = ck.MergeError('no code')
    make_catchable(plain, cupys)
    assert type(plain) is ck.MergeError


def test_every_refusal_has_a_layout_that_cupys_class_can_join() -> None:
    error_of_cupy = pytest.importorskip('cupy_backends.cuda.api.runtime').CUDARuntimeError
    kinds = {rule.error for rule in RULES.values()} | set(CaptureError.__subclasses__())
    for kind in kinds:
        error = kind('call()', cuda_error=Code.cudaErrorStreamCaptureUnsupported.name)
        made: Any = error
        make_catchable(error, error_of_cupy)
        try:
            raise error
        except error_of_cupy as caught:
            assert caught is made
            assert caught.status == 900
        again = pickle.loads(pickle.dumps(made))
        assert isinstance(again, kind)
        assert again.status == 900


def test_the_exceptions_to_the_rule_are_verbs_of_the_table() -> None:
    verbs = {entry.method for entry in ENTRIES}
    assert verbs >= HANDED_BACK | REFUSED_BY_CUPY | REFUSED_BY_LIBRARIES
    assert {one for _label, one, *_rest in ROWS} >= {Operation.STREAM_QUERY, Operation.EVENT_QUERY}
