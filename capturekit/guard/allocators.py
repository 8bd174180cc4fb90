"""Memory during a capture: each thread's allocator follows its current stream; values of the host are uploaded at once.

CuPy's compiled code uploads some values (``x.repeat([1, 2])``, ``x.take(list)``) without a Python call that could be
wrapped. But it first makes a new array by its shape, with memory from the guard's allocator. That returns pointers of a
subclass whose method for copies from the host Cython calls. All other memory has CuPy's own pointers, because CUB's
reductions accept only these."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy

from capturekit.guard.entry_points import Entry
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.graph_memory import GraphMemory
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import RULES, VARIANTS, Mode, Operation, Rule
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import Place, called, here, is_ours

#: ``cudaMemcpyKind``.
_HOST_TO_DEVICE, _DEVICE_TO_DEVICE = 1, 3


class Uploads:
    """Copies values of the host to the device at once, outside of the capture."""

    def __init__(self, state: State, lanes: Lanes) -> None:
        self.state, self.lanes, self._thread = state, lanes, _Thread()
        self._pointers: tuple[Any, Any] = (None, None)

    def upload(self, live: OpenCapture, values: Any) -> Any:
        """Copy a NumPy array to the device at once; the graph keeps the copy."""
        original = self.state.installation.originals['cupy._core.array']
        return self.upload_made_by(live, functools.partial(original, values))

    def upload_made_by(self, live: OpenCapture, make: Callable[[], Any]) -> Any:
        """Call a CuPy function that makes an array from values of the host, outside of the capture."""
        cupy = self.state.platform.cupy
        memory = live.graph_memory
        set_allocator = self.state.installation.originals['cupy.cuda.memory._set_thread_local_allocator']
        before = cupy.cuda.memory._get_thread_local_allocator()
        with self._beside(live) as upload:
            set_allocator(memory.grow)
            try:
                with current_for_now(cupy.cuda, upload):
                    array = make()
                upload.synchronize()
                cupy.cuda.alloc_pinned_memory(1)  # it drops the event after the copy, which CuPy would ask later
            finally:
                set_allocator(before)
        return array

    @contextmanager
    def _beside(self, live: OpenCapture) -> Iterator[Any]:
        """A stream of the current device outside of the capture, in a mode that allows what a capture forbids."""
        device = self.state.platform.device
        with self.state.inside:
            number = self.state.current_device()
            if number not in live.uploads:
                live.uploads[number] = self.state.platform.cupy.cuda.Stream(non_blocking=True)
            old = device.exchange_thread_mode(Mode.RELAXED)
            try:
                yield live.uploads[number]
            finally:
                device.exchange_thread_mode(old)

    def seen(self, allocator: Callable[[int], Any]) -> Callable[[int], Any]:
        """The same allocator; pointers of arrays made by their shape take copies from the host to :meth:`take_over`."""
        base = self.state.platform.cupy.cuda.MemoryPointer
        if self._pointers[0] is not base:
            self._pointers = base, _pointers_of(base, self)
        pointer_class, thread = self._pointers[1], self._thread

        def malloc(size: int) -> Any:
            if not thread.making:
                return allocator(size)
            pointer = pointer_class(allocator(size).mem, 0)
            thread.new = int(pointer.ptr), _instruction()
            return pointer

        return malloc

    def array_new(self, original: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Make an array by its shape: the next thing that happens to it may be a copy from the host."""
        thread = self._thread
        thread.making = True
        try:
            return original(cls, *args, **kwargs)
        finally:
            thread.making = False

    def take_over(self, pointer: Any, host: Any, size: int, stream: Any) -> bool:
        """Take over a copy that compiled code makes into a new array. False for any other copy."""
        new, live = self._thread.new, self.state.mine()
        self._thread.new = None
        if live is None or live.memory is None or self.state.inside.active() or stream is None or not size:
            return False
        lane = self.state.ledger.lane(stream.ptr)
        if new != (int(pointer.ptr), _instruction()) or lane is None or lane.capture is not live.capture:
            return False
        address = host if isinstance(host, int) else int(host.value)
        if self._holds_addresses(address, size):
            return False
        cuda = self.state.platform.cupy.cuda
        with self.state.lock:
            with self._beside(live) as upload:
                buffer = live.graph_memory.grow(size)
                cuda.runtime.memcpyAsync(buffer.ptr, address, size, _HOST_TO_DEVICE, upload.ptr)
                done = cuda.Event(disable_timing=True)
                done.record(upload)
                done.synchronize()
            with self.state.inside:
                cuda.runtime.memcpyAsync(pointer.ptr, buffer.ptr, size, _DEVICE_TO_DEVICE, stream.ptr)
            text = f'{counted(size, "byte")} of the host uploaded while recording, the same at every launch'
            live.note('constant', self.lanes.current_lane(live), text, here(), nbytes=size)
        self._thread.copied = _instruction(), int(stream.ptr), done
        return True

    def event_of_copy(self, stream: int) -> Any:
        """An event that has happened, for the one that compiled code records after its copy to know when it is done."""
        copied, self._thread.copied = self._thread.copied, None
        if copied is not None and copied[:2] == (_instruction(), stream):
            self._thread.given = copied[2]
            return copied[2]
        rehearsal = self.state.rehearsals.get(threading.get_ident())
        if rehearsal is not None:
            rehearsal.records_events = True
        return None

    def has_happened(self, event: Any) -> bool:
        """Whether this is the event that compiled code got after its copy, so that the driver need not be asked."""
        if event is not self._thread.given or event is None:
            return False
        self._thread.given = None
        return True

    def _holds_addresses(self, address: int, size: int) -> bool:
        """Whether the values are addresses of device memory, which the graph would use without keeping it."""
        words = numpy.frombuffer(ctypes.string_at(address, size - size % 8), numpy.uint64)
        low, high = _ADDRESSES
        found = words[(words > low) & (words < high)][:_LOOKED_AT]
        attributes_of = self.state.platform.cupy.cuda.runtime.pointerGetAttributes
        with self.state.inside:
            return any(attributes_of(int(word)).type == _ON_DEVICE for word in found)


