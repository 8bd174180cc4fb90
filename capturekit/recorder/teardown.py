"""Closing a capture: check, end, undo every step of entering, then make a graph or report what went wrong.

Each step is tried even if others fail; an :class:`Outcome` collects the failures. The first one is raised, unless the
block itself has raised an exception, which is never replaced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from capturekit.analysis.graph_diff import Update
from capturekit.driver.cuda import Platform
from capturekit.graph.executable import Graph
from capturekit.graph.extending import EXTENSIONS
from capturekit.guard import GUARD, OpenCapture, close_recording, tell_listeners
from capturekit.guard.captures import end_driver_capture, in_body, join_for_good
from capturekit.guard.conditional_bodies import without_a_body
from capturekit.guard.graph_inputs import Unlaunched
from capturekit.guard.remedies import error_of
from capturekit.launch.declared import by_node
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.launch.gate import Gate
from capturekit.launch.memory_group import Temporaries
from capturekit.launch.outside_arrays import keep, keep_named, keep_touched
from capturekit.launch.outside_memory import OutsideMemory
from capturekit.launch.plan import Part
from capturekit.model import errors
from capturekit.model.causes import PROGRAM, notes, shown_with
from capturekit.model.cleanup import Undo
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.followed_captures import FollowedCapture
from capturekit.model.host_reads import Rehearsal
from capturekit.model.lease import Lease
from capturekit.model.rules import CaptureStatus, Mode
from capturekit.model.source_line import Place, here, raised_at
from capturekit.recorder.embed import EmbedTarget, take_out, target
from capturekit.recorder.forks import LANE_STREAMS
from capturekit.recorder.options import MODES, CaptureOptions

if TYPE_CHECKING:
    from capturekit.fusion.report import Fused
    from capturekit.lanes.report import Relaned


# -- ``ck.capture(watch=True)``: what CUDA's own calls, of whatever library, have done to a capture -------------------


def start(platform: Platform, undo: Undo) -> list[FollowedCapture]:
    """Watch until ``undo``; return the list that each capture is added to when it has ended.

    Raises:
        Untraceable: CUPTI is not available, or another tool uses it.
    """
    ended: list[FollowedCapture] = []
    told = ended.append
    GUARD.state.call_watch.open(platform, told, GUARD.ledger.table)
    undo.push(partial(GUARD.state.call_watch.close, told))
    return ended


def note_escaped(live: OpenCapture) -> None:
    """Note in the recording the work that other libraries have given to streams outside of the capture."""
    for one in _its_captures(live):
        for finding in one.escaped:
            error = error_of(finding, live.at, 'capturekit')
            often = '' if finding.count == 1 else f' It was made {finding.count} times.'
            text = f'work escaped: {type(error).__name__}: {error.operation} on {error.subject}. {error.rule}{often}'
            live.note('note', None, text, finding.at)


def explained(live: OpenCapture, fault: BaseException) -> BaseException:
    """Return CUDA's error at the end of a capture as that of the call that caused it, if a watch has seen that call."""
    if isinstance(fault, CaptureError) or not isinstance(fault, RuntimeError):
        return fault
    for one in _its_captures(live):
        if one.loss is not None and one.loss.kind == 'unjoined':
            error = error_of(one.loss, live.at, 'capturekit')
            error.__cause__ = fault
            return error
    return GUARD.verdicts.invalidated(live) if any(one.loss for one in _its_captures(live)) else fault


def _its_captures(live: OpenCapture) -> list[FollowedCapture]:
    """The driver's captures that a block was made of: several if it was recorded in parts."""
    return [one for one in live.watched if one.capture.origin.stream == live.origin.ptr]


# -- the end of a capture that is still good: it is checked and ended, and its graph is instantiated ------------------


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
    GUARD.joins.find_work(live)
    if live.decisions.broken is not None:
        raise _half_a_body(*live.decisions.broken)
    if live.decisions.unentered:
        raise without_a_body(live.decisions.unentered[0])
    GUARD.left.check(live)
    if live.capture.unjoined():
        if live.strict:
            raise GUARD.joins.unjoined(live)
        GUARD.joins.join_all(live)
    GUARD.joins.idle(live)


