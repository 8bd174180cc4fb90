"""The host waits for, or asks about, streams, events and the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard.entry_points import Entry
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import handle
from capturekit.guard.stream_calls import CallsOnStreams
from capturekit.model.ledger import LEGACY_HANDLES, Lane, Verdict
from capturekit.model.rules import VARIANTS, CaptureStatus, Operation
from capturekit.model.source_line import here

_O = Operation
_OWN = 'A wait of capturekit for the device'
_LEGACY = {
    _O.STREAM_SYNCHRONIZE: VARIANTS['wait-for-legacy-stream'],
    _O.STREAM_QUERY: VARIANTS['query-legacy-stream'],
}


class HostWaits(CallsOnStreams):
    """The host waiting for, or asking about, streams, events and the device."""

    def stream_wait(self, entry: Entry, original: Callable[[Any], Any], stream: Any) -> Any:
        """The host waits for a stream, or asks whether its work is done."""
        operation, call = entry.operation, entry.call
        with self.state.lock:
            ptr = self.streams.meant(handle(stream))
            mine = self.start(ptr)
            if mine is not None and mine.caller is not None:
                return self._caller_waits(mine, operation, call, ptr)
            verdict = self.verdicts.judge(operation, stream=ptr)
            if mine is not None and ptr in LEGACY_HANDLES:
                verdict = replace(verdict, rule=_LEGACY[operation])
                if not verdict.lost and (mine.strict or operation is not _O.STREAM_SYNCHRONIZE):
                    raise self.verdicts.refusal(verdict, call, ptr)
            if operation is _O.STREAM_SYNCHRONIZE and mine is not None and not mine.strict:
                lane = self.state.ledger.lane(ptr)
                if lane is not None and lane.capture is mine.capture:
                    return self._adapt_wait(mine, [lane], f'{call} of lane {lane.number} became a join')
                if ptr in LEGACY_HANDLES:
                    return self._adapt_wait(mine, mine.capture.lanes, f'{call} became a join of all lanes')
        return self.make(verdict, call, ptr, lambda: original(stream))

    def _caller_waits(self, live: OpenCapture, operation: Operation, call: str, ptr: int) -> None:
        """Record that a graphed function waits for a stream. The host will wait so around each launch."""
        if operation is not _O.STREAM_SYNCHRONIZE:
            raise self.callers.not_recorded(
                call, ptr, 'Whether work is done differs from call to call', 'Wait for it instead.'
            )
        callers = self.callers.is_callers(live, ptr, call)
        if not callers and self.lanes.is_outside(ptr):
            self.lanes.adapt_fork(live, self.lanes.wrapped(ptr), here())
        null = self.callers.null_there(live) if ptr in LEGACY_HANDLES else None
        lane = live.capture.origin if callers else null or self.state.ledger.lane(ptr)
        assert lane is not None
        self._adapt_wait(live, [lane, *self.callers.implied(live, lane)], f'{call} of lane {lane.number} became a join')

    def _adapt_wait(self, live: OpenCapture, lanes: list[Lane], text: str, *waited: Any) -> None:
        """Turn the host's wait for lanes, or for events, into a join: what any lane records next comes after them."""
        if live.caller is not None:
            live.caller.waits = True
        at = here()
        events = [*waited, *[self.lanes.record_on(live, lane, at) for lane in list(lanes)]]
        for lane in list(live.capture.lanes):
            for event in events:
                self.lanes.wait_on(live, lane, event, at)
        live.awaited_event = self.lanes.record_on(live, live.capture.origin, at)
        live.note('adapted', None, text, at)
        self.allocators.refresh()

    def device_wait(self, entry: Entry, original: Callable[..., Any], *args: Any) -> Any:
        """The host waits for a device: the one that is given, or the current one."""
        call, device = entry.call, int(args[0]) if args else self.state.current_device()

        def go() -> Any:
            with self.state.inside:
                return original(*args)

        with self.state.lock:
            mine = self.verdicts.start()
            if mine is not None and device in mine.devices.placeholders:
                # the placeholder there is not a lane, so it must not count as one
                self.streams.release(mine.devices.placeholders[device][0].ptr)
            verdict = self._judged_wait(device)
            if mine is not None and (mine.caller is not None or verdict.lost):
                if mine.caller is not None:
                    mine.caller.everywhere = True
                elif mine.strict:
                    raise self.verdicts.refusal(verdict, call)
                return self._adapt_wait(mine, mine.capture.lanes, f'{call} became a join of all lanes')
        return self.made_when_free(call, go, device) if mine is None else self.make(verdict, call, None, go)

    def made_when_free(self, call: str, make: Callable[[], Any], device: int | None = None) -> Any:
        """Make a call that waits for a device, by default the current one, once no thread has a capture open there."""
        there = self.state.current_device() if device is None else device
        with self.verdicts.turn(call, lambda: self._judged_wait(there), there):
            return make()

    def for_devices(self, platform: Platform, devices: Iterable[int]) -> None:
        """Wait for devices on capturekit's own behalf, once no capture of another thread is open there.

        Every such wait goes through here, or through :meth:`unless_captured`."""
        for device in devices:
            with self.state.on(device, platform):
                self.made_when_free(_OWN, platform.device.device_synchronize, device)

    def unless_captured(self, driver: Any) -> bool:
        """The same for the current device, where nobody may be waited for, as in a destructor: False if a capture is
        open."""
        with self.state.inside, ExitStack() as turn:
            with self.state.closed:
                if self.state.ledger.captures:
                    return False
                here = self.state.current_device()
                turn.enter_context(self.verdicts.turn(_OWN, lambda: self._judged_wait(here), here))
            driver.device_synchronize()
        return True

    def _judged_wait(self, device: int) -> Verdict:
        """The verdict on a wait for a device. A capture with a placeholder there counts as if it had a lane there."""
        others = (live for live in self.state.lives.values() if live.thread != threading.get_ident())
        placed = any(device in one.devices.placeholders and device not in one.capture.devices for one in others)
        return self.verdicts.judge(_O.DEVICE_SYNCHRONIZE, device=None if placed else device)

    def event_wait(self, entry: Entry, original: Callable[[Any], Any], event: Any) -> Any:
        """The host waits for an event, or asks whether it has happened."""
        operation, call, ptr = entry.operation, entry.call, handle(event)
        if operation is _O.EVENT_QUERY and self.uploads.has_happened(event):
            return True
        with self.state.lock:
            mine = self.verdicts.start()
            mark = self.state.ledger.marks.get(ptr)
            self.callers.own_event(mine, call, ptr)
            if mine is not None and mine.caller is not None and operation is _O.EVENT_SYNCHRONIZE:
                mine.caller.waits = True
            adapts = mine is not None and not mine.strict and operation is _O.EVENT_SYNCHRONIZE
            if adapts and self.parts.is_past(mine, mark):
                return None  # the event's work is in an earlier part, so it comes before all that is recorded now
            if mark is None and mine is None:
                verdict = self.state.ledger.judge(operation, thread=threading.get_ident(), event=ptr)
            else:
                verdict = self.verdicts.judge(operation, event=ptr)
            captured = mine is not None and mark is not None and mark.capture is mine.capture
            # an event that is known by its handle alone can't be waited for
            if mine is not None and adapts and captured and event is not ptr and verdict.answer.loses:
                return self._adapt_wait(mine, [], f'{call} became a join: every lane waits for it', event)
        made = partial(self.verdicts.carry_out, verdict, call, None, partial(original, event))
        return self.verdicts.about_event(operation, call, ptr, made) if mine is None else made()

    def elapsed_time(self, entry: Entry, original: Callable[[Any, Any], Any], start: Any, end: Any) -> Any:
        call, events = entry.call, (handle(start), handle(end))
        with self.state.lock:
            self.verdicts.start()
            for event in events:
                self.callers.own_event(self.state.mine(), call, event)
            for event in events:
                mark = self.state.ledger.marks.get(event)
                if mark is not None and mark.capture.status is CaptureStatus.ACTIVE:
                    raise self.verdicts.refusal(self.verdicts.judge(_O.EVENT_ELAPSED_TIME, event=event), call)
        return self.verdicts.about_event(_O.EVENT_ELAPSED_TIME, call, events[0], partial(original, start, end))
