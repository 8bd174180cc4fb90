"""``capture()``: the block in which CuPy work is recorded.

Whatever happens inside the block, afterwards no stream captures, no wrapper remains, and allocator, current stream,
garbage collection and the thread's capture mode are as before: each step of entering pushes the function that undoes
it on one stack, which is unwound at the end, the last step first. Each step is tried even if others fail; an
:class:`Outcome` collects the failures. The first one is raised, unless the block itself has raised an exception, which
is never replaced.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar, Unpack

from capturekit.analysis.graph_diff import Update
from capturekit.driver.cuda import Platform, current
from capturekit.graph.executable import Graph
from capturekit.graph.extending import EXTENSIONS
from capturekit.guard import GUARD, OpenCapture, close_recording, new_recording, tell_listeners
from capturekit.guard.captures import driver_mode, emptied, end_driver_capture, in_body, join_for_good
from capturekit.guard.conditional_bodies import without_a_body
from capturekit.guard.line_trace import TRACING, Trace
from capturekit.guard.manual_captures import Unlaunched
from capturekit.guard.remedies import error_of
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.declared import by_node
from capturekit.launch.deferred_unload import UNLOADING
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.launch.gate import Gate
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.outside_arrays import OutsideMemory, held_by, keep, keep_named, keep_touched
from capturekit.launch.plan import Part
from capturekit.model import errors
from capturekit.model.causes import PROGRAM, notes, shown_with
from capturekit.model.cleanup import GARBAGE, Undo, uninterrupted
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.followed_captures import FollowedCapture
from capturekit.model.host_reads import Answers, Rehearsal
from capturekit.model.lease import Lease
from capturekit.model.recording import Recording
from capturekit.model.rules import CaptureStatus, Code, Mode, Operation
from capturekit.model.skipped_exits import CertainExit
from capturekit.model.source_line import Place, here
from capturekit.recorder import conditional as decisions
from capturekit.recorder.block_source import forbid_suspension
from capturekit.recorder.embed import EmbedTarget, embed, target
from capturekit.recorder.embed import check as check_target
from capturekit.recorder.forks import LANE_STREAMS, Assignment, Devices, Fork, Priority, on_lanes
from capturekit.recorder.options import MODES, CaptureOptions, CheckedOptions, check_capture, reports_refusal

if TYPE_CHECKING:
    from capturekit.fusion.report import Fused
    from capturekit.lanes.report import Relaned

_State = TypeVar('_State')
_R = TypeVar('_R')


def note_escaped(live: OpenCapture) -> None:
    """Note in the recording the work that other libraries have given to streams outside of the capture."""
    for one in live.ended_in_driver:
        for finding in one.escaped:
            error = error_of(finding, live.at, 'capturekit')
            often = '' if finding.count == 1 else f' It was made {finding.count} times.'
            text = f'work escaped: {type(error).__name__}: {error.operation} on {error.subject}. {error.rule}{often}'
            live.note('note', None, text, finding.at)


def explained(live: OpenCapture, fault: BaseException) -> BaseException:
    """Return CUDA's error at the end of a capture as that of the call that caused it, if a watch has seen that call."""
    if isinstance(fault, CaptureError) or not isinstance(fault, RuntimeError):
        return fault
    losses = [one.loss for one in live.ended_in_driver if one.loss is not None]
    for loss in losses:
        if loss.kind == 'unjoined':
            error = error_of(loss, live.at, 'capturekit')
            error.__cause__ = fault
            return error
    return GUARD.verdicts.invalidated(live) if losses else fault


_WHOEVER = (
    'lanes have different priorities: they count where the definition is instantiated with '
    'cudaGraphInstantiateFlagUseNodePriority'
)


def check(live: OpenCapture) -> None:
    """Raise if the capture can't become a graph. With ``strict=False`` open lanes are joined instead."""
    GUARD.verdicts.check(live)
    if live.lost:
        raise GUARD.verdicts.invalidated(live)
    escaped = live.outside.escaped or GUARD.collectives.open_group(live) or live.swallowed
    live.outside.escaped = live.swallowed = None
    try:
        if escaped is not None:
            raise escaped
    finally:
        del escaped  # its traceback holds this frame
    GUARD.lanes.find_work(live)
    if live.decisions.broken is not None:
        raise _half_a_body(*live.decisions.broken)
    if live.decisions.unentered:
        raise without_a_body(live.decisions.unentered[0])
    GUARD.bodies.check_left(live)
    if live.capture.unjoined():
        if live.strict:
            raise GUARD.lanes.unjoined(live)
        GUARD.lanes.join_all(live)
    GUARD.lanes.idle(live)


def end(live: OpenCapture, into: EmbedTarget | None) -> ExecutableGraph | EmbedTarget | None:
    """End the capture; return its graph, or None if :func:`instantiate` has to end it.

    The caller holds the guard's lock, so only the steps are done here that other threads must not interrupt.
    """
    plan = live.parts.plan
    if plan is not None:
        GUARD.parts.end_part(live)
        if plan.checks is not None:
            plan.checks.complete()
        with GUARD.inside:
            for part in plan.parts:
                plan.complete(part, live.by_priority)
        live.recording.by_priority = live.by_priority
        made = ExecutableGraph.of_plan(plan, live.origin._graph_host_funcargs)
        keep_outside(live, [graph for part in plan.parts for graph in part.graphs])
        return made
    if into is not None:
        return _end_into(live, into)
    device = live.platform.device
    with GUARD.inside:
        info = device.capture_info(live.origin.ptr)
        live.recording.node_count = device.graph_node_count(info.graph)
        live.recording.edge_count = device.graph_edge_count(info.graph)
    live.capture.status = CaptureStatus.NONE
    return None


