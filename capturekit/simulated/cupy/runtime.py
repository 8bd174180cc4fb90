"""``cupy.cuda.runtime`` on the simulated device.

Each function asks one verb of the device and turns its refusal into :class:`CUDARuntimeError`. What the device does
not know is kept here: the bytes behind addresses. Device memory lies at simulated addresses, pinned memory at its
true host address, so that NumPy's own ``array.ctypes.data`` can be recognised as pinned.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Mode
from capturekit.simulated.cupy import signatures
from capturekit.simulated.device.address_space import GARBAGE, AddressSpace, Bytes
from capturekit.simulated.device.constants import ATTRIBUTES, COMPUTE_CAPABILITY, CONSTANTS, ERRORS
from capturekit.simulated.device.graph_nodes import Given
from capturekit.simulated.device.machine import SimulatedDevice

globals().update(CONSTANTS)

is_hip = False

_INVALID_VALUE = 1
_MEMORY_ALLOCATION = 2
_INVALID_DEVICE = 101
_PEER_ENABLED = 704
_INVALID_HANDLE = 400
_NOT_READY = 600
_ILLEGAL_ADDRESS = 700
_DISABLE_TIMING = CONSTANTS['eventDisableTiming']
_NON_BLOCKING = CONSTANTS['streamNonBlocking']
_RELAXED = CONSTANTS['streamCaptureModeRelaxed']
_H2H, _H2D, _D2H = (CONSTANTS[f'memcpy{kind}'] for kind in ('HostToHost', 'HostToDevice', 'DeviceToHost'))

_bound: SimulatedDevice | None = None
_device_memory = AddressSpace()
_pinned_memory = AddressSpace()
_pinned_handles: dict[int, int] = {}
_untimed: set[int] = set()
#: Memory that graphs allocate: only that can be freed in a capture.
_of_graphs: set[int] = set()
#: Of each allocation, which parts recorded work was given for its arrays.
_recorded: dict[int, NDArray[np.bool_]] = {}
_recorded_lock = threading.RLock()
_UNIT = 512


class CUDARuntimeError(RuntimeError):
    """An error code of the CUDA runtime, in ``status``."""

    def __init__(self, status: int) -> None:
        self.status = status
        name, text = ERRORS.get(status, ('cudaErrorUnknown', 'unknown error'))
        super().__init__(f'{name}: {text}')

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.status,))


class PointerAttributes:
    """What ``cudaPointerGetAttributes`` says of an address."""

    def __init__(self, device: int, devicePointer: int, hostPointer: int, type: int = -1) -> None:
        self.device = device
        self.devicePointer = devicePointer
        self.hostPointer = hostPointer
        self.type = type


class MemPoolProps:
    """``cudaMemPoolProps``."""

    def __init__(self, allocType: int, handleType: int, locationType: int, devId: int) -> None:
        self.allocType = allocType
        self.handleType = handleType
        self.locationType = locationType
        self.devId = devId


def bind(device: SimulatedDevice) -> None:
    """Set the device that every call goes to."""
    global _bound
    _bound = device
    device.address_spaces += [_device_memory, _pinned_memory]


def _device() -> SimulatedDevice:
    if _bound is None:
        raise RuntimeError('this stand-in for CuPy has no device: use capturekit.simulated.cupy.assembly.build(device)')
    return _bound


def _ask(verb: Callable[..., Any], *args: Any) -> Any:
    try:
        return verb(*args)
    except CudaCallError as e:
        raise CUDARuntimeError(int(e.code)) from e


def _status(verb: Callable[..., bool], *args: Any) -> int:
    try:
        return 0 if verb(*args) else _NOT_READY
    except CudaCallError as e:
        return int(e.code)


def submit(stream: int, work: Callable[[], None], name: str, kind: str = 'kernel', given: Given | None = None) -> bool:
    """Launch ``work`` on a stream; return True if it was recorded instead of run."""
    recorded: bool = _ask(_device().submit, stream, work, name, kind, given)
    return recorded


def is_late() -> bool:
    """Whether work waits until the host has to know."""
    return _bound is not None and _bound.queue is not None


def _captures(stream: int) -> bool:
    return stream not in (0, CONSTANTS['streamLegacy']) and _ask(_device().stream_status, stream) is not (
        CaptureStatus.NONE
    )


def _now(call: Callable[[], None]) -> None:
    """Make a call that waits for all devices first."""
    queue = _device().queue
    if queue is None:
        call()
    else:
        queue.after_all(call)


def spoil(stream: int, ptr: int, size: int) -> None:
    """Let a block that was in use before hold garbage, in the order of the stream that gets it."""

    def work() -> None:
        found = _device_memory.find(ptr, size)
        if found is not None:
            found[0][found[1] : found[1] + size] = GARBAGE

    if _bound is not None and _bound.queue is not None:
        _bound.spoil(stream, work)


def first_recorded(ptr: int, size: int) -> bool:
    """Note that recorded work uses a block; whether all of it is new to recorded work, so that nothing reads it yet."""
    block, offset = device_block(ptr, size)
    with _recorded_lock:
        used = _recorded.get(ptr - offset)
        if used is None:
            used = _recorded[ptr - offset] = np.zeros(-(-block.size // _UNIT), np.bool_)
        units = used[offset // _UNIT : -(-(offset + size) // _UNIT)]
        first = not units.any() and not _device().busy()
        units[:] = True
        return first


def meet(streams: list[int]) -> None:
    """What the streams do next comes after what each of them was given."""
    _ask(_device().meet, streams)


def _submit_given(stream: int, given: Given, name: str, kind: str) -> None:
    submit(stream, given.work(), name, kind, given)


def check_status(status: int) -> None:
    if status != 0:
        raise CUDARuntimeError(status)


# -- device ---------------------------------------------------------------------------------------------------


def driverGetVersion() -> int:
    return 13000


def runtimeGetVersion() -> int:
    return 13000


def _getLocalRuntimeVersion() -> int:
    return 13000


def _getCUDAMajorVersion() -> int:
    return runtimeGetVersion() // 1000


def getDevice() -> int:
    # Stand-ins that nothing is bound to yet are being imported.
    return 0 if _bound is None else _bound.get_device()


def getDeviceCount() -> int:
    return _device().device_count


def setDevice(device: int) -> None:
    _ask(_device().set_device, device)


def _known(device: int) -> None:
    _ask(_device()._known, device)


_ATTRIBUTE_VALUES = {CONSTANTS[f'cudaDevAttr{name}']: value for name, value in ATTRIBUTES.items()}
_ATTRIBUTE_VALUES.update({75: COMPUTE_CAPABILITY[0], 76: COMPUTE_CAPABILITY[1]})


def deviceGetAttribute(attrib: int, device: int) -> int:
    _known(device)
    try:
        return _ATTRIBUTE_VALUES[attrib]
    except KeyError:
        raise CUDARuntimeError(_INVALID_VALUE) from None


def getDeviceProperties(device: int) -> dict[str, Any]:
    _known(device)
    properties: dict[str, Any] = {name[0].lower() + name[1:]: value for name, value in ATTRIBUTES.items()}
    properties.update(
        name=b'capturekit simulated device',
        totalGlobalMem=memGetInfo()[1],
        major=COMPUTE_CAPABILITY[0],
        minor=COMPUTE_CAPABILITY[1],
        sharedMemPerBlock=ATTRIBUTES['MaxSharedMemoryPerBlock'],
        l2CacheSize=ATTRIBUTES['L2CacheSize'],
        maxThreadsDim=tuple(ATTRIBUTES[f'MaxBlockDim{axis}'] for axis in 'XYZ'),
        maxGridSize=tuple(ATTRIBUTES[f'MaxGridDim{axis}'] for axis in 'XYZ'),
    )
    return properties


def deviceGetByPCIBusId(pci_bus_id: str) -> int:
    for device in range(getDeviceCount()):
        if pci_bus_id == deviceGetPCIBusId(device):
            return device
    raise CUDARuntimeError(_INVALID_DEVICE)


def deviceGetPCIBusId(device: int) -> str:
    _known(device)
    return f'0000:{device:02x}:00.0'


def deviceSynchronize() -> None:
    _ask(_device().device_synchronize)


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    return int(_ask(_device().can_access_peer, device, peerDevice))


def deviceEnablePeerAccess(peerDevice: int) -> None:
    _ask(_device().enable_peer_access, peerDevice)


def _deviceEnsurePeerAccess(peerDevice: int) -> None:
    try:
        deviceEnablePeerAccess(peerDevice)
    except CUDARuntimeError as e:
        if e.status != _PEER_ENABLED:
            raise


def profilerStart() -> None:
    """Do nothing: there is no profiler."""


def profilerStop() -> None:
    """Do nothing: there is no profiler."""


# -- memory ---------------------------------------------------------------------------------------------------


def _allocate(size: int) -> int:
    ptr: int = _ask(_device().malloc, size)
    _device_memory.add(ptr, np.full(max(size, 1), GARBAGE, np.uint8))
    return ptr


def malloc(size: int) -> int:
    return _allocate(size)


def mallocManaged(size: int, flags: int = CONSTANTS['cudaMemAttachGlobal']) -> int:
    return _allocate(size)


def mallocAsync(size: int, stream: int) -> int:
    # Stream-ordered allocation is no unsafe call, so the device's verdict on cudaMalloc must not apply.
    old = _device().exchange_thread_mode(Mode.RELAXED)
    try:
        recorded = submit(stream, lambda: None, 'mallocAsync', 'memAlloc')
        ptr = _allocate(size)
        if recorded:
            _of_graphs.add(ptr)
        return ptr
    finally:
        _device().exchange_thread_mode(old)


def free(ptr: int) -> None:
    if ptr:
        _ask(_device().free, ptr)
        _now(lambda: _let_go(ptr))


def _let_go(ptr: int) -> None:
    _device_memory.remove(ptr)
    _of_graphs.discard(ptr)
    _recorded.pop(ptr, None)


def freeAsync(ptr: int, stream: int) -> None:
    captured = stream > CONSTANTS['streamPerThread'] and _ask(_device().stream_status, stream) is CaptureStatus.ACTIVE
    if captured and ptr not in _of_graphs:
        raise CUDARuntimeError(_INVALID_VALUE)
    old = _device().exchange_thread_mode(Mode.RELAXED)
    try:
        # A free recorded in a graph leaves the memory to the graph, which allocates it again at each launch.
        if not captured:
            _ask(_device().free, ptr)
        submit(stream, lambda: None if captured else _let_go(ptr), 'freeAsync', 'memFree')
    finally:
        _device().exchange_thread_mode(old)


def hostAlloc(size: int, flags: int) -> int:
    handle: int = _ask(_device().host_alloc, size)
    block = np.zeros(max(size, 1), np.uint8)
    ptr = block.ctypes.data
    _pinned_memory.add(ptr, block)
    _pinned_handles[ptr] = handle
    return ptr


def freeHost(ptr: int) -> None:
    if ptr not in _pinned_handles:
        raise CUDARuntimeError(_INVALID_VALUE)
    _ask(_device().host_free, _pinned_handles[ptr])
    del _pinned_handles[ptr]
    _now(lambda: _pinned_memory.remove(ptr))


def memGetInfo() -> tuple[int, int]:
    free_bytes, total = _device().mem_get_info()
    return free_bytes, total


def device_bytes(ptr: int, size: int) -> Bytes:
    """Return the bytes at a device address, as a view. Raises cudaErrorIllegalAddress where there are none."""
    found = _device_memory.find(ptr, size)
    if found is None:
        raise CUDARuntimeError(_ILLEGAL_ADDRESS)
    block, offset = found
    return block[offset : offset + size]


def device_block(ptr: int, size: int) -> tuple[Bytes, int]:
    """Return the whole block around a device address and the offset in it."""
    found = _device_memory.find(ptr, size)
    if found is None:
        raise CUDARuntimeError(_ILLEGAL_ADDRESS)
    return found


def _host_bytes(ptr: int, size: int) -> Bytes:
    found = _pinned_memory.find(ptr, size)
    if found is not None:
        return found[0][found[1] : found[1] + size]
    return np.frombuffer((ctypes.c_ubyte * size).from_address(ptr), np.uint8)


def _any_bytes(ptr: int, size: int) -> Bytes:
    found = _device_memory.find(ptr, size)
    return _host_bytes(ptr, size) if found is None else found[0][found[1] : found[1] + size]


def _copy(dst: int, src: int, size: int, kind: int) -> None:
    if not size:
        return
    to = _host_bytes if kind in (_H2H, _D2H) else device_bytes if kind == _H2D else _any_bytes
    of = _host_bytes if kind in (_H2H, _H2D) else device_bytes if kind == _D2H else _any_bytes
    to(dst, size)[:] = of(src, size).copy()


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    _ask(_device().legacy_call, 'memcpy')
    _at_once(lambda: _copy(dst, src, size, kind), _is_host(dst) or _is_host(src))


def _at_once(work: Callable[[], None], waits: bool = True) -> None:
    """What the legacy stream does for a synchronous call; ``waits``: the host waits for it."""
    queue = _device().queue
    if queue is None:
        work()
        return
    done = queue.put(queue.legacy(_device().get_device()), work)
    if waits:
        queue.wait([done])


def _is_host(address: int) -> bool:
    return _device_memory.find(address) is None


def _is_pageable(address: int) -> bool:
    return _is_host(address) and _pinned_memory.find(address) is None


def _submit_copy(
    stream: int,
    work: Callable[[], None],
    given: Given | None,
    ends: tuple[int, int, int],
    name: str,
    to: Callable[[Bytes], None],
) -> None:
    """Copy: what comes from pageable memory is taken at once, and the host waits for what goes there.

    ``ends``: to where, from where, how many bytes. ``to`` puts bytes that were taken where they belong.
    """
    dst, src, size = ends
    if not is_late() or not size or _captures(stream):
        submit(stream, work, name, 'memcpy', given)
        return
    if _is_pageable(src):
        taken = _host_bytes(src, size).copy()
        work = functools.partial(to, taken)
    submit(stream, work, name, 'memcpy', given)
    if _is_pageable(dst):
        _ask(_device().wait_for, stream)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    values = {'dst': dst, 'src': src, 'bytes': size}

    def make(**now: int) -> Callable[[], None]:
        return lambda: _copy(now['dst'], now['src'], now['bytes'], kind)

    def put(taken: Bytes) -> None:
        _any_bytes(dst, size)[:] = taken

    given = Given(values, make, _in_memory_like(values))
    _submit_copy(stream, given.work(), given, (dst, src, size), 'memcpyAsync', put)


def _in_memory_like(values: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Mapping[str, Any]], bool]:
    """Whether a node may go to other addresses: device memory takes the place of device memory alone."""
    ends = {end: _device_memory.find(values[end]) is None for end in ('dst', 'src') if end in values}
    return lambda _old, new: all((_device_memory.find(new[end]) is None) == host for end, host in ends.items())


def memcpyPeer(dst: int, dstDevice: int, src: int, srcDevice: int, size: int) -> None:
    memcpy(dst, src, size, CONSTANTS['memcpyDeviceToDevice'])


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    memcpyAsync(dst, src, size, CONSTANTS['memcpyDeviceToDevice'], stream)


def _copy_rows(dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int) -> None:
    for row in range(height):
        _copy(dst + row * dpitch, src + row * spitch, width, kind)


def memcpy2D(dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int) -> None:
    _ask(_device().legacy_call, 'memcpy2D')
    rows = (dst, dpitch, src, spitch, width, height, kind)
    _at_once(lambda: _copy_rows(*rows), _is_host(dst) or _is_host(src))


def memcpy2DAsync(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    rows = (dst, dpitch, src, spitch, width, height, kind)
    size = spitch * (height - 1) + width if width and height else 0

    def put(taken: Bytes) -> None:
        for row in range(height):
            _any_bytes(dst + row * dpitch, width)[:] = taken[row * spitch : row * spitch + width]

    _submit_copy(stream, lambda: _copy_rows(*rows), None, (dst, src, size), 'memcpy2DAsync', put)


def _fill(ptr: int, value: int, size: int) -> None:
    if size:
        device_bytes(ptr, size)[:] = value & 0xFF


def memset(ptr: int, value: int, size: int) -> None:
    _ask(_device().legacy_call, 'memset')
    _at_once(lambda: _fill(ptr, value, size), _is_host(ptr))


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    values = {'dst': ptr, 'value': value, 'bytes': size}

    def make(**now: int) -> Callable[[], None]:
        return lambda: _fill(now['dst'], now['value'], now['bytes'])

    _submit_given(stream, Given(values, make, _in_memory_like(values)), 'memsetAsync', 'memset')


def pointerGetAttributes(ptr: int) -> PointerAttributes:
    found = _device_memory.find(ptr)
    if found is not None:
        return PointerAttributes(_device().memory_device(ptr - found[1]), ptr, 0, CONSTANTS['memoryTypeDevice'])
    if _pinned_memory.find(ptr) is not None:
        return PointerAttributes(0, ptr, ptr, CONSTANTS['memoryTypeHost'])
    return PointerAttributes(CONSTANTS['cudaInvalidDeviceId'], 0, ptr, CONSTANTS['memoryTypeUnregistered'])


def pointerGetMemoryType(ptr: int) -> int:
    return pointerGetAttributes(ptr).type


# -- streams and events ---------------------------------------------------------------------------------------


def streamCreate() -> int:
    return streamCreateWithFlags(0)


def streamCreateWithFlags(flags: int) -> int:
    return streamCreateWithPriority(flags, 0)


def streamCreateWithPriority(flags: int, priority: int) -> int:
    s: int = _ask(_device().stream_create, bool(flags & _NON_BLOCKING), priority)
    return s


def streamGetFlags(stream: int) -> int:
    flags: int = _ask(_device().stream_flags, stream)
    return flags


def streamGetPriority(stream: int) -> int:
    priority: int = _ask(_device().stream_priority, stream)
    return priority


def streamDestroy(stream: int) -> None:
    _ask(_device().stream_destroy, stream)


def streamSynchronize(stream: int) -> None:
    _ask(_device().stream_synchronize, stream)


def streamAddCallback(stream: int, callback: Callable[..., Any], arg: int, flags: int = 0) -> None:
    _ask(_device().add_callback, stream, lambda: callback(stream, 0, arg))


def launchHostFunc(stream: int, callback: Callable[[Any], Any], arg: Any) -> None:
    _ask(_device().launch_host_func, stream, lambda: callback(arg))


def _launchHostFuncUnmanaged(stream: int, func_arg: tuple[Callable[[Any], Any], Any]) -> None:
    func, arg = func_arg
    launchHostFunc(stream, func, arg)


def streamQuery(stream: int) -> int:
    return _status(_device().stream_query, stream)


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    _ask(_device().stream_wait_event, stream, event, bool(flags & 1))


def streamBeginCapture(stream: int, mode: int = _RELAXED) -> None:
    if mode not in tuple(Mode):
        raise CUDARuntimeError(_INVALID_VALUE)
    _ask(_device().begin_capture, stream, Mode(mode))


def streamEndCapture(stream: int) -> int:
    graph: int = _ask(_device().end_capture, stream)
    return graph


def streamIsCapturing(stream: int) -> bool:
    status = _ask(_device().stream_status, stream)
    if status is CaptureStatus.INVALIDATED:
        raise RuntimeError('the stream was capturing, but an error has invalidated the capture sequence')
    return status is CaptureStatus.ACTIVE


def eventCreate() -> int:
    return eventCreateWithFlags(0)


def eventCreateWithFlags(flags: int) -> int:
    event: int = _ask(_device().event_create)
    if flags & _DISABLE_TIMING:
        _untimed.add(event)
    return event


def eventDestroy(event: int) -> None:
    _ask(_device().event_destroy, event)
    _untimed.discard(event)


def eventElapsedTime(start: int, end: int) -> float:
    if start in _untimed or end in _untimed:
        raise CUDARuntimeError(_INVALID_HANDLE)
    milliseconds: float = _ask(_device().event_elapsed_time, start, end)
    return milliseconds


def eventQuery(event: int) -> int:
    return _status(_device().event_query, event)


def eventRecord(event: int, stream: int) -> None:
    _ask(_device().event_record, event, stream)


def eventSynchronize(event: int) -> None:
    _ask(_device().event_synchronize, event)


# -- graphs ---------------------------------------------------------------------------------------------------


def graphDestroy(graph: int) -> None:
    _ask(_device().graph_destroy, graph)


def graphExecDestroy(graphExec: int) -> None:
    _ask(_device().graph_exec_destroy, graphExec)


def graphInstantiate(graph: int) -> int:
    executable: int = _ask(_device().graph_instantiate, graph)
    return executable


def graphLaunch(graphExec: int, stream: int) -> None:
    _ask(_device().graph_launch, graphExec, stream)


def graphUpload(graphExec: int, stream: int) -> None:
    _ask(_device().graph_upload, graphExec, stream)


def graphDebugDotPrint(graph: int, path: str, flags: int) -> None:
    text = _ask(_device().graph_dot, graph)
    with open(path, 'w') as f:
        f.write(text)


# -- what the simulated device has not -------------------------------------------------------------------------

_ABSENT = """
    createSurfaceObject(ResDescPtr) createTextureObject(ResDescPtr,TexDescPtr) destroySurfaceObject(surfObject)
    destroyTextureObject(texObject) deviceDisablePeerAccess(peerDevice)
    deviceGetDefaultMemPool(device) deviceGetLimit(limit) deviceGetMemPool(device) deviceSetLimit(limit,value)
    deviceSetMemPool(device,pool) freeArray(ptr) hostRegister(ptr,size,flags) hostUnregister(ptr)
    ipcCloseMemHandle(devPtr) ipcGetEventHandle(event) ipcGetMemHandle(devPtr) ipcOpenEventHandle(handle)
    ipcOpenMemHandle(handle,flags=1) malloc3DArray(descPtr,width,height,depth,flags=0)
    mallocArray(descPtr,width,height,flags=0) mallocFromPoolAsync(size,pool,stream)
    memAdvise(devPtr,count,advice,device) memPoolCreate(props) memPoolDestroy(pool) memPoolGetAttribute(pool,attr)
    memPoolSetAttribute(pool,attr,value) memPoolTrimTo(pool,size) memPrefetchAsync(devPtr,count,dstDevice,stream)
    memcpy2DFromArray(dst,dpitch,src,wOffset,hOffset,width,height,kind)
    memcpy2DFromArrayAsync(dst,dpitch,src,wOffset,hOffset,width,height,kind,stream)
    memcpy2DToArray(dst,wOffset,hOffset,src,spitch,width,height,kind)
    memcpy2DToArrayAsync(dst,wOffset,hOffset,src,spitch,width,height,kind,stream)
    memcpy3D(Memcpy3DParmsPtr) memcpy3DAsync(Memcpy3DParmsPtr,stream)
"""


def _absent(declaration: str) -> Callable[..., Any]:
    name, _, parameters = declaration.partition('(')

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f'cupy.cuda.runtime.{name} is not simulated')

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = 'Not simulated.'
    refuse.__signature__ = signatures.signature(parameters[:-1])  # type: ignore[attr-defined]
    return refuse


for _declaration in _ABSENT.split():
    globals()[_declaration.partition('(')[0]] = _absent(_declaration)
