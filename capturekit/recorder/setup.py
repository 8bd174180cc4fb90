"""Opening a capture: the stream is made current, the guard installed, the driver's capture begun.

Each step pushes the function that undoes it on one stack, which :mod:`capturekit.recorder.teardown` unwinds.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

from capturekit.driver.cuda import Platform, current
from capturekit.guard import GUARD, OpenCapture, new_recording
from capturekit.guard.captures import driver_mode
from capturekit.guard.line_trace import TRACING, Trace
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.deferred_unload import UNLOADING
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.outside_arrays import held_by
from capturekit.launch.outside_memory import OutsideMemory
from capturekit.model import errors
from capturekit.model.cleanup import GARBAGE
from capturekit.model.errors import GeneratorError
from capturekit.model.host_reads import Answers
from capturekit.model.rules import CaptureStatus, Code, Mode, Operation
from capturekit.model.source_line import Place, here
from capturekit.recorder.embed import check
from capturekit.recorder.teardown import WayOut, start

# -- a block that opens a capture must not be suspended: other code that runs then would be recorded as part of it ----
#
# ``yield`` and ``await`` suspend. From Python 3.12 on the interpreter reports this (``sys.monitoring``, ``PY_YIELD``),
# and the error is raised at the ``yield`` itself; before, it can't be noticed in time, and a capture in a generator or
# coroutine is refused when it is opened. Generators that contextlib drives are allowed: while they are suspended, the
# body of the user's ``with`` block runs, as intended for a context manager around ``ck.capture``.


_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RULE = 'What runs while a block is suspended would be recorded as if it belonged to it.'
_REMEDY = 'Leave the `with ck.capture()` block before `yield` or `await`; contextlib.contextmanager may wrap it.'
#: Where nobody can say whether the block is suspended.
_UNSEEN = (
    'It may be suspended in the block, and what runs then would be recorded, too: this Python does not report that '
    '(Python 3.12 and later do, if a tool number of sys.monitoring is free).'
)
_CALLED = 'Put the `with ck.capture()` block into a plain function, and call that here.'
_NAME = 'capturekit'

_lock = threading.Lock()
_watched: list[FrameType] = []
_tool: int | None = None


def forbid_suspension(frame: FrameType) -> Callable[[], None]:
    """Make suspending ``frame`` an error until the returned function is called.

    Raises:
        GeneratorError: the frame can suspend, and this Python can't report when it does.
    """
    while frame.f_back is not None and frame.f_code.co_filename.endswith('contextlib.py'):
        frame = frame.f_back  # for ExitStack.enter_context, the block belongs to the caller
    outer = frame.f_back
    driven = outer is not None and outer.f_code.co_filename.endswith('contextlib.py')
    if not frame.f_code.co_flags & _SUSPENDS or driven:
        return lambda: None
    if sys.version_info < (3, 12) or not _watch(frame):
        raise _error('A capture was opened in a generator or coroutine', here(frame), _UNSEEN, _CALLED)
    return lambda: _unwatch(frame)


def _error(what: str, at: Place | None, rule: str = _RULE, remedy: str = _REMEDY) -> GeneratorError:
    return GeneratorError(what, location=at, rule=rule, remedy=remedy)


def _watch(frame: FrameType) -> bool:
    """Ask the interpreter to report yields in the frame's code. False if no tool number is free."""
    global _tool
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    with _lock:
        if _tool is None:
            free = [n for n in (4, 3) if monitoring.get_tool(n) is None]
            if not free:
                return False
            _tool = free[0]
            monitoring.use_tool_id(_tool, _NAME)
            monitoring.register_callback(_tool, monitoring.events.PY_YIELD, _yielding)
        _watched.append(frame)
        monitoring.set_local_events(_tool, frame.f_code, monitoring.events.PY_YIELD)
        return True


def _unwatch(frame: FrameType) -> None:
    global _tool
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    with _lock:
        _watched.remove(frame)
        if _tool is None:
            return
        if not any(other.f_code is frame.f_code for other in _watched):
            monitoring.set_local_events(_tool, frame.f_code, 0)
        if not _watched:
            monitoring.register_callback(_tool, monitoring.events.PY_YIELD, None)
            monitoring.free_tool_id(_tool)
            _tool = None


