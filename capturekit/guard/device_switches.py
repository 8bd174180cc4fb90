"""Devices becoming current, each with its own current stream.

CuPy has a current stream for each device. ``with cp.cuda.Device(1):`` in a capture on device 0 makes the legacy stream
of device 1 current, unless a lane is current there. Work on it would run at once and be missing from the graph. That is
not yet an error: the next line may enter a lane. So a placeholder replaces the legacy stream. It is held, like streams
from outside; with ``strict=False`` it is a lane, forked from the lane that was current before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.state import State
from capturekit.model.cleanup import Undo
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.source_line import here


@dataclass(eq=False)
class DeviceSwitches:
    """Follows which device is current, and with it which stream."""

    state: State
    allocators: Allocators
    lanes: Lanes
    callers: CallerStreams
    outside: OutsideStreams

    def moved(self, original: Callable[..., Any], *args: Any) -> Any:
        """A call that makes another device current. Where a block is left, what follows its device is the exception."""
        exc = args[1:]
        if not self.state.policy.records:
            return original(*args)  # an eager run's work on other devices goes where it always goes
        with self.state.lock:
            mine = self.state.mine()
            before = self.state.current_device()
            self.state.poll()
            answer = original(*args)
            now = self.state.current_device()
            if now == before:
                return answer
            if mine is None:
                self.allocators.refresh()
                return answer
            left = self.state.platform.cupy.cuda.get_current_stream(before)
            escaped = self._depart(mine, before)
            try:
                self._land(mine, mine.lane_of(left) or mine.capture.origin)
                if escaped is not None:
                    self._found_there(mine, escaped, exc)
            finally:
                del escaped  # its traceback holds this frame
        return answer

    @staticmethod
    def _found_there(live: OpenCapture, escaped: CaptureError, exc: tuple[Any, ...]) -> None:
        """Raise an error; if the block has raised an exception itself, keep the error for the end of the capture."""
        if not exc or exc[0] is None:
            try:
                raise escaped
            finally:
                del escaped
        if exc[1] is not None:
            exc[1].add_note(f'capturekit: {escaped}')
        live.outside.escaped = escaped

    def _land(self, live: OpenCapture, parent: Lane) -> None:
        """Note the stream that is current on the device that has just become current."""
        stream = self.state.platform.cupy.cuda.get_current_stream()
        lane = self.state.ledger.lane(stream.ptr)
        self.callers.works_on(live, self.state.current_device())
        if stream.ptr in LEGACY_HANDLES:
            self.outside.put_placeholder(live, parent)
        elif lane is None and live.strict:
            self.outside.hold(live, stream)
        elif lane is None:
            self.lanes.adapt_fork(live, stream, here(), parent)
        stream = self.state.platform.cupy.cuda.get_current_stream()
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None and lane.capture in self.state.lives:
            at = here()
            lane.last_use = at
            text = f'lane {lane.number} made current, with device {lane.device}'
            self.state.live_of(lane).note('switch', lane, text, at)
        self.lanes.make_current(live, stream.ptr, anew=False)
        self.callers.in_order(live)
        self.allocators.refresh()

    def _depart(self, live: OpenCapture, device: int) -> CaptureError | None:
        """Remove the placeholder of a device that is no longer current.

        Return the error for work that was found on it.
        """
        stream = self.state.platform.cupy.cuda.get_current_stream(device)
        if device not in live.devices.placeholders:
            return self.outside.release(stream.ptr, silent=True)
        placeholder, legacy = live.devices.placeholders.pop(device)
        try:
            escaped = self.outside.release(stream.ptr, silent=True)
            found = self.outside.release(placeholder.ptr, silent=True)
            if stream.ptr == placeholder.ptr:
                with self.state.on(device):
                    self.state.own('cupy.cuda.stream._BaseStream.use', legacy)
        finally:
            self.state.placeholders.pop(placeholder.ptr, None)
        if live.strict:
            self.outside.give_back(device, placeholder)
        else:
            self.lanes.leave(placeholder)
        return found or escaped

    def restore(self, live: OpenCapture) -> None:
        """At the end of the block, make the origin's device current, and on the other devices their former streams.

        Every step is tried. If one fails, the next call tries all again; after all succeeded, it does nothing.
        """
        with self.state.lock:
            if live.devices.restored or not (live.devices.before or live.devices.placeholders):
                return
            steps = Undo()
            for device, stream in enumerate(live.devices.before):
                if device != live.origin_device:
                    steps.push(partial(self._as_before, device, stream))
            if live.devices.before:
                steps.push(partial(self._go_to, live.origin_device))
            for device in list(live.devices.placeholders):
                steps.push(partial(self._leave_device, live, device))
            steps.push(self.state.poll)
            steps.close()
            live.devices.restored = True

    def _leave_device(self, live: OpenCapture, device: int) -> None:
        escaped = self._depart(live, device)
        live.outside.escaped = live.outside.escaped if escaped is None else escaped

    def _go_to(self, device: int) -> None:
        with self.state.inside:
            self.state.platform.cupy.cuda.runtime.setDevice(device)

    def _as_before(self, device: int, stream: Any) -> None:
        now = self.state.platform.cupy.cuda.get_current_stream(device)
        if now.ptr != stream.ptr:
            self.lanes.leave(now)
            with self.state.on(device):
                self.state.own('cupy.cuda.stream._BaseStream.use', stream)

    def copied_to(self, original: Callable[..., Any], dst: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse a ``copyto`` to another device that is not a copy of bytes, because CuPy would run a kernel there."""
        mine = self.state.mine()
        if (
            mine is not None
            and mine.devices.before
            and not args
            and kwargs.get('where') is None
            and hasattr(src, 'data')
        ):
            device = int(getattr(getattr(dst, 'data', None), 'device_id', -1))
            if device >= 0 and device != self.state.current_device() and dst.size and not _byte_by_byte(dst, src):
                raise self.allocators.other_device(device)
        return original(dst, src, *args, **kwargs)


def _byte_by_byte(dst: Any, src: Any) -> bool:
    """Whether CuPy copies one array to the other by ``cudaMemcpy``."""
    flags = dst.flags, src.flags
    alike = all(f.c_contiguous for f in flags) or all(f.f_contiguous for f in flags)
    return bool(alike and dst.dtype == src.dtype and dst.size == src.size)
