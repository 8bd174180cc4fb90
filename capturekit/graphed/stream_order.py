"""The order between a launch and the caller's streams, as the eager call would have made it.

The graph runs on one stream. If the function also works on other streams of its caller, or waits for them, the launch
comes after all earlier work on these, and their later work comes after the launch. This orders more than the eager
call, never less. If the function waits on the host, so does the launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard import GUARD
from capturekit.launch.caller import Caller
from capturekit.model.counted import counted
from capturekit.model.ledger import LEGACY_HANDLES


class StreamOrder:
    """The streams that a variant's launches are ordered with, and the current streams that the variant fits."""

    def __init__(self, platform: Platform, caller: Caller) -> None:
        self._platform = platform
        self._caller = caller
        self._streams = [(device, ptr, stream) for (device, ptr), stream in caller.outside.items()]
        self._events = [self._event(device) for device, _ptr, _stream in self._streams]
        self._behind = self._event(int(platform.cupy.cuda.Device().id)) if self._streams else None
        self._waits = caller.waits or caller.everywhere

    @staticmethod
    def needed(caller: Caller) -> bool:
        """Whether launches have to be ordered with other streams, or fit some calls only."""
        tied = caller.named or caller.implicit or bool(caller.conditions) or bool(caller.elsewhere)
        return bool(caller.outside or caller.waits or caller.everywhere or tied)

    @property
    def only_compares(self) -> bool:
        """Whether a launch needs no order: only what the function reads of CuPy has to be the same."""
        caller = self._caller
        return not (self._streams or self._waits or caller.named or caller.implicit or caller.elsewhere)

    def _event(self, device: int) -> Any:
        with GUARD.on(device, self._platform):
            return self._platform.cupy.cuda.Event(disable_timing=True)

    def fits(self) -> bool:
        """Whether the recording is right for a call on the stream that is current now."""
        caller, cuda = self._caller, self._platform.cupy.cuda
        ptr = cuda.get_current_stream().ptr
        if caller.named and not caller.is_current(ptr):
            return False
        if caller.implicit and not caller.legacy and ptr in LEGACY_HANDLES:
            return False
        if any(cuda.get_current_stream(device).ptr != stream.ptr for device, stream in caller.elsewhere.items()):
            return False
        if any(one == ptr and device == cuda.runtime.getDevice() for device, one, _stream in self._streams if one):
            return False
        return all(holds() for holds in caller.conditions)

    def wait(self) -> None:
        """Let the host wait if the function does, before anything is compared that other streams may be writing."""
        if self._caller.everywhere:
            here = int(self._platform.cupy.cuda.Device().id)
            GUARD.waits.for_devices(self._platform, {here, *(one for one, _ptr, _s in self._streams)})
        elif self._waits:
            for device, _ptr, stream in self._streams:
                with GUARD.on(device, self._platform):
                    stream.synchronize()

    def around(self, go: Callable[[], Any]) -> Any:
        """Make a launch, ordered with the streams around it."""
        current = self._platform.cupy.cuda.get_current_stream()
        self.open(current)
        try:
            result = go()
        finally:
            self.close(current)
        if self._waits:
            with GUARD.inside:
                current.synchronize()
        return result

    def open(self, current: Any) -> None:
        """Order later work of the current stream after all earlier work of the others."""
        for event, (device, _ptr, stream) in zip(self._events, self._streams):
            with GUARD.on(device, self._platform):
                event.record(stream)
            with GUARD.inside:
                current.wait_event(event)

    def close(self, current: Any = None) -> None:
        """Order later work of the other streams after all earlier work of the current one."""
        if self._behind is None:
            return
        with GUARD.inside:
            self._behind.record(current or self._platform.cupy.cuda.get_current_stream())
        for device, _ptr, stream in self._streams:
            with GUARD.on(device, self._platform):
                stream.wait_event(self._behind)

    def words(self) -> str:
        """What a launch does for this order, in words."""
        parts = [f'ordered with {counted(len(self._streams), "stream")} of the caller'] if self._streams else []
        parts += ['the host waits for its end'] if self._waits else []
        parts += ['fits one current stream only'] if self._caller.named else []
        others = ', '.join(map(str, self._caller.elsewhere))
        parts += [f'fits one current stream of device {others} only'] if others else []
        return f'at each launch: {", ".join(parts) or "compared with what the function reads of CuPy"}'

    def stream_for_result(self, block: Any) -> Any:
        """The caller's stream on which the function allocates a result, and on which launches do so too; or None."""
        ptr = self._caller.homes.get(int(block.data.mem.ptr))
        return next((stream for _device, one, stream in self._streams if one and one == ptr), None)
