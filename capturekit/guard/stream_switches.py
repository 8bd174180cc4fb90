"""Streams become current or are left, and code reads their properties: handle, flags, priority."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident
from types import FrameType
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.caller_streams import CallerStreams, UnseenHandle
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import OutsideStreams, Placeholders
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model import errors
from capturekit.model.ledger import LEGACY_HANDLES, Lane, named
from capturekit.model.recording import Step
from capturekit.model.rules import RULES, Code, Operation
from capturekit.model.source_line import Place, here

_O = Operation
_STREAM_ENTER, _STREAM_EXIT = (f'cupy.cuda.stream._BaseStream.{name}' for name in ('__enter__', '__exit__'))
_DEVICE_ENTER, _DEVICE_EXIT = (f'cupy.cuda.device.Device.{name}' for name in ('__enter__', '__exit__'))
_CURRENT = 'cupy.cuda.stream.get_current_stream'


@dataclass(eq=False)
class StreamSwitches:
    """Follows which stream is current."""

    state: State
    verdicts: Verdicts
    allocators: Allocators
    lanes: Lanes
    callers: CallerStreams
    outside: OutsideStreams
    placeholders: Placeholders

    def stream_use(self, original: Callable[..., Any], stream: Any) -> Any:
        self._switch(original, stream, 'Stream.use()')
        return stream

    def stream_enter(self, original: Callable[..., Any], stream: Any) -> Any:
        self._switch(original, stream, 'with stream:')
        return stream

    def _switch(self, original: Callable[..., Any], stream: Any, call: str) -> None:
        with self.state.lock:
            self.state.poll()
            chosen = self.choose(stream, call)
            before = self.state.current_stream()
            if before.ptr != chosen.ptr:
                self.outside.release(before.ptr)
            original(chosen)
            self.lanes.leave(before)
            self._arrive(chosen, before)

    def stream_exit(self, original: Callable[..., Any], stream: Any, *exc: Any) -> Any:
        with self.state.lock:
            self.state.poll()
            before = self.state.current_stream()
            answer = original(stream, *exc)
            now = self.state.current_stream()
            escaped = self.outside.release(before.ptr, silent=True) if before.ptr != now.ptr else None
            self.lanes.leave(before)
            self._arrive(now, before)
            if escaped is not None and exc and exc[0] is not None:
                mine = self.state.mine()
                if exc[1] is not None:
                    exc[1].add_note(f'capturekit: {escaped}')  # the block's own exception is not replaced
                if mine is not None:
                    mine.outside.escaped = escaped  # if that exception is caught, the end of the capture raises this
            elif escaped is not None:
                raise escaped
        return answer

    # -- the lanes of a scope: capturekit makes these calls itself, so nothing is asked twice about them --------------

    def enter_lane(self, stream: Any, ptr: int, device: Any, frame: FrameType) -> bool:
        """Make a lane of a scope current; False, and nothing is done, where that may be special.

        ``frame``: the one that enters it.
        """
        state, made = self.state, self.state.installation.originals
        with state.lock:
            at = here(frame)
            found = self._between_lanes(ptr, at)
            if found is None:
                return False
            live, before, lane, ends = found
            with state.inside:
                made[_DEVICE_ENTER](device)
                try:
                    made[_STREAM_ENTER](stream)
                except BaseException:
                    made[_DEVICE_EXIT](device, None, None, None)
                    raise
            self._moved(live, before, lane, ends, at)
        return True

    def leave_lane(self, stream: Any, ptr: int, device: Any, frame: FrameType, *exc: Any) -> bool:
        """Leave a lane of a scope, and its device; False, and nothing is done, where that may be special.

        ``frame``: the one that leaves it.
        """
        state, made = self.state, self.state.installation.originals
        with state.lock:
            at = here(frame)
            found = self._between_lanes(ptr, at)
            if found is None:
                return False
            live, before, _lane, ends = found
            try:
                with state.inside:
                    made[_STREAM_EXIT](stream, *exc)
                    made[_DEVICE_EXIT](device, *exc)
            finally:
                now = made[_CURRENT]()
                lane = state.ledger.lanes.get(now.__dict__['ptr'])
                if lane is not None and lane.capture is live.capture:
                    self._moved(live, before, lane, ends, at)
                else:
                    self.lanes.leave(live.streams[before.stream])
                    self._arrive(now, live.streams[before.stream])
        return True

    def _between_lanes(self, ptr: int, at: Place | None) -> tuple[OpenCapture, Lane, Lane, tuple[int, ...]] | None:
        """This thread's good capture, the current lane, and the lane of a handle; None if a switch may be special.

        Last come the nodes before the current lane's next work. Its new nodes go to the current line.
        """
        state = self.state
        stack = state.threads.get(get_ident())
        mine = stack[-1] if stack else None
        if mine is None or mine.memory is None or mine.caller is not None or mine.outside.held:
            return None
        inside, lanes, capture = state.inside, state.ledger.lanes, mine.capture
        if inside.active() or inside.substitute is not None:
            return None
        # the handle is read past the wrapper, which would let capturekit's own code have it as well
        before = lanes.get(state.installation.originals[_CURRENT]().__dict__['ptr'])
        lane = lanes.get(ptr)
        if before is None or lane is None or before.capture is not capture or lane.capture is not capture:
            return None
        if not before.device == lane.device == state.platform.cupy.cuda.runtime.getDevice():
            return None
        ends = mine.memory.ends(before.stream)
        if ends and ends[0] < 0:  # the capture is lost
            return None
        trace = mine.trace
        if trace is None:
            mine.active_at = at or mine.active_at
        else:
            known = len(ends) < 2 and trace.stream == before.stream
            trace.poll((ends[0] if ends else 0) if known else None)
        return mine, before, lane, ends

    def _moved(self, live: OpenCapture, before: Lane, lane: Lane, ends: tuple[int, ...], at: Place | None) -> None:
        """Note that a lane of a capture is current instead of another one, whose next work comes after ``ends``."""
        assert live.memory is not None
        before.used = True
        if before.current:
            before.current -= 1
        live.memory.moved(before, ends, lane)
        lane.last_use = at
        lane.current += 1
        if live.trace is not None:
            live.trace.stream = lane.stream
        live.current = lane.stream
        number = lane.number
        line: list[Any] | None = None if at is None else [at.file, at.line, at.function]
        live.recording.steps.append(Step('switch', number, _made_current(number), line))
        self.allocators.to_lane(live, lane)

    def choose(self, stream: Any, call: str) -> Any:
        """Return the stream to make current.

        With ``strict=False`` this is the current lane in place of the legacy stream.
        """
        mine = self.verdicts.start()
        if self.callers.is_callers(mine, stream.ptr, call):
            assert mine is not None
            return mine.origin
        if mine is None or stream.ptr not in LEGACY_HANDLES:
            return stream
        if mine.strict:
            self.verdicts.refuse(
                self.verdicts.judge(_O.WORK, stream=stream.ptr), call, stream.ptr, RULES['legacy-stream']
            )
        lane = self.lanes.current_lane(mine)
        mine.note('adapted', lane, f'{call} of the legacy stream was moved to lane {lane.number}', here())
        return mine.streams[lane.stream]

    def settle(self) -> bool:
        """Follow a stream that became current unseen; False if there is none.

        A ``with`` block that was entered before the capture, or a method that was bound before it, is CuPy's own.
        """
        mine, inside = self.state.mine(), self.state.inside
        if mine is None or mine.caller is not None or inside.active() or inside.substitute is not None:
            return False
        with self.state.lock:
            mine.unsettled = False
            now = self.state.current_stream()
            if now.ptr == mine.current:
                return False
            self.state.poll()
            escaped = self.outside.release(mine.current, silent=True)
            mine.outside.escaped = mine.outside.escaped or escaped  # the end raises it: lines end here, too
            before = self.lanes.wrapped(mine.current)
            self.lanes.leave(before)
            if mine.trace is None and self.lanes.met(now.ptr, now) is None:
                mine.outside.escaped = mine.outside.escaped or self.outside.not_seen(now.ptr)
            self._arrive(now, before)
            mine.outside.unseen.add(mine.current)
        return True

    def _arrive(self, stream: Any, before: Any) -> None:
        """Note a stream that has become current in this thread."""
        lane = self.lanes.met(stream.ptr, stream)
        mine = self.state.mine()
        if lane is not None and lane.capture in self.state.lives:
            live = self.state.live_of(lane)
            lane.last_use = here()
            self.lanes.make_current(live, stream.ptr)
            live.note('switch', lane, f'lane {lane.number} made current', lane.last_use)
        elif mine is not None and not mine.strict and not _legacy(stream):
            self.lanes.adapt_fork(mine, stream, here(), mine.lane_of(before) or mine.capture.origin)
        elif mine is not None and not _legacy(stream):
            self.outside.hold(mine, stream)
        elif mine is not None:
            self.placeholders.put(mine, mine.capture.origin)
        if mine is not None:
            self.callers.in_order(mine)
        self.allocators.refresh()


@lru_cache(1024)
def _made_current(lane: int) -> str:
    return f'lane {lane} made current'


def _legacy(stream: Any) -> bool:
    return int(stream.ptr) in LEGACY_HANDLES  # its handle has another name in a linted run


@dataclass(eq=False)
class StreamProperties:
    """Answers what code reads of a stream: its handle, its flags, its priority."""

    state: State
    verdicts: Verdicts
    allocators: Allocators
    lanes: Lanes
    callers: CallerStreams
    streams: StreamSwitches

    def stream_handed_out(self, stream: Any, ptr: int) -> int | None:
        """Note that CuPy or the user's code read a stream's handle. Work on the stream may follow.

        Returns the handle to give out instead, or None.
        """
        mine = self.state.mine()
        if mine is not None:
            mine.unsettled = True
            if mine.trace is not None:
                mine.trace.before_line = self.streams.settle
        if mine is None or reads_for_itself(sys._getframe(2).f_globals.get('__name__', '')):
            return None
        if mine.caller is not None and (
            ptr == mine.origin.ptr or self.callers.is_callers(mine, ptr, 'Reading `Stream.ptr`')
        ):
            if self.callers.mine_is_current(mine):
                return UnseenHandle(mine.origin.ptr)
            raise self.callers.not_recorded(
                'Reading `Stream.ptr`', ptr, 'The recording has another stream in its place'
            )
        there = self.callers.null_there(mine) if mine.caller is not None and ptr in LEGACY_HANDLES else None
        if there is not None:
            return UnseenHandle(there.stream)
        with self.state.lock:
            lane = self.state.ledger.lane(ptr)
            if mine.caller is not None and (lane is None or not lane.current):
                lane = self._handed_to(mine, stream, ptr)
            if lane is None:
                self._note_outside(mine, ptr)
            elif not lane.current and lane.capture is mine.capture:
                if mine.trace is not None:
                    mine.trace.touch(ptr)
                if not lane.suspect:
                    lane.suspect = True
                    if mine.memory is not None:
                        mine.memory.active(lane)
                    self.allocators.refresh()
        return None

    def _handed_to(self, live: OpenCapture, stream: Any, ptr: int) -> Lane | None:
        """Let a graphed function have the handle of a stream that is not current: work given to it is recorded."""
        if ptr in LEGACY_HANDLES:
            raise self.callers.not_recorded(
                'Reading `Stream.ptr`', ptr, 'The recording has another stream in its place'
            )
        if self.state.ledger.lane(ptr) is None:
            self.lanes.adapt_fork(live, stream, here())
        lane = self.state.ledger.lane(ptr)
        if lane is not None and lane.capture is live.capture and self.callers.unordered(live, lane):
            raise self.callers.not_recorded('Reading `Stream.ptr`', ptr, 'CUDA orders this stream with the null stream')
        return lane

    def stream_deleted(self, original: Callable[..., Any], stream: Any, *args: Any) -> None:
        """Let a destructor read the handle, which does not lead to work."""
        with self.state.inside:
            original(stream, *args)

    def _note_outside(self, live: OpenCapture, ptr: int) -> None:
        if ptr in live.outside.held:
            return
        what = 'the legacy default stream' if ptr in LEGACY_HANDLES else f'{named(ptr)}, outside of the capture,'
        text = f'the handle of {what} was read: work given to it directly is not recorded'
        if not any(step.text == text for step in live.recording.notes):
            live.note('note', None, text, here())

    def stream_is_capturing(self, original: Callable[..., Any], stream: Any) -> Any:
        if any(stream.ptr in live.outside.held for live in list(self.state.lives.values())):
            return False
        return original(stream)

    def stream_is_non_blocking(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        """Return a stream's flags as they were read when it entered the capture. Asking now would lose the capture.

        The legacy stream is not asked either: that would lose every capture with a blocking stream.
        """
        if stream.ptr in LEGACY_HANDLES:
            return False
        lane = self.state.ledger.lane(stream.ptr)
        return getter(stream) if lane is None or lane.capture not in self.state.lives else not lane.blocking

    def runtime_stream_flags(self, original: Callable[..., Any], stream: int) -> Any:
        if stream in LEGACY_HANDLES:
            return 0
        lane = self.state.ledger.lane(stream)
        return original(stream) if lane is None else int(not lane.blocking)

    def stream_priority(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        """Return a stream's priority. The legacy stream is not asked: its priority is the default."""
        return 0 if stream.ptr in LEGACY_HANDLES else getter(stream)

    def runtime_stream_priority(self, original: Callable[..., Any], stream: int) -> Any:
        return 0 if stream in LEGACY_HANDLES else original(stream)

    def runtime_stream_destroy(self, original: Callable[..., Any], stream: int) -> Any:
        with self.state.lock:
            lane = self.state.ledger.lane(stream)
            if lane is not None:
                raise errors.UnsupportedCallError(
                    'cupy.cuda.runtime.streamDestroy()',
                    stream=stream,
                    lane=lane.number,
                    subject=self.verdicts.subject(stream),
                    location=here(),
                    rule='A stream destroyed in a capture leaves its work behind, unjoined '
                    f'({Code.cudaErrorStreamCaptureUnjoined.name} would follow at the end).',
                    remedy='Destroy it after the capture.',
                    cuda_error=Code.cudaErrorStreamCaptureUnjoined.name,
                )
        return original(stream)


def reads_for_itself(module: str) -> bool:
    """True for modules that read handles without giving work: those of capturekit, and the simulated stream class."""
    if module.startswith('_capturekit_simulated'):
        return module.endswith('.streams')
    return module.startswith('capturekit.')
