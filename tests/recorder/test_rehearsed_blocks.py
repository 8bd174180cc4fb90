"""Rehearsals of other blocks than are recorded; what else a rehearsed block holds; what the recording tells of it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from capturekit.launch import read_checks
from tests.recorder.rehearsed import failed, line_of, rehearsed, same
from tests.recorder.test_teardown import unchanged

# -- rehearsals that don't fit ------------------------------------------------------------------------------------


def way(x: Any, out: Any) -> None:
    if float(x.sum()) > 10:
        out[...] = x[:2] * 2
    else:
        out[...] = out - x[0]


def test_other_arguments_of_the_same_shape_are_checked(sim: Any) -> None:
    """The way is the rehearsal's; a launch finds out that it is not theirs."""
    x, other, out = sim.arange(4.0), sim.arange(4.0) + 9, sim.zeros(2)
    rehearsal = ck.rehearse(way, x, out)
    with ck.capture(rehearsal=rehearsal) as cap:
        way(other, out)
    out[...] = 7
    error = failed(cap)
    assert (error.assumed.item(), error.actual.item()) == (6, 42)
    assert out.get().tolist() == [7, 7]
    other[...] = x
    cap.graph.launch()
    assert out.get().tolist() == [7, 7]


@pytest.mark.parametrize('kind', ['shape', 'dtype'])
def test_other_kinds_of_arguments_are_refused(sim: Any, kind: str) -> None:
    x, out = sim.arange(4.0), sim.zeros(2)

    def fn(array: Any) -> Any:
        return array.get()

    rehearsal = ck.rehearse(fn, x)
    other = x[:3] if kind == 'shape' else x.astype('f4')
    with unchanged(sim):
        with pytest.raises(ck.HostReadError) as info, ck.capture(rehearsal=rehearsal) as cap:
            out[...] = 5
            fn(other)
        assert cap.recording.outcome == 'failed'
        assert out.get().tolist() == [0, 0]
    wanted = 'float64[3]' if kind == 'shape' else 'float32[4]'
    assert f'The rehearsal has no read of {wanted} here' in str(info.value)
    assert info.value.location is not None and info.value.location.line == line_of(fn, 'return array.get()')


def test_another_line_is_another_read(sim: Any) -> None:
    x = sim.arange(4.0)

    def fn(first: bool) -> float:
        if first:
            return float(x[1])
        return float(x[2])

    rehearsal = ck.rehearse(fn, True)
    with unchanged(sim), pytest.raises(ck.HostReadError, match='it took another way'):
        with ck.capture(rehearsal=rehearsal):
            fn(False)


def test_more_reads_than_rehearsed(sim: Any) -> None:
    """The one too many is refused; the capture is as it was before that line."""
    x, out = sim.arange(4.0), sim.zeros(4)

    def fn(times: int) -> list[float]:
        return [float(x[i]) for i in range(times)]

    rehearsal = ck.rehearse(fn, 2)
    with unchanged(sim):
        with ck.capture(rehearsal=rehearsal) as cap:
            out[...] = x * 2
            with pytest.raises(ck.HostReadError, match=r'no read of float64\[\] here'):
                fn(3)
            out[...] = out + 1
    out[...] = 0
    cap.graph.launch()
    assert out.get().tolist() == [1, 3, 5, 7]
    x[1] = 9
    assert failed(cap).index == 1
    with unchanged(sim):
        empty = ck.rehearse(lambda: None)
        with pytest.raises(ck.HostReadError), ck.capture(rehearsal=empty):
            fn(1)


def test_fewer_reads_than_rehearsed(sim: Any) -> None:
    """What CuPy has cached by now is not read again: such reads are passed over, and not checked."""
    x = sim.arange(4.0)
    cache: list[float] = []

    def fn() -> Any:
        if not cache:
            cache.append(float(x[3]))  # read once
        return x * cache[0] if float(x[1]) < 2 else x

    rehearsal, cap, y = rehearsed(fn)
    assert len(rehearsal.reads) == 2
    assert [step.kind for step in cap.recording.steps].count('assumed') == 1
    cap.graph.launch()
    assert y.get().tolist() == [0, 3, 6, 9]
    x[3] = 50
    cap.graph.launch()
    assert y.get().tolist() == [0, 3, 6, 150]
    x[1] = 2
    assert failed(cap).index == 0


