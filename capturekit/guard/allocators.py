"""Where memory comes from while a capture is open: each thread's CuPy allocator follows its current stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from capturekit.guard.open_capture import Live
from capturekit.guard.verdicts import Judging
from capturekit.launch.caller import Caller
from capturekit.launch.graph_memory import GraphMemory
from capturekit.model import errors
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import RULES, VARIANTS, Operation
from capturekit.model.source_line import called, here

_O = Operation
#: Functions that allocate and launch nothing: an allocation from them is no work.
ALLOCATE_ONLY = frozenset({'empty', 'empty_like'})


class Allocators(Judging):
    """Where memory comes from while a capture is open: each thread's CuPy allocator follows its current stream."""

    def refresh(self) -> None:
        """Point this thread's allocator at where its current stream's work must allocate.

        Inside a ``using_allocator`` of the user's it stays theirs.
        """
        me = threading.get_ident()
        if me in self.foreign:
            return
        memory = self.platform.cupy.cuda.memory
        stream = self.platform.cupy.cuda.get_current_stream()
        lane = self.topology.lane(stream.ptr)
        mine = self.mine()
        wanted: Any = None
        if lane is not None and lane.capture in self.lives:
            live = self.live_of(lane)
            if live.memory is not None:
                wanted = live.memory.allocator(lane)
                if live.caller is not None:
                    wanted = self._homed(live.caller, lane.stream, wanted)
                wanted = self._followed(live, lane.device, wanted) if live.outer else _Ours(wanted)
                if live.thread != me:
                    wanted = self._visiting(live, wanted)
        elif mine is not None and mine.memory is not None and mine.strict and stream.ptr not in LEGACY_HANDLES:
            live = mine
            wanted = _Ours(lambda size: self._trapped_malloc(live, size))
        set_allocator = self.installation.originals['cupy.cuda.memory._set_thread_local_allocator']
        if wanted is not None:
            if me not in self.allocators:
                self.allocators[me] = memory._get_thread_local_allocator()
            set_allocator(wanted)
        elif me in self.allocators:
            set_allocator(self.allocators.pop(me))

    @staticmethod
    def _homed(caller: Caller, stream: int, allocator: Callable[[int], Any]) -> Callable[[int], Any]:
        """Keep in mind on which stream memory was allocated: results are allocated there at each launch."""

        def malloc(size: int) -> Any:
            pointer = allocator(size)
            caller.homes[int(pointer.mem.ptr)] = stream
            return pointer

        return malloc

    def _followed(self, live: Live, device: int, allocator: Callable[[int], Any]) -> _Ours:
        """The allocator for a lane where there are other devices: CuPy goes to them by itself, to copy from there."""
        current = self.platform.cupy.cuda.runtime.getDevice
        return _Ours(lambda size: allocator(size) if current() == device else self.elsewhere(live, size))

    def elsewhere(self, live: Live, size: int) -> Any:
        """An allocation on another device than the current lane's."""
        raise NotImplementedError

    def _visiting(self, live: Live, allocator: Callable[[int], Any]) -> _Ours:
        """The allocator for a thread that works on a lane of another thread's capture: outlives it harmlessly."""

        def malloc(size: int) -> Any:
            if live.capture in self.lives:
                return allocator(size)
            self.restore_allocator()
            return self.platform.cupy.cuda.alloc(size)

        return _Ours(malloc)

    def restore_allocator(self) -> None:
        """Put this thread's own allocator back."""
        me = threading.get_ident()
        self.foreign.discard(me)
        if me in self.allocators:
            self.installation.originals['cupy.cuda.memory._set_thread_local_allocator'](self.allocators.pop(me))

    def allocator_set(self, original: Callable[..., Any], allocator: Any) -> Any:
        """``using_allocator`` inside a capture: what it hands out is held for the graph."""
        mine = self.mine()
        if mine is None or mine.memory is None:
            return original(allocator)
        me = threading.get_ident()
        if mine.caller is not None and not isinstance(allocator, (_Ours, type(None))):
            if allocator == mine.memory.pool.malloc:
                return self.refresh()
            raise _own_memory('using_allocator()')
        if allocator is None or isinstance(allocator, _Ours) or allocator == mine.memory.pool.malloc:
            # the end of a `using_allocator`: what it brings back may be out of date by now
            self.foreign.discard(me)
            return self.refresh()
        self.foreign.add(me)
        memory = mine.memory

        def held(size: int) -> Any:
            pointer = allocator(size)
            memory.keep(pointer)
            return pointer

        mine.note('note', None, 'memory of another allocator is held as long as the graph', here())
        return original(held)

    def allocator_chosen(self, original: Callable[..., Any], *args: Any) -> Any:
        """``set_allocator``: a launch would not choose anew."""
        mine = self.mine()
        if mine is not None and mine.caller is not None:
            raise _own_memory('set_allocator()')
        return original(*args)

    def pool_malloc(self, call: str, original: Callable[..., Any], pool: Any, size: int) -> Any:
        """What a function takes from a pool of its own goes back there, and to others, while launches write it."""
        mine = self.mine()
        if mine is not None and mine.caller is not None and mine.memory is not None and not mine.memory.uses(pool):
            raise _own_memory(call)
        return original(pool, size)

    def _trapped_malloc(self, live: Live, size: int) -> Any:
        """An allocation while the current stream is outside of the capture: refused unless nothing will follow."""
        if called() in ALLOCATE_ONLY:
            with self.inside():
                return self._memory(live).grow(size)
        with self.lock:
            stream = self.platform.cupy.cuda.get_current_stream()
            verdict = self.judge(_O.WORK, stream=stream.ptr)
            device = self.standing_in.get(stream.ptr)
            if device is not None:
                # what stands in there is no stream of the user's, who has to be told of the device
                self.refuse(verdict, f'Work on device {device}', None, VARIANTS['work-on-another-device'])
            self.refuse(verdict, 'Work', stream.ptr, RULES['escaped-work'])

    @staticmethod
    def _memory(live: Live) -> GraphMemory:
        assert live.memory is not None
        return live.memory


def _own_memory(call: str) -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError(
        call,
        location=here(),
        rule='A launch works in memory of its graph: what the function takes from another allocator is handed out '
        'again to others in between.',
        remedy='Choose the allocator outside of the function.',
    )


class _Ours:
    """An allocator of the guard's own making, told from a user's by its type."""

    __slots__ = ('malloc',)

    def __init__(self, malloc: Callable[[int], Any]) -> None:
        self.malloc = malloc

    def __call__(self, size: int) -> Any:
        return self.malloc(size)
