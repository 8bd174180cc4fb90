"""CUDA's functions by name, and the operation of the table of rules that each of them is.

A tool of NVIDIA's names a function with its version and, where stream 0 is the thread's own stream, with a mark of
that: ``cudaStreamSynchronize_ptsz_v7000``. The runtime's functions and the driver's differ in little more than the
prefix, so one table serves for both. A function that is not in it is not followed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from capturekit.model.rules import Mode, Operation

_O = Operation
_NAME = re.compile(r'(?P<shown>cu(?:da)?(?P<plain>[A-Z]\w*?))(?:_v\d+)?(?P<own>_pt(?:sz|ds))?(?:_v\d+)?$')

#: The names of the functions that each operation stands for, without prefix, version and mark.
_NAMES = {
    _O.BEGIN_CAPTURE: 'StreamBeginCapture StreamBeginCaptureToGraph',
    _O.END_CAPTURE: 'StreamEndCapture',
    _O.STREAM_SYNCHRONIZE: 'StreamSynchronize',
    _O.STREAM_QUERY: 'StreamQuery',
    _O.STREAM_GET_FLAGS: 'StreamGetFlags',
    _O.STREAM_ADD_CALLBACK: 'StreamAddCallback',
    _O.WAIT_EVENT: 'StreamWaitEvent',
    _O.EVENT_RECORD: 'EventRecord EventRecordWithFlags',
    _O.EVENT_QUERY: 'EventQuery',
    _O.EVENT_SYNCHRONIZE: 'EventSynchronize',
    _O.EVENT_ELAPSED_TIME: 'EventElapsedTime',
    _O.EVENT_DESTROY: 'EventDestroy',
    _O.LAUNCH_HOST_FUNC: 'LaunchHostFunc',
    _O.DEVICE_SYNCHRONIZE: 'DeviceSynchronize CtxSynchronize',
    _O.GRAPH_LAUNCH: 'GraphLaunch',
    _O.GRAPH_UPLOAD: 'GraphUpload',
    _O.PEER_COPY: 'MemcpyPeerAsync',
    _O.PREFETCH: 'MemPrefetchAsync',
    _O.MALLOC_ASYNC: 'MallocAsync MallocFromPoolAsync MemAllocAsync MemAllocFromPoolAsync',
    _O.FREE_ASYNC: 'FreeAsync MemFreeAsync',
    _O.WORK: (
        'LaunchKernel LaunchKernelEx LaunchKernelExC LaunchCooperativeKernel MemcpyAsync MemcpyHtoDAsync '
        'MemcpyDtoHAsync MemcpyDtoDAsync Memcpy2DAsync Memcpy3DAsync MemsetAsync Memset2DAsync MemsetD8Async '
        'MemsetD16Async MemsetD32Async MemsetD2D8Async MemsetD2D16Async MemsetD2D32Async MemcpyToSymbolAsync '
        'MemcpyFromSymbolAsync StreamWaitValue32 StreamWaitValue64 StreamWriteValue32 StreamWriteValue64 '
        'StreamBatchMemOp'
    ),
    _O.LEGACY_WORK: (
        'Memcpy Memcpy2D Memcpy3D MemcpyPeer MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyToSymbol MemcpyFromSymbol Memset '
        'Memset2D Memset3D MemsetD8 MemsetD16 MemsetD32 MemsetD2D8 MemsetD2D16 MemsetD2D32'
    ),
    _O.UNSAFE: (
        'Malloc MallocManaged MallocArray Malloc3DArray MallocPitch MallocHost HostAlloc Free FreeHost HostRegister '
        'HostUnregister MemAlloc MemAllocPitch MemAllocManaged MemAllocHost MemHostAlloc MemFree MemFreeHost '
        'MemHostRegister MemHostUnregister GraphInstantiate GraphInstantiateWithFlags GraphInstantiateWithParams '
        'GraphExecDestroy ProfilerStart ProfilerStop DeviceSetLimit CtxSetLimit DeviceSetMemPool MemPoolTrimTo '
        'MemPoolCreate MemPoolDestroy MemPoolGetAttribute MemPoolSetAttribute MemAdvise ModuleUnload'
    ),
}
OPERATIONS = {name: operation for operation, names in _NAMES.items() for name in names.split()}
#: ``cudaThreadExchangeStreamCaptureMode`` belongs to no operation: it changes what later calls of its thread lose.
EXCHANGE = 'ThreadExchangeStreamCaptureMode'
#: The operations that change what a stream or an event stands for.
FOLLOWED = (_O.BEGIN_CAPTURE, _O.END_CAPTURE, _O.WAIT_EVENT, _O.EVENT_RECORD, _O.EVENT_DESTROY)
#: Copies that end in the host's memory.
_READS = ('MemcpyDtoH', 'MemcpyDtoHAsync', 'MemcpyFromSymbol', 'MemcpyFromSymbolAsync')


@dataclass(frozen=True)
class Function:
    """A function of CUDA's.

    Attributes:
        shown: its name as code has it: ``'cudaStreamSynchronize'``. operation: what the table of rules calls it; None
            for the exchange of a thread's mode. own: whether stream 0 is the thread's own stream. reads: whether it
            copies to the host.
    """

    shown: str
    operation: Operation | None
    own: bool = False
    reads: bool = False


@cache
def function(name: str) -> Function | None:
    """Return the function of a name that CUPTI gave; None for one that is not followed."""
    found = _NAME.match(name)
    if found is None:
        return None
    plain = found['plain']
    if plain != EXCHANGE and plain not in OPERATIONS:
        return None
    return Function(found['shown'], OPERATIONS.get(plain), found['own'] is not None, plain in _READS)


@dataclass(frozen=True)
class ApiCall:
    """One call of a function of CUDA's, as it is told before and after it is made.

    Attributes:
        function: its name: ``'cudaStreamSynchronize'``. operation: None for an exchange of the thread's mode.
        thread: who makes it, by ``threading.get_ident()``. stream, event, event2: handles among its arguments, or None.
        mode: of a capture that it begins, or of the thread. external: the event stands for a node of its own. reads: it
            copies to the host.
    """

    function: str
    operation: Operation | None
    thread: int
    stream: int | None = None
    event: int | None = None
    event2: int | None = None
    mode: Mode | None = None
    external: bool = False
    reads: bool = False
