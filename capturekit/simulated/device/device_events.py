"""Events of the simulated device."""

from __future__ import annotations

import time

from capturekit.model.ledger import EventState
from capturekit.model.rules import CaptureStatus, Code, Operation, Target
from capturekit.simulated.device.device_state import (
    LEGACY,
    SimulatedEvent,
)
from capturekit.simulated.device.device_streams import Streams


class Events(Streams):
    """The calls about events of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

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


def _stamp(event: SimulatedEvent) -> None:
    event.seconds = time.perf_counter()
