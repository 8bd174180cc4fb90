"""The legacy default stream beside a capture: an error, or, worse, none."""

from __future__ import annotations

from typing import Any

import numpy as np

import capturekit as ck
from tests.zoo.cases import case


@case('https://github.com/meta-pytorch/tritonbench/issues/110', ck.LegacyStreamError, 'leave `Stream.null` out',
      lambda x: x * 3 + 1, rest=lambda x: x * 3)  # fmt: skip
def null_block(cp: Any, x: Any) -> Any:
    """Insists on the default stream for a part of the work."""
    with ck.capture() as cap:
        y = x * 3
        with cp.cuda.Stream.null:  # - <-- here
            y += 1  # -
        y += 1  # + <-- instead
    return cap, y


@case(
    'https://github.com/NVIDIA/TensorRT/issues/2888',
    ck.LegacyStreamError,
    'out of the `with ck.capture()` block',
    lambda x: x * 2,
)
def null_synchronize(cp: Any, x: Any) -> Any:
    """Waits for the default stream instead of the device, which is no better."""
    with ck.capture() as cap:
        y = x * 2
        cp.cuda.Stream.null.synchronize()  # - <-- here
    cap.graph.launch()  # +
    cp.cuda.Stream.null.synchronize()  # + <-- instead: after the launch
    return cap, y


@case(
    'https://github.com/pytorch/pytorch/pull/163242', ck.LegacyStreamError, 'a stream of the capture', lambda x: x + 5
)
def null_waits(cp: Any, x: Any) -> Any:
    """Lets the default stream wait for the capture's work, as before a plot."""
    stream = cp.cuda.Stream(non_blocking=True)  # +
    with ck.capture() as cap:
        y = x + 5
        cp.cuda.Stream.null.wait_event(cap.stream.record())  # - <-- here
    cap.graph.launch(stream)  # +
    cp.cuda.Stream.null.wait_event(stream.record())  # + <-- instead: after the launch
    return cap, y


@case('https://github.com/aws/aws-ofi-nccl/pull/1342', ck.LegacyStreamError, 'copy_from_device_async',
      lambda x: x + 1, rest=lambda x: np.ones(8))  # fmt: skip
def synchronous_copy(cp: Any, x: Any) -> Any:
    """Copies by a call that takes no stream: it means the legacy one, and would run at once."""
    with ck.capture() as cap:
        y = cp.zeros(8)
        y.data.copy_from_device(x.data, x.nbytes)  # - <-- here
        y.data.copy_from_device_async(x.data, x.nbytes)  # + <-- instead
        y += 1
    return cap, y


@case('https://github.com/NVIDIA/cuopt/pull/1753', ck.LegacyStreamError, 'memset_async', lambda x: x + 0,
      rest=lambda x: x + 1)  # fmt: skip
def synchronous_memset(cp: Any, x: Any) -> Any:
    """Clears a buffer by a call without a stream, beside a capture on a blocking stream."""
    with ck.capture(cp.cuda.Stream()) as cap:
        y = cp.ones(8)
        y.data.memset(0, y.nbytes)  # - <-- here
        y.data.memset_async(0, y.nbytes)  # + <-- instead
        y += x
    return cap, y


@case('https://github.com/NVIDIA/cuopt/issues/1748', ck.LegacyStreamError, 'memcpyAsync', lambda x: x * 2,
      rest=lambda x: np.zeros(8))  # fmt: skip
def runtime_memcpy(cp: Any, x: Any) -> Any:
    """Copies by cupy.cuda.runtime.memcpy, in a library's own words."""
    kind = cp.cuda.runtime.memcpyDeviceToDevice  # +
    with ck.capture() as cap:
        y = cp.zeros(8)
        cp.cuda.runtime.memcpy(y.data.ptr, x.data.ptr, x.nbytes, cp.cuda.runtime.memcpyDeviceToDevice)  # - <-- here
        cp.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, x.nbytes, kind, cap.stream.ptr)  # + <-- instead
        y *= 2
    return cap, y


@case(
    'https://github.com/wjakob/nanobind/issues/1241', ck.LegacyStreamError, 'x.__dlpack__(stream=', lambda x: x * 2 + 1
)
def dlpack(cp: Any, x: Any) -> Any:
    """Hands an array to another library by DLPack without a stream, which means the legacy one."""
    with ck.capture() as cap:
        y = x * 2
        y += 1
        y.__dlpack__()  # - <-- here
        y.__dlpack__(stream=cap.stream.ptr)  # + <-- instead
    return cap, y


@case('https://github.com/microsoft/nnfusion/issues/53', ValueError, 'leave `stream` out', lambda x: x - 2,
      goes_on=False)  # fmt: skip
def capture_of_null(cp: Any, x: Any) -> Any:
    """Captures the default stream itself."""
    with ck.capture(cp.cuda.Stream.null) as cap:  # <-- here
        y = x - 2
    return cap, y


@capture_of_null.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:  # <-- instead
        y = x - 2
    return cap, y
