"""Where the streams, events and modes lie among the parameters of the driver's functions.

CUPTI gives a callback the parameters of a function as a C structure (``generated_cuda_meta.h``), whose fields are the
function's arguments in their order. The offsets were made by a C compiler from the header of CUDA 13.0. The structures
are part of the driver's binary interface: a function whose arguments change gets a new name (``_v2``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The offset of the stream, by the function's name.
_STREAMS: dict[int, tuple[str, ...]] = {
    0: (
        'cuStreamBeginCapture', 'cuStreamBeginCaptureToGraph', 'cuStreamEndCapture', 'cuStreamSynchronize',
        'cuStreamQuery', 'cuStreamGetFlags', 'cuStreamAddCallback', 'cuStreamWaitEvent', 'cuStreamWaitValue32',
        'cuStreamWaitValue64', 'cuStreamWriteValue32', 'cuStreamWriteValue64', 'cuStreamBatchMemOp', 'cuLaunchHostFunc',
    ),
    8: (
        'cuMemcpy2DAsync', 'cuMemcpy3DAsync', 'cuMemFreeAsync', 'cuGraphUpload', 'cuGraphLaunch', 'cuEventRecord',
        'cuEventRecordWithFlags',
    ),
    16: ('cuMemAllocAsync',),
    24: (
        'cuMemcpyAsync', 'cuMemcpyHtoDAsync', 'cuMemcpyDtoHAsync', 'cuMemcpyDtoDAsync', 'cuMemsetD8Async',
        'cuMemsetD16Async', 'cuMemsetD32Async', 'cuMemAllocFromPoolAsync', 'cuMemPrefetchAsync',
    ),
    32: ('cuMemPrefetchAsync_v2',),
    40: (
        'cuMemcpyPeerAsync', 'cuMemsetD2D8Async', 'cuMemsetD2D16Async', 'cuMemsetD2D32Async', 'cuLaunchKernel',
        'cuLaunchCooperativeKernel',
    ),
}  # fmt: skip
#: The offsets of events, modes and flags.
_EVENTS = {
    'cuStreamWaitEvent': 8, 'cuEventRecord': 0, 'cuEventRecordWithFlags': 0, 'cuEventQuery': 0,
    'cuEventSynchronize': 0, 'cuEventDestroy': 0, 'cuEventElapsedTime': 8,
}  # fmt: skip
_SECOND_EVENTS = {'cuEventElapsedTime': 16}
_MODES = {'cuStreamBeginCapture_v2': 8, 'cuStreamBeginCaptureToGraph': 40}
_FLAGS = {'cuStreamWaitEvent': 16, 'cuEventRecordWithFlags': 16}
#: ``CUlaunchConfig``, whose address is the first parameter, has the stream at this offset.
_CONFIGURED, STREAM_OF_CONFIG = 'cuLaunchKernelEx', 32
_EXCHANGE = 'cuThreadExchangeStreamCaptureMode'
_BY_NAME = {name: offset for offset, names in _STREAMS.items() for name in names}


@dataclass(frozen=True)
class ParameterLayout:
    """The offsets of what is read of a function's parameters, or None where it has no such parameter.

    ``config``: the stream is in the structure that the first parameter points to. ``exchanged``: the first parameter
    points to a mode.
    """

    stream: int | None = None
    event: int | None = None
    event2: int | None = None
    mode: int | None = None
    flags: int | None = None
    config: bool = False
    exchanged: bool = False


def layout(name: str) -> ParameterLayout:
    """Return the layout of a driver's function by CUPTI's name for it: ``'cuStreamBeginCapture_v2_ptsz'``."""
    versioned = re.sub(r'_pt(?:sz|ds)$', '', name)
    plain = re.sub(r'_v\d+$', '', versioned)

    def find(table: dict[str, int]) -> int | None:
        return table.get(versioned, table.get(plain))

    return ParameterLayout(
        find(_BY_NAME),
        find(_EVENTS),
        find(_SECOND_EVENTS),
        _MODES.get(versioned),
        find(_FLAGS),
        plain == _CONFIGURED,
        plain == _EXCHANGE,
    )