def test_a_rehearsal_serves_many_captures(sim: Any) -> None:
    x, out = sim.arange(4.0), sim.zeros(2)
    rehearsal = ck.rehearse(way, x, out)
    reads = list(rehearsal.reads)
    caps = []
    for _ in range(3):
        with ck.capture(rehearsal=rehearsal) as cap:
            way(x, out)
        caps.append(cap)
    assert rehearsal.reads == reads
    out[...] = 0
    for cap in caps:
        x[...] = sim.arange(4.0) + 1
        failed(cap)
        x[...] = sim.arange(4.0)
        cap.graph.launch()
    assert out.get().tolist() == [0, 0]
    caps[0].graph.close()
    caps[1].graph.launch()
    with pytest.raises(ck.ClosedError):
        caps[0].graph.launch()


def test_a_capture_inside_reads_nothing(sim: Any) -> None:
    """A rehearsal is one capture's, not that of captures inside it."""
    x = sim.arange(4.0)

    def fn() -> float:
        return float(x[1])

    rehearsal = ck.rehearse(fn)
    with ck.capture(rehearsal=rehearsal) as outer:
        with ck.capture() as inner:
            y = x + 1
            with pytest.raises(ck.HostReadError, match='not computed yet'):
                fn()
        assert fn() == 1
    for cap in (outer, inner):
        cap.graph.launch()
    assert y.get().tolist() == [1, 2, 3, 4]
    x[1] = 3
    failed(outer)


def test_more_checks_than_can_be_numbered(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_checks, '_MOST', 3)
    x = sim.arange(4.0)

    def fn(times: int) -> None:
        for i in range(times):
            float(x[i])

    rehearsed(fn, 3)
    rehearsal = ck.rehearse(fn, 4)
    with unchanged(sim):
        with pytest.raises(ck.HostReadError, match='up to 3 host reads'), ck.capture(rehearsal=rehearsal):
            fn(4)


# -- lanes, streams, draws, seams ---------------------------------------------------------------------------------


@pytest.mark.parametrize('sim', range(2), indirect=True)
def test_open_lanes_at_a_read(sim: Any) -> None:
    """Strict: refused, and said so. Adapting: joined."""
    x, stream = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)

    def fn() -> Any:
        here = sim.cuda.get_current_stream()
        stream.wait_event(here.record())
        with stream:
            y = x * 2
        n = float(x.sum())
        here.wait_event(stream.record())
        return y + n

    rehearsal = ck.rehearse(fn)
    with unchanged(sim):
        with pytest.raises(ck.HostReadError, match='while lanes are open'), ck.capture(rehearsal=rehearsal):
            fn()
    with ck.capture(rehearsal=rehearsal, strict=False) as cap:
        y = fn()
    for _ in range(2):
        y[...] = 0
        cap.graph.launch()
        assert y.get().tolist() == [6, 8, 10, 12]
    x[...] = x + 1
    failed(cap)


@pytest.mark.parametrize('sim', range(2), indirect=True)
@pytest.mark.parametrize('worked', [True, False])
def test_a_read_on_a_lane(sim: Any, worked: bool) -> None:
    """The lane is current before the read, and after it."""
    x, stream = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)

    def fn() -> Any:
        here = sim.cuda.get_current_stream()
        stream.wait_event(here.record())
        with stream:
            y = x * 2 if worked else x
            n = float(y.sum()) if worked else float(y[3])
            assert sim.cuda.get_current_stream() == stream
            y = y + n
        here.wait_event(stream.record())
        return y * 1

    rehearsal = ck.rehearse(fn)
    with ck.capture(rehearsal=rehearsal, strict=not worked) as cap:
        y = fn()
    for _ in range(2):
        y[...] = 0
        cap.graph.launch()
        assert same(y.get(), rehearsal.result.get())
    x[...] = x + 1
    failed(cap)


