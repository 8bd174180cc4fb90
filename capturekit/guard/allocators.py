"""The allocators during a capture: each thread's CuPy allocator follows its current stream."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.uploads import CompiledUploads
from capturekit.guard.verdicts import Verdicts
from capturekit.launch.caller import Caller
from capturekit.model import errors
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import RULES, VARIANTS, Operation, Rule
from capturekit.model.source_line import Place, called, here

_O = Operation
_SET_ALLOCATOR = 'cupy.cuda.memory._set_thread_local_allocator'
#: Functions that only allocate and launch no work.
ALLOCATE_ONLY = frozenset({'empty', 'empty_like'})
#: ``with ck.capture() as cap, stream:``
_ENTERED_BESIDE = replace(
    RULES['escaped-work'],
    remedy='The `with` statement enters it after the capture, in the place of the stream that the capture has made '
    'current. Give it to the capture, `with ck.capture(stream) as cap:`, or leave it out.',
)
#: What to write where a stream became current unseen.
UNSEEN = (
    'It became current by a `with` block that was entered before the capture, or by a method that was bound before it. '
    'Leave that block before the capture begins or after it has ended; in the capture, write `with stream:`.'
)


class Allocators:
    """Sets each thread's CuPy allocator to the one for its current stream while a capture is open."""

    def __init__(self, state: State, verdicts: Verdicts, compiled: CompiledUploads) -> None:
        self.state = state
        self.verdicts = verdicts
        self.compiled = compiled
        #: By thread: the allocator that it had before the guard's; and the threads with an allocator of the user.
        self.kept: dict[int, Any] = {}
        self.foreign: set[int] = set()
        #: Follows a stream that became current unseen, and says whether there was one: a component below has it.
        self.settle: Callable[[], bool] = lambda: False

    def refresh(self, lane: Lane | None = None) -> None:
        """Set this thread's allocator to the one for work on its current stream.

        Inside a ``using_allocator`` block of the user, the user's allocator stays. ``lane``: what the current stream
        is, if the caller knows it.
        """
        me = threading.get_ident()
        if me in self.foreign:
            return
        state, wanted = self.state, None
        ptr = state.current_stream().ptr if lane is None else lane.stream
        lane = lane or state.ledger.lanes.get(ptr)
        live = None if lane is None else state.lives.get(lane.capture)
        if live is not None and live.memory is not None:
            return self.to_lane(live, lane)  # type: ignore[arg-type]
        if (
            live is None
            and ptr not in LEGACY_HANDLES
            and (mine := state.mine())
            and mine.strict
            and mine.memory is not None
        ):
            wanted = Ours(functools.partial(self._malloc_outside, mine))
        set_allocator = state.installation.originals[_SET_ALLOCATOR]
        if wanted is not None:
            if me not in self.kept:
                self.kept[me] = state.platform.cupy.cuda.memory._get_thread_local_allocator()
            set_allocator(wanted)
        elif me in self.kept:
            set_allocator(self.kept.pop(me))

    def to_lane(self, live: OpenCapture, lane: Lane) -> None:
        """:meth:`refresh` where the current stream is known to be this lane of an open capture with memory.

        The allocator is made once as long as it would be the same.
        """
        me, memory = threading.get_ident(), live.memory
        if me in self.foreign or memory is None:
            return
        if me not in self.kept:
            self.kept[me] = self.state.platform.cupy.cuda.memory._get_thread_local_allocator()
        memory.ordered += 1
        given = lane, memory.blocks, live.caller, bool(live.devices.before), me
        known = live.allocators.get(lane.stream)
        if known is None or known[0] != given:
            known = live.allocators[lane.stream] = given, self._made(live, lane, me)
        self.state.installation.originals[_SET_ALLOCATOR](known[1])

    def _made(self, live: OpenCapture, lane: Lane, me: int) -> Ours:
        malloc_of = self.state.installation.originals['cupy.cuda.memory.MemoryPool.malloc'].__get__
        memory = live.graph_memory
        wanted = self.compiled.seen(memory.allocator(lane, malloc_of if memory.private else None))
        if live.thread == me and live.caller is None:
            wanted = self._while_current(live, wanted)
        if live.caller is not None:
            wanted = self._noting_stream(live.caller, lane.stream, wanted)
        if live.decisions.open:
            wanted = _noting_line(live.decisions.open[-1].made, wanted)
        ours = self._followed(live, lane.device, wanted) if live.devices.before else Ours(wanted)
        return ours if live.thread == me else self._for_another_thread(live, ours)

    def _while_current(self, live: OpenCapture, allocator: Callable[[int], Any]) -> Callable[[int], Any]:
        """Return the allocator for a lane if another stream may become current unseen."""
        cuda = self.state.platform.cupy.cuda

        def malloc(size: int) -> Any:
            if live.unsettled and self.settle():
                return (cuda.memory._get_thread_local_allocator() or cuda.alloc)(size)
            return allocator(size)

        return malloc

    @staticmethod
    def _noting_stream(caller: Caller, stream: int, allocator: Callable[[int], Any]) -> Callable[[int], Any]:
        """Remember the stream on which memory was allocated, because each launch allocates the results there."""

        def malloc(size: int) -> Any:
            pointer = allocator(size)
            caller.homes[int(pointer.mem.ptr)] = stream
            return pointer

        return malloc

    def _followed(self, live: OpenCapture, device: int, allocator: Callable[[int], Any]) -> Ours:
        """Return the allocator for a lane if there are other devices, to which CuPy may switch by itself."""
        current = self.state.platform.cupy.cuda.runtime.getDevice
        return Ours(lambda size: allocator(size) if current() == device else self.refuse_other_device(current()))

    def refuse_other_device(self, device: int) -> NoReturn:
        """Refuse work that CuPy would do on another device, because nothing orders it with the current lane."""
        with self.state.lock:
            stream = self.state.platform.cupy.cuda.get_current_stream()
            verdict = self.verdicts.judge(Operation.WORK, stream=stream.ptr)
            rule = VARIANTS['work-of-cupy-on-another-device']
            self.verdicts.refuse(verdict, f'Work that CuPy does on device {device} by itself', None, rule)

    def _for_another_thread(self, live: OpenCapture, allocator: Callable[[int], Any]) -> Ours:
        """Return the allocator for a thread that works on a lane of another thread's capture.

        It may outlive the capture.
        """

        def malloc(size: int) -> Any:
            if live.capture in self.state.lives:
                return allocator(size)
            self.restore()
            return self.state.platform.cupy.cuda.alloc(size)

        return Ours(malloc)

    def restore(self) -> None:
        """Put this thread's own allocator back."""
        me = threading.get_ident()
        self.foreign.discard(me)
        if me in self.kept:
            self.state.installation.originals[_SET_ALLOCATOR](self.kept.pop(me))

    def allocator_set(self, original: Callable[..., Any], allocator: Any) -> Any:
        """Hold what a user's allocator hands out inside a capture (``using_allocator``), because the graph uses it."""
        mine = self.state.mine()
        if mine is None or mine.memory is None:
            return original(allocator)
        me = threading.get_ident()
        if mine.caller is not None and not isinstance(allocator, (Ours, type(None))):
            if allocator == mine.memory.pool.malloc:
                return self.refresh()
            raise _own_memory('using_allocator()')
        if allocator is None or isinstance(allocator, Ours) or allocator == mine.memory.pool.malloc:
            # at the end of a `using_allocator` block, the allocator that it restores may be out of date
            self.foreign.discard(me)
            return self.refresh()
        self.foreign.add(me)
        memory = mine.memory

        def held(size: int) -> Any:
            pointer = allocator(size)
            memory.keep(pointer)
            if mine.decisions.open:
                mine.decisions.open[-1].made[int(pointer.mem.ptr)] = here()
            return pointer

        mine.note('note', None, 'memory of another allocator is held as long as the graph', here())
        return original(held)

    def allocator_chosen(self, original: Callable[..., Any], *args: Any) -> Any:
        """Refuse ``set_allocator`` in a graphed function, because a launch would not choose the allocator again."""
        mine = self.state.mine()
        if mine is not None and mine.caller is not None:
            raise _own_memory('set_allocator()')
        return original(*args)

    def pool_malloc(self, call: str, original: Callable[..., Any], pool: Any, size: int) -> Any:
        """Refuse a pool that a graphed function uses itself: it would give away memory that launches still write."""
        mine = self.state.mine()
        if mine is not None and mine.caller is not None and mine.memory is not None and not mine.memory.uses(pool):
            raise _own_memory(call)
        return original(pool, size)

    def pool_free(self, call: str, original: Callable[..., Any], pool: Any, *args: Any, **kwargs: Any) -> Any:
        """Free a pool's blocks.

        This is refused for the capture's own pool, because recorded work still uses its blocks.
        """
        with self.state.lock:
            self.verdicts.start()
            if any(live.memory is not None and live.memory.pool is pool for live in self.state.lives.values()):
                raise errors.UnsupportedCallError(
                    call,
                    location=here(),
                    rule='This pool holds the memory of an open capture: recorded work still uses its free blocks.',
                    remedy='Free it after the graph is closed.',
                )
            verdict = self.verdicts.judge(_O.UNSAFE)
        return self.verdicts.carry_out(verdict, call, None, lambda: original(pool, *args, **kwargs))

    def _malloc_outside(self, live: OpenCapture, size: int) -> Any:
        """Allocate while the current stream is outside of the capture; refused, unless the caller only allocates."""
        if called() in ALLOCATE_ONLY:
            with self.state.inside:
                return live.graph_memory.grow(size)
        with self.state.lock:
            stream = self.state.platform.cupy.cuda.get_current_stream()
            verdict = self.verdicts.judge(_O.WORK, stream=stream.ptr)
            device = self.state.placeholders.get(stream.ptr)
            # the user does not know the placeholder, so the message names the device, or the legacy stream
            if device not in (None, live.origin_device):
                self.verdicts.refuse(verdict, f'Work on device {device}', None, VARIANTS['work-on-another-device'])
            _stream, at = live.outside.held.get(stream.ptr, (None, None))
            named = stream.ptr if device is None else LEGACY_HANDLES[0]
            self.verdicts.refuse(verdict, 'Work', named, escape_rule(live, at, stream.ptr, device is not None))


def _noting_line(made: dict[int, Place | None], allocator: Callable[[int], Any]) -> Callable[[int], Any]:
    """Note which lines allocate memory in the body of a decision."""

    def malloc(size: int) -> Any:
        pointer = allocator(size)
        made[int(pointer.mem.ptr)] = here()
        return pointer

    return malloc


def escape_rule(live: OpenCapture, at: Place | None, ptr: int, legacy: bool) -> Rule:
    """The rule for work on a stream that is not in the capture, and that became current at this line.

    ``legacy``: it is a placeholder of the legacy stream on the device of the capture.
    """
    beside = live.memory is not None and at is not None and at == live.at
    rule = RULES['legacy-stream' if legacy else 'escaped-work']
    if ptr in live.outside.unseen:
        return replace(rule, remedy=UNSEEN)
    return _ENTERED_BESIDE if beside and not legacy else rule


def _own_memory(call: str) -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError(
        call,
        location=here(),
        rule="A launch works in its graph's memory, and what the function takes from another allocator goes to others "
        'between launches.',
        remedy='Choose the allocator outside of the function.',
    )


class Ours(functools.partial[Any]):
    """An allocator of the guard; its type distinguishes it from a user's."""

    __slots__ = ()
