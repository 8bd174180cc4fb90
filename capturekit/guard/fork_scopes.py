"""Forks and joins of a scope: capturekit makes all their calls itself, so that nothing is asked twice about them.

What they lead to is what existing code leads to that records events and waits for them
(:mod:`capturekit.guard.events`). There each call is judged by itself, as it may be any.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
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

_RECORD, _WAIT = 'cupy.cuda.stream._BaseStream.record', 'cupy.cuda.stream._BaseStream.wait_event'


class ForkScopes:
    """Forks the lanes of a scope from one lane, and joins them into it."""

    def __init__(self, state: State, verdicts: Verdicts, allocators: Allocators, lanes: Lanes) -> None:
        self.state = state
        self.verdicts = verdicts
        self.allocators = allocators
        self.lanes = lanes

    def capture_of(self, parent: int, lanes: Iterable[int] = ()) -> OpenCapture | None:
        """The capture in which lanes can be forked from a stream, or joined into it; None if each call may be special.

        It is this thread's, the stream is one of its lanes on the current device, and so are ``lanes``. Streams are
        given by their handles.
        """
        state = self.state
        mine, known = state.mine(), state.ledger.lanes
        lane = known.get(parent)
        if mine is None or lane is None or lane.capture is not mine.capture or mine.memory is None:
            return None
        if mine.caller is not None or mine.outside.held or state.inside.substitute is not None:
            return None
        if not mine.capture.origin.device == lane.device == state.current_device():
            return None
        for ptr in lanes:
            one = known.get(ptr)
            if one is None or one.capture is not lane.capture or one.device != lane.device:
                return None
        return mine

    def fork(self, live: OpenCapture, parent: int, streams: Iterable[Any], frame: FrameType) -> None:
        """Let non-blocking streams of the current device wait for a lane. They become lanes, or are lanes already.

        ``frame``: the one that enters the scope.
        """
        with self.state.lock, self.state.inside:
            at, lane = here(frame), self.state.ledger.lanes[parent]
            event = self._recorded(live, lane, at)
            if live.trace is not None:
                ends = lane.nodes
                known = len(ends) < 2 and live.trace.stream == parent
                live.trace.poll((ends[0] if ends else 0) if known else None)
            for stream in streams:
                self._wait(live, stream, stream.__dict__['ptr'], event, lane, at, first=False)
            # the allocator of the current lane notices by itself that lanes were forked

    def join(self, live: OpenCapture, parent: Any, into: int, lanes: Iterable[int], frame: FrameType) -> None:
        """Let a lane wait for others, given by their handles; ``into`` is that of its stream, ``parent``.

        ``frame``: the one that leaves the scope.
        """
        with self.state.lock, self.state.inside:
            at, known = here(frame), self.state.ledger.lanes
            for number, ptr in enumerate(lanes):
                lane = known[ptr]
                self._wait(live, parent, into, self._recorded(live, lane, at), lane, at, first=not number)
            self.allocators.to_lane(live, known[into])

    def _check(self, live: OpenCapture) -> None:
        """Raise if the capture is lost, and let the guard know it."""
        try:
            self.verdicts.check(live)
        except CaptureError as error:
            refused(error)
            self.verdicts.has_refused(error, OWN)
            raise

    def _recorded(self, live: OpenCapture, lane: Lane, at: Place | None) -> tuple[Any, int]:
        """Record a new event on a lane; return it and its handle. The caller lets wrappers pass its calls."""
        made = self.state.installation.originals
        ends = live.graph_memory.ends(lane.stream)
        if ends and ends[0] < 0:
            self._check(live)
        if live.trace is None:
            live.active_at = at or live.active_at
        event = live.platform.cupy.cuda.Event(disable_timing=True)
        made[_RECORD](live.streams[lane.stream], event)
        lane.nodes = ends
        live.events.append(event)  # kept, so that no new event gets its handle while the capture knows it
        if not lane.current:
            self.lanes.was_used(lane, ends)
        ptr = event.ptr
        self.state.ledger.record(ptr, lane.stream, at)
        lane.last_use = at
        live.step('record', lane, f'event {ptr:#x} recorded on lane {lane.number}', at, ptr)
        return event, ptr

    def _wait(
        self,
        live: OpenCapture,
        stream: Any,
        handle: int,
        event: tuple[Any, int],
        of: Lane,
        at: Place | None,
        *,
        first: bool,
    ) -> None:
        """Let a stream, given with its handle, wait for an event, given with its own, that lies on a lane.

        With the first wait of a join, the nodes so far go to the current line.
        """
        self.state.installation.originals[_WAIT](stream, event[0])
        forked = self.state.ledger.wait(handle, event[1], at=at, device=of.device)
        if forked is not None:
            self.lanes.entered(live, forked, stream, at)
            return
        lane = self.state.ledger.lanes[handle]
        text = f'lane {lane.number} waits for lane {of.number}'
        kind = 'join' if of is not lane else 'wait'
        live.ordering(kind, lane, text, at, of.number, event[1], polled=not first)
        if not lane.current:
            live.graph_memory.rests(lane)