def instantiate(live: OpenCapture, definition_only: bool) -> ExecutableGraph:
    """End a capture that has made a single graph, and instantiate it unless only the definition is needed."""
    live.recording.by_priority = live.by_priority
    if definition_only or live.by_priority:  # CuPy would instantiate without priorities
        with GUARD.inside:
            graph = end_driver_capture(live)
            called, live.origin._graph_host_funcargs = live.origin._graph_host_funcargs, None
            made = ExecutableGraph.of_definition(live.platform.device, graph, called)
            made = made if definition_only else made.instantiated(live.platform.device, True)
    else:
        made = ExecutableGraph.of_cupy(GUARD.own('cupy.cuda.stream._BaseStream.end_capture', live.origin))
    keep_outside(live, [made.graph])
    return made


def _end_into(live: OpenCapture, into: EmbedTarget) -> EmbedTarget:
    """End a capture whose nodes stay in the graph that they were added to."""
    device = live.platform.device
    with GUARD.inside:
        fresh = set(device.graph_nodes(into.handle)[into.count :])
        followed = {a for a, b in device.graph_edges(into.handle) if b in fresh}  # by others, which are ends or before
        ends = device.capture_info(live.origin.ptr).dependencies
        into.ends = tuple(node for node in ends if node not in followed)
        live.recording.node_count += device.graph_node_count(into.handle) - into.count
        live.recording.edge_count += device.graph_edge_count(into.handle)
    if live.by_priority:
        live.note('note', None, _WHOEVER, live.at)
    live.capture.status = CaptureStatus.INVALIDATED  # until it has ended well: the graph is gone otherwise
    with GUARD.inside:
        end_driver_capture(live)
    live.capture.status = CaptureStatus.NONE
    keep_outside(live, [into.handle], into.count)
    return into


def keep_outside(live: OpenCapture, graphs: list[int], first: int = 0) -> None:
    """Keep the outside arrays that the graph uses; in a strict capture, raise if one of them is already gone."""
    memory, device, array = live.memory, live.platform.device, live.platform.cupy.ndarray
    if memory is None:
        return
    if live.collectives.addresses:
        keep_named(live.collectives.addresses, memory, array)
    if not live.platform.simulated and device.reader is None:
        return
    held, live.recorder.arrays = live.recorder.arrays, []
    if live.platform.simulated:
        with GUARD.inside, suppress(errors.CudaCallError):
            keep_touched(device, graphs, memory, held, array)
        return
    lost = keep(device.reader, graphs, memory, held, array, first)
    for kernel, address in lost:
        live.note('note', None, f'{kernel} uses memory at {address:#x} whose array is gone already', live.at)
    if lost and live.strict:
        raise errors.FreedMemoryError(
            f'{lost[0][0]} uses memory at {lost[0][1]:#x}',
            location=live.at,
            rule='The array that was there is gone already: other arrays may get its memory before a launch.',
            remedy='Keep a name for every array that the block reads, outside of the block.',
        )


def _half_a_body(at: Place | None, what: str) -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError(
        'A body that an exception has left',
        location=at,
        rule=f'The exception was caught inside the capture: {what}. What was recorded around it '
        'would be launched as it was left there.',
        remedy='Let the exception end the capture, or catch it inside the body.',
    )


#: What is said about the graph of ``into=``.
_DESTROYED = 'capturekit: CUDA has destroyed the graph of into=: make it anew'
_SPOILT = (
    'capturekit: CUDA has destroyed the body of a conditional node in the graph of into=. Destroying or instantiating '
    'that graph would end the process: keep it, and make another.'
)


@dataclass
class Outcome:
    """How a capture ends: the exception that left the block, what the capture has made, and what went wrong since."""

    body_error: BaseException | None
    ended: ExecutableGraph | EmbedTarget | None = None
    faults: list[BaseException] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """True as long as nothing went wrong."""
        return self.body_error is None and not self.faults

    @property
    def error(self) -> BaseException | None:
        """The block's own exception, or else the first failure."""
        return self.body_error or next(iter(self.faults), None)

    def attempt(self, step: Callable[[], _R]) -> _R | None:
        """Make a step, and return its result. An exception is noted as a fault, and later steps are still made."""
        try:
            return step()
        except BaseException as fault:
            self.faults.append(fault)
            return None

    def unwind(self, steps: Undo) -> None:
        """Undo all steps, the last one first."""
        while steps:
            self.attempt(steps.close)

    def raise_fault(self) -> None:
        """Raise the first fault of closing, unless the block has raised an exception itself."""
        faults, self.faults = self.faults, []
        try:
            if self.body_error is None and faults:
                raise faults[0]
        finally:
            del faults  # the exception holds this frame, so this frame must not hold the exception


