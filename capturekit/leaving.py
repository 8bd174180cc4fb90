"""The way out of a capture: it ends, every step of entering is undone, and a graph is made or a fault is told.

Each step is tried whatever became of the others. The first fault is the one that is raised, and an exception of the
block's own before any of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from capturekit import errors
from capturekit.changing import Owned
from capturekit.composing import Target, join_for_good, take_out
from capturekit.cuda import Platform
from capturekit.errors import CaptureError, CudaCallError
from capturekit.figures import refused
from capturekit.forks import LANE_STREAMS
from capturekit.graph import Graph
from capturekit.guard import GUARD, Live, close_recording, tell
from capturekit.keeping import keep, keep_named
from capturekit.places import Place, raised_at
from capturekit.racing import refusal
from capturekit.rules import CaptureStatus
from capturekit.undo import Undo, add_note
from capturekit.unloading import UNLOADING
from capturekit.updating import Update

_WHOEVER = (
    'lanes have different priorities: they count where the definition is instantiated with '
    'cudaGraphInstantiateFlagUseNodePriority'
)


class Leaving:
    """What :class:`capturekit.Capture` does on its way out."""

    _into: Target | None
    _renewed: Graph | None
    _update: Update | None
    _state: str
    _undo: Undo
    _live: Live | None
    _graph: Graph | None
    _checked: bool
    _races_asked: bool
    _left_by: FrameType | None

    def _leave(self, live: Live, error: BaseException | None) -> None:
        self._state = 'ending'
        made: Any = None
        fault: BaseException | None = None
        try:
            GUARD.go_home(live)
            left = self._close_inner(live)
            made = self._end(live, aborted=error is not None or left is not None)
            fault = left
        except BaseException as found:
            fault = found
        if made is None:
            GUARD.settle(live)
        elif live.trace is not None:
            live.trace.finish()
        if made is not None:
            UNLOADING.hold(live.platform)  # for the graph, which gives it back when it is closed
        failure = self._undo.run()
        fault = fault or failure
        if made is not None and error is None and fault is None and self._checked:
            fault = self._race(live, made)
        try:
            self._finish(live, made, fault, error)
        finally:
            if made is not None and self._graph is None and self._live not in HELD:
                UNLOADING.release()

    def _race(self, live: Live, made: Any) -> BaseException | None:
        try:
            return refusal(live, made, self._left_by)
        except CudaCallError as found:
            if self._races_asked:
                return found
            live.note('note', None, f'races were not looked for: {found}', live.at)
            return None
        except BaseException as found:
            return found

    def _end(self, live: Live, aborted: bool) -> Any:
        """Check, and end the capture; return what CuPy makes of it, instantiated. What goes wrong is raised."""
        with GUARD.lock:
            escaped = self._spring_traps(live)
            live.poll()
            if aborted:
                return None
            GUARD.check(live)
            escaped = escaped or GUARD.open_group(live)
            if escaped is not None:
                raise escaped
            GUARD.find_work(live)
            if live.broken is not None:
                raise _half_a_body(live.broken)
            if live.awaited:
                raise _empty_loop(live.awaited[0].at)
            if live.capture.unjoined():
                if live.strict:
                    raise GUARD.unjoined(live)
                GUARD.join_all(live)
            if live.plan is not None:
                made = self._complete(live)
                self._keep(live, [g for part in live.plan.parts for g in part.graphs])
                return made
            device = live.platform.device
            if self._into is not None:
                return self._end_into(live, self._into)
            with GUARD.inside():
                info = device.capture_info(live.origin.ptr)
                live.recording.nodes = device.graph_node_count(info.graph)
                live.recording.edges = device.graph_edge_count(info.graph)
            GUARD.settle(live)
            live.capture.status = CaptureStatus.NONE
        live.recording.by_priority = live.by_priority
        whole = self._defined(live) if self._renewed is not None else self._instantiated(live)
        self._keep(live, [whole.graph])
        return whole

    @staticmethod
    def _instantiated(live: Live) -> Any:
        """End the capture; CuPy instantiates without the priorities of lanes."""
        if not live.by_priority:
            return GUARD.own('cupy.cuda.stream._BaseStream.end_capture', live.origin)
        whole = Leaving._defined(live)
        with GUARD.inside():
            whole.graphExec = live.platform.device.graph_instantiate(whole.graph, by_node_priority=True)
        return whole

    @staticmethod
    def _defined(live: Live) -> Owned:
        """End the capture as CuPy does, and instantiate nothing."""
        with GUARD.inside():
            graph = live.platform.device.end_capture(live.origin.ptr)
        called, live.origin._graph_host_funcargs = live.origin._graph_host_funcargs, None
        return Owned(live.platform.device, graph, 0, called)

    def _end_into(self, live: Live, into: Target) -> Any:
        """The nodes stay in the graph that they were added to."""
        device = live.platform.device
        with GUARD.inside():
            fresh = set(device.graph_nodes(into.handle)[into.count :])
            followed = {
                a for a, b in device.graph_edges(into.handle) if b in fresh
            }  # by others, which are ends or before
            ends = device.capture_info(live.origin.ptr).dependencies
            into.ends = tuple(node for node in ends if node not in followed)
            live.recording.nodes += device.graph_node_count(into.handle) - into.count
            live.recording.edges += device.graph_edge_count(into.handle)
        if live.by_priority:
            live.note('note', None, _WHOEVER, live.at)
        GUARD.settle(live)
        live.capture.status = CaptureStatus.NONE
        with GUARD.inside():
            device.end_capture(live.origin.ptr)
        self._keep(live, [into.handle], into.count)
        return into

    @staticmethod
    def _keep(live: Live, graphs: list[int], first: int = 0) -> None:
        """Keep what the graph uses from outside; in a strict capture nothing of that may be gone already."""
        if live.named and live.memory is not None:
            keep_named(live.named, live.memory, live.platform.cupy.ndarray)
        reader = None if live.platform.simulated else live.platform.device.reader
        if reader is None or live.memory is None:
            return
        held, live.held = live.held, []
        lost = keep(reader, graphs, live.memory, held, live.platform.cupy.ndarray, first)
        for kernel, address in lost:
            text = f'{kernel} uses memory at {address:#x} whose array is gone already'
            live.note('note', None, text, live.at)
        if lost and live.strict:
            raise errors.FreedMemoryError(
                f'{lost[0][0]} uses memory at {lost[0][1]:#x}',
                location=live.at,
                rule='The array that it was is gone already: its memory may be given to somebody else before a launch.',
                remedy='Keep a name for every array that the block reads, outside of the block.',
            )

    @staticmethod
    def _complete(live: Live) -> _Made:
        """The last part ends; every part is instantiated."""
        GUARD.end_part(live)
        assert live.plan is not None
        if live.plan.checks is not None:
            live.plan.checks.complete()
        with GUARD.inside():
            for part in live.plan.parts:
                live.plan.complete(part, live.by_priority)
        live.recording.by_priority = live.by_priority
        first = live.plan.parts[0]
        return _Made(first.graph, first.executable, live.origin._graph_host_funcargs)

    def _close_inner(self, live: Live) -> BaseException | None:
        """Captures that the block began by hand and left open are ended here; the error names the first."""
        found: BaseException | None = None
        with GUARD.lock:
            stack = GUARD.threads.get(live.thread, [])
            for inner in reversed(stack[stack.index(live) + 1 :] if live in stack else []):
                if inner.memory is None:
                    self._abandon(inner.platform, inner.origin)
                    GUARD.gone(inner)
                    found = errors.UnmatchedError(
                        'A capture begun by hand was left open',
                        stream=inner.origin.ptr,
                        location=inner.at,
                        rule='It was begun inside a `with ck.capture()` block, and the block has ended before it.',
                        remedy='Call `stream.end_capture()` before leaving the block.',
                    )
        return found

    def _spring_traps(self, live: Live) -> BaseException | None:
        found: BaseException | None = live.escaped
        for ptr in list(live.trapped):
            found = GUARD.spring(ptr, silent=True) or found
        return found

    def _abandon(self, platform: Platform, origin: Any) -> None:
        """If the driver's capture is still open, end it and throw away what it made."""
        if self._live is not None:
            self._spring_traps(self._live)
        device = platform.device
        with GUARD.inside():
            if device.stream_status(origin.ptr) is CaptureStatus.NONE:
                return
            try:
                known = self._join_for_good(device, origin)
                graph = device.end_capture(origin.ptr)
                if self._into is not None or not known:
                    pass  # what it has added to is somebody else's, or a body that could not be ended
                elif self._live is None or not self._live.node:  # the body of a node goes with the graph around it
                    device.graph_destroy(graph)
                    self._is_gone(graph)
            except CudaCallError:
                if self._live is not None:
                    self._live.lost = True
                    if self._went_on(self._live):
                        self._live.part.graph = 0  # type: ignore[union-attr]  # CUDA has destroyed it
                if device.stream_status(origin.ptr) is not CaptureStatus.NONE:
                    raise

    def _join_for_good(self, device: Any, origin: Any) -> bool:
        """Order all that was recorded before the end; False if what is captured is another graph than is known."""
        live = self._live
        try:
            if live is None or origin is not live.origin:
                return True
            if self._into is not None:
                join_for_good(device, origin.ptr, self._into.handle, self._into.count)
            elif self._went_on(live):
                join_for_good(device, origin.ptr, live.part.graph)  # type: ignore[union-attr]
        except CudaCallError:
            return False
        return True

    def _is_gone(self, graph: int) -> None:
        """A graph that went on behind a decision is known to the plan: it must not be destroyed twice."""
        if self._live is not None and self._live.part is not None and self._live.part.graph == graph:
            self._live.part.graph = 0

    @staticmethod
    def _went_on(live: Live) -> bool:
        """Whether the driver's capture goes on in a graph of ours, behind a decision."""
        return bool(live.decided) and live.part is not None and bool(live.part.graph) and not live.node

    def _forget(self, origin: Any) -> None:
        """The ledger and the guard know nothing of the capture any more."""
        if self._live is not None and self._live in GUARD.threads.get(self._live.thread, ()):
            GUARD.gone(self._live)
        lane = GUARD.topology.lane(origin.ptr)
        if lane is not None:
            live = GUARD.lives.get(lane.capture)
            if live is None:
                GUARD.topology.end(lane.capture)
            else:
                GUARD.gone(live)

    def _finish(self, live: Live, made: Any, fault: BaseException | None, error: BaseException | None) -> None:
        """Everything is as before the block: make the graph, or say what went wrong."""
        self._state = 'failed'
        try:
            LANE_STREAMS.give(live.platform, live.lane_streams)
            close_recording(live, 'good' if made is not None and fault is None else 'failed')
        except BaseException as found:
            fault = fault or found
        if error is not None or fault is not None:
            fault = self._give_back(live, fault, error)
        if error is not None:
            _add_cause(live, fault, error)
            return
        if fault is not None:
            raise fault
        assert live.memory is not None
        live.recording.memory_bytes = live.memory.used_bytes()
        if self._into is None:
            self._graph = self._graph_of(live, made)
        else:
            HELD.append(live)
        self._state = 'closed'

    def _give_back(self, live: Live, fault: BaseException | None, error: BaseException | None) -> BaseException | None:
        """Give back what a capture that failed has taken; return the first fault, which may be of this."""
        if live.memory is not None:
            try:
                with GUARD.inside():
                    if live.plan is not None:
                        _drop(live)
                    live.memory.release()
            except BaseException as found:
                fault = fault or found
        if self._into is not None and live.lost:
            told = error or fault
            assert told is not None, 'a lost capture is told by somebody'
            add_note(told, 'capturekit: CUDA has destroyed the graph of into=: make it anew')
        elif self._into is not None:
            try:
                with GUARD.inside():
                    take_out(live.platform.device, self._into, live.decided)
            except BaseException as found:
                fault = fault or found
        return fault

    def _graph_of(self, live: Live, made: Any) -> Graph:
        """The graph of a good capture: a new one, or the one that takes it over."""
        assert live.memory is not None
        graph = Graph._make(
            live.platform,
            made,
            self._launch_of(live, made),
            live.memory,
            live.recording,
            GUARD.topology,
            GUARD.launching,
            GUARD.inside,
            live.plan,
        )
        if self._renewed is None:
            return graph
        try:
            self._update = self._renewed.update(graph, instantiate=True)
        except BaseException:
            graph.close()
            UNLOADING.hold(live.platform)  # which the way out gives back for a graph that was not made
            raise
        return self._renewed

    def _launch_of(self, live: Live, made: Any) -> Callable[[], None]:
        if self._renewed is not None or (live.plan is not None and not live.plan.plain):
            return _no_launch
        return _plain(live, made) if isinstance(made, (Owned, _Made)) else GUARD.plain_launch(made)


