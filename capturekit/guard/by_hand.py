"""Captures begun *by hand*, by the script's own ``begin_capture``: which stream is current, and what CuPy allocates.

``stream.begin_capture()`` makes nothing current. ``y = x + 1`` on the next line, without ``with stream:`` around it,
goes to the stream that was current before: it runs at once and is missing from the graph. If the captured stream is a
blocking one, work on the legacy stream loses the capture. So the current stream is *kept out*: it is held, like other
streams from outside, or replaced by a placeholder if it is the legacy one. Calls that name the placeholder mean the
legacy stream.

If the mode of a capture forbids allocations, the capture is lost when CuPy's pool asks the device for more memory. The
pool calls its hooks before it asks, so that such an allocation can be refused.

A task of asyncio that waits (``await``) while its capture is open lets other tasks run in the same thread. What these
give to the stream is recorded, too. A callback that the loop runs before the task goes on notes the line.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any, NoReturn

from capturekit.guard.allocators import ALLOCATE_ONLY
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.placeholders import Placeholders
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import RULES, Mode, Operation
from capturekit.model.source_line import Place, called, here, is_foreign_frame

_ALLOCATED = 'Begin the capture with `stream.begin_capture()`, which is relaxed, or make the arrays before it.'
_SUSPENDED = (
    'the capture was open while its task waited here: what other tasks gave to its stream meanwhile is in the graph'
)


class ByHand:
    """Watches the current stream and CuPy's allocations during captures that a script begins by hand."""

    def __init__(self, state: State, verdicts: Verdicts, outside: OutsideStreams, placeholders: Placeholders) -> None:
        self.state = state
        self.verdicts = verdicts
        self.outside = outside
        self.placeholders = placeholders

    def keep_out(self, live: OpenCapture) -> None:
        """Keep out this thread's current stream, after a capture was begun by hand on another stream."""
        live.pool_hook = pool_hook(self, self.state.platform.cupy, live)
        live.pool_hook.__enter__()
        stream = self.state.platform.cupy.cuda.get_current_stream()
        if int(stream.ptr) in LEGACY_HANDLES:  # its handle has another name in a linted run
            self.placeholders.put(live, live.capture.origin)
        elif self.state.ledger.lane(stream.ptr) is None and stream.ptr not in self.state.placeholders:
            self.outside.hold(live, stream)
        self._hear_of_waiting(live)

    def _hear_of_waiting(self, live: OpenCapture) -> None:
        """Note it if the task that begins a capture waits while the capture is open."""
        asyncio: Any = sys.modules.get('asyncio')
        loop: Any = None if asyncio is None else asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task()
        if task is None:
            return

        def waits() -> None:
            if live.capture in self.state.lives:
                live.note('note', None, _SUSPENDED, _where_it_waits(task))

        loop.call_soon(waits)

    def kept_out(self, live: OpenCapture) -> CaptureError | None:
        """At the end of a capture begun by hand, return the error for work on the streams that it has kept out.

        A refusal that was swallowed comes first.
        """
        found = live.swallowed or live.outside.escaped
        live.swallowed = live.outside.escaped = None
        for ptr in list(live.outside.held):
            error = self.outside.release(ptr, silent=True)
            found = found or error
        if found is not None:
            self.outside.hold_again()
        return found

    def let_go(self, live: OpenCapture) -> None:
        """Release the streams that a capture begun by hand has kept out, just before it ends."""
        if live.memory is not None:
            return
        mine = live.thread == threading.get_ident()
        if live.pool_hook is not None and mine:
            hook, live.pool_hook = live.pool_hook, None
            hook.__exit__(None, None, None)
        for ptr in list(live.outside.held):
            self.outside.release(ptr, silent=True)
        use = 'cupy.cuda.stream._BaseStream.use'
        for device, (stream, legacy) in live.devices.placeholders.items():
            self.state.placeholders.pop(stream.ptr, None)
            if mine and self.state.platform.cupy.cuda.get_current_stream(device).ptr == stream.ptr:
                with self.state.on(device):
                    self.state.own(use, legacy)
            self.placeholders.give_back(device, stream)

    def keep_out_again(self, live: OpenCapture) -> None:
        """Keep the legacy stream out for an outer capture of this thread, after one begun by hand has ended."""
        if live.memory is not None:
            return
        mine, had_placeholder = self.state.mine(), bool(live.devices.placeholders)
        live.devices.placeholders.clear()
        if mine is None or mine.memory is not None or not had_placeholder:
            return
        if self.state.platform.cupy.cuda.get_current_stream().ptr in LEGACY_HANDLES:
            self.placeholders.put(mine, mine.capture.origin)

    def pool_asked(self, live: OpenCapture) -> None:
        """Note an allocation from the pool. Work will follow, unless the caller only makes an empty array."""
        stream = self.state.platform.cupy.cuda.get_current_stream()
        if self.state.inside.active() or stream.ptr not in live.outside.held or called() in ALLOCATE_ONLY:
            return
        with self.state.lock:
            verdict = self.verdicts.judge(Operation.WORK, stream=stream.ptr)
            rule, of = self.outside.rule_for(live, stream.ptr)
            self._refused_to_pool(self.verdicts.refusal(verdict, 'Work', of, rule))

    def pool_grows(self, live: OpenCapture) -> None:
        """Judge the pool's request for device memory, before it is made."""
        if self.state.inside.active() or live.capture.mode is Mode.RELAXED or live.capture not in self.state.lives:
            return
        with self.state.lock:
            verdict = self.verdicts.judge(Operation.UNSAFE)
            if verdict.answer.refused:
                rule = replace(RULES['unsafe-in-mode'], remedy=_ALLOCATED)
                self._refused_to_pool(self.verdicts.refusal(verdict, "An allocation of CuPy's memory pool", None, rule))

    def pool_gave(self, live: OpenCapture, key: tuple[int, int]) -> None:
        """Hear that the pool has given memory, which is the capture's where the current stream is a lane of it."""
        lane = self.state.ledger.lane(self.state.platform.cupy.cuda.get_current_stream().ptr)
        if lane is not None and lane.capture is live.capture and not self.state.inside.active():
            live.pooled.add(key)

    def _refused_to_pool(self, error: CaptureError) -> NoReturn:
        self.verdicts.has_refused(error)
        refused(error)
        raise error


