"""Launches of graphs that share memory take turns: each comes after the one before, on whatever streams they are.

Two launches on one stream are in order anyway. If the last launch was on another stream, an event orders the two. As
long as all launches were on one stream, that event is recorded when the first launch on another stream comes; from
then on, it is recorded behind each launch. CUDA C++ Programming Guide, "Events".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.model.errors import UnsupportedCallError
from capturekit.model.ledger import LEGACY_HANDLES, PER_THREAD_HANDLE
from capturekit.model.rules import CaptureStatus
from capturekit.model.source_line import here


class LaunchTurns:
    """The order of the launches of one group of graphs.

    ``last`` is the stream of all launches so far, as long as they were on one; None otherwise, and where no event can
    be recorded on it later. ``on`` makes a device current for a block.
    """

    __slots__ = ('_behind', '_cupy', '_device', '_events', '_on', '_one_device', '_several', '_stream', 'last', 'lock')

    def __init__(self, platform: Platform, on: Callable[[int], AbstractContextManager[Any]]) -> None:
        self._cupy = platform.cupy
        self._device = platform.device
        self._on = on
        self._one_device = int(platform.cupy.cuda.runtime.getDeviceCount()) == 1
        self.lock = threading.RLock()
        self.last: Any = None
        #: The stream of the last launch, if it lives as long as it is held here: no other stream gets its handle.
        self._stream: Any = None
        #: The event behind the last launch; 0 where it is not recorded yet.
        self._behind = 0
        self._events: dict[int, int] = {}
        self._several = False

    def wrapped(self, launch: Callable[[], None]) -> Callable[[], None]:
        """A launch on the current stream that takes its turn. Only for one thread at a time, as it takes no lock."""
        current = self._cupy.cuda.get_current_stream

        def in_turn() -> None:
            stream = current()
            if stream is self.last:
                launch()
            else:
                with self.taken(stream.ptr):
                    launch()

        return in_turn

    def taken(self, ptr: int) -> Turn:
        """Launches in this block, on a stream given by its handle, come after the last launch of another graph.

        Raises UnsupportedCallError if the stream of that launch is being captured by now.
        """
        return Turn(self, ptr)

    def begin(self, ptr: int) -> Any:
        """Let the next work of a stream wait for the last launch. Return the stream if nothing else gets its handle."""
        stream = self._cupy.cuda.get_current_stream()
        lasts = stream if stream.ptr == ptr and self._lasts(stream) else None
        self._wait(ptr, lasts)
        return lasts

    def _lasts(self, stream: Any) -> bool:
        """Whether no other stream can get the handle of this one while the object is held."""
        if stream.ptr in LEGACY_HANDLES:
            return self._one_device
        is_cupys = type(stream) is self._cupy.cuda.Stream and stream.device_id >= 0
        return is_cupys and stream.ptr != PER_THREAD_HANDLE

    def _wait(self, ptr: int, lasts: Any) -> None:
        """Let the next work of a stream wait for the last launch."""
        before = self._stream
        if before is not None and before is lasts:
            return
        if not self._behind:
            if before is None:
                return
            self._record_later(before)
            self._several, self.last = True, None
        self._device.stream_wait_event(ptr, self._behind)

    def launched(self, ptr: int, lasts: Any) -> None:
        """Note a launch. Later ones wait for it."""
        self._stream, self._behind = lasts, 0
        self.last = None if self._several else lasts
        if self.last is None:
            self._behind = self._record(ptr, lasts)

    def _record_later(self, before: Any) -> None:
        """Record the event behind a launch that was made some time ago."""
        if self._captured(before.ptr):
            raise _captured_now(before.ptr)
        self._behind = self._record(before.ptr, before)
        if self._captured(before.ptr):  # by another thread, just now: the event may belong to that capture
            self._behind = 0
            raise _captured_now(before.ptr)

    def _captured(self, ptr: int) -> bool:
        if ptr in LEGACY_HANDLES:
            return False
        return self._device.stream_status(ptr) is not CaptureStatus.NONE

    def _record(self, ptr: int, stream: Any) -> int:
        """Record the event of a stream's device behind all work of the stream so far."""
        number = -1 if stream is None else int(stream.device_id)
        if ptr in (*LEGACY_HANDLES, PER_THREAD_HANDLE):
            number = int(self._cupy.cuda.get_device_id())
        elif number < 0:
            number = int(self._device.stream_device(ptr))
        event = self._events.get(number)
        if event is None:
            with self._on(number):
                event = self._events[number] = int(self._device.event_create())
        self._device.event_record(event, ptr)
        return event

    def close(self) -> None:
        """Give the events back, and forget the last launch: no graph of the group is left."""
        with self.lock:
            events, self._events = self._events, {}
            self.last = self._stream = None
            self._behind, self._several = 0, False
            for event in events.values():
                self._device.event_destroy(event)


class Turn:
    """A block for launches on one stream. (A generator in its place would take three times as long.)"""

    __slots__ = ('_lasts', '_ptr', '_turns')

    def __init__(self, turns: LaunchTurns, ptr: int) -> None:
        self._turns = turns
        self._ptr = ptr
        self._lasts: Any = None

    def __enter__(self) -> None:
        self._turns.lock.acquire()
        try:
            self._lasts = self._turns.begin(self._ptr)
        except BaseException:
            self._turns.lock.release()
            raise

    def __exit__(self, *_exc: object) -> None:
        try:
            self._turns.launched(self._ptr, self._lasts)
        finally:
            self._turns.lock.release()


def _captured_now(ptr: int) -> UnsupportedCallError:
    return UnsupportedCallError(
        'A launch of a graph that shares memory',
        stream=ptr,
        location=here(),
        rule='The last graph that used this memory was launched on a stream that is being captured now, and no event '
        'can tell when that launch ends.',
        remedy='Launch on the stream of the earlier launch before it is captured; or capture on another stream.',
    )
