"""``cupy.cuda.runtime`` on the simulated device.

Each function asks one verb of the device and turns its refusal into :class:`CUDARuntimeError`.
The calls about memory are in :mod:`runtime_memory`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.model.rules import CaptureStatus, Mode
from capturekit.simulated.cupy import signatures
from capturekit.simulated.device.constants import ATTRIBUTES, COMPUTE_CAPABILITY, CONSTANTS

from . import runtime_calls as calls
from . import runtime_memory
from .runtime_calls import CUDARuntimeError as CUDARuntimeError
from .runtime_memory import free as free
from .runtime_memory import freeAsync as freeAsync
from .runtime_memory import freeHost as freeHost
from .runtime_memory import hostAlloc as hostAlloc
from .runtime_memory import malloc as malloc
from .runtime_memory import mallocAsync as mallocAsync
from .runtime_memory import mallocManaged as mallocManaged
from .runtime_memory import memcpy as memcpy
from .runtime_memory import memcpy2D as memcpy2D
from .runtime_memory import memcpy2DAsync as memcpy2DAsync
from .runtime_memory import memcpyAsync as memcpyAsync
from .runtime_memory import memcpyPeer as memcpyPeer
from .runtime_memory import memcpyPeerAsync as memcpyPeerAsync
from .runtime_memory import memGetInfo as memGetInfo
from .runtime_memory import memset as memset
from .runtime_memory import memsetAsync as memsetAsync

globals().update(CONSTANTS)

is_hip = False

#: ``cudaErrorMemoryAllocation``, which the pools ask for.
MEMORY_ALLOCATION = 2
_INVALID_VALUE = 1
_INVALID_DEVICE = 101
_PEER_ENABLED = 704
_INVALID_HANDLE = 400
_DISABLE_TIMING = CONSTANTS['eventDisableTiming']
_NON_BLOCKING = CONSTANTS['streamNonBlocking']
_RELAXED = CONSTANTS['streamCaptureModeRelaxed']

_untimed: set[int] = set()


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
    return calls.device().get_device() if calls.is_bound() else 0


def getDeviceCount() -> int:
    return calls.device().device_count


def setDevice(device: int) -> None:
    calls.ask(calls.device().set_device, device)


def check_device(device: int) -> None:
    """Raise CUDARuntimeError for a device that there is not."""
    calls.ask(calls.device()._known, device)


_ATTRIBUTE_VALUES = {CONSTANTS[f'cudaDevAttr{name}']: value for name, value in ATTRIBUTES.items()}
_ATTRIBUTE_VALUES.update({75: COMPUTE_CAPABILITY[0], 76: COMPUTE_CAPABILITY[1]})


def deviceGetAttribute(attrib: int, device: int) -> int:
    check_device(device)
    try:
        return _ATTRIBUTE_VALUES[attrib]
    except KeyError:
        raise CUDARuntimeError(_INVALID_VALUE) from None


def getDeviceProperties(device: int) -> dict[str, Any]:
    check_device(device)
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
    check_device(device)
    return f'0000:{device:02x}:00.0'


def deviceSynchronize() -> None:
    calls.ask(calls.device().device_synchronize)


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    return int(calls.ask(calls.device().can_access_peer, device, peerDevice))


def deviceEnablePeerAccess(peerDevice: int) -> None:
    calls.ask(calls.device().enable_peer_access, peerDevice)


def _deviceEnsurePeerAccess(peerDevice: int) -> None:
    try:
        deviceEnablePeerAccess(peerDevice)
    except CUDARuntimeError as e:
        if e.status != _PEER_ENABLED:
            raise


def profilerStart() -> None:
    """Be an unsafe call, as on a GPU, and do nothing else: there is no profiler."""
    calls.ask(calls.device().unsafe_call, 'profilerStart')


def profilerStop() -> None:
    """Be an unsafe call, as on a GPU, and do nothing else: there is no profiler."""
    calls.ask(calls.device().unsafe_call, 'profilerStop')


# -- memory ---------------------------------------------------------------------------------------------------


def pointerGetAttributes(ptr: int) -> PointerAttributes:
    found = runtime_memory.device_memory.find(ptr)
    if found is not None:
        return PointerAttributes(calls.device().memory_device(ptr - found[1]), ptr, 0, CONSTANTS['memoryTypeDevice'])
    if runtime_memory.pinned_memory.find(ptr) is not None:
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
    s: int = calls.ask(calls.device().stream_create, bool(flags & _NON_BLOCKING), priority)
    return s


def streamGetFlags(stream: int) -> int:
    flags: int = calls.ask(calls.device().stream_flags, stream)
    return flags


def streamGetPriority(stream: int) -> int:
    priority: int = calls.ask(calls.device().stream_priority, stream)
    return priority


def streamDestroy(stream: int) -> None:
    calls.ask(calls.device().stream_destroy, stream)


def streamSynchronize(stream: int) -> None:
    calls.ask(calls.device().stream_synchronize, stream)


def streamAddCallback(stream: int, callback: Callable[..., Any], arg: int, flags: int = 0) -> None:
    calls.ask(calls.device().add_callback, stream, lambda: calls.of_cuda(lambda: callback(stream, 0, arg)))


def launchHostFunc(stream: int, callback: Callable[[Any], Any], arg: Any) -> None:
    calls.ask(calls.device().launch_host_func, stream, lambda: calls.of_cuda(lambda: callback(arg)))


def _launchHostFuncUnmanaged(stream: int, func_arg: tuple[Callable[[Any], Any], Any]) -> None:
    func, arg = func_arg
    launchHostFunc(stream, func, arg)


def streamQuery(stream: int) -> int:
    return calls.status_of(calls.device().stream_query, stream)


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    calls.ask(calls.device().stream_wait_event, stream, event, bool(flags & 1))


def streamBeginCapture(stream: int, mode: int = _RELAXED) -> None:
    if mode not in tuple(Mode):
        raise CUDARuntimeError(_INVALID_VALUE)
    calls.ask(calls.device().begin_capture, stream, Mode(mode))


def streamEndCapture(stream: int) -> int:
    graph: int = calls.ask(calls.device().end_capture, stream)
    return graph


def streamIsCapturing(stream: int) -> bool:
    status = calls.ask(calls.device().stream_status, stream)
    if status is CaptureStatus.INVALIDATED:
        raise RuntimeError('the stream was capturing, but an error has invalidated the capture sequence')
    return status is CaptureStatus.ACTIVE


def eventCreate() -> int:
    return eventCreateWithFlags(0)


def eventCreateWithFlags(flags: int) -> int:
    event: int = calls.ask(calls.device().event_create)
    if flags & _DISABLE_TIMING:
        _untimed.add(event)
    return event


def eventDestroy(event: int) -> None:
    calls.ask(calls.device().event_destroy, event)
    _untimed.discard(event)


def eventElapsedTime(start: int, end: int) -> float:
    if start in _untimed or end in _untimed:
        raise CUDARuntimeError(_INVALID_HANDLE)
    milliseconds: float = calls.ask(calls.device().event_elapsed_time, start, end)
    return milliseconds


def eventQuery(event: int) -> int:
    return calls.status_of(calls.device().event_query, event)


def eventRecord(event: int, stream: int) -> None:
    calls.ask(calls.device().event_record, event, stream)


def eventSynchronize(event: int) -> None:
    calls.ask(calls.device().event_synchronize, event)


# -- graphs ---------------------------------------------------------------------------------------------------


def graphDestroy(graph: int) -> None:
    calls.ask(calls.device().graph_destroy, graph)


def graphExecDestroy(graphExec: int) -> None:
    calls.ask(calls.device().graph_exec_destroy, graphExec)


def graphInstantiate(graph: int) -> int:
    executable: int = calls.ask(calls.device().graph_instantiate, graph)
    return executable


def graphLaunch(graphExec: int, stream: int) -> None:
    calls.ask(calls.device().graph_launch, graphExec, stream)


def graphUpload(graphExec: int, stream: int) -> None:
    calls.ask(calls.device().graph_upload, graphExec, stream)


def graphDebugDotPrint(graph: int, path: str, flags: int) -> None:
    text = calls.ask(calls.device().graph_dot, graph)
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
