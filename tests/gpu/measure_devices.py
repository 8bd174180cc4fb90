"""Measures what the driver answers to calls on one device while a stream of another is being captured.

``python -m tests.gpu.measure_devices --out FILE`` needs two GPUs. It measures as ``tests.gpu.measure_rules`` does, and
compares with ``tests/data/driver_devices.json``: a capture is begun on ``origin``, a stream of device 0, one memset is
recorded and an event (``captured``); where the name says ``joined``, a stream of device 1 waits for that event and gets
one memset too. Then device 1 is made current (where the name says ``dev0 current``, it is not), the operation, the
status of both streams, and ``cudaStreamEndCapture`` with device 0 current. An operation has a process for itself where
the name says ``cold``: device 1 has not been used in it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from cuda.bindings import runtime as rt

from tests import measured
from tests.agreement.simulated_machine import Worker
from tests.gpu import measure_rules, rule_cells
from tests.gpu.driver_machine import _MODE, ok
from tests.gpu.rule_cells import _KIND, LEGACY, NONBLOCKING, _hostfn, _ptx  # noqa: F401, which the cells name
from tests.gpu.tables import calls

#: The file that is compared with, and what it says of itself.
AGAINST = [measured.DATA / 'driver_devices.json']
ABOUT = (
    'Answers of the driver to calls on device 1 (or 0, where the name says dev0 current) while a stream of device 0 is '
    'captured: tests/gpu/measure_devices.py. {devices}, {date}.'
)


class Bench:
    """What one cell works with: streams, events and memory of two devices."""

    def __init__(self, name: str, blocking: bool) -> None:
        self.buf, self.spare, self.free = [], [], []
        self.outside, self.scratch, self.function = [], [], []
        self.worker = Worker()
        for d in (0, 1):
            if d == 1 and 'cold' in name:
                break
            ok((*rt.cudaSetDevice(d), None))
            self.buf.append(ok(rt.cudaMalloc(1 << 16)))
            self.spare.append(ok(rt.cudaMalloc(1 << 16)))
            self.free.append(ok(rt.cudaStreamCreateWithFlags(NONBLOCKING)))
            self.outside.append(ok(rt.cudaEventCreate()))
            self.scratch.append(ok(rt.cudaEventCreate()))
            ok((*rt.cudaEventRecord(self.outside[d], self.free[d]), None))
            self.function.append(ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(_ptx())), b'k')))
            ok((*rt.cudaDeviceSynchronize(), None))
        self.pinned = ok(rt.cudaMallocHost(1 << 16))
        if 'cold' not in name:
            ok((*rt.cudaSetDevice(1), None))
            flags = rt.cudaStreamDefault if 'blocking side' in name else NONBLOCKING
            self.side = ok(rt.cudaStreamCreateWithFlags(flags))
            self.joined = ok(rt.cudaEventCreate())
            for d in (0, 1):  # what an earlier cell has left is changed back; a refusal says that it was so
                ok((*rt.cudaSetDevice(d), None))
                rt.cudaDeviceEnablePeerAccess(1 - d, 0) if 'peers on' in name else rt.cudaDeviceDisablePeerAccess(1 - d)
                rt.cudaGetLastError()
        ok((*rt.cudaSetDevice(0), None))
        self.origin = ok(rt.cudaStreamCreateWithFlags(rt.cudaStreamDefault if blocking else NONBLOCKING))
        self.captured = ok(rt.cudaEventCreate())
        ok((*rt.cudaStreamBeginCapture(self.free[0], _MODE['relaxed']), None))
        ok((*rt.cudaMemsetAsync(self.buf[0], 0, 64, self.free[0]), None))
        self.graph = ok(rt.cudaStreamEndCapture(self.free[0]))
        self.exec = ok(rt.cudaGraphInstantiate(self.graph, 0))
        ok((*rt.cudaDeviceSynchronize(), None))

    def other(self, device: int, call: Callable[[], Any]) -> Any:
        def there() -> Any:
            ok((*rt.cudaSetDevice(device), None))
            return call()

        return self.worker(there)


def _launch(function: Any, pointer: Any, stream: Any) -> Any:
    answer = driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, int(stream), ((int(pointer),), (ctypes.c_void_p,)), 0)
    return (rt.cudaError_t(int(answer[0])),)


def _copy(dst: Any, src: Any, stream: Any) -> Any:
    return rt.cudaMemcpyAsync(dst, src, 64, _KIND.cudaMemcpyDefault, stream)


def _join_back(b: Bench) -> Any:
    ok((*rt.cudaEventRecord(b.joined, b.side), None))
    return rt.cudaStreamWaitEvent(b.origin, b.joined, 0)


def _join_by_event_of_0(b: Bench) -> Any:
    answer = rt.cudaEventRecord(b.scratch[0], b.side)
    return answer if int(answer[0]) else rt.cudaStreamWaitEvent(b.origin, b.scratch[0], 0)


OPERATIONS = calls(Path(__file__).with_name('cells.txt'), 'two devices', globals())


def cell(name: str, mode: str, blocking: bool) -> dict[str, Any]:
    """Measure one cell, in this process."""
    b = Bench(name, blocking)
    ok((*rt.cudaStreamBeginCapture(b.origin, _MODE[mode]), None))
    ok((*rt.cudaMemsetAsync(b.buf[0], 0, 64, b.origin), None))
    ok((*rt.cudaEventRecord(b.captured, b.origin), None))
    if 'joined' in name:
        ok((*rt.cudaStreamWaitEvent(b.side, b.captured, 0), None))
        ok((*rt.cudaMemsetAsync(b.buf[1], 0, 64, b.side), None))
    if 'dev0 current' not in name and name != 'setDevice(1), cold':
        ok((*rt.cudaSetDevice(1), None))
    answer = OPERATIONS[name](b)
    if name == 'nothing' or name.startswith('setDevice'):
        answer = (answer[0],)
    status = rt.cudaStreamIsCapturing(b.origin)
    side = rt.cudaStreamIsCapturing(b.side) if 'cold' not in name else (0, None)
    if 'joined' in name and '[join]' not in name and 'event of 0, side' not in name and not int(side[0]):
        rt.cudaEventRecord(b.joined, b.side)
        rt.cudaStreamWaitEvent(b.origin, b.joined, 0)
    rt.cudaSetDevice(0)
    end = rt.cudaStreamEndCapture(b.origin)
    nodes = int(ok(rt.cudaGraphGetNodes(end[1]))[1]) if not int(end[0]) and end[1] else None
    return {
        'operation': name,
        'mode': mode,
        'origin': 'blocking' if blocking else 'nonblocking',
        'result': answer[0].name,
        'value': str(answer[1]) if len(answer) > 1 and ('Get' in name or 'Is' in name or 'Can' in name) else '',
        'status_after': status[1].name.replace('cudaStreamCaptureStatus', ''),
        'side_after': side[1].name.replace('cudaStreamCaptureStatus', '') if side[1] is not None else '',
        'end_capture': end[0].name,
        'nodes': nodes,
    }


def risky(name: str) -> bool:
    """Whether a call is measured in a process of its own: where device 1 must not have been used before."""
    return 'cold' in name


def pairs(name: str) -> list[tuple[str, str]]:
    """The modes and origins in which an operation is measured: each cold one takes a process, so fewer."""
    if risky(name):
        return [(mode, 'nonblocking') for mode in ('relaxed', 'global')]
    return [(mode, origin) for mode in _MODE for origin in ('nonblocking', 'blocking')]


def machine() -> dict[str, Any]:
    names = [ok(rt.cudaGetDeviceProperties(d)).name.decode() for d in range(ok(rt.cudaGetDeviceCount()))]
    return {**rule_cells.machine(), 'devices': names}


if __name__ == '__main__':
    sys.exit(measure_rules.main(['--cells', 'tests.gpu.measure_devices', *sys.argv[1:]]))
