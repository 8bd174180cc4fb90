"""``cupy.cuda.runtime`` on the simulated device.

Each function asks one verb of the device and turns its refusal into :class:`CUDARuntimeError`.
Device memory lies at simulated addresses, pinned memory at its true host address, so that NumPy's own
``array.ctypes.data`` can be recognised as pinned.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capturekit.model.rules import CaptureStatus, Mode
from capturekit.model.skipped_exits import Lock
from capturekit.simulated.cupy import surface
from capturekit.simulated.device.address_space import GARBAGE, Bytes
from capturekit.simulated.device.constants import ATTRIBUTES, COMPUTE_CAPABILITY, CONSTANTS
from capturekit.simulated.device.graph_nodes import Given

from . import runtime_calls as calls
from .runtime_calls import CUDARuntimeError as CUDARuntimeError

_INVALID_VALUE = 1
ILLEGAL_ADDRESS = 700
_H2H, _H2D, _D2H = (CONSTANTS[f'memcpy{kind}'] for kind in ('HostToHost', 'HostToDevice', 'DeviceToHost'))

_recorded_lock = Lock()
_UNIT = 512


def malloc(size: int) -> int:
    ptr: int = calls.ask(calls.device().malloc, size)
    calls.state.device_memory.add(ptr, np.full(max(size, 1), GARBAGE, np.uint8))
    return ptr


def spoil(stream: int, ptr: int, size: int) -> None:
    """Let a block that was in use before hold garbage, in the order of the stream that gets it."""
    if not calls.is_late():
        return

    def work() -> None:
        found = calls.state.device_memory.find(ptr, size)
        if found is not None:
            found[0][found[1] : found[1] + size] = GARBAGE

    calls.device().spoil(stream, work)


def first_recorded(ptr: int, size: int) -> bool:
    """Note that recorded work uses a block; whether all of it is new to recorded work, so that nothing reads it yet."""
    block, offset = device_block(ptr, size)
    with _recorded_lock:
        used = calls.state.recorded.get(ptr - offset)
        if used is None:
            used = calls.state.recorded[ptr - offset] = np.zeros(-(-block.size // _UNIT), np.bool_)
        units = used[offset // _UNIT : -(-(offset + size) // _UNIT)]
        first = not units.any() and not calls.device().busy()
        units[:] = True
        return first


def mallocManaged(size: int, flags: int = CONSTANTS['cudaMemAttachGlobal']) -> int:
    return malloc(size)


def mallocAsync(size: int, stream: int) -> int:
    with _relaxed():
        recorded = calls.submit(stream, lambda: None, 'mallocAsync', 'memAlloc')
        ptr = malloc(size)
        if recorded:
            calls.state.of_graphs.add(ptr)
        return ptr


@contextlib.contextmanager
def _relaxed() -> Iterator[None]:
    """Stream-ordered allocation is no unsafe call: the device's verdict on ``cudaMalloc`` must not apply."""
    old = calls.device().exchange_thread_mode(Mode.RELAXED)
    try:
        yield
    finally:
        calls.device().exchange_thread_mode(old)


def free(ptr: int) -> None:
    if ptr:
        calls.ask(calls.device().free, ptr)
        calls.after_all(lambda: _let_go(ptr))


def _let_go(ptr: int) -> None:
    calls.state.device_memory.remove(ptr)
    calls.state.of_graphs.discard(ptr)
    calls.state.recorded.pop(ptr, None)


def freeAsync(ptr: int, stream: int) -> None:
    captured = (
        stream > CONSTANTS['streamPerThread']
        and calls.ask(calls.device().stream_status, stream) is CaptureStatus.ACTIVE
    )
    if captured and ptr not in calls.state.of_graphs:
        raise calls.CUDARuntimeError(_INVALID_VALUE)
    with _relaxed():
        # A free recorded in a graph leaves the memory to the graph, which allocates it again at each launch.
        if not captured:
            calls.ask(calls.device().free, ptr)
        calls.submit(stream, lambda: None if captured else _let_go(ptr), 'freeAsync', 'memFree')


def hostAlloc(size: int, flags: int) -> int:
    calls.ask(calls.device()._unsafe, 'hostAlloc')
    block = np.zeros(max(size, 1), np.uint8)
    ptr = block.ctypes.data
    calls.state.pinned_memory.add(ptr, block)
    return ptr


