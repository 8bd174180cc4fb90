"""Adapting mode on the GPU, row by row of the design's table: equal to the eager run, and each change is noted.

Each program is written as people write it eagerly. It runs once eagerly with all its streams being one, so that its
own races don't count, and once recorded with ``strict=False`` on streams of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.gpu.world import status, world

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

N = 4096
rt = cp.cuda.runtime
null = cp.cuda.Stream.null


def sync_lane(x: Any, s: Any, _t: Any) -> Any:
    s.wait_event(cp.cuda.get_current_stream().record())
    with s:
        b = slowly(x * 2)
    s.synchronize()
    return b + 1


def sync_lane_by_handle(x: Any, s: Any, _t: Any) -> Any:
    s.wait_event(cp.cuda.get_current_stream().record())
    with s:
        b = slowly(x * 2)
    rt.streamSynchronize(s.ptr)
    return b + 1


def sync_origin(x: Any, s: Any, _t: Any) -> Any:
    a = slowly(x + 1)
    cp.cuda.get_current_stream().synchronize()
    with s:
        b = a * 2
    s.synchronize()
    return b


def sync_event(x: Any, s: Any, t: Any) -> Any:
    s.wait_event(cp.cuda.get_current_stream().record())
    with s:
        b = slowly(x * 2)
    done = s.record()
    done.synchronize()
    with t:
        c = b * 3
    t.record().synchronize()
    return b + c


def sync_device(x: Any, s: Any, t: Any) -> Any:
    with s:
        b = slowly(x * 2)
    with t:
        c = slowly(x * 3)
    cp.cuda.Device().synchronize()
    with s:
        d = b + c
    with t:
        e = b - c
    rt.deviceSynchronize()
    return d * e


def sync_null(x: Any, s: Any, t: Any) -> Any:
    with s:
        b = slowly(x * 2)
    null.synchronize()
    with t:
        c = b * 3
    null.synchronize()
    return b + c


def never_entered(x: Any, s: Any, t: Any) -> Any:
    a = slowly(x + 1)
    with s:
        b = slowly(a * 2)
    t.use()
    c = slowly(a * 3)
    s.use()
    b += 1
    b_done = s.record()
    t.wait_event(b_done)
    t.use()
    return b + c


def never_entered_by_handle(x: Any, s: Any, _t: Any) -> Any:
    a = slowly(x + 1)
    b = cp.empty_like(a)
    rt.memcpyAsync(b.data.ptr, a.data.ptr, a.nbytes, rt.memcpyDeviceToDevice, s.ptr)
    rt.streamSynchronize(s.ptr)
    return b * 2


def never_entered_pointer_copy(x: Any, s: Any, _t: Any) -> Any:
    a = slowly(x + 1)
    b = cp.empty_like(a)
    b.data.copy_from_device_async(a.data, a.nbytes, s)
    s.synchronize()
    return b * 2


def left_unjoined(x: Any, s: Any, t: Any) -> Any:
    out = cp.zeros(3 * N)
    for i, stream in enumerate((s, t)):
        stream.wait_event(cp.cuda.get_current_stream().record())
        with stream:
            out[i * N : (i + 1) * N] = slowly(x * (i + 2))
    out[2 * N :] = x
    return out


def legacy_work(x: Any, s: Any, _t: Any) -> Any:
    a = slowly(x + 1)
    with s:
        b = a * 2
    s.synchronize()
    with null:
        b += 1
        c = b * b
    return c + 1


def legacy_use(x: Any, _s: Any, _t: Any) -> Any:
    main = cp.cuda.get_current_stream()
    null.use()
    a = slowly(x + 1)
    main.use()
    return a * 2


def legacy_events(x: Any, s: Any, _t: Any) -> Any:
    a = slowly(x + 1)
    with s:
        b = slowly(x * 2)
    null.wait_event(s.record())
    s.wait_event(null.record())
    with s:
        c = a + b
    s.synchronize()
    return c


def constants(x: Any, s: Any, _t: Any) -> Any:
    weights = cp.array([1.0, 2.0, 3.0])
    a = x[[1, 2, 3]] * weights
    with s:
        b = x[np.array([4, 5, 6])] * cp.asarray(np.ones(3) * 4)
    s.synchronize()
    return a + b


def slowly(a: Any) -> Any:
    """Enough work that what does not wait for it would see it unfinished."""
    for _ in range(20):
        a = cp.sqrt(a * a + 1)
    return a


#: program -> (pieces of the notes it must leave, in any order; kind of note)
PROGRAMS: dict[Callable[..., Any], tuple[str, list[str]]] = {
    sync_lane: ('adapted', ['Stream.synchronize() of lane 1 became a join']),
    sync_lane_by_handle: ('adapted', ['streamSynchronize() of lane 1 became a join']),
    sync_origin: ('adapted', ['Stream.synchronize() of lane 0 became a join', 'was forked from lane 0']),
    sync_event: ('adapted', ['Event.synchronize() became a join', 'was forked from lane']),
    sync_device: ('adapted', ['Device.synchronize() became a join of all lanes', 'deviceSynchronize() became a join']),
    sync_null: ('adapted', ['Stream.synchronize() became a join of all lanes', 'was forked from lane']),
    never_entered: ('adapted', ['was forked from lane 0']),
    never_entered_by_handle: ('adapted', ['was forked from lane 0', 'became a join']),
    never_entered_pointer_copy: ('adapted', ['was forked from lane 0', 'became a join']),
    left_unjoined: ('adapted', ['lane 1, left unjoined, was joined', 'lane 2, left unjoined, was joined']),
    legacy_work: ('adapted', ['of the legacy stream was moved to lane']),
    legacy_use: ('adapted', ['of the legacy stream was moved to lane 0']),
    legacy_events: ('adapted', ['Stream.wait_event() of the legacy stream was moved', 'Stream.record() on the legacy']),
    constants: ('constant', ['cupy.array(): float64 (3,) uploaded', 'index: int64 (3,) uploaded']),
}


def eager(program: Callable[..., Any], x: Any) -> Any:
    """The program on one stream, so in the order in which it is written; it is a blocking one, so in order with the
    legacy stream, too."""
    one = cp.cuda.Stream()
    cp.cuda.Device().synchronize()
    before = cp.cuda.get_current_stream()
    with one:
        result = program(x, one, one)
    before.use()
    cp.cuda.Device().synchronize()
    return result.get()


@pytest.mark.parametrize('program', PROGRAMS, ids=lambda p: p.__name__)
def test_equal_to_the_eager_run_and_noted(program: Callable[..., Any]) -> None:
    kind, notes = PROGRAMS[program]
    x = cp.linspace(0, 1, N)
    want = eager(program, x)
    s, t = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    before = world()
    with ck.capture(strict=False) as cap:
        result = program(x, s, t)
        assert status(cap.stream) == 'Active'
    assert world() == before
    for factor in (1, 3, 0.5):
        x *= factor
        if factor != 1:
            want = eager(program, x)
        cap.graph.launch()
        np.testing.assert_array_equal(result.get(), want)
    found = [step for step in cap.recording.steps if step.kind == kind]
    for text in notes:
        assert any(text in step.text for step in found), [step.text for step in found]
    for step in found:
        if 'left unjoined' not in step.text:
            assert step.at is not None
            assert step.at[0] == __file__
            assert step.at[2] == program.__name__


def test_constants_are_noted_in_strict_mode_as_well() -> None:
    x = cp.linspace(0, 1, N)
    with ck.capture() as cap:
        result = x[[1, 2]] * cp.array([2.0, 4.0])
    cap.graph.launch()
    assert result.tolist() == (x[1:3] * cp.asarray([2.0, 4.0])).tolist()
    assert len(cap.recording.constants) == 2
    assert cap.recording.adaptations == []
