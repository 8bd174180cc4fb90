"""What happens when a stream becomes current or is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident
from types import FrameType
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.placeholders import Placeholders
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.recording import Step
from capturekit.model.rules import RULES, Operation
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
