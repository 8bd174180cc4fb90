"""``fork()``: a scope that owns its lanes, in a capture or eagerly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from capturekit import errors
from capturekit.cuda import Platform, current
from capturekit.guard import GUARD, Live
from capturekit.places import here
from capturekit.rules import CaptureStatus
from capturekit.undo import add_note


class LaneStreams:
    """Streams for forks, used again by later ones. The stock lies with the device, and goes with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self, platform: Platform, priority: int | None, live: Live | None) -> Any:
        """A stream for a lane: one that the open capture has joined already, else a free one, else a new one."""
        key = (platform.cupy.cuda.Device().id, priority)
        with self._lock:
            for stock in (live.lane_streams if live is not None else [], self._free(platform, key)):
                for stream in stock:
                    if stream.capturekit_key == key:
                        stock.remove(stream)
                        return stream
        stream = platform.cupy.cuda.Stream(non_blocking=True, priority=priority)
        stream.capturekit_key = key
        return stream

    @staticmethod
    def _free(platform: Platform, key: tuple[int, int | None]) -> list[Any]:
        stock: dict[tuple[int, int | None], list[Any]] = platform.device.spare_streams
        return stock.setdefault(key, [])

    def give(self, platform: Platform, streams: list[Any]) -> None:
        with self._lock:
            for stream in streams:
                # one that a capture still holds (begun past the guard) is dropped: it must not be met elsewhere
                if platform.device.stream_status(stream.ptr) is CaptureStatus.NONE:
                    self._free(platform, stream.capturekit_key).append(stream)
        streams.clear()


LANE_STREAMS = LaneStreams()


class LaneScope:
    """One lane of a fork: ``with lane:`` makes its stream current. ``lane.stream`` is the CuPy stream."""

    def __init__(self, stream: Any, number: int) -> None:
        self.stream = stream
        self.number = number

    @property
    def ptr(self) -> int:
        """The stream's handle."""
        return int(self.stream.ptr)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)

    def __enter__(self) -> LaneScope:
        self.stream.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stream.__exit__(*exc)

    def __repr__(self) -> str:
        return f'<lane {self.number} of a fork, stream {self.ptr:#x}>'


class Fork:
    """A scope that owns ``n`` lanes: forked from the current stream on entering, joined back into it on leaving.

    Made by ``cap.fork(n)`` in a capture and by ``ck.fork(n)`` anywhere; outside of captures it does the same eagerly,
    so that one program can be timed both ways.
    """

    def __init__(self, n: int, priority: int | None, check: Callable[[str], None] | None = None) -> None:
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(f'fork takes the number of lanes, got {n!r}')
        if n < 1:
            raise ValueError(f'fork takes at least one lane, got {n}')
        self._n = n
        self._priority = priority
        self._check = check
        self._lanes: tuple[LaneScope, ...] | None = None
        self._parent: Any = None
        self._platform: Platform | None = None
        self._live: Live | None = None

    def __enter__(self) -> tuple[LaneScope, ...]:
        if self._lanes is not None:
            raise errors.ClosedError(
                'This fork was entered before',
                location=here(),
                rule='A scope owns its lanes once.',
                remedy='Make a new one: `with cap.fork(n) as lanes:`.',
            )
        platform = self._platform = current()
        if self._check is not None:
            self._check('fork()')
        self._parent = platform.cupy.cuda.get_current_stream()
        lane = GUARD.topology.lane(self._parent.ptr)
        self._live = None if lane is None else GUARD.lives.get(lane.capture)
        streams: list[Any] = []
        try:
            event = self._parent.record()
            for _ in range(self._n):
                streams.append(LANE_STREAMS.take(platform, self._priority, self._live))
                streams[-1].wait_event(event)
        except BaseException:
            self._give(streams)
            raise
        self._lanes = tuple(LaneScope(stream, i) for i, stream in enumerate(streams))
        return self._lanes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lanes is not None
        try:
            if error is None:
                for lane in self._lanes:
                    self._parent.wait_event(lane.stream.record())
            else:
                self._join_anyway(error)
        finally:
            self._give([lane.stream for lane in self._lanes])

    def _join_anyway(self, error: BaseException) -> None:
        """The body failed: eager lanes are still joined, so that later work is ordered; the exception goes on."""
        for lane in self._lanes or ():
            try:
                self._parent.wait_event(lane.stream.record())
            except RuntimeError as second:
                add_note(error, f'capturekit: lane {lane.number} was not joined: {second}')

    def _give(self, streams: list[Any]) -> None:
        """Streams go back to the stock; those of an open capture only when it has ended, or to its own later forks."""
        assert self._platform is not None
        live = self._live
        if live is not None and live.capture in GUARD.lives:
            live.lane_streams.extend(streams)
        else:
            LANE_STREAMS.give(self._platform, streams)


def fork(n: int, *, priority: int | None = None) -> Fork:
    """Split the current stream in ``n`` lanes for a block, in a capture or outside of one.

    Outside it does eagerly what ``cap.fork`` records: events fork the lanes from the current stream and join them
    back, nothing waits on the host. ``priority``: of the lanes' streams; lower numbers come first.

    Raises:
        TypeError, ValueError: ``n`` is no positive whole number.
    """
    return Fork(n, priority)
