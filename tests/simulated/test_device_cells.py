"""What the driver answered on one device while a stream of another was captured, held against ledger and simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
ORIGIN, SIDE, FREE, LEGACY = 'origin', 'side', 'free', 'legacy'


#: What the simulated device does for an operation on a stream with an event.
SIMULATED: dict[Operation, Callable[[SimulatedDevice, int, int], Any]] = {
    _O.WORK: lambda d, s, e: d.submit(s, lambda: None, 'memset', 'memset'),
    _O.STREAM_SYNCHRONIZE: lambda d, s, e: d.stream_synchronize(s),
    _O.STREAM_QUERY: lambda d, s, e: d.stream_query(s),
    _O.STREAM_GET_FLAGS: lambda d, s, e: d.stream_flags(s),
    _O.STREAM_IS_CAPTURING: lambda d, s, e: d.stream_status(s),
    _O.WAIT_EVENT: lambda d, s, e: d.stream_wait_event(s, e),
    _O.EVENT_RECORD: lambda d, s, e: d.event_record(d.event_create(), s),
    _O.END_CAPTURE: lambda d, s, e: d.end_capture(s),
    _O.DEVICE_SYNCHRONIZE: lambda d, s, e: d.device_synchronize(),
    _O.LEGACY_WORK: lambda d, s, e: d.legacy_call('memcpy'),
    _O.UNSAFE: lambda d, s, e: d.malloc(64),
}
#: The operation and its stream, by its name without what is said of the scene. Kernels on a stream of another device
#: than the current one, which the driver lets through, CuPy does not launch.
CALLS: dict[str, tuple[Operation, str]] = {
    'memsetAsync(side of 1)': (_O.WORK, SIDE), 'memsetAsync(origin)': (_O.WORK, ORIGIN),
    'memsetAsync(free of 1)': (_O.WORK, FREE), 'memsetAsync(legacy of 1)': (_O.WORK, LEGACY),
    'memsetAsync(legacy of 0)': (_O.WORK, LEGACY), 'kernel (legacy of 1)': (_O.WORK, LEGACY),
    'kernel(side of 1)': (_O.WORK, SIDE), 'memset sync of 1': (_O.LEGACY_WORK, LEGACY),
    'memcpyPeer sync': (_O.LEGACY_WORK, LEGACY), 'memcpy sync D2H of 1': (_O.LEGACY_WORK, LEGACY),
    'deviceSynchronize of 1': (_O.DEVICE_SYNCHRONIZE, ''), 'deviceSynchronize of 0': (_O.DEVICE_SYNCHRONIZE, ''),
    'deviceSynchronize of 1 other thread': (_O.DEVICE_SYNCHRONIZE, ''),
    'streamSynchronize(free of 1)': (_O.STREAM_SYNCHRONIZE, FREE),
    'streamSynchronize(side of 1)': (_O.STREAM_SYNCHRONIZE, SIDE),
    'streamSynchronize(legacy of 1)': (_O.STREAM_SYNCHRONIZE, LEGACY),
    'streamQuery(free of 1)': (_O.STREAM_QUERY, FREE),
    'waitEvent(side of 1, captured) [fork]': (_O.WAIT_EVENT, SIDE),
    'waitEvent(legacy of 1, captured)': (_O.WAIT_EVENT, LEGACY),
    'eventRecord(legacy of 1)': (_O.EVENT_RECORD, LEGACY), 'streamGetFlags(side of 1)': (_O.STREAM_GET_FLAGS, SIDE),
    'streamGetFlags(free of 1)': (_O.STREAM_GET_FLAGS, FREE),
    'streamIsCapturing(legacy of 1)': (_O.STREAM_IS_CAPTURING, LEGACY),
    'endCapture(side of 1)': (_O.END_CAPTURE, SIDE),
    'malloc on 1': (_O.UNSAFE, ''), 'malloc on 1 other thread': (_O.UNSAFE, ''),
}  # fmt: skip
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
    name, (operation, stream) = cell['operation'], CALLS[short(cell['operation'])]
    topology = Ledger()
    capture = topology.begin(16, Mode[cell['mode'].upper()], 0, blocking=cell['origin'] == 'blocking', device=0)
    topology.record(64, 16)
    if 'joined' in name:
        topology.wait(32, 64, blocking='blocking side' in name, device=1)
    verdict = topology.judge(
        operation,
        thread=int('other thread' in name),
        stream={ORIGIN: 16, SIDE: 32, FREE: 48, LEGACY: 0}.get(stream),
        event=64 if operation is _O.WAIT_EVENT else None,
        device=0 if 'dev0 current' in name else 1,
    )
    return verdict.answer.code.name, capture in verdict.lost


def simulated(cell: dict[str, Any]) -> tuple[str, bool]:
    """The simulated device's."""
    name, (operation, stream) = cell['operation'], CALLS[short(cell['operation'])]
    device = SimulatedDevice(0, devices=2)
    device.set_device(1)
    side, free = device.stream_create('blocking side' not in name), device.stream_create(True)
    device.set_device(0)
    origin, captured = device.stream_create(cell['origin'] != 'blocking'), device.event_create()
    device.begin_capture(origin, Mode[cell['mode'].upper()])
    device.event_record(captured, origin)
    if 'joined' in name:
        device.stream_wait_event(side, captured)

    def ask() -> str:
        device.set_device(0 if 'dev0 current' in name else 1)
        try:
            SIMULATED[operation](device, {ORIGIN: origin, SIDE: side, FREE: free}.get(stream, 0), captured)
        except CudaCallError as error:
            return getattr(error.code, 'name', str(error.code))
        return 'cudaSuccess'

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask).result() if 'other thread' in name else ask()
    return answer, device.stream_status(origin) is CaptureStatus.INVALIDATED


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('model', [ledger, simulated])
def test_every_cell_is_answered_as_the_driver_did(model: Callable[..., Any], name: str) -> None:
    for cell in CELLS[name]:
        measured = cell['result'], cell['status_after'] == 'Invalidated'
        assert model(cell) == measured, (cell['mode'], cell['origin'])
