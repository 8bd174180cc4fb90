"""Streams becoming lanes, and the joins and forks that adapting mode makes on its own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from capturekit.driver.cuda import StreamHandle
from capturekit.guard.allocators import Allocators
from capturekit.guard.open_capture import Live
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, PER_THREAD_HANDLE, Lane
from capturekit.model.source_line import Place, here


class Lanes(Allocators):
    """Streams becoming lanes, and the joins and forks that adapting mode makes on its own."""

    def _outside(self, ptr: int) -> bool:
        return ptr not in LEGACY_HANDLES and self.topology.lane(ptr) is None

    def _current_lane(self, live: Live) -> Lane:
        """The lane that is current in this thread, or the origin."""
        stream = self.platform.cupy.cuda.get_current_stream()
        return live.lane_of(stream) or live.capture.origin

    def lane_number(self, stream: int) -> int | None:
        """The number of the lane that a stream is; None where it is outside."""
        lane = self.topology.lane(stream)
        return None if lane is None else lane.number

    def takes_part(self, live: Live, lane: Lane, stream: Any) -> None:
        """A stream has become a lane."""
        raise NotImplementedError

    def _was_used(self, lane: Lane) -> None:
        """Before an event closes a lane's segment: work that was given to it by its handle touched what is alive."""
        live = self.lives.get(lane.capture)
        if live is None or live.memory is None or lane.current:
            return
        live.memory.worked(lane)
        if live.memory.unforeseen(lane):
            text = (
                f'lane {lane.number} was given work by its handle after it had been joined, and waited by none of '
                "CuPy's calls: memory dropped meanwhile may have been handed out again. Fork it by Stream.wait_event()"
            )
            live.note('note', lane, text, here())

    def _rests(self, lane: Lane) -> None:
        live = self.lives.get(lane.capture)
        if live is not None and live.memory is not None and not lane.current:
            live.memory.rests(lane)

    def device_of(self, stream: Any) -> int:
        """The number of the device that a stream belongs to. Asked of a captured one, CUDA would lose the capture."""
        lane = self.topology.lane(stream.ptr)
        if lane is not None:
            return lane.device
        known = int(getattr(stream, 'device_id', -1))
        if known >= 0:
            return known
        if self.platform.cupy.cuda.runtime.getDeviceCount() > 1 and stream.ptr > PER_THREAD_HANDLE:
            with self.inside(), suppress(CudaCallError):  # cuda-bindings that can't tell
                return int(self.platform.device.stream_device(stream.ptr))
        return self.current_device()

    def current_there(self, lane: Lane) -> bool:
        """Whether a lane's stream is this thread's current one on the lane's device."""
        return bool(self.platform.cupy.cuda.get_current_stream(lane.device).ptr == lane.stream)

    def _record_on(self, live: Live, lane: Lane, at: Place | None) -> Any:
        """Record a new event on a lane, for joins of the guard's own. Events belong to the device of their stream."""
        with self.on(lane.device):
            event = self.platform.cupy.cuda.Event(disable_timing=True)
            live.streams[lane.stream].record(event)
            lane.nodes = self.platform.device.capture_info(lane.stream).dependencies
        live.events.append(event)
        self._was_used(lane)
        self.topology.record(event.ptr, lane.stream, at)
        return event

    def _wait_on(self, live: Live, lane: Lane, event: Any, at: Place | None) -> None:
        with self.inside():
            live.streams[lane.stream].wait_event(event)
        self.topology.wait(lane.stream, event.ptr, at=at)
        self._rests(lane)

    def _wrapped(self, ptr: int) -> Any:
        """A CuPy stream for a handle that came without one."""
        return self.platform.cupy.cuda.Stream.from_external(StreamHandle(ptr))

    def _entered(self, live: Live, lane: Lane, stream: Any, at: Place | None) -> None:
        """A stream has become a lane: hold it, and give it what lanes need."""
        ptr = lane.stream
        if stream is None:
            stream = self._wrapped(ptr)
        live.streams[ptr] = stream
        self.takes_part(live, lane, stream)
        with self.inside():
            lane.nodes = self.platform.device.capture_info(ptr).dependencies
            with suppress(CudaCallError):  # a lost capture: its loss is what will be told
                lane.priority = self.platform.device.stream_priority(ptr)
        if getattr(stream, '_graph_host_funcargs', None) is None:
            stream._graph_host_funcargs = []  # CuPy sets it on origins alone, and launch_host_func needs it
        live.note('fork', lane, f'lane {lane.number} forked from lane {lane.parent}', at, other=lane.parent)
        if self.current_there(lane):
            lane.current += 1
            if live.memory is not None:
                live.memory.active(lane)
        self._rests(lane)
        if live.floor is not None:
            self._wait_on(live, lane, live.floor, at)

    def _adapt_fork(self, live: Live, stream: Any, at: Place | None, parent: Lane | None = None) -> None:
        """Adapting mode: a stream that never entered the capture is forked from the current lane."""
        parent = parent or self._current_lane(live)
        device = self.device_of(stream)
        with self.inside():
            blocking = not self.platform.device.stream_flags(stream.ptr) & 1
            event = self._record_on(live, parent, at)
            stream.wait_event(event)
        lane = self.topology.wait(stream.ptr, event.ptr, blocking=blocking, at=at, device=device)
        if lane is not None:
            self._entered(live, lane, stream, at)
            live.note('adapted', lane, f'stream {stream.ptr:#x} was forked from lane {parent.number}', at)
