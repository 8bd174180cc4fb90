"""``capture()``: the block in which CuPy work is recorded.

The way out was written first. Whatever happens inside the block, afterwards no stream captures, no wrapper remains,
and allocator, current stream, garbage collection and the thread's capture mode are as before: everything that entering
does is undone by one list of steps, last first, each tried whatever became of the others.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from capturekit import errors
from capturekit.changing import Owned
from capturekit.composing import Target, check, embed, join_for_good, take_out, target
from capturekit.cuda import Platform, current
from capturekit.deciding import Branch, Branches, Loop, branch, branches, cases, loop
from capturekit.errors import CaptureError, CudaCallError
from capturekit.figures import refused
from capturekit.forks import LANE_STREAMS, Fork
from capturekit.graph import Graph
from capturekit.guard import GUARD, Live, close_recording, new_recording, tell
from capturekit.keeping import held_by, keep
from capturekit.memory import GraphMemory
from capturekit.places import Place, here, raised_at
from capturekit.provenance import TRACING, Trace
from capturekit.recording import Recording
from capturekit.rehearsal import Answers, Rehearsal
from capturekit.rules import CaptureStatus, Code, Mode, Operation
from capturekit.suspension import forbid_suspension
from capturekit.topology import LEGACY_HANDLES, PER_THREAD_HANDLE
from capturekit.undo import GARBAGE, Undo, add_note, uninterrupted
from capturekit.unloading import UNLOADING
from capturekit.updating import Update

_MODES = {mode.name.lower(): mode for mode in Mode}


class Capture:
    """Record the CuPy work of a block into a graph.

    Made by :func:`capture`. In the block the capture's own stream is current; ``cap.fork(n)``, ``cap.join(stream)``
    and existing ``record``/``wait_event`` code split and join it. After the block ``cap.graph`` is the graph and
    ``cap.recording`` its story. One use each, in the thread that entered it.
    """

    def __init__(
        self,
        stream: Any,
        strict: bool,
        mode: Mode,
        pool: Any,
        rehearsal: Rehearsal | None = None,
        lines: bool = True,
        into: Target | None = None,
    ) -> None:
        self._given = stream
        self._strict = strict
        self._mode = mode
        self._pool = pool
        self._rehearsal = rehearsal
        self._lines = lines
        self._into = into
        self._renewed: Graph | None = None
        self._update: Update | None = None
        self._gates = 'device'
        self._seams_on: Any = None
        self._state = 'new'
        self._undo = Undo()
        self._live: Live | None = None
        self._graph: Graph | None = None

    # -- in ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Capture:
        if self._state != 'new':
            raise self._used('entering it again')
        self._state = 'entering'
        try:
            with uninterrupted():
                self._open(sys._getframe(1))
        except BaseException as error:
            failure = self._undo.run()
            self._state = 'failed'
            if failure is not None:
                add_note(error, f'and then, on the way out: {failure!r}')
            raise
        self._state = 'open'
        return self

    def _open(self, frame: FrameType) -> None:
        undo = self._undo
        undo.push(forbid_suspension(frame))
        platform = current()
        origin = self._origin(platform)
        GARBAGE.hold()
        undo.push(GARBAGE.release)
        UNLOADING.hold(platform)
        undo.push(UNLOADING.release)
        GUARD.install(platform)
        undo.push(GUARD.uninstall)
        with GUARD.lock:
            self._refuse_captured(origin)
            device = platform.device
            old = device.exchange_thread_mode(Mode.RELAXED)
            undo.push(lambda: device.exchange_thread_mode(old))
            memory = GraphMemory(platform.cupy, self._pool, GUARD.worked)
            with GUARD.inside():
                blocking = not device.stream_flags(origin.ptr) & 1
            self._make_current(platform, origin)
            self._begin(platform, origin, memory, blocking, frame)
            undo.push(GUARD.restore_allocator)
            GUARD.refresh()

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

    @staticmethod
    def _refuse_captured(origin: Any) -> None:
        verdict = GUARD.topology.judge(Operation.BEGIN_CAPTURE, thread=threading.get_ident(), stream=origin.ptr)
        if verdict.answer.refused:
            GUARD.refuse(verdict, 'ck.capture()', origin.ptr)
        with GUARD.inside():
            status = GUARD.platform.device.stream_status(origin.ptr)
        if status is not CaptureStatus.NONE:
            raise errors.UnmatchedError(
                'ck.capture()',
                stream=origin.ptr,
                location=here(),
                rule='This stream is already being captured, by a capture that capturekit does not know.',
                remedy='End that capture first, or capture on another stream.',
                cuda_error=Code.cudaErrorIllegalState.name,
            )

    def _make_current(self, platform: Platform, origin: Any) -> None:
        """The origin becomes current; afterwards the stream that was current is so again."""
        stream = platform.cupy.cuda.get_current_stream()
        if GUARD.topology.lane(stream.ptr) is not None:
            GUARD.leave(stream)
            self._undo.push(lambda: _resume(stream))
        self._undo.push(lambda: _make_current_again(platform, stream))
        GUARD.own('cupy.cuda.stream._BaseStream.__enter__', origin)
        undo = lambda: GUARD.own('cupy.cuda.stream._BaseStream.__exit__', origin, None, None, None)  # noqa: E731
        self._undo.push(undo)

    def _begin(self, platform: Platform, origin: Any, memory: GraphMemory, blocking: bool, frame: FrameType) -> None:
        """Begin the driver's capture. What takes a step back is in place before the step is made."""
        device = platform.device
        at = here(frame)
        recording = new_recording(platform, self._mode, strict=self._strict)
        self._undo.push(lambda: self._forget(origin))
        self._undo.push(lambda: self._abandon(platform, origin))
        if self._into is None:
            device.begin_capture(origin.ptr, self._mode)
        else:
            check(device, self._into)
            device.begin_capture_to(origin.ptr, self._into.handle, self._mode, self._into.after)
        capture = GUARD.topology.begin(origin.ptr, self._mode, threading.get_ident(), blocking=blocking, at=at)
        live = Live(platform, capture, self._strict, origin, memory, recording, threading.get_ident(), at)
        live.active_at = at
        if self._into is not None:
            live.into = self._into.handle
            live.numbered[live.into] = self._into.count
        live.gates, live.seams_on = self._gates, self._seams_on
        if not platform.simulated:
            live.held = held_by(frame, platform.cupy.ndarray)
        if self._rehearsal is not None:
            live.given = Answers(self._rehearsal.reads)
        self._live = live
        if getattr(origin, '_graph_host_funcargs', None) is None:
            origin._graph_host_funcargs = []
        capture.origin.current = 1
        memory.opened(capture)
        GUARD.opened(live)
        _note_allocator(live)
        if self._lines:
            trace = live.trace = Trace(device.last_nodes(), origin.ptr, GUARD.lane_number, at)
            self._undo.push(lambda: TRACING.close(trace))
            TRACING.open(trace, frame)

    # -- out --------------------------------------------------------------------------------------------------

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state != 'open':
            raise self._used('leaving it')
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
            add_note(error, f'capturekit: {wrong}')
            return
        with uninterrupted():
            try:
                self._leave(live, error)
            except BaseException as fault:
                _tell(live, None, fault)
                raise
            _tell(live, self._graph, error)

    def _leave(self, live: Live, error: BaseException | None) -> None:
        self._state = 'ending'
        made: Any = None
        fault: BaseException | None = None
        try:
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
        try:
            self._finish(live, made, fault, error)
        finally:
            if made is not None and self._graph is None and self._live not in _HELD:
                UNLOADING.release()

    def _end(self, live: Live, aborted: bool) -> Any:
        """Check, and end the capture; return what CuPy makes of it, instantiated. What goes wrong is raised."""
        with GUARD.lock:
            escaped = self._spring_traps(live)
            live.poll()
            if aborted:
                return None
            GUARD.check(live)
            if escaped is not None:
                raise escaped
            GUARD.find_work(live)
            if live.broken is not None:
                raise _half_a_body(live.broken)
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
        ended = self._ended if self._renewed is None else self._defined
        whole = ended(live)
        self._keep(live, [whole.graph])
        return whole

    @staticmethod
    def _ended(live: Live) -> Any:
        return GUARD.own('cupy.cuda.stream._BaseStream.end_capture', live.origin)

    @staticmethod
    def _defined(live: Live) -> Any:
        """End the capture as CuPy does, and instantiate nothing: a graph that is there takes the definition over."""
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
        GUARD.settle(live)
        live.capture.status = CaptureStatus.NONE
        with GUARD.inside():
            device.end_capture(live.origin.ptr)
        self._keep(live, [into.handle])
        return into

    @staticmethod
    def _keep(live: Live, graphs: list[int]) -> None:
        """Keep what the graph uses from outside; in a strict capture nothing of that may be gone already."""
        reader = None if live.platform.simulated else live.platform.device.reader
        if reader is None or live.memory is None:
            return
        held, live.held = live.held, []
        lost = keep(reader, graphs, live.memory, held, live.platform.cupy.ndarray)
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
                live.plan.complete(part)
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
                if self._into is not None:
                    join_for_good(device, origin.ptr, self._into)
                graph = device.end_capture(origin.ptr)
                if self._into is not None:
                    pass  # what it has added to is somebody else's
                elif self._live is None or not self._live.node:  # the body of a node goes with the graph around it
                    device.graph_destroy(graph)
            except CudaCallError:
                if self._live is not None:
                    self._live.lost = True
                if device.stream_status(origin.ptr) is not CaptureStatus.NONE:
                    raise

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
        if live.memory is not None and (error is not None or fault is not None):
            try:
                with GUARD.inside():
                    if live.plan is not None:
                        _drop(live)
                    live.memory.release()
            except BaseException as found:
                fault = fault or found
        if self._into is not None and live.lost:
            gone = 'capturekit: CUDA has destroyed the graph of into=: make it anew'
            add_note(error or fault or RuntimeError(), gone)
        elif self._into is not None and (error is not None or fault is not None):
            try:
                with GUARD.inside():
                    take_out(live.platform.device, self._into, live.decided)
            except BaseException as found:
                fault = fault or found
        if error is not None:
            if fault is not None:
                add_note(error, f'capturekit: {fault}')
            elif live.trace is not None and live.trace.lost is not None and not isinstance(error, CaptureError):
                add_note(error, f'capturekit: {GUARD.invalidated(live)}')
            elif isinstance(error, RuntimeError) and 'the current stream is capturing' in str(error):
                add_note(error, 'capturekit: a copy between host and device was tried in the block: make it outside')
            elif isinstance(error, NotImplementedError) and 'stream capture' in str(error):
                late = ''.join(f' ({reason})' for reason in GUARD.libraries.late.values())
                add_note(
                    error,
                    f'capturekit: CuPy refuses this library in a capture{late}. Call it before the block, or after.',
                )
            return
        if fault is not None:
            raise fault
        assert live.memory is not None
        live.recording.memory_bytes = live.memory.used_bytes()
        if self._into is not None:
            self._state = 'closed'
            _HELD.append(live)
            return
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
            self._graph = graph
        else:
            try:
                self._update = self._renewed.update(graph, instantiate=True)
            except BaseException:
                graph.close()
                UNLOADING.hold(live.platform)  # which the way out gives back for a graph that was not made
                raise
            self._graph = self._renewed
        self._state = 'closed'

    def _launch_of(self, live: Live, made: Any) -> Callable[[], None]:
        if live.plan is None:
            return GUARD.plain_launch(made) if self._renewed is None else _no_launch
        return _plain(live, made) if live.plan.plain else _no_launch

    # -- what the block can ask -------------------------------------------------------------------------------

    @property
    def stream(self) -> Any:
        """The origin: the stream on which the capture began."""
        if self._live is None:
            raise self._used('asking for its stream', before=True)
        return self._live.origin

    @property
    def graph(self) -> Graph:
        """The recorded graph. Raises ClosedError while the block is open or if it failed."""
        if self._into is not None and self._state == 'closed':
            raise errors.ClosedError(
                'A capture was used: asking for its graph',
                location=here(),
                rule='It has recorded into a graph of yours.',
                remedy='Instantiate that one, and keep this capture: it has the memory of what it recorded.',
            )
        if self._graph is None:
            raise self._used('asking for its graph', before=self._state in ('new', 'open'))
        return self._graph

    @property
    def ends(self) -> list[Any]:
        """Of a capture into a graph: the nodes that what comes after it has to come after.

        Nodes of cuda.core where ``into`` was its GraphDefinition, else handles. Raises ClosedError before the end.
        """
        if self._into is None or self._state != 'closed':
            raise self._used('asking for its ends', before=self._state in ('new', 'open'))
        return self._into.nodes(self._into.ends)

    @property
    def update(self) -> Update:
        """Of a capture with ``update=graph``: what became of the graph. Raises ClosedError before the end."""
        if self._update is None:
            raise self._used('asking for its update', before=self._state in ('new', 'open'))
        return self._update

    def close(self) -> None:
        """Of a capture into a graph: give back the memory of what it recorded. Again is no error.

        Nobody tells when the last executable graph is gone: until this is called the memory is held, even if nobody
        holds the capture. Raises ClosedError while the block is open; where the capture made a graph, closes that.
        """
        if self._state in ('new', 'open', 'ending', 'entering'):
            raise self._used('closing it', before=True)
        if self._graph is not None:
            self._graph.close()
        elif self._into is not None and self._live is not None and self._live in _HELD:
            let_go(self._live)

    def embed(self, graph: Graph) -> None:
        """Put a graph into the current lane, as one node that runs all of it (``cudaGraphAddChildGraphNode``).

        It is copied as it is now; what its nodes use is kept. One graph may be embedded several times, one after the
        other. CUDA C++ Programming Guide, "Graph Structure".

        Raises:
            TypeError: no capturekit.Graph. ValueError: of another device. ClosedError: it, or the capture, is closed.
            UnsupportedCallError: it decides on the device, or is launched in parts; or it is on a lane already that
                may run beside this one.
        """
        self._must_be_open('embed()')
        assert self._live is not None
        embed(self._live, graph)

    @property
    def recording(self) -> Recording:
        """The story of the capture; complete after the block, also when it failed."""
        if self._live is None:
            raise self._used('asking for its recording', before=True)
        return self._live.recording

    def fork(self, n: int, *, priority: int | None = None) -> Fork:
        """Split the current lane in ``n`` for a block; the lanes are joined at its end.

        ``with cap.fork(2) as (left, right):`` and inside ``with left: ...``, ``with right: ...``. Scopes nest.

        Raises:
            TypeError, ValueError: ``n`` is no positive whole number.
            ClosedError: the capture is not open.
        """
        self._must_be_open('fork()')
        return Fork(n, priority, self._must_be_open)

    def join(self, stream: Any) -> None:
        """Make the current lane wait for a stream of the capture (any CuPy stream, or a lane of a fork).

        Raises:
            TypeError: ``stream`` is no stream.
            UnmatchedError: the stream is not in this capture.
            ClosedError: the capture is not open.
        """
        self._must_be_open('join()')
        live = self._live
        assert live is not None
        stream = getattr(stream, 'stream', stream)
        if not hasattr(stream, 'ptr'):
            raise TypeError(f'expected a stream, got {type(stream).__name__}')
        lane = live.lane_of(stream)
        if lane is None:
            raise errors.UnmatchedError(
                'Capture.join()',
                stream=stream.ptr,
                subject=GUARD.subject(stream.ptr),
                location=here(),
                rule='Only a lane of this capture can be joined.',
                remedy='Fork it first: `stream.wait_event(cap.stream.record())`.',
            )
        into = live.platform.cupy.cuda.get_current_stream()
        if into.ptr != stream.ptr:
            into.wait_event(stream.record())

    def while_(self, condition: Any, *, limit: int | None = None) -> Loop:
        """A block that the device runs again and again, as long as ``condition`` is not 0.

        ``with cap.while_(going) as loop:``. ``condition`` is a CuPy array of one element, boolean or whole number, that
        the graph computes; it is asked before the first pass and after each. What a pass hands to the next, the
        condition too, is written in place. ``limit`` passes at most; ``loop.passes`` counts them. Bodies may fork and
        join, and hold other decisions. All lanes are joined before, and at the end of the body. CUDA C++ Programming
        Guide, "Conditional Graph Nodes".

        Raises:
            TypeError, ValueError: a condition or limit that is none.
            UnjoinedError: lanes are open. ClosedError: the capture is not open.
            UnsupportedCallError: in the body, what no body can hold: host functions and reads, random numbers drawn by
                the host, calls that run between two graphs; and a condition that is another array at the end.
        """
        return loop(self._deciding('while_()'), condition, limit)

    def if_(self, condition: Any) -> Branch:
        """A block that the device runs if ``condition`` is not 0: ``with cap.if_(condition):``. See :meth:`while_`."""
        return branch(self._deciding('if_()'), condition)

    def if_else(self, condition: Any) -> Branches:
        """Two blocks, of which the device runs one: ``with cap.if_else(condition) as (then, otherwise):``, and in it
        ``with then:`` and ``with otherwise:``. Nothing may be recorded between them. See :meth:`while_`."""
        return branches(self._deciding('if_else()'), condition)

    def switch(self, index: Any, count: int) -> Branches:
        """``count`` blocks, of which the device runs number ``index``, and none if there is no such number.

        ``with cap.switch(index, 3) as cases:``, and in it ``with cases[0]:`` and so on. See :meth:`while_`.
        """
        return cases(self._deciding('switch()'), index, count)

    def _deciding(self, call: str) -> Live:
        self._must_be_open(call)
        assert self._live is not None
        return self._live

    def _must_be_open(self, call: str) -> None:
        if self._state != 'open':
            raise self._used(call, before=self._state == 'new')
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

    def _used(self, what: str, before: bool = False) -> errors.ClosedError:
        open_now = 'The block is still open' if self._state == 'open' else 'The block has not been entered'
        rule = (
            open_now
            if before
            else {'failed': 'The capture failed and made no graph'}.get(self._state, 'The capture is over')
        )
        return errors.ClosedError(
            f'A capture was used: {what}',
            location=here(sys._getframe(2)),
            rule=f'{rule}.',
            remedy='Open a new one with `with ck.capture() as cap:`; ask for cap.graph after the block.',
        )

    def __repr__(self) -> str:
        return f'<capturekit.Capture {self._state}>'


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


