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
from typing import Any, ClassVar

from cuda.bindings import __version__, driver, nvrtc
from cuda.bindings import runtime as rt

from tests.gpu.driver_machine import _MODE, Worker, _host_function_pointer, ok

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
        self.captured = ok(rt.cudaEventCreate())
        self.outside = ok(rt.cudaEventCreate())
        self.outside2 = ok(rt.cudaEventCreate())
        self.never = ok(rt.cudaEventCreate())
        self.scratch = ok(rt.cudaEventCreate())
        self.dead = ok(rt.cudaEventCreate())
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
        for undo in (
            lambda: rt.cudaFree(self.spare_ptr),
            lambda: rt.cudaFreeHost(self.spare_host),
            lambda: rt.cudaFreeAsync(self.spare_async, self.free),
            lambda: rt.cudaMemPoolDestroy(self.spare_pool),
            lambda: rt.cudaGraphExecDestroy(self.spare_exec),
            lambda: rt.cudaDeviceSynchronize(),
        ):
            undo()
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

OPERATIONS: dict[str, Callable[[Bench], Any]] = {
    'streamSynchronize(origin)': lambda b: rt.cudaStreamSynchronize(b.origin),
    'streamQuery(origin)': lambda b: rt.cudaStreamQuery(b.origin),
    'streamSynchronize(side captured)': lambda b: rt.cudaStreamSynchronize(b.side),
    'streamQuery(side captured)': lambda b: rt.cudaStreamQuery(b.side),
    'streamSynchronize(uncaptured nonblocking)': lambda b: rt.cudaStreamSynchronize(b.free),
    'streamSynchronize(uncaptured blocking)': lambda b: rt.cudaStreamSynchronize(b.free_blocking),
    'streamQuery(uncaptured)': lambda b: rt.cudaStreamQuery(b.free),
    'streamSynchronize(legacy)': lambda b: rt.cudaStreamSynchronize(LEGACY),
    'streamQuery(legacy)': lambda b: rt.cudaStreamQuery(LEGACY),
    'streamIsCapturing(legacy)': lambda b: rt.cudaStreamIsCapturing(LEGACY),
    'streamSynchronize(perthread)': lambda b: rt.cudaStreamSynchronize(PER_THREAD),
    'deviceSynchronize': lambda b: rt.cudaDeviceSynchronize(),
    'eventQuery(captured)': lambda b: rt.cudaEventQuery(b.captured),
    'eventSynchronize(captured)': lambda b: rt.cudaEventSynchronize(b.captured),
    'eventElapsedTime(captured,captured)': lambda b: rt.cudaEventElapsedTime(b.captured, b.captured),
    'eventElapsedTime(uncaptured,captured)': lambda b: rt.cudaEventElapsedTime(b.outside, b.captured),
    'eventQuery(uncaptured)': lambda b: rt.cudaEventQuery(b.outside),
    'eventSynchronize(uncaptured)': lambda b: rt.cudaEventSynchronize(b.outside),
    'eventRecord(legacy)': lambda b: rt.cudaEventRecord(b.scratch, LEGACY),
    'eventRecord(uncaptured stream)': lambda b: rt.cudaEventRecord(b.scratch, b.free),
    'eventRecord(origin, timing event)': lambda b: rt.cudaEventRecord(b.scratch, b.origin),
    'eventRecordExternal(origin)': lambda b: rt.cudaEventRecordWithFlags(b.scratch, b.origin, 1),
    'waitEvent(origin, uncaptured recorded)': lambda b: rt.cudaStreamWaitEvent(b.origin, b.outside, 0),
    'waitEventExternal(origin, uncaptured recorded)': lambda b: rt.cudaStreamWaitEvent(b.origin, b.outside, 1),
    'waitEvent(origin, never recorded)': lambda b: rt.cudaStreamWaitEvent(b.origin, b.never, 0),
    'waitEvent(uncaptured nonblocking, captured) [fork]': lambda b: rt.cudaStreamWaitEvent(b.free, b.captured, 0),
    'waitEvent(uncaptured blocking, captured) [fork]': lambda b: rt.cudaStreamWaitEvent(b.free_blocking, b.captured, 0),
    'waitEvent(legacy, captured)': lambda b: rt.cudaStreamWaitEvent(LEGACY, b.captured, 0),
    'waitEvent(origin, event of another capture) [merge]': lambda b: _merged(b),
    'waitEvent(origin, side event) [join]': lambda b: _joined(b),
    'endCapture(side)': lambda b: rt.cudaStreamEndCapture(b.side),
    'endCapture(uncaptured)': lambda b: rt.cudaStreamEndCapture(b.free),
    'endCapture(origin, other thread)': lambda b: b.other(lambda: rt.cudaStreamEndCapture(b.origin)),
    'beginCapture(origin again)': lambda b: rt.cudaStreamBeginCapture(b.origin, b.mode),
    'beginCapture(side already captured)': lambda b: rt.cudaStreamBeginCapture(b.side, b.mode),
    'beginCapture(legacy)': lambda b: rt.cudaStreamBeginCapture(LEGACY, b.mode),
    'memcpy H2D sync': lambda b: _copy(b, 'H2D'),
    'memcpy D2H sync': lambda b: _copy(b, 'D2H'),
    'memcpy D2D sync': lambda b: _copy(b, 'D2D'),
    'memcpyAsync D2H pageable (origin)': lambda b: _copy(b, 'D2H', stream='origin'),
    'memcpyAsync H2D pageable (origin)': lambda b: _copy(b, 'H2D', stream='origin'),
    'memcpyAsync D2H pinned (origin)': lambda b: _copy(b, 'D2H', 'pinned', 'origin'),
    'memcpyAsync H2D pinned (origin)': lambda b: _copy(b, 'H2D', 'pinned', 'origin'),
    'memcpyAsync D2D (legacy)': lambda b: _copy(b, 'D2D', stream='legacy'),
    'memcpyAsync D2D (uncaptured)': lambda b: _copy(b, 'D2D', stream='free'),
    'memset sync': lambda b: rt.cudaMemset(b.buf, 0, 64),
    'memsetAsync(legacy)': lambda b: rt.cudaMemsetAsync(b.buf, 0, 64, LEGACY),
    'memsetAsync(uncaptured nonblocking)': lambda b: rt.cudaMemsetAsync(b.buf, 0, 64, b.free),
    'memsetAsync(uncaptured blocking)': lambda b: rt.cudaMemsetAsync(b.buf, 0, 64, b.free_blocking),
    'malloc': lambda b: rt.cudaMalloc(4096),
    'malloc, thread exchanged to relaxed': lambda b: b.relaxed(lambda: rt.cudaMalloc(4096)),
    'malloc other thread': lambda b: b.other(lambda: rt.cudaMalloc(4096)),
    'memsetAsync(legacy) other thread': lambda b: b.other(lambda: rt.cudaMemsetAsync(b.buf, 0, 64, LEGACY)),
    'deviceSynchronize other thread': lambda b: b.other(lambda: rt.cudaDeviceSynchronize()),
    'streamSynchronize(uncaptured) other thread': lambda b: b.other(lambda: rt.cudaStreamSynchronize(b.free)),
    'free': lambda b: rt.cudaFree(b.spare_ptr),
    'mallocAsync(origin)': lambda b: rt.cudaMallocAsync(4096, b.origin),
    'mallocAsync(uncaptured)': lambda b: rt.cudaMallocAsync(4096, b.free),
    'mallocHost': lambda b: rt.cudaMallocHost(4096),
    'hostAlloc+free': lambda b: _allocated(b),
    'streamCreate': lambda b: rt.cudaStreamCreate(),
    'streamDestroy(uncaptured)': lambda b: rt.cudaStreamDestroy(b.spare_stream),
    'streamDestroy(side captured)': lambda b: _destroyed_side(b),
    'eventCreate': lambda b: rt.cudaEventCreate(),
    'eventDestroy(captured)': lambda b: rt.cudaEventDestroy(b.captured),
    'streamAddCallback(origin)': lambda b: _callback(b, b.origin),
    'launchHostFunc(origin)': lambda b: _hostfn(b.origin),
    'graphLaunch(origin)': lambda b: rt.cudaGraphLaunch(b.exec, b.origin),
    'graphLaunch(legacy)': lambda b: rt.cudaGraphLaunch(b.exec, LEGACY),
    'graphLaunch(uncaptured)': lambda b: rt.cudaGraphLaunch(b.exec, b.free),
    'graphInstantiate(other)': lambda b: rt.cudaGraphInstantiate(b.graph, 0),
    'graphUpload(uncaptured)': lambda b: rt.cudaGraphUpload(b.exec, b.free),
    'memGetInfo': lambda b: rt.cudaMemGetInfo(),
    'deviceGetAttribute': lambda b: rt.cudaDeviceGetAttribute(_WARP, 0),
    'pointerGetAttributes': lambda b: rt.cudaPointerGetAttributes(b.buf),
    'driverModuleLoadData': lambda b: driver.cuModuleLoadData(b.cubin),
    'streamGetFlags(origin)': lambda b: rt.cudaStreamGetFlags(b.origin),
    'streamGetPriority(origin)': lambda b: rt.cudaStreamGetPriority(b.origin),
    'profilerStart': lambda b: rt.cudaProfilerStart(),
    'deviceSetLimit': lambda b: rt.cudaDeviceSetLimit(rt.cudaLimit.cudaLimitStackSize, 2048),
    'memPoolTrim': lambda b: rt.cudaMemPoolTrimTo(b.pool, 0),
    'end (nothing illegal)': lambda b: (rt.cudaError_t.cudaSuccess,),
    'streamGetFlags(side captured)': lambda b: rt.cudaStreamGetFlags(b.side),
    'streamGetFlags(uncaptured)': lambda b: rt.cudaStreamGetFlags(b.free),
    'streamGetFlags(legacy)': lambda b: rt.cudaStreamGetFlags(LEGACY),
    'streamGetPriority(side captured)': lambda b: rt.cudaStreamGetPriority(b.side),
    'streamGetPriority(uncaptured)': lambda b: rt.cudaStreamGetPriority(b.free),
    'streamGetPriority(legacy)': lambda b: rt.cudaStreamGetPriority(LEGACY),
    'streamIsCapturing(origin)': lambda b: rt.cudaStreamIsCapturing(b.origin),
    'streamIsCapturing(side captured)': lambda b: rt.cudaStreamIsCapturing(b.side),
    'streamIsCapturing(uncaptured)': lambda b: rt.cudaStreamIsCapturing(b.free),
    'streamGetCaptureInfo(origin)': lambda b: rt.cudaStreamGetCaptureInfo(b.origin),
    'eventElapsedTime(uncaptured,uncaptured)': lambda b: rt.cudaEventElapsedTime(b.outside, b.outside2),
    'eventQuery(never recorded)': lambda b: rt.cudaEventQuery(b.never),
    'eventSynchronize(never recorded)': lambda b: rt.cudaEventSynchronize(b.never),
    'eventRecord(origin)': lambda b: rt.cudaEventRecord(b.scratch, b.origin),
    'eventRecord(side captured)': lambda b: rt.cudaEventRecord(b.scratch, b.side),
    'eventRecord(perthread)': lambda b: rt.cudaEventRecord(b.scratch, PER_THREAD),
    'eventRecord(uncaptured stream, captured event)': lambda b: rt.cudaEventRecord(b.captured, b.free),
    'waitEvent(uncaptured, uncaptured recorded)': lambda b: rt.cudaStreamWaitEvent(b.free, b.outside, 0),
    'waitEvent(uncaptured, never recorded)': lambda b: rt.cudaStreamWaitEvent(b.free, b.never, 0),
    'waitEvent(legacy, uncaptured recorded)': lambda b: rt.cudaStreamWaitEvent(LEGACY, b.outside, 0),
    'waitEvent(legacy, never recorded)': lambda b: rt.cudaStreamWaitEvent(LEGACY, b.never, 0),
    'waitEvent(side captured, uncaptured recorded)': lambda b: rt.cudaStreamWaitEvent(b.side, b.outside, 0),
    'waitEvent(perthread, captured) [fork]': lambda b: rt.cudaStreamWaitEvent(PER_THREAD, b.captured, 0),
    'memcpy2DAsync D2D (origin)': lambda b: rt.cudaMemcpy2DAsync(
        b.buf, 64, b.buf2, 64, 64, 4, _KIND.cudaMemcpyDeviceToDevice, b.origin
    ),
    'memcpy2D D2D sync': lambda b: rt.cudaMemcpy2D(b.buf, 64, b.buf2, 64, 64, 4, _KIND.cudaMemcpyDeviceToDevice),
    'memcpyPeerAsync (origin)': lambda b: rt.cudaMemcpyPeerAsync(b.buf, 0, b.buf2, 0, 64, b.origin),
    'memcpyPeer sync': lambda b: rt.cudaMemcpyPeer(b.buf, 0, b.buf2, 0, 64),
    'memcpyAsync D2D (origin)': lambda b: rt.cudaMemcpyAsync(
        b.buf, b.buf2, 64, _KIND.cudaMemcpyDeviceToDevice, b.origin
    ),
    'memcpyAsync D2D (perthread)': lambda b: rt.cudaMemcpyAsync(
        b.buf, b.buf2, 64, _KIND.cudaMemcpyDeviceToDevice, PER_THREAD
    ),
    'memsetAsync(origin)': lambda b: rt.cudaMemsetAsync(b.buf, 0, 64, b.origin),
    'memsetAsync(perthread)': lambda b: rt.cudaMemsetAsync(b.buf, 0, 64, PER_THREAD),
    'memPrefetchAsync(origin)': lambda b: rt.cudaMemPrefetchAsync(b.managed, 64, _LOCATION, 0, b.origin),
    'memPrefetchAsync(uncaptured)': lambda b: rt.cudaMemPrefetchAsync(b.managed, 64, _LOCATION, 0, b.free),
    'memAdvise': lambda b: rt.cudaMemAdvise(b.managed, 64, rt.cudaMemoryAdvise.cudaMemAdviseSetReadMostly, _LOCATION),
    'mallocManaged': lambda b: rt.cudaMallocManaged(4096, 1),
    'mallocArray': lambda b: rt.cudaMallocArray(_array_format(), 16, 16, 0),
    'malloc3DArray': lambda b: rt.cudaMalloc3DArray(
        _array_format(), rt.make_cudaExtent(16, 16, 4) if hasattr(rt, 'make_cudaExtent') else _extent(), 0
    ),
    'mallocFromPoolAsync(origin)': lambda b: rt.cudaMallocFromPoolAsync(4096, b.pool, b.origin),
    'mallocFromPoolAsync(uncaptured)': lambda b: rt.cudaMallocFromPoolAsync(4096, b.pool, b.free),
    'freeAsync(origin, outside pointer)': lambda b: rt.cudaFreeAsync(b.spare_async, b.origin),
    'freeAsync(uncaptured)': lambda b: rt.cudaFreeAsync(b.spare_async, b.free),
    'freeHost': lambda b: rt.cudaFreeHost(b.spare_host),
    'hostRegister+unregister': lambda b: _register(b),
    'memPoolCreate': lambda b: rt.cudaMemPoolCreate(_pool_props()),
    'memPoolDestroy': lambda b: rt.cudaMemPoolDestroy(b.spare_pool),
    'memPoolGetAttribute': lambda b: rt.cudaMemPoolGetAttribute(
        b.pool, rt.cudaMemPoolAttr.cudaMemPoolAttrReservedMemCurrent
    ),
    'memPoolSetAttribute': lambda b: rt.cudaMemPoolSetAttribute(
        b.pool, rt.cudaMemPoolAttr.cudaMemPoolAttrReleaseThreshold, driver.cuuint64_t(0)
    ),
    'deviceGetDefaultMemPool': lambda b: rt.cudaDeviceGetDefaultMemPool(0),
    'deviceGetMemPool': lambda b: rt.cudaDeviceGetMemPool(0),
    'deviceSetMemPool': lambda b: rt.cudaDeviceSetMemPool(0, b.pool),
    'deviceGetLimit': lambda b: rt.cudaDeviceGetLimit(rt.cudaLimit.cudaLimitStackSize),
    'deviceCanAccessPeer': lambda b: rt.cudaDeviceCanAccessPeer(0, 0),
    'deviceGetPCIBusId': lambda b: rt.cudaDeviceGetPCIBusId(13, 0),
    'getDeviceProperties': lambda b: rt.cudaGetDeviceProperties(0),
    'setDevice': lambda b: rt.cudaSetDevice(0),
    'ipcGetMemHandle': lambda b: rt.cudaIpcGetMemHandle(b.spare_ptr),
    'profilerStop': lambda b: rt.cudaProfilerStop(),
    'graphDestroy': lambda b: rt.cudaGraphDestroy(b.spare_graph),
    'graphExecDestroy': lambda b: rt.cudaGraphExecDestroy(b.spare_exec),
    'graphUpload(origin)': lambda b: rt.cudaGraphUpload(b.exec, b.origin),
    'graphUpload(legacy)': lambda b: rt.cudaGraphUpload(b.exec, LEGACY),
    'graphUpload(side captured)': lambda b: rt.cudaGraphUpload(b.exec, b.side),
    'mallocAsync(side captured)': lambda b: rt.cudaMallocAsync(4096, b.side),
    'memcpyPeerAsync(side captured)': lambda b: rt.cudaMemcpyPeerAsync(b.buf, 0, b.buf2, 0, 64, b.side),
    'memPrefetchAsync(side captured)': lambda b: rt.cudaMemPrefetchAsync(b.managed, 64, _LOCATION, 0, b.side),
    'freeAsync(side captured, outside pointer)': lambda b: rt.cudaFreeAsync(b.spare_async, b.side),
    'eventRecordExternal(side captured)': lambda b: rt.cudaEventRecordWithFlags(b.scratch, b.side, 1),
    'waitEventExternal(side captured, uncaptured recorded)': lambda b: rt.cudaStreamWaitEvent(b.side, b.outside, 1),
    'waitEvent(origin, event of an ended capture)': lambda b: rt.cudaStreamWaitEvent(b.origin, b.dead, 0),
    'waitEvent(uncaptured, event of an ended capture)': lambda b: rt.cudaStreamWaitEvent(b.free, b.dead, 0),
    'eventQuery(event of an ended capture)': lambda b: rt.cudaEventQuery(b.dead),
    'eventSynchronize(event of an ended capture)': lambda b: rt.cudaEventSynchronize(b.dead),
    'eventElapsedTime(event of an ended capture)': lambda b: rt.cudaEventElapsedTime(b.dead, b.dead),
    'eventRecordExternal(uncaptured)': lambda b: rt.cudaEventRecordWithFlags(b.scratch, b.free, 1),
    'graphLaunch(side captured)': lambda b: rt.cudaGraphLaunch(b.exec, b.side),
    'graphLaunch(perthread)': lambda b: rt.cudaGraphLaunch(b.exec, PER_THREAD),
    'graphDebugDotPrint': lambda b: rt.cudaGraphDebugDotPrint(b.graph, b'/tmp/measure_rules.dot', 0),
    'graphExecUpdate': lambda b: rt.cudaGraphExecUpdate(b.exec, b.graph),
    'launchHostFunc(side captured)': lambda b: _hostfn(b.side),
    'launchHostFunc(uncaptured)': lambda b: _hostfn(b.free),
    'launchHostFunc(legacy)': lambda b: _hostfn(LEGACY),
    'streamAddCallback(side captured)': lambda b: _callback(b, b.side),
    'streamAddCallback(uncaptured)': lambda b: _callback(b, b.free),
    'streamAddCallback(legacy)': lambda b: _callback(b, LEGACY),
    'streamCreateWithPriority': lambda b: rt.cudaStreamCreateWithPriority(NONBLOCKING, 0),
    'eventDestroy(uncaptured)': lambda b: rt.cudaEventDestroy(b.outside),
    'beginCapture(uncaptured)': lambda b: rt.cudaStreamBeginCapture(b.free, _MODE['relaxed']),
    'endCapture(legacy)': lambda b: rt.cudaStreamEndCapture(LEGACY),
    'driverModuleUnload': lambda b: driver.cuModuleUnload(b.spare_module),
    'driverModuleGetFunction': lambda b: driver.cuModuleGetFunction(b.spare_module, b'k'),
    'driverCtxSynchronize': lambda b: driver.cuCtxSynchronize(),
    'driverCtxGetCurrent': lambda b: driver.cuCtxGetCurrent(),
    'streamSynchronize(uncaptured), thread exchanged to relaxed': lambda b: b.relaxed(
        lambda: rt.cudaStreamSynchronize(b.free)
    ),
    'streamQuery(uncaptured), thread exchanged to relaxed': lambda b: b.relaxed(lambda: rt.cudaStreamQuery(b.free)),
    'streamSynchronize(origin), thread exchanged to relaxed': lambda b: b.relaxed(
        lambda: rt.cudaStreamSynchronize(b.origin)
    ),
    'eventQuery(uncaptured), thread exchanged to relaxed': lambda b: b.relaxed(lambda: rt.cudaEventQuery(b.outside)),
    'eventSynchronize(uncaptured), thread exchanged to relaxed': lambda b: b.relaxed(
        lambda: rt.cudaEventSynchronize(b.outside)
    ),
    'mallocHost, thread exchanged to relaxed': lambda b: b.relaxed(lambda: rt.cudaMallocHost(4096)),
    'free, thread exchanged to relaxed': lambda b: b.relaxed(lambda: rt.cudaFree(b.spare_ptr)),
    'graphInstantiate, thread exchanged to relaxed': lambda b: b.relaxed(lambda: rt.cudaGraphInstantiate(b.graph, 0)),
    'deviceSynchronize, thread exchanged to relaxed': lambda b: b.relaxed(lambda: rt.cudaDeviceSynchronize()),
    'memsetAsync(uncaptured) other thread': lambda b: b.other(lambda: rt.cudaMemsetAsync(b.buf2, 0, 64, b.free)),
    'memsetAsync(origin) other thread': lambda b: b.other(lambda: rt.cudaMemsetAsync(b.buf2, 0, 64, b.origin)),
    'eventRecord(uncaptured stream) other thread': lambda b: b.other(lambda: rt.cudaEventRecord(b.scratch, b.free)),
    'eventQuery(uncaptured) other thread': lambda b: b.other(lambda: rt.cudaEventQuery(b.outside)),
    'eventSynchronize(uncaptured) other thread': lambda b: b.other(lambda: rt.cudaEventSynchronize(b.outside)),
    'streamQuery(uncaptured) other thread': lambda b: b.other(lambda: rt.cudaStreamQuery(b.free)),
    'streamSynchronize(origin) other thread': lambda b: b.other(lambda: rt.cudaStreamSynchronize(b.origin)),
    'streamSynchronize(legacy) other thread': lambda b: b.other(lambda: rt.cudaStreamSynchronize(LEGACY)),
    'streamSynchronize(perthread) other thread': lambda b: b.other(lambda: rt.cudaStreamSynchronize(PER_THREAD)),
    'memset sync other thread': lambda b: b.other(lambda: rt.cudaMemset(b.buf, 0, 64)),
    'mallocHost other thread': lambda b: b.other(lambda: rt.cudaMallocHost(4096)),
    'free other thread': lambda b: b.other(lambda: rt.cudaFree(b.spare_ptr)),
    'graphInstantiate other thread': lambda b: b.other(lambda: rt.cudaGraphInstantiate(b.graph, 0)),
    'graphLaunch(uncaptured) other thread': lambda b: b.other(lambda: rt.cudaGraphLaunch(b.exec, b.free)),
    'streamSynchronize(uncaptured) other thread, exchanged to relaxed': lambda b: b.other(
        lambda: b.relaxed(lambda: rt.cudaStreamSynchronize(b.free))
    ),
    'malloc other thread, exchanged to relaxed': lambda b: b.other(lambda: b.relaxed(lambda: rt.cudaMalloc(4096))),
    'deviceSynchronize other thread, exchanged to relaxed': lambda b: b.other(
        lambda: b.relaxed(lambda: rt.cudaDeviceSynchronize())
    ),
    'memsetAsync(legacy), blocking side captured': lambda b: _blocking_side(b),
}


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
