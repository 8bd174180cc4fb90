"""The constants of ``cupy.cuda.runtime``, and what the simulated device says it is: plain data, and CuPy's warning."""

from __future__ import annotations

_NUMBERS = """
CUDA_C_16F=6 CUDA_C_32F=4 CUDA_C_64F=5 CUDA_C_8I=7 CUDA_C_8U=9 CUDA_R_16BF=14 CUDA_R_16F=2 CUDA_R_32F=0 CUDA_R_64F=1
CUDA_R_8I=3 CUDA_R_8U=8 cudaAddressModeBorder=3 cudaAddressModeClamp=1 cudaAddressModeMirror=2 cudaAddressModeWrap=0
cudaArrayDefault=0 cudaArraySurfaceLoadStore=2 cudaChannelFormatKindFloat=2 cudaChannelFormatKindNone=3
cudaChannelFormatKindSigned=0 cudaChannelFormatKindUnsigned=1 cudaCpuDeviceId=-1 cudaDevAttrAsyncEngineCount=40
cudaDevAttrCanFlushRemoteWrites=98 cudaDevAttrCanMapHostMemory=19 cudaDevAttrCanUseHostPointerForRegisteredMem=91
cudaDevAttrClockRate=13 cudaDevAttrComputeMode=20 cudaDevAttrComputePreemptionSupported=90
cudaDevAttrConcurrentKernels=31 cudaDevAttrConcurrentManagedAccess=89 cudaDevAttrCooperativeLaunch=95
cudaDevAttrCooperativeMultiDeviceLaunch=96 cudaDevAttrDirectManagedMemAccessFromHost=101 cudaDevAttrEccEnabled=32
cudaDevAttrGPUDirectRDMAFlushWritesOptions=117 cudaDevAttrGPUDirectRDMASupported=116
cudaDevAttrGPUDirectRDMAWritesOrdering=118 cudaDevAttrGlobalL1CacheSupported=79 cudaDevAttrGlobalMemoryBusWidth=37
cudaDevAttrGpuOverlap=15 cudaDevAttrHostNativeAtomicSupported=86 cudaDevAttrHostRegisterReadOnlySupported=113
cudaDevAttrHostRegisterSupported=99 cudaDevAttrIntegrated=18 cudaDevAttrIsMultiGpuBoard=84
cudaDevAttrKernelExecTimeout=17 cudaDevAttrL2CacheSize=38 cudaDevAttrLocalL1CacheSupported=80
cudaDevAttrManagedMemory=83 cudaDevAttrMaxBlockDimX=2 cudaDevAttrMaxBlockDimY=3 cudaDevAttrMaxBlockDimZ=4
cudaDevAttrMaxBlocksPerMultiprocessor=106 cudaDevAttrMaxGridDimX=5 cudaDevAttrMaxGridDimY=6 cudaDevAttrMaxGridDimZ=7
cudaDevAttrMaxPitch=11 cudaDevAttrMaxRegistersPerBlock=12 cudaDevAttrMaxRegistersPerMultiprocessor=82
cudaDevAttrMaxSharedMemoryPerBlock=8 cudaDevAttrMaxSharedMemoryPerBlockOptin=97
cudaDevAttrMaxSharedMemoryPerMultiprocessor=81 cudaDevAttrMaxSurface1DLayeredLayers=62
cudaDevAttrMaxSurface1DLayeredWidth=61 cudaDevAttrMaxSurface1DWidth=55 cudaDevAttrMaxSurface2DHeight=57
cudaDevAttrMaxSurface2DLayeredHeight=64 cudaDevAttrMaxSurface2DLayeredLayers=65
cudaDevAttrMaxSurface2DLayeredWidth=63 cudaDevAttrMaxSurface2DWidth=56 cudaDevAttrMaxSurface3DDepth=60
cudaDevAttrMaxSurface3DHeight=59 cudaDevAttrMaxSurface3DWidth=58 cudaDevAttrMaxSurfaceCubemapLayeredLayers=68
cudaDevAttrMaxSurfaceCubemapLayeredWidth=67 cudaDevAttrMaxSurfaceCubemapWidth=66
cudaDevAttrMaxTexture1DLayeredLayers=43 cudaDevAttrMaxTexture1DLayeredWidth=42 cudaDevAttrMaxTexture1DLinearWidth=69
cudaDevAttrMaxTexture1DMipmappedWidth=77 cudaDevAttrMaxTexture1DWidth=21 cudaDevAttrMaxTexture2DGatherHeight=46
cudaDevAttrMaxTexture2DGatherWidth=45 cudaDevAttrMaxTexture2DHeight=23 cudaDevAttrMaxTexture2DLayeredHeight=28
cudaDevAttrMaxTexture2DLayeredLayers=29 cudaDevAttrMaxTexture2DLayeredWidth=27
cudaDevAttrMaxTexture2DLinearHeight=71 cudaDevAttrMaxTexture2DLinearPitch=72 cudaDevAttrMaxTexture2DLinearWidth=70
cudaDevAttrMaxTexture2DMipmappedHeight=74 cudaDevAttrMaxTexture2DMipmappedWidth=73 cudaDevAttrMaxTexture2DWidth=22
cudaDevAttrMaxTexture3DDepth=26 cudaDevAttrMaxTexture3DDepthAlt=49 cudaDevAttrMaxTexture3DHeight=25
cudaDevAttrMaxTexture3DHeightAlt=48 cudaDevAttrMaxTexture3DWidth=24 cudaDevAttrMaxTexture3DWidthAlt=47
cudaDevAttrMaxTextureCubemapLayeredLayers=54 cudaDevAttrMaxTextureCubemapLayeredWidth=53
cudaDevAttrMaxTextureCubemapWidth=52 cudaDevAttrMaxThreadsPerBlock=1 cudaDevAttrMaxThreadsPerMultiProcessor=39
cudaDevAttrMaxTimelineSemaphoreInteropSupported=114 cudaDevAttrMemoryClockRate=36
cudaDevAttrMemoryPoolSupportedHandleTypes=119 cudaDevAttrMemoryPoolsSupported=115 cudaDevAttrMultiGpuBoardGroupID=85
cudaDevAttrMultiProcessorCount=16 cudaDevAttrPageableMemoryAccess=88
cudaDevAttrPageableMemoryAccessUsesHostPageTables=100 cudaDevAttrPciBusId=33 cudaDevAttrPciDeviceId=34
cudaDevAttrPciDomainId=50 cudaDevAttrReserved92=92 cudaDevAttrReserved93=93 cudaDevAttrReserved94=94
cudaDevAttrReservedSharedMemoryPerBlock=111 cudaDevAttrSingleToDoublePrecisionPerfRatio=87
cudaDevAttrSparseCudaArraySupported=112 cudaDevAttrStreamPrioritiesSupported=78 cudaDevAttrSurfaceAlignment=30
cudaDevAttrTccDriver=35 cudaDevAttrTextureAlignment=14 cudaDevAttrTexturePitchAlignment=51
cudaDevAttrTotalConstantMemory=9 cudaDevAttrUnifiedAddressing=41 cudaDevAttrWarpSize=10 cudaFilterModeLinear=1
cudaFilterModePoint=0 cudaGraphDebugDotFlagsConditionalNodeParams=32768 cudaGraphDebugDotFlagsEventNodeParams=64
cudaGraphDebugDotFlagsExtSemasSignalNodeParams=128 cudaGraphDebugDotFlagsExtSemasWaitNodeParams=256
cudaGraphDebugDotFlagsHandles=1024 cudaGraphDebugDotFlagsHostNodeParams=32
cudaGraphDebugDotFlagsKernelNodeAttributes=512 cudaGraphDebugDotFlagsKernelNodeParams=4
cudaGraphDebugDotFlagsMemcpyNodeParams=8 cudaGraphDebugDotFlagsMemsetNodeParams=16 cudaGraphDebugDotFlagsVerbose=1
cudaInvalidDeviceId=-2 cudaIpcMemLazyEnablePeerAccess=1 cudaLimitDevRuntimePendingLaunchCount=4
cudaLimitDevRuntimeSyncDepth=3 cudaLimitMallocHeapSize=2 cudaLimitMaxL2FetchGranularity=5 cudaLimitPrintfFifoSize=1
cudaLimitStackSize=0 cudaMemAdviseSetAccessedBy=5 cudaMemAdviseSetPreferredLocation=3 cudaMemAdviseSetReadMostly=1
cudaMemAdviseUnsetAccessedBy=6 cudaMemAdviseUnsetPreferredLocation=4 cudaMemAdviseUnsetReadMostly=2
cudaMemAllocationTypePinned=1 cudaMemAttachGlobal=1 cudaMemAttachHost=2 cudaMemAttachSingle=4
cudaMemHandleTypeNone=0 cudaMemHandleTypePosixFileDescriptor=1 cudaMemLocationTypeDevice=1 cudaMemLocationTypeHost=2
cudaMemLocationTypeHostNuma=3 cudaMemLocationTypeHostNumaCurrent=4 cudaMemLocationTypeInvalid=0
cudaMemPoolAttrReleaseThreshold=4 cudaMemPoolAttrReservedMemCurrent=5 cudaMemPoolAttrReservedMemHigh=6
cudaMemPoolAttrUsedMemCurrent=7 cudaMemPoolAttrUsedMemHigh=8 cudaMemPoolReuseAllowInternalDependencies=3
cudaMemPoolReuseAllowOpportunistic=2 cudaMemPoolReuseFollowEventDependencies=1 cudaMemoryTypeDevice=2
cudaMemoryTypeHost=1 cudaReadModeElementType=0 cudaReadModeNormalizedFloat=1 cudaResourceTypeArray=0
cudaResourceTypeLinear=2 cudaResourceTypeMipmappedArray=1 cudaResourceTypePitch2D=3 eventBlockingSync=1
eventDefault=0 eventDisableTiming=2 eventInterprocess=4 hostAllocDefault=0 hostAllocMapped=2 hostAllocPortable=1
hostAllocWriteCombined=4 memcpyDefault=4 memcpyDeviceToDevice=3 memcpyDeviceToHost=2 memcpyHostToDevice=1
memcpyHostToHost=0 memoryTypeDevice=2 memoryTypeHost=1 memoryTypeManaged=3 memoryTypeUnregistered=0
streamCaptureModeGlobal=0 streamCaptureModeRelaxed=2 streamCaptureModeThreadLocal=1 streamCaptureStatusActive=1
streamCaptureStatusInvalidated=2 streamCaptureStatusNone=0 streamDefault=0 streamLegacy=1 streamNonBlocking=1
streamPerThread=2
"""