def freeHost(ptr: int) -> None:
    calls.ask(calls.device()._unsafe, 'freeHost')
    if calls.state.pinned_memory.find(ptr) is None:
        raise calls.CUDARuntimeError(_INVALID_VALUE)
    calls.after_all(lambda: calls.state.pinned_memory.remove(ptr))


def device_bytes(ptr: int, size: int) -> Bytes:
    """Return the bytes at a device address, as a view. Raises cudaErrorIllegalAddress where there are none."""
    block, offset = device_block(ptr, size)
    return block[offset : offset + size]


def device_block(ptr: int, size: int) -> tuple[Bytes, int]:
    """Return the whole block around a device address and the offset in it."""
    found = calls.state.device_memory.find(ptr, size)
    if found is None:
        raise calls.CUDARuntimeError(ILLEGAL_ADDRESS)
    return found


def host_bytes(ptr: int, size: int) -> Bytes:
    """Return the bytes at a host address, as a view."""
    found = calls.state.pinned_memory.find(ptr, size)
    if found is not None:
        return found[0][found[1] : found[1] + size]
    return np.frombuffer((ctypes.c_ubyte * size).from_address(ptr), np.uint8)


def _any_bytes(ptr: int, size: int) -> Bytes:
    return (host_bytes if calls.state.device_memory.find(ptr, size) is None else device_bytes)(ptr, size)


def _copy(dst: int, src: int, size: int, kind: int) -> None:
    if not size:
        return
    to = host_bytes if kind in (_H2H, _D2H) else device_bytes if kind == _H2D else _any_bytes
    of = host_bytes if kind in (_H2H, _H2D) else device_bytes if kind == _D2H else _any_bytes
    to(dst, size)[:] = of(src, size).copy()


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    calls.ask(calls.device().legacy_call, 'memcpy')
    _at_once(lambda: _copy(dst, src, size, kind), _is_host(dst) or _is_host(src))


def _at_once(work: Callable[[], None], waits: bool = True) -> None:
    """What the legacy stream does for a synchronous call; ``waits``: the host waits for it."""
    queue = calls.device().queue
    if queue is None:
        work()
        return
    done = queue.put(queue.legacy(calls.device().get_device()), work)
    if waits:
        queue.wait([done])


def _is_host(address: int) -> bool:
    return calls.state.device_memory.find(address) is None


def _is_pageable(address: int) -> bool:
    return _is_host(address) and calls.state.pinned_memory.find(address) is None


def _submit_copy(
    stream: int, work: Callable[[], None], given: Given | None, name: str, rows: tuple[int, int, int, int, int, int]
) -> None:
    """Copy rows: what comes from pageable memory is taken at once, and the host waits for what goes there."""
    dst, dpitch, src, spitch, width, height = rows
    size = spitch * (height - 1) + width if width and height else 0
    if not calls.is_late() or not size or calls.is_captured(stream):
        calls.submit(stream, work, name, 'memcpy', given)
        return
    if _is_pageable(src):
        taken = host_bytes(src, size).copy()

        def work() -> None:
            for row in range(height):
                _any_bytes(dst + row * dpitch, width)[:] = taken[row * spitch : row * spitch + width]

    calls.submit(stream, work, name, 'memcpy', given)
    if _is_pageable(dst):
        calls.ask(calls.device().wait_for, stream)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    values = {'dst': dst, 'src': src, 'bytes': size}

    def make(**now: int) -> Callable[[], None]:
        return lambda: _copy(now['dst'], now['src'], now['bytes'], kind)

    given = Given(values, make, _in_memory_like(values))
    _submit_copy(stream, given.work(), given, 'memcpyAsync', (dst, size, src, size, size, 1))


def _copy_rows(dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int) -> None:
    for row in range(height):
        _copy(dst + row * dpitch, src + row * spitch, width, kind)


def memcpy2D(dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int) -> None:
    calls.ask(calls.device().legacy_call, 'memcpy2D')
    rows = (dst, dpitch, src, spitch, width, height, kind)
    _at_once(lambda: _copy_rows(*rows), _is_host(dst) or _is_host(src))