def end(live: OpenCapture, into: EmbedTarget | None) -> ExecutableGraph | EmbedTarget | None:
    """End the capture; return its graph, or None if :func:`instantiate` has to end it.

    The caller holds the guard's lock, so only the steps are done here that other threads must not interrupt.
    """
    if live.parts.plan is not None:
        made = _end_parts(live)
        keep_outside(live, [graph for part in live.parts.plan.parts for graph in part.graphs])
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
    by_priority = live.recording.by_priority = live.by_priority
    if definition_only:
        made = _defined(live)
    elif by_priority:  # CuPy would instantiate without priorities
        made = _defined(live)
        with GUARD.inside:
            made = made.instantiated(live.platform.device, True)
    else:
        made = ExecutableGraph.of_cupy(GUARD.own('cupy.cuda.stream._BaseStream.end_capture', live.origin))
    keep_outside(live, [made.graph])
    return made


def _defined(live: OpenCapture) -> ExecutableGraph:
    """End the capture as CuPy does, without instantiating."""
    with GUARD.inside:
        graph = end_driver_capture(live)
    called, live.origin._graph_host_funcargs = live.origin._graph_host_funcargs, None
    return ExecutableGraph.of_definition(live.platform.device, graph, called)


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


def _end_parts(live: OpenCapture) -> ExecutableGraph:
    """End the last part, and instantiate every part."""
    GUARD.parts.end_part(live)
    assert live.parts.plan is not None
    if live.parts.plan.checks is not None:
        live.parts.plan.checks.complete()
    with GUARD.inside:
        for part in live.parts.plan.parts:
            live.parts.plan.complete(part, live.by_priority)
    live.recording.by_priority = live.by_priority
    return ExecutableGraph.of_plan(live.parts.plan, live.origin._graph_host_funcargs)


def keep_outside(live: OpenCapture, graphs: list[int], first: int = 0) -> None:
    """Keep the outside arrays that the graph uses; in a strict capture, raise if one of them is already gone."""
    if live.collectives.addresses and live.memory is not None:
        keep_named(live.collectives.addresses, live.memory, live.platform.cupy.ndarray)
    if live.memory is None:
        return
    if live.platform.simulated:
        held, live.recorder.arrays = live.recorder.arrays, []
        with GUARD.inside, suppress(errors.CudaCallError):
            keep_touched(live.platform.device, graphs, live.memory, held, live.platform.cupy.ndarray)
        return
    reader = live.platform.device.reader
    if reader is None:
        return
    held, live.recorder.arrays = live.recorder.arrays, []
    lost = keep(reader, graphs, live.memory, held, live.platform.cupy.ndarray, first)
    for kernel, address in lost:
        text = f'{kernel} uses memory at {address:#x} whose array is gone already'
        live.note('note', None, text, live.at)
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


_T = TypeVar('_T')
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

    def attempt(self, step: Callable[[], _T]) -> _T | None:
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