class Capture:
    """Record the CuPy work of a block into a graph.

    Made by :func:`capture`. In the block the capture's own stream is current; ``cap.fork(n)``, ``cap.join(stream)``
    and existing ``record``/``wait_event`` code split and join it. After the block ``cap.graph`` is the graph and
    ``cap.recording`` describes how it was made. A Capture is used once, in the thread that entered it.
    """

    def __init__(self, stream: Any, options: CheckedOptions) -> None:
        self._given, self._options = stream, options
        self._mode = options.mode if isinstance(options.mode, Mode) else MODES[options.mode]
        self._into = target(options.into, options.after)
        self._checked = options.check_races or (options.check_races is None and options.into is None)
        #: The bytes up to which memory is not used again: 0 for those that are found out; None without ``lanes``.
        self._reuse_late = None if options.lanes is None else options.memory_limit or 0
        self._update: Update | None = None
        self._relaned: Relaned | None = None
        self._fused: Fused | None = None
        self._gates = 'device'
        self._seams_on: Any = None
        self._outside: OutsideMemory | None = None
        self._state = 'new'
        self._undo, self._lease = Undo(), Lease()
        self._live: OpenCapture | None = None
        self._graph: Graph | None = None

    def __enter__(self) -> Capture:
        if self._state != 'new':
            raise self._used('__enter__()')
        self._state = 'entering'
        try:
            GUARD.opens(sys._getframe(1))
            with uninterrupted():
                self._open(sys._getframe(1))
        except BaseException as error:
            self._state = 'failed'
            self._not_entered(error)
            raise
        self._state = 'open'
        return self

    def _not_entered(self, error: BaseException) -> None:
        """Undo what entering had done before an exception ended it."""
        outcome = Outcome(None)
        outcome.unwind(self._undo)
        outcome.attempt(self._lease.release)
        for fault in outcome.faults[:1]:
            error.add_note(f'and then, on the way out: {fault!r}')
        outcome.faults.clear()

    def _open(self, frame: FrameType) -> None:
        undo = self._undo
        forbid_suspension(frame)
        platform = current()
        origin = self._origin(platform)
        ptr = origin.ptr
        GARBAGE.hold()
        undo.push(GARBAGE.release)
        self._lease.add(UNLOADING.hold(platform))
        GUARD.install(platform)
        undo.push(GUARD.uninstall)
        watched: list[FollowedCapture] = []
        if self._options.watch:
            told = watched.append
            GUARD.state.call_watch.open(platform, told)
            undo.push(partial(GUARD.state.call_watch.close, told))
        undo.push(partial(GUARD.libraries.streams.give_back, platform.cupy))
        with GUARD.lock:
            GUARD.verdicts.give_way()
            device = platform.device
            blocking, priority = self._refuse_captured(device, ptr)
            old = device.exchange_thread_mode(Mode.RELAXED)
            undo.push(partial(device.exchange_thread_mode, old))
            on = partial(GUARD.on, platform=platform)
            options, group = self._options, self._options.memory
            share = None if group is None else group.join(platform, on, options.temporaries)
            memory = GraphMemory(platform.cupy, options.pool, device.next_after(), on, self._reuse_late, share)
            self._lease.add(memory.hold())
            if options.pieces:
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
            GUARD.allocators.to_lane(live, live.capture.origin)

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
            raise GUARD.verdicts.refusal(verdict, 'ck.capture()', ptr)
        with GUARD.inside:
            if device.stream_status(ptr) is CaptureStatus.NONE:
                blocking = not device.stream_flags(ptr) & 1
                return blocking, 0 if self._given is None else device.stream_priority(ptr)
        raise errors.UnmatchedError(
            'ck.capture()',
            stream=ptr,
            location=here(),
            rule='This stream is already being captured, by a capture that capturekit does not know.',
            remedy='End that capture first, or capture on another stream.',
            cuda_error=Code.cudaErrorIllegalState.name,
        )

    def _make_current(self, origin: Any) -> None:
        """Make the origin current, and push the step that restores the former stream."""
        stream = GUARD.state.current_stream()
        if stream.ptr in GUARD.ledger.lanes:
            GUARD.lanes.leave(stream)
            self._undo.push(partial(_resume, stream))
        # leaving the origin's block would restore an outer block, not what ``use()`` set
        self._undo.push(partial(GUARD.state.use, stream))
        GUARD.own('cupy.cuda.stream._BaseStream.__enter__', origin)
        self._undo.push(partial(GUARD.own, 'cupy.cuda.stream._BaseStream.__exit__', origin, None, None, None))

    def _begin(
        self, platform: Platform, origin: Any, memory: GraphMemory, at: Place | None, blocking: bool
    ) -> OpenCapture:
        """Begin the driver's capture. Each undo function is pushed before its step is made."""
        device, me, ptr = platform.device, threading.get_ident(), origin.ptr
        recording = new_recording(platform, self._mode, strict=self._options.strict)
        self._undo.push(partial(self._forget, origin))
        self._undo.push(partial(self._abandon, platform, origin))
        if self._into is None:
            device.begin_capture(ptr, driver_mode(self._mode))
        else:
            check_target(device, self._into)
            device.begin_capture_to(ptr, self._into.handle, driver_mode(self._mode), self._into.after)
        number = GUARD.state.current_device()
        capture = GUARD.ledger.begin(ptr, self._mode, me, blocking=blocking, at=at, device=number)
        if getattr(origin, '_graph_host_funcargs', None) is None:
            origin._graph_host_funcargs = []
        live = OpenCapture(platform, capture, self._options.strict, origin, memory, recording, me, at, active_at=at)
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
        if self._options.rehearsal is not None:
            live.parts.answers = Answers(self._options.rehearsal.reads)
        live.recorder.arrays = held_by(frame, platform.cupy.ndarray)
        count = platform.cupy.cuda.runtime.getDeviceCount()
        if count > 1:
            live.devices.before = [platform.cupy.cuda.get_current_stream(device) for device in range(count)]
            self._undo.push(partial(GUARD.streams.restore, live))

    def _exit(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._state != 'open':
            raise self._used('__exit__()')
        live = self._live
        assert live is not None
        if live.thread != threading.get_ident():
            wrong = errors.WrongThreadError(
                'The end of the capture',
                location=here(sys._getframe(1)),
                rule='A capture ends in the thread that opened it.',
                remedy='Leave the `with` block in the thread that entered it.',
                cuda_error=Code.cudaErrorStreamCaptureWrongThread.name,
            )
            if error is None:
                raise wrong
            error.add_note(f'capturekit: {wrong}')
            return
        self._close(live, error, sys._getframe(1))

    def _close(self, live: OpenCapture, error: BaseException | None, frame: FrameType | None = None) -> None:
        """End the capture. ``frame``: the one that leaves the block."""
        with uninterrupted():
            outcome = self._leave(live, error, frame)
            tell_of(live, self._graph, outcome)
            outcome.raise_fault()

    def _left_without_end(self) -> None:
        """Close the capture: an interrupt has kept its end from starting, or from being done."""
        interrupt = KeyboardInterrupt('the end of the block was interrupted')
        if self._live is None:
            self._state = 'failed'
            self._not_entered(interrupt)
        elif self._live.thread == threading.get_ident():
            self._close(self._live, interrupt)

    __exit__ = CertainExit(_exit, lambda block: block._state in ('entering', 'open', 'ending'), _left_without_end)

    def _leave(self, live: OpenCapture, error: BaseException | None, frame: FrameType | None = None) -> Outcome:
        """Check, end, undo, then make the graph or give back what the capture had taken. Raises nothing."""
        self._state = 'ending'
        live.recorder.leave = None
        outcome = Outcome(error)
        if error is not None and not isinstance(error, CaptureError):
            for text in notes(live.causes.before(*shown_with(error))):  # refusals that the block has caught before
                if text not in getattr(error, '__notes__', ()):
                    error.add_note(text)
        with GUARD.lock:
            self._put_in_order(live, outcome)
            if outcome.good:
                outcome.attempt(lambda: check(live))
            outcome.attempt(lambda: GUARD.bodies.forget_left(live))
            outcome.attempt(lambda: GUARD.captures.settle(live))
            if outcome.good:
                outcome.ended = outcome.attempt(lambda: end(live, self._into))
        if outcome.good and outcome.ended is None:
            outcome.ended = outcome.attempt(lambda: instantiate(live, self._options.update is not None))
        outcome.unwind(self._undo)
        outcome.faults[:1] = [explained(live, fault) for fault in outcome.faults[:1]]
        if live.watched:
            outcome.attempt(lambda: note_escaped(live))
        if outcome.good and self._checked:
            outcome.attempt(lambda: self._check_races(live, outcome.ended, frame))
        if live.recorder.lane_streams:
            outcome.attempt(lambda: LANE_STREAMS.give(live.platform, live.recorder.lane_streams))
        outcome.attempt(lambda: close_recording(live, 'good' if outcome.good else 'failed'))
        if outcome.good:
            outcome.attempt(lambda: self._build(live, outcome.ended))
        if not outcome.good:
            self._give_back(live, outcome)
        self._state = 'closed' if outcome.good else 'failed'
        return outcome

    def _put_in_order(self, live: OpenCapture, outcome: Outcome) -> None:
        """Restore what the block has left behind: devices, held streams, captures begun by hand."""
        outcome.attempt(lambda: GUARD.bodies.restore_left(live))
        if live.unsettled:
            outcome.attempt(GUARD.streams.settle)
        outcome.attempt(lambda: GUARD.streams.restore(live))
        for ptr in list(live.outside.held):
            escaped = outcome.attempt(partial(GUARD.streams.release, ptr, silent=True))
            live.outside.escaped = escaped or live.outside.escaped
        outcome.attempt(lambda: _close_inner(live))
        live.poll()

    def _check_races(self, live: OpenCapture, ended: Any, frame: FrameType | None) -> None:
        try:
            _refuse_races(live, ended, frame)
        except CudaCallError as unread:
            if self._options.check_races:
                raise
            live.note('note', None, f'races were not looked for: {unread}', live.at)

    def _build(self, live: OpenCapture, ended: Any) -> None:
        """Make the graph of a good capture; with ``into=``, hold what the recorded nodes use."""
        assert live.memory is not None
        live.recording.memory_bytes = live.memory.used_bytes()
        if self._into is not None:
            HELD.append(self._lease)
            return
        if live.parts.plan is not None:
            live.parts.plan.turn = live.memory.turn
        graph = Graph._make(
            live.platform,
            ended,
            GUARD.work.plain_launch(ended.executable) if ended.by_cupy else _plain(live, ended),
            live.memory,
            self._lease,
            live.recording,
            Gate(GUARD.ledger, GUARD.work.launching, GUARD.inside, GUARD.occupied, GUARD.rehearsing, GUARD.waits),
            live.parts.plan,
        )
        if live.recorder.said or live.recorder.called:
            graph._state.declared = by_node(live.platform.device, live.recorder.said, live.recorder.called)
        if self._options.update is None:
            self._graph = graph
            if live.caller is None and GUARD.installation.installed:
                _not_launched(graph, live)
            if self._options.fuse:
                gathers = self._reuse_late is None
                self._fused = EXTENSIONS.fuse_recorded(graph._state, self._options.fuse == 'fast', gathers)
            if self._reuse_late is not None and live.caller is None:  # else the call relanes it, once it is whole
                self._relaned = graph.relane()
            return
        try:
            self._update = self._options.update.update(graph, instantiate=True)
        except BaseException:
            graph.close()
            raise
        self._graph = self._options.update

    def _give_back(self, live: OpenCapture, outcome: Outcome) -> None:
        """Give back what a failed capture has taken; a failure here is reported if there was none before."""
        with GUARD.inside:
            outcome.attempt(lambda: _drop_parts(live))
            outcome.attempt(self._lease.release)
            if self._into is not None and not live.lost and not live.parts.spoilt:
                into = self._into
                outcome.attempt(lambda: emptied(live.platform.device, into.handle, live.decisions.bodies, into.count))
        if self._into is not None and outcome.error is not None and (live.lost or live.parts.spoilt):
            outcome.error.add_note(_SPOILT if live.parts.spoilt else _DESTROYED)
        if outcome.body_error is not None:
            _add_cause(live, next(iter(outcome.faults), None), outcome.body_error)

    def _abandon(self, platform: Platform, origin: Any) -> None:
        """If the driver's capture is still open, end it and throw away what it made."""
        live, device = self._live, platform.device
        with GUARD.inside:
            if device.stream_status(origin.ptr) is CaptureStatus.NONE:
                return
            try:
                known = self._join_for_good(device, origin)
                graph = device.end_capture(origin.ptr) if live is None else end_driver_capture(live)
                # the graph of `into=` is the user's; the body of a node is destroyed with the graph around it
                if known and self._into is None and not (live is not None and (in_body(live) or live.parts.spoilt)):
                    device.graph_destroy(graph)
                    part = None if live is None else live.parts.current
                    if part is not None and part.graph == graph:  # else the plan would destroy it again
                        part.graph = 0
            except CudaCallError:
                if live is not None:
                    live.capture.status = CaptureStatus.INVALIDATED
                if device.stream_status(origin.ptr) is not CaptureStatus.NONE:
                    raise

    def _join_for_good(self, device: Any, origin: Any) -> bool:
        """Order all recorded work before the end; False if the driver captures into another graph than is known."""
        live = self._live
        try:
            if live is None:
                return True
            part = live.parts.current
            went_on = bool(live.decisions.bodies) and part is not None and bool(part.graph)  # behind a decision
            if in_body(live) or went_on:
                join_for_good(device, origin.ptr, device.capture_info(origin.ptr).graph)
            elif self._into is not None:
                join_for_good(device, origin.ptr, self._into.handle, self._into.count)
        except CudaCallError:
            return False
        return True

    def _forget(self, origin: Any) -> None:
        """Let the ledger and the guard forget the capture."""
        if self._live is not None and self._live in GUARD.state.threads.get(self._live.thread, ()):
            GUARD.captures.gone(self._live)
        lane, live = GUARD.ledger.lane(origin.ptr), GUARD.state.open_on(origin.ptr)
        if live is not None:
            GUARD.captures.gone(live)
        elif lane is not None:
            GUARD.ledger.end(lane.capture)

    @property
    def stream(self) -> Any:
        """The origin: the CuPy stream on which the capture began. Raises ClosedError before the block is entered."""
        return self._had(self._live, 'stream').origin

    @property
    def graph(self) -> Graph:
        """The recorded graph. Raises ClosedError while the block is open or if it failed."""
        return self._had(self._graph, 'graph')

    @property
    def ends(self) -> list[Any]:
        """For a capture with ``into=``: the last recorded nodes. Nodes that you add after the capture depend on these.

        They are cuda.core nodes if ``into`` was a GraphDefinition, else handles. Raises ClosedError before the end.
        """
        if self._into is None or self._state != 'closed':
            raise self._used('ends', 'into=definition')
        return self._into.nodes(self._into.ends)

    @property
    def update(self) -> Update:
        """For a capture with ``update=graph``: how the graph was updated. Raises ClosedError before the end."""
        return self._had(self._update, 'update', 'update=graph')

    @property
    def relaned(self) -> Relaned:
        """Of a capture with ``lanes='auto'``: what became of its edges. Raises ClosedError before the end."""
        return self._had(self._relaned, 'relaned', "lanes='auto'")

    @property
    def fused(self) -> Fused:
        """Of a capture with ``fuse=``: which kernels became one. Raises ClosedError before the end."""
        return self._had(self._fused, 'fused', 'fuse=True')

    def close(self) -> None:
        """For a capture with ``into=``: give back the memory that its nodes use. A second call does nothing.

        capturekit can not know when the last executable graph is gone. So the memory is held until this call, even if
        the capture object is dropped. Without ``into=`` this closes ``cap.graph``. Raises ClosedError while the block
        is open.
        """
        if self._state in ('new', 'open', 'ending', 'entering'):
            raise self._used('close()')
        if self._graph is not None:
            self._graph.close()
        elif self._lease in HELD:
            let_go(self._lease)

    @reports_refusal
    def embed(self, graph: Graph) -> None:
        """Put a graph into the current lane, as one node that runs all of it (``cudaGraphAddChildGraphNode``).

        The node runs a copy of the graph as it is now; memory that the copy uses is kept. One graph may be embedded
        several times, one after the other. CUDA C++ Programming Guide, "Graph Structure".

        Raises:
            TypeError: ``graph`` is not a capturekit.Graph. ValueError: it is on another device.
            ClosedError: the graph or the capture is closed.
            UnsupportedCallError: the graph has decisions on the device, or is launched in parts; it is already on a
                lane that may run at the same time; or it works on devices where the capture has no lane.
        """
        embed(self._opened('embed()'), graph)

    @property
    def recording(self) -> Recording:
        """The :class:`Recording` of the capture, which is complete after the block, also if the block failed.

        Raises ClosedError before the block is entered."""
        return self._had(self._live, 'recording').recording

    @reports_refusal
    def fork(self, n: int | None = None, *, priority: Priority = None, devices: Devices = None) -> Fork:
        """Split the current lane into ``n`` lanes for a block; they are joined at its end.

        ``with cap.fork(2) as (left, right):`` and inside ``with left: ...``, ``with right: ...``. Scopes nest.
        ``with cap.fork(devices=[0, 1]) as lanes:`` makes a lane on each of these devices; entering one makes its device
        current, too. For ``priority`` and ``devices`` see :func:`capturekit.fork`.

        Raises:
            TypeError, ValueError: ``n`` is not a positive whole number; ``priority`` is neither a number nor ``n`` of
                them; ``devices`` is not a sequence of ``n`` devices.
            ClosedError: the capture is not open.
        """
        self._must_be_open('fork()')
        return Fork(n, priority, self._must_be_open, devices, self._live)

    @reports_refusal
    def parallel(
        self,
        *branches: Callable[[], Any],
        lanes: int | Sequence[int] | None = None,
        priority: Priority = None,
        assign: Assignment = 'round robin',
    ) -> list[Any]:
        """Record branches (callables without arguments) on lanes, join the lanes, and return the branches' results.

        This is :func:`capturekit.parallel`, for an open capture only; see there for the arguments.

        Raises:
            ClosedError: the capture is not open. TypeError, ValueError: an argument is not as described there.
            Whatever a branch raises.
        """
        self._must_be_open('parallel()')
        return on_lanes(branches, lanes, priority, assign, self._must_be_open)

    @reports_refusal
    def join(self, stream: Any) -> None:
        """Make the current lane wait for a stream of the capture (any CuPy stream, or a lane of a fork).

        Raises:
            TypeError: ``stream`` is not a stream.
            UnmatchedError: the stream is not in this capture.
            ClosedError: the capture is not open.
        """
        live = self._opened('join()')
        stream = getattr(stream, 'stream', stream)
        if not hasattr(stream, 'ptr'):
            raise TypeError(f'expected a stream, got {type(stream).__name__}')
        lane = GUARD.lanes.met(stream.ptr, stream)
        if lane is None or lane.capture is not live.capture:
            raise errors.UnmatchedError(
                'Capture.join()',
                stream=stream.ptr,
                subject=GUARD.verdicts.subject(stream.ptr),
                location=here(),
                rule='Only a lane of this capture can be joined.',
                remedy='Fork it first: `stream.wait_event(cap.stream.record())`.',
            )
        into = live.platform.cupy.cuda.get_current_stream()
        if into.ptr != stream.ptr:
            with GUARD.on(lane.device, live.platform):
                event = live.platform.cupy.cuda.Event()
            stream.record(event)
            into.wait_event(event)

    @reports_refusal
    def cond(
        self, condition: Any, then: Callable[..., _State], otherwise: Callable[..., _State], *operands: Any
    ) -> _State:
        """Record two functions of which the device runs one, and return the result of the one that it runs.

        ``answer = cap.cond(root > 1, lambda: root * 10, lambda: -root)``. Both are called once, while recording, with
        ``operands``; what they write into these in place is written there. They return arrays, numbers, or tuples,
        lists, dicts and dataclasses of these, of the same form, shapes and dtypes. The result has arrays of its own,
        which every launch fills; numbers become arrays of shape (). ``condition`` and the exceptions are those of
        :meth:`while_`.

        Raises:
            TypeError: ``then`` or ``otherwise`` can't be called, or what they return differs; the text names where.
        """
        return decisions.conditional(self._deciding('cond()'), condition, then, otherwise, operands)  # type: ignore[no-any-return]

    @reports_refusal
    def loop(
        self,
        condition: Callable[[_State], Any],
        body: Callable[[_State], _State],
        state: _State,
        *,
        limit: int | None = None,
    ) -> _State:
        """Record a function that the device runs again and again, and return the last state.

        ``x = cap.loop(lambda x: x < 1000, lambda x: x * 2, x, limit=100)``. The device runs ``state = body(state)`` as
        long as ``condition(state)`` is not 0, ``limit`` times at most. Both functions are called while recording: the
        body once, the condition twice. ``state`` is an array, a number, or tuples, lists, dicts and dataclasses of
        these, and ``body`` returns the same form, shapes and dtypes. Every launch begins with the values that
        ``state`` has then, and does not change it. Numbers become arrays of shape ().

        Raises:
            TypeError: ``condition`` or ``body`` can't be called; what they return is not as described. And all that
                :meth:`while_` raises.
        """
        return decisions.repeated(self._deciding('loop()'), condition, body, state, limit)  # type: ignore[no-any-return]

    def while_(self, condition: Any, *, limit: int | None = None) -> decisions.Loop:
        """Record a block that the device runs again and again, as long as ``condition`` is not 0.

        ``with cap.while_(going) as loop:``. ``condition`` is a CuPy array of one element, of a boolean or an integer
        dtype, that the graph computes. The device reads it before the first pass and after each pass. A pass hands
        values to the next one, the condition too, by writing them in place (or see :meth:`loop`). At most ``limit``
        passes are made; ``loop.passes`` counts them. The block may fork, join, and hold other decisions. All lanes must
        be joined before it and at its end. CUDA C++ Programming Guide, "Conditional Graph Nodes".

        An array that the block makes has a value only in it: other recorded work can't use it. What is refused at the
        end of the block is taken out of the graph, and the capture goes on.

        Raises:
            TypeError, ValueError: ``condition`` or ``limit`` is not as described.
            UnjoinedError: lanes are open. ClosedError: the capture is not open.
            UnsupportedCallError: the block has host functions, host reads, random numbers drawn by the host, or calls
                that run between two graphs; at its end a name, an attribute or an item that held another array, or a
                number, holds a new array (with ``strict=False`` a RuntimeWarning); nothing can change the condition;
                or the call stands without ``with``.
        """
        return decisions.loop(self._deciding('while_()'), condition, limit, sys._getframe(1))

    def if_(self, condition: Any) -> decisions.Branch:
        """Record a block that the device runs if ``condition`` is not 0: ``with cap.if_(condition):``.

        The condition, the rules of the block and the exceptions are those of :meth:`while_`."""
        live = self._deciding('if_()')
        return decisions.Branch(live, decisions.decided(live, 'if', condition, 1, frame=sys._getframe(1)), 0)

    def if_else(self, condition: Any) -> decisions.Branches:
        """Record two blocks of which the device runs one: ``with cap.if_else(condition) as (then, otherwise):``, and
        in it ``with then:`` and ``with otherwise:``. Nothing may be recorded outside of them. Condition, rules and
        exceptions are those of :meth:`while_`."""
        return decisions.branches(self._deciding('if_else()'), condition, sys._getframe(1))

    def switch(self, index: Any, count: int) -> decisions.Branches:
        """Record ``count`` blocks, of which the device runs number ``index``, or none if there is no such block.

        ``with cap.switch(index, 3) as cases:``, and in it ``with cases[0]:`` and so on. ``index`` is a CuPy array like
        the condition of :meth:`while_`; rules and exceptions are the same.
        """
        return decisions.cases(self._deciding('switch()'), index, count, sys._getframe(1))

    def _opened(self, call: str) -> OpenCapture:
        """The capture, which has to be open."""
        self._must_be_open(call)
        assert self._live is not None
        return self._live

    _deciding = reports_refusal(_opened)

    def _must_be_open(self, call: str) -> None:
        if self._state != 'open':
            raise self._used(call)
        assert self._live is not None
        if self._live.thread != threading.get_ident():
            raise errors.WrongThreadError(
                f'Capture.{call}',
                location=here(sys._getframe(2)),
                rule='This capture was opened by another thread.',
                remedy='Use it in the thread that entered the block.',
            )
        if GUARD.mine() is not self._live:
            raise errors.UnmatchedError(
                f'Capture.{call}',
                location=here(sys._getframe(2)),
                rule='Another capture has been opened inside this one, and its stream is current.',
                remedy='Fork and join the inner capture, or leave its block first.',
            )

    def _had(self, value: _R | None, what: str, option: str = '') -> _R:
        """What there is by now. Raises ClosedError where that is nothing."""
        if value is None:
            raise self._used(what, option)
        return value

    def _used(self, what: str, option: str = '') -> errors.ClosedError:
        """The error for a use of the capture before or after its time, or of what only ``option`` makes."""
        if self._state in ('new', 'entering'):
            rule, remedy = 'The block has not been entered.', 'Enter it first: `with ck.capture() as cap:`.'
        elif self._state in ('open', 'ending'):
            rule, remedy = 'The block is still open.', f'Use `cap.{what}` after the block.'
            if what.startswith('__'):
                rule = 'The block is still open, and a capture is entered once.'
                remedy = 'Open another one: `with ck.capture() as cap:`.'
        elif self._state == 'failed':
            rule = 'The capture failed and made no graph.'
            remedy = 'Repair what failed, and open a new one: `with ck.capture() as cap:`.'
        elif what == 'graph':
            rule = 'This capture has recorded into a graph of yours (`into=`), and has none of its own.'
            remedy = 'Instantiate yours, and keep this capture: it holds the memory of what it recorded.'
        elif option:
            rule, remedy = f'The capture was opened without `{option}`.', f'Open it with `ck.capture({option})`.'
        else:
            rule, remedy = 'The capture is over.', 'Open a new one: `with ck.capture() as cap:`.'
        return errors.ClosedError(f'Capture.{what}', location=here(sys._getframe(2)), rule=rule, remedy=remedy)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError('a Capture is used once, in the thread that entered it: open another with ck.capture()')

    def __repr__(self) -> str:
        return f'<capturekit.Capture {self._state}>'


def _note_allocator(live: OpenCapture) -> None:
    """Add a note if the user's arrays come from CUDA's stream-ordered allocator."""
    allocate = live.platform.cupy.cuda.get_allocator()
    owner = type(getattr(allocate, '__self__', None)).__name__
    if owner == 'MemoryAsyncPool' or getattr(allocate, '__name__', '') == 'malloc_async':
        text = "CuPy's allocator is stream-ordered (MemoryAsyncPool, malloc_async): the arrays of this block come from "
        text += "a pool of the graph's own instead, so that the graph holds no allocation nodes and its arrays stay "
        live.note('note', None, f'{text}where they are', live.at)


def _resume(stream: Any) -> None:
    """Note that a lane of an outer capture is current again."""
    live = GUARD.state.open_on(stream.ptr)
    if live is not None:
        GUARD.lanes.make_current(live, stream.ptr)
        GUARD.allocators.refresh()


def _not_launched(graph: Graph, live: OpenCapture) -> None:
    """Note a graph whose results are worth nothing yet, for reads of the host that will be seen."""
    known, memory = weakref.ref(graph), live.graph_memory

    def over() -> bool:
        made = known()  # others that use the memory may have filled it: a clone, a graph that embeds this one
        return made is None or made.closed or made.launches > 0 or memory.holders > 1

    fills = lambda array: memory.recorded_into(array.data.mem)  # noqa: E731
    GUARD.inputs.recorded(Unlaunched(live.at, '`cap.graph.launch()`', fills, over))


def _close_inner(live: OpenCapture) -> None:
    """End the captures that the block began and left open; the error names the outermost."""
    stack = GUARD.state.threads.get(live.thread, [])
    found: BaseException | None = None
    for inner in reversed(stack[stack.index(live) + 1 :] if live in stack else []):
        by_hand, leave = inner.memory is None, inner.recorder.leave
        found = errors.UnmatchedError(
            'A capture begun by hand was left open' if by_hand else 'An inner capture was left open',
            stream=inner.origin.ptr,
            location=inner.at if by_hand else here(),
            rule=f'It was begun inside a `with ck.capture()` block, at {inner.at}, and the block has ended before it.',
            remedy='Call `stream.end_capture()` before leaving the block.'
            if by_hand
            else 'End captures in the reverse of the order in which they began: leave the inner block first.',
        )
        if by_hand:
            _discard(inner)
            GUARD.captures.gone(inner)
        elif leave is not None:
            leave(found)
    if found is not None:
        raise found


def _discard(inner: OpenCapture) -> None:
    """End a capture that was begun by hand, and destroy what it made."""
    device, ptr = inner.platform.device, inner.origin.ptr
    with GUARD.inside:
        if device.stream_status(ptr) is CaptureStatus.NONE:
            return
        try:
            device.graph_destroy(device.end_capture(ptr))
        except CudaCallError:  # if it was lost or has open lanes, CUDA has still ended it
            if device.stream_status(ptr) is not CaptureStatus.NONE:
                raise


def _drop_parts(live: OpenCapture) -> None:
    """Destroy the parts of a failed capture, except an unfinished one, which was abandoned already."""
    plan, part = live.parts.plan, live.parts.current
    if plan is None:
        return
    if part is not None and part.graph and part not in plan.steps and not live.parts.spoilt:
        live.platform.device.graph_destroy(part.graph)
    plan.given = plan.drawn()
    plan.close()


def _plain(live: OpenCapture, made: ExecutableGraph) -> Callable[[], None]:
    """The launch of a graph that capturekit has instantiated."""
    launch, executable = live.platform.device.graph_launch, made.graphExec
    current = live.platform.cupy.cuda.get_current_stream
    return lambda: launch(executable, current().ptr)


#: What captures with ``into=`` hold until they are closed, because capturekit can't know when their graph is gone.
HELD: list[Lease] = []


def let_go(lease: Lease) -> None:
    """Give back what a capture with ``into=`` holds."""
    HELD.remove(lease)
    with GUARD.inside:
        lease.release()


def _add_cause(live: OpenCapture, fault: BaseException | None, error: BaseException) -> None:
    """Add a note to the block's exception: what else went wrong, or what caused it."""
    if fault is not None:
        error.add_note(f'capturekit: {fault}')
    elif live.trace is not None and live.trace.lost is not None and not isinstance(error, CaptureError):
        if not any(cause.name == errors.InvalidatedError.__name__ for cause in live.causes.found):
            error.add_note(f'capturekit: {GUARD.verdicts.invalidated(live)}')
    elif isinstance(error, RuntimeError) and 'the current stream is capturing' in str(error):
        error.add_note('capturekit: a copy between host and device was tried in the block: make it outside')
    elif isinstance(error, NotImplementedError) and 'stream capture' in str(error):
        late = ''.join(f' ({reason})' for reason in GUARD.libraries.late.values())
        text = f'capturekit: CuPy refuses this library in a capture{late}. Call it before the block, or after.'
        error.add_note(text)


def tell_of(live: OpenCapture, graph: Graph | None, outcome: Outcome) -> None:
    """Remember the error that ended a capture, and call the listeners, whose errors do not replace it."""
    error = outcome.error
    if isinstance(error, CaptureError):
        if live.caller is None:
            live.causes.add_to(error)
            PROGRAM.remember(error)
        refused(error)
        error.recording = live.recording
    if error is not None:
        live.note_end(error)
    try:
        tell_listeners(live, graph)
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f'and then, telling of the capture: {failure!r}')


