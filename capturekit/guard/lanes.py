"""Streams become lanes; joins and forks that ``strict=False`` adds."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from capturekit.driver.cuda import StreamHandle
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, PER_THREAD_HANDLE, Lane, LedgerCapture, merge, named
from capturekit.model.rules import CaptureStatus
from capturekit.model.source_line import Place, here


class Lanes:
    """Makes streams lanes, and makes the joins and forks that ``strict=False`` adds."""

    def __init__(self, state: State) -> None:
        self.state = state

    def is_outside(self, ptr: int) -> bool:
        return ptr not in LEGACY_HANDLES and self.met(ptr) is None

    def met(self, ptr: int, stream: Any = None) -> Lane | None:
        """The lane that a stream is; None if it is none.

        The driver is asked about a stream that the ledger does not know: it may have been forked by a method of CuPy's
        that was bound before the capture, which no wrapper sees. What it comes after is not known then.
        """
        lane, mine = self.state.ledger.lane(ptr), self.state.mine()
        if lane is not None or mine is None or ptr in LEGACY_HANDLES or ptr in mine.outside.held:
            return lane
        with self.state.inside, suppress(CudaCallError):  # the capture is lost, and that will be reported
            device = self.state.platform.device
            found = device.capture_info(ptr)
            if found.status is CaptureStatus.ACTIVE and found.number == device.capture_info(mine.origin.ptr).number:
                known = int(getattr(stream, 'device_id', -1))
                number = known if known >= 0 else self.state.current_device()
                # whether it is a blocking stream can't be asked without losing the capture
                lane = self.state.ledger.enter(ptr, mine.capture.origin, False, here(), number)
                self.entered(mine, lane, stream, here())
        return lane

    def current_lane(self, live: OpenCapture) -> Lane:
        """The lane that is current in this thread, or the origin."""
        stream = self.state.platform.cupy.cuda.get_current_stream()
        return live.lane_of(stream) or live.capture.origin

    def lane_number(self, stream: int) -> int | None:
        """The number of the lane that a stream is, or None if it is not a lane."""
        lane = self.state.ledger.lane(stream)
        return None if lane is None else lane.number

    def was_used(self, lane: Lane, ends: tuple[int, ...] | None = None) -> None:
        """Find work that a lane got through its handle, before an event ends the lane's segment.

        ``ends``: the nodes before its next work, if the caller has just asked for them.
        """
        live = self.state.lives.get(lane.capture)
        if live is None or live.memory is None or lane.current:
            return
        live.memory.worked(lane, ends)
        if live.memory.unforeseen(lane):
            text = (
                f'lane {lane.number} got work by its handle after it was joined, and no call of CuPy made it wait: '
                'memory dropped in between may have been handed out again. Fork it by Stream.wait_event()'
            )
            live.note('note', lane, text, here())

    def rests(self, lane: Lane, ends: tuple[int, ...] | None = None) -> None:
        live = self.state.lives.get(lane.capture)
        if live is not None and live.memory is not None and not lane.current:
            live.memory.rests(lane, ends)

    def device_of(self, stream: Any) -> int:
        """The number of a stream's device. Asking CUDA about a captured stream would lose the capture."""
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None:
            return lane.device
        known = int(getattr(stream, 'device_id', -1))
        if known >= 0:
            return known
        if self.state.platform.cupy.cuda.runtime.getDeviceCount() > 1 and stream.ptr > PER_THREAD_HANDLE:
            with self.state.inside, suppress(CudaCallError):  # this cuda-bindings is too old to ask
                return int(self.state.platform.device.stream_device(stream.ptr))
        return self.state.current_device()

    def is_current(self, lane: Lane) -> bool:
        """Whether a lane's stream is this thread's current one on the lane's device."""
        return bool(self.state.platform.cupy.cuda.get_current_stream(lane.device).ptr == lane.stream)

    def record_on(self, live: OpenCapture, lane: Lane, at: Place | None) -> Any:
        """Record a new event on a lane, for the guard's own joins. The event belongs to the device of the lane."""
        with self.state.on(lane.device):
            event = self.state.platform.cupy.cuda.Event(disable_timing=True)
            live.streams[lane.stream].record(event)
            lane.nodes = self.state.platform.device.capture_info(lane.stream).dependencies
        live.events.append(event)
        self.was_used(lane)
        self.state.ledger.record(event.ptr, lane.stream, at)
        return event

    def wait_on(self, live: OpenCapture, lane: Lane, event: Any, at: Place | None) -> None:
        with self.state.inside:
            live.streams[lane.stream].wait_event(event)
        self.state.ledger.wait(lane.stream, event.ptr, at=at)
        self.rests(lane)

    def wrapped(self, ptr: int) -> Any:
        """Return a CuPy stream for a bare handle."""
        return self.state.platform.cupy.cuda.Stream.from_external(StreamHandle(ptr))

    def entered(self, live: OpenCapture, lane: Lane, stream: Any, at: Place | None) -> None:
        """Keep a stream that has become a lane, and give it what lanes need."""
        ptr = lane.stream
        if stream is None:
            stream = self.wrapped(ptr)
        live.streams[ptr] = stream
        _note_callers_stream(live, lane, stream)
        with self.state.inside:
            lane.nodes = self.state.platform.device.capture_info(ptr).dependencies
            with suppress(CudaCallError):  # the capture is lost, and that will be reported
                lane.priority = self.state.platform.device.stream_priority(ptr)
        if getattr(stream, '_graph_host_funcargs', None) is None:
            stream._graph_host_funcargs = []  # CuPy sets it on origins alone, and launch_host_func needs it
        live.note('fork', lane, f'lane {lane.number} forked from lane {lane.parent}', at, other=lane.parent)
        if self.is_current(lane):
            self.make_current(live, ptr, here=lane.device == self.state.current_device())
        self.rests(lane)
        if live.awaited_event is not None:
            self.wait_on(live, lane, live.awaited_event, at)

    def adapt_fork(self, live: OpenCapture, stream: Any, at: Place | None, parent: Lane | None = None) -> None:
        """With ``strict=False``: fork a stream that never entered the capture from the current lane."""
        parent = parent or self.current_lane(live)
        device = self.device_of(stream)
        with self.state.inside:
            blocking = not self.state.platform.device.stream_flags(stream.ptr) & 1
            event = self.record_on(live, parent, at)
            stream.wait_event(event)
        lane = self.state.ledger.wait(stream.ptr, event.ptr, blocking=blocking, at=at, device=device)
        if lane is not None:
            self.entered(live, lane, stream, at)
            live.note('adapted', lane, f'{named(stream.ptr)} was forked from lane {parent.number}', at)

    def carry_over(self, live: OpenCapture, old: LedgerCapture, at: Place | None) -> None:
        """Fork all lanes of a part that has ended into the next one, which has begun. They keep their numbers."""
        if len(old.lanes) == 1:
            return
        event = self.record_on(live, live.capture.origin, at)
        for before in old.lanes[1:]:
            stream = live.streams[before.stream]
            with self.state.inside:
                stream.wait_event(event)
            lane = self.state.ledger.wait(
                before.stream, event.ptr, blocking=before.blocking, at=before.forked_at, device=before.device
            )
            assert lane is not None
            self.entered(live, lane, stream, at)
            if old.origin.clock.get(before.number):  # it was joined, so that it is not one which adds nothing
                merge(live.capture.origin.clock, self.state.ledger.passed(lane))

    def make_current(self, live: OpenCapture, ptr: int, *, anew: bool = True, here: bool = True) -> None:
        """Note that a stream is CuPy's current one, in all places that need to know.

        These are the ledger, which counts how often a lane is current (not if ``anew`` is False: it is counted
        already), the memory of the lane's graph, and the line trace of ``live`` (not if ``here`` is False: the stream's
        device is not current; nor in another thread). Call :meth:`State.poll` before, so that earlier nodes go to the
        previous stream.
        """
        lane = self.state.ledger.lanes.get(ptr)
        owner = None if lane is None else self.state.lives.get(lane.capture)
        if lane is not None and owner is not None:
            lane.current += anew
            if owner.memory is not None:
                owner.memory.active(lane)
        if here and live.thread == threading.get_ident():
            live.current = ptr
            if live.trace is not None:
                live.trace.stream = ptr

    def leave(self, stream: Any) -> None:
        """Note that a stream is no longer this thread's current one."""
        lane = self.state.ledger.lanes.get(stream.ptr)
        if lane is not None and lane.capture in self.state.lives:
            lane.used = True
            lane.current = max(lane.current - 1, 0)  # it may have become current before it was a lane
            self.rests(lane)


def _note_callers_stream(live: OpenCapture, lane: Lane, stream: Any) -> None:
    """Note a stream of the caller that has become a lane, so that launches are ordered with it."""
    caller = live.caller
    if caller is None or lane.stream in caller.streams or any(s.ptr == lane.stream for s in live.recorder.lane_streams):
        return
    if any(placeholder.ptr == lane.stream for placeholder in live.devices.forked.values()):
        return
    caller.outside[lane.device, lane.stream] = stream
