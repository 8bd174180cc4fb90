"""``capture()``: the block in which CuPy work is recorded.

The way out (:mod:`capturekit.leaving`) was written first. Whatever happens inside the block, afterwards no stream
captures, no wrapper remains, and allocator, current stream, garbage collection and the thread's capture mode are as
before: everything that entering does is undone by one list of steps, last first, each tried whatever became of the
others.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

from capturekit import errors
from capturekit.assigning import on_lanes
from capturekit.composing import Target, check, embed, target
from capturekit.cuda import Platform, current
from capturekit.deciding import Branch, Branches, Loop, branch, branches, cases, loop
from capturekit.forks import Devices, Fork, Priority
from capturekit.graph import Graph
from capturekit.guard import GUARD, Live, new_recording
from capturekit.keeping import held_by
from capturekit.leaving import HELD, Leaving, let_go, tell_of
from capturekit.memory import GraphMemory
from capturekit.places import here
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


class Capture(Leaving):
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
        check_races: bool | None = False,
    ) -> None:
        self._given = stream
        self._strict = strict
        self._mode = mode
        self._pool = pool
        self._rehearsal = rehearsal
        self._lines = lines
        self._into = into
        self._races_asked = bool(check_races)
        self._checked = self._races_asked or (check_races is None and into is None and not strict)
        self._left_by: FrameType | None = None
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
            memory = GraphMemory(platform.cupy, self._pool, device.next_after(), lambda d: GUARD.on(d, platform))
            with GUARD.inside():
                blocking = not device.stream_flags(origin.ptr) & 1
                priority = 0 if self._given is None else device.stream_priority(origin.ptr)
            self._make_current(platform, origin)
            self._begin(platform, origin, memory, blocking, priority, frame)
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

    def _begin(
        self, platform: Platform, origin: Any, memory: GraphMemory, blocking: bool, priority: int, frame: FrameType
    ) -> None:
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
        number = GUARD.current_device()
        capture = GUARD.topology.begin(
            origin.ptr, self._mode, threading.get_ident(), blocking=blocking, at=at, device=number
        )
        live = Live(platform, capture, self._strict, origin, memory, recording, threading.get_ident(), at)
        live.active_at = at
        if self._into is not None:
            live.into = self._into.handle
            live.numbered[live.into] = self._into.count
        live.gates, live.seams_on = self._gates, self._seams_on
        if not platform.simulated:
            live.held = held_by(frame, platform.cupy.ndarray)
        count = platform.cupy.cuda.runtime.getDeviceCount()
        if count > 1:
            live.outer = [platform.cupy.cuda.get_current_stream(d) for d in range(count)]
            self._undo.push(lambda: GUARD.go_home(live))
        if self._rehearsal is not None:
            live.given = Answers(self._rehearsal.reads)
        self._live = live
        if getattr(origin, '_graph_host_funcargs', None) is None:
            origin._graph_host_funcargs = []
        capture.origin.current, capture.origin.priority = 1, priority
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
        self._left_by = sys._getframe(1) if self._checked else None
        try:
            with uninterrupted():
                try:
                    self._leave(live, error)
                except BaseException as fault:
                    tell_of(live, None, fault)
                    raise
                tell_of(live, self._graph, error)
        finally:
            self._left_by = None

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
        elif self._into is not None and self._live is not None and self._live in HELD:
            let_go(self._live)

    def embed(self, graph: Graph) -> None:
        """Put a graph into the current lane, as one node that runs all of it (``cudaGraphAddChildGraphNode``).

        It is copied as it is now; what its nodes use is kept. One graph may be embedded several times, one after the
        other. CUDA C++ Programming Guide, "Graph Structure".

        Raises:
            TypeError: no capturekit.Graph. ValueError: of another device. ClosedError: it, or the capture, is closed.
            UnsupportedCallError: it decides on the device, or is launched in parts; it is on a lane already that may
                run beside this one; or it works on devices where the capture has no lane.
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

    def fork(self, n: int | None = None, *, priority: Priority = None, devices: Devices = None) -> Fork:
        """Split the current lane in ``n`` for a block; the lanes are joined at its end.

        ``with cap.fork(2) as (left, right):`` and inside ``with left: ...``, ``with right: ...``. Scopes nest.
        ``with cap.fork(devices=[0, 1]) as lanes:`` gives a lane on each of these devices; entering one makes its device
        current, too. ``priority``, ``devices``: as :func:`capturekit.fork` has them.

        Raises:
            TypeError, ValueError: ``n`` is no positive whole number; ``priority`` is no number, nor ``n`` of them;
                ``devices`` are no devices, or not ``n``.
            ClosedError: the capture is not open.
        """
        self._must_be_open('fork()')
        return Fork(n, priority, self._must_be_open, devices)

    def parallel(
        self,
        *branches: Callable[[], Any],
        lanes: int | None = None,
        priority: Priority = None,
        assign: str | Sequence[int] = 'round robin',
    ) -> list[Any]:
        """Record branches, plain callables, on lanes that are joined behind them; return their results.

        As :func:`capturekit.parallel`, which see; on an open capture only.

        Raises:
            ClosedError: the capture is not open. TypeError, ValueError: an argument is none of these.
            Whatever a branch raises.
        """
        self._must_be_open('parallel()')
        return on_lanes(branches, lanes, priority, assign, self._must_be_open)

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
            with GUARD.on(lane.device, live.platform):
                event = live.platform.cupy.cuda.Event()
            stream.record(event)
            into.wait_event(event)

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
    check_races: bool | None = None,
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
            from it stays taken while the graph lives, temporaries too: graphs of one pool share no memory.
        rehearsal: of the same code, from :func:`rehearse`: its host reads are answered as they were then, and each is
            checked on the device at every launch.
        lines: whether to follow which line makes which nodes (``cap.recording.spans``): some tenths of a recorded
            operation's time. Before Python 3.12 that is ``sys.settrace``, which keeps what the variables of the
            functions around hold until they return.
        into: a ``cuda.core.graph.GraphDefinition`` (or a ``cudaGraph_t`` as an int) that the nodes are added to,
            behind its nodes ``after``. Then there is no ``cap.graph``: ``cap.ends`` are the nodes to go on from, and
            whoever owns the definition instantiates it. The capture's memory is held until ``cap.close()``. A capture
            that fails takes its nodes out again. With ``rehearsal`` it can't be combined.
        update: a graph that is to run, from the end of the block on, what the block has recorded: its executable graph
            is updated in place, and instantiated anew only where CUDA refuses that. ``cap.graph`` is this graph, and
            ``cap.update`` tells what was done. See :meth:`Graph.update`. If the block fails the graph is as it was.
        check_races: whether it is an error at the end of the block that two nodes touch the same memory, one of them
            writing, and no path of edges orders them. See :meth:`Graph.races`. None: where ``strict`` is False.

    Raises:
        RaceError: at the end of the block, where races are looked for and one is certain.
        UpdateError, ClosedError: the graph to be updated is launched in several parts; it is closed.
        TypeError, ValueError: an argument is none of these, or the stream is the legacy one or of another device.
        ImportError: CuPy or cuda-bindings is missing, or of a version that capturekit does not work with.
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
    if check_races is not None and not isinstance(check_races, bool):
        raise TypeError(f'check_races must be True, False or None, got {check_races!r}')
    to = target(into, after)
    if to is not None and check_races:
        raise ValueError('with into= somebody else says what comes before and after: races are not looked for')
    if to is not None and rehearsal is not None:
        raise ValueError('a rehearsal is checked by launches of capturekit: with into= somebody else launches')
    made = Capture(stream, strict, mode, pool, rehearsal, lines, to, check_races)
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
