"""Measures what the driver answers to calls on one device while a stream of another is being captured.

``python -m tests.gpu.measure_devices OUT.json [PROCESSES]`` needs two GPUs. It writes cells of the same form as
``tests/data/driver_rules.json``: a capture is begun on ``origin``, a stream of device 0, one memset is recorded and
an event (``captured``); where the name says ``joined``, a stream of device 1 waits for that event and gets one memset
too. Then device 1 is made current (where the name says ``dev0 current``, it is not), the operation, the status of both
streams, and ``cudaStreamEndCapture`` with device 0 current. A process measures several operations, and one alone where
the name says ``cold``: device 1 has not been used in it. ``--list`` prints the operations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cuda.bindings import driver, nvrtc
from cuda.bindings import runtime as rt

from tests.gpu.driver_machine import _MODE, Worker, _host_function_pointer, ok

NONBLOCKING = rt.cudaStreamNonBlocking
LEGACY = rt.cudaStream_t(0)
_KIND = rt.cudaMemcpyKind
ORIGINS = ('nonblocking', 'blocking')
#: That a process may take, for all its cells.
SECONDS = 40


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


def _ptx() -> bytes:
    source = b'extern "C" __global__ void k(float* x) { x[0] = 1; }'
    program = ok(nvrtc.nvrtcCreateProgram(source, b'k.cu', 0, [], []))
    ok((*nvrtc.nvrtcCompileProgram(program, 1, [b'--gpu-architecture=compute_80']), None))
    out = b' ' * ok(nvrtc.nvrtcGetPTXSize(program))
    nvrtc.nvrtcGetPTX(program, out)
    return out


def _launch(function: Any, pointer: Any, stream: Any) -> Any:
    import ctypes

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


def _host(s: Any) -> Any:
    return rt.cudaLaunchHostFunc(s, rt.cudaHostFn_t(_host_function_pointer()), 0)


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
    'launchHostFunc(side of 1), joined': lambda b: _host(b.side),
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


def cell(name: str, mode: str, origin: str) -> dict[str, Any]:
    """Measure one cell, in this process."""
    b = Bench(name, origin == 'blocking')
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
        'origin': origin,
        'result': answer[0].name,
        'value': str(answer[1]) if len(answer) > 1 and ('Get' in name or 'Is' in name or 'Can' in name) else '',
        'status_after': status[1].name.replace('cudaStreamCaptureStatus', ''),
        'side_after': side[1].name.replace('cudaStreamCaptureStatus', '') if side[1] is not None else '',
        'end_capture': end[0].name,
        'nodes': nodes,
    }


def _apart(cells: list[list[str]]) -> list[dict[str, Any]]:
    """Measure some cells in a process of their own, and after one at which it ended, the rest in another."""
    found: list[dict[str, Any]] = []
    while len(found) < len(cells):
        command = [sys.executable, os.path.abspath(__file__), '--cells']
        given = json.dumps(cells[len(found) :])
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS)
            told, fault = done.stdout, done.stderr.strip()[-300:]
        except subprocess.TimeoutExpired as late:
            told, fault = (late.stdout or b'').decode(), f'no answer in {SECONDS} s'
        found += [json.loads(line) for line in told.splitlines() if line.startswith('{')]
        if len(found) < len(cells):
            name, mode, origin = cells[len(found)]
            found.append({'operation': name, 'mode': mode, 'origin': origin, 'error': fault})
    for name in dict.fromkeys(name for name, _mode, _origin in cells):
        print(f'{name}: {_short([one for one in found if one["operation"] == name])}', flush=True)
    return found


def _short(cells: list[dict[str, Any]]) -> str:
    """One line an operation: the answers in the order of the modes, for either origin, those that are equal once."""
    if any('error' in c for c in cells):
        return 'not measured: ' + str(next(c['error'] for c in cells if 'error' in c))[-120:].replace('\n', ' ')
    texts = [
        f'{c["result"].replace("cudaError", "").replace("StreamCapture", "")}/{c["status_after"]}/'
        f'{c["end_capture"].replace("cudaError", "").replace("StreamCapture", "")}/{c["nodes"]}'
        + (f' value {c["value"]}' if c['value'] else '')
        for c in cells
    ]
    if len(set(texts)) == 1:
        return texts[0]
    return '; '.join(f'{c["mode"][0]}{c["origin"][0]} {t}' for c, t in zip(cells, texts, strict=True))


def main() -> None:
    """Measure all cells, or those asked for."""
    arguments = sys.argv[1:]
    if arguments[:1] == ['--cells']:
        for one in json.load(sys.stdin):
            print(json.dumps(cell(*one)), flush=True)
        os._exit(0)  # contexts that a cell left in error must not end the process in their own way
    if arguments[:1] == ['--list']:
        print('\n'.join(OPERATIONS))
        return
    processes = int(arguments[1]) if len(arguments) > 1 else (os.cpu_count() or 4) // 2
    every = [[name, mode, origin] for name in OPERATIONS for mode in _MODE for origin in ORIGINS]
    warm = [one for one in every if 'cold' not in one[0]]
    size = len(warm) // processes // len(every[0]) * len(every[0]) + 6
    jobs = [[one] for one in every if 'cold' in one[0] and one[1] != 'thread_local' and one[2] == 'nonblocking']
    jobs += [warm[at : at + size] for at in range(0, len(warm), size)]
    with ThreadPoolExecutor(processes) as pool:
        cells = [one for found in pool.map(_apart, jobs) for one in found]
    about = {
        'driver_version': ok(rt.cudaDriverGetVersion()),
        'runtime_version': ok(rt.cudaRuntimeGetVersion()),
        'devices': [ok(rt.cudaGetDeviceProperties(d)).name.decode() for d in range(ok(rt.cudaGetDeviceCount()))],
        'cells': cells,
    }
    with open(arguments[0], 'w') as f:
        json.dump(about, f)
    print(len(cells), 'cells', sum('error' in c for c in cells), 'not measured')


if __name__ == '__main__':
    main()
