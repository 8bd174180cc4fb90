"""What becomes of a call that reaches CuPy while a capture is open: refused, given another meaning, or let through.

Every intercepted entry point has a method here (its *verb*). The topology says what the driver would answer; what
would cost the capture, or be silently left out of the graph, raises before the driver is asked; with
``strict=False`` what has an equal meaning inside a graph is given it, and noted. Then CuPy's original runs, and the
topology is told. Patches are process-wide, judgement is per thread and per stream: a thread without a capture goes on
as always, except that calls which would cost somebody's capture wait until it is closed.

Streams that are not in the capture but are made current inside it are *trapped*: put into a capture of their own that
is thrown away, so that work sent to them neither runs nor goes missing unseen. It is reported when the stream is left,
and an allocation for such work is refused at its own line.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy

from capturekit import errors
from capturekit.cuda import Platform, current
from capturekit.errors import CaptureError, CudaCallError
from capturekit.intercept import Installation
from capturekit.memory import GraphMemory
from capturekit.places import Place, here
from capturekit.recording import LaneRecord, Recording, Step
from capturekit.rules import RULES, CaptureStatus, Code, Effect, Mode, Operation, Rule
from capturekit.topology import LEGACY_HANDLES, Capture, EventState, Lane, Topology, Verdict

#: Seconds that another thread's device-wide synchronisation waits for captures to close.
WAIT_SECONDS = 60.0

_O = Operation
#: Functions that allocate and launch nothing: an allocation from them is no work.
_ALLOCATE_ONLY = frozenset({'empty', 'empty_like', 'ndarray'})


@dataclass(eq=False)
class Live:
    """An open capture as the guard sees it."""

    platform: Platform
    capture: Capture
    strict: bool
    origin: Any
    memory: GraphMemory | None
    recording: Recording
    thread: int
    at: Place | None
    streams: dict[int, Any] = field(default_factory=dict)
    trapped: dict[int, tuple[Any, Place | None]] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    floor: Any = None
    active_at: Place | None = None
    upload: Any = None
    lane_streams: list[Any] = field(default_factory=list)
    suspended: Callable[[], bool] = lambda: False

    def note(self, kind: str, lane: Lane | None, text: str, at: Place | None = None, **more: Any) -> None:
        """Append a step to the recording."""
        number = None if lane is None else lane.number
        self.recording.steps.append(Step(kind, number, text, None if at is None else at.to_json(), **more))

    def lane_of(self, stream: Any) -> Lane | None:
        """The lane that a stream object is in this capture."""
        lane = GUARD.topology.lane(stream.ptr)
        return lane if lane is not None and lane.capture is self.capture else None


class Guard:
    """One for the process; see the module's text."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.installation = Installation()
        self.lock = threading.RLock()
        self.closed = threading.Condition(self.lock)
        self.lives: dict[Capture, Live] = {}
        self.allocators: dict[int, Any] = {}
        self.watching = 0
        self._platform: Platform | None = None

    # -- captures coming and going ----------------------------------------------------------------------------

    def install(self, platform: Platform) -> None:
        """Put the wrappers in place (counted)."""
        with self.lock:
            if self._platform is not None and self._platform.cupy is not platform.cupy and self.lives:
                raise RuntimeError('captures are open on another CuPy: close them first')
            self._platform = platform
            self.installation.install(self)

    def uninstall(self) -> None:
        """Take the wrappers away again (counted); the last time what was known of events is forgotten, too."""
        with self.lock:
            try:
                self.installation.uninstall()
            finally:
                if not self.installation.installed:
                    self.topology.marks.clear()
                    self.topology.outside.clear()

    def opened(self, live: Live) -> None:
        """A capture has begun."""
        with self.lock:
            self.lives[live.capture] = live
            live.streams[live.origin.ptr] = live.origin
            live.note('begin', live.capture.origin, f'capture begun in {live.recording.mode} mode', live.at)

    def gone(self, live: Live) -> None:
        """A capture is over: waiting threads go on."""
        with self.lock:
            self.topology.end(live.capture)
            self.lives.pop(live.capture, None)
            self.closed.notify_all()

    def mine(self) -> Live | None:
        """The capture opened last by this thread."""
        me = threading.get_ident()
        for live in reversed(list(self.lives.values())):
            if live.thread == me:
                return live
        return None

    def live_of(self, lane: Lane) -> Live:
        return self.lives[lane.capture]

    @property
    def platform(self) -> Platform:
        return self._platform if self._platform is not None else current()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Calls made in the block are the guard's own: wrappers let them through."""
        inside = self.installation.inside
        inside.depth += 1
        try:
            yield
        finally:
            inside.depth -= 1

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Call CuPy's original of an entry point, past the wrappers."""
        with self.inside():
            return self.installation.original(entry)(*args, **kwargs)

    # -- judging ----------------------------------------------------------------------------------------------

    def judge(self, operation: Operation, **ids: Any) -> Verdict:
        """The verdict on a call from this thread; an event or stream met for the first time is looked up first."""
        event = ids.get('event')
        if event is not None:
            self._meet(event)
        return self.topology.judge(operation, thread=threading.get_ident(), **ids)

    def _meet(self, event: int) -> None:
        topology = self.topology
        if event not in topology.marks and event not in topology.outside:
            with self.inside():
                state = self.platform.device.event_state(event)
            if state is not EventState.NEVER:
                # dead or foreign: as little to be waited for as one recorded outside
                topology.outside_event(event)

    def _check(self, live: Live) -> None:
        """Notice, as soon as possible, that something below Python has lost the capture."""
        if live.suspended():
            raise errors.GeneratorError(
                'A generator suspended inside `with ck.capture()`',
                location=live.at,
                rule='What runs meanwhile would be recorded as if it belonged to the block.',
                remedy='Leave the block before `yield`; a context manager of your own may wrap ck.capture '
                'with contextlib.contextmanager.',
            )
        if live.capture.status is CaptureStatus.ACTIVE:
            with self.inside():
                status = self.platform.device.stream_status(live.origin.ptr)
            if status is CaptureStatus.ACTIVE:
                live.active_at = here() or live.active_at
            else:
                live.capture.status = CaptureStatus.INVALIDATED
                raise self.invalidated(live)

    def invalidated(self, live: Live) -> errors.InvalidatedError:
        """The error that says a capture was lost below Python."""
        since = f'The capture was still good at {live.active_at}' if live.active_at else 'The capture was good when begun'
        error = errors.InvalidatedError(
            'The capture was lost by a call that capturekit did not see',
            stream=live.origin.ptr,
            lane=0,
            location=here(),
            rule=f'{since} and is lost now (cudaErrorStreamCaptureInvalidated): a C library, another library or '
            'another thread made a call that no capture can hold.',
            remedy='Move the library call between these two lines out of the block.',
            cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
        )
        error.active_at = live.active_at
        return error

    def refuse(self, verdict: Verdict, call: str, ptr: int | None = None, rule: Rule | None = None) -> NoReturn:
        """Raise what the verdict means for a person."""
        raise self.refusal(verdict, call, ptr, rule)

    def refusal(self, verdict: Verdict, call: str, ptr: int | None = None, rule: Rule | None = None) -> CaptureError:
        """The error for a verdict."""
        rule = rule or verdict.rule
        assert rule is not None
        lane = None if ptr is None else self.topology.lane(ptr)
        code = verdict.answer.code
        if verdict.answer.refused:
            after = ', and the capture would be lost' if verdict.lost or verdict.answer.loses else ''
            says = f'{rule.says} ({code.name} would follow{after}).'
        else:
            says = f'{rule.says}.'
        error = rule.error(
            call,
            stream=ptr,
            lane=None if lane is None else lane.number,
            subject=self.subject(ptr),
            location=here(),
            rule=says,
            remedy=rule.remedy,
            cuda_error=code.name if verdict.answer.refused else '',
        )
        mine = self.mine()
        if mine is not None:
            mine.active_at = mine.active_at or mine.at
        return error

    def subject(self, ptr: int | None) -> str:
        """A stream in words: its lane, its handle, where it was forked."""
        if ptr is None:
            return ''
        lane = self.topology.lane(ptr)
        if ptr in LEGACY_HANDLES:
            return 'the legacy default stream'
        if lane is None:
            return f'stream {ptr:#x}, which is not in the capture'
        if lane.number == 0:
            return f'lane 0, the origin (stream {ptr:#x})'
        at = f', forked at {lane.forked_at.short}' if isinstance(lane.forked_at, Place) else ''
        return f'lane {lane.number} (stream {ptr:#x}{at})'

    def _pass(self, verdict: Verdict, call: str, ptr: int | None, go: Callable[[], Any]) -> Any:
        """Let a call through, make it wait for somebody else's capture to close, or refuse it."""
        me = threading.get_ident()
        if verdict.allowed:
            return go()
        theirs = verdict.lost and all(c.thread != me for c in verdict.lost)
        if theirs and verdict.rule is not None:
            if verdict.rule.name in ('unsafe-in-mode', 'unsafe-sync-in-mode'):
                return self._relaxed(go)
            if verdict.rule.name in ('device-sync', 'legacy-stream'):
                self._wait(verdict.lost, call)
                return go()
        if verdict.answer.effect is Effect.ESCAPES and self.mine() is None:
            return go()
        if verdict.answer.refused and not verdict.answer.loses and self.mine() is None and not verdict.lost:
            return go()  # harmless, and CUDA says it itself
        self.refuse(verdict, call, ptr)

    def _relaxed(self, go: Callable[[], Any]) -> Any:
        device = self.platform.device
        old = device.exchange_thread_mode(Mode.RELAXED)
        try:
            return go()
        finally:
            device.exchange_thread_mode(old)

    def _wait(self, captures: tuple[Capture, ...], call: str) -> None:
        """Block this thread until the captures are closed; it has none of its own among them."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self.closed:
            while any(c in self.lives for c in captures):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise errors.SynchronizationError(
                        call,
                        location=here(),
                        rule=f'Another thread has held a capture open for {WAIT_SECONDS:g} s, and this call would '
                        'lose it (cudaErrorStreamCaptureUnsupported in every mode).',
                        remedy='Synchronise one stream instead of the device, or close the capture first.',
                        cuda_error=Code.cudaErrorStreamCaptureUnsupported.name,
                    )
                self.closed.wait(left)

    # -- streams: waiting and asking --------------------------------------------------------------------------

    def stream_synchronize(self, original: Callable[..., Any], stream: Any) -> Any:
        return self._stream_wait(_O.STREAM_SYNCHRONIZE, 'Stream.synchronize()', stream.ptr, lambda: original(stream))

    def stream_done(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        return self._stream_wait(_O.STREAM_QUERY, 'Stream.done', stream.ptr, lambda: getter(stream))

    def runtime_stream_synchronize(self, original: Callable[..., Any], stream: int) -> Any:
        return self._stream_wait(
            _O.STREAM_SYNCHRONIZE, 'cupy.cuda.runtime.streamSynchronize()', stream, lambda: original(stream)
        )

    def runtime_stream_query(self, original: Callable[..., Any], stream: int) -> Any:
        return self._stream_wait(_O.STREAM_QUERY, 'cupy.cuda.runtime.streamQuery()', stream, lambda: original(stream))

    def _stream_wait(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with self.lock:
            mine = self._start()
            self._spring(ptr)
            verdict = self.judge(operation, stream=ptr)
            lane = self.topology.lane(ptr)
            if ptr in LEGACY_HANDLES and mine is not None and not verdict.lost:
                if mine.strict or operation is not _O.STREAM_SYNCHRONIZE:
                    self.refuse(verdict, call, ptr, RULES['legacy-stream'])
            if operation is _O.STREAM_SYNCHRONIZE and mine is not None and not mine.strict:
                if lane is not None and lane.capture is mine.capture:
                    return self._adapt_wait(mine, [lane], f'{call} of lane {lane.number} became a join')
                if ptr in LEGACY_HANDLES:
                    return self._adapt_wait(mine, mine.capture.lanes, f'{call} became a join of all lanes')
        try:
            return self._pass(verdict, call, ptr, go)
        finally:
            self._trap_again()

    def _adapt_wait(self, live: Live, lanes: list[Lane], text: str) -> None:
        """The host's wait for some lanes: whatever is recorded from now on comes after them, on every lane."""
        at = here()
        events = [self._record_on(live, lane, at) for lane in list(lanes)]
        for lane in list(live.capture.lanes):
            for event in events:
                self._wait_on(live, lane, event, at)
        floor = self._record_on(live, live.capture.origin, at)
        live.floor = floor
        live.note('adapted', None, text, at)
        self._refresh()

    def _record_on(self, live: Live, lane: Lane, at: Place | None) -> Any:
        """Record a new event on a lane, for joins of the guard's own."""
        with self.inside():
            event = self.platform.cupy.cuda.Event(disable_timing=True)
            live.streams[lane.stream].record(event)
            lane.nodes = self.platform.device.capture_info(lane.stream).dependencies
        live.events.append(event)
        self.topology.record(event.ptr, lane.stream, at)
        return event

    def _wait_on(self, live: Live, lane: Lane, event: Any, at: Place | None) -> None:
        with self.inside():
            live.streams[lane.stream].wait_event(event)
        self.topology.wait(lane.stream, event.ptr, at=at)

    def device_synchronize(self, original: Callable[..., Any], device: Any) -> Any:
        return self._device_wait('Device.synchronize()', lambda: self._declared(original, device))

    def _declared(self, original: Callable[..., Any], *args: Any) -> Any:
        with self.inside():
            return original(*args)

    def runtime_device_synchronize(self, original: Callable[..., Any]) -> Any:
        return self._device_wait('cupy.cuda.runtime.deviceSynchronize()', original)

    def declared_synchronize(self, original: Callable[..., Any]) -> Any:
        """CuPy is about to wait for the device, from C code that no other entry saw."""
        return self._device_wait('Device.synchronize()', original)

    def _device_wait(self, call: str, go: Callable[[], Any]) -> Any:
        with self.lock:
            mine = self._start()
            verdict = self.judge(_O.DEVICE_SYNCHRONIZE)
            if mine is not None and verdict.lost:
                if mine.strict:
                    self.refuse(verdict, call)
                return self._adapt_wait(mine, mine.capture.lanes, f'{call} became a join of all lanes')
        return self._pass(verdict, call, None, go)

    # -- events -----------------------------------------------------------------------------------------------

    def event_made(self, original: Callable[..., Any], event: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(event, *args, **kwargs)
        with self.lock:
            self.topology.forget_event(event.ptr)
        return answer

    def runtime_event_made(self, original: Callable[..., Any], *args: Any) -> Any:
        ptr = original(*args)
        with self.lock:
            self.topology.forget_event(ptr)
        return ptr

    def event_synchronize(self, original: Callable[..., Any], event: Any) -> Any:
        return self._event_wait(
            _O.EVENT_SYNCHRONIZE, 'Event.synchronize()', event.ptr, lambda: original(event), event
        )

    def event_done(self, getter: Callable[[Any], Any], event: Any) -> Any:
        return self._event_wait(_O.EVENT_QUERY, 'Event.done', event.ptr, lambda: getter(event))

    def runtime_event_synchronize(self, original: Callable[..., Any], event: int) -> Any:
        return self._event_wait(
            _O.EVENT_SYNCHRONIZE, 'cupy.cuda.runtime.eventSynchronize()', event, lambda: original(event)
        )

    def runtime_event_query(self, original: Callable[..., Any], event: int) -> Any:
        return self._event_wait(_O.EVENT_QUERY, 'cupy.cuda.runtime.eventQuery()', event, lambda: original(event))

    def _event_wait(
        self, operation: Operation, call: str, ptr: int, go: Callable[[], Any], event: Any = None
    ) -> Any:
        with self.lock:
            mine = self._start()
            mark = self.topology.marks.get(ptr)
            if mark is None and mine is None:
                verdict = self.topology.judge(operation, thread=threading.get_ident(), event=ptr)
            else:
                verdict = self.judge(operation, event=ptr)
            captured = mine is not None and mark is not None and mark.capture is mine.capture
            if captured and mine is not None and not mine.strict and event is not None and verdict.answer.loses:
                at = here()
                for lane in list(mine.capture.lanes):
                    self._wait_on(mine, lane, event, at)
                mine.floor = self._record_on(mine, mine.capture.origin, at)
                mine.note('adapted', None, f'{call} became a join: every lane waits for it', at)
                self._refresh()
                return None
        return self._pass(verdict, call, None, go)

    def elapsed_time(self, original: Callable[..., Any], start: Any, end: Any) -> Any:
        return self._elapsed('get_elapsed_time()', start.ptr, end.ptr, lambda: original(start, end))

    def runtime_elapsed_time(self, original: Callable[..., Any], start: int, end: int) -> Any:
        return self._elapsed('cupy.cuda.runtime.eventElapsedTime()', start, end, lambda: original(start, end))

    def _elapsed(self, call: str, start: int, end: int, go: Callable[[], Any]) -> Any:
        with self.lock:
            self._start()
            marks = [self.topology.marks.get(e) for e in (start, end)]
            mark = next((m for m in marks if m is not None and m.capture.status is CaptureStatus.ACTIVE), None)
            if mark is not None:
                event = start if marks[0] is mark else end
                self.refuse(self.judge(_O.EVENT_ELAPSED_TIME, event=event), call)
        return go()

    def stream_record(self, original: Callable[..., Any], stream: Any, event: Any = None) -> Any:
        return self._record('Stream.record()', stream.ptr, event, lambda: original(stream, event), stream)

    def event_record(self, original: Callable[..., Any], event: Any, stream: Any = None) -> Any:
        if stream is None:
            stream = self.platform.cupy.cuda.get_current_stream()
        self._record('Event.record()', stream.ptr, event, lambda: (original(event, stream), event)[1], stream)

    def runtime_event_record(self, original: Callable[..., Any], event: int, stream: int) -> Any:
        return self._record('cupy.cuda.runtime.eventRecord()', stream, event, lambda: original(event, stream))

    def _record(self, call: str, ptr: int, event: Any, go: Callable[[], Any], stream: Any = None) -> Any:
        with self.lock:
            mine = self._start()
            self._spring(ptr)
            if mine is not None and not mine.strict and ptr in LEGACY_HANDLES:
                return self._adapt_record(mine, call, event)
            verdict = self.judge(_O.EVENT_RECORD, stream=ptr)
            if mine is not None and not mine.strict and self._outside(ptr) and stream is not None:
                self._adapt_fork(mine, stream, here())
        answer = self._pass(verdict, call, ptr, go)
        with self.lock:
            recorded = answer if answer is not None and hasattr(answer, 'ptr') else event
            handle = recorded if isinstance(recorded, int) else recorded.ptr
            self._recorded(ptr, handle, recorded)
            self._trap_again()
        return answer

    def _recorded(self, ptr: int, handle: int, event: Any) -> None:
        lane = self.topology.lane(ptr)
        at = here() if lane is not None else None
        self.topology.record(handle, ptr, at)
        if lane is None:
            return
        live = self.live_of(lane)
        live.events.append(event)  # a handle must not be given to a new event while the capture knows it
        lane.last_use = at
        with self.inside():
            lane.nodes = self.platform.device.capture_info(ptr).dependencies
        live.note('record', lane, f'event {handle:#x} recorded on lane {lane.number}', at, event=handle)
        self._refresh()

    def _adapt_record(self, live: Live, call: str, event: Any) -> Any:
        lane = self._current_lane(live)
        at = here()
        with self.inside():
            if event is None:
                event = self.platform.cupy.cuda.Event()
            live.streams[lane.stream].record(event)
        self._recorded(lane.stream, event.ptr, event)
        live.note('adapted', lane, f'{call} on the legacy stream was moved to lane {lane.number}', at)
        return event

    def _current_lane(self, live: Live) -> Lane:
        """The lane that is current in this thread, or the origin."""
        stream = self.platform.cupy.cuda.get_current_stream()
        return live.lane_of(stream) or live.capture.origin

    def stream_wait_event(self, original: Callable[..., Any], stream: Any, event: Any) -> Any:
        return self._waiting('Stream.wait_event()', stream.ptr, event.ptr, lambda: original(stream, event), stream)

    def runtime_stream_wait_event(self, original: Callable[..., Any], stream: int, event: int, flags: int = 0) -> Any:
        if flags:
            return self._runtime_work('cupy.cuda.runtime.streamWaitEvent()', stream, lambda: original(stream, event, flags))
        return self._waiting('cupy.cuda.runtime.streamWaitEvent()', stream, event, lambda: original(stream, event))

    def _waiting(self, call: str, ptr: int, event: int, go: Callable[[], Any], stream: Any = None) -> Any:
        with self.lock:
            mine = self._start()
            self._spring(ptr)
            if mine is not None and not mine.strict and ptr in LEGACY_HANDLES:
                lane = self._current_lane(mine)
                mine.note('adapted', lane, f'{call} of the legacy stream was moved to lane {lane.number}', here())
                ptr, stream = lane.stream, mine.streams[lane.stream]
                go = lambda: self.own('cupy.cuda.runtime.streamWaitEvent', ptr, event)  # noqa: E731
            verdict = self.judge(_O.WAIT_EVENT, stream=ptr, event=event)
            blocking = False
            forks = verdict.allowed and self.topology.lane(ptr) is None and event in self.topology.marks
            if forks:
                with self.inside():
                    blocking = not self.platform.device.stream_flags(ptr) & 1
        answer = self._pass(verdict, call, ptr, go)
        with self.lock:
            self._waited(ptr, event, blocking, stream)
            self._trap_again()
        return answer

    def _waited(self, ptr: int, event: int, blocking: bool, stream: Any) -> None:
        at = here()
        mark = self.topology.marks.get(event)
        if mark is None or mark.capture not in self.lives:
            lane = self.topology.lane(ptr)
            if lane is not None:
                text = f'lane {lane.number} waited for an event that was never recorded: that orders nothing'
                self.live_of(lane).note('note', lane, text, at)
            return
        live = self.lives[mark.capture]
        lane = self.topology.lane(ptr)
        forked = self.topology.wait(ptr, event, blocking=blocking, at=at)
        if forked is not None:
            self._entered(live, forked, stream, at)
        elif lane is not None:
            kind = 'join' if mark.lane != lane.number else 'wait'
            live.note(kind, lane, f'lane {lane.number} waits for lane {mark.lane}', at, event=event)
        self._refresh()

    def _entered(self, live: Live, lane: Lane, stream: Any, at: Place | None) -> None:
        """A stream has become a lane: hold it, and give it what lanes need."""
        ptr = lane.stream
        if stream is None:
            stream = self.platform.cupy.cuda.ExternalStream(ptr)
        live.streams[ptr] = stream
        if getattr(stream, '_graph_host_funcargs', None) is None:
            stream._graph_host_funcargs = []  # CuPy sets it on origins alone, and launch_host_func needs it
        live.note('fork', lane, f'lane {lane.number} forked from lane {lane.parent}', at)
        if self.platform.cupy.cuda.get_current_stream().ptr == ptr:
            lane.current += 1
            if live.memory is not None:
                live.memory.active(lane)
        if live.floor is not None:
            self._wait_on(live, lane, live.floor, at)

    # -- streams: becoming current ----------------------------------------------------------------------------

    def stream_use(self, original: Callable[..., Any], stream: Any) -> Any:
        with self.lock:
            chosen = self._choose(stream, 'Stream.use()')
            before = self.platform.cupy.cuda.get_current_stream()
            self._leave(before, chosen.ptr)
            original(chosen)
            self._arrive(chosen, before)
        return stream

    def stream_enter(self, original: Callable[..., Any], stream: Any) -> Any:
        with self.lock:
            chosen = self._choose(stream, 'with stream:')
            before = self.platform.cupy.cuda.get_current_stream()
            self._leave(before, chosen.ptr)
            original(chosen)
            self._arrive(chosen, before)
        return stream

    def stream_exit(self, original: Callable[..., Any], stream: Any, *exc: Any) -> Any:
        with self.lock:
            before = self.platform.cupy.cuda.get_current_stream()
            answer = original(stream, *exc)
            now = self.platform.cupy.cuda.get_current_stream()
            escaped = self._leave(before, now.ptr, silent=True)
            self._arrive(now, before)
            if escaped is not None and (not exc or exc[0] is None):
                raise escaped
        return answer

    def _choose(self, stream: Any, call: str) -> Any:
        """The stream that is really made current: in adapting mode the legacy one gives way to the current lane."""
        mine = self._start()
        if mine is None or stream.ptr not in LEGACY_HANDLES:
            return stream
        if mine.strict:
            self.refuse(self.judge(_O.WORK, stream=stream.ptr), call, stream.ptr, RULES['legacy-stream'])
        lane = self._current_lane(mine)
        mine.note('adapted', lane, f'{call} of the legacy stream was moved to lane {lane.number}', here())
        return mine.streams[lane.stream]

    def _leave(self, stream: Any, to: int, silent: bool = False) -> CaptureError | None:
        """The current stream is being left."""
        lane = self.topology.lane(stream.ptr)
        if lane is not None and lane.capture in self.lives:
            lane.current -= 1
            lane.used = True
            return None
        error = self._spring(stream.ptr, silent=True) if stream.ptr != to else None
        if error is not None and not silent:
            raise error
        return error

    def _arrive(self, stream: Any, before: Any) -> None:
        """A stream has become current in this thread."""
        lane = self.topology.lane(stream.ptr)
        mine = self.mine()
        if lane is not None and lane.capture in self.lives:
            live = self.live_of(lane)
            at = here()
            lane.current += 1
            lane.last_use = at
            if live.memory is not None:
                live.memory.active(lane)
            live.note('switch', lane, f'lane {lane.number} made current', at)
        elif mine is not None and not mine.strict and not _legacy(stream):
            lane = mine.lane_of(before) or mine.capture.origin
            self._adapt_fork(mine, stream, here(), lane)
        elif mine is not None and not _legacy(stream):
            self._trap(mine, stream)
        self._refresh()

    def _outside(self, ptr: int) -> bool:
        return ptr not in LEGACY_HANDLES and self.topology.lane(ptr) is None

    def _adapt_fork(self, live: Live, stream: Any, at: Place | None, parent: Lane | None = None) -> None:
        """Adapting mode: a stream that never entered the capture is forked from the current lane."""
        parent = parent or self._current_lane(live)
        with self.inside():
            blocking = not self.platform.device.stream_flags(stream.ptr) & 1
            event = self._record_on(live, parent, at)
            stream.wait_event(event)
        lane = self.topology.wait(stream.ptr, event.ptr, blocking=blocking, at=at)
        if lane is not None:
            self._entered(live, lane, stream, at)
            live.note('adapted', lane, f'stream {stream.ptr:#x} was forked from lane {parent.number}', at)

    # -- traps ------------------------------------------------------------------------------------------------

    def _trap(self, live: Live, stream: Any) -> None:
        ptr = stream.ptr
        with self.inside():
            device = self.platform.device
            if device.stream_status(ptr) is not CaptureStatus.NONE:
                return
            device.begin_capture(ptr, Mode.RELAXED)
        live.trapped[ptr] = (stream, here())

    def _spring(self, ptr: int, silent: bool = False) -> CaptureError | None:
        """Take a stream out of its trap; work found in it has escaped the capture."""
        for live in self.lives.values():
            if ptr in live.trapped:
                _stream, at = live.trapped.pop(ptr)
                with self.inside():
                    device = self.platform.device
                    graph = device.end_capture(ptr)
                    count = len(device.graph_nodes(graph))
                    device.graph_destroy(graph)
                if count:
                    error = self._escaped(ptr, count, at)
                    if not silent:
                        raise error
                    return error
        return None

    def _escaped(self, ptr: int, count: int, since: Place | None) -> CaptureError:
        rule = RULES['escaped-work']
        return rule.error(
            f'{count} piece{"s" if count != 1 else ""} of work',
            stream=ptr,
            subject=self.subject(ptr),
            location=since,
            rule=f'{rule.says}; it was held back, from the line where the stream became current on.',
            remedy=rule.remedy,
        )

    def _trap_again(self) -> None:
        """After a call on it: an outside stream that is still current goes back into its trap."""
        with self.lock:
            mine = self.mine()
            if mine is None or not mine.strict:
                return
            stream = self.platform.cupy.cuda.get_current_stream()
            if self._outside(stream.ptr) and stream.ptr not in mine.trapped:
                self._trap(mine, stream)
                self._refresh()

    def _trapped_malloc(self, live: Live, size: int) -> Any:
        """An allocation while the current stream is outside of the capture: refused unless nothing will follow."""
        code = sys._getframe(1).f_code
        if code.co_name in _ALLOCATE_ONLY and code.co_filename.replace('\\', '/').endswith('_creation/basic.py'):
            with self.inside():
                return self._memory(live).grow(size)
        with self.lock:
            stream = self.platform.cupy.cuda.get_current_stream()
            verdict = self.judge(_O.WORK, stream=stream.ptr)
            self.refuse(verdict, 'Work', stream.ptr, RULES['escaped-work'])

    @staticmethod
    def _memory(live: Live) -> GraphMemory:
        assert live.memory is not None
        return live.memory

    # -- allocators -------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Point this thread's allocator at where its current stream's work must allocate."""
        me = threading.get_ident()
        memory = self.platform.cupy.cuda.memory
        stream = self.platform.cupy.cuda.get_current_stream()
        lane = self.topology.lane(stream.ptr)
        mine = self.mine()
        wanted: Any = None
        if lane is not None and lane.capture in self.lives:
            live = self.live_of(lane)
            if live.memory is not None:
                wanted = live.memory.allocator(lane)
        elif mine is not None and mine.memory is not None and mine.strict and not _legacy(stream):
            live = mine
            wanted = lambda size: self._trapped_malloc(live, size)  # noqa: E731
        set_allocator = self.installation.original('cupy.cuda.memory._set_thread_local_allocator')
        if wanted is not None:
            if me not in self.allocators:
                self.allocators[me] = memory._get_thread_local_allocator()
            set_allocator(wanted)
        elif me in self.allocators:
            set_allocator(self.allocators.pop(me))

    def restore_allocator(self) -> None:
        """Put this thread's own allocator back."""
        me = threading.get_ident()
        if me in self.allocators:
            self.installation.original('cupy.cuda.memory._set_thread_local_allocator')(self.allocators.pop(me))

    def allocator_set(self, original: Callable[..., Any], allocator: Any) -> Any:
        """``using_allocator`` inside a capture: what it hands out is held for the graph."""
        mine = self.mine()
        if mine is None or mine.memory is None or allocator is None or self._ours(allocator):
            return original(allocator)
        memory = mine.memory

        def held(size: int) -> Any:
            pointer = allocator(size)
            memory.keep(pointer)
            return pointer

        held.__dict__['capturekit'] = True
        mine.note('note', None, 'memory of another allocator is held as long as the graph', here())
        return original(held)

    @staticmethod
    def _ours(allocator: Any) -> bool:
        return getattr(allocator, '__module__', '').startswith('capturekit') or hasattr(allocator, '__self__')

    # -- captures by hand -------------------------------------------------------------------------------------

    def stream_begin_capture(self, original: Callable[..., Any], stream: Any, mode: Any = None) -> Any:
        return self._begin('Stream.begin_capture()', stream.ptr, mode, lambda: original(stream, mode), stream)

    def runtime_begin_capture(self, original: Callable[..., Any], stream: int, mode: int = 2) -> Any:
        return self._begin('cupy.cuda.runtime.streamBeginCapture()', stream, mode, lambda: original(stream, mode))

    def _begin(self, call: str, ptr: int, mode: Any, go: Callable[[], Any], stream: Any = None) -> Any:
        with self.lock:
            self._start()
            self._spring(ptr)
            verdict = self.judge(_O.BEGIN_CAPTURE, stream=ptr)
            if verdict.answer.refused:
                self.refuse(verdict, call, ptr)
            with self.inside():
                blocking = not self.platform.device.stream_flags(ptr) & 1
            answer = go()
            at = here()
            real = Mode.RELAXED if mode is None else Mode(int(mode))
            capture = self.topology.begin(ptr, real, threading.get_ident(), blocking=blocking, at=at)
            recording = new_recording(self.platform, real, strict=True)
            if stream is None:
                stream = self.platform.cupy.cuda.ExternalStream(ptr)
            live = Live(self.platform, capture, True, stream, None, recording, threading.get_ident(), at)
            live.active_at = at
            self.opened(live)
            if self.platform.cupy.cuda.get_current_stream().ptr == ptr:
                capture.origin.current += 1
        return answer

    def stream_end_capture(self, original: Callable[..., Any], stream: Any) -> Any:
        return self._end('Stream.end_capture()', stream.ptr, lambda: original(stream))

    def runtime_end_capture(self, original: Callable[..., Any], stream: int) -> Any:
        return self._end('cupy.cuda.runtime.streamEndCapture()', stream, lambda: original(stream))

    def _end(self, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with self.lock:
            self._start(check=False)
            self._spring(ptr)
            lane = self.topology.lane(ptr)
            live = None if lane is None else self.lives.get(lane.capture)
            if live is not None and live.memory is not None and lane is not None and lane.number == 0:
                verdict = self.judge(_O.END_CAPTURE, stream=ptr)
                rule = Rule(
                    'end-by-block', errors.UnmatchedError, 'This capture belongs to a `with ck.capture()` block',
                    'Leave the block instead: its end is the end of the capture.',
                )  # fmt: skip
                self.refuse(verdict, call, ptr, rule)
            if live is not None and live.capture.status is CaptureStatus.ACTIVE and lane is not None and not lane.number:
                self.find_work(live)
            verdict = self.judge(_O.END_CAPTURE, stream=ptr)
            if verdict.answer.code is Code.cudaErrorStreamCaptureUnjoined and live is not None:
                raise self.unjoined(live, call)
            if verdict.answer.refused and verdict.answer.code is not Code.cudaErrorStreamCaptureInvalidated:
                self.refuse(verdict, call, ptr)
            try:
                return go()
            except (CudaCallError, RuntimeError) as error:
                if live is not None and 'Invalidated' in str(error):
                    raise self.invalidated(live) from error
                raise
            finally:
                if live is not None:
                    self.gone(live)

    # -- the end: who was not joined --------------------------------------------------------------------------

    def find_work(self, live: Live) -> None:
        """Ask the driver which lanes hold work that the origin does not come after, and tell the topology."""
        capture = live.capture
        if len(capture.lanes) == 1:
            return
        device = self.platform.device
        with self.inside():
            info = device.capture_info(capture.origin.stream)
            loose: list[tuple[Lane, set[int]]] = []
            for lane in capture.lanes[1:]:
                left = set(device.capture_info(lane.stream).dependencies) - set(info.dependencies)
                joined = capture.origin.clock.get(lane.number, 0) == lane.segment - 1
                if left and not (joined and left <= set(lane.nodes)):
                    loose.append((lane, left))
            if not loose:
                return
            before = _ancestors(info.dependencies, device.graph_edges(info.graph))
        for lane, left in loose:
            if not left <= before:
                lane.worked = lane.segment
                lane.used = True

    def unjoined(self, live: Live, call: str = 'The end of the capture') -> errors.UnjoinedError:
        """The error that names every lane left unjoined."""
        lanes = live.capture.unjoined()
        stories = []
        for lane in lanes:
            parent = live.capture.lanes[lane.parent or 0]
            last = f', last used at {lane.last_use}' if lane.last_use else ''
            again = f'; it was joined at {lane.joined_at} and then worked on again' if lane.joined_at else ''
            stories.append(
                {
                    'lane': lane.number,
                    'stream': lane.stream,
                    'forked_at': lane.forked_at,
                    'last_use': lane.last_use,
                    'joined_at': lane.joined_at,
                    'text': f'lane {lane.number} (stream {lane.stream:#x}) forked from lane {parent.number} '
                    f'at {lane.forked_at}{last}{again}',
                }
            )
        names = '; '.join(str(s['text']) for s in stories)
        many = 's' if len(lanes) != 1 else ''
        error = errors.UnjoinedError(
            f'{len(lanes)} lane{many} left unjoined: {names}',
            stream=lanes[0].stream if lanes else None,
            lane=lanes[0].number if lanes else None,
            location=lanes[0].last_use if lanes and isinstance(lanes[0].last_use, Place) else here(),
            rule=f'{RULES["unjoined"].says} ({Code.cudaErrorStreamCaptureUnjoined.name} would follow, '
            'and the graph would be lost).',
            remedy='Join each after its last work: `cap.join(stream)`, or `origin.wait_event(stream.record())`.',
            cuda_error=Code.cudaErrorStreamCaptureUnjoined.name,
        )
        error.lanes = stories
        return error

    def join_all(self, live: Live) -> None:
        """Adapting mode: join what is left to the origin."""
        at = here()
        for lane in live.capture.unjoined():
            event = self._record_on(live, lane, at)
            self._wait_on(live, live.capture.origin, event, at)
            lane.joined_at = at
            live.note('adapted', lane, f'lane {lane.number}, left unjoined, was joined to the origin', at)

    # -- work by explicit stream ------------------------------------------------------------------------------

    def _start(self, check: bool = True) -> Live | None:
        """What every verb does first: see whether this thread has a capture, and whether it is still good."""
        mine = self.mine()
        if mine is not None and check:
            self._check(mine)
        return mine

    def stream_is_capturing(self, original: Callable[..., Any], stream: Any) -> Any:
        if any(stream.ptr in live.trapped for live in self.lives.values()):
            return False
        return original(stream)

    def stream_is_non_blocking(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        """Asking a captured stream for its flags would lose the capture; they were read when it entered."""
        lane = self.topology.lane(stream.ptr)
        return getter(stream) if lane is None or lane.capture not in self.lives else not lane.blocking

    def runtime_stream_flags(self, original: Callable[..., Any], stream: int) -> Any:
        lane = self.topology.lane(stream)
        return original(stream) if lane is None else int(not lane.blocking)

    def stream_add_callback(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        go = lambda: original(stream, callback, arg)  # noqa: E731
        return self._on_stream(_O.STREAM_ADD_CALLBACK, 'Stream.add_callback()', stream.ptr, go)

    def runtime_add_callback(self, original: Callable[..., Any], stream: int, *args: Any) -> Any:
        go = lambda: original(stream, *args)  # noqa: E731
        return self._on_stream(_O.STREAM_ADD_CALLBACK, 'cupy.cuda.runtime.streamAddCallback()', stream, go)

    def stream_launch_host_func(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        go = lambda: original(stream, callback, arg)  # noqa: E731
        answer = self._on_stream(_O.LAUNCH_HOST_FUNC, 'Stream.launch_host_func()', stream.ptr, go)
        lane = self.topology.lane(stream.ptr)
        if lane is not None and lane.capture in self.lives:
            live = self.live_of(lane)
            if live.memory is not None:
                live.memory.keep(stream._graph_host_funcargs)
            live.note('host', lane, f'host function {getattr(callback, "__name__", callback)!s}', here())
        return answer

    def runtime_host_func(self, original: Callable[..., Any], stream: int, *args: Any) -> Any:
        go = lambda: original(stream, *args)  # noqa: E731
        return self._on_stream(_O.LAUNCH_HOST_FUNC, 'cupy.cuda.runtime.launchHostFunc()', stream, go)

    def _on_stream(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with self.lock:
            self._start()
            self._spring(ptr)
            verdict = self.judge(operation, stream=ptr)
            lane = self.topology.lane(ptr)
            if lane is not None and lane.capture in self.lives and verdict.allowed:
                live = self.live_of(lane)
                lane.used = True
                lane.last_use = here()
                if live.memory is not None:
                    live.memory.active(lane)
        try:
            return self._pass(verdict, call, ptr, go)
        finally:
            self._trap_again()

    def _runtime_work(self, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        return self._on_stream(_O.WORK, call, ptr, go)

    def runtime_work_last(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        """Copies and memsets of ``cupy.cuda.runtime``, whose last argument is the stream."""
        return self._runtime_work(f'cupy.cuda.{call}', int(args[-1]), lambda: original(*args))

    def runtime_peer_copy(self, original: Callable[..., Any], *args: Any) -> Any:
        call = 'cupy.cuda.runtime.memcpyPeerAsync()'
        return self._captured_only(_O.PEER_COPY, call, int(args[-1]), lambda: original(*args))

    def runtime_prefetch(self, original: Callable[..., Any], *args: Any) -> Any:
        call = 'cupy.cuda.runtime.memPrefetchAsync()'
        return self._captured_only(_O.PREFETCH, call, int(args[-1]), lambda: original(*args))

    def _captured_only(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        inside = self.topology.lane(ptr) is not None
        return self._on_stream(operation if inside else _O.WORK, call, ptr, go)

    def runtime_malloc_async(self, original: Callable[..., Any], size: int, stream: int) -> Any:
        if self.topology.lane(stream) is None:
            return self.unsafe('runtime.mallocAsync()', original, size, stream)
        return self._on_stream(_O.MALLOC_ASYNC, 'cupy.cuda.runtime.mallocAsync()', stream, lambda: original(size, stream))

    def runtime_free_async(self, original: Callable[..., Any], ptr: int, stream: int) -> Any:
        if self.topology.lane(stream) is None:
            return self.unsafe('runtime.freeAsync()', original, ptr, stream)
        return original(ptr, stream)  # memory of the graph is freed by a node; CUDA refuses the rest without harm

    def runtime_legacy(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        return self._legacy_work(f'cupy.cuda.{call}', lambda: original(*args))

    def _legacy_work(self, call: str, go: Callable[[], Any]) -> Any:
        with self.lock:
            self._start()
            verdict = self.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
        return self._pass(verdict, call, LEGACY_HANDLES[0], go)

    def runtime_stream_destroy(self, original: Callable[..., Any], stream: int) -> Any:
        with self.lock:
            lane = self.topology.lane(stream)
            if lane is not None:
                raise errors.UnsupportedCallError(
                    'cupy.cuda.runtime.streamDestroy()',
                    stream=stream,
                    lane=lane.number,
                    subject=self.subject(stream),
                    location=here(),
                    rule='A stream destroyed in a capture leaves its work behind, unjoined '
                    f'({Code.cudaErrorStreamCaptureUnjoined.name} would follow at the end).',
                    remedy='Destroy it after the capture.',
                    cuda_error=Code.cudaErrorStreamCaptureUnjoined.name,
                )
        return original(stream)

    def graph_launch(self, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        ptr = self.platform.cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        return self._on_stream(_O.GRAPH_LAUNCH, 'Graph.launch()', ptr, lambda: original(graph, stream))

    def graph_upload(self, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        ptr = self.platform.cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        return self._on_stream(_O.GRAPH_UPLOAD, 'Graph.upload()', ptr, lambda: original(graph, stream))

    def runtime_launch(self, original: Callable[..., Any], graph: int, stream: int) -> Any:
        go = lambda: original(graph, stream)  # noqa: E731
        return self._on_stream(_O.GRAPH_LAUNCH, 'cupy.cuda.runtime.graphLaunch()', stream, go)

    def runtime_upload(self, original: Callable[..., Any], graph: int, stream: int) -> Any:
        go = lambda: original(graph, stream)  # noqa: E731
        return self._on_stream(_O.GRAPH_UPLOAD, 'cupy.cuda.runtime.graphUpload()', stream, go)

    def unsafe(self, call: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls that the mode of a capture may keep away."""
        with self.lock:
            self._start()
            verdict = self.judge(_O.UNSAFE)
        return self._pass(verdict, call, None, lambda: original(*args, **kwargs))

    def pool_free(self, call: str, original: Callable[..., Any], pool: Any, *args: Any, **kwargs: Any) -> Any:
        """Freeing a pool's blocks: refused for the capture's own pool, whose blocks recorded work still uses."""
        with self.lock:
            self._start()
            if any(live.memory is not None and live.memory.pool is pool for live in self.lives.values()):
                raise errors.UnsupportedCallError(
                    call,
                    location=here(),
                    rule='This pool holds the memory of an open capture: recorded work still uses its free blocks.',
                    remedy='Free it after the graph is closed.',
                )
            verdict = self.judge(_O.UNSAFE)
        return self._pass(verdict, call, None, lambda: original(pool, *args, **kwargs))

    def pointer_copy(self, call: str, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Asynchronous copies and memsets of a MemoryPointer, whose stream may be given."""
        stream = kwargs.get('stream', args[2] if len(args) > 2 else None)
        if stream is None:
            return original(pointer, *args, **kwargs)
        return self._runtime_work(call, stream.ptr, lambda: original(pointer, *args, **kwargs))

    def pointer_sync(self, call: str, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Synchronous copies and memsets of a MemoryPointer: they use the legacy stream."""
        return self._legacy_work(call, lambda: original(pointer, *args, **kwargs))

    # -- arrays -----------------------------------------------------------------------------------------------

    def array_get(
        self, original: Callable[..., Any], array: Any, stream: Any = None, order: str = 'C', out: Any = None,
        blocking: bool = True,
    ) -> Any:  # fmt: skip
        where = stream if stream is not None else self.platform.cupy.cuda.get_current_stream()
        with self.lock:
            mine = self._start()
            lane = self.topology.lane(where.ptr)
            captured = lane is not None and lane.capture in self.lives
            ours = mine is not None and mine.memory is not None and self._in_graph(mine, array)
            if array.size and (captured or ours):
                self._refuse_read(where.ptr if captured else None)
            if mine is not None:
                self._spring(where.ptr)
        try:
            with self.inside():
                return original(array, stream, order, out, blocking)
        finally:
            if mine is not None:
                self._trap_again()

    def _refuse_read(self, ptr: int | None) -> NoReturn:
        rule = RULES['host-read']
        raise rule.error(
            'ndarray.get()',
            stream=ptr,
            lane=None if ptr is None or (lane := self.topology.lane(ptr)) is None else lane.number,
            subject=self.subject(ptr),
            location=here(),
            rule=f'{rule.says} (float(), int(), bool(), print(), cp.asnumpy() and boolean masks read like this).',
            remedy=rule.remedy,
            cuda_error=Code.cudaErrorStreamCaptureUnsupported.name,
        )

    @staticmethod
    def _in_graph(live: Live, array: Any) -> bool:
        """True when the array lies in memory that the open capture allocated, so that nothing has computed it yet."""
        return live.memory is not None and live.memory.owns(array.data.mem)

    def array_set(self, original: Callable[..., Any], array: Any, arr: Any, stream: Any = None) -> Any:
        where = stream if stream is not None else self.platform.cupy.cuda.get_current_stream()
        with self.lock:
            mine = self._start()
            lane = self.topology.lane(where.ptr)
            if array.size and (mine is not None or (lane is not None and lane.capture in self.lives)):
                rule = RULES['host-write']
                raise rule.error(
                    'ndarray.set()',
                    stream=where.ptr,
                    lane=None if lane is None else lane.number,
                    subject=self.subject(where.ptr),
                    location=here(),
                    rule=f'{rule.says}.',
                    remedy=rule.remedy,
                    cuda_error=Code.cudaErrorStreamCaptureUnsupported.name,
                )
        return original(array, arr, stream)

    def array_from(self, original: Callable[..., Any], obj: Any, *args: Any, **kwargs: Any) -> Any:
        """``cupy.array`` and its kin: values of the host are uploaded aside, at once, and kept with the graph."""
        mine = self.mine()
        if mine is None or mine.memory is None or isinstance(obj, self.platform.cupy.ndarray):
            return original(obj, *args, **kwargs)
        with self.lock:
            self._check(mine)
            if hasattr(obj, '__cuda_array_interface__'):
                return original(self._exchanged(mine, obj), *args, **kwargs)
            if _is_scalar(obj) or _holds_arrays(obj, self.platform.cupy.ndarray):
                return original(obj, *args, **kwargs)
            return self._constant(mine, lambda: original(obj, *args, **kwargs), 'cupy.array()')

    def _constant(self, live: Live, make: Callable[[], Any], call: str) -> Any:
        """Upload a host value on a stream of its own, wait for it, keep it as long as the graph."""
        at = here()
        cupy = self.platform.cupy
        device = self.platform.device
        memory = self._memory(live)
        set_allocator = self.installation.original('cupy.cuda.memory._set_thread_local_allocator')
        before = cupy.cuda.memory._get_thread_local_allocator()
        with self.inside():
            if live.upload is None:
                live.upload = cupy.cuda.Stream(non_blocking=True)
            old = device.exchange_thread_mode(Mode.RELAXED)
            set_allocator(memory.grow)
            try:
                with live.upload:
                    array = make()
                live.upload.synchronize()
            finally:
                set_allocator(before)
                device.exchange_thread_mode(old)
        memory.keep(array)
        lane = self._current_lane(live)
        text = f'{call}: {array.dtype} {array.shape} uploaded while recording, the same at every launch'
        live.note('constant', lane, text, at, nbytes=int(array.nbytes))
        return array

    def _exchanged(self, live: Live, obj: Any) -> Any:
        """An array of another library: CuPy would synchronise the stream that it names."""
        interface = dict(obj.__cuda_array_interface__)
        stream = interface.get('stream')
        if stream is None:
            return obj
        lane = self.topology.lane(int(stream))
        if lane is None or lane.capture is not live.capture:
            verdict = self.judge(_O.STREAM_SYNCHRONIZE, stream=int(stream))
            if verdict.answer.refused:
                self.refuse(verdict, 'cupy.asarray() of another array', int(stream))
            return obj
        here_lane = self._current_lane(live)
        if lane is not here_lane:
            verdict = self.judge(_O.STREAM_SYNCHRONIZE, stream=int(stream))
            if live.strict:
                self.refuse(verdict, 'cupy.asarray() of another array', int(stream))
            at = here()
            self._wait_on(live, here_lane, self._record_on(live, lane, at), at)
            live.note('adapted', here_lane, f'exchange of an array became a join of lane {lane.number}', at)
        interface['stream'] = None
        return _Exchanged(interface, obj)

    def array_getitem(self, original: Callable[..., Any], array: Any, key: Any) -> Any:
        mine = self.mine()
        return original(array, key if mine is None else self._index(mine, key))

    def array_setitem(self, original: Callable[..., Any], array: Any, key: Any, value: Any) -> Any:
        mine = self.mine()
        return original(array, key if mine is None else self._index(mine, key), value)

    def _index(self, live: Live, key: Any) -> Any:
        """Lists and NumPy arrays in an index are uploaded as constants."""
        if isinstance(key, tuple):
            return tuple(self._index(live, part) for part in key)
        if live.memory is None or not isinstance(key, (list, numpy.ndarray)) or _is_scalar(key):
            return key
        cupy = self.platform.cupy
        if _holds_arrays(key, cupy.ndarray):
            return key
        host = numpy.asarray(key)
        if host.size == 0 and isinstance(key, list):
            host = host.astype(numpy.intp)
        if host.dtype == bool:
            return key if host.size == 0 else tuple(self._index(live, part) for part in host.nonzero())
        with self.lock:
            original = self.installation.original('cupy._core.array')
            return self._constant(live, lambda: original(host), 'index')

    def array_dlpack(self, original: Callable[..., Any], array: Any, *args: Any, **kwargs: Any) -> Any:
        """DLPack export: a consumer that names no stream means the legacy one."""
        with self.lock:
            mine = self._start()
            stream = kwargs.get('stream')
            if mine is not None:
                device = kwargs.get('dl_device')
                if device is not None and tuple(device) != tuple(array.__dlpack_device__()):
                    self._refuse_read(self.platform.cupy.cuda.get_current_stream().ptr)
                if stream is None or stream in LEGACY_HANDLES:
                    verdict = self.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
                    rule = Rule(
                        'dlpack-legacy', errors.LegacyStreamError,
                        'DLPack without a stream makes the legacy default stream wait for this one',
                        'Name the stream: `x.__dlpack__(stream=cap.stream.ptr)`, or exchange before the capture.',
                    )  # fmt: skip
                    self.refuse(verdict, 'ndarray.__dlpack__()', LEGACY_HANDLES[0], rule)
        return original(array, *args, **kwargs)


class _Exchanged:
    """An array of another library, without the stream that CuPy would wait for."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__cuda_array_interface__ = interface
        self.owner = owner


def _legacy(stream: Any) -> bool:
    return stream.ptr in LEGACY_HANDLES


def _is_scalar(obj: Any) -> bool:
    return isinstance(obj, (bool, int, float, complex, numpy.generic)) or (
        isinstance(obj, numpy.ndarray) and obj.ndim == 0
    )


def _holds_arrays(obj: Any, kind: type) -> bool:
    """True when a nested list holds arrays of the device."""
    if isinstance(obj, (list, tuple)):
        return any(_holds_arrays(part, kind) for part in obj)
    return isinstance(obj, kind) or hasattr(obj, '__cuda_array_interface__')


def _ancestors(nodes: tuple[int, ...], edges: list[tuple[int, int]]) -> set[int]:
    parents: dict[int, list[int]] = {}
    for a, b in edges:
        parents.setdefault(b, []).append(a)
    seen: set[int] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(parents.get(node, ()))
    return seen


def new_recording(platform: Platform, mode: Mode, *, strict: bool) -> Recording:
    """An empty recording that knows where it is made."""
    from capturekit import __version__

    name = 'the simulated device' if platform.simulated else f'device {platform.cupy.cuda.Device().id}'
    return Recording(
        capturekit=__version__,
        cupy=str(platform.cupy.__version__),
        device=name,
        mode=mode.name.lower(),
        strict=strict,
    )


def close_recording(live: Live, outcome: str) -> None:
    """Write the lanes' stories into the recording."""

    def json(at: object) -> list[Any] | None:
        return at.to_json() if isinstance(at, Place) else None

    live.recording.outcome = outcome
    live.recording.lanes = [
        LaneRecord(
            lane.number, lane.stream, lane.parent, json(lane.forked_at), json(lane.joined_at), json(lane.last_use)
        )
        for lane in live.capture.lanes
    ]


GUARD = Guard()
