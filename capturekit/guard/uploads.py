"""Values of the host, put on the device at once, past the capture."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capturekit.guard.open_capture import Live
from capturekit.guard.state import State
from capturekit.model.rules import Mode

_HOST_TO_DEVICE = 1


class Uploads:
    """Values of the host, put on the device at once, past the capture."""

    def __init__(self, state: State) -> None:
        self.state = state

    def upload(self, live: Live, values: Any) -> Any:
        """A NumPy array put on the device at once, past the capture, for as long as the graph lives."""
        original = self.state.installation.originals['cupy._core.array']
        return self.upload_made_by(live, functools.partial(original, values))

    def upload_made_by(self, live: Live, make: Callable[[], Any]) -> Any:
        """The array that a function of CuPy makes of values of the host, outside of the capture."""
        cupy = self.state.platform.cupy
        memory = live.graph_memory
        set_allocator = self.state.installation.originals['cupy.cuda.memory._set_thread_local_allocator']
        before = cupy.cuda.memory._get_thread_local_allocator()
        with self._beside(live) as upload:
            set_allocator(memory.grow)
            try:
                with upload:
                    array = make()
                upload.synchronize()
                cupy.cuda.alloc_pinned_memory(1)  # which drops the event behind the copy: CuPy would ask it later
            finally:
                set_allocator(before)
        return array

    def bytes_from(self, live: Live, address: int, size: int) -> tuple[Any, Any]:
        """Memory of the graph with bytes of the host, and an event that lies behind the copy and has happened."""
        cupy = self.state.platform.cupy
        with self._beside(live) as upload:
            buffer = live.graph_memory.grow(size)
            cupy.cuda.runtime.memcpyAsync(buffer.ptr, address, size, _HOST_TO_DEVICE, upload.ptr)
            done = cupy.cuda.Event(disable_timing=True)
            done.record(upload)
            done.synchronize()
        return buffer, done

    @contextmanager
    def _beside(self, live: Live) -> Iterator[Any]:
        """A stream of the current device's, outside of the capture, and leave to do what a capture forbids."""
        device = self.state.platform.device
        with self.state.inside():
            number = self.state.current_device()
            if number not in live.uploads:
                live.uploads[number] = self.state.platform.cupy.cuda.Stream(non_blocking=True)
            old = device.exchange_thread_mode(Mode.RELAXED)
            try:
                yield live.uploads[number]
            finally:
                device.exchange_thread_mode(old)
