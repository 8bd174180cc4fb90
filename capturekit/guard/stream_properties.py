"""Reading the properties of a stream: its handle, its flags, its priority."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.caller_streams import CallerStreams, UnseenHandle
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.stream_switches import StreamSwitches
from capturekit.guard.verdicts import Verdicts
from capturekit.model import errors
from capturekit.model.ledger import LEGACY_HANDLES, Lane, named
from capturekit.model.rules import Code, Operation
from capturekit.model.source_line import here

_O = Operation


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
