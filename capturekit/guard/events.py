"""Recording events and waiting for them: existing fork and join code is followed without changes.

The forks and joins of a scope (``ck.fork``) lead to the same. capturekit makes all their calls itself, so that nothing
is asked twice about them.

CUDA calls an event that a block has recorded an invalid argument after the block, where no wrapper is installed. So its
events then get a class of their own (:func:`class_of_past`), which says what CUDA's answers mean; one that is recorded
again gets its former class back. Functions that only take the handle (``get_elapsed_time``, ``Stream.wait_event``)
raise CuPy's own error; so the recording has a note of an event for which nothing in the block waits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from capturekit.guard.entry_points import OWN, Entry
from capturekit.guard.lanes import Nodes, only_after, passed_by
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import handle
from capturekit.guard.stream_calls import CallsOnStreams, StreamWork
from capturekit.guard.verdicts import Verdicts
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import Clock, Lane
from capturekit.model.rules import Code, Operation
from capturekit.model.source_line import Place, here

_O = Operation


@dataclass(eq=False)
class Events(CallsOnStreams):
    """Follows events that are recorded and waited for."""

    work: StreamWork

    def event_made(self, original: Callable[..., Any], event: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(event, *args, **kwargs)
        with self.state.lock:
            self.state.ledger.forget_event(event.ptr)
            caller = self.state.caller()
            if caller is not None:
                caller.made_here(event, caller.events)
        return answer

    def handle_made(self, original: Callable[..., Any], *args: Any) -> Any:
        if self.state.caller() is not None:
            why = 'capturekit can not know how long this event is used'
            raise self.callers.not_recorded('cupy.cuda.runtime.eventCreate()', None, why)
        ptr = original(*args)
        with self.state.lock:
            self.state.ledger.forget_event(ptr)
        return ptr

    def stream_record(self, entry: Entry, original: Callable[..., Any], stream: Any, event: Any = None) -> Any:
        done = self.uploads.event_of_copy(stream.ptr) if event is None else None
        if done is not None:
            return done
        stream = self.streams.meant(stream)
        return self._record(entry.call, stream.ptr, event, lambda: original(stream, event), stream)

    def event_record(self, entry: Entry, original: Callable[..., Any], event: Any, stream: Any = None) -> Any:
        if stream is None:
            stream = self.state.current_stream()
        stream = self.streams.meant(stream)
        known = None if isinstance(stream, int) else stream
        self._record(entry.call, handle(stream), event, lambda: original(event, stream), known)

    def _record(self, call: str, ptr: int, event: Any, go: Callable[[], Any], stream: Any = None) -> Any:
        with self.state.lock:
            mine = self.start(ptr)
            if event is not None:
                self.callers.own_event(mine, call, handle(event))
            lane = self.streams.stands_in(mine, ptr, call)
            if mine is not None and lane is not None:
                return self._adapt_record(mine, call, event, lane)
            if event is None:
                self._event_of_the_device(call, ptr)
            verdict = self.verdicts.judge(_O.EVENT_RECORD, stream=ptr)
            if mine is not None and not mine.strict and self.lanes.is_outside(ptr) and stream is not None:
                self.lanes.adapt_fork(mine, stream, here())
            if self.state.open_on(ptr) is mine:
                self.callers.in_order(mine, self.state.ledger.lane(ptr))
        answer = self.verdicts.carry_out(verdict, call, ptr, go)
        with self.state.lock:
            recorded = answer if answer is not None and hasattr(answer, 'ptr') else event
            self._recorded(ptr, handle(recorded), recorded)
            self.streams.hold_again()
            self.callers.in_order(mine)
        return answer

    def _event_of_the_device(self, call: str, ptr: int) -> None:
        """Refuse to record an event that CuPy would make on the current device, on a stream of another device."""
        lane = self.state.ledger.lane(ptr)
        if lane is None or lane.device == self.state.current_device():
            return
        raise self.verdicts.error(
            call,
            ptr,
            rule=f'An event belongs to the device on which it is made, and only streams of that device record it: this '
            f'one is of device {lane.device}, and device {self.state.current_device()} is current '
            f'({Code.cudaErrorInvalidResourceHandle.name} would follow).',
            remedy=f'`with cp.cuda.Device({lane.device}): event = side.record()`; or `cap.join(side)`.',
            code=Code.cudaErrorInvalidResourceHandle,
        )

    def _recorded(self, ptr: int, key: int, event: Any) -> None:
        lane, at = self.state.ledger.lane(ptr), None
        if lane is not None:
            at = here()
            self.lanes.was_used(lane)
        mark = self.state.ledger.record(key, ptr, at)
        if lane is None or mark is None:
            return
        live = self.state.lives[lane.capture]
        live.events.append(event)  # kept, so that no new event gets its handle while the capture knows it
        lane.last_use = at
        with self.state.inside:
            lane.nodes = mark.nodes = self.state.platform.device.capture_info(ptr).dependencies
        live.note('record', lane, f'event {key:#x} recorded on lane {lane.number}', at, event=key)
        self.allocators.refresh()

    def _adapt_record(self, live: OpenCapture, call: str, event: Any, lane: Lane) -> Any:
        at = here()
        self.callers.in_order(live, lane)
        with self.state.inside:
            if event is None:
                event = self.state.platform.cupy.cuda.Event()
                if live.caller is not None:
                    live.caller.made_here(event, live.caller.events)
            live.streams[lane.stream].record(event)
        self._recorded(lane.stream, event.ptr, event)
        self.callers.in_order(live)
        live.note('adapted', lane, f'{call} on the legacy stream was moved to lane {lane.number}', at)
        return event

    def wait_event(self, entry: Entry, original: Callable[..., Any], stream: Any, event: Any) -> Any:
        stream = self.streams.meant(stream)
        return self._waiting(entry.call, stream.ptr, event.ptr, lambda: original(stream, event), stream)

    def runtime_wait_event(
        self, entry: Entry, original: Callable[..., Any], stream: int, event: int, flags: int = 0
    ) -> Any:
        stream = self.streams.meant(stream)
        if flags:
            return self.work.on_stream(_O.WORK, entry.call, stream, lambda: original(stream, event, flags))
        return self._waiting(entry.call, stream, event, lambda: original(stream, event))

    def _waiting(self, call: str, ptr: int, event: int, go: Callable[[], Any], stream: Any = None) -> Any:
        with self.state.lock:
            mine = self.start(ptr)
            self.callers.own_event(mine, call, event)
            lane = self.streams.stands_in(mine, ptr, call)
            if mine is not None and lane is not None:
                mine.note('adapted', lane, f'{call} of the legacy stream was moved to lane {lane.number}', here())
                ptr, stream = lane.stream, mine.streams[lane.stream]
                go = lambda: self.state.own('cupy.cuda.runtime.streamWaitEvent', ptr, event)  # noqa: E731
            if self.parts.is_past(mine, self.state.ledger.marks.get(event)):
                assert mine is not None
                if self.lanes.is_outside(ptr):
                    self.lanes.adapt_fork(mine, stream or self.lanes.wrapped(ptr), here(), mine.capture.origin)
                return  # the event's work is in an earlier part, so it comes before all that is recorded now
            verdict = self.verdicts.judge(_O.WAIT_EVENT, stream=ptr, event=event)
            blocking, device = False, 0
            forks = verdict.allowed and self.state.ledger.lane(ptr) is None and event in self.state.ledger.marks
            if forks:
                device = self.lanes.device_of(stream or self.lanes.wrapped(ptr))
                if mine is not None and mine.devices.before and device != mine.origin_device:
                    self.parts.refuse_second_device(mine)
                with self.state.inside:
                    blocking = not self.state.platform.device.stream_flags(ptr) & 1
            before = self._passed(mine, ptr, event)
        made = partial(self.verdicts.carry_out, verdict, call, ptr, go)
        answer = made() if mine is not None else self.verdicts.about_event(_O.WAIT_EVENT, call, event, made, ptr)
        with self.state.lock:
            self._waited(ptr, event, blocking, device, stream, before)
            self.streams.hold_again()
            self.callers.in_order(mine)
        return answer

    def _passed(self, mine: OpenCapture | None, ptr: int, event: int) -> set[int]:
        """The nodes that a lane's next work comes after, if they come before what an event stands for; else none."""
        lane, mark = self.state.ledger.lane(ptr), self.state.ledger.marks.get(event)
        if mine is None or mine.memory is None or mine.caller is not None or lane is None or mark is None:
            return set()
        # with another policy, nothing is recorded
        alone = self.state.inside.policy is None and mine.capture is lane.capture is mark.capture
        return passed_by(mine, lane, mark.clock) if alone and lane.device == mine.origin_device else set()

    def _waited(self, ptr: int, event: int, blocking: bool, device: int, stream: Any, before: set[int]) -> None:
        at, mark, lane = here(), self.state.ledger.marks.get(event), self.state.ledger.lane(ptr)
        if mark is None or mark.capture not in self.state.lives:
            if lane is not None:
                text = f'lane {lane.number} waited for an event that was never recorded: that orders nothing'
                self.state.lives[lane.capture].note('note', lane, text, at)
            return
        live = self.state.lives[mark.capture]
        forked = self.state.ledger.wait(ptr, event, blocking=blocking, at=at, device=device)
        if forked is not None:
            self.lanes.entered(live, forked, stream, at)
        elif lane is not None:
            kind = 'join' if mark.lane != lane.number else 'wait'
            live.note(kind, lane, f'lane {lane.number} waits for lane {mark.lane}', at, event=event, other=mark.lane)
            ends = None
            if before and set(mark.nodes) <= set(live.graph_memory.ends(lane.stream)):  # the driver has the new edges
                with self.state.inside:
                    ends = only_after(self.state.platform.device, lane, before, mark.nodes)
            self.lanes.rests(lane, ends)
        self.allocators.refresh()

    def over(self, live: OpenCapture) -> None:
        """Note that a capture is about to be over. Where wrappers stay, with captures begun by hand, they know."""
        if live.memory is None or live.caller is not None:
            return
        usual = self.state.platform.cupy.cuda.Event
        own = {live.capture, *live.parts.past}
        for event in live.events:
            mark = self.state.ledger.marks.get(event.ptr) if type(event) is usual else None
            if mark is not None and mark.capture in own:
                if mark.capture is live.capture and not mark.waited and event is not live.awaited_event:
                    at = mark.at if isinstance(mark.at, Place) else None
                    live.note('note', live.capture.lanes[mark.lane], _OF_NO_USE, at)
                event.__class__ = class_of_past(usual, self.verdicts)

    def fork(self, live: OpenCapture, parent: int, streams: Iterable[Any], frame: FrameType) -> None:
        """Let non-blocking streams of the current device wait for a lane in a frame's scope: new lanes, or lanes
        already."""
        state, ledger, wait = self.state, self.state.ledger, self.state.installation.originals[_WAIT]
        with state.lock, state.inside:
            at, lane = here(frame), ledger.lanes[parent]
            event = live.scope_events.get(lane.device) or self._event(live, lane.device)
            clock = self._recorded_in_scope(live, lane, event, at)
            if live.trace is not None:
                live.trace.poll(lane.nodes, parent)
            for stream in streams:
                handle = stream.__dict__['ptr']
                known = ledger.lanes.get(handle)
                before = set[int]() if known is None else passed_by(live, known, clock)
                wait(handle, event)
                forked = ledger.come_after(handle, lane, clock, False, at, lane.device)
                if forked is not None:
                    self.lanes.entered(live, forked, stream, at, polled=True)
                elif known is not None:
                    left = only_after(state.platform.device, known, before, lane.nodes)
                    self._waited_in_scope(live, known, lane, event, at, True, left)
            # the allocator of the current lane notices by itself that lanes were forked

    def join(self, live: OpenCapture, into: int, lanes: Iterable[int], frame: FrameType) -> None:
        """Let a lane wait for others at the end of a frame's scope; all are given by their handles."""
        state, ledger, wait = self.state, self.state.ledger, self.state.installation.originals[_WAIT]
        with state.lock, state.inside:
            at, lane, polled = here(frame), ledger.lanes[into], False
            event = live.scope_events.get(lane.device) or self._event(live, lane.device)
            for ptr in lanes:
                of = ledger.lanes[ptr]
                clock = self._recorded_in_scope(live, of, event, at)
                before = passed_by(live, lane, clock)
                wait(into, event)
                ledger.come_after(into, of, clock, False, at, of.device)
                only_after(state.platform.device, lane, before, of.nodes)
                # with the first wait, the nodes so far go to the current line
                self._waited_in_scope(live, lane, of, event, at, polled)
                polled = True
            self.allocators.to_lane(live, lane)

    @staticmethod
    def _event(live: OpenCapture, device: int) -> int:
        """Make the event that all scopes of a capture record on a device, one after the other: each wait has put what
        it stands for into the graph. It is kept, so that no new event gets its handle."""
        live.events.append(live.platform.cupy.cuda.Event(disable_timing=True))
        live.scope_events[device] = handle = int(live.events[-1].ptr)
        return handle

    def _recorded_in_scope(self, live: OpenCapture, lane: Lane, event: int, at: Place | None) -> Clock:
        """Record an event on a lane; return what lies before it. The caller lets wrappers pass its calls."""
        memory = live.memory
        assert memory is not None
        ends = memory.ends(lane.stream)
        if ends and ends[0] < 0:  # the capture is lost
            try:
                self.verdicts.check(live)
            except CaptureError as error:
                refused(error)
                self.verdicts.has_refused(error, OWN)
                raise
        if live.trace is None:
            live.active_at = at or live.active_at
        self.state.installation.originals[_RECORD](event, lane.stream)
        lane.nodes = ends
        if not lane.current and not memory.foreseen(lane, ends):
            self.lanes.was_used(lane, ends)
        lane.last_use = at
        live.note('record', lane, f'event {event:#x} recorded on lane {lane.number}', at, event=event)
        return self.state.ledger.passed(lane)

    @staticmethod
    def _waited_in_scope(
        live: OpenCapture, lane: Lane, of: Lane, event: int, at: Place | None, polled: bool, ends: Nodes | None = None
    ) -> None:
        """Note that a lane waits for another. Unless they are ``polled``, the nodes so far go to the current line."""
        kind, text = 'join' if of is not lane else 'wait', f'lane {lane.number} waits for lane {of.number}'
        live.note(kind, lane, text, at, polled, event=event, other=of.number)
        if not lane.current and live.memory is not None:
            live.memory.rests(lane, ends)


