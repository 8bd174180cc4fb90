"""Forks and joins of a scope: capturekit makes all their calls itself, so that nothing is asked twice about them.

What they lead to is what existing code leads to that records events and waits for them
(:mod:`capturekit.guard.events`). There each call is judged by itself, as it may be any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.cupy_errors import OWN
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import Lane
from capturekit.model.source_line import Place, here


class ForkScopes:
    """Forks the lanes of a scope from one lane, and joins them into it."""

    def __init__(self, state: State, verdicts: Verdicts, allocators: Allocators, lanes: Lanes) -> None:
        self.state = state
        self.verdicts = verdicts
        self.allocators = allocators
        self.lanes = lanes

    def capture_of(self, parent: Any, streams: Iterable[Any] = ()) -> OpenCapture | None:
        """The capture in which lanes can be forked from a stream, or joined into it; None if each call may be special.

        It is this thread's, the stream is one of its lanes on the current device, and so are ``streams``.
        """
        state = self.state
        mine, lane = state.mine(), state.ledger.lane(parent.ptr)
        if mine is None or lane is None or lane.capture is not mine.capture or mine.memory is None:
            return None
        if mine.caller is not None or mine.outside.held or state.installation.inside.substitute is not None:
            return None
        if not mine.origin_device == lane.device == state.current_device():
            return None
        lanes = [state.ledger.lane(stream.ptr) for stream in streams]
        alike = all(one is not None and one.capture is lane.capture and one.device == lane.device for one in lanes)
        return mine if alike else None

    def fork(self, live: OpenCapture, parent: Any, streams: Iterable[Any]) -> None:
        """Let non-blocking streams of the current device wait for a lane. They become lanes, or are lanes already."""
        with self.state.lock:
            self._check(live)
            at, lane = here(), self.state.ledger.lanes[parent.ptr]
            event = self._recorded(live, lane, at)
            for stream in streams:
                self._wait(live, stream, event, lane, at)
            self.allocators.refresh()

    def join(self, live: OpenCapture, parent: Any, streams: Iterable[Any]) -> None:
        """Let a lane wait for others."""
        with self.state.lock:
            self._check(live)
            at = here()
            for stream in streams:
                lane = self.state.ledger.lanes[stream.ptr]
                self._wait(live, parent, self._recorded(live, lane, at), lane, at)
            self.allocators.refresh()

    def _check(self, live: OpenCapture) -> None:
        try:
            self.verdicts.check(live)
        except CaptureError as error:
            refused(error)
            self.verdicts.has_refused(error, OWN)
            raise

    def _recorded(self, live: OpenCapture, lane: Lane, at: Place | None) -> Any:
        assert live.memory is not None
        with self.state.inside():
            event = live.platform.cupy.cuda.Event(disable_timing=True)
            live.streams[lane.stream].record(event)
            lane.nodes = live.memory.ends(lane.stream)
        live.events.append(event)  # kept, so that no new event gets its handle while the capture knows it
        self.lanes.was_used(lane)
        self.state.ledger.record(event.ptr, lane.stream, at)
        lane.last_use = at
        live.note('record', lane, f'event {event.ptr:#x} recorded on lane {lane.number}', at, event=event.ptr)
        return event

    def _wait(self, live: OpenCapture, stream: Any, event: Any, of: Lane, at: Place | None) -> None:
        with self.state.inside():
            stream.wait_event(event)
        forked = self.state.ledger.wait(stream.ptr, event.ptr, at=at, device=of.device)
        if forked is not None:
            self.lanes.entered(live, forked, stream, at)
            return
        lane = self.state.ledger.lanes[stream.ptr]
        text = f'lane {lane.number} waits for lane {of.number}'
        live.note('join' if of is not lane else 'wait', lane, text, at, event=event.ptr, other=of.number)
        self.lanes.rests(lane)
