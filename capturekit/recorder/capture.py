"""``capture()``: the block in which CuPy work is recorded.

Whatever happens inside the block, afterwards no stream captures, no wrapper remains, and allocator, current stream,
garbage collection and the thread's capture mode are as before: everything that entering does
(:mod:`capturekit.recorder.setup`) is undone by one list of steps (:mod:`capturekit.recorder.teardown`), the last step
first. Each step is tried even if others fail.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar

from capturekit.analysis.graph_diff import Update
from capturekit.driver.cuda import current
from capturekit.graph.executable import Graph
from capturekit.guard import GUARD, OpenCapture
from capturekit.model import errors
from capturekit.model.cleanup import uninterrupted
from capturekit.model.host_reads import Rehearsal
from capturekit.model.recording import Recording
from capturekit.model.rules import Code
from capturekit.model.skipped_exits import CertainExit
from capturekit.model.source_line import here
from capturekit.recorder.embed import embed
from capturekit.recorder.forks import Assignment, Devices, Fork, Priority, on_lanes
from capturekit.recorder.options import CaptureOptions, check_capture, tells_moved_keywords
from capturekit.recorder.refusals import reports_refusal
from capturekit.recorder.setup import WayIn
from capturekit.recorder.teardown import HELD, Outcome, let_go, tell_of

if TYPE_CHECKING:
    from capturekit.fusion.report import Fused
    from capturekit.lanes.report import Relaned
    from capturekit.recorder.conditional import Branch, Branches, Loop


_State = TypeVar('_State')

_DEFAULT = CaptureOptions()


class Capture(WayIn):
    """Record the CuPy work of a block into a graph.

    Made by :func:`capture`. In the block the capture's own stream is current; ``cap.fork(n)``, ``cap.join(stream)``
    and existing ``record``/``wait_event`` code split and join it. After the block ``cap.graph`` is the graph and
    ``cap.recording`` describes how it was made. A Capture is used once, in the thread that entered it.
    """

    # -- in ---------------------------------------------------------------------------------------------------

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

    # -- out --------------------------------------------------------------------------------------------------

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
        self._left_by = sys._getframe(1) if self._checked else None
        try:
            self._close(live, error)
        finally:
            self._left_by = None

    def _close(self, live: OpenCapture, error: BaseException | None) -> None:
        with uninterrupted():
            outcome = self._leave(live, error)
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

    # -- what the block can ask -------------------------------------------------------------------------------

    @property
    def stream(self) -> Any:
        """The origin: the CuPy stream on which the capture began. Raises ClosedError before the block is entered."""
        if self._live is None:
            raise self._used('stream')
        return self._live.origin

    @property
    def graph(self) -> Graph:
        """The recorded graph. Raises ClosedError while the block is open or if it failed."""
        if self._into is not None and self._state == 'closed':
            raise errors.ClosedError(
                'Capture.graph',
                location=here(),
                rule='This capture has recorded into a graph of yours (`into=`), and has none of its own.',
                remedy='Instantiate yours, and keep this capture: it holds the memory of what it recorded.',
            )
        if self._graph is None:
            raise self._used('graph')
        return self._graph

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
        if self._update is None:
            raise self._used('update', 'update=graph')
        return self._update

    @property
    def relaned(self) -> Relaned:
        """Of a capture with ``lanes='auto'``: what became of its edges. Raises ClosedError before the end."""
        if self._relaned is None:
            raise self._used('relaned', "lanes='auto'")
        return self._relaned

    @property
    def fused(self) -> Fused:
        """Of a capture with ``fuse=``: which kernels became one. Raises ClosedError before the end."""
        if self._fused is None:
            raise self._used('fused', 'fuse=True')
        return self._fused

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
        self._must_be_open('embed()')
        assert self._live is not None
        embed(self._live, graph)

    @property
    def recording(self) -> Recording:
        """The :class:`Recording` of the capture, which is complete after the block, also if the block failed.

        Raises ClosedError before the block is entered."""
        if self._live is None:
            raise self._used('recording')
        return self._live.recording

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
        self._must_be_open('join()')
        live = self._live
        assert live is not None
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

    # -- what the device decides ----------------------------------------------------------------------------------

    @reports_refusal
    def cond(
        self, condition: Any, then: Callable[..., _State], otherwise: Callable[..., _State], *operands: Any
    ) -> _State:
        """Record two functions of which the device runs one, and return the result of the one that it runs.

        ``answer = cap.cond(root > 1, lambda: root * 10, lambda: -root)``. Both are called once, while recording, with
        ``operands``. They return arrays, numbers, or tuples, lists, dicts and dataclasses of these, of the same form,
        shapes and dtypes. The result has arrays of its own, which every launch fills; numbers become arrays of shape
        (). ``condition`` and the exceptions are those of :meth:`while_`.

        Raises:
            TypeError: ``then`` or ``otherwise`` can't be called, or what they return differs; the text names where.
        """
        from capturekit.recorder.conditional import conditional

        return conditional(self._deciding('cond()'), condition, then, otherwise, operands)  # type: ignore[no-any-return]

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
        from capturekit.recorder.conditional import repeated

        return repeated(self._deciding('loop()'), condition, body, state, limit)  # type: ignore[no-any-return]

    def while_(self, condition: Any, *, limit: int | None = None) -> Loop:
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
        from capturekit.recorder.conditional import loop

        return loop(self._deciding('while_()'), condition, limit, sys._getframe(1))

    def if_(self, condition: Any) -> Branch:
        """Record a block that the device runs if ``condition`` is not 0: ``with cap.if_(condition):``.

        The condition, the rules of the block and the exceptions are those of :meth:`while_`."""
        from capturekit.recorder.conditional import branch

        return branch(self._deciding('if_()'), condition, sys._getframe(1))

    def if_else(self, condition: Any) -> Branches:
        """Record two blocks of which the device runs one: ``with cap.if_else(condition) as (then, otherwise):``, and
        in it ``with then:`` and ``with otherwise:``. Nothing may be recorded outside of them. Condition, rules and
        exceptions are those of :meth:`while_`."""
        from capturekit.recorder.conditional import branches

        return branches(self._deciding('if_else()'), condition, sys._getframe(1))

    def switch(self, index: Any, count: int) -> Branches:
        """Record ``count`` blocks, of which the device runs number ``index``, or none if there is no such block.

        ``with cap.switch(index, 3) as cases:``, and in it ``with cases[0]:`` and so on. ``index`` is a CuPy array like
        the condition of :meth:`while_`; rules and exceptions are the same.
        """
        from capturekit.recorder.conditional import cases

        return cases(self._deciding('switch()'), index, count, sys._getframe(1))

    @reports_refusal
    def _deciding(self, call: str) -> OpenCapture:
        self._must_be_open(call)
        assert self._live is not None
        return self._live

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
        elif option:
            behind = option.partition('=')[0] in CaptureOptions.__annotations__
            given = f'options=ck.CaptureOptions({option})' if behind else option
            rule, remedy = f'The capture was opened without `{option}`.', f'Open it with `ck.capture({given})`.'
        else:
            rule, remedy = 'The capture is over.', 'Open a new one: `with ck.capture() as cap:`.'
        return errors.ClosedError(f'Capture.{what}', location=here(sys._getframe(2)), rule=rule, remedy=remedy)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError('a Capture is used once, in the thread that entered it: open another with ck.capture()')

    def __repr__(self) -> str:
        return f'<capturekit.Capture {self._state}>'


@tells_moved_keywords('ck.capture', CaptureOptions)
def capture(
    stream: Any = None,
    *,
    strict: bool = True,
    rehearsal: Rehearsal | None = None,
    pieces: bool = False,
    fuse: bool | Literal['fast'] = False,
    lanes: Literal['auto'] | None = None,
    watch: bool = False,
    options: CaptureOptions = _DEFAULT,
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
        options: the mode, the memory, the graph to record into or to update, and what is checked and noted: see
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
    check_capture(stream, strict, rehearsal, pieces, fuse, lanes, watch, options)
    return Capture(stream, strict, rehearsal, pieces, fuse, lanes, watch, options)


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
