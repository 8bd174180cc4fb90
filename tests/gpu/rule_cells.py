"""What the driver answers to calls made while a stream is being captured: one call at a time.

One fresh capture a cell, begun on ``origin`` (blocking or not), one memset recorded, one event recorded
(``captured``); operations that name ``side`` first fork a side stream by waiting on that event and give it one
memset. Then the operation, the status of the origin, and ``cudaStreamEndCapture`` from the same thread.
``python -m tests.gpu.measure_rules`` runs all of them, in processes.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from cuda.bindings import __version__, driver, nvrtc
from cuda.bindings import runtime as rt

from tests.agreement.simulated_machine import Worker
from tests.gpu.driver_machine import _MODE, _host_function_pointer, ok
from tests.gpu.tables import calls

NONBLOCKING = rt.cudaStreamNonBlocking
LEGACY = rt.cudaStream_t(0)
PER_THREAD = rt.cudaStream_t(2)
_KIND = rt.cudaMemcpyKind
MODE_NAMES = {'Global': 'global', 'ThreadLocal': 'thread_local', 'Relaxed': 'relaxed'}


class Bench:
    """What one cell works with: fresh streams and events, and some long-lived memory."""

    shared: ClassVar[dict[str, Any]] = {}

    def __init__(self, blocking: bool, mode: str) -> None:
        self.mode = _MODE[MODE_NAMES[mode]]
        self.note = ''
        s = self.shared
        if not s:
            s['buf'] = ok(rt.cudaMalloc(1 << 16))
            s['buf2'] = ok(rt.cudaMalloc(1 << 16))
            s['pinned'] = ok(rt.cudaMallocHost(1 << 16))
            s['managed'] = ok(rt.cudaMallocManaged(1 << 16, 1))
            s['worker'] = Worker()
            s['pool'] = ok(rt.cudaDeviceGetDefaultMemPool(0))
            s['memory'] = ctypes.create_string_buffer(1 << 16)
            s['host'] = ctypes.addressof(s['memory'])
            spare = ok(rt.cudaStreamCreateWithFlags(NONBLOCKING))
            ok(rt.cudaStreamBeginCapture(spare, _MODE['relaxed']))
            ok(rt.cudaMemsetAsync(s['buf'], 0, 64, spare))
            s['graph'] = ok(rt.cudaStreamEndCapture(spare))
            s['exec'] = ok(rt.cudaGraphInstantiate(s['graph'], 0))
            s['cubin'] = _ptx()
        self.__dict__.update(s)
        self.origin = ok(rt.cudaStreamCreateWithFlags(rt.cudaStreamDefault if blocking else NONBLOCKING))
        self.side = ok(rt.cudaStreamCreateWithFlags(NONBLOCKING))
        self.free = ok(rt.cudaStreamCreateWithFlags(NONBLOCKING))
        self.free_blocking = ok(rt.cudaStreamCreateWithFlags(rt.cudaStreamDefault))
        for name in ('captured', 'outside', 'outside2', 'never', 'scratch', 'dead'):
            setattr(self, name, ok(rt.cudaEventCreate()))
        ok((*rt.cudaStreamBeginCapture(self.free, _MODE['relaxed']), None))
        ok((*rt.cudaEventRecord(self.dead, self.free), None))
        rt.cudaGraphDestroy(ok(rt.cudaStreamEndCapture(self.free)))
        ok(rt.cudaEventRecord(self.outside, self.free))
        ok(rt.cudaEventRecord(self.outside2, self.free))
        self.spare_ptr = ok(rt.cudaMalloc(1 << 12))
        self.spare_host = ok(rt.cudaMallocHost(1 << 12))
        self.spare_async = ok(rt.cudaMallocAsync(1 << 12, self.free))
        self.spare_stream = ok(rt.cudaStreamCreateWithFlags(NONBLOCKING))
        self.spare_graph = ok(rt.cudaGraphClone(self.graph))
        self.spare_exec = ok(rt.cudaGraphInstantiate(self.spare_graph, 0))
        self.spare_pool = ok(rt.cudaMemPoolCreate(_pool_props()))
        self.spare_module = ok(driver.cuModuleLoadData(self.cubin))
        ok(rt.cudaDeviceSynchronize())

    def close(self) -> None:
        """Give back what the operation left; what it destroyed itself answers with an error that is not kept."""
        rt.cudaFree(self.spare_ptr)
        rt.cudaFreeHost(self.spare_host)
        rt.cudaFreeAsync(self.spare_async, self.free)
        rt.cudaMemPoolDestroy(self.spare_pool)
        rt.cudaGraphExecDestroy(self.spare_exec)
        rt.cudaDeviceSynchronize()
        rt.cudaGetLastError()

    def relaxed(self, call: Callable[[], Any]) -> Any:
        """Make the call with this thread's capture mode exchanged to relaxed."""
        old = ok(rt.cudaThreadExchangeStreamCaptureMode(_MODE['relaxed']))
        try:
            return call()
        finally:
            ok(rt.cudaThreadExchangeStreamCaptureMode(old))

    def other(self, call: Callable[[], Any]) -> Any:
        return self.worker(call)