def _refuse_races(live: OpenCapture, made: Any, frame: FrameType | None) -> None:
    """Raise for a capture that has ended well and whose graph has races; possible races become notes."""
    from capturekit.analysis.race_report import races_in
    from capturekit.analysis.races import DOES

    platform, spans = live.platform, [] if live.trace is None else live.trace.spans
    # parts and bodies are separate captures
    if live.memory is None or all(len(one.lanes) < 2 for one in (live.capture, *live.parts.past)):
        return
    parts = [Part(int(made.graph))] if live.parts.plan is None else live.parts.plan.parts
    with GUARD.inside:
        declared = by_node(platform.device, live.recorder.said, live.recorder.called)
        report = races_in(platform, parts, spans, live.memory, declared, frame)
    for race in report.races:
        if not race.certain:
            live.note('note', None, str(race).replace('\n', ''), race.second.at)
    if not report.certain:
        return
    race = report.certain[0]
    more = f' There are {len(report.certain) - 1} more: see error.races.' if report.certain[1:] else ''
    error = errors.RaceError(
        f'{race.memory} is accessed in no fixed order',
        lane=race.second.lane,
        location=race.second.at or live.at,
        rule=f'{DOES[race.writes[0]]}: node {race.first}; {DOES[race.writes[1]]}: node {race.second}. Nothing orders '
        f'the two, so a launch may run them in either order, or at once.{more}',
        remedy=race.remedy,
    )
    error.races = report
    raise error