def _yielding(code: CodeType, offset: int, value: object) -> None:
    frame = sys._getframe(1)
    if any(other is frame for other in _watched):
        raise _error('A generator suspended inside `with ck.capture()`', here(frame))


class WayIn(WayOut):
    """The steps of :class:`capturekit.Capture` when its block is entered."""

    def _open(self, frame: FrameType) -> None:
        undo = self._undo
        undo.push(forbid_suspension(frame))
        platform = current()
        origin = self._origin(platform)
        ptr = origin.ptr
        GARBAGE.hold()
        undo.push(GARBAGE.release)
        self._lease.add(UNLOADING.hold(platform))
        GUARD.install(platform)
        undo.push(GUARD.uninstall)
        watched = start(platform, undo) if self._watch else []
        undo.push(partial(GUARD.libraries.streams.give_back, platform.cupy))
        with GUARD.lock:
            GUARD.verdicts.give_way()
            device = platform.device
            blocking, priority = self._refuse_captured(device, ptr)
            old = device.exchange_thread_mode(Mode.RELAXED)
            undo.push(partial(device.exchange_thread_mode, old))
            on = partial(GUARD.on, platform=platform)
            options, group = self._options, self._options.memory
            share = None if group is None else group.join(platform, on, self._temporaries)
            memory = GraphMemory(platform.cupy, options.pool, device.next_after(), on, self._reuse_late, share)
            self._lease.add(memory.hold())
            if self._pieces:
                self._seams_on = platform.cupy.cuda.get_current_stream()
                self._outside = OutsideMemory(platform, memory)
                undo.push(self._put_back)
            self._make_current(origin)
            live = self._begin(platform, origin, memory, here(frame), blocking)
            live.capture.origin.priority, live.watched = priority, watched
            self._note_surroundings(live, frame)
            memory.opened(live.capture)
            GUARD.captures.opened(live)
            GUARD.lanes.make_current(live, ptr)
            _note_allocator(live)
            if options.lines:
                live.trace = Trace(device.last_nodes(), ptr, GUARD.lanes.lane_number, live.at)
                TRACING.open(live.trace, frame)
            undo.push(GUARD.allocators.restore)
            GUARD.allocators.refresh(live.capture.origin)

    def _put_back(self) -> None:
        """Put back the memory that parts of the graph changed when they ran while recording."""
        assert self._outside is not None
        plan = None if self._live is None else self._live.parts.plan
        with GUARD.inside, current_for_now(current().cupy.cuda, self._seams_on):
            self._outside.put_back()
            GUARD.waits.for_devices(current(), [GUARD.state.current_device()])
            if plan is not None:
                plan.recount(self._seams_on)

    def _origin(self, platform: Platform) -> Any:
        if self._given is None:
            return platform.cupy.cuda.Stream(non_blocking=True)
        stream = self._given
        here_id = platform.cupy.cuda.Device().id
        if stream.device_id not in (-1, here_id):
            raise ValueError(
                f'the stream is of device {stream.device_id} and the current device is {here_id}: '
                'make its device current first (`with cp.cuda.Device(...)`)'
            )
        return stream

    def _refuse_captured(self, device: Any, ptr: int) -> tuple[bool, int]:
        """Raise if the origin is captured already. Return whether it is a blocking stream, and its priority."""
        verdict = GUARD.ledger.judge(Operation.BEGIN_CAPTURE, thread=threading.get_ident(), stream=ptr)
        if verdict.answer.refused:
            GUARD.verdicts.refuse(verdict, 'ck.capture()', ptr)
        with GUARD.inside:
            status = device.stream_status(ptr)
            if status is CaptureStatus.NONE:
                blocking = not device.stream_flags(ptr) & 1
                priority = 0 if self._given is None else device.stream_priority(ptr)
        if status is not CaptureStatus.NONE:
            raise errors.UnmatchedError(
                'ck.capture()',
                stream=ptr,
                location=here(),
                rule='This stream is already being captured, by a capture that capturekit does not know.',
                remedy='End that capture first, or capture on another stream.',
                cuda_error=Code.cudaErrorIllegalState.name,
            )
        return blocking, priority

    def _make_current(self, origin: Any) -> None:
        """Make the origin current, and push the step that restores the former stream."""
        stream = GUARD.state.current_stream()
        if stream.ptr in GUARD.ledger.lanes:
            GUARD.lanes.leave(stream)
            self._undo.push(partial(_resume, stream))
        self._undo.push(partial(_make_current_again, stream))
        GUARD.own('cupy.cuda.stream._BaseStream.__enter__', origin)
        self._undo.push(partial(GUARD.own, 'cupy.cuda.stream._BaseStream.__exit__', origin, None, None, None))

    def _begin(
        self, platform: Platform, origin: Any, memory: GraphMemory, at: Place | None, blocking: bool
    ) -> OpenCapture:
        """Begin the driver's capture. Each undo function is pushed before its step is made."""
        device, me, ptr = platform.device, threading.get_ident(), origin.ptr
        recording = new_recording(platform, self._mode, strict=self._strict)
        self._undo.push(partial(self._forget, origin))
        self._undo.push(partial(self._abandon, platform, origin))
        if self._into is None:
            device.begin_capture(ptr, driver_mode(self._mode))
        else:
            check(device, self._into)
            device.begin_capture_to(ptr, self._into.handle, driver_mode(self._mode), self._into.after)
        number = GUARD.state.current_device()
        capture = GUARD.ledger.begin(ptr, self._mode, me, blocking=blocking, at=at, device=number)
        if getattr(origin, '_graph_host_funcargs', None) is None:
            origin._graph_host_funcargs = []
        live = OpenCapture(platform, capture, self._strict, origin, memory, recording, me, at, active_at=at)
        live.recorder.leave = partial(self._leave, live)
        self._live = live
        return live

    def _note_surroundings(self, live: OpenCapture, frame: FrameType) -> None:
        """Store in the capture its arguments, and the state before it."""
        platform = live.platform
        live.parts.checked_by, live.host_calls.stream = self._gates, self._seams_on
        live.host_calls.outside = self._outside
        if self._into is not None:
            live.recorder.into = self._into.handle
            live.parts.numbered[live.recorder.into] = self._into.count
        if self._rehearsal is not None:
            live.parts.answers = Answers(self._rehearsal.reads)
        live.recorder.arrays = held_by(frame, platform.cupy.ndarray)
        count = platform.cupy.cuda.runtime.getDeviceCount()
        if count > 1:
            live.devices.before = [platform.cupy.cuda.get_current_stream(device) for device in range(count)]
            self._undo.push(partial(GUARD.devices.restore, live))


