"""A graph's own memory: which lanes may use which block, and until when.

Everything allocated while a capture is open comes from memory that lives as long as the graph, so that a launch never
writes into memory that others have got since. Inside one capture a block that Python dropped is handed out again
only to work that the graph orders after everything that may have touched it.

While the capture has never forked, or all its lanes have been joined, recorded work is one line and CuPy's own pool
does that at full speed. While lanes are open its rule (same stream, so same order) is wrong: a block of lane 1 that
lane 2 still reads would be handed out on lane 1. Then blocks come from :class:`LaneBlocks`: each remembers, when it is
dropped, how far every lane had got that was active during its life, and goes out again only on a lane that is
ordered after all of that. A lane is active while it is current, or when it is handed to a call; otherwise the driver
is asked whether it got work through its handle. CuPy's pool does not ask: work by handles on lanes that had all been
joined is found afterwards, and noted.

Blocks are in bytes, rounded up to 512. Any thread may allocate and drop, with or without the guard's lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from capturekit.launch.array_extent import extent
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.memory_group import LaunchTurns, Share
from capturekit.model.lease import Lease
from capturekit.model.ledger import Clock, Lane, LedgerCapture, covers
from capturekit.model.rules import CaptureStatus
from capturekit.model.skipped_exits import CertainExit, Lock, contextmanager

# -- how many bytes of a graph's memory were asked for. Blocks are multiples of 512 bytes: their ends may be nobody's -


class AskedBytes:
    """What was asked for at each address, and what lies behind it. Any thread may note."""

    def __init__(self) -> None:
        #: By the address of a block, in the order in which they were handed out.
        self.sizes: dict[int, int] = {}

    def note(self, pointer: Any, size: int) -> Any:
        """Note a block that was handed out for so many bytes. Return its pointer."""
        address, asked = pointer.ptr, self.sizes
        asked.pop(address, None)  # it goes to the end: the latest
        asked[address] = size
        return pointer

    def forget(self, addresses: Iterable[int]) -> None:
        """Forget blocks that were given back to the device."""
        for address in addresses:
            self.sizes.pop(address, None)

    def behind(self) -> list[tuple[int, int]]:
        """The ends of blocks in use that lie behind what was asked for, in order of address.

        No array that was made in such a block reaches so far, so that nobody can read them. Of blocks that share
        addresses, the one that was handed out last counts: an earlier one was dropped before. For memory that is free
        the answer means nothing.
        """
        found: list[tuple[int, int]] = []
        later: list[tuple[int, int]] = []  # disjoint, in order
        for low, size in reversed(self.sizes.items()):
            end, high = low + size, low + -(-size // UNIT) * UNIT
            first = max(bisect_left(later, (low,)) - 1, 0)
            last = bisect_left(later, (high,))
            met = [one for one in later[first:last] if one[1] > low]
            if end < high and all(stop <= end or begin >= high for begin, stop in met):
                found.append((end, high))
            if low < high:
                merged = min([low, *(one[0] for one in met)]), max([high, *(one[1] for one in met)])
                later[bisect_left(later, (merged[0],)) : last] = [merged]
        return sorted(found)


UNIT = 512
#: Where memory is used again late, so many times as much may be taken as one line of work needs, and so many bytes at
#: least: short chains need few blocks, and whoever waits for one of these waits for the chain before.
_TIMES, LEAST = 2, 256 << 20


class Ticket:
    """Held by the arrays on a block; when the last is gone, the block is free."""

    __slots__ = ('block', 'lanes')

    def __init__(self, lanes: LaneBlocks, block: PoolBlock) -> None:
        self.lanes = lanes
        self.block = block

    def __del__(self) -> None:
        self.lanes._dropped.append(self.block)
        with self.lanes:
            pass  # its end puts the block back


class PoolBlock:
    """A piece of the pool: ``born`` is the tick at which it was last handed out.

    ``lives``: of memory that is used again late, the nodes that came before the next one when it was handed out and
    when it was dropped, for each time; None where that is not known. ``since``: the first of the two, while it is used.
    ``of_library``: it is a workspace, and no array's.
    """

    __slots__ = ('address', 'born', 'device', 'lives', 'of_library', 'pointer', 'since', 'size')

    def __init__(self, pointer: Any, size: int, of_library: bool = False) -> None:
        self.pointer, self.of_library = pointer, of_library
        self.address, self.device = int(pointer.ptr), int(pointer.device_id)
        self.size = size
        self.born = 0
        self.since: tuple[int, ...] | None = None
        self.lives: list[tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = [(None, None)] if of_library else []


class LaneBlocks(Lock):
    """Blocks for captures with open lanes. Who holds it is not disturbed: what is dropped meanwhile waits."""

    def __init__(self, memory: GraphMemory) -> None:
        self._memory = memory
        #: The key is the device and size, and how far lanes must have got, which most blocks share.
        self._free: defaultdict[tuple[int, int], dict[tuple[tuple[int, int], ...], list[PoolBlock]]] = defaultdict(dict)
        #: Blocks whose arrays are gone. Garbage collection may add some at any line here, so they wait.
        self._dropped: deque[PoolBlock] = deque()
        self._closed = self._puts_back = False
        #: Bytes of these blocks that arrays hold, the most that they have held, and all bytes of these blocks.
        self._live = self._peak = self._total = 0

    @property
    def live_bytes(self) -> int:
        """Bytes of these blocks that arrays hold."""
        with self:
            return self._live

    def malloc(self, lane: Lane, size: int) -> Any:
        """Return a memory pointer of ``size`` bytes for work on a lane."""
        rounded = max((size + UNIT - 1) // UNIT, 1) * UNIT
        memory = self._memory
        with self:
            self._live += rounded
            self._peak = max(self._peak, self._live)
            late = memory.late
            fits = late is not None and self._total + rounded <= self._room(late)
            block = None if fits else self._take(lane, rounded)
            if block is None:
                block = PoolBlock(memory.new_block(rounded), rounded)
                self._total += rounded
            memory.active(lane)
            block.born, block.since = memory.tick, None if late is None else memory.place()
        owned = memory.unowned(block.address, rounded, Ticket(self, block), block.device)
        return memory.pointer(owned, 0)

    def _room(self, late: int) -> int:
        """The bytes up to which new memory is taken before some is used again. Workspaces count with the blocks."""
        return late - self._memory.workspaces.taken if late else max(_TIMES * self._peak, LEAST)

    def _take(self, lane: Lane, size: int) -> PoolBlock | None:
        free, late = self._free[lane.device, size], self._memory.late is not None
        if not free:
            return None
        for key in free if late else reversed(free):
            if covers(lane, key):
                block = free[key].pop(0 if late else -1)
                if not free[key]:
                    del free[key]
                return block
        return None

    def settle(self) -> None:
        """Let free blocks go to any lane: all recorded work lies before later work."""
        with self:
            for free in self._free.values():
                every = [block for blocks in free.values() for block in blocks]
                free.clear()
                if every:
                    free[()] = every

    def free(self) -> list[PoolBlock]:
        """The free blocks, which stay free."""
        with self:
            return [one for free in self._free.values() for blocks in free.values() for one in blocks]

    def give_up(self, blocks: Sequence[PoolBlock]) -> None:
        """Hand out these free blocks no more, and let go of their memory."""
        gone = {id(one) for one in blocks}
        with self:
            for free in self._free.values():
                for key, several in list(free.items()):
                    free[key] = [one for one in several if id(one) not in gone]
                    if not free[key]:
                        del free[key]
            for one in blocks:
                self._total -= 0 if one.of_library else one.size
                one.pointer = None

    def close(self) -> None:
        """Give up all free blocks; blocks in use are given up when their arrays are gone."""
        with self:
            self._closed = True
            self._free.clear()

    def _leave(self, *_exc: object) -> None:
        try:
            while self._dropped and self.depth() == 1 and not self._puts_back:
                self._puts_back = True
                try:
                    self._put(self._dropped.popleft())
                finally:
                    self._puts_back = False
        finally:
            self.release()

    __exit__: Any = CertainExit(_leave, Lock.depth, _leave)

    def _put(self, block: PoolBlock) -> None:
        self._live -= block.size
        if not self._closed:
            memory = self._memory
            block.lives.append((None, None) if memory.late is None else (block.since, memory.place()))
            touched = tuple(sorted(memory.touched_since(block.born).items()))
            self._free[block.device, block.size].setdefault(touched, []).append(block)


@contextmanager
def _taken(stream: int, first: LaunchTurns, *others: LaunchTurns) -> Iterator[None]:
    with first.taken(stream), _taken(stream, *others) if others else nullcontext():
        yield


def all_free(pool: Any) -> Iterator[Any]:
    """A pool's free memory for the current stream, in pieces; the pool can't grow: it raises MemoryError instead."""
    size = 1 << max(int(pool.free_bytes()), 1).bit_length() - 1
    while size >= UNIT:
        try:
            yield pool.malloc(size)
        except MemoryError:
            size //= 2


# -- workspaces of cuBLAS: one for each lane, or several in turn where one lane is to be split -----------------------


#: For cuBLAS on each lane: what NVIDIA's documentation of cublasSetWorkspace recommends for Hopper and later. With
#: another size it might choose other kernels than in an eager run.
WORKSPACE_BYTES = 32 << 20
#: So many of them are used in turn at the most, and of the device's memory not more than this part; fewer, where they
#: stay. Others are packed once the order is known.
_MOST, _PART, _MOST_THAT_STAY = 128, 32, 32


def count_of(cupy: Any, late: int | None, stay: bool = False) -> int:
    """How many workspaces a lane uses in turn: one, unless memory is to be used again ``late`` (0 or a limit in bytes).

    Two calls of cuBLAS that share one come one after the other. Of a limit half is left for what the block allocates.
    ``stay``: whether they are shared with other graphs, so that none is given back.
    """
    if late is None:
        return 1
    most = late // 2 if late else int(cupy.cuda.runtime.memGetInfo()[1]) // _PART
    return max(1, min(_MOST_THAT_STAY if stay else _MOST, most // WORKSPACE_BYTES))


class Workspaces:
    """The workspaces of one graph. ``grow`` takes memory that stays with the graph."""

    def __init__(self, grow: Callable[[int], Any], count: int) -> None:
        self._grow, self._count = grow, count
        self._of: dict[int, list[Any]] = {}
        self.nbytes = WORKSPACE_BYTES

    def next(self, stream: int) -> tuple[int, int]:
        """Address and bytes of the one for the next call on a stream."""
        several = self._of.setdefault(stream, [])
        if len(several) < self._count:
            several.append(self._grow(self.nbytes))
        else:  # the one that was used first has waited longest
            several.append(several.pop(0))
        return int(several[-1].ptr), self.nbytes

    @property
    def taken(self) -> int:
        """Bytes of all of them."""
        return self.nbytes * sum(map(len, self._of.values()))

    def every(self) -> list[Any]:
        """All of them, as memory pointers."""
        return [pointer for several in self._of.values() for pointer in several]

    def forget(self, addresses: Container[int]) -> None:
        """Let go of those that begin there: they are given back."""
        for stream, several in self._of.items():
            self._of[stream] = [one for one in several if int(one.ptr) not in addresses]

    def clear(self) -> None:
        self._of.clear()


#: No address is as high.
_HIGHEST = 1 << 64


class GraphMemory:
    """The memory of one capture and then of its graph.

    ``pool`` is private (made here) unless the caller gave one; then nothing that the capture took from it goes back
    while the graph lives. ``ends`` asks the driver for the nodes that a stream's next work comes after. ``late``: a
    dropped block is used again only where new ones would come to more bytes than this (0: than twice what one line of
    work needs, or 256 MiB), and then the one that was dropped first; None: at once. ``share``: what it has of a memory
    group. Any thread may call ``ends``.
    """

    def __init__(
        self,
        cupy: Any,
        pool: Any = None,
        ends: Callable[[int], tuple[int, ...]] = lambda stream: (),
        on: Callable[[int], AbstractContextManager[Any]] | None = None,
        late: int | None = None,
        share: Share | None = None,
    ) -> None:
        self.private, self.late = pool is None, late
        self.share = share
        #: Where arrays of the block lie that no launch needs from an earlier one; None: in memory of its own.
        self._scratch = None if share is None else share.scratch
        #: The turns that its launches take, and those of graphs that are embedded in it.
        self.turns: list[LaunchTurns] = [] if share is None else [share.turns]
        self._on = on or cupy.cuda.Device
        self._use(cupy, pool)
        #: The blocks of lanes; in a loop's body others.
        self.blocks = LaneBlocks(self)
        self.ends = ends
        self._asking = Lock()
        self._held: list[Any] = []
        #: Pinned host memory that launches read: it is given back last, when no launch runs.
        self._pinned: list[Any] = []
        self._put_in: list[dict[tuple[int, int], Any]] = []
        self._identity: dict[int, list[Any]] = {}
        #: How often lanes were active; and how often they may have come into another order without that.
        self.tick = self.ordered = 0
        self._watch_lanes(None, {}, {})
        self.grown = 0
        #: The pools and lanes of the loops' bodies by depth, and those around the loops that are open.
        self._loops: list[tuple[Any, LaneBlocks]] = []
        self._around: list[tuple[Any, LaneBlocks, int]] = []
        self.holders = 0
        #: Held objects must not go before the graphs: those are closed when the process ends.
        self.to_close = False
        self.workspaces = Workspaces(self._new_workspace, count_of(cupy, late, self.workspaces_stay))
        #: How many of a memory group's workspaces it uses, by device.
        self._shared_workspaces: dict[int, int] = {}
        self._asked = AskedBytes()

    def _use(self, cupy: Any, pool: Any) -> None:
        """Make the pools that blocks come from; or use the caller's."""
        self._cuda = cupy.cuda
        #: The devices that the memory lies on: CuPy's pools count for each, and report the current one.
        self._devices = {int(cupy.cuda.Device().id)}
        chunk = self._chunk if self._scratch is None or self.packs else self._scratch_chunk
        self._new_pool: Callable[[], Any] = lambda: cupy.cuda.MemoryPool(chunk)
        self._malloc = cupy.cuda.memory._malloc
        self._device_now = cupy.cuda.get_device_id
        self._chunks: list[tuple[int, int]] = []
        self._full = self._gone = False
        self.pool = self._new_pool() if pool is None else pool
        # blocks dropped while lanes are open lie free in `pool`: what `grow` hands out must not be one of them
        self._fresh = cupy.cuda.MemoryPool(self._chunk) if pool is None else pool
        self.unowned = cupy.cuda.UnownedMemory
        self.pointer = cupy.cuda.MemoryPointer

    def opened(self, capture: LedgerCapture) -> None:
        """The capture that this memory serves has begun."""
        ends = self.ends(capture.origin.stream)  # in a body of the device's, not nothing
        if self._capture is not None:  # the one before was lost, and left blocks
            self.blocks.settle()
        self._watch_lanes(capture, {0: self.tick}, {0: ends})

    def _watch_lanes(
        self, capture: LedgerCapture | None, active: dict[int, int], known: dict[int, tuple[int, ...]]
    ) -> None:
        """Use the lanes of this capture from now on."""
        self._capture = capture
        #: The tick at which each lane was active last.
        self._active = active
        #: The last known nodes of each lane: its work up to there was given while it was active.
        self._known = known
        #: Lanes that got work by their handle after they had been joined, when nothing was to follow on them.
        self._unforeseen: set[int] = set()

    def _chunk(self, size: int) -> Any:
        """A piece of the device's memory for the pools. Raises MemoryError where they may not grow."""
        if self._full:
            raise MemoryError(size)
        pointer = self._malloc(size)
        insort(self._chunks, (int(pointer.ptr), int(pointer.ptr) + size))
        self._devices.add(int(pointer.device_id))
        return pointer

    def _scratch_chunk(self, size: int) -> Any:
        """The same, a piece of the memory that is shared."""
        if self._full:
            raise MemoryError(size)
        assert self._scratch is not None
        device = int(self._device_now())
        low, slab = self._scratch.take(size, device)
        insort(self._chunks, (low, low + size))
        self._devices.add(device)
        return self.pointer(self.unowned(low, size, slab, device), 0)

    def new_block(self, size: int) -> Any:
        """Take memory for an array of the block."""
        return self.grow(size) if self._scratch is None or self.packs else self._scratch_chunk(size)

    def slot(self, size: int) -> Any:
        """Take memory for an argument that every launch fetches before it reads it."""
        return self.grow(size) if self._scratch is None else self._scratch_chunk(-(-size // UNIT) * UNIT)

    def outlives(self, known: Iterable[Any]) -> bool:
        """Whether any array but those ``known`` lies, after the block, in memory that other graphs use as well."""
        if self._scratch is None or self.packs:
            return False
        blocks = {int(one.data.mem.ptr): int(one.data.mem.size) for one in known}
        mine = sum(size for low, size in blocks.items() if self._scratch.holds(low))
        pools = [self.pool, *(pool for pool, _lanes in self._loops)]
        lanes = [self.blocks, *(lanes for _pool, lanes in self._loops)]
        used = sum(self._sum(pool, 'used_bytes') for pool in pools) + sum(one.live_bytes for one in lanes)
        return used != mine

    def join_turns(self, other: GraphMemory) -> bool:
        """Let launches take the turns of another graph, too, which is embedded in this one; False if they do so."""
        new = [one for one in other.turns if one not in self.turns]
        self.turns += new
        return bool(new)

    def turn(self, stream: int) -> AbstractContextManager[None]:
        """Launches in this block, on a stream given by its handle, take their turns."""
        if not self.turns:
            return nullcontext()
        first, *others = sorted(self.turns, key=id)  # in one order for all, so that no two threads wait for each other
        return _taken(stream, first, *others) if others else first.taken(stream)

    def holds(self, address: int) -> bool:
        """True for an address in this memory."""
        if not self.private:
            blocks = (pointer.mem for pointer in self._held if hasattr(pointer, 'mem'))
            return any(block.ptr <= address < block.ptr + block.size for block in blocks)
        found = bisect_right(self._chunks, (address, _HIGHEST)) - 1
        return found >= 0 and address < self._chunks[found][1]

    def keeps(self, address: int) -> bool:
        """True for an address in this memory, or in the pinned memory that is held for its launches."""
        return self.holds(address) or any(one.ptr <= address < one.ptr + one.size() for one in self._pinned)

    def chunks(self) -> list[tuple[int, int]]:
        """Where this memory lies, as pairs of its first address and the one after its last; [] in the user's pool."""
        return list(self._chunks)

    def uses(self, pool: Any) -> bool:
        """Whether this memory comes from a pool."""
        return any(pool is one for one in (*self._pools(), *(around[0] for around in self._around)))

    def held(self) -> list[Any]:
        """Objects that are held while the graph lives: blocks of this memory, arrays from outside, and others."""
        return [*self._held, *(thing for things in self._put_in for thing in things.values())]

    def keep(self, thing: Any) -> None:
        """Hold something for as long as the graph lives."""
        self._held.append(thing)

    def keep_pinned(self, pointer: Any) -> None:
        """Hold pinned memory that launches read, until the last launch has ended."""
        self._pinned.append(pointer)

    def hold_what_is_in(self, things: dict[tuple[int, int], Any]) -> None:
        """Hold what one of the graphs puts into ``things``, as long as it is there."""
        if all(one is not things for one in self._put_in):
            self._put_in.append(things)

    def forget(self, low: int, high: int) -> None:
        """Stop holding objects that begin in [low, high): nodes will use other arrays instead."""
        self._held = [one for one in self._held if not (hasattr(one, 'mem') and low <= int(one.ptr) < high)]

    def grow(self, size: int) -> Any:
        """Take a block from the pool that goes back only with the graph."""
        pointer = self._fresh.malloc(size)
        self._held.append(pointer)
        self._devices.add(int(pointer.device_id))
        self.grown += size
        return pointer

    def place_for(self, array: Any) -> Any:
        """A new array of the same shape, dtype and strides, for as long as the graph lives."""
        low, high = extent(array)
        pointer = self.grow(max(high - low, 1)) + (array.data.ptr - low)
        return type(array)(array.shape, array.dtype, pointer, array.strides)

    def enter_loop(self) -> None:
        """Begin a loop's body: older memory that is dropped in it does not become free in it, as each pass reads it."""
        depth = len(self._around)
        if depth == len(self._loops):
            self._loops.append((self._new_pool() if self.private else self.pool, LaneBlocks(self)))
            self._identity.clear()
        self._around.append((self.pool, self.blocks, self._sum(self.pool, 'used_bytes')))
        self.pool, self.blocks = self._loops[depth]

    def leave_loop(self) -> bool:
        """End a loop's body. Return whether older memory was dropped in it."""
        self.pool, self.blocks, used = self._around.pop()
        return self._sum(self.pool, 'used_bytes') < used

    def _sum(self, pool: Any, what: str) -> int:
        """A figure of a pool, summed over all devices."""
        found, now = 0, self._device_now()
        for device in self._devices:
            with nullcontext() if device == now else self._on(device):
                found += int(getattr(pool, what)())
        return found

    def _new_workspace(self, size: int) -> Any:
        if self.share is None or self.share.packs:
            return self.grow(size)
        device = int(self._device_now())
        number = self._shared_workspaces.get(device, 0)
        self._shared_workspaces[device] = number + 1
        pointer = self.share.group.workspace(number, size)
        insort(self._chunks, (int(pointer.ptr), int(pointer.ptr) + size))
        return pointer

    def allocator(self, lane: Lane, malloc_of: Callable[[Any], Any] | None = None) -> Callable[[int], Any]:
        """The allocator for work on a lane: at present CuPy's own pool if only one line of work is recorded.

        ``malloc_of`` returns a pool's own method, where a wrapper stands in its place.
        """
        lanes, note = self.blocks, self._asked.note
        if not self.private:
            return lambda size: lanes.malloc(lane, size)
        if self.late is not None:
            return lambda size: note(lanes.malloc(lane, size), size)
        own = self.pool.malloc if malloc_of is None else malloc_of(self.pool)
        settled, alone = -1, False

        def malloc(size: int) -> Any:
            nonlocal settled, alone
            now = self.tick + self.ordered
            if now != settled:  # lanes were forked or joined since, perhaps by another thread
                settled, alone = now, self.solo(lane)
            return note(own(size) if alone else lanes.malloc(lane, size), size)

        return malloc

    def solo(self, lane: Lane) -> bool:
        """True when all recorded work lies before the lane's next work."""
        return all(other is lane or self._behind(other, lane) for other in lane.capture.lanes)

    def _behind(self, other: Lane, lane: Lane) -> bool:
        """Note that ``other`` was joined into ``lane`` after its last activity."""
        return not self._busy(other) and lane.clock.get(other.number, 0) >= other.segment - 1

    @staticmethod
    def _busy(lane: Lane) -> bool:
        """Whether work may follow, or have followed, a lane's last event, or the lane has waited since."""
        return lane.used or lane.current > 0 or lane.suspect or lane.waited

    def active(self, lane: Lane) -> None:
        """Note that a lane became current, or was handed to a call: work may follow on it."""
        self.tick += 1
        self._active[lane.number] = self.tick

    def rests(self, lane: Lane, ends: tuple[int, ...] | None = None) -> None:
        """Note that a lane is no longer current, or waited for another: its work so far may touch live blocks.

        ``ends``: the nodes before its next work, if the caller has just asked for them.
        """
        with self._asking:
            self._known[lane.number] = self.ends(lane.stream) if ends is None else ends
            self.active(lane)

    def moved(self, before: Lane, ends: tuple[int, ...], lane: Lane) -> None:
        """Note that a lane is current instead of another one, whose next work comes after the nodes ``ends``."""
        with self._asking:
            if not before.current:
                self._known[before.number] = ends
                self.active(before)
            self.active(lane)

    def foreseen(self, lane: Lane, ends: tuple[int, ...]) -> bool:
        """Whether a lane that is not current got no work since it was, and no lane is to be reported.

        ``ends``: the nodes before its next work. If not, :meth:`worked` and :meth:`unforeseen` say more.
        """
        return ends == self._known.get(lane.number, ()) and not self._unforeseen

    def worked(self, lane: Lane, ends: tuple[int, ...] | None = None) -> bool:
        """Ask the driver whether an inactive lane got work by its handle since it was last active or asked about."""
        with self._asking:
            if ends is None:
                ends = self.ends(lane.stream)
            if ends == self._known.get(lane.number, ()):
                return False
            self._known[lane.number] = ends
            if any(self._behind(lane, other) for other in lane.capture.lanes if other is not lane):
                self._unforeseen.add(lane.number)
            lane.used = True
            self.active(lane)
            return True

    def unforeseen(self, lane: Lane) -> bool:
        """Whether a lane got work by its handle after it had been joined. Each such lane is reported once."""
        found = lane.number in self._unforeseen
        self._unforeseen.discard(lane.number)
        return found

    def touched_since(self, tick: int) -> Clock:
        """The progress of each lane that was active at or after ``tick``. Asks the driver about inactive lanes."""
        capture = self._capture
        if capture is None or capture.status is not CaptureStatus.ACTIVE:
            return {}
        found = {}
        with self._asking:
            for lane in capture.lanes:
                active = lane.current > 0 or self._active.get(lane.number, -1) >= tick
                # else no work can follow its last event, unless it is made to wait again
                if (active and self._busy(lane)) or self.worked(lane):
                    found[lane.number] = lane.segment
                elif active:
                    found[lane.number] = lane.segment - 1
        return found

    def recorded_into(self, mem: Any) -> bool:
        """True when a memory object of CuPy's was given to recorded work, and holds no constant."""
        return self.owns(mem) and not any(getattr(one, 'mem', None) is mem for one in self._held)

    def owns(self, mem: Any) -> bool:
        """True when a memory object of CuPy's lies in this memory."""
        owner = getattr(mem, '_owner', None)
        if isinstance(owner, Ticket):
            return owner.lanes._memory is self
        if not self.private:
            return False
        device = int(mem.device_id)
        with self._asking:
            if device not in self._devices or self._gone:
                return False
            if device not in self._identity:
                with self._on(device):
                    self._identity[device] = [pool.malloc(1).mem.pool for pool in self._pools()]
            return any(getattr(mem, 'pool', None) is one for one in self._identity[device])

    def spare(self, streams: Sequence[Any]) -> list[Any]:
        """All free blocks for these streams and for lanes, as memory pointers, which are free again when dropped."""
        every = [self.blocks, *(lanes for _pool, lanes in self._loops)]
        found = [block.pointer for lanes in every for block in lanes.free()]
        if not self.private or self.pool is None:
            return found
        self._full = True
        try:
            for stream in streams:
                with self._on(self.device_of(stream)), current_for_now(self._cuda, stream):
                    found += [pointer for pool in self._pools() for pointer in all_free(pool)]
        finally:
            self._full = False
        return found

    def unseen(self) -> list[tuple[int, int]]:
        """Bytes of its blocks that no array reaches, in order of address; [] in the user's pool."""
        return self._asked.behind() if self.private else []

    def used_bytes(self) -> int:
        """Bytes that the graph's memory holds on the device."""
        if self.pool is None:
            return 0
        if not self.private:
            return self.grown
        pools = self._pools() if self._scratch is None or self.packs else [self._fresh]
        return sum(self._sum(pool, 'total_bytes') for pool in pools)

    @property
    def devices(self) -> list[int]:
        """The devices that it lies on."""
        return sorted(self._devices)

    def device_of(self, stream: Any) -> int:
        """The device of a stream; if it is not known, the first device that the memory lies on."""
        known = int(getattr(stream, 'device_id', -1))
        return known if known >= 0 else min(self._devices)

    def _pools(self) -> list[Any]:
        return [self.pool, self._fresh, *(pool for pool, _lanes in self._loops)]

    def hold(self) -> Lease:
        """Lease this memory to a capture or a graph: it is given back when the last lease is released."""
        self.holders += 1
        return Lease(self._release)

    def _release(self) -> None:
        """Give everything back after the last lease; no graph must be launched any more.

        Free blocks are freed by name: CuPy's pools can outlive their last reference until garbage is collected. That
        waits for the device (``cudaFree``); pinned memory, which CuPy's pool hands out again at once, goes after it.
        """
        self.holders -= 1
        if self.holders > 0:
            return
        with self._asking:  # another thread may be asking whether it owns an array
            self._gone = True
        self._held.clear()
        for things in self._put_in:
            things.clear()
        self.blocks.close()
        for _pool, lanes in self._loops:
            lanes.close()
        while self._around:  # a capture that failed in a loop
            self.leave_loop()
        if self.private and self.pool is not None:
            for device in self._devices:
                with self._on(device):
                    for pool in self._pools():
                        pool.free_all_blocks()
        self._loops.clear()
        self.workspaces.clear()
        self._identity.clear()
        self._pinned.clear()
        self._capture = self.pool = self._fresh = None
        if self.share is not None:
            self.share.lease.release()

    # -- temporaries, where memory is used again late ----------------------------------------------------------

    @property
    def packs(self) -> bool:
        """Whether temporaries lie in memory of its own until they are packed into that of the group."""
        return self.share is not None and self.share.packs

    @property
    def workspaces_stay(self) -> bool:
        """Whether workspaces are the group's, so that none of them is packed."""
        return self.share is not None and not self.share.packs

    def place(self) -> tuple[int, ...] | None:
        """The nodes before the next one, of a capture of one lane with memory that is used again late; else None."""
        capture = self._capture
        if self.late is None or capture is None or len(capture.lanes) > 1:
            return None
        return self.ends(capture.origin.stream) if capture.status is CaptureStatus.ACTIVE else None

    def temporaries(self) -> list[PoolBlock]:
        """Blocks that no array lies in any more, and workspaces, as far as this graph alone has them."""
        stay = self.share is not None and self.share.scratch is not None and not self.packs
        if self.late is None or not self.private or stay or self._loops or self.holders != 1:
            return []
        own, size = [] if self.workspaces_stay else self.workspaces.every(), self.workspaces.nbytes
        return self.blocks.free() + [PoolBlock(pointer, size, True) for pointer in own]

    def take(self, size: int) -> Any:
        """Take memory that is nobody's yet: :meth:`keep` or :meth:`give_back` decides on it."""
        return self._scratch_chunk(-(-size // UNIT) * UNIT) if self.packs else self._fresh.malloc(size)

    def give_back(self, low: int, size: int) -> None:
        """Give such memory back to the device or to the group, when nothing refers to it any more."""
        if self.packs:
            assert self.share is not None and self.share.scratch is not None
            high = low + -(-size // UNIT) * UNIT
            self.share.scratch.give_back(low, high)
            self._chunks.remove((low, high))
        else:
            self._give({(low, low + size)})

    def give_up(self, blocks: Sequence[PoolBlock]) -> None:
        """Give such blocks back to the device, for good. No node may use them; launches that do must have ended."""
        gone = {(int(one.pointer.ptr), int(one.pointer.ptr) + one.size) for one in blocks}
        starts = {low for low, _high in gone}
        self._held = [one for one in self._held if not (hasattr(one, 'mem') and int(one.ptr) in starts)]
        self.workspaces.forget(starts)
        self.blocks.give_up(blocks)
        self._asked.forget(starts)
        self._give(gone)

    def _give(self, gone: set[tuple[int, int]]) -> None:
        self._chunks = [one for one in self._chunks if one not in gone]
        for device in self._devices:
            with self._on(device):
                self._fresh.free_all_blocks()