_OF_NO_USE = (
    'an event is recorded here, and nothing in the block waits for it; after the block it is of no use, because no '
    'launch records it: to time or await a launch, record it around `graph.launch()`'
)


@functools.lru_cache(1)  # there is one CuPy, but in tests
def class_of_past(usual: type, verdicts: Verdicts) -> type:
    """Make the class of events that were recorded in a block which is over, from CuPy's class of events."""
    kind: Any = usual

    class EventOfAPastCapture(kind):  # type: ignore[misc]
        __doc__ = kind.__doc__

        def synchronize(self) -> None:
            verdicts.about_event(Operation.EVENT_SYNCHRONIZE, 'Event.synchronize()', self.ptr, super().synchronize)
            self.__class__ = usual  # it was recorded again

        @property
        def done(self) -> bool:
            asked = partial(getattr, super(), 'done')
            if not verdicts.about_event(Operation.EVENT_QUERY, 'Event.done', self.ptr, asked):
                return False
            self.__class__ = usual
            return True

        def record(self, stream: Any = None) -> Any:
            self.__class__ = usual
            return self.record(stream)

    return EventOfAPastCapture


_RECORD, _WAIT = 'cupy.cuda.runtime.eventRecord', 'cupy.cuda.runtime.streamWaitEvent'