class WayOut:
    """What a :class:`capturekit.Capture` holds, and its steps when its block is left."""

    def __init__(
        self,
        stream: Any,
        strict: bool,
        rehearsal: Rehearsal | None,
        pieces: bool,
        fuse: bool | Literal['fast'],
        lanes: Literal['auto'] | None,
        watch: bool,
        options: CaptureOptions,
        temporaries: Temporaries = 'alone',
    ) -> None:
        self._given, self._strict, self._rehearsal = stream, strict, rehearsal
        self._pieces, self._fuse, self._watch = pieces, fuse, watch
        self._options, self._temporaries = options, temporaries
        self._mode = options.mode if isinstance(options.mode, Mode) else MODES[options.mode]
        self._into = target(options.into, options.after)
        self._checked = options.check_races or (options.check_races is None and options.into is None)
        #: The bytes up to which memory is not used again: 0 for those that are found out; None without ``lanes``.
        self._reuse_late = None if lanes is None else options.memory_limit or 0
        self._left_by: FrameType | None = None
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

    def _leave(self, live: OpenCapture, error: BaseException | None) -> Outcome:
        """Check, end, undo, then make the graph or give back what the capture had taken. Raises nothing."""
        self._state = 'ending'
        live.recorder.leave = None
        outcome = Outcome(error)
        if error is not None and not isinstance(error, CaptureError):
            _note_causes(live, error)
        with GUARD.lock:
            self._put_in_order(live, outcome)
            if outcome.good:
                outcome.attempt(lambda: check(live))
            outcome.attempt(lambda: GUARD.left.forget(live))
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
            outcome.attempt(lambda: self._check_races(live, outcome.ended))
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
        outcome.attempt(lambda: GUARD.left.restore(live))
        if live.unsettled:
            outcome.attempt(GUARD.streams.settle)
        outcome.attempt(lambda: GUARD.devices.restore(live))
        for ptr in list(live.outside.held):
            escaped = outcome.attempt(partial(GUARD.outside.release, ptr, silent=True))
            live.outside.escaped = escaped or live.outside.escaped
        outcome.attempt(lambda: _close_inner(live))
        live.poll()

    def _check_races(self, live: OpenCapture, ended: Any) -> None:
        try:
            found = _refusal(live, ended, self._left_by)
        except CudaCallError as unread:
            if self._options.check_races:
                raise
            live.note('note', None, f'races were not looked for: {unread}', live.at)
            return
        if found is not None:
            raise found

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
            self._launch_of(live, ended),
            live.memory,
            self._lease,
            live.recording,
            Gate(GUARD.ledger, GUARD.launches.launching, GUARD.inside, GUARD.occupied, GUARD.rehearsing, GUARD.waits),
            live.parts.plan,
        )
        if live.recorder.said or live.recorder.called:
            graph._state.declared = by_node(live.platform.device, live.recorder.said, live.recorder.called)
        if self._options.update is None:
            self._graph = graph
            if live.caller is None and GUARD.installation.installed:
                _not_launched(graph, live)
            if self._fuse:
                gathers = self._reuse_late is None
                self._fused = EXTENSIONS.fuse_recorded(graph._state, self._fuse == 'fast', gathers)
            if self._reuse_late is not None and live.caller is None:  # else the call relanes it, once it is whole
                self._relaned = graph.relane()
            return
        try:
            self._update = self._options.update.update(graph, instantiate=True)
        except BaseException:
            graph.close()
            raise
        self._graph = self._options.update

    def _launch_of(self, live: OpenCapture, ended: ExecutableGraph) -> Callable[[], None]:
        if self._options.update is not None or (live.parts.plan is not None and not live.parts.plan.plain):
            return _no_launch
        return GUARD.launches.plain_launch(ended.executable) if ended.by_cupy else _plain(live, ended)

    def _give_back(self, live: OpenCapture, outcome: Outcome) -> None:
        """Give back what a failed capture has taken; a failure here is reported if there was none before."""
        with GUARD.inside:
            outcome.attempt(lambda: _drop_parts(live))
            outcome.attempt(self._lease.release)
            if self._into is not None and not live.lost and not live.parts.spoilt:
                into = self._into
                outcome.attempt(lambda: take_out(live.platform.device, into, live.decisions.bodies))
        if self._into is not None and outcome.error is not None and (live.lost or live.parts.spoilt):
            outcome.error.add_note(_SPOILT if live.parts.spoilt else _DESTROYED)
        if outcome.body_error is not None:
            _add_cause(live, next(iter(outcome.faults), None), outcome.body_error)

    # -- steps that undo what entering has done -----------------------------------------------------------------

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
                    self._is_gone(graph)
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
            if in_body(live) or _went_on(live):
                join_for_good(device, origin.ptr, device.capture_info(origin.ptr).graph)
            elif self._into is not None:
                join_for_good(device, origin.ptr, self._into.handle, self._into.count)
        except CudaCallError:
            return False
        return True

    def _is_gone(self, graph: int) -> None:
        """Note that the driver's capture has ended with this graph, which the plan would otherwise destroy again."""
        if self._live is not None and self._live.parts.current is not None and self._live.parts.current.graph == graph:
            self._live.parts.current.graph = 0

    def _forget(self, origin: Any) -> None:
        """Let the ledger and the guard forget the capture."""
        if self._live is not None and self._live in GUARD.state.threads.get(self._live.thread, ()):
            GUARD.captures.gone(self._live)
        lane = GUARD.ledger.lane(origin.ptr)
        if lane is not None:
            live = GUARD.lives.get(lane.capture)
            if live is None:
                GUARD.ledger.end(lane.capture)
            else:
                GUARD.captures.gone(live)


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


