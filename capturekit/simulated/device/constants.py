"""The constants of ``cupy.cuda.runtime``, and what the simulated device says it is: plain data, and CuPy's warning."""

from __future__ import annotations

import re

_NUMBERS = """
CUDA_C_16F=6 CUDA_C_32F=4 CUDA_C_64F=5 CUDA_C_8I=7 CUDA_C_8U=9 CUDA_R_16BF=14 CUDA_R_16F=2 CUDA_R_32F=0 CUDA_R_64F=1
CUDA_R_8I=3 CUDA_R_8U=8 cudaCpuDeviceId=-1 cudaInvalidDeviceId=-2 cudaMemAttachGlobal=1 cudaMemAttachHost=2
cudaMemAttachSingle=4 cudaMemoryTypeDevice=2 cudaMemoryTypeHost=1 eventBlockingSync=1 eventDefault=0
eventDisableTiming=2 eventInterprocess=4 hostAllocDefault=0 hostAllocMapped=2 hostAllocPortable=1
hostAllocWriteCombined=4 memcpyDefault=4 memcpyDeviceToDevice=3 memcpyDeviceToHost=2 memcpyHostToDevice=1
memcpyHostToHost=0 memoryTypeDevice=2 memoryTypeHost=1 memoryTypeManaged=3 memoryTypeUnregistered=0
streamCaptureModeGlobal=0 streamCaptureModeRelaxed=2 streamCaptureModeThreadLocal=1 streamCaptureStatusActive=1
streamCaptureStatusInvalidated=2 streamCaptureStatusNone=0 streamDefault=0 streamLegacy=1 streamNonBlocking=1
streamPerThread=2
"""

#: Constants of ``cupy.cuda.runtime`` (CUDA 13) by name: those of calls and attributes that the simulated device has.
CONSTANTS: dict[str, int] = {name: int(number) for name, number in (pair.split('=') for pair in _NUMBERS.split())}

#: CUDA's name and text for each error code that the simulated device can answer with.
_ERRORS = """
    1 cudaErrorInvalidValue: invalid argument
    2 cudaErrorMemoryAllocation: out of memory
    35 cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version
    98 cudaErrorInvalidDeviceFunction: invalid device function
    100 cudaErrorNoDevice: no CUDA-capable device is detected
    101 cudaErrorInvalidDevice: invalid device ordinal
    400 cudaErrorInvalidResourceHandle: invalid resource handle
    401 cudaErrorIllegalState: the operation cannot be performed in the present state
    600 cudaErrorNotReady: device not ready
    700 cudaErrorIllegalAddress: an illegal memory access was encountered
    800 cudaErrorNotPermitted: operation not permitted
    801 cudaErrorNotSupported: operation not supported
    900 cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing
    901 cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during capture
    902 cudaErrorStreamCaptureMerge: operation would result in a merge of separate capture sequences
    903 cudaErrorStreamCaptureUnmatched: capture was not ended in the same stream as it began
    904 cudaErrorStreamCaptureUnjoined: capturing stream has unjoined work
    905 cudaErrorStreamCaptureIsolation: dependency created on uncaptured work in another stream
    906 cudaErrorStreamCaptureImplicit: operation would make the legacy stream depend on a capturing blocking stream
    907 cudaErrorCapturedEvent: operation not permitted on an event last recorded in a capturing stream
    908 cudaErrorStreamCaptureWrongThread: attempt to terminate a thread-local capture sequence from another thread
    909 cudaErrorTimeout: wait operation timed out
    910 cudaErrorGraphExecUpdateFailure: the graph update was not performed because it included changes which
        violated constraints specific to instantiated graph update
"""
ERRORS: dict[int, tuple[str, str]] = {
    int(number): (name, ' '.join(text.split())) for number, name, text in re.findall(r'(\d+) (\w+): ([^\d]+)', _ERRORS)
}

#: What ``deviceGetAttribute`` answers, by name: the number to ask with, and the value; an H100's where programs look.
_ATTRIBUTES = """
    MaxThreadsPerBlock=1:1024 MaxBlockDimX=2:1024 MaxBlockDimY=3:1024 MaxBlockDimZ=4:64 MaxGridDimX=5:2147483647
    MaxGridDimY=6:65535 MaxGridDimZ=7:65535 MaxSharedMemoryPerBlock=8:49152 TotalConstantMemory=9:65536 WarpSize=10:32
    MaxRegistersPerBlock=12:65536 ClockRate=13:1980000 GpuOverlap=15:1 MultiProcessorCount=16:132 CanMapHostMemory=19:1
    ConcurrentKernels=31:1 L2CacheSize=38:52428800 MaxThreadsPerMultiProcessor=39:2048 AsyncEngineCount=40:3
    UnifiedAddressing=41:1 StreamPrioritiesSupported=78:1 ManagedMemory=83:0 CooperativeLaunch=95:1
    MemoryPoolsSupported=115:1 PageableMemoryAccess=88:0
"""
_PARTS = [re.split('[=:]', one) for one in _ATTRIBUTES.split()]
ATTRIBUTES: dict[str, int] = {name: int(value) for name, _number, value in _PARTS}
CONSTANTS.update((f'cudaDevAttr{name}', int(number)) for name, number, _value in _PARTS)

COMPUTE_CAPABILITY = (9, 0)


class PerformanceWarning(RuntimeWarning):
    """``cupy._util.PerformanceWarning``: what was asked for works, slowly.

    It is one class for all devices and says this module, not CuPy's: who is told of a warning by the names of its
    module and class (pytest-xdist's controller is) finds it without the stand-in.
    """
