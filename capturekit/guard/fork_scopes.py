"""Forks and joins of a scope: capturekit makes all their calls itself, so that nothing is asked twice about them.

What they lead to is what existing code leads to that records events and waits for them
(:mod:`capturekit.guard.events`). There each call is judged by itself, as it may be any.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from threading import get_ident
from types import FrameType
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.lanes import Lanes, only_after, passed_by
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.refusals import OWN
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import Clock, Lane
from capturekit.model.recording import Step
from capturekit.model.source_line import Place, here

_RECORD, _WAIT = 'cupy.cuda.runtime.eventRecord', 'cupy.cuda.runtime.streamWaitEvent'
#: A line in the form of recordings.
Line = list[Any] | None


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
        stack, known = state.threads.get(get_ident()), state.ledger.lanes
        mine, lane = stack[-1] if stack else None, known.get(parent)
        if mine is None or lane is None or lane.capture is not mine.capture or mine.memory is None:
            return None
        if mine.caller is not None or mine.outside.held or state.inside.substitute is not None:
            return None
        if not mine.capture.origin.device == lane.device == state.platform.cupy.cuda.runtime.getDevice():
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
        state, trace = self.state, live.trace
        ledger, wait = state.ledger, state.installation.originals[_WAIT]
        with state.lock, state.inside:
            at, lane = here(frame), ledger.lanes[parent]
            line: Line = None if at is None else [at.file, at.line, at.function]
            event = self._event(live, lane.device)
            clock = self._recorded(live, lane, event, at, line)
            if trace is not None:
                ends = lane.nodes
                known = len(ends) < 2 and trace.stream == parent
                trace.poll((ends[0] if ends else 0) if known else None)
            for stream in streams:
                handle = stream.__dict__['ptr']
                before = passed_by(live, ledger.lanes.get(handle), clock)
                wait(handle, event)
                forked = ledger.come_after(handle, lane, clock, False, at, lane.device)
                if forked is None:
                    left = only_after(self.state.platform.device, ledger.lanes[handle], before, lane.nodes)
                    self._waited(live, ledger.lanes[handle], lane, event, line, True, left)
                else:
                    self.lanes.entered(live, forked, stream, at)
            # the allocator of the current lane notices by itself that lanes were forked

    def join(self, live: OpenCapture, into: int, lanes: Iterable[int], frame: FrameType) -> None:
        """Let a lane wait for others; all are given by their handles.

        ``frame``: the one that leaves the scope.
        """
        state, polled = self.state, False
        ledger, wait = state.ledger, state.installation.originals[_WAIT]
        with state.lock, state.inside:
            at, lane = here(frame), ledger.lanes[into]
            line: Line = None if at is None else [at.file, at.line, at.function]
            event = self._event(live, lane.device)
            for ptr in lanes:
                of = ledger.lanes[ptr]
                clock = self._recorded(live, of, event, at, line)
                before = passed_by(live, lane, clock)
                wait(into, event)
                ledger.come_after(into, of, clock, False, at, of.device)
                only_after(self.state.platform.device, lane, before, of.nodes)
                # with the first wait, the nodes so far go to the current line
                self._waited(live, lane, of, event, line, polled)
                polled = True
            self.allocators.to_lane(live, lane)

    @staticmethod
    def _event(live: OpenCapture, device: int) -> int:
        """The handle of the event that all scopes of a capture record on a device, one after the other.

        Each wait has put what it stands for into the graph by then. It is kept with the capture's events, so that no
        new event gets its handle.
        """
        known = live.scope_events.get(device)
        if known is None:
            made = live.platform.cupy.cuda.Event(disable_timing=True)
            live.events.append(made)
            known = live.scope_events[device] = made.ptr
        return known

    def _check(self, live: OpenCapture) -> None:
        """Raise if the capture is lost, and let the guard know it."""
        try:
            self.verdicts.check(live)
        except CaptureError as error:
            refused(error)
            self.verdicts.has_refused(error, OWN)
            raise

    def _recorded(self, live: OpenCapture, lane: Lane, event: int, at: Place | None, line: Line) -> Clock:
        """Record an event on a lane; return what lies before it. The caller lets wrappers pass its calls."""
        memory = live.graph_memory
        ends = memory.ends(lane.stream)
        if ends and ends[0] < 0:
            self._check(live)
        if live.trace is None:
            live.active_at = at or live.active_at
        self.state.installation.originals[_RECORD](event, lane.stream)
        lane.nodes = ends
        if not lane.current and not memory.foreseen(lane, ends):
            self.lanes.was_used(lane, ends)
        lane.last_use = at
        number = lane.number
        live.recording.steps.append(Step('record', number, _event_on(event, number), line, event))
        return self.state.ledger.passed(lane)

    @staticmethod
    def _waited(
        live: OpenCapture,
        lane: Lane,
        of: Lane,
        event: int,
        line: Line,
        polled: bool,
        ends: tuple[int, ...] | None = None,
    ) -> None:
        """Note that a lane waits for another. Unless they are ``polled``, the nodes so far go to the current line."""
        kind, number, other = 'join' if of is not lane else 'wait', lane.number, of.number
        step = Step(kind, number, _waits_for(number, other), line, event, None, other)
        live.recording.steps.append(step)
        if live.trace is not None:
            live.trace.note(step, polled)
        if not lane.current:
            live.graph_memory.rests(lane, ends)


# Scopes come again, and so do these words.


@lru_cache(1024)
def _event_on(event: int, lane: int) -> str:
    return f'event {event:#x} recorded on lane {lane}'


@lru_cache(1024)
def _waits_for(lane: int, other: int) -> str:
    return f'lane {lane} waits for lane {other}'
