"""``fork()``: a scope that owns its lanes, in a capture or eagerly."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal

from capturekit.driver.cuda import Platform, current
from capturekit.guard import GUARD, OpenCapture
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.ledger import PER_THREAD_HANDLE
from capturekit.model.rules import CaptureStatus
from capturekit.model.skipped_exits import Lock
from capturekit.model.source_line import here

#: What a free stream can be used for: device, priority, and the stream that eager lanes were forked from.
Key = tuple[int, int | None, tuple[int, int] | None]

#: The device of each lane: a number or a ``cupy.cuda.Device``. None is the current device for all lanes.
Devices = Sequence[Any] | None

#: Free streams are kept for so many kinds of use; the one that was not used for the longest time goes first.
_KINDS = 64
_LEAST, _MOST = -(2**31), 2**31 - 1

#: The priority of all lanes, or of each. None is the default, 0. Lower numbers come first.
Priority = int | Sequence[int | None] | None


class LaneStreams:
    """Streams for forks, used again by later forks. The device keeps the free ones and drops them when it ends.

    Eager lanes are used again only by forks of the stream that they were forked from. CuPy's pool hands a block that
    was allocated on a lane out on that lane again, as soon as Python drops the array: then what still reads it is on
    the stream that has joined the lane, and a fork of that stream comes after it. In captures the graph owns the memory
    and knows who reads it.
    """

    def __init__(self) -> None:
        self._lock = Lock()

    def take(
        self,
        platform: Platform,
        lanes: Iterable[tuple[int | None, int]],
        live: OpenCapture | None,
        handle: int,
        taken: list[Any],
    ) -> None:
        """Append to ``taken`` a stream for each lane, given by its priority and device.

        It is one that the open capture has joined already, else a free one, else a new one. ``handle``: that of the
        stream which is forked.
        """
        source = (handle, threading.get_ident() if handle == PER_THREAD_HANDLE else 0)  # another one in each thread
        among = None if live is not None else source
        for priority, device in lanes:
            key = (device, priority, among)
            with self._lock:
                own = [] if live is None else live.recorder.lane_streams
                # joined into another lane, its next work would wait for what it has done there
                kept = [n for n, one in enumerate(own) if (one.capturekit_key, one.capturekit_source) == (key, source)]
                free = [] if kept else self._free(platform, key)
                stream = own.pop(kept[0]) if kept else free.pop(0) if free else None
            if stream is None:
                with GUARD.on(device, platform):
                    stream = platform.cupy.cuda.Stream(non_blocking=True, priority=priority)
                stream.capturekit_key = key
            stream.capturekit_source = source
            taken.append(stream)

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
                # A stream that a capture unknown to the guard still holds is dropped, so that no other fork gets it.
                if platform.device.stream_status(stream.ptr) is CaptureStatus.NONE:
                    self._free(platform, stream.capturekit_key).append(stream)
        streams.clear()


LANE_STREAMS = LaneStreams()


class LaneScope:
    """One lane of a fork: ``with lane:`` makes its device and its stream current.

    ``lane.stream`` is the CuPy stream, ``lane.device`` the number of the device that it belongs to, ``lane.number`` its
    place in the fork. ``lane.record()``, ``lane.wait_event(event)``, ``lane.synchronize()`` and ``lane.done`` are those
    of the stream.
    """

    def __init__(self, stream: Any, number: int, device: int, ptr: int, of: Any) -> None:
        self.stream, self.number, self.device = stream, number, device
        #: The stream's handle.
        self.ptr = ptr
        self._device = of
        #: For each time that it was entered and not left: whether only the stream was switched, within a capture.
        self._stays: list[bool] = []

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)

    def record(self, event: Any = None) -> Any:
        """Record an event on the lane, a new one if none is given, and return it."""
        if event is None and self.device != int(current().cupy.cuda.Device().id):
            with self._device:  # an event belongs to the device of the stream that it is recorded on
                return self.stream.record()
        return self.stream.record(event)

    def wait_event(self, event: Any) -> None:
        """Let the lane's later work wait for an event."""
        self.stream.wait_event(event)

    def synchronize(self) -> None:
        """Wait on the host for the lane's work. In a capture there is none that runs: this is refused there."""
        self.stream.synchronize()

    @property
    def done(self) -> bool:
        """Whether the lane's work is done. In a capture this is refused."""
        return bool(self.stream.done)

    def __enter__(self) -> LaneScope:
        at_once = bool(GUARD.lives) and GUARD.streams.enter_lane(self.stream, self.ptr, self._device, sys._getframe(1))
        if not at_once:
            self._device.__enter__()
            try:
                self.stream.__enter__()
            except BaseException:
                self._device.__exit__(None, None, None)
                raise
        self._stays.append(at_once)
        return self

    def __exit__(self, *exc: Any) -> None:
        leave = GUARD.streams.leave_lane
        if self._stays.pop() and GUARD.lives and leave(self.stream, self.ptr, self._device, sys._getframe(1), *exc):
            return
        try:
            self.stream.__exit__(*exc)
        finally:
            self._device.__exit__(*exc)

    def __repr__(self) -> str:
        return f'<lane {self.number} of a fork, stream {self.ptr:#x}, device {self.device}>'


