"""Streams of the simulated device: made, asked, waited for, ordered after events."""

from __future__ import annotations

from collections.abc import Callable

from capturekit.model.ledger import CaptureInfo
from capturekit.model.rules import CaptureStatus, Code, Operation
from capturekit.simulated.device.device_state import (
    LEGACY,
    DeviceState,
    SimulatedCapture,
    SimulatedEvent,
    SimulatedStream,
)
from capturekit.simulated.device.graph_nodes import Given, GraphNode
from capturekit.simulated.device.stream_queues import nothing

#: The device's range: lower numbers come first.
_FIRST, _LAST = -5, 0


class Streams(DeviceState):
    """The calls about streams of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    def stream_create(self, non_blocking: bool = False, priority: int = 0) -> int:
        """``cudaStreamCreateWithPriority``: a priority is moved into the range 0 to -5."""
        with self._lock:
            s = self._handle()
            self.streams[s] = SimulatedStream(non_blocking, min(max(priority, _FIRST), _LAST), device=self.get_device())
            return s

    def stream_device(self, s: int) -> int:
        """``cudaStreamGetDevice``: the device that a stream belongs to."""
        with self._lock:
            if s in LEGACY:
                return self.get_device()
            stream = self._stream(s)
            self._conflict(stream, Operation.STREAM_GET_FLAGS)  # which answers alike
            return stream.device

    def stream_destroy(self, s: int) -> None:
        """``cudaStreamDestroy``: work of a captured stream that was not joined stays in the graph, unjoined."""
        with self._lock:
            stream = self._stream(s)
            if stream.capture is not None:
                stream.capture.streams.discard(s)
                stream.capture.orphans |= stream.after
            self.streams.pop(s, None)

    def stream_synchronize(self, s: int) -> None:
        """``cudaStreamSynchronize``."""
        self._wait_or_ask(s, Operation.STREAM_SYNCHRONIZE)
        self.wait_for(s)

    def wait_for(self, s: int) -> None:
        """Run what a stream was given."""
        if self.queue is not None:
            self.queue.wait(self.queue.ends(self._line(s)))

    def stream_query(self, s: int) -> bool:
        """``cudaStreamQuery``; True where work runs at once."""
        self._wait_or_ask(s, Operation.STREAM_QUERY)
        return self.queue is None or self.queue.ask(self.queue.ends(self._line(s)))

    def _wait_or_ask(self, s: int, operation: Operation) -> None:
        with self._lock:
            if s in LEGACY:
                self._legacy(operation.value)
            else:
                self._conflict(self._stream(s), operation)
            self._unsafe(operation.value)

    def stream_flags(self, s: int) -> int:
        """``cudaStreamGetFlags``: 1 for a non-blocking stream."""
        with self._lock:
            if s in LEGACY:
                self._legacy('streamGetFlags')
                return 0
            stream = self._stream(s)
            self._conflict(stream, Operation.STREAM_GET_FLAGS)
            return int(stream.non_blocking)

    def stream_priority(self, s: int) -> int:
        """``cudaStreamGetPriority``."""
        with self._lock:
            if s in LEGACY:
                self._legacy('streamGetPriority')
                return 0
            stream = self._stream(s)
            self._live(stream, 'streamGetPriority')
            return stream.priority

    def stream_status(self, s: int) -> CaptureStatus:
        """``cudaStreamIsCapturing``."""
        with self._lock:
            if s in LEGACY:
                if self._blocking():
                    self._fail(Code.cudaErrorStreamCaptureImplicit, 'streamIsCapturing')
                return CaptureStatus.NONE
            capture = self._stream(s).capture
            return CaptureStatus.NONE if capture is None else capture.status

    def capture_info(self, s: int) -> CaptureInfo:
        """``cudaStreamGetCaptureInfo``."""
        with self._lock:
            status = self.stream_status(s)
            if status is not CaptureStatus.ACTIVE:
                return CaptureInfo(status)
            stream = self._stream(s)
            assert stream.capture is not None
            dependencies = tuple(sorted(n.handle for n in stream.after))
            return CaptureInfo(status, stream.capture.number, stream.capture.graph.handle, dependencies)

    def stream_wait_event(self, s: int, e: int, external: bool = False) -> None:
        """``cudaStreamWaitEvent``: orders, forks, joins, or is refused."""
        with self._lock:
            event = self._event(e)
            if s in LEGACY:
                self._legacy_wait(event)
                return
            stream = self._stream(s)
            if external:
                self._external(stream, event, 'waitEvent(external)')
                return
            capture = self._live(stream, 'waitEvent')
            if event.capture is not None and event.capture.status is not CaptureStatus.ACTIVE:
                self._fail(Code.cudaErrorInvalidValue, 'waitEvent', [capture] if capture else [])
            if event.capture is None:
                if capture is not None and event.recorded:
                    self._fail(Code.cudaErrorStreamCaptureIsolation, 'waitEvent', [capture])
                if capture is None:
                    self._queue(s, nothing, [event.operation])
                return
            if capture is None:
                self._enter(stream, s, event.capture)
                stream.after = event.after
            elif capture is not event.capture:
                self._fail(Code.cudaErrorStreamCaptureMerge, 'waitEvent', [capture, event.capture])
            else:
                stream.after = stream.after | event.after

    def _legacy_wait(self, event: SimulatedEvent) -> None:
        self._legacy('waitEvent')
        if event.capture is None:
            self._queue(0, nothing, [event.operation])
            return
        if event.capture.status is not CaptureStatus.ACTIVE:
            self._fail(Code.cudaErrorInvalidValue, 'waitEvent')
        self._fail(Code.cudaErrorStreamCaptureImplicit, 'waitEvent', [event.capture])

    def _external(self, stream: SimulatedStream, event: SimulatedEvent | None, call: str) -> None:
        """An external record or wait: a node in a capture, illegal outside of one. The event's own state stays."""
        capture = self._live(stream, call)
        if event is not None and event.capture is not None and event.capture.status is not CaptureStatus.ACTIVE:
            self._fail(Code.cudaErrorInvalidValue, call, [capture] if capture else [])
        if capture is None:
            self._fail(Code.cudaErrorIllegalState, call)
        self._add(stream, capture, lambda: None, call, 'wait event' if event is not None else 'event record')

    def _add(
        self,
        stream: SimulatedStream,
        capture: SimulatedCapture,
        work: Callable[[], None],
        name: str,
        kind: str,
        given: Given | None = None,
    ) -> None:
        priority = stream.priority if kind == 'kernel' else 0
        node = GraphNode(work, name, kind, stream.after, self._handle(), priority=priority, given=given)
        capture.graph.nodes.append(node)
        stream.after = frozenset((node,))
