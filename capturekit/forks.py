"""``fork()``: a scope that owns its lanes, in a capture or eagerly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from capturekit import errors
from capturekit.cuda import Platform, current
from capturekit.guard import GUARD, Live
from capturekit.places import here
from capturekit.rules import CaptureStatus
from capturekit.topology import PER_THREAD_HANDLE
from capturekit.undo import add_note

#: What a free stream can be used for: device, priority, and the stream that eager lanes were forked from.
Key = tuple[int, int | None, tuple[int, int] | None]

#: Free streams are kept for so many kinds of use; the one that was not used for the longest time goes first.
_KINDS = 64
_LEAST, _MOST = -(2**31), 2**31 - 1

#: Of all lanes, or of each; None is the default, 0. Lower numbers come first.
Priority = int | Sequence[int | None] | None


class LaneStreams:
    """Streams for forks, used again by later ones. The stock lies with the device, and goes with it.

    Eager lanes are used again only by forks of the stream that they were forked from. CuPy's pool hands a block that
    was allocated on a lane out on that lane again, as soon as Python drops the array: then what still reads it is on
    the stream that has joined the lane, and a fork of that stream comes after it. In captures the graph owns the memory
    and knows who reads it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self, platform: Platform, priority: int | None, live: Live | None, parent: Any) -> Any:
        """A stream for a lane: one that the open capture has joined already, else a free one, else a new one."""
        thread = threading.get_ident() if parent.ptr == PER_THREAD_HANDLE else 0  # another stream in each thread
        source = (int(parent.ptr), thread)
        key = (platform.cupy.cuda.Device().id, priority, None if live is not None else source)
        with self._lock:
            stream = self._found(platform, key, source, live)
        if stream is None:
            stream = platform.cupy.cuda.Stream(non_blocking=True, priority=priority)
            stream.capturekit_key = key
        stream.capturekit_source = source
        return stream

    def _found(self, platform: Platform, key: Key, source: tuple[int, int], live: Live | None) -> Any:
        for stream in live.lane_streams if live is not None else ():
            # joined into another lane, its next work would wait for what it has done there
            if stream.capturekit_key == key and stream.capturekit_source == source:
                live.lane_streams.remove(stream)  # type: ignore[union-attr]
                return stream
        free = self._free(platform, key)
        return free.pop(0) if free else None

    @staticmethod
    def _free(platform: Platform, key: Key) -> list[Any]:
        stock: dict[Key, list[Any]] = platform.device.spare_streams
        free = stock[key] = stock.pop(key, [])
        while len(stock) > _KINDS:
            del stock[next(iter(stock))]
        return free

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

    def __init__(self, n: int, priority: Priority, check: Callable[[str], None] | None = None) -> None:
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(f'fork takes the number of lanes, got {n!r}')
        if n < 1:
            raise ValueError(f'fork takes at least one lane, got {n}')
        self._priorities = priorities(priority, n)
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
            for priority in self._priorities:
                streams.append(LANE_STREAMS.take(platform, priority, self._live, self._parent))
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


def priorities(priority: Priority, n: int) -> tuple[int | None, ...]:
    """Each lane's priority, of ``n`` lanes.

    Raises:
        TypeError: it is neither a whole number, nor None, nor a sequence of these. ValueError: the sequence has not
            ``n`` of them, or a number is none of C's.
    """
    if isinstance(priority, Sequence) and not isinstance(priority, (str, bytes)):
        if len(priority) != n:
            raise ValueError(f'priority must be one number or one for each of {n} lanes, got {len(priority)}')
        return tuple(_checked(one) for one in priority)
    return (_checked(priority),) * n


def _checked(priority: Any) -> int | None:
    if priority is None:
        return None
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f'priority must be a whole number, or one for each lane, got {priority!r}')
    if not _LEAST <= priority <= _MOST:
        raise ValueError(f'priority must be a number of 32 bits, got {priority}')
    return priority


def fork(n: int, *, priority: Priority = None) -> Fork:
    """Split the current stream in ``n`` lanes for a block, in a capture or outside of one.

    Outside it does eagerly what ``cap.fork`` records: events fork the lanes from the current stream and join them
    back, nothing waits on the host.

    Args:
        n: how many lanes.
        priority: of the lanes' streams, one number for all or a sequence of one for each: lower numbers come first, 0
            is the default, CUDA moves others into the device's range (0 to -5 on recent ones). None is the default.
            Kernels keep their lane's priority in the graph of a ``ck.capture()`` whose lanes have different ones
            (``recording.by_priority``); where all have the same, a launch's stream decides. The device begins blocks of
            a higher priority before waiting ones of a lower; what has begun goes on. CUDA C++ Programming Guide,
            "Stream Priorities".

    Raises:
        TypeError, ValueError: ``n`` is no positive whole number; ``priority`` is none of these.
    """
    return Fork(n, priority)
