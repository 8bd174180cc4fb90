"""Streams becoming current; and the trap for those that are not in the capture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.open_capture import Live
from capturekit.model.cleanup import add_note
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Mode, Operation, Rule
from capturekit.model.source_line import Place, here

_O = Operation
#: Where the legacy stream is current beside a capture begun by hand, its work was meant for the capture.
NOT_CURRENT = replace(
    RULES['escaped-work'],
    says='`begin_capture()` makes no stream current, and the legacy default stream is: its work would run at once and '
    'be missing from the graph',
    remedy='Make the captured stream current: `with stream:` around `begin_capture()`, the work and `end_capture()`.',
)


class Switches(Bodies):
    """Streams becoming current; and the trap for those that are not in the capture."""

    def stream_use(self, original: Callable[..., Any], stream: Any) -> Any:
        self._switch(original, stream, 'Stream.use()')
        return stream

    def stream_enter(self, original: Callable[..., Any], stream: Any) -> Any:
        self._switch(original, stream, 'with stream:')
        return stream

    def _switch(self, original: Callable[..., Any], stream: Any, call: str) -> None:
        with self.lock:
            self.polled()
            chosen = self._choose(stream, call)
            before = self.platform.cupy.cuda.get_current_stream()
            if before.ptr != chosen.ptr:
                self.spring(before.ptr)
            original(chosen)
            self.leave(before)
            self._arrive(chosen, before)

    def stream_exit(self, original: Callable[..., Any], stream: Any, *exc: Any) -> Any:
        with self.lock:
            self.polled()
            before = self.platform.cupy.cuda.get_current_stream()
            answer = original(stream, *exc)
            now = self.platform.cupy.cuda.get_current_stream()
            escaped = self.spring(before.ptr, silent=True) if before.ptr != now.ptr else None
            self.leave(before)
            self._arrive(now, before)
            if escaped is not None and exc and exc[0] is not None:
                mine = self.mine()
                if exc[1] is not None:
                    add_note(exc[1], f'capturekit: {escaped}')  # the block's own exception goes on
                if mine is not None:
                    mine.escaped = escaped  # and where it is caught, the end of the capture will tell
            elif escaped is not None:
                raise escaped
        return answer

    def polled(self) -> None:
        """Before another stream becomes current: what was recorded so far is the present lane's."""
        mine = self.mine()
        if mine is not None:
            mine.poll()

    def _choose(self, stream: Any, call: str) -> Any:
        """The stream that is really made current: in adapting mode the legacy one gives way to the current lane."""
        mine = self._start()
        if self.is_callers(mine, stream.ptr, call):
            assert mine is not None
            return mine.origin
        if mine is None or stream.ptr not in LEGACY_HANDLES:
            return stream
        if mine.strict:
            self.refuse(self.judge(_O.WORK, stream=stream.ptr), call, stream.ptr, RULES['legacy-stream'])
        lane = self._current_lane(mine)
        mine.note('adapted', lane, f'{call} of the legacy stream was moved to lane {lane.number}', here())
        return mine.streams[lane.stream]

    def leave(self, stream: Any) -> None:
        """The current stream of this thread is no longer current."""
        lane = self.topology.lane(stream.ptr)
        if lane is not None and lane.capture in self.lives:
            lane.used = True
            lane.current = max(lane.current - 1, 0)  # it may have been current here since before it was a lane
            self._rests(lane)

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
            if live.trace is not None:
                live.trace.stream = stream.ptr
        elif mine is not None and not mine.strict and not _legacy(stream):
            lane = mine.lane_of(before) or mine.capture.origin
            self._adapt_fork(mine, stream, here(), lane)
            if mine.trace is not None:
                mine.trace.stream = stream.ptr
        elif mine is not None and not _legacy(stream):
            self._trap(mine, stream)
        elif mine is not None:
            self.stand_in(mine, mine.capture.origin)
        if mine is not None:
            self.in_order(mine)
        self.refresh()

    def stand_in(self, live: Live, parent: Lane) -> None:
        """The legacy stream has become current: on another device than the capture's something stands in for it."""

    def _trap(self, live: Live, stream: Any) -> None:
        ptr = stream.ptr
        with self.inside():
            device = self.platform.device
            if device.stream_status(ptr) is not CaptureStatus.NONE:
                return
            try:
                device.begin_capture(ptr, Mode.RELAXED)
            except CudaCallError:
                self._let_go(ptr)
                raise
        live.trapped[ptr] = (stream, here())
        if live.trace is not None:
            live.trace.poll()
            live.trace.stream = ptr

    def spring(self, ptr: int, silent: bool = False) -> CaptureError | None:
        """Take a stream out of its trap; work found in it has escaped the capture."""
        for live in self.lives.values():
            if ptr in live.trapped:
                _stream, at = live.trapped.pop(ptr)
                seen = (
                    live.trace.taken(ptr) if live.trace is not None and live.thread == threading.get_ident() else None
                )
                with self.inside():
                    device = self.platform.device
                    try:
                        graph = device.end_capture(ptr)
                    except CudaCallError:
                        count = 1  # something was done on it that lost the trap: no less escaped
                        self._let_go(ptr)
                    else:
                        count = device.graph_node_count(graph)
                        device.graph_destroy(graph)
                if count:
                    return self._tell(live, self._escaped(live, ptr, count, seen, at), silent)
        return None

    def _let_go(self, ptr: int) -> None:
        """A trap was not made, or not taken away, as it should have been: no stream may be left capturing."""
        device = self.platform.device
        with suppress(CudaCallError):  # the failure that led here is what is told
            if device.stream_status(ptr) is not CaptureStatus.NONE:
                device.graph_destroy(device.end_capture(ptr))

    def _tell(self, live: Live, error: CaptureError, silent: bool) -> CaptureError | None:
        """Raise, or hand back, what was found in a trap; another thread than the capture's is not bothered with it."""
        if live.thread != threading.get_ident():
            live.escaped = error
            return None
        if silent:
            return error
        try:
            self._trap_again()
            raise error
        finally:
            del error  # its traceback holds this frame

    def _escaped(self, live: Live, ptr: int, count: int, seen: Place | None, since: Place | None) -> CaptureError:
        rule, of = self.outside_of(live, ptr)
        device = self.standing_in.get(ptr) if rule is VARIANTS['work-on-another-device'] else None
        current = 'the stream' if rule is not VARIANTS['work-on-another-device'] else 'the device'
        held = '' if seen is not None else f', from the line where {current} became current on'
        return rule.error(
            counted(count, 'piece', ' of work') + ('' if device is None else f' on device {device}'),
            stream=ptr,
            subject=self.subject(of),
            location=seen or since,
            rule=f'{rule.says}; it was held back{held}.',
            remedy=rule.remedy,
        )

    def outside_of(self, live: Live, ptr: int) -> tuple[Rule, int | None]:
        """What a person is told of a stream that is kept out of a capture, and the stream to name."""
        device = self.standing_in.get(ptr)
        if device is None:
            return RULES['escaped-work'], ptr
        if live.memory is None and device == live.home:
            return NOT_CURRENT, LEGACY_HANDLES[0]
        return VARIANTS['work-on-another-device'], None

    def _trap_again(self) -> None:
        """After a call on it: an outside stream that is still current goes back into its trap."""
        with self.lock:
            mine = self.mine()
            if mine is None or not mine.strict:
                return
            stream = self.platform.cupy.cuda.get_current_stream()
            if self._outside(stream.ptr) and stream.ptr not in mine.trapped:
                self._trap(mine, stream)
                self.refresh()


def _legacy(stream: Any) -> bool:
    return stream.ptr in LEGACY_HANDLES
