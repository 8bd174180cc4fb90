"""The simulated device tells of calls as CUPTI does."""

from __future__ import annotations

from typing import Any

import pytest

from capturekit.model.cuda_functions import ApiCall
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Mode, Operation
from capturekit.simulated import SimulatedDevice

_O = Operation


class Listens:
    def __init__(self) -> None:
        self.idle = True
        self.heard: list[tuple[str, str, int]] = []
        self.calls: list[ApiCall] = []

    def before(self, call: ApiCall) -> None:
        self.heard.append(('before', call.function, 0))

    def after(self, call: ApiCall, code: int) -> None:
        self.heard.append(('after', call.function, code))
        self.calls.append(call)

    def worked(self, stream: int) -> bool:
        return False

    def failed(self, failure: BaseException) -> None:
        raise failure


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice(0)


def test_calls_are_told_before_and_after_with_their_codes(device: SimulatedDevice) -> None:
    source, listener = device.call_source(), Listens()
    s, e = device.stream_create(True), device.event_create()
    source.open(listener)
    device.begin_capture(s, Mode.GLOBAL)
    device.event_record(e, s)
    with pytest.raises(CudaCallError):
        device.stream_synchronize(s)
    assert source.status(s) is CaptureStatus.INVALIDATED
    source.close()
    with pytest.raises(CudaCallError):
        device.end_capture(s)
    assert listener.heard == [
        ('before', 'cudaStreamBeginCapture', 0), ('after', 'cudaStreamBeginCapture', 0),
        ('before', 'cudaEventRecord', 0), ('after', 'cudaEventRecord', 0),
        ('before', 'cudaStreamSynchronize', 0), ('after', 'cudaStreamSynchronize', 900),
    ]  # fmt: skip
    begin, record, wait = listener.calls
    assert (begin.operation, begin.stream, begin.mode) == (_O.BEGIN_CAPTURE, s, Mode.GLOBAL)
    assert (record.stream, record.event) == (s, e) and wait.operation is _O.STREAM_SYNCHRONIZE


def test_work_is_called_as_cuda_calls_it(device: SimulatedDevice) -> None:
    """A verb that calls verbs is one call."""
    source, listener = device.call_source(), Listens()
    s = device.stream_create(True)
    source.open(listener)
    device.submit(s, lambda: None, 'work', 'kernel')
    for kind in ('memcpy', 'memAlloc'):
        device.submit(s, lambda: None, 'work', kind)
    device.unsafe_call('profilerStart')
    device.legacy_call('memcpy')
    device.launch_host_func(s, lambda: device.unsafe_call('malloc'))
    source.close()
    assert [(call.function, call.operation) for call in listener.calls] == [
        ('cuLaunchKernel', _O.WORK), ('cudaMemcpyAsync', _O.WORK), ('cudaMallocAsync', _O.MALLOC_ASYNC),
        ('cudaProfilerStart', _O.UNSAFE), ('cudaMemcpy', _O.LEGACY_WORK), ('cudaLaunchHostFunc', _O.LAUNCH_HOST_FUNC),
    ]  # fmt: skip


def test_the_source_s_own_questions_are_told_to_nobody(device: SimulatedDevice) -> None:
    source, listener = device.call_source(), Listens()
    blocking, other = device.stream_create(False), device.stream_create(True)
    source.open(listener)
    assert (source.blocking(blocking), source.blocking(other), source.blocking(12345)) == (True, False, False)
    assert (source.status(12345), source.libraries()) == (None, ())
    source.close()
    source.close()
    assert listener.heard == [] and 'stream_flags' not in vars(device)


def test_the_stand_in_is_named(sim: Any) -> None:
    device, listener = sim.__capturekit_simulated__, Listens()
    source = device.call_source()
    said: list[tuple[str, ...]] = []
    listener.before = lambda _call: said.append(source.libraries())  # type: ignore[method-assign]
    x = sim.arange(3)
    source.open(listener)
    x += 1
    source.close()
    assert said and set(said) == {('cupy',)}
