"""Work that is given to streams of the simulated device, and calls that touch the whole device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from capturekit.model.rules import Mode, Operation, Target
from capturekit.simulated.device.device_state import (
    LEGACY,
)
from capturekit.simulated.device.device_streams import Streams
from capturekit.simulated.device.graph_nodes import Given
from capturekit.simulated.device.node_changes import given_to


class Work(Streams):
    """The calls that give work, of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

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
