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
from typing import Any

from cuda.bindings import driver
from cuda.bindings import runtime as rt

from tests import measured
from tests.gpu import measure_rules, rule_cells
from tests.gpu.driver_machine import _MODE, Worker, ok
from tests.gpu.rule_cells import _KIND, LEGACY, NONBLOCKING, _hostfn, _ptx

#: The file that is compared with, and what it says of itself.
AGAINST = [measured.DATA / 'driver_devices.json']
ABOUT = (
    'Answers of the driver to calls on device 1 (or 0, where the name says dev0 current) while a stream of device 0 is '
    'captured: tests/gpu/measure_devices.py. {devices}, {date}.'
)


class Bench:
    """What one cell works with: streams, events and memory of two devices."""

    def __init__(self, name: str, blocking: bool) -> None:
        self.buf: list[Any] = []
        self.spare: list[Any] = []
        self.free: list[Any] = []
        self.outside: list[Any] = []
        self.scratch: list[Any] = []
        self.function: list[Any] = []
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


OPERATIONS: dict[str, Callable[[Bench], Any]] = {
    'nothing': lambda b: rt.cudaSetDevice(1),
    'waitEvent(side of 1, captured) [fork]': lambda b: rt.cudaStreamWaitEvent(b.side, b.captured, 0),
    'waitEvent(side of 1, captured) [fork], dev0 current': lambda b: rt.cudaStreamWaitEvent(b.side, b.captured, 0),
    'waitEvent(origin, event of side) [join], joined': _join_back,
    'waitEvent(origin, event of side) [join], joined, dev0 current': _join_back,
    'eventRecord(event of 0, side of 1), joined': _join_by_event_of_0,
    'eventRecord(event of 0, free of 1)': lambda b: rt.cudaEventRecord(b.scratch[0], b.free[1]),
    'waitEvent(side of 1, event of 1 outside), joined': lambda b: rt.cudaStreamWaitEvent(b.side, b.outside[1], 0),
    'memsetAsync(side of 1), joined': lambda b: rt.cudaMemsetAsync(b.buf[1], 0, 64, b.side),
    'memsetAsync(side of 1), joined, dev0 current': lambda b: rt.cudaMemsetAsync(b.buf[1], 0, 64, b.side),
    'memsetAsync(side of 1, memory of 0), joined': lambda b: rt.cudaMemsetAsync(b.buf[0], 0, 64, b.side),
    'memsetAsync(side of 1, memory of 0), joined, peers on': lambda b: rt.cudaMemsetAsync(b.buf[0], 0, 64, b.side),
    'memsetAsync(origin), dev1 current': lambda b: rt.cudaMemsetAsync(b.buf[0], 0, 64, b.origin),
    'memsetAsync(free of 1)': lambda b: rt.cudaMemsetAsync(b.buf[1], 0, 64, b.free[1]),
    'memsetAsync(legacy of 1)': lambda b: rt.cudaMemsetAsync(b.buf[1], 0, 64, LEGACY),
    'memsetAsync(legacy of 1), joined': lambda b: rt.cudaMemsetAsync(b.buf[1], 0, 64, LEGACY),
    'memsetAsync(legacy of 1), joined, blocking side': lambda b: rt.cudaMemsetAsync(b.buf[1], 0, 64, LEGACY),
    'memsetAsync(legacy of 0), joined, blocking side, dev0 current': lambda b: rt.cudaMemsetAsync(
        b.buf[0], 0, 64, LEGACY
    ),
    'memset sync of 1': lambda b: rt.cudaMemset(b.buf[1], 0, 64),
    'memset sync of 1, joined': lambda b: rt.cudaMemset(b.buf[1], 0, 64),
    'memset sync of 1, joined, blocking side': lambda b: rt.cudaMemset(b.buf[1], 0, 64),
    'kernel(side of 1), joined': lambda b: _launch(b.function[1], b.buf[1], b.side),
    'kernel(side of 1), joined, dev0 current': lambda b: _launch(b.function[1], b.buf[1], b.side),
    'kernel of 0 (side of 1), joined': lambda b: _launch(b.function[0], b.buf[1], b.side),
    'kernel of 0 (side of 1), joined, dev0 current': lambda b: _launch(b.function[0], b.buf[0], b.side),
    'kernel of 1 (origin)': lambda b: _launch(b.function[1], b.buf[1], b.origin),
    'kernel (legacy of 1)': lambda b: _launch(b.function[1], b.buf[1], 0),
    'kernel (legacy of 1), joined': lambda b: _launch(b.function[1], b.buf[1], 0),
    'memcpyPeerAsync(origin)': lambda b: rt.cudaMemcpyPeerAsync(b.buf[1], 1, b.buf[0], 0, 64, b.origin),
    'memcpyPeerAsync(origin), peers on': lambda b: rt.cudaMemcpyPeerAsync(b.buf[1], 1, b.buf[0], 0, 64, b.origin),
    'memcpyPeerAsync(origin), peers on, dev0 current': lambda b: rt.cudaMemcpyPeerAsync(
        b.buf[1], 1, b.buf[0], 0, 64, b.origin
    ),
    'memcpyPeerAsync(side of 1), joined': lambda b: rt.cudaMemcpyPeerAsync(b.buf[1], 1, b.buf[0], 0, 64, b.side),
    'memcpyPeerAsync(side of 1), joined, peers on': lambda b: rt.cudaMemcpyPeerAsync(
        b.buf[1], 1, b.buf[0], 0, 64, b.side
    ),
    'memcpyPeerAsync(free of 1)': lambda b: rt.cudaMemcpyPeerAsync(b.buf[1], 1, b.buf[0], 0, 64, b.free[1]),
    'memcpyAsync 0 to 1 (origin)': lambda b: _copy(b.buf[1], b.buf[0], b.origin),
    'memcpyAsync 0 to 1 (origin), peers on': lambda b: _copy(b.buf[1], b.buf[0], b.origin),
    'memcpyAsync 0 to 1 (origin), peers on, dev0 current': lambda b: _copy(b.buf[1], b.buf[0], b.origin),
    'memcpyAsync 0 to 1 (side of 1), joined, peers on': lambda b: _copy(b.buf[1], b.buf[0], b.side),
    'memcpyAsync 0 to 1 (side of 1), joined': lambda b: _copy(b.buf[1], b.buf[0], b.side),
    'memcpyPeer sync': lambda b: rt.cudaMemcpyPeer(b.buf[1], 1, b.buf[0], 0, 64),
    'memcpyPeer sync, joined': lambda b: rt.cudaMemcpyPeer(b.buf[1], 1, b.buf[0], 0, 64),
    'memcpyPeer sync, joined, blocking side': lambda b: rt.cudaMemcpyPeer(b.buf[1], 1, b.buf[0], 0, 64),
    'deviceCanAccessPeer': lambda b: rt.cudaDeviceCanAccessPeer(1, 0),
    'deviceEnablePeerAccess(from 1)': lambda b: rt.cudaDeviceEnablePeerAccess(0, 0),
    'deviceEnablePeerAccess(from 0), dev0 current': lambda b: rt.cudaDeviceEnablePeerAccess(1, 0),
    'deviceEnablePeerAccess(from 1), joined': lambda b: rt.cudaDeviceEnablePeerAccess(0, 0),
    'deviceEnablePeerAccess again, peers on': lambda b: rt.cudaDeviceEnablePeerAccess(0, 0),
    'deviceDisablePeerAccess, peers on': lambda b: rt.cudaDeviceDisablePeerAccess(0),
    'deviceSynchronize of 1': lambda b: rt.cudaDeviceSynchronize(),
    'deviceSynchronize of 1, joined': lambda b: rt.cudaDeviceSynchronize(),
    'deviceSynchronize of 0, joined, dev0 current': lambda b: rt.cudaDeviceSynchronize(),
    'deviceSynchronize of 1 other thread': lambda b: b.other(1, rt.cudaDeviceSynchronize),
    'deviceSynchronize of 1 other thread, joined': lambda b: b.other(1, rt.cudaDeviceSynchronize),
    'streamSynchronize(free of 1)': lambda b: rt.cudaStreamSynchronize(b.free[1]),
    'streamSynchronize(free of 1), joined': lambda b: rt.cudaStreamSynchronize(b.free[1]),
    'streamSynchronize(side of 1), joined': lambda b: rt.cudaStreamSynchronize(b.side),
    'streamSynchronize(legacy of 1)': lambda b: rt.cudaStreamSynchronize(LEGACY),
    'streamSynchronize(legacy of 1), joined': lambda b: rt.cudaStreamSynchronize(LEGACY),
    'streamSynchronize(legacy of 1), joined, blocking side': lambda b: rt.cudaStreamSynchronize(LEGACY),
    'streamQuery(free of 1)': lambda b: rt.cudaStreamQuery(b.free[1]),
    'eventSynchronize(outside of 1)': lambda b: rt.cudaEventSynchronize(b.outside[1]),
    'eventQuery(outside of 1)': lambda b: rt.cudaEventQuery(b.outside[1]),
    'eventRecord(legacy of 1)': lambda b: rt.cudaEventRecord(b.scratch[1], LEGACY),
    'waitEvent(legacy of 1, captured)': lambda b: rt.cudaStreamWaitEvent(LEGACY, b.captured, 0),
    'streamGetFlags(side of 1), joined': lambda b: rt.cudaStreamGetFlags(b.side),
    'streamGetPriority(side of 1), joined': lambda b: rt.cudaStreamGetPriority(b.side),
    'streamGetFlags(free of 1)': lambda b: rt.cudaStreamGetFlags(b.free[1]),
    'streamGetDevice(side of 1), joined, dev0 current': lambda b: rt.cudaStreamGetDevice(b.side),
    'streamGetDevice(free of 1), dev0 current': lambda b: rt.cudaStreamGetDevice(b.free[1]),
    'streamIsCapturing(legacy of 1)': lambda b: rt.cudaStreamIsCapturing(LEGACY),
    'streamIsCapturing(legacy of 1), joined, blocking side': lambda b: rt.cudaStreamIsCapturing(LEGACY),
    'streamIsCapturing(side of 1), joined, dev0 current': lambda b: rt.cudaStreamIsCapturing(b.side),
    'streamIsCapturing(origin)': lambda b: rt.cudaStreamIsCapturing(b.origin),
    'streamCreate on 1': lambda b: rt.cudaStreamCreateWithFlags(NONBLOCKING),
    'streamDestroy(free of 1)': lambda b: rt.cudaStreamDestroy(b.free[1]),
    'eventCreate on 1': lambda b: rt.cudaEventCreate(),
    'malloc on 1': lambda b: rt.cudaMalloc(4096),
    'malloc on 1, joined': lambda b: rt.cudaMalloc(4096),
    'malloc on 1 other thread': lambda b: b.other(1, lambda: rt.cudaMalloc(4096)),
    'free on 1': lambda b: rt.cudaFree(b.spare[1]),
    'free on 1, joined': lambda b: rt.cudaFree(b.spare[1]),
    'free on 1 other thread': lambda b: b.other(1, lambda: rt.cudaFree(b.spare[1])),
    'mallocHost with 1 current': lambda b: rt.cudaMallocHost(4096),
    'mallocAsync(side of 1), joined': lambda b: rt.cudaMallocAsync(4096, b.side),
    'mallocAsync(free of 1)': lambda b: rt.cudaMallocAsync(4096, b.free[1]),
    'launchHostFunc(side of 1), joined': lambda b: _hostfn(b.side),
    'graphInstantiate with 1 current': lambda b: rt.cudaGraphInstantiate(b.graph, 0),
    'graphLaunch(graph of 0, free of 1)': lambda b: rt.cudaGraphLaunch(b.exec, b.free[1]),
    'graphLaunch(graph of 0, side of 1), joined': lambda b: rt.cudaGraphLaunch(b.exec, b.side),
    'moduleLoadData on 1': lambda b: driver.cuModuleLoadData(_ptx()),
    'beginCapture(free of 1)': lambda b: rt.cudaStreamBeginCapture(b.free[1], _MODE['relaxed']),
    'endCapture(side of 1), joined': lambda b: rt.cudaStreamEndCapture(b.side),
    'endCapture(origin), dev1 current': lambda b: rt.cudaStreamEndCapture(b.origin),
    'memGetInfo of 1': lambda b: rt.cudaMemGetInfo(),
    'memcpy sync D2H of 1': lambda b: rt.cudaMemcpy(b.pinned, b.buf[1], 64, _KIND.cudaMemcpyDefault),
    'memcpy sync D2H of 1, joined': lambda b: rt.cudaMemcpy(b.pinned, b.buf[1], 64, _KIND.cudaMemcpyDefault),
    'setDevice(1), cold': lambda b: rt.cudaSetDevice(1),
    'malloc on 1, cold': lambda b: rt.cudaMalloc(4096),
    'streamCreate on 1, cold': lambda b: rt.cudaStreamCreateWithFlags(NONBLOCKING),
    'deviceEnablePeerAccess(from 0), cold, dev0 current': lambda b: rt.cudaDeviceEnablePeerAccess(1, 0),
}


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
