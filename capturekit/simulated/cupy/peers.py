"""Arrays of one device used from another, as CuPy does it: copies by memcpy, kernels by peer access, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from capturekit.simulated.device.constants import PerformanceWarning

from . import runtime
from .layout import Layout


def check_access(device_id: int) -> None:
    """A kernel of the current device is given an array of ``device_id``: warn where that is another one."""
    here = runtime.getDevice()
    if device_id != here:
        runtime._deviceEnsurePeerAccess(device_id)
        warnings.warn(
            f'The device where the array resides ({device_id}) is different from the current device ({here}). '
            'Peer access has been activated automatically.',
            PerformanceWarning,
            stacklevel=2,
        )


@contextmanager
def on(device_id: int) -> Iterator[None]:
    """Another device for a while, as CuPy's C code takes it: no ``with Device`` that anybody sees."""
    before = runtime.getDevice()
    runtime.setDevice(device_id)
    try:
        yield
    finally:
        runtime.setDevice(before)


def copy_here(array: Any, order: str) -> Any:
    """A copy on the current device of an array of another: made contiguous over there, on what is current there."""
    with on(array.data.device_id):
        source = array._astype(array.dtype, order, None, None, None)
    found = Layout.array_class(source.shape, source.dtype, None, source.strides)
    found.data.copy_from_device_async(source.data, source.nbytes)
    return found


def copied_across(dst: Any, src: Any) -> bool:
    """``dst[...] = src`` by memcpy if an array is of another device than the current one and they lie in one piece.

    On one device CuPy does the same, which is a kernel here.
    """
    if not dst.size or dst.data.device_id == src.data.device_id == runtime.getDevice():
        return False
    if (dst.shape, dst.strides, dst.dtype) != (src.shape, src.strides, src.dtype) or not dst.flags.c_contiguous:
        return False
    dst.data.copy_from_device_async(src.data, src.nbytes)
    return True


def copy_across(dst: Any, src: Any) -> bool:
    """``copyto`` between two devices by memcpy, on the current stream; False where the elements lie otherwise."""
    flags = dst.flags, src.flags
    alike = all(f.c_contiguous for f in flags) or all(f.f_contiguous for f in flags)
    if not alike or dst.dtype != src.dtype or dst.size != src.size:
        return False
    dst.data.copy_from_device_async(src.data, src.nbytes)
    return True
