"""``cupy.cuda.runtime`` on the simulated device.

Each function asks one verb of the device and turns its refusal into :class:`CUDARuntimeError`.
The calls about memory are in :mod:`runtime_memory`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capturekit.model.rules import CaptureStatus, Mode
from capturekit.simulated.cupy import signatures
from capturekit.simulated.device.constants import ATTRIBUTES, COMPUTE_CAPABILITY, CONSTANTS

from . import runtime_calls as calls
from . import runtime_memory
from .runtime_calls import CUDARuntimeError as CUDARuntimeError

globals().update(CONSTANTS)
_OF_MEMORY = """
    free freeAsync freeHost hostAlloc malloc mallocAsync mallocManaged memcpy memcpy2D memcpy2DAsync memcpyAsync
    memcpyPeer memcpyPeerAsync memGetInfo memset memsetAsync
""".split()
globals().update({name: getattr(runtime_memory, name) for name in _OF_MEMORY})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


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


def getDevice() -> int:
    return calls.device().get_device()


def getDeviceCount() -> int:
    return calls.device().device_count


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
        totalGlobalMem=runtime_memory.memGetInfo()[1],
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


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    return int(calls.ask(calls.device().can_access_peer, device, peerDevice))


def _deviceEnsurePeerAccess(peerDevice: int) -> None:
    try:
        calls.ask(calls.device().enable_peer_access, peerDevice)
    except CUDARuntimeError as e:
        if e.status != _PEER_ENABLED:
            raise


#: Functions that ask one verb of the device with their arguments.
_VERBS = """
    deviceEnablePeerAccess(peerDevice):enable_peer_access deviceSynchronize():device_synchronize
    eventRecord(event,stream):event_record eventSynchronize(event):event_synchronize
    graphDestroy(graph):graph_destroy graphExecDestroy(graphExec):graph_exec_destroy
    graphInstantiate(graph):graph_instantiate graphLaunch(graphExec,stream):graph_launch
    graphUpload(graphExec,stream):graph_upload setDevice(device):set_device streamDestroy(stream):stream_destroy
    streamEndCapture(stream):end_capture streamGetFlags(stream):stream_flags
    streamGetPriority(stream):stream_priority streamSynchronize(stream):stream_synchronize
"""


def _verb(name: str, parameters: str, verb: str) -> Callable[..., Any]:
    call = eval(f'lambda {parameters}: calls.ask(calls.device().{verb}, {parameters or "*()"})', globals())
    return signatures.named(call, name, module=__name__)


for _name, _parameters, _verb_name in re.findall(r'(\w+)\(([\w,]*)\):(\w+)', _VERBS):
    globals()[_name] = _verb(_name, _parameters, _verb_name)
for _name in ('driverGetVersion', 'runtimeGetVersion', '_getLocalRuntimeVersion'):
    globals()[_name] = signatures.named(lambda: 13000, _name, module=__name__)
for _name in ('profilerStart', 'profilerStop'):  # unsafe calls, as on a GPU, and nothing else: there is no profiler
    globals()[_name] = signatures.named(
        lambda: calls.ask(calls.device().unsafe_call, 'profilerStart'), _name, module=__name__
    )


def _getCUDAMajorVersion() -> int:
    return 13


# -- memory ---------------------------------------------------------------------------------------------------


def pointerGetAttributes(ptr: int) -> PointerAttributes:
    found = calls.state.device_memory.find(ptr)
    if found is not None:
        return PointerAttributes(calls.device().memory_device(ptr - found[1]), ptr, 0, CONSTANTS['memoryTypeDevice'])
    if calls.state.pinned_memory.find(ptr) is not None:
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
        calls.state.untimed.add(event)
    return event


def eventDestroy(event: int) -> None:
    calls.ask(calls.device().event_destroy, event)
    calls.state.untimed.discard(event)


def eventElapsedTime(start: int, end: int) -> float:
    if not calls.state.untimed.isdisjoint((start, end)):
        raise CUDARuntimeError(_INVALID_HANDLE)
    milliseconds: float = calls.ask(calls.device().event_elapsed_time, start, end)
    return milliseconds


def eventQuery(event: int) -> int:
    return calls.status_of(calls.device().event_query, event)


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
