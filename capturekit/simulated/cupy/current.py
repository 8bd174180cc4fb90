"""The current stream's handle, per thread and device (``cupy_backends.cuda.stream``): no stream objects are needed."""

from __future__ import annotations

import os

from . import runtime, runtime_calls

STREAM_LEGACY = 1
STREAM_PER_THREAD = 2

_ptds = bool(int(os.environ.get('CUPY_CUDA_PER_THREAD_DEFAULT_STREAM', '0')))


def is_ptds_enabled() -> bool:
    return _ptds


def _pointers() -> dict[int, int]:
    try:
        pointers: dict[int, int] = runtime_calls.state.thread.pointers
    except AttributeError:
        pointers = runtime_calls.state.thread.pointers = {}
    return pointers


def get_current_stream_ptr() -> int:
    """Return the handle of this thread's current stream on its device."""
    ptr = _pointers().get(runtime.getDevice(), 0)
    return STREAM_PER_THREAD if ptr == 0 and _ptds else ptr


def set_current_stream_ptr(ptr: int, device_id: int) -> None:
    """Set the handle of this thread's current stream on a device."""
    _pointers()[device_id] = int(ptr)


def get_default_stream_ptr() -> int:
    """Return the default stream's handle, never 0."""
    return STREAM_PER_THREAD if _ptds else STREAM_LEGACY
