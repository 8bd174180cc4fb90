"""What the driver answered on one device while a stream of another was captured, held against ledger and simulation."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import Ledger
from capturekit.model.rules import CaptureStatus, Mode, Operation
from capturekit.simulated import SimulatedDevice

DATA = json.loads((Path(__file__).parents[1] / 'data' / 'driver_devices.json').read_text())
CELLS: dict[str, list[dict[str, Any]]] = {}
for one in DATA['cells']:
    CELLS.setdefault(one['operation'], []).append(one)

_O = Operation
ORIGIN, SIDE, FREE, CAPTURED = 'origin', 'side', 'free', 'captured'


@dataclass(frozen=True)
class Call:
    """An operation for the ledger, with what it addresses; and for the simulated device."""

    operation: Operation
    simulated: Callable[[SimulatedDevice, dict[str, int]], Any]
    stream: str | int | None = None
    event: str | None = None
    elsewhere: bool = False


def _work(stream: str | int) -> Call:
    def submit(d: SimulatedDevice, w: dict[str, int]) -> Any:
        return d.submit(w[stream] if isinstance(stream, str) else stream, lambda: None, 'memset', 'memset')

    return Call(_O.WORK, submit, stream)


def _waits(stream: str | int) -> Call:
    return Call(
        _O.STREAM_SYNCHRONIZE,
        lambda d, w: d.stream_synchronize(w[stream] if isinstance(stream, str) else stream),
        stream,
    )


_SYNC = Call(_O.DEVICE_SYNCHRONIZE, lambda d, w: d.device_synchronize())
_COPY = Call(_O.LEGACY_WORK, lambda d, w: d.legacy_call('memcpy'), 0)
_ALLOCATE = Call(_O.UNSAFE, lambda d, w: d.malloc(64))

#: By the operation's name without what is said of the scene. Kernels on a stream of another device than the current
#: one, which the driver lets through, CuPy does not launch.
CALLS: dict[str, Call] = {
    'memsetAsync(side of 1)': _work(SIDE),
    'memsetAsync(origin)': _work(ORIGIN),
    'memsetAsync(free of 1)': _work(FREE),
    'memsetAsync(legacy of 1)': _work(0),
    'memsetAsync(legacy of 0)': _work(0),
    'kernel (legacy of 1)': _work(0),
    'kernel(side of 1)': _work(SIDE),
    'memset sync of 1': _COPY,
    'memcpyPeer sync': _COPY,
    'memcpy sync D2H of 1': _COPY,
    'deviceSynchronize of 1': _SYNC,
    'deviceSynchronize of 0': _SYNC,
    'deviceSynchronize of 1 other thread': Call(_SYNC.operation, _SYNC.simulated, elsewhere=True),
    'streamSynchronize(free of 1)': _waits(FREE),
    'streamSynchronize(side of 1)': _waits(SIDE),
    'streamSynchronize(legacy of 1)': _waits(0),
    'streamQuery(free of 1)': Call(_O.STREAM_QUERY, lambda d, w: d.stream_query(w[FREE]), FREE),
    'waitEvent(side of 1, captured) [fork]': Call(
        _O.WAIT_EVENT, lambda d, w: d.stream_wait_event(w[SIDE], w[CAPTURED]), SIDE, CAPTURED
    ),
    'waitEvent(legacy of 1, captured)': Call(
        _O.WAIT_EVENT, lambda d, w: d.stream_wait_event(0, w[CAPTURED]), 0, CAPTURED
    ),
    'eventRecord(legacy of 1)': Call(_O.EVENT_RECORD, lambda d, w: d.event_record(d.event_create(), 0), 0),
    'streamGetFlags(side of 1)': Call(_O.STREAM_GET_FLAGS, lambda d, w: d.stream_flags(w[SIDE]), SIDE),
    'streamGetFlags(free of 1)': Call(_O.STREAM_GET_FLAGS, lambda d, w: d.stream_flags(w[FREE]), FREE),
    'streamIsCapturing(legacy of 1)': Call(_O.STREAM_IS_CAPTURING, lambda d, w: d.stream_status(0), 0),
    'endCapture(side of 1)': Call(_O.END_CAPTURE, lambda d, w: d.end_capture(w[SIDE]), SIDE),
    'malloc on 1': _ALLOCATE,
    'malloc on 1 other thread': Call(_ALLOCATE.operation, _ALLOCATE.simulated, elsewhere=True),
}
_SAID = (', joined', ', blocking side', ', dev0 current', ', dev1 current', ', peers on')


def short(name: str) -> str:
    for words in _SAID:
        name = name.replace(words, '')
    return name


NAMES = [name for name in CELLS if short(name) in CALLS]


def test_the_cells_are_many() -> None:
    assert len(DATA['devices']) == 2
    assert len(NAMES) >= 30
    assert {short(name) for name in NAMES} == CALLS.keys()


def ledger(cell: dict[str, Any]) -> tuple[str, bool]:
    """The ledger's answer, and whether the capture is lost."""
    name, call = cell['operation'], CALLS[short(cell['operation'])]
    handles = {ORIGIN: 16, SIDE: 32, FREE: 48, CAPTURED: 64}
    topology = Ledger()
    capture = topology.begin(16, Mode[cell['mode'].upper()], 0, blocking=cell['origin'] == 'blocking', device=0)
    topology.record(64, 16)
    if 'joined' in name:
        topology.wait(32, 64, blocking='blocking side' in name, device=1)
    verdict = topology.judge(
        call.operation,
        thread=int(call.elsewhere),
        stream=handles[call.stream] if isinstance(call.stream, str) else call.stream,
        event=None if call.event is None else handles[call.event],
        device=0 if 'dev0 current' in name else 1,
    )
    return verdict.answer.code.name, capture in verdict.lost


def simulated(cell: dict[str, Any]) -> tuple[str, bool]:
    """The simulated device's."""
    name, call = cell['operation'], CALLS[short(cell['operation'])]
    device = SimulatedDevice(0, devices=2)
    device.set_device(1)
    handles = {SIDE: device.stream_create('blocking side' not in name), FREE: device.stream_create(True)}
    device.set_device(0)
    handles |= {ORIGIN: device.stream_create(cell['origin'] != 'blocking'), CAPTURED: device.event_create()}
    device.begin_capture(handles[ORIGIN], Mode[cell['mode'].upper()])
    device.event_record(handles[CAPTURED], handles[ORIGIN])
    if 'joined' in name:
        device.stream_wait_event(handles[SIDE], handles[CAPTURED])
    answer = []

    def ask() -> None:
        device.set_device(0 if 'dev0 current' in name else 1)
        try:
            call.simulated(device, handles)
            answer.append('cudaSuccess')
        except CudaCallError as error:
            answer.append(getattr(error.code, 'name', str(error.code)))

    if call.elsewhere:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    else:
        ask()
    return answer[0], device.stream_status(handles[ORIGIN]) is CaptureStatus.INVALIDATED


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('model', [ledger, simulated])
def test_every_cell_is_answered_as_the_driver_did(model: Callable[..., Any], name: str) -> None:
    for cell in CELLS[name]:
        measured = cell['result'], cell['status_after'] == 'Invalidated'
        assert model(cell) == measured, (cell['mode'], cell['origin'])
