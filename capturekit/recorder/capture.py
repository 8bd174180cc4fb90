"""``capture()``: the block in which CuPy work is recorded.

The way out (:mod:`capturekit.recorder.teardown`) was written first. Whatever happens inside the block, afterwards no
stream captures, no wrapper remains, and allocator, current stream, garbage collection and the thread's capture mode are
as before: everything that entering does (:mod:`capturekit.recorder.setup`) is undone by one list of steps, last first,
each tried whatever became of the others.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Literal

from capturekit.analysis.graph_diff import Update
from capturekit.analysis.relaned import Relaned
from capturekit.driver.cuda import current
from capturekit.graph.executable import Graph
from capturekit.guard import GUARD, Live
from capturekit.launch.outside_memory import OutsideMemory
from capturekit.model import errors
from capturekit.model.cleanup import Undo, add_note, uninterrupted
from capturekit.model.host_reads import Rehearsal
from capturekit.model.lease import Lease
from capturekit.model.recording import Recording
from capturekit.model.rules import Code, Mode
from capturekit.model.source_line import here
from capturekit.recorder.arguments import (
    check_flag,
    check_into,
    check_lanes,
    check_pieces,
    check_pool,
    check_race_flag,
    check_rehearsal,
    check_stream,
    check_update,
    to_mode,
)
from capturekit.recorder.branches import Assignment, on_lanes
from capturekit.recorder.conditional import Branch, Branches, Loop, branch, branches, cases, loop
from capturekit.recorder.embed import EmbedTarget, embed, target
from capturekit.recorder.forks import Devices, Fork, Priority
from capturekit.recorder.setup import WayIn
from capturekit.recorder.teardown import HELD, Outcome, let_go, tell_of

ModeName = Literal['relaxed', 'thread_local', 'global']


class Capture(WayIn):
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
        into: EmbedTarget | None = None,
        check_races: bool | None = False,
        renewed: Graph | None = None,
        pieces: bool = False,
        reuse_late: int | None = None,
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
        self._renewed = renewed
        self._update: Update | None = None
        self._reuse_late = reuse_late
        self._relaned: Relaned | None = None
        self._gates = 'device'
        self._pieces = pieces
        self._seams_on: Any = None
        self._outside: OutsideMemory | None = None
        self._state = 'new'
        self._undo = Undo()
        self._lease = Lease()
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
            self._state = 'failed'
            self._not_entered(error)
            raise
        self._state = 'open'
        return self

    def _not_entered(self, error: BaseException) -> None:
        """Take back what was done on the way in until an exception ended it."""
        outcome = Outcome(None)
        outcome.unwind(self._undo)
        outcome.attempt(self._lease.release)
        for fault in outcome.faults[:1]:
            add_note(error, f'and then, on the way out: {fault!r}')
        outcome.faults.clear()

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
                outcome = self._leave(live, error)
                tell_of(live, self._graph, outcome)
                outcome.raise_fault()
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

    @property
    def relaned(self) -> Relaned:
        """Of a capture with ``lanes='auto'``: what became of its edges. Raises ClosedError before the end."""
        if self._relaned is None:
            raise self._used('asking for its edges', before=self._state in ('new', 'open'))
        return self._relaned

    def close(self) -> None:
        """Of a capture into a graph: give back the memory of what it recorded. Again is no error.

        Nobody tells when the last executable graph is gone: until this is called the memory is held, even if nobody
        holds the capture. Raises ClosedError while the block is open; where the capture made a graph, closes that.
        """
        if self._state in ('new', 'open', 'ending', 'entering'):
            raise self._used('closing it', before=True)
        if self._graph is not None:
            self._graph.close()
        elif self._lease in HELD:
            let_go(self._lease)

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
        lanes: int | Sequence[int] | None = None,
        priority: Priority = None,
        assign: Assignment = 'round robin',
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


def capture(
    stream: Any = None,
    *,
    strict: bool = True,
    mode: ModeName | Mode = 'relaxed',
    pool: Any = None,
    rehearsal: Rehearsal | None = None,
    lines: bool = True,
    into: Any = None,
    after: Any = None,
    update: Graph | None = None,
    check_races: bool | None = None,
    pieces: bool = False,
    lanes: Literal['auto'] | None = None,
    memory_limit: int | None = None,
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
            functions around hold until the next line or the block's end.
        into: a ``cuda.core.graph.GraphDefinition`` (or a ``cudaGraph_t`` as an int) that the nodes are added to,
            behind its nodes ``after``. Then there is no ``cap.graph``: ``cap.ends`` are the nodes to go on from, and
            whoever owns the definition instantiates it. The capture's memory is held until ``cap.close()``. A capture
            that fails takes its nodes out again. With ``rehearsal`` it can't be combined.
        update: a graph that is to run, from the end of the block on, what the block has recorded: its executable graph
            is updated in place, and instantiated anew only where CUDA refuses that. ``cap.graph`` is this graph, and
            ``cap.update`` tells what was done. See :meth:`Graph.update`. If the block fails the graph is as it was.
        check_races: whether it is an error at the end of the block that two nodes touch the same memory, one of them
            writing, and no path of edges orders them. See :meth:`Graph.races`. None: where ``strict`` is False.
        pieces: whether calls that no capture can hold (svd, eigh, products of two sparse matrices ...) are made by the
            host at every launch, between two graphs. Each waits for the device. While the block is recorded, the work
            before such a call runs once, because the call needs its values; when the block has ended, the arrays that
            it changed are as before. Random numbers that were drawn stay drawn.
        lanes: 'auto': at the end of the block the graph gets the edges that its data needs, and no others, as by
            :meth:`Graph.relane`; ``cap.relaned`` is the report. Temporaries are used again as late as the memory
            allows, because whoever uses one again has to wait for all who used it before.
        memory_limit: with ``lanes='auto'``, bytes up to which new memory is taken before some is used again. None:
            twice what the block needs at once, as far as it has come.

    Raises:
        RaceError: at the end of the block, where races are looked for and one is certain.
        UpdateError, ClosedError: the graph to be updated is launched in several parts; it is closed.
        TypeError, ValueError: an argument is none of these, or the stream is the legacy one or of another device.
        ImportError: CuPy or cuda-bindings is missing, or of a version that capturekit does not work with.
        UnmatchedError: on entering: the stream is already being captured.

    The block is one thread's; other threads' work goes on and is not recorded.
    """
    check_flag('strict', strict)
    mode = to_mode(mode)
    check_stream(stream)
    check_pool(pool)
    check_rehearsal(rehearsal)
    check_flag('lines', lines)
    check_race_flag(check_races)
    to = target(into, after)
    check_into(to, check_races, rehearsal)
    check_update(update, to, rehearsal)
    check_pieces(pieces, to, update)
    late = check_lanes(lanes, memory_limit, to, update)
    return Capture(stream, strict, mode, pool, rehearsal, lines, to, check_races, update, pieces, late)


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