def memcpy2DAsync(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    rows = (dst, dpitch, src, spitch, width, height)
    _submit_copy(stream, lambda: _copy_rows(*rows, kind), None, 'memcpy2DAsync', rows)


def memcpyPeer(dst: int, dstDevice: int, src: int, srcDevice: int, size: int) -> None:
    memcpy(dst, src, size, CONSTANTS['memcpyDeviceToDevice'])


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    memcpyAsync(dst, src, size, CONSTANTS['memcpyDeviceToDevice'], stream)


def _in_memory_like(values: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Mapping[str, Any]], bool]:
    """Whether a node may go to other addresses: device memory takes the place of device memory alone."""
    ends = {end: calls.state.device_memory.find(values[end]) is None for end in ('dst', 'src') if end in values}
    return lambda _old, new: all(
        (calls.state.device_memory.find(new[end]) is None) == host for end, host in ends.items()
    )


def _fill(ptr: int, value: int, size: int) -> None:
    if size:
        device_bytes(ptr, size)[:] = value & 0xFF


def memset(ptr: int, value: int, size: int) -> None:
    calls.ask(calls.device().legacy_call, 'memset')
    _at_once(lambda: _fill(ptr, value, size), _is_host(ptr))


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    values = {'dst': ptr, 'value': value, 'bytes': size}

    def make(**now: int) -> Callable[[], None]:
        return lambda: _fill(now['dst'], now['value'], now['bytes'])

    given = Given(values, make, _in_memory_like(values))
    calls.submit(stream, given.work(), 'memsetAsync', 'memset', given)


globals().update(CONSTANTS)

if TYPE_CHECKING:
    getDevice: Callable[[], int]
    memGetInfo: Callable[[], tuple[int, int]]
    eventQuery: Callable[[int], int]
    streamQuery: Callable[[int], int]
    pointerGetMemoryType: Callable[[int], int]

    def __getattr__(name: str) -> Any: ...


is_hip = False

#: ``cudaErrorMemoryAllocation``, which the pools ask for.
MEMORY_ALLOCATION = 2
_PEER_ENABLED = 704
_INVALID_HANDLE = 400
_DISABLE_TIMING = CONSTANTS['eventDisableTiming']
_RELAXED = CONSTANTS['streamCaptureModeRelaxed']


class PointerAttributes(NamedTuple):
    """What ``cudaPointerGetAttributes`` says of an address."""

    device: int
    devicePointer: int
    hostPointer: int
    type: int = -1


# -- device ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _on(device: int) -> Iterator[None]:
    """Another device for a while, as CuPy's C code takes it: no ``with Device`` that anybody sees."""
    before = calls.device().get_device()
    calls.ask(calls.device().set_device, device)
    try:
        yield
    finally:
        calls.device().set_device(before)


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
        totalGlobalMem=calls.device().mem_get_info()[1],
        major=COMPUTE_CAPABILITY[0],
        minor=COMPUTE_CAPABILITY[1],
        sharedMemPerBlock=ATTRIBUTES['MaxSharedMemoryPerBlock'],
        l2CacheSize=ATTRIBUTES['L2CacheSize'],
        maxThreadsDim=tuple(ATTRIBUTES[f'MaxBlockDim{axis}'] for axis in 'XYZ'),
        maxGridSize=tuple(ATTRIBUTES[f'MaxGridDim{axis}'] for axis in 'XYZ'),
    )
    return properties


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


#: Functions that are one expression.
_EXPRESSIONS = """
    deviceCanAccessPeer(device, peerDevice): int(calls.ask(calls.device().can_access_peer, device, peerDevice))
    driverGetVersion(): 13000
    eventCreate(): eventCreateWithFlags(0)
    eventQuery(event): calls.status_of(calls.device().event_query, event)
    getDevice(): calls.device().get_device()
    getDeviceCount(): calls.device().device_count
    memGetInfo(): calls.device().mem_get_info()
    pointerGetMemoryType(ptr): pointerGetAttributes(ptr).type
    runtimeGetVersion(): 13000
    streamCreate(): calls.ask(calls.device().stream_create)
    streamCreateWithFlags(flags): calls.ask(calls.device().stream_create, bool(flags & 1))
    streamCreateWithPriority(flags, priority): calls.ask(calls.device().stream_create, bool(flags & 1), priority)
    streamQuery(stream): calls.status_of(calls.device().stream_query, stream)
    streamWaitEvent(stream, event, flags=0): calls.ask(calls.device().stream_wait_event, stream, event, bool(flags & 1))
"""


