"""Where memory comes from while a capture is open: each thread's CuPy allocator follows its current stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from capturekit.guard.judging import Judging
from capturekit.guard.live import Live
from capturekit.memory import GraphMemory
from capturekit.places import called, here
from capturekit.rules import RULES, Operation
from capturekit.topology import LEGACY_HANDLES

_O = Operation
#: Functions that allocate and launch nothing: an allocation from them is no work.
_ALLOCATE_ONLY = frozenset({'empty', 'empty_like'})
#: What stands in on a device is no stream of the user's, who has to be told of the device.
ELSEWHERE = replace(
    RULES['escaped-work'],
    says='No stream of this device is in the capture: work sent there would run at once and be missing from the graph',
    remedy='Give the device a lane: `with cap.fork(devices=[0, 1]) as lanes:` and `with lanes[1]:`; or fork a stream '
    'of it, `side.wait_event(cap.stream.record())`, and make it current there.',
)


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

    def _trapped_malloc(self, live: Live, size: int) -> Any:
        """An allocation while the current stream is outside of the capture: refused unless nothing will follow."""
        if called() in _ALLOCATE_ONLY:
            with self.inside():
                return self._memory(live).grow(size)
        with self.lock:
            stream = self.platform.cupy.cuda.get_current_stream()
            verdict = self.judge(_O.WORK, stream=stream.ptr)
            device = self.standing_in.get(stream.ptr)
            if device is not None:
                self.refuse(verdict, f'Work on device {device}', None, ELSEWHERE)
            self.refuse(verdict, 'Work', stream.ptr, RULES['escaped-work'])

    @staticmethod
    def _memory(live: Live) -> GraphMemory:
        assert live.memory is not None
        return live.memory


class _Ours:
    """An allocator of the guard's own making, told from a user's by its type."""

    __slots__ = ('malloc',)

    def __init__(self, malloc: Callable[[int], Any]) -> None:
        self.malloc = malloc

    def __call__(self, size: int) -> Any:
        return self.malloc(size)
