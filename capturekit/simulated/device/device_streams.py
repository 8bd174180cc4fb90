"""Streams and events of the simulated device, and the work that streams are given."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from capturekit.model.ledger import CaptureInfo, EventState
from capturekit.model.rules import CaptureStatus, Code, Mode, Operation, Target
from capturekit.simulated.device.device_state import (
    LEGACY,
    DeviceState,
    SimulatedCapture,
    SimulatedEvent,
    SimulatedStream,
)
from capturekit.simulated.device.graph_nodes import Given, GraphNode
from capturekit.simulated.device.node_changes import given_to
from capturekit.simulated.device.stream_queues import nothing

#: The device's range: lower numbers come first.
_FIRST, _LAST = -5, 0


class Streams(DeviceState):
    """The calls about streams, events and work of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    # -- streams ----------------------------------------------------------------------------------------------

    def stream_create(self, non_blocking: bool = False, priority: int = 0) -> int:
        """``cudaStreamCreateWithPriority``: a priority is moved into the range 0 to -5."""
        with self._lock:
            s = self._handle()
            self.streams[s] = SimulatedStream(non_blocking, min(max(priority, _FIRST), _LAST), device=self.get_device())
            return s

    def priorities(self) -> tuple[int, int]:
        """``cudaDeviceGetStreamPriorityRange``: the number of the least priority and that of the greatest one."""
        return _LAST, _FIRST

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

    # -- events -----------------------------------------------------------------------------------------------

    def event_create(self) -> int:
        """``cudaEventCreate``."""
        with self._lock:
            e = self._handle()
            self.events[e] = SimulatedEvent(self.get_device())
            return e

    def event_destroy(self, e: int) -> None:
        """``cudaEventDestroy``."""
        with self._lock:
            self._event(e)
            del self.events[e]

    def event_record(self, e: int, s: int, external: bool = False) -> None:
        """``cudaEventRecord``: in a capture no node, the event then stands for the stream's dependencies."""
        with self._lock:
            event = self._event(e)
            if s in LEGACY:
                self._legacy('eventRecord')
                self._same_device(event.device, self.get_device(), 'eventRecord')
                event.capture, event.recorded, event.seconds = None, True, time.perf_counter()
                event.operation = self._queue(s, lambda: _stamp(event))
                return
            stream = self._stream(s)
            self._same_device(event.device, stream.device, 'eventRecord')
            if external:
                self._external(stream, None, 'eventRecord(external)')
                return
            event.capture = self._live(stream, 'eventRecord')
            event.after = stream.after
            event.recorded = True
            event.seconds = time.perf_counter()
            if event.capture is None:
                event.operation = self._queue(s, lambda: _stamp(event))

    def event_query(self, e: int) -> bool:
        """``cudaEventQuery``; True where work runs at once."""
        self._event_call(e, Operation.EVENT_QUERY)
        return self.queue is None or self.queue.ask([self._event(e).operation])

    def event_synchronize(self, e: int) -> None:
        """``cudaEventSynchronize``."""
        self._event_call(e, Operation.EVENT_SYNCHRONIZE)
        if self.queue is not None:
            self.queue.wait([self._event(e).operation])

    def _event_call(self, e: int, operation: Operation) -> None:
        with self._lock:
            event = self._event(e)
            if event.capture is not None:
                if event.capture.status is not CaptureStatus.ACTIVE:
                    self._fail(Code.cudaErrorInvalidValue, operation.value)
                answer = self.table.row(operation, Target.CAPTURED_EVENT)[0](event.capture.mode, False)
                self._fail(answer.code, operation.value, [event.capture])
            self._unsafe(operation.value)

    def event_elapsed_time(self, e1: int, e2: int) -> float:
        """``cudaEventElapsedTime`` in milliseconds."""
        with self._lock:
            first, second = self._event(e1), self._event(e2)
            for event in (first, second):
                if not event.recorded:
                    self._fail(Code.cudaErrorInvalidResourceHandle, 'eventElapsedTime')
                if event.capture is not None:
                    dead = event.capture.status is not CaptureStatus.ACTIVE
                    self._fail(Code.cudaErrorInvalidValue if dead else Code.cudaErrorCapturedEvent, 'eventElapsedTime')
            if any(event.operation is not None and not event.operation.done for event in (first, second)):
                self._fail(Code.cudaErrorNotReady, 'eventElapsedTime')
            return (second.seconds - first.seconds) * 1e3

    def event_state(self, e: int) -> EventState:
        """What an event stands for (the device knows; CUDA has to be asked round a corner)."""
        with self._lock:
            event = self._event(e)
            if event.capture is not None:
                alive = event.capture.status is CaptureStatus.ACTIVE
                return EventState.CAPTURED if alive else EventState.DEAD
            return EventState.OUTSIDE if event.recorded else EventState.NEVER

    # -- work, and calls that touch the whole device ----------------------------------------------------------

    def submit(
        self, s: int, work: Callable[[], None], name: str, kind: str = 'kernel', given: Given | None = None
    ) -> bool:
        """Launch ``work`` on a stream. Return True if it was recorded as a node, False if it ran at once.

        ``given`` is what the work was made of, so that the node can be given something else.
        """
        with self._lock:
            if s in LEGACY:
                self._legacy(name)
            else:
                stream = self._stream(s)
                if kind == 'kernel':
                    self._same_device(self.get_device(), stream.device, name)
                capture = self._live(stream, name)
                if capture is not None:
                    self._add(stream, capture, work, name, kind, given)
                    return True
            self.submitted[int(s)] = self.submitted.get(int(s), 0) + 1
            queued = self._queue(s, work)
        for tell in self.told_of_work:
            tell(given_to(kind, given))
        self._begin_work(None if queued is not None else work)
        return False

    def spoil(self, s: int, work: Callable[[], None]) -> None:
        """Let a stream do work that no call has asked for, if it is not captured and work waits at all."""
        with self._lock:
            if s in LEGACY or self._stream(s).capture is None:
                self._queue(s, work)

    def busy(self) -> bool:
        """Whether work waits."""
        return self.queue is not None and self.queue.busy()

    def meet(self, streams: Sequence[int]) -> None:
        """What the streams of a collective do next comes after what each was given: on a GPU its ranks wait as they
        run. Streams of several captures can't: their graphs are launched one after the other here."""
        with self._lock:
            found = [None if s in LEGACY else self._stream(s) for s in streams]
            captured = [stream for stream in found if stream is not None and stream.capture is not None]
            if len({stream.capture for stream in captured}) > 1 or 0 < len(captured) < len(found):
                raise NotImplementedError('the simulated device lets ranks meet in one capture, or outside of any')
            after = frozenset().union(*(stream.after for stream in captured))
            for stream in captured:
                stream.after = after
            if self.queue is not None and not captured:
                self.queue.join([self._line(s) for s in streams])

    def launch_host_func(self, s: int, fn: Callable[[], None]) -> bool:
        """``cudaLaunchHostFunc``: a host node in a capture, otherwise run at once."""
        return self.submit(s, fn, 'launchHostFunc', 'host')

    def add_callback(self, s: int, fn: Callable[[], None]) -> None:
        """``cudaStreamAddCallback``: can not be captured."""
        with self._lock:
            if s in LEGACY:
                self._legacy('streamAddCallback')
            else:
                self._conflict(self._stream(s), Operation.STREAM_ADD_CALLBACK)
            queued = self._queue(s, fn)
        self._begin_work(None if queued is not None else fn)

    def legacy_call(self, name: str) -> None:
        """Judge a synchronous copy or memset, which uses the legacy stream."""
        with self._lock:
            self._legacy(name)

    def unsafe_call(self, name: str) -> None:
        """Judge a call that the mode of a capture may forbid."""
        with self._lock:
            self._unsafe(name)

    def device_synchronize(self) -> None:
        """``cudaDeviceSynchronize``: loses captures with a stream of the device, from any thread, in every mode."""
        with self._lock:
            here = self.get_device()
            there = [c for c in self.captures if any(self._member(s).device == here for s in c.streams)]
            if there:
                answer = self.table.row(Operation.DEVICE_SYNCHRONIZE, Target.NONE)[0](Mode.RELAXED, False)
                self._fail(answer.code, 'deviceSynchronize', there)
        if self.queue is not None:
            self.queue.wait(self.queue.pending(here))


def _stamp(event: SimulatedEvent) -> None:
    event.seconds = time.perf_counter()