def capture(
    stream: Any = None,
    *,
    strict: bool = True,
    rehearsal: Rehearsal | None = None,
    pieces: bool = False,
    fuse: bool | Literal['fast'] = False,
    lanes: Literal['auto'] | None = None,
    watch: bool = False,
    **options: Unpack[CaptureOptions],
) -> Capture:
    """Record the CuPy work of a block into a CUDA graph.

    ``with ck.capture() as cap: ...`` and then ``cap.graph.launch()``. CUDA C++ Programming Guide, "Creating a Graph
    Using Stream Capture".

    Args:
        stream: the CuPy stream to capture on; a fresh non-blocking one if None. It is made current for the block.
        strict: True: a call that would lose the capture, or be left out of it, raises. False: such a call is replaced
            by its equivalent in a graph, if there is one, and noted in ``cap.recording.adaptations``.
        rehearsal: what :func:`rehearse` returned for the same code. Host reads get the values that they had in the
            rehearsal, and each value is checked on the device at every launch.
        pieces: whether calls that no capture can hold (svd, eigh, products of two sparse matrices ...) are made by the
            host at every launch, between two graphs. Each waits for the device. While the block is recorded, the work
            before such a call runs once, because the call needs its values; when the block has ended, the arrays that
            it changed are as before. Random numbers that were drawn stay drawn.
        fuse: whether runs of elementwise kernels become one kernel each at the end of the block, as by
            :meth:`Graph.fuse`; 'fast': as by ``Graph.fuse('fast')``. ``cap.fused`` is the report. With
            ``lanes='auto'`` the edges are made afterwards.
        lanes: 'auto': at the end of the block the graph gets the edges that its data needs, and no others, as by
            :meth:`Graph.relane`; ``cap.relaned`` is the report. Temporaries are used again as late as the memory
            allows, because work that uses one again has to wait for all work that used it before; once the order is
            known they are packed (``cap.relaned.packed``), and the first launch is compared with the graph as recorded.
        watch: whether to watch every call to CUDA, of any library (by CUPTI): the error of a lost capture then names
            the call that lost it, and ``cap.recording.notes`` has work that went past it. Recording takes longer.
        options: ``mode``, ``memory``, ``into``, ``update``, ``check_races`` and others that few captures need: see
            :class:`CaptureOptions`.

    Raises:
        CaptureError: in the block, a subclass for each kind of refused call; at its end UnjoinedError for open lanes.
        RaceError: at the end of the block, if ``check_races`` is in force and a race is certain.
        TypeError, ValueError: an argument is not as described, or the stream is the legacy one or of another device.
        ImportError: CuPy or cuda-bindings is missing, or of a version that capturekit does not work with.
        UnmatchedError: on entering: the stream is already being captured.
        CudaCallError: on entering, with ``watch``: CUPTI is not available, or another tool uses it.

    Threads: the block belongs to the thread that entered it; work of other threads goes on and is not recorded.
    """
    main = {'strict': strict, 'rehearsal': rehearsal, 'pieces': pieces, 'fuse': fuse, 'lanes': lanes, 'watch': watch}
    return Capture(stream, check_capture(stream, options, **main))


def rehearse(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Rehearsal:
    """Run ``fn(*args, **kwargs)`` eagerly and remember each host read: order, line, shape, dtype, value.

    ``ck.capture(rehearsal=...)`` around the same call then records the branches that this run took. ``.result`` is what
    ``fn`` returned, ``.reads`` are its host reads.

    Raises:
        TypeError: ``fn`` is not callable. UnmatchedError: this thread has a capture open. Whatever ``fn`` raises.
    """
    if not callable(fn):
        raise TypeError(f'rehearse takes a function and its arguments, got {type(fn).__name__}')
    rehearsal = Rehearsal()
    with GUARD.rehearsing(current(), rehearsal):
        rehearsal.result = fn(*args, **kwargs)
    return rehearsal
