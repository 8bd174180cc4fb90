"""Arrays of other libraries: CuPy waits for the stream that they name, from compiled code, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD, watch
from capturekit.model.rules import CaptureStatus


class Other:
    """An array of another library: the memory of ``array``, and the stream that its work is on."""

    def __init__(self, array: Any, stream: int | None) -> None:
        self._array = array
        self._stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._array.__cuda_array_interface__, 'stream': self._stream, 'version': 3}


#: By what compiled code an operand is met; each gives twice the array, if the other is the same.
USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    'asarray': lambda cp, x, obj: x + cp.asarray(obj),
    'operator': lambda cp, x, obj: x + obj,
    'reversed operator': lambda cp, x, obj: obj.__cuda_array_interface__ and cp.add(obj, x),
    'ufunc': lambda cp, x, obj: cp.add(x, obj),
    'in place': lambda cp, x, obj: cp.add(x, obj, out=cp.empty_like(x)),
}


@pytest.mark.parametrize('use', USES)
def test_refused_and_the_capture_goes_on(cp: Any, use: str) -> None:
    x = cp.arange(4.0)
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with pytest.raises(ck.SynchronizationError, match='an array of another library') as found:
            USES[use](cp, x, Other(x, side.ptr))
        assert cap.stream.is_capturing()
        cap.join(side)
        y = x * 2
    assert found.value.lane == 1
    assert 'with side:' in found.value.remedy
    cap.graph.launch()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


@pytest.mark.parametrize('use', USES)
def test_adapted_it_is_a_join(cp: Any, use: str) -> None:
    x = cp.arange(4.0)
    z = cp.zeros(4)
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture(strict=False) as cap:
        side.wait_event(cap.stream.record())
        with side:
            z[...] = x
        y = USES[use](cp, x, Other(z, side.ptr))
    assert any('became a join of lane 1' in step.text for step in cap.recording.adaptations)
    assert not cap.graph.races().certain
    for _ in range(2):
        z.fill(0)
        cap.graph.launch()
        np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


@pytest.mark.parametrize('use', USES)
@pytest.mark.parametrize('strict', [True, False])
def test_on_its_own_stream_all_is_in_order(cp: Any, use: str, strict: bool) -> None:
    x = cp.arange(4.0)
    with ck.capture(strict=strict) as cap:
        y = USES[use](cp, x, Other(x, cap.stream.ptr))
    assert not cap.recording.adaptations
    cap.graph.launch()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


@pytest.mark.parametrize('use', USES)
def test_a_stream_outside_is_waited_for(cp: Any, use: str) -> None:
    x = cp.arange(4.0)
    z = cp.zeros(4)
    cp.cuda.Stream.null.synchronize()
    outside = cp.cuda.Stream(non_blocking=True)
    with outside:
        z[...] = cp.arange(4.0)
    with ck.capture() as cap:
        y = USES[use](cp, x, Other(z, outside.ptr))
        w = USES[use](cp, x, Other(x, 1))
    cap.graph.launch()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)
    np.testing.assert_array_equal(w.get(), np.arange(4.0) * 2)


def test_by_hand_the_stream_that_is_captured_is_no_fault(cp: Any) -> None:
    """CuPy's own tests: an interface that names the current stream, whichever that is."""
    x = cp.arange(4.0)
    s, side = cp.cuda.Stream(), cp.cuda.Stream(non_blocking=True)
    with watch():
        with s:
            s.begin_capture()
            y = x + Other(x, cp.cuda.get_current_stream().ptr)
            side.wait_event(s.record())
            with pytest.raises(ck.SynchronizationError) as found:
                x + Other(x, side.ptr)
            s.wait_event(side.record())
            assert GUARD.state.platform.device.stream_status(s.ptr) is CaptureStatus.ACTIVE
            graph = s.end_capture()
        assert 'cap.' not in found.value.remedy
    graph.launch(s)
    s.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def test_the_class_stays_a_class_meanwhile(cp: Any) -> None:
    x = cp.arange(4.0)
    plain = cp.cuda.memory.UnownedMemory
    made = plain(x.data.ptr, 32, x, 0)
    with ck.capture() as cap:
        assert isinstance(made, cp.cuda.memory.UnownedMemory)
        assert not isinstance(x.data.mem, cp.cuda.memory.UnownedMemory)
        assert isinstance(cp.cuda.memory.UnownedMemory(x.data.ptr, 32, owner=x, device_id=0), plain)
        assert cp._util.CUDA_ARRAY_INTERFACE_SYNC
        x * 2
    assert cp.cuda.memory.UnownedMemory is plain
    assert cp._util.CUDA_ARRAY_INTERFACE_SYNC is True
    cap.graph.close()