def _where_it_waits(task: Any) -> Place | None:
    """The innermost line of the user's at which a task waits."""
    found, coroutine = None, task.get_coro()
    while coroutine is not None:
        frame = getattr(coroutine, 'cr_frame', None)
        if frame is not None and not is_foreign_frame(frame):
            found = here(frame)
        coroutine = getattr(coroutine, 'cr_await', None)
    return found


def pool_hook(by_hand: ByHand, cupy: Any, live: OpenCapture) -> Any:
    """Return a CuPy memory hook that notes the allocations of this thread."""

    def malloc_preprocess(_hook: Any, **_facts: Any) -> None:
        by_hand.pool_asked(live)

    def alloc_preprocess(_hook: Any, **_facts: Any) -> None:
        by_hand.pool_grows(live)

    def malloc_postprocess(_hook: Any, mem_ptr: int, pmem_id: int, **_facts: Any) -> None:
        by_hand.pool_gave(live, (mem_ptr, pmem_id))

    def free_postprocess(_hook: Any, mem_ptr: int, pmem_id: int, **_facts: Any) -> None:
        live.pooled.discard((mem_ptr, pmem_id))

    members = {
        'name': f'capturekit.by_hand {id(live)}',
        'malloc_preprocess': malloc_preprocess,
        'alloc_preprocess': alloc_preprocess,
        'malloc_postprocess': malloc_postprocess,
        'free_postprocess': free_postprocess,
    }
    return type('Hook', (cupy.cuda.MemoryHook,), members)()