def _plain(live: Live, made: Any) -> Callable[[], None]:
    """The launch of a graph that capturekit has instantiated."""
    launch, executable = live.platform.device.graph_launch, made.graphExec
    current = live.platform.cupy.cuda.get_current_stream
    return lambda: launch(executable, current().ptr)


def _no_launch() -> None:
    raise AssertionError('a graph with a plan is launched by it')


#: Captures into graphs of somebody else's, which nobody has closed: their memory stays.
_HELD: list[Live] = []


def let_go(live: Live) -> None:
    """Give back what a capture into somebody else's graph holds."""
    _HELD.remove(live)
    assert live.memory is not None
    with GUARD.inside():
        live.memory.release()
    UNLOADING.release()


def _drop(live: Live) -> None:
    """Destroy the parts of a capture that failed; one whose end was not reached has been abandoned already."""
    plan = live.plan
    assert plan is not None
    if live.part is not None and live.part.graph and live.part not in plan.steps:
        live.platform.device.graph_destroy(live.part.graph)
    plan.given = plan.drawn()
    plan.close()


def _tell(live: Live, graph: Graph | None, error: BaseException | None) -> None:
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


def _note_allocator(live: Live) -> None:
    """Say what holds for those whose arrays come from CUDA's stream-ordered allocator."""
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


