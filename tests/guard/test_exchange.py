"""Arrays of other libraries: CuPy waits for the stream that they name, from compiled code, too."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from capturekit.guard.lint_guard import Witness
from tests.guard.manual import by_hand


class Other:
    """An array of another library: the memory of ``array``, and the stream that its work is on."""

    def __init__(self, array: Any, stream: int | None) -> None:
        self._array = array
        self._stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._array.__cuda_array_interface__, 'stream': self._stream, 'version': 3}


#: By what compiled code an operand is met; each gives twice the array, if the other is the same.
USES = [
    'x + cp.asarray(other)', 'x + other', 'cp.add(other, x)', 'cp.add(x, other)',
    'cp.add(x, other, out=cp.empty_like(x))',
]  # fmt: skip


def used(use: str, cp: Any, x: Any, array: Any, stream: int | None) -> Any:
    return eval(use, {'cp': cp, 'x': x, 'other': Other(array, stream)})


@pytest.mark.parametrize('use', USES)
def test_refused_and_the_capture_goes_on(cp: Any, use: str) -> None:
    x = cp.arange(4.0)
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with pytest.raises(ck.SynchronizationError, match='an array of another library') as found:
            used(use, cp, x, x, side.ptr)
        assert cap.stream.is_capturing()
        cap.join(side)
        y = used(use, cp, x, x, cap.stream.ptr)  # on its own stream all is in order
    assert not cap.recording.adaptations
    assert found.value.lane == 1
    assert 'with side:' in found.value.remedy
    cap.graph.launch()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


@pytest.mark.parametrize('use', USES)
def test_a_linted_script_is_captured_as_ever(cp: Any, use: str) -> None:
    witness = Witness(GUARD, lambda *told: pytest.fail(str(told)))
    witness.open()
    with closing(witness), ck.capture() as cap:
        used(use, cp, cp.arange(4.0), cp.arange(4.0), cap.stream.ptr)


@pytest.mark.parametrize('use', USES)
def test_adapted_it_is_a_join(cp: Any, use: str) -> None:
    x, z = cp.arange(4.0), cp.zeros(4)
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture(strict=False) as cap:
        side.wait_event(cap.stream.record())
        with side:
            z[...] = x
        y = used(use, cp, x, z, side.ptr)
    assert any('became a join of lane 1' in step.text for step in cap.recording.adaptations)
    assert not cap.graph.races().certain
    for _ in range(2):
        z.fill(0)
        cap.graph.launch()
        np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


@pytest.mark.parametrize('use', USES)
def test_a_stream_outside_is_waited_for(cp: Any, use: str) -> None:
    x, z = cp.arange(4.0), cp.zeros(4)
    cp.cuda.Stream.null.synchronize()
    outside = cp.cuda.Stream(non_blocking=True)
    with outside:
        z[...] = cp.arange(4.0)
    with ck.capture() as cap:
        y = used(use, cp, x, z, outside.ptr)
        w = used(use, cp, x, x, 1)
    cap.graph.launch()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)
    np.testing.assert_array_equal(w.get(), np.arange(4.0) * 2)


def test_by_hand_the_stream_that_is_captured_is_no_fault(cp: Any) -> None:
    """CuPy's own tests: an interface that names the current stream, whichever that is."""
    x, side = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    with by_hand(cp, non_blocking=False) as made:
        y = x + Other(x, cp.cuda.get_current_stream().ptr)
        side.wait_event(made.stream.record())
        with pytest.raises(ck.SynchronizationError) as found:
            x + Other(x, side.ptr)
        made.stream.wait_event(side.record())
    assert 'cap.' not in found.value.remedy
    made.launch()
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