#: ``cudaMemoryTypeDevice`` of ``cudaPointerAttributes``.
_ON_DEVICE = 2
#: Device memory has addresses in this range; a table of addresses begins with such values.
_ADDRESSES, _LOOKED_AT = (1 << 32, 1 << 48), 16


class _Thread(threading.local):
    """The last new array of a thread, and the event that compiled code records after a copy."""

    #: Whether an array is being made by its shape.
    making = False
    #: Its address, and the instruction of the user's code that was running.
    new: tuple[int, tuple[int, int]] | None = None
    #: The instruction whose copy has been made, the stream that it was meant for, and an event that has happened.
    copied: tuple[tuple[int, int], int, Any] | None = None
    #: That event, once compiled code has it.
    given: Any = None


def _pointers_of(base: Any, uploads: Uploads) -> Any:
    """The class of pointers whose copies from the host are noticed, also in compiled code."""

    class Pointer(base):  # type: ignore[misc]
        """A pointer to a graph's memory."""

        __slots__ = ()

        def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
            """Copy from the host. Values for a new array, from compiled code, become a constant of the graph."""
            if not uploads.take_over(self, mem, size, stream):
                super().copy_from_host_async(mem, size, stream)

    Pointer.__name__ = Pointer.__qualname__ = 'MemoryPointer'
    return Pointer


def _instruction() -> tuple[int, int]:
    """The frame, and the instruction in it, that called compiled code."""
    frame: Any = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


_SET_ALLOCATOR = 'cupy.cuda.memory._set_thread_local_allocator'
#: Functions that only allocate and launch no work.
ALLOCATE_ONLY = frozenset({'empty', 'empty_like'})
#: ``with ck.capture() as cap, stream:``
_ENTERED_BESIDE = replace(
    RULES['escaped-work'],
    remedy='The `with` statement enters it after the capture, in the place of the stream that the capture has made '
    'current. Give it to the capture, `with ck.capture(stream) as cap:`, or leave it out.',
)
#: If the legacy stream is current during a capture begun by hand, its work was meant for the capture.
NOT_CURRENT = replace(
    RULES['escaped-work'],
    says='`begin_capture()` does not make its stream current, so that CuPy still gives work to the legacy default '
    'stream: it would run at once and be missing from the graph',
    remedy='Make the captured stream current: `with stream:` around `begin_capture()`, the work and `end_capture()`.',
)
#: The same where the captured stream was current, and is not any more.
NOT_CURRENT_NOW = replace(
    NOT_CURRENT,
    says='The captured stream was current when its capture was begun, and is not any more though the capture is open, '
    'so that CuPy gives work to the legacy default stream: it would run at once and be missing from the graph',
    remedy='Call `end_capture()` before the block `with stream:` is left, also where an exception leaves it (`try`, '
    '`finally`).',
)
#: What to write where a stream became current unseen.
UNSEEN = (
    'It became current by a `with` block that was entered before the capture, or by a method that was bound before it. '
    'Leave that block before the capture begins or after it has ended; in the capture, write `with stream:`.'
)


