"""The current stream's handle, per thread (``cupy_backends.cuda.stream``): the lowest layer needs no stream objects."""

from __future__ import annotations

import os
import threading

STREAM_LEGACY = 1
STREAM_PER_THREAD = 2

_ptds = bool(int(os.environ.get('CUPY_CUDA_PER_THREAD_DEFAULT_STREAM', '0')))
_thread_local = threading.local()


def is_ptds_enabled() -> bool:
    """Whether the per-thread default stream is the default."""
    return _ptds


def get_current_stream_ptr() -> int:
    """Return the handle of this thread's current stream."""
    ptr: int = getattr(_thread_local, 'ptr', 0)
    return STREAM_PER_THREAD if ptr == 0 and _ptds else ptr


def set_current_stream_ptr(ptr: int) -> None:
    """Set the handle of this thread's current stream."""
    _thread_local.ptr = int(ptr)


def get_default_stream_ptr() -> int:
    """Return the default stream's handle, never 0."""
    return STREAM_PER_THREAD if _ptds else STREAM_LEGACY