@pytest.mark.parametrize('sim', range(2), indirect=True)
def test_events_of_before_a_read(sim: Any) -> None:
    """All that they stand for lies before: waiting for them orders nothing, and costs nothing."""
    x, stream = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)

    def fn() -> Any:
        here = sim.cuda.get_current_stream()
        y = x * 2
        event = here.record()
        n = float(y[3])
        y = y + n
        stream.wait_event(event)
        stream.wait_event(here.record())
        with stream:
            y = y * 2
        here.wait_event(event)
        here.wait_event(stream.record())
        return y + 1

    rehearsal, cap, y = rehearsed(fn)
    cap.graph.launch()
    assert same(y.get(), rehearsal.result.get())
    x[3] = 0
    failed(cap)


def test_a_capture_in_a_rehearsal_is_a_capture(sim: Any) -> None:
    x = sim.arange(4.0)

    def fn() -> float:
        with ck.capture() as cap:
            y = x * 2
            with pytest.raises(ck.HostReadError):
                float(y[1])
        cap.graph.launch()
        return float(y[1])

    rehearsal = ck.rehearse(fn)
    assert rehearsal.result == 2
    assert [read.value.item() for read in rehearsal.reads] == [2]


def test_launches_on_other_streams_and_threads(sim: Any) -> None:
    x, out = sim.arange(4.0), sim.zeros(2)
    _rehearsal, cap, _result = rehearsed(way, x, out)
    stream = sim.cuda.Stream(non_blocking=True)
    x[0] = 1
    found: list[Any] = []

    def launch() -> None:
        try:
            cap.graph.launch(stream)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=launch)
    sim.cuda.Stream.null.synchronize()
    thread.start()
    thread.join()
    assert isinstance(found[0], ck.AssumptionError) and found[0].actual.item() == 7
    x[0] = 0
    out[...] = 0
    sim.cuda.Stream.null.synchronize()
    cap.graph.upload(stream)
    cap.graph.launch(stream)
    stream.synchronize()
    assert out.get().tolist() == [0, 0]


def test_draws_follow_the_generator_at_every_launch(sim: Any) -> None:
    x = sim.zeros(4)

    def fn() -> Any:
        a = sim.random.random_sample(4)
        if float(x[0]) > 0:
            return a
        return a + sim.random.random_sample(4)

    sim.random.seed(3)
    eager = [fn().get() for _ in range(4)]
    _rehearsal, cap, y = rehearsed(fn)
    sim.random.seed(3)
    for wanted in eager[:2]:
        cap.graph.launch()
        assert same(y.get(), wanted)
    after = sim.random.random_sample(4).get()
    sim.random.seed(3)
    fn(), fn()
    assert same(after, sim.random.random_sample(4).get())
    x[0] = 1
    sim.random.seed(3)
    failed(cap)
    after = sim.random.random_sample(4).get()
    sim.random.seed(3)
    fn()
    assert same(after, sim.random.random_sample(4).get()), 'what comes after the check was not drawn'


def test_seams_are_named_and_not_recorded(sim: Any) -> None:
    x = sim.eye(3)

    def fn() -> Any:
        return sim.linalg.svd(x)[1], sim.linalg.eigh(x)[0]

    rehearsal = ck.rehearse(fn)
    assert rehearsal.seams == ['cupy.linalg.svd', 'cupy.linalg.eigh']
    with unchanged(sim), pytest.raises(ck.UnsupportedCallError, match=r'cupy\.linalg\.svd\(\)'):
        with ck.capture(rehearsal=rehearsal):
            fn()


# -- the story and the graph --------------------------------------------------------------------------------------


def test_the_recording_tells_of_assumptions(sim: Any) -> None:
    x, out = sim.arange(4.0), sim.zeros(2)
    _rehearsal, cap, _result = rehearsed(way, x, out)
    (step,) = [step for step in cap.recording.steps if step.kind == 'assumed']
    assert step.nbytes == 8 and step.at == [__file__, line_of(way, 'if float'), 'way']
    assert 'float64[] at test_rehearsed_blocks.py' in step.text
    assert [s.kind for s in cap.recording.steps].count('cut') == 1
    assert cap.recording.outcome == 'good' and cap.recording.node_count > 2
    assert cap.graph.debug_dot_str().startswith('digraph')
    assert ck.Recording.from_json(cap.recording.to_json()).steps == cap.recording.steps


