"""Refused means untouched: each illegal call raises its exception, the capture stays good and makes a good graph.

Here on the simulated device, a call of each kind; ``tests/gpu/test_entry_points.py`` makes the calls of every entry
point, on both devices.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD, watch
from capturekit.model.errors import CaptureError
from capturekit.model.rules import CaptureStatus, Code, Operation, Target, row
from capturekit.model.rules import Mode as ModeOf
from tests.command import called

Call = Callable[[SimpleNamespace], Any]


def scene(cp: Any) -> SimpleNamespace:
    """What the calls below work with, all made before the capture."""
    s = SimpleNamespace(cp=cp, x=cp.arange(8, dtype='f8'), w=cp.ones(8))
    s.side = cp.cuda.Stream(non_blocking=True)
    s.outside = cp.cuda.Stream(non_blocking=True)
    s.old = s.outside.record()
    s.never = cp.cuda.Event()
    s.null = cp.cuda.Stream.null
    with ck.capture() as cap:
        s.x * 2
    s.graph = cap.graph
    return s


def escaping(s: SimpleNamespace) -> None:
    with s.outside:
        s.x * 2


def escaping_in_place(s: SimpleNamespace) -> None:
    with s.outside:
        s.w += 1


def null_block(s: SimpleNamespace) -> None:
    with s.null:
        s.w += 1


class Foreign:
    """An array of another library whose interface names a stream."""

    def __init__(self, array: Any, stream: int) -> None:
        self.keep = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, 'stream': stream}


#: One call of each kind, and what capturekit itself offers: the rest is in the table of tests/gpu/guarded.
REFUSED: dict[str, tuple[type[ck.CaptureError], Call]] = {
    'lane.synchronize': (ck.SynchronizationError, lambda s: s.side.synchronize()),
    'with null': (ck.LegacyStreamError, null_block),
    'dlpack': (ck.LegacyStreamError, lambda s: s.a.__dlpack__()),
    'float': (ck.HostReadError, lambda s: float(s.a.sum())),
    'boolean mask': (ck.HostReadError, lambda s: s.x[s.x > 3]),
    'set': (ck.UnsupportedCallError, lambda s: s.x.set(np.zeros(8))),
    'outside event': (ck.IsolationError, lambda s: s.cap.stream.wait_event(s.old)),
    'capture on the origin': (ck.UnmatchedError, lambda s: ck.capture(s.cap.stream).__enter__()),
    'join a stream outside': (ck.UnmatchedError, lambda s: s.cap.join(s.outside)),
    'work outside': (ck.EscapedWorkError, escaping),
    'graph.launch': (ck.UnsupportedCallError, lambda s: s.graph.launch()),
}

ALLOWED: dict[str, Call] = {
    'is_capturing': lambda s: (s.side.is_capturing(), s.cap.stream.is_capturing()) == (True, True),
    'is_capturing outside': lambda s: s.outside.is_capturing() is False,
    'is_non_blocking': lambda s: s.side.is_non_blocking is True,
    'runtime.streamGetFlags': lambda s: s.cp.cuda.runtime.streamGetFlags(s.side.ptr) == 1,
    'priority': lambda s: isinstance(s.side.priority, int),
    'outside.synchronize': lambda s: s.outside.synchronize() is None,
    'outside.done': lambda s: s.outside.done is True,
    'outside event.done': lambda s: s.old.done is True,
    'outside event.synchronize': lambda s: s.old.synchronize() is None,
    'wait for a never recorded event': lambda s: s.cap.stream.wait_event(s.never) is None,
    'allocation alone, outside': lambda s: allocate_outside(s).size == 3,
    'an outside stream made current and left': lambda s: touch_outside(s),
    'exchange on the same lane': lambda s: s.cp.asarray(Foreign(s.a, s.cap.stream.ptr)).size == 8,
    'get of an empty array': lambda s: s.cp.empty(0).get().size == 0,
    'pinned allocation': lambda s: s.cp.cuda.alloc_pinned_memory(64) is not None,
    'default pool freed': lambda s: s.cp.get_default_memory_pool().free_all_blocks() is None,
    'new stream and event': lambda s: s.cp.cuda.Stream() is not None and s.cp.cuda.Event() is not None,
    'read of an outside array, aside': lambda s: float(s.w.get(stream=s.outside).sum()) == 8,
}


def allocate_outside(s: SimpleNamespace) -> Any:
    with s.outside:
        return s.cp.empty(3)


def touch_outside(s: SimpleNamespace) -> bool:
    with s.outside:
        return s.cp.cuda.get_current_stream() is s.outside


def record_around(s: SimpleNamespace, call: Callable[[], None]) -> None:
    """Record a forked and joined step with ``call`` in its middle; then launch it and look at the numbers."""
    with ck.capture() as s.cap:
        s.a = s.x + 1
        s.e = s.cap.stream.record()
        s.side.wait_event(s.e)
        with s.side:
            s.b = s.a * 2
        call()
        assert ck.guard.GUARD.platform.device.stream_status(s.cap.stream.ptr) is CaptureStatus.ACTIVE
        s.cap.stream.wait_event(s.side.record())
        s.c = s.a + s.b
    nodes = s.cap.recording.node_count
    s.cap.graph.launch()
    assert np.array_equal(s.c.get(), (np.arange(8) + 1) * 3)
    assert np.array_equal(s.w.get(), np.ones(8))
    assert nodes >= 3


@pytest.mark.parametrize('name', REFUSED)
def test_refused_and_untouched(sim: Any, name: str) -> None:
    kind, call = REFUSED[name]
    s = scene(sim)
    caught: list[ck.CaptureError] = []

    def attempt() -> None:
        with pytest.raises(kind) as info:
            call(s)
        caught.append(info.value)

    record_around(s, attempt)
    error = caught[0]
    assert isinstance(error, kind) and type(error).__name__ == kind.__name__
    assert error.operation and error.rule and error.remedy
    assert error.location is not None and error.location.file == __file__, error.location
    assert len(str(error).splitlines()) == 3
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.location) == (type(error), str(error), error.location)


@pytest.mark.parametrize('name', ALLOWED)
def test_let_through(sim: Any, name: str) -> None:
    s = scene(sim)
    answers: list[Any] = []
    record_around(s, lambda: answers.append(ALLOWED[name](s)))
    assert answers == [True]


@pytest.mark.parametrize('mode', ['global', 'thread_local'])
def test_modes_keep_unsafe_calls_away(sim: Any, mode: str) -> None:
    s = scene(sim)
    unsafe: list[tuple[type[ck.CaptureError], Call]] = [
        (ck.SynchronizationError, lambda s: s.outside.synchronize()),
        (ck.SynchronizationError, lambda s: s.old.done),
        (ck.UnsupportedCallError, lambda s: s.cp.cuda.runtime.malloc(512)),
        (ck.UnsupportedCallError, lambda s: s.cp.cuda.alloc_pinned_memory(64)),
        (ck.UnsupportedCallError, lambda s: s.cp.get_default_memory_pool().free_all_blocks()),
        (ck.UnsupportedCallError, lambda s: s.cp.cuda.runtime.profilerStart()),
        (ck.UnsupportedCallError, lambda s: s.cp.cuda.profiler.start()),
        (ck.UnsupportedCallError, lambda s: s.cp.cuda.profiler.stop()),
        (ck.UnsupportedCallError, lambda s: importlib.import_module('cupyx.profiler').profile().__enter__()),
    ]
    with ck.capture(options=ck.CaptureOptions(mode=mode)) as s.cap:
        y = s.x * 2  # the capture's own allocations are no matter of mode
        for kind, call in unsafe:
            with pytest.raises(kind, match=r"mode='relaxed'"):
                call(s)
        z = y + s.cp.asarray(np.arange(8.0))
    s.cap.graph.launch()
    assert np.array_equal(z.get(), np.arange(8) * 3)


def test_merge_leaves_both_captures_good(sim: Any) -> None:
    s = scene(sim)
    with ck.capture() as outer:
        y = s.x * 3
        event = outer.stream.record()
        with ck.capture() as inner:
            z = s.x * 2
            with pytest.raises(ck.MergeError):
                inner.stream.wait_event(event)
    outer.graph.launch()
    inner.graph.launch()
    assert np.array_equal(y.get(), np.arange(8) * 3)
    assert np.array_equal(z.get(), np.arange(8) * 2)


def test_the_bodys_own_exception_is_not_replaced_by_escaped_work(sim: Any) -> None:
    s = scene(sim)
    with pytest.raises(ZeroDivisionError), ck.capture():
        with s.outside:
            s.w += 1
            raise ZeroDivisionError


def test_a_call_on_an_outside_stream_is_made_on_it_itself(sim: Any) -> None:
    """An outside stream that is current sits in a trap; calls on it must see it as it is."""
    s = scene(sim)
    with ck.capture() as cap:
        y = s.x + 1
        with s.outside:
            assert s.outside.is_capturing() is False
            s.outside.synchronize()
            assert s.outside.done
            s.outside.wait_event(cap.stream.record())  # and now it is a lane
            z = y * 2
        cap.join(s.outside)
    cap.graph.launch()
    assert np.array_equal(z.get(), (np.arange(8) + 1) * 2)


def test_using_another_allocator_inside_is_held(sim: Any) -> None:
    s = scene(sim)
    pool = sim.cuda.MemoryPool()
    with ck.capture() as cap:
        with sim.cuda.using_allocator(pool.malloc):
            y = s.x + 1
            address = y.data.ptr
        z = y * 2
        del y
    assert pool.used_bytes() > 0, 'the block must not go back to the pool while the graph lives'
    with sim.cuda.using_allocator(pool.malloc):
        assert sim.empty(8).data.ptr != address
    cap.graph.launch()
    assert np.array_equal(z.get(), (np.arange(8) + 1) * 2)
    assert any('another allocator' in note.text for note in cap.recording.notes)


def test_host_constants_are_uploaded_and_noted(sim: Any) -> None:
    s = scene(sim)
    with ck.capture() as cap:
        k = sim.array([1.0, 2.0, 3.0])
        z = s.x[[1, 2, 3]] * k
        for _ in range(20):
            sim.array([9.0, 9.0, 9.0])  # must not be given the memory of the first
    cap.graph.launch()
    assert np.array_equal(z.get(), [1, 4, 9])
    first = cap.recording.constants[0]
    assert first.nbytes == 24 and first.at is not None and first.at[0] == __file__
    assert len(cap.recording.constants) == 22


def test_scalars_and_device_arrays_are_no_constants(sim: Any) -> None:
    s = scene(sim)
    with ck.capture() as cap:
        z = sim.array(s.x) + sim.array([s.x, s.x])[1]
    cap.graph.launch()
    assert np.array_equal(z.get(), np.arange(8) * 2)
    assert cap.recording.constants == []


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


@pytest.mark.parametrize('mode', ['relaxed', 'thread_local', 'global'])
def test_memory_from_a_pool_by_hand_is_as_the_defaults(sim: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device has no pools of the driver's: a pool is any number here."""
    runtime = sim.cuda.runtime
    plain = runtime.mallocAsync
    monkeypatch.setattr(runtime, 'mallocFromPoolAsync', lambda size, pool, stream: plain(size, stream))
    outside = sim.cuda.Stream(non_blocking=True)

    def asked(allocate: Any, *pool: int) -> list[str]:
        said = []
        with ck.capture(options=ck.CaptureOptions(mode=mode)) as cap:
            for stream in (cap.stream, outside):
                try:
                    allocate(64, *pool, stream.ptr)
                    said.append('allowed')
                except ck.UnsupportedCallError as error:
                    said.append(error.operation)
            assert cap.stream.is_capturing()
        return [*said, str(cap.recording.node_count)]

    of_pool = asked(lambda *args: runtime.mallocFromPoolAsync(*args), 7)
    assert [text.replace('FromPool', '') for text in of_pool] == asked(lambda *args: runtime.mallocAsync(*args))
    wanted = 'allowed' if mode == 'relaxed' else 'runtime.mallocFromPoolAsync()'
    assert of_pool == ['allowed', wanted, '1']