class Allocators:
    """Sets each thread's CuPy allocator to the one for its current stream while a capture is open."""

    def __init__(self, state: State, verdicts: Verdicts, uploads: Uploads) -> None:
        self.state, self.verdicts, self.uploads = state, verdicts, uploads
        #: By thread: the allocator that it had before the guard's; and the threads with an allocator of the user.
        self.kept: dict[int, Any] = {}
        self.foreign: set[int] = set()
        #: Follows a stream that became current unseen, and says whether there was one: a component below has it.
        self.settle: Callable[[], bool] = lambda: False

    def refresh(self) -> None:
        """Set this thread's allocator to that for its current stream, unless the user has set one of their own."""
        me, state = threading.get_ident(), self.state
        if me in self.foreign or not state.policy.records:
            return
        ptr = state.current_stream().ptr
        live = state.open_on(ptr)
        if live is not None and live.memory is not None:
            return self.to_lane(live, state.ledger.lanes[ptr])
        mine = state.mine() if live is None and ptr not in LEGACY_HANDLES else None
        set_allocator = state.installation.originals[_SET_ALLOCATOR]
        if mine is not None and mine.strict and mine.memory is not None:
            if me not in self.kept:
                self.kept[me] = state.platform.cupy.cuda.memory._get_thread_local_allocator()
            set_allocator(Ours(functools.partial(self._malloc_outside, mine)))
        elif me in self.kept:
            set_allocator(self.kept.pop(me))

    def to_lane(self, live: OpenCapture, lane: Lane) -> None:
        """The same where the current stream is this lane. The allocator is made once as long as it would be equal."""
        me, memory = threading.get_ident(), live.memory
        if me in self.foreign or memory is None:
            return
        if me not in self.kept:
            self.kept[me] = self.state.platform.cupy.cuda.memory._get_thread_local_allocator()
        memory.ordered += 1
        given = lane, memory.blocks, live.caller, bool(live.devices.before), me
        known = live.allocators.get(lane.stream)
        if known is None or known[0] != given:
            known = live.allocators[lane.stream] = given, self._made(live, lane, memory, me)
        self.state.installation.originals[_SET_ALLOCATOR](known[1])

    def _made(self, live: OpenCapture, lane: Lane, memory: GraphMemory, me: int) -> Ours:
        """The allocator for a thread's work on a lane."""
        malloc_of = self.state.installation.originals['cupy.cuda.memory.MemoryPool.malloc'].__get__
        caller, cuda = live.caller, self.state.platform.cupy.cuda
        allocate = self.uploads.seen(memory.allocator(lane, malloc_of if memory.private else None))
        mine, several, device = live.thread == me, bool(live.devices.before), cuda.runtime.getDevice

        def malloc(size: int) -> Any:
            if not mine and live.capture not in self.state.lives:  # another thread's may outlive the capture
                self.restore()
                return cuda.alloc(size)
            if several and device() != lane.device:  # CuPy may switch to another device by itself
                return self._escapes(self.other_device(device()), size)
            if mine and caller is None and live.unsettled and self.settle():
                return (cuda.memory._get_thread_local_allocator() or cuda.alloc)(size)
            pointer = allocate(size)
            if caller is not None:  # each launch allocates the results on the streams of the recording
                caller.homes[int(pointer.mem.ptr)] = lane.stream
            if live.decisions.open:
                live.decisions.open[-1].made[int(pointer.mem.ptr)] = here()
            return pointer

        return Ours(malloc)

    def other_device(self, device: int) -> CaptureError:
        """The error for work that CuPy would do on another device: nothing orders it with the current lane."""
        with self.state.lock:
            stream = self.state.current_stream()
            verdict = self.verdicts.judge(Operation.WORK, stream=stream.ptr)
            rule = VARIANTS['work-of-cupy-on-another-device']
            return self.verdicts.refusal(verdict, f'Work that CuPy does on device {device} by itself', None, rule)

    def _escapes(self, error: CaptureError, size: int) -> Any:
        """Memory for work that escapes the capture: where it is let through, from where it comes without capturekit."""
        self.state.policy.met(error)
        kept = self.kept.get(threading.get_ident())
        if kept is not None:
            return kept(size)
        self.restore()
        try:
            return self.state.platform.cupy.cuda.alloc(size)
        finally:
            self.refresh()

    def restore(self) -> None:
        """Put this thread's own allocator back."""
        me = threading.get_ident()
        self.foreign.discard(me)
        if me in self.kept:
            self.state.installation.originals[_SET_ALLOCATOR](self.kept.pop(me))

    def allocator_set(self, original: Callable[..., Any], allocator: Any) -> Any:
        """Hold what a user's allocator hands out inside a capture (``using_allocator``), because the graph uses it."""
        mine = self.state.mine()
        if mine is None or mine.memory is None or not self.state.policy.records:
            return original(allocator)
        me = threading.get_ident()
        if allocator is None or isinstance(allocator, Ours) or allocator == mine.memory.pool.malloc:
            # at the end of a `using_allocator` block, the allocator that it restores may be out of date
            self.foreign.discard(me)
            return self.refresh()
        if mine.caller is not None:
            raise _own_memory('using_allocator()')
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
        if self.state.caller() is not None:
            raise _own_memory('set_allocator()')
        return original(*args)

    def pool_malloc(self, entry: Entry, original: Callable[..., Any], pool: Any, size: int) -> Any:
        """Refuse a pool that a graphed function uses itself: it would give away memory that launches still write."""
        mine = self.state.recording()
        if mine is not None and mine.caller is not None and not mine.graph_memory.uses(pool):
            raise _own_memory(entry.call)
        return original(pool, size)

    def pool_free(self, entry: Entry, original: Callable[..., Any], pool: Any, *args: Any, **kwargs: Any) -> Any:
        """Free a pool's blocks; refused for the capture's own pool, because recorded work still uses them."""
        with self.state.lock:
            self.verdicts.start()
            if any(live.memory is not None and live.memory.pool is pool for live in self.state.lives.values()):
                raise self.verdicts.error(
                    entry.call,
                    rule='This pool holds the memory of an open capture: recorded work still uses its free blocks.',
                    remedy='Free it after the graph is closed.',
                )
        return self.verdicts.unsafe(entry, original, pool, *args, **kwargs)

    def rule_for(self, live: OpenCapture, ptr: int, since: Place | None = None) -> tuple[Rule, int | None]:
        """The rule for work on a stream outside of the capture, which became current at this line, and who is named: in
        the place of a placeholder, which the user does not know, the legacy stream, or, by the rule, another device."""
        device = self.state.placeholders.get(ptr)
        if device not in (None, live.origin_device):
            return VARIANTS['work-on-another-device'], None
        rule = RULES['escaped-work' if device is None else 'legacy-stream']
        if device is not None and live.memory is None:
            rule = NOT_CURRENT_NOW if live.begun_current else NOT_CURRENT
        elif ptr in live.outside.unseen:
            rule = replace(rule, remedy=UNSEEN)
        elif device is None and live.memory is not None and since is not None and since == live.at:
            rule = _ENTERED_BESIDE
        return rule, ptr if device is None else LEGACY_HANDLES[0]

    def _malloc_outside(self, live: OpenCapture, size: int) -> Any:
        """Allocate while the current stream is outside of the capture; refused, unless the caller only allocates."""
        if called() in ALLOCATE_ONLY:
            with self.state.inside:
                return live.graph_memory.grow(size)
        with self.state.lock:
            ptr = self.state.current_stream().ptr
            verdict = self.verdicts.judge(Operation.WORK, stream=ptr)
            _stream, at = live.outside.held.get(ptr, (None, None))
            rule, named = self.rule_for(live, ptr, at)
            where = '' if named is not None else f' on device {self.state.placeholders[ptr]}'
            error = self.verdicts.refusal(verdict, f'Work{where}', named, rule)
        return self._escapes(error, size)


def memory_hook(cupy: Any, name: str, **called: Callable[..., object]) -> Any:
    """A CuPy memory hook, for one thread: by CuPy's name of an event, what is called with the facts about it."""
    members = {event: lambda _hook, call=call, **facts: call(**facts) for event, call in called.items()}
    return type('Hook', (cupy.cuda.MemoryHook,), {'name': name, **members})()


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