def test_memory_goes_back_with_the_graph(sim: Any) -> None:
    device = sim.__capturekit_simulated__
    x = sim.arange(1 << 14, dtype='f8')

    def fn() -> Any:
        y = x * 2
        return y[y > float(y[9])]

    def once() -> None:
        _rehearsal, cap, y = rehearsed(fn)
        cap.graph.launch()
        x[0] += 1 << 20
        failed(cap)
        x[0] -= 1 << 20
        del y
        cap.graph.close()

    def free() -> int:
        gc.collect()
        sim.get_default_memory_pool().free_all_blocks()
        sim.get_default_pinned_memory_pool().free_all_blocks()
        return int(device.mem_get_info()[0])

    once()
    before, graphs = free(), (len(device.graphs), len(device.executables))
    for _ in range(3):
        once()
    assert free() == before
    assert (len(device.graphs), len(device.executables)) == graphs


def test_checks_asked_for_too_late_are_taken_for_wrong(sim: Any) -> None:
    """What the device has written over can not be vouched for."""
    x, out = sim.arange(4.0), sim.zeros(2)
    _rehearsal, cap, _result = rehearsed(way, x, out)
    plan = cap.graph._state.plan
    assert plan is not None and plan.checks is not None
    for _ in range(read_checks.RING):
        cap.graph.launch()
    assert plan.checks.wait(1, 1, lambda: None) is None
    cap.graph.launch()
    error = plan.checks.wait(1, 1, lambda: None)
    assert isinstance(error, ck.AssumptionError) and 'asked for too late' in str(error)
    assert plan.checks.wait(2, 1, lambda: None) is None
    assert plan.checks.wait(1, 0, lambda: None) is None, 'nothing was asked'


# -- rehearsed blocks with work of libraries: allocations that no body of a conditional node holds, exports by DLPac --


def test_solves_after_checked_reads(cp: Any) -> None:
    """cuSOLVER records allocations from the second capture of a process on, and no body holds these."""
    matrix, b = cp.eye(3) * 2 + 0.25, cp.arange(1.0, 4.0)

    def steps(b: Any) -> Any:
        scale = float(abs(b).max())
        for _ in range(6):
            b = cp.linalg.solve(matrix, b / scale)
            if float(abs(b).max()) < 0.01:
                break
        return b

    for n in range(3):
        b += n
        wanted = steps(b).get()
        _, cap, y = rehearsed(steps, b)
        cap.graph.launch()
        assert same(y.get(), wanted)
    b *= 3
    failed(cap)


def test_an_allocation_after_a_checked_read_is_told(cp: Any) -> None:
    x, runtime = cp.arange(3.0), cp.cuda.runtime

    def allocates(x: Any) -> Any:
        y = x * 2
        if float(y.sum()) > 0:
            stream = cp.cuda.get_current_stream().ptr
            with GUARD.inside:  # as a library does it
                runtime.freeAsync(runtime.mallocAsync(512, stream), stream)
        return y

    with pytest.raises(ck.UnsupportedCallError, match=r'(?i)mem ?alloc.* behind a host read'):
        rehearsed(allocates, x)
    _, cap, y = rehearsed(lambda x: x * float(x.sum()), x)
    cap.graph.launch()
    assert y.get().tolist() == [0.0, 3.0, 6.0]


class OnTheHost:
    """An array whose values other libraries get on the host, by DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(dl_device=(1, 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_values_that_are_exported_to_the_host(cp: Any) -> None:
    x = cp.arange(1.0, 4.0)

    def scaled(x: Any) -> Any:
        return x * float(np.from_dlpack(OnTheHost(x * 2)).sum())

    rehearsal, cap, y = rehearsed(scaled, x)
    assert [read.value.tolist() for read in rehearsal.reads] == [[2.0, 4.0, 6.0]]
    cap.graph.launch()
    assert y.get().tolist() == [12.0, 24.0, 36.0]
    x *= 2
    failed(cap)