def test_a_handle_made_anew_stands_for_nothing(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA gives handles of destroyed events out again: what was known of the old one is forgotten."""
    forgotten: list[int] = []
    monkeypatch.setattr(GUARD.ledger, 'forget_event', forgotten.append)
    runtime, stream = sim.cuda.runtime, sim.cuda.Stream(non_blocking=True)
    with stream, ck.capture(stream=stream):
        made = [runtime.eventCreate(), runtime.eventCreateWithFlags(2)]
    assert set(made) <= set(forgotten)


@pytest.mark.parametrize('name', ['bincount', 'unique', 'flatnonzero'])
def test_a_function_that_reads_is_named(sim: Any, name: str) -> None:
    x = sim.arange(4)
    with ck.capture() as cap:
        with pytest.raises(ck.HostReadError) as caught:
            getattr(sim, name)(x)
        y = x + 1
    assert f'Here `{name}()` of CuPy does so' in caught.value.rule
    assert caught.value.remedy.endswith(f'Or call `{name}()` before the capture or after a launch.')
    cap.graph.launch()
    assert y.get().tolist() == [1, 2, 3, 4]


def test_benchmark_in_a_block_is_named(sim: Any) -> None:
    import cupyx

    x = sim.arange(4)
    with ck.capture(), pytest.raises(ck.SynchronizationError) as caught:
        cupyx.profiler.benchmark(lambda: x + 1)
    assert 'Here `benchmark()` of CuPy does so' in caught.value.rule
    assert caught.value.remedy == 'Time the graph instead, after the capture: `benchmark(cap.graph.launch)`.'


def test_a_stream_entered_by_the_same_with_statement(sim: Any) -> None:
    x, stream = sim.arange(4), sim.cuda.Stream(non_blocking=True)
    for allocates in True, False:
        with pytest.raises(ck.EscapedWorkError, match=r'Give it to the capture, `with ck.capture\(stream\) as cap:`'):
            with ck.capture(), stream:
                x = x + 1 if allocates else x.__iadd__(1)
    with pytest.raises(ck.EscapedWorkError, match='Fork it first'):
        with ck.capture():
            with stream:
                x += 1


def test_the_default_stream_of_a_thread_is_named(sim: Any) -> None:
    x, stream = sim.arange(4), sim.cuda.Stream.ptds
    with pytest.raises(ck.EscapedWorkError, match='on the per-thread default stream, which is not in the capture'):
        with ck.capture(), stream:
            x = x + 1


# -- refusals are caught by code that knows only CuPy's exceptions ----------------------------------------------------


def measured(operation: Operation, target: Target) -> int:
    """The code with which the driver answers in relaxed mode, beside a non-blocking origin."""
    pattern, _rule = row(operation, target)
    return int(pattern(ModeOf.RELAXED, False).code)


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