#: Every integer constant of ``cupy.cuda.runtime`` (CuPy 14, CUDA 13), by name.
CONSTANTS: dict[str, int] = {name: int(number) for name, number in (pair.split('=') for pair in _NUMBERS.split())}

#: CUDA's name and text for each error code that the simulated device can answer with.
ERRORS: dict[int, tuple[str, str]] = {
    1: ('cudaErrorInvalidValue', 'invalid argument'),
    2: ('cudaErrorMemoryAllocation', 'out of memory'),
    35: ('cudaErrorInsufficientDriver', 'CUDA driver version is insufficient for CUDA runtime version'),
    98: ('cudaErrorInvalidDeviceFunction', 'invalid device function'),
    100: ('cudaErrorNoDevice', 'no CUDA-capable device is detected'),
    101: ('cudaErrorInvalidDevice', 'invalid device ordinal'),
    400: ('cudaErrorInvalidResourceHandle', 'invalid resource handle'),
    401: ('cudaErrorIllegalState', 'the operation cannot be performed in the present state'),
    600: ('cudaErrorNotReady', 'device not ready'),
    700: ('cudaErrorIllegalAddress', 'an illegal memory access was encountered'),
    800: ('cudaErrorNotPermitted', 'operation not permitted'),
    801: ('cudaErrorNotSupported', 'operation not supported'),
    900: ('cudaErrorStreamCaptureUnsupported', 'operation not permitted when stream is capturing'),
    901: ('cudaErrorStreamCaptureInvalidated', 'operation failed due to a previous error during capture'),
    902: ('cudaErrorStreamCaptureMerge', 'operation would result in a merge of separate capture sequences'),
    903: ('cudaErrorStreamCaptureUnmatched', 'capture was not ended in the same stream as it began'),
    904: ('cudaErrorStreamCaptureUnjoined', 'capturing stream has unjoined work'),
    905: ('cudaErrorStreamCaptureIsolation', 'dependency created on uncaptured work in another stream'),
    906: (
        'cudaErrorStreamCaptureImplicit',
        'operation would make the legacy stream depend on a capturing blocking stream',
    ),
    907: ('cudaErrorCapturedEvent', 'operation not permitted on an event last recorded in a capturing stream'),
    908: (
        'cudaErrorStreamCaptureWrongThread',
        'attempt to terminate a thread-local capture sequence from another thread',
    ),
    909: ('cudaErrorTimeout', 'wait operation timed out'),
    910: (
        'cudaErrorGraphExecUpdateFailure',
        'the graph update was not performed because it included changes which violated constraints specific '
        'to instantiated graph update',
    ),
}