@dataclass
class _Made:
    """What CuPy's own Graph holds, for a graph that CuPy can't make: in several parts, or with conditional nodes."""

    graph: int
    graphExec: int
    host_funcargs: Any


def _half_a_body(at: Place) -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError(
        'A body that an exception has left',
        location=at,
        rule='The exception was caught inside the capture; the body holds what was recorded before it, and no more.',
        remedy='Let the exception end the capture, or catch it inside the body.',
    )


def _empty_loop(at: Place | None) -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError(
        'A loop without a body',
        location=at,
        rule='`cap.while_` was called, and its block never entered: a launch would ask the condition for ever.',
        remedy='Write `with cap.while_(condition):` around the work that is to be repeated.',
    )


def _plain(live: Live, made: Any) -> Callable[[], None]:
    """The launch of a graph that capturekit has instantiated."""
    launch, executable = live.platform.device.graph_launch, made.graphExec
    current = live.platform.cupy.cuda.get_current_stream
    return lambda: launch(executable, current().ptr)


def _no_launch() -> None:
    raise AssertionError('a graph with a plan is launched by it')


#: Captures into graphs of somebody else's, which nobody has closed: their memory stays.
HELD: list[Live] = []


def let_go(live: Live) -> None:
    """Give back what a capture into somebody else's graph holds."""
    HELD.remove(live)
    assert live.memory is not None
    with GUARD.inside():
        live.memory.release()
    UNLOADING.release()


