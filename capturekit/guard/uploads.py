"""Values of the host, put on the device at once, past the capture."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from capturekit.guard.open_capture import Live
from capturekit.guard.state import State
from capturekit.model.rules import Mode


class Uploads:
    """Values of the host, put on the device at once, past the capture."""

    def __init__(self, state: State) -> None:
        self.state = state

    def upload(self, live: Live, values: Any) -> Any:
        """A NumPy array put on the device at once, past the capture, for as long as the graph lives."""
        original = self.state.installation.originals['cupy._core.array']
        return self.upload_made_by(live, functools.partial(original, values))

    def upload_made_by(self, live: Live, make: Callable[[], Any]) -> Any:
        cupy = self.state.platform.cupy
        device = self.state.platform.device
        memory = live.graph_memory
        set_allocator = self.state.installation.originals['cupy.cuda.memory._set_thread_local_allocator']
        before = cupy.cuda.memory._get_thread_local_allocator()
        with self.state.inside():
            number = self.state.current_device()
            if number not in live.uploads:
                live.uploads[number] = cupy.cuda.Stream(non_blocking=True)
            upload = live.uploads[number]
            old = device.exchange_thread_mode(Mode.RELAXED)
            set_allocator(memory.grow)
            try:
                with upload:
                    array = make()
                upload.synchronize()
            finally:
                set_allocator(before)
                device.exchange_thread_mode(old)
        return array