def _note_allocator(live: OpenCapture) -> None:
    """Add a note if the user's arrays come from CUDA's stream-ordered allocator."""
    allocate = live.platform.cupy.cuda.get_allocator()
    owner = type(getattr(allocate, '__self__', None)).__name__
    if owner == 'MemoryAsyncPool' or getattr(allocate, '__name__', '') == 'malloc_async':
        live.note(
            'note',
            None,
            "CuPy's allocator is stream-ordered (MemoryAsyncPool, malloc_async): the arrays of this block come from a "
            "pool of the graph's own instead, so that the graph holds no allocation nodes and its arrays stay where "
            'they are',
            live.at,
        )


def _make_current_again(stream: Any) -> None:
    """Make a stream current again. Leaving a stream's block would restore an outer block, not what ``use()`` set."""
    if GUARD.state.current_stream().ptr != stream.ptr:
        GUARD.own('cupy.cuda.stream._BaseStream.use', stream)


def _resume(stream: Any) -> None:
    """Note that a lane of an outer capture is current again."""
    lane = GUARD.ledger.lane(stream.ptr)
    live = None if lane is None else GUARD.lives.get(lane.capture)
    if live is not None:
        GUARD.lanes.make_current(live, stream.ptr)
        GUARD.allocators.refresh()