def _add_cause(live: Live, fault: BaseException | None, error: BaseException) -> None:
    """Note beside the block's exception what else went wrong, or what it comes from."""
    if fault is not None:
        add_note(error, f'capturekit: {fault}')
    elif live.trace is not None and live.trace.lost is not None and not isinstance(error, CaptureError):
        add_note(error, f'capturekit: {GUARD.invalidated(live)}')
    elif isinstance(error, RuntimeError) and 'the current stream is capturing' in str(error):
        add_note(error, 'capturekit: a copy between host and device was tried in the block: make it outside')
    elif isinstance(error, NotImplementedError) and 'stream capture' in str(error):
        late = ''.join(f' ({reason})' for reason in GUARD.libraries.late.values())
        text = f'capturekit: CuPy refuses this library in a capture{late}. Call it before the block, or after.'
        add_note(error, text)


def _drop(live: Live) -> None:
    """Destroy the parts of a capture that failed; one whose end was not reached has been abandoned already."""
    plan = live.plan
    assert plan is not None
    if live.part is not None and live.part.graph and live.part not in plan.steps:
        live.platform.device.graph_destroy(live.part.graph)
    plan.given = plan.drawn()
    plan.close()


def tell_of(live: Live, graph: Graph | None, error: BaseException | None) -> None:
    """Tell those who listen. What goes wrong there does not take the place of what ended the capture."""
    _found(live, error)
    try:
        tell(live, graph)
    except Exception as failure:
        if error is None:
            raise
        add_note(error, f'and then, telling of the capture: {failure!r}')


def _found(live: Live, error: BaseException | None) -> None:
    """What ended a capture is told in its recording, for pictures and reports."""
    if isinstance(error, CaptureError):
        refused(error)
        error.recording = live.recording
        live.note('finding', None, f'{type(error).__name__}: {error}', error.location)
    elif error is not None:
        at = raised_at(error) or live.active_at
        live.note('finding', None, f'{type(error).__name__}: {error}', at)