def _pool_props() -> Any:
    props = rt.cudaMemPoolProps()
    props.allocType = rt.cudaMemAllocationType.cudaMemAllocationTypePinned
    props.location.type = rt.cudaMemLocationType.cudaMemLocationTypeDevice
    props.location.id = 0
    return props


def _ptx() -> bytes:
    source = b'extern "C" __global__ void k(float* x) { x[0] = 1; }'
    program = ok(nvrtc.nvrtcCreateProgram(source, b'k.cu', 0, [], []))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [b'--gpu-architecture=compute_80']))
    out = b' ' * ok(nvrtc.nvrtcGetPTXSize(program))
    nvrtc.nvrtcGetPTX(program, out)
    return out


def _array_format() -> Any:
    return ok(rt.cudaCreateChannelDesc(32, 0, 0, 0, rt.cudaChannelFormatKind.cudaChannelFormatKindFloat))


def _callback(b: Bench, s: Any) -> Any:
    return rt.cudaStreamAddCallback(s, rt.cudaStreamCallback_t(_host_function_pointer()), 0, 0)


def _hostfn(s: Any) -> Any:
    return rt.cudaLaunchHostFunc(s, rt.cudaHostFn_t(_host_function_pointer()), 0)


def _allocated(b: Bench) -> Any:
    answer = rt.cudaHostAlloc(4096, 0)
    if answer[0] == rt.cudaError_t.cudaSuccess:
        rt.cudaFreeHost(answer[1])
    return answer


def _destroyed_side(b: Bench) -> Any:
    side, b.side = b.side, None  # a destroyed stream's handle must not be asked again
    return rt.cudaStreamDestroy(side)


def _merged(b: Bench) -> Any:
    """The origin waits for an event of a second capture, of which the status is noted."""
    ok((*rt.cudaStreamBeginCapture(b.free, b.mode), None))
    ok((*rt.cudaMemsetAsync(b.buf2, 0, 64, b.free), None))
    ok((*rt.cudaEventRecord(b.scratch, b.free), None))
    answer = rt.cudaStreamWaitEvent(b.origin, b.scratch, 0)
    b.note = f'second capture status: {rt.cudaStreamIsCapturing(b.free)[1].name}'
    return answer


def _joined(b: Bench) -> Any:
    ok((*rt.cudaEventRecord(b.scratch, b.side), None))
    return rt.cudaStreamWaitEvent(b.origin, b.scratch, 0)


def _copy(b: Bench, kind: str, host: str = 'host', stream: str | None = None) -> Any:
    """``H2D``, ``D2H`` or ``D2D``: synchronous, or on a stream of the bench."""
    to, source = {'H2D': (b.buf, getattr(b, host)), 'D2H': (getattr(b, host), b.buf), 'D2D': (b.buf, b.buf2)}[kind]
    direction = {
        'H2D': _KIND.cudaMemcpyHostToDevice,
        'D2H': _KIND.cudaMemcpyDeviceToHost,
        'D2D': _KIND.cudaMemcpyDeviceToDevice,
    }[kind]
    if stream is None:
        return rt.cudaMemcpy(to, source, 64, direction)
    return rt.cudaMemcpyAsync(to, source, 64, direction, LEGACY if stream == 'legacy' else getattr(b, stream))