def _expression(name: str, parameters: str, text: str) -> Callable[..., Any]:
    code = compile(f'lambda {parameters}: {text}', __file__, 'eval')  # what tells code of CuPy's goes by its file
    return surface.named(eval(code, globals()), name, module=__name__)


for _name, _parameters, _text in re.findall(r'(\w+)\((.*)\): (.+)', _EXPRESSIONS):
    globals()[_name] = _expression(_name, _parameters, _text)
for _name, _parameters, _text in re.findall(r'(\w+)\(([\w,]*)\):(\w+)', _VERBS):
    globals()[_name] = _expression(_name, _parameters, f'calls.ask(calls.device().{_text}, {_parameters or "*()"})')
for _name in ('profilerStart', 'profilerStop'):  # unsafe calls, as on a GPU, and nothing else: there is no profiler
    globals()[_name] = surface.named(
        lambda: calls.ask(calls.device().unsafe_call, 'profilerStart'), _name, module=__name__
    )


# -- memory ---------------------------------------------------------------------------------------------------


def pointerGetAttributes(ptr: int) -> PointerAttributes:
    found = calls.state.device_memory.find(ptr)
    if found is not None:
        return PointerAttributes(calls.device().memory_device(ptr - found[1]), ptr, 0, CONSTANTS['memoryTypeDevice'])
    if calls.state.pinned_memory.find(ptr) is not None:
        return PointerAttributes(0, ptr, ptr, CONSTANTS['memoryTypeHost'])
    return PointerAttributes(CONSTANTS['cudaInvalidDeviceId'], 0, ptr, CONSTANTS['memoryTypeUnregistered'])


# -- streams and events ---------------------------------------------------------------------------------------


def streamAddCallback(stream: int, callback: Callable[..., Any], arg: int, flags: int = 0) -> None:
    calls.ask(calls.device().add_callback, stream, lambda: calls.of_cuda(lambda: callback(stream, 0, arg)))


def launchHostFunc(stream: int, callback: Callable[[Any], Any], arg: Any) -> None:
    calls.ask(calls.device().launch_host_func, stream, lambda: calls.of_cuda(lambda: callback(arg)))


def _launchHostFuncUnmanaged(stream: int, func_arg: tuple[Callable[[Any], Any], Any]) -> None:
    func, arg = func_arg
    launchHostFunc(stream, func, arg)


def streamBeginCapture(stream: int, mode: int = _RELAXED) -> None:
    if mode not in tuple(Mode):
        raise CUDARuntimeError(_INVALID_VALUE)
    calls.ask(calls.device().begin_capture, stream, Mode(mode))


def streamIsCapturing(stream: int) -> bool:
    status = calls.ask(calls.device().stream_status, stream)
    if status is CaptureStatus.INVALIDATED:
        raise RuntimeError('the stream was capturing, but an error has invalidated the capture sequence')
    return status is CaptureStatus.ACTIVE


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
    return float(calls.ask(calls.device().event_elapsed_time, start, end))


def graphDebugDotPrint(graph: int, path: str, flags: int) -> None:
    text = calls.ask(calls.device().graph_dot, graph)
    with open(path, 'w') as f:
        f.write(text)


# -- what the simulated device has not, and the guard judges ---------------------------------------------------

_ABSENT = """
    deviceSetLimit deviceSetMemPool freeArray hostRegister hostUnregister malloc3DArray mallocArray mallocFromPoolAsync
    memAdvise memPoolCreate memPoolDestroy memPoolGetAttribute memPoolSetAttribute memPoolTrimTo memPrefetchAsync
    memcpy2DFromArray memcpy2DFromArrayAsync memcpy2DToArray memcpy2DToArrayAsync memcpy3D
    memcpy3DAsync
"""


def _absent(name: str) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        raise NotImplementedError(f"the simulated CuPy has no '{name}' in module 'cupy.cuda.runtime'")

    return refuse


for _name in _ABSENT.split():
    globals()[_name] = _absent(_name)