def _went_on(live: OpenCapture) -> bool:
    """Whether the driver's capture continues in a graph of capturekit, after a decision on the device."""
    return bool(live.decisions.bodies) and live.parts.current is not None and bool(live.parts.current.graph)


def _drop_parts(live: OpenCapture) -> None:
    """Destroy the parts of a failed capture, except an unfinished one, which was abandoned already."""
    plan = live.parts.plan
    if plan is None:
        return
    part = live.parts.current
    if part is not None and part.graph and part not in plan.steps and not live.parts.spoilt:
        live.platform.device.graph_destroy(part.graph)
    plan.given = plan.drawn()
    plan.close()


def _plain(live: OpenCapture, made: ExecutableGraph) -> Callable[[], None]:
    """The launch of a graph that capturekit has instantiated."""
    launch, executable = live.platform.device.graph_launch, made.graphExec
    current = live.platform.cupy.cuda.get_current_stream
    return lambda: launch(executable, current().ptr)


def _no_launch() -> None:
    raise AssertionError('a graph with a plan is launched by it')


#: What captures with ``into=`` hold until they are closed, because capturekit can't know when their graph is gone.
HELD: list[Lease] = []


def let_go(lease: Lease) -> None:
    """Give back what a capture with ``into=`` holds."""
    HELD.remove(lease)
    with GUARD.inside:
        lease.release()


# -- reports --------------------------------------------------------------------------------------------------------


def _note_causes(live: OpenCapture, error: BaseException) -> None:
    """Note beside an exception of the block's own which refusals the block has caught before, the first one first."""
    for text in notes(live.causes.before(*shown_with(error))):
        if text not in getattr(error, '__notes__', ()):
            error.add_note(text)


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
    """Call the listeners. Their errors do not replace the error that ended the capture."""
    error = outcome.error
    _found(live, error)
    try:
        tell_listeners(live, graph)
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f'and then, telling of the capture: {failure!r}')


def _found(live: OpenCapture, error: BaseException | None) -> None:
    """Write the error that ended a capture into its recording, for pictures and reports."""
    if isinstance(error, CaptureError):
        if live.caller is None:
            live.causes.add_to(error)
            PROGRAM.remember(error)
        refused(error)
        error.recording = live.recording
        live.note('finding', None, f'{type(error).__name__}: {error}', error.location)
    elif error is not None:
        at = raised_at(error) or live.active_at
        live.note('finding', None, f'{type(error).__name__}: {error}', at)


def _refusal(live: OpenCapture, made: Any, frame: FrameType | None) -> errors.RaceError | None:
    """The error for a capture that has ended well and whose graph has races; possible races become notes."""
    from capturekit.analysis.race_report import races_in
    from capturekit.analysis.races import DOES

    platform, spans = live.platform, [] if live.trace is None else live.trace.spans
    # parts and bodies are separate captures
    if live.memory is None or all(len(one.lanes) < 2 for one in (live.capture, *live.parts.past)):
        return None
    parts = [Part(int(made.graph))] if live.parts.plan is None else live.parts.plan.parts
    with GUARD.inside:
        declared = by_node(platform.device, live.recorder.said, live.recorder.called)
        report = races_in(platform, parts, spans, live.memory, declared, frame)
    for race in report.races:
        if not race.certain:
            live.note('note', None, str(race).replace('\n', ''), race.second.at)
    if not report.certain:
        return None
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
    return error