def _make_current_again(platform: Platform, stream: Any) -> None:
    """Leaving a stream's block brings back the block around it, which is not what ``stream.use()`` had made current."""
    if platform.cupy.cuda.get_current_stream().ptr != stream.ptr:
        GUARD.own('cupy.cuda.stream._BaseStream.use', stream)


def _resume(stream: Any) -> None:
    """A lane of an outer capture is current again."""
    lane = GUARD.topology.lane(stream.ptr)
    if lane is not None:
        lane.current += 1
        GUARD.refresh()


def capture(
    stream: Any = None,
    *,
    strict: bool = True,
    mode: str | Mode = 'relaxed',
    pool: Any = None,
    rehearsal: Rehearsal | None = None,
    lines: bool = True,
    into: Any = None,
    after: Any = None,
    update: Graph | None = None,
) -> Capture:
    """Record the CuPy work of a block into a CUDA graph.

    ``with ck.capture() as cap: ...`` and then ``cap.graph.launch()``. CUDA C++ Programming Guide, "Creating a Graph
    Using Stream Capture".

    Args:
        stream: the CuPy stream to capture on; a fresh non-blocking one if None. It is made current for the block.
        strict: True: what would lose the capture, or be left out of it, raises. False: what has an equal meaning in
            a graph is given it, and noted in ``cap.recording.adaptations``.
        mode: 'relaxed', 'thread_local' or 'global': how far unsafe calls (allocations, synchronising streams that
            are not captured) are kept away.
        pool: a ``cupy.cuda.MemoryPool`` for the graph's arrays instead of one of its own. What the capture takes
            from it stays taken while the graph lives.
        rehearsal: of the same code, from :func:`rehearse`: its host reads are answered as they were then, and each is
            checked on the device at every launch.
        lines: whether to follow which line makes which nodes (``cap.recording.spans``): some tenths of a recorded
            operation's time.
        into: a ``cuda.core.graph.GraphDefinition`` (or a ``cudaGraph_t`` as an int) that the nodes are added to,
            behind its nodes ``after``. Then there is no ``cap.graph``: ``cap.ends`` are the nodes to go on from, and
            whoever owns the definition instantiates it. The capture's memory is held until ``cap.close()``. A capture
            that fails takes its nodes out again. With ``rehearsal`` it can't be combined.
        update: a graph that is to run, from the end of the block on, what the block has recorded: its executable graph
            is updated in place, and instantiated anew only where CUDA refuses that. ``cap.graph`` is this graph, and
            ``cap.update`` tells what was done. See :meth:`Graph.update`. If the block fails the graph is as it was.

    Raises:
        UpdateError, ClosedError: the graph to be updated is launched in several parts; it is closed.
        TypeError, ValueError: an argument is none of these, or the stream is the legacy one or of another device.
        ImportError: CuPy or cuda-bindings is missing.
        UnmatchedError: on entering: the stream is already being captured.

    The block is one thread's; other threads' work goes on and is not recorded.
    """
    if not isinstance(strict, bool):
        raise TypeError(f'strict must be True or False, got {strict!r}')
    if isinstance(mode, str) and mode in _MODES:
        mode = _MODES[mode]
    if not isinstance(mode, Mode):
        raise (ValueError if isinstance(mode, str) else TypeError)(
            f"mode must be 'relaxed', 'thread_local' or 'global', got {mode!r}"
        )
    if stream is not None and not (hasattr(stream, 'ptr') and hasattr(stream, 'wait_event')):
        raise TypeError(f'stream must be a CuPy stream or None, got {type(stream).__name__}')
    if stream is not None and stream.ptr in LEGACY_HANDLES:
        raise ValueError('the legacy default stream (Stream.null) can not be captured: leave `stream` out')
    if stream is not None and stream.ptr == PER_THREAD_HANDLE:
        raise ValueError('the per-thread default stream is another one in each thread: capture on a stream of your own')
    if pool is not None and not callable(getattr(pool, 'malloc', None)):
        raise TypeError(f'pool must be a cupy.cuda.MemoryPool or None, got {type(pool).__name__}')
    if rehearsal is not None and not isinstance(rehearsal, Rehearsal):
        raise TypeError(f'rehearsal must come from ck.rehearse(), got {type(rehearsal).__name__}')
    if not isinstance(lines, bool):
        raise TypeError(f'lines must be True or False, got {lines!r}')
    to = target(into, after)
    if to is not None and rehearsal is not None:
        raise ValueError('a rehearsal is checked by launches of capturekit: with into= somebody else launches')
    made = Capture(stream, strict, mode, pool, rehearsal, lines, to)
    if update is not None:
        if not isinstance(update, Graph):
            raise TypeError(f'update must be a capturekit.Graph or None, got {type(update).__name__}')
        if to is not None or rehearsal is not None:
            raise ValueError('update= goes neither with into= nor with a rehearsal')
        update._check_update('ck.capture(update=...)')
        made._renewed = update
    return made


def rehearse(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Rehearsal:
    """Run ``fn(*args, **kwargs)`` eagerly and remember each host read: order, line, shape, dtype, value.

    ``ck.capture(rehearsal=...)`` around the same call then records the way this run went. ``.result`` is what ``fn``
    returned. What ``fn`` raises comes through; in a thread with an open capture, UnmatchedError.
    """
    if not callable(fn):
        raise TypeError(f'rehearse takes a function and its arguments, got {type(fn).__name__}')
    rehearsal = Rehearsal()
    with GUARD.rehearsing(current(), rehearsal):
        rehearsal.result = fn(*args, **kwargs)
    return rehearsal