#: What ``deviceGetAttribute`` answers; the numbers are those of an H100 where they matter to programs.
ATTRIBUTES: dict[str, int] = {
    'MaxThreadsPerBlock': 1024,
    'MaxBlockDimX': 1024,
    'MaxBlockDimY': 1024,
    'MaxBlockDimZ': 64,
    'MaxGridDimX': 2147483647,
    'MaxGridDimY': 65535,
    'MaxGridDimZ': 65535,
    'MaxSharedMemoryPerBlock': 49152,
    'TotalConstantMemory': 65536,
    'WarpSize': 32,
    'MaxRegistersPerBlock': 65536,
    'ClockRate': 1980000,
    'GpuOverlap': 1,
    'MultiProcessorCount': 132,
    'CanMapHostMemory': 1,
    'ConcurrentKernels': 1,
    'L2CacheSize': 52428800,
    'MaxThreadsPerMultiProcessor': 2048,
    'AsyncEngineCount': 3,
    'UnifiedAddressing': 1,
    'StreamPrioritiesSupported': 1,
    'ManagedMemory': 0,
    'CooperativeLaunch': 1,
    'MemoryPoolsSupported': 1,
    'PageableMemoryAccess': 0,
}

COMPUTE_CAPABILITY = (9, 0)


class PerformanceWarning(RuntimeWarning):
    """``cupy._util.PerformanceWarning``: what was asked for works, slowly.

    It is one class for all devices and says this module, not CuPy's: who is told of a warning by the names of its
    module and class (pytest-xdist's controller is) finds it without the stand-in.
    """