class Fork:
    """A scope that owns ``n`` lanes. Entering forks them from the current stream; leaving joins them back into it.

    ``cap.fork(n)`` makes one in a capture, ``ck.fork(n)`` anywhere. Outside of captures it forks and joins eagerly, so
    that one program can be timed both ways.
    """

    def __init__(
        self,
        n: int | None,
        priority: Priority,
        check: Callable[[str], None] | None = None,
        devices: Devices = None,
        within: OpenCapture | None = None,
    ) -> None:
        numbers = None if devices is None else _numbers(devices)
        if n is None and numbers is not None:
            n = len(numbers)
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(f'fork takes the number of lanes, got {n!r}')
        if n < 1:
            raise ValueError(f'fork takes at least one lane, got {n}')
        if numbers is not None and len(numbers) != n:
            raise ValueError(f'devices must name one for each of {counted(n, "lane")}, got {len(numbers)}')
        self._priorities = priorities(priority, n)
        self._devices = numbers
        self._check, self._within = check, within
        self._lanes: tuple[LaneScope, ...] | None = None
        self._streams: list[Any] = []
        self._parent: Any = None
        self._handle = 0
        self._platform: Platform | None = None
        self._live: OpenCapture | None = None

    def __enter__(self) -> tuple[LaneScope, ...]:
        if self._lanes is not None:
            raise errors.ClosedError(
                'This fork was entered before',
                location=here(),
                rule='A fork can be entered only once.',
                remedy='Make a new one: `with cap.fork(n) as lanes:`.',
            )
        mine = GUARD.mine()
        if self._check is not None and (mine is None or mine is not self._within):  # else it was checked when made
            self._check('fork()')
        platform = self._platform = current() if mine is None else mine.platform
        # the wrapper has the answer for a graphed function, which sees its caller's stream
        plain = mine is not None and mine.caller is None
        self._parent = parent = GUARD.state.current_stream() if plain else platform.cupy.cuda.get_current_stream()
        self._handle = handle = int(parent.__dict__['ptr'])
        lane = GUARD.ledger.lanes.get(handle) if GUARD.lives else None
        self._live = None if lane is None else GUARD.lives.get(lane.capture)
        streams = self._streams = []
        devices, of = self._places(platform)
        try:
            at_once = None if lane is None else GUARD.state.on_lanes(handle)
            if at_once is not None and {*devices} != {at_once.capture.origin.device}:
                at_once = None
            event = None if at_once is not None else parent.record()
            LANE_STREAMS.take(platform, zip(self._priorities, devices), self._live, handle, streams)
            if at_once is not None:
                GUARD.events.fork(at_once, handle, streams, sys._getframe(1))
            else:
                for stream in streams:
                    stream.wait_event(event)
        except BaseException:
            self._give(streams)
            raise
        lanes = [
            LaneScope(stream, number, devices[number], stream.__dict__['ptr'], of[number])
            for number, stream in enumerate(streams)
        ]
        self._lanes = (*lanes,)
        return self._lanes

    def _places(self, platform: Platform) -> tuple[Sequence[int], Sequence[Any]]:
        """The number of each lane's device, and CuPy's object of it."""
        of = platform.cupy.cuda.Device
        if self._devices is None:
            now, n = of(), len(self._priorities)
            return [int(now.id)] * n, [now] * n
        count = int(platform.cupy.cuda.runtime.getDeviceCount())
        for number in self._devices:
            if not 0 <= number < count:
                raise ValueError(f'there is no device {number}: this machine has {count}, counted from 0')
        return self._devices, [of(number) for number in self._devices]

    def _join(self, lane: LaneScope) -> None:
        """Let the parent wait for a lane. An event belongs to the device of the stream that it is recorded on."""
        assert self._platform is not None
        with GUARD.on(lane.device, self._platform):
            event = self._platform.cupy.cuda.Event()
        mine = GUARD.mine()
        if mine is not None and mine.caller is not None:
            mine.caller.made_here(event, mine.caller.events)
        lane.stream.record(event)
        self._parent.wait_event(event)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Join the lanes. If the body failed they are still joined, so that later work is ordered."""
        assert self._lanes is not None
        lanes = [lane.ptr for lane in self._lanes]
        try:
            live = GUARD.state.on_lanes(self._handle, *lanes) if error is None else None
            if live is not None:
                GUARD.events.join(live, self._handle, lanes, sys._getframe(1))
                return
            for lane in self._lanes:
                try:
                    self._join(lane)
                except RuntimeError as second:
                    if error is None:
                        raise
                    error.add_note(f'capturekit: lane {lane.number} was not joined: {second}')
        finally:
            self._give(self._streams)

    def _give(self, streams: list[Any]) -> None:
        """Streams go back to the stock; those of an open capture only when it has ended, or to its own later forks."""
        assert self._platform is not None
        live = self._live
        if live is not None and live.capture in GUARD.lives:
            live.recorder.lane_streams.extend(streams)
        else:
            LANE_STREAMS.give(self._platform, streams)


def priorities(priority: Priority, n: int) -> tuple[int | None, ...]:
    """Each lane's priority, of ``n`` lanes.

    Raises:
        TypeError: it is neither a whole number, nor None, nor a sequence of these. ValueError: the sequence has not
            ``n`` of them, or a number is none of C's.
    """
    if priority is None:
        return (None,) * n
    if isinstance(priority, Sequence) and not isinstance(priority, (str, bytes)):
        if len(priority) != n:
            each = counted(n, 'lane')
            raise ValueError(f'priority must be one number or one for each of {each}, got {len(priority)}')
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


def _numbers(devices: Any) -> list[int]:
    """The numbers of devices, given as numbers or as ``cupy.cuda.Device``."""
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Sequence):
        raise TypeError(f'devices must be a sequence with one device for each lane, got {devices!r}')
    found = []
    for one in devices:
        number = getattr(one, 'id', one)
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f'a device is a number or a cupy.cuda.Device, got {one!r}')
        found.append(number)
    return found


def fork(n: int | None = None, *, priority: Priority = None, devices: Devices = None) -> Fork:
    """Split the current stream into ``n`` lanes for a block, in a capture or outside of one.

    Outside of captures it does eagerly what ``cap.fork`` records: events fork the lanes from the current stream and
    join them back, and the host does not wait.

    Args:
        n: how many lanes.
        priority: the priority of the lanes' streams: one number for all lanes, or a sequence of one for each. Lower
            numbers come first; None means 0, the default. CUDA moves numbers into the device's range (0 to -5 on recent
            ones). In the graph of a ``ck.capture()`` whose lanes have different priorities, kernels keep their lane's
            (``recording.by_priority``); if all lanes have the same one, the stream of the launch decides. The device
            starts thread blocks of a higher priority before waiting ones of a lower; a block that has started runs on.
            CUDA C++ Programming Guide, "Stream Priorities".
        devices: a sequence with the device of each lane, as a number or a ``cupy.cuda.Device``; then ``n`` may be left
            out. ``with lane:`` makes its device current, too, so that arrays made there lie on it. None means the
            current device for all lanes. CUDA C++ Programming Guide, "Multi-Device System".

    Raises:
        TypeError, ValueError: ``n`` is not a positive whole number; ``priority`` or ``devices`` is not as described; on
            entering, there is no such device.
    """
    return Fork(n, priority, None, devices)


#: How branches are assigned to lanes, by name: number of branches, number of lanes -> each branch's lane.
ASSIGNMENTS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    'round robin': lambda branches, lanes: tuple(branch % lanes for branch in range(branches)),
    'blocks': lambda branches, lanes: tuple(branch * lanes // branches for branch in range(branches)),
}

Assignment = Literal['round robin', 'blocks'] | Sequence[int]


def assigned(branches: int, lanes: int | None, assign: Assignment) -> tuple[int, ...]:
    """Each branch's lane. A name gives ``min(branches, lanes)`` lanes, numbered from 0, and each at least one branch.

    Raises:
        TypeError, ValueError: ``lanes`` is not a positive whole number; ``assign`` is neither a known name nor a
            sequence of one number below ``lanes`` for each branch.
    """
    if lanes is not None:
        check_lanes(lanes)
    if isinstance(assign, str):
        if assign not in ASSIGNMENTS:
            names = ', '.join(map(repr, ASSIGNMENTS))
            raise ValueError(f'assign must be {names}, or one lane number for each branch, got {assign!r}')
        return ASSIGNMENTS[assign](branches, min(branches, lanes or branches))
    check_numbers(assign)
    if len(assign) != branches:
        raise ValueError(
            f'assign must have one lane number for each of {counted(branches, "branch")}, got {len(assign)}'
        )
    if lanes is not None and any(lane >= lanes for lane in assign):
        raise ValueError(f'assign must have lane numbers below {lanes}, got {max(assign)}')
    return tuple(assign)


def check_lanes(lanes: Any) -> None:
    """Raise TypeError or ValueError if this is not a number of lanes."""
    if isinstance(lanes, bool) or not isinstance(lanes, int):
        raise TypeError(f'lanes must be a whole number, got {lanes!r}')
    if lanes < 1:
        raise ValueError(f'lanes must be 1 or more, got {lanes}')


def numbers_of_lanes(lanes: Any) -> Any:
    """``lanes``, a number or a sequence of them, as a sequence; anything else as it is."""
    return (lanes,) if isinstance(lanes, int) and not isinstance(lanes, bool) else lanes


def _one_number(lanes: int | Sequence[int] | None) -> int | None:
    """The number of lanes of one run, which may be given as a sequence of one."""
    if lanes is None or isinstance(lanes, (int, str, bytes)) or not isinstance(lanes, Sequence):
        return lanes  # type: ignore[return-value]  # assigned() refuses other types
    if len(lanes) != 1:
        raise ValueError(
            f'lanes must be one number of lanes, got {lanes!r}: ck.experiment() tries several, and assign= says which '
            'branch goes to which lane'
        )
    return lanes[0]


def check_numbers(assign: Any) -> None:
    """Raise TypeError or ValueError if this is not a sequence of lane numbers."""
    if not isinstance(assign, Sequence) or isinstance(assign, (bytes, bytearray)):
        raise TypeError(f'assign must be a name or a sequence of lane numbers, got {type(assign).__name__}')
    for lane in assign:
        if isinstance(lane, bool) or not isinstance(lane, int):
            raise TypeError(f'a lane number must be a whole number, got {lane!r}')
        if lane < 0:
            raise ValueError(f'a lane number must be 0 or more, got {lane}')


def on_lanes(
    branches: Sequence[Callable[[], Any]],
    lanes: int | Sequence[int] | None,
    priority: Priority,
    assign: Assignment,
    check: Callable[[str], None] | None = None,
) -> list[Any]:
    """Do the work of :func:`parallel`; ``check`` is called before the fork."""
    for branch in branches:
        if not callable(branch):
            raise TypeError(f'parallel takes callables without arguments, got {type(branch).__name__}')
    most = _one_number(lanes)
    numbers = assigned(len(branches), most, assign)
    count = most or max(numbers, default=0) + 1
    each = priorities(priority, count)
    used = sorted(set(numbers))
    # one lane is the current stream; with a priority it has to be a lane, since a stream can't change its priority
    if len(used) < 2 and all(each[lane] is None for lane in used):
        return [branch() for branch in branches]
    with Fork(len(used), [each[lane] for lane in used], check) as forked:
        by_number = dict(zip(used, forked))
        results = []
        for branch, number in zip(branches, numbers):
            with by_number[number]:
                results.append(branch())
    return results


def parallel(
    *branches: Callable[[], Any],
    lanes: int | Sequence[int] | None = None,
    priority: Priority = None,
    assign: Assignment = 'round robin',
) -> list[Any]:
    """Run branches (callables without arguments) on lanes, join the lanes, and return the results in order.

    ``a, b = ck.parallel(lambda: f(x), lambda: g(x))``. In a capture it is recorded, outside of one it runs eagerly, as
    with :func:`fork`. Branches are called in this call, in the order in which they are given, each with its lane
    current. The work of branches on one lane runs in order, that of different lanes may run at once. The results can be
    used on the current stream when this returns: it has joined all lanes, and the host has not waited.

    Args:
        branches: the callables. A branch must not use what a branch on another lane makes, and must not drop the last
            reference to an array that a branch on another lane reads.
        lanes: how many lanes at most: a number, or a list of one. None: one for each branch. If all branches are on
            one lane, they run on the current stream, and nothing is forked, unless that lane is to have a priority.
        priority: the lanes' priority, as in :func:`fork`: one number, or a sequence of one for each of ``lanes``.
        assign: which branch goes to which lane: 'round robin', 'blocks' (neighbours share a lane), or a sequence of
            one lane number for each branch, counted from 0; lanes without a branch are not forked.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has been called.
        Whatever a branch raises: those after it are not called, and the lanes are joined.
    """
    return on_lanes(branches, lanes, priority, assign)
