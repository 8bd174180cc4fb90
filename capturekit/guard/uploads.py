"""Copies values of the host to the device at once, outside of the capture."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.launch.current_stream import current_for_now
from capturekit.model.rules import Mode
from capturekit.model.skipped_exits import contextmanager

_HOST_TO_DEVICE = 1


class Uploads:
    """Copies values of the host to the device at once, outside of the capture."""

    def __init__(self, state: State) -> None:
        self.state = state

    def upload(self, live: OpenCapture, values: Any) -> Any:
        """Copy a NumPy array to the device at once; the graph keeps the copy."""
        original = self.state.installation.originals['cupy._core.array']
        return self.upload_made_by(live, functools.partial(original, values))

    def upload_made_by(self, live: OpenCapture, make: Callable[[], Any]) -> Any:
        """Call a CuPy function that makes an array from values of the host, outside of the capture."""
        cupy = self.state.platform.cupy
        memory = live.graph_memory
        set_allocator = self.state.installation.originals['cupy.cuda.memory._set_thread_local_allocator']
        before = cupy.cuda.memory._get_thread_local_allocator()
        with self._beside(live) as upload:
            set_allocator(memory.grow)
            try:
                with current_for_now(cupy.cuda, upload):
                    array = make()
                upload.synchronize()
                cupy.cuda.alloc_pinned_memory(1)  # it drops the event after the copy, which CuPy would ask later
            finally:
                set_allocator(before)
        return array

    def bytes_from(self, live: OpenCapture, address: int, size: int) -> tuple[Any, Any]:
        """Copy bytes of the host into the graph's memory; return that, and an event that has happened after it."""
        cupy = self.state.platform.cupy
        with self._beside(live) as upload:
            buffer = live.graph_memory.grow(size)
            cupy.cuda.runtime.memcpyAsync(buffer.ptr, address, size, _HOST_TO_DEVICE, upload.ptr)
            done = cupy.cuda.Event(disable_timing=True)
            done.record(upload)
            done.synchronize()
        return buffer, done

    @contextmanager
    def _beside(self, live: OpenCapture) -> Iterator[Any]:
        """A stream of the current device outside of the capture, in a mode that allows what a capture forbids."""
        device = self.state.platform.device
        with self.state.inside:
            number = self.state.current_device()
            if number not in live.uploads:
                live.uploads[number] = self.state.platform.cupy.cuda.Stream(non_blocking=True)
            old = device.exchange_thread_mode(Mode.RELAXED)
            try:
                yield live.uploads[number]
            finally:
                device.exchange_thread_mode(old)
