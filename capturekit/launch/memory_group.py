"""Memory that several graphs share, because no two of them run at once.

What a launch leaves in this memory is of no use afterwards: workspaces of libraries, which are written before they are
read, and in graphed functions temporaries and copies of arguments. Each capture begins with all of it free. Launches
take turns (:class:`capturekit.launch.memory_group.LaunchTurns`), so that none begins while another one still uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from capturekit.driver.cuda import Platform
from capturekit.model.counted import counted
from capturekit.model.errors import UnsupportedCallError
from capturekit.model.lease import Lease
from capturekit.model.ledger import LEGACY_HANDLES, PER_THREAD_HANDLE
from capturekit.model.rules import CaptureStatus
from capturekit.model.skipped_exits import CertainExit, Lock
from capturekit.model.source_line import here


class LaunchTurns:
    """The order of the launches of one group of graphs: each comes after the one before, on whatever streams they are.

    Two launches on one stream are in order anyway. If the last launch was on another stream, an event orders the two.
    As long as all launches were on one stream, that event is recorded when the first launch on another stream comes;
    from then on, it is recorded behind each launch. CUDA C++ Programming Guide, "Events".

    ``last`` is the stream of all launches so far, as long as they were on one; None otherwise, and where no event can
    be recorded on it later. ``on`` makes a device current for a block.
    """

    __slots__ = ('_behind', '_cupy', '_device', '_events', '_on', '_one_device', '_several', '_stream', 'last', 'lock')

    def __init__(self, platform: Platform, on: Callable[[int], AbstractContextManager[Any]]) -> None:
        self._cupy = platform.cupy
        self._device = platform.device
        self._on = on
        self._one_device = int(platform.cupy.cuda.runtime.getDeviceCount()) == 1
        self.lock = Lock()
        self.last: Any = None
        #: The stream of the last launch, if it lives as long as it is held here: no other stream gets its handle.
        self._stream: Any = None
        #: The event behind the last launch; 0 where it is not recorded yet.
        self._behind = 0
        self._events: dict[int, int] = {}
        self._several = False

    def taken(self, ptr: int) -> Turn:
        """Launches in this block, on a stream given by its handle, come after the last launch of another graph.

        Raises UnsupportedCallError if the stream of that launch is being captured by now.
        """
        return Turn(self, ptr)

    def begin(self, ptr: int) -> Any:
        """Let the next work of a stream wait for the last launch. Return the stream if nothing else gets its handle."""
        stream, before = self._cupy.cuda.get_current_stream(), self._stream
        lasts = stream if stream.ptr == ptr and self._lasts(stream) else None
        if not self._behind if before is None else before is lasts:  # there is nothing to wait for
            return lasts
        if not self._behind:
            if self._captured(before.ptr):
                raise _captured_now(before.ptr)
            self._behind = self._record(before.ptr, before)
            if self._captured(before.ptr):  # by another thread, just now: the event may belong to that capture
                self._behind = 0
                raise _captured_now(before.ptr)
            self._several, self.last = True, None
        self._device.stream_wait_event(ptr, self._behind)
        return lasts

    def _lasts(self, stream: Any) -> bool:
        """Whether no other stream can get the handle of this one while the object is held."""
        if stream.ptr in LEGACY_HANDLES:
            return self._one_device
        is_cupys = type(stream) is self._cupy.cuda.Stream and stream.device_id >= 0
        return is_cupys and stream.ptr != PER_THREAD_HANDLE

    def launched(self, ptr: int, lasts: Any) -> None:
        """Note a launch. Later ones wait for it."""
        self._stream, self._behind = lasts, 0
        self.last = None if self._several else lasts
        if self.last is None:
            self._behind = self._record(ptr, lasts)

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

    def _leave(self, *_exc: object) -> None:
        try:
            try:
                self._turns.launched(self._ptr, self._lasts)
            except BaseException:  # a signal: who launches next has to know of this launch
                self._turns.launched(self._ptr, self._lasts)
                raise
        finally:
            self._turns.lock.release()

    __exit__: Any = CertainExit(_leave, lambda turn: turn._turns.lock.depth(), _leave)


def _captured_now(ptr: int) -> UnsupportedCallError:
    return UnsupportedCallError(
        'A launch of a graph that shares memory',
        stream=ptr,
        location=here(),
        rule='The last graph that used this memory was launched on a stream that is being captured now, and no event '
        'can tell when that launch ends.',
        remedy='Launch on the stream of the earlier launch before it is captured; or capture on another stream.',
    )


#: A new piece of memory has at least one part in so many of all others, and sizes are multiples of so many bytes.
_PART, _UNIT = 4, 512
#: Where a graph has the arrays of its block: 'alone' in memory of its own; 'shared' with the group; 'packed': alone
#: while it is recorded, and afterwards packed into what the group shares.
Temporaries = Literal['alone', 'shared', 'packed']


class MemoryGroup:
    """Memory that graphs of one group share: ``group = ck.MemoryGroup()``, then
    ``ck.capture(memory=group)`` and ``@ck.graphed(memory=group)``.

    Graphs of a group never run at the same time: a launch waits, on the device, for the launch of another graph of the
    group before it, on whatever streams the two are. So they share what no launch needs from an earlier one: the
    workspaces of cuBLAS (32 MiB for each lane that uses it) and, in graphed functions, temporaries and the copies of
    arguments, which every launch makes. Arrays that a block of :func:`capturekit.capture` makes, and constants, belong
    to one graph alone.

    The variants of a graphed function are a group of their own, unless ``memory=`` says otherwise. The memory is given
    back when the last graph of the group is closed; the group may be used again after that.

    Only launches by capturekit take turns. An executable graph that is launched in another way
    (``cudaGraphLaunch`` with ``graph.graphExec``) must not run beside others of its group.

    Threads: any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._platform: Platform | None = None
        #: The order of its launches; None while no graph uses it.
        self.turns: LaunchTurns | None = None
        #: Pieces of the device's memory, as pointers: each is given back with the last reference to it.
        self._slabs: list[Any] = []
        self._workspaces: dict[tuple[int, int], Any] = {}
        self._graphs = 0

    @property
    def graphs(self) -> int:
        """How many graphs and open captures use the memory."""
        return self._graphs

    @property
    def memory_bytes(self) -> int:
        """Bytes of device memory that the graphs share."""
        with self._lock:
            return sum(int(pointer.mem.size) for pointer in (*self._workspaces.values(), *self._slabs))

    def join(
        self, platform: Platform, on: Callable[[int], AbstractContextManager[Any]], temporaries: Temporaries = 'alone'
    ) -> Share:
        """Let one more graph use the memory, until the lease of what is returned is released.

        ``temporaries``: where its arrays lie. ``on`` makes a device current for a block. Raises
        ValueError if graphs of another CuPy use it: the simulated one and the real one share no memory.
        """
        with self._lock:
            if self._platform is not None and self._platform.cupy is not platform.cupy:
                raise ValueError("the group's memory is used by graphs of another CuPy, real or simulated")
            self._graphs += 1  # first: what is dropped in here must not be the last graph
            if self.turns is None:
                self._platform, self.turns = platform, LaunchTurns(platform, on)
            scratch = None if temporaries == 'alone' else Scratch(self)
            return Share(self, self.turns, Lease(self._leave), scratch, temporaries == 'packed')

    def _leave(self) -> None:
        with self._lock:
            self._graphs -= 1
            if self._graphs or self.turns is None:
                return
            turns, self.turns, self._platform = self.turns, None, None
            self._slabs.clear()  # which waits for the device
            self._workspaces.clear()
            turns.close()

    def workspace(self, number: int, size: int) -> Any:
        """The workspace for the lane ``number`` of a graph, on the current device. Each lane has its own."""
        with self._lock:
            key = self._device(), number
            if key not in self._workspaces:
                self._workspaces[key] = self._malloc(size)
            return self._workspaces[key]

    def slabs(self, known: int) -> list[Any]:
        """The pieces of memory that there are, without the first ``known``."""
        with self._lock:
            return self._slabs[known:]

    def grow(self, size: int) -> None:
        """Add a piece of memory of the current device, with room for ``size`` bytes.

        The first graph gets exactly what it asks for. Later ones ask for other sizes, for which these pieces are too
        small one by one: so a new piece is at least a quarter as large as all others.
        """
        with self._lock:
            device = self._device()
            here = [int(one.mem.size) for one in self._slabs if one.device_id == device]
            others = sum(here) if self._graphs > 1 else 0
            self._slabs.append(self._malloc(max(size, others // _PART // _UNIT * _UNIT)))

    def _device(self) -> int:
        assert self._platform is not None
        return int(self._platform.cupy.cuda.get_device_id())

    def _malloc(self, size: int) -> Any:
        assert self._platform is not None
        return self._platform.cupy.cuda.memory._malloc(size)

    def __repr__(self) -> str:
        return f'<capturekit.MemoryGroup, {counted(self._graphs, "graph")}, {counted(self.memory_bytes, "byte")}>'


@dataclass(frozen=True, eq=False)
class Share:
    """What one graph has of a group: the turns of its launches, and the memory for its arrays, if they lie there.

    ``packs``: of its arrays only the temporaries lie there, and those not before they are packed.
    """

    group: MemoryGroup
    turns: LaunchTurns
    lease: Lease
    scratch: Scratch | None
    packs: bool = False


class Scratch:
    """The memory of a group as one capture uses it: each piece is taken once. Sizes are in bytes.

    Threads: any thread may use it. Other threads ask a capture's memory whether it holds an array of theirs.
    """

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group
        self._lock = Lock()
        self._known = 0
        #: What is not taken: first address, bytes, and the piece of memory that it is a part of.
        self._gaps: list[tuple[int, int, Any]] = []
        #: What is taken: first address and the one after the last.
        self.taken: list[tuple[int, int]] = []

    def take(self, size: int, device: int) -> tuple[int, Any]:
        """Take memory of a device, which is current: the smallest gap that is large enough, or new memory."""
        with self._lock:
            self._look()
            found = self._smallest(size, device)
            if found is None:
                self._group.grow(size)
                self._look()
                found = self._smallest(size, device)
            assert found is not None
            low, room, slab = self._gaps.pop(found)
            if room > size:
                self._gaps.append((low + size, room - size, slab))
            self.taken.append((low, low + size))
            return low, slab

    def _look(self) -> None:
        for slab in self._group.slabs(self._known):
            self._known += 1
            self._gaps.append((int(slab.ptr), int(slab.mem.size), slab))

    def _smallest(self, size: int, device: int) -> int | None:
        fitting = [
            (room, n) for n, (_low, room, slab) in enumerate(self._gaps) if room >= size and slab.device_id == device
        ]
        return min(fitting)[1] if fitting else None

    def give_back(self, low: int, high: int) -> None:
        """Give up what was taken from ``low`` to ``high - 1``: the next one may have it."""
        with self._lock:
            self.taken.remove((low, high))
            slab = next(one for one in self._group.slabs(0) if one.ptr <= low and high <= one.ptr + one.mem.size)
            self._gaps.append((low, high - low, slab))

    def holds(self, address: int) -> bool:
        """True for an address in what is taken."""
        return any(low <= address < high for low, high in list(self.taken))