_LOCATION = rt.cudaMemLocation()
_LOCATION.type = rt.cudaMemLocationType.cudaMemLocationTypeDevice
_LOCATION.id = 0
_WARP = rt.cudaDeviceAttr.cudaDevAttrWarpSize


def _extent() -> Any:
    e = rt.cudaExtent()
    e.width, e.height, e.depth = 16, 16, 4
    return e


def _register(b: Bench) -> Any:
    buffer = ctypes.create_string_buffer(1 << 14)
    address = (ctypes.addressof(buffer) + 4095) // 4096 * 4096
    answer = rt.cudaHostRegister(address, 4096, 0)
    if answer[0] == rt.cudaError_t.cudaSuccess:
        rt.cudaHostUnregister(address)
    return answer


def _blocking_side(b: Bench) -> Any:
    ok((*rt.cudaStreamWaitEvent(b.free_blocking, b.captured, 0), None))
    return rt.cudaMemsetAsync(b.buf, 0, 64, LEGACY)


OPERATIONS = calls(Path(__file__).with_name('cells.txt'), 'one device', globals())

#: What may end its process, or leave something behind in it that the next cell would meet.
_RISKY = re.compile(
    r'(profiler|deviceSet|streamDestroy|graphExecDestroy|memPoolDestroy|driver(Ctx|Module)|hostRegister|endCapture'
    r'|deviceSynchronize|beginCapture|eventDestroy|streamAddCallback).*|.*(\[merge\]|blocking side captured)'
)


def risky(name: str) -> bool:
    """Whether a call is measured in a process of its own."""
    return _RISKY.fullmatch(name) is not None


def machine() -> dict[str, Any]:
    """What is measured here: the device, the driver, CUDA."""
    return {
        'device': ok(rt.cudaGetDeviceProperties(0)).name.decode(),
        'driver': _driver(),
        'driver_version': ok(rt.cudaDriverGetVersion()),
        'runtime_version': ok(rt.cudaRuntimeGetVersion()),
        'cuda_bindings': __version__,
    }


def _driver() -> str:
    """The driver's own number, as ``580.159.04``; CUDA tells only the CUDA that it is for."""
    with suppress(OSError), open('/proc/driver/nvidia/version', encoding='utf-8') as file:
        found = re.search(r'\b\d{3,}\.\d+(\.\d+)?\b', file.read())
        if found:
            return found[0]
    with suppress(OSError, subprocess.SubprocessError):
        ask = ['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader']
        return subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True).stdout.split()[0]
    return 'unknown'


def cell(name: str, mode: str, blocking: bool) -> dict[str, Any]:
    """Measure one cell.

    Raises:
        RuntimeError: what comes before the call failed: this process can measure no more.
    """
    b = Bench(blocking, mode)
    ok((*rt.cudaStreamBeginCapture(b.origin, b.mode), None))
    ok((*rt.cudaMemsetAsync(b.buf, 0, 64, b.origin), None))
    ok((*rt.cudaEventRecord(b.captured, b.origin), None))
    if 'side' in name and 'blocking side' not in name:
        ok((*rt.cudaStreamWaitEvent(b.side, b.captured, 0), None))
        ok((*rt.cudaMemsetAsync(b.buf2, 0, 64, b.side), None))
    answer = OPERATIONS[name](b)
    status = rt.cudaStreamIsCapturing(b.origin)
    end = rt.cudaStreamEndCapture(b.origin)
    nodes = None
    if end[0] == rt.cudaError_t.cudaSuccess and end[1]:
        nodes = int(ok(rt.cudaGraphGetNodes(end[1]))[1])
        rt.cudaGraphDestroy(end[1])
    for s in (b.side, b.free, b.free_blocking, PER_THREAD):
        if s is not None and rt.cudaStreamIsCapturing(s)[1] != rt.cudaStreamCaptureStatus.cudaStreamCaptureStatusNone:
            rt.cudaStreamEndCapture(s)
    b.close()
    return {
        'operation': name,
        'mode': mode,
        'origin': 'blocking' if blocking else 'nonblocking',
        'result': answer[0].name,
        'status_after': status[1].name.replace('cudaStreamCaptureStatus', ''),
        'end_capture': end[0].name,
        'nodes': nodes,
        'note': b.note,
    }
