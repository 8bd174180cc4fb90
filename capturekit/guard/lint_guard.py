"""What a capture of an eager run would refuse: a second guard, the *substitute*, for a thread that is linted.

The thread's calls go to the substitute instead of to the guard. The substitute has its own ledger, in which the stream
that was current at first takes the part of the origin of a strict capture. The verdicts are the guard's, so they raise
what a capture raises. The substitute reports the error instead of raising it, makes the call anyway, and updates the
ledger as ``strict=False`` would (a wait becomes a join, an escaped stream is forked). So one run finds all problems,
and reports none twice. No capture is open, and the substitute makes no calls of the driver.

The legacy stream, which is usually the current one, can't be captured. It then takes the part of the origin under
another name (:class:`Alias`), so that ``Stream.null`` still is a stream outside of the capture.

The simulated device reports which streams got work and what it writes, a GPU does not. There a stream counts as used if
CuPy allocates on it, if a call names it, or else if it was current; and any work may write any array.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.driver.node_accesses import Access, Touched
from capturekit.guard.allocators import ALLOCATE_ONLY
from capturekit.guard.components import MADE_OF, Components, assemble
from capturekit.guard.lint_components import Alias, LintOutsideStreams, LintRun, LintState, kinds
from capturekit.guard.open_capture import OpenCapture, new_recording
from capturekit.guard.patching import Inside
from capturekit.model.cleanup import Undo
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, CaptureInfo, Lane, LedgerCapture
from capturekit.model.rules import RULES, CaptureStatus, Code, Mode, Operation
from capturekit.model.source_line import Place, called

#: The verbs that are called without change, since they make no call of CuPy.
QUIET = ('stream_handed_out', 'current_stream', 'stream_eq', 'stream_hash')


def counterpart(verb: Callable[..., Any], instead: dict[int, Any], asked: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function to call in place of a verb of the guard.

    ``instead``: the components that replace the guard's, by the id of the guard's component. ``asked`` is called with
    the method of the same name and the call's arguments, unless the verb makes no call of CuPy.
    """
    method: Any = getattr(verb, 'func', verb)
    ask = getattr(instead[id(method.__self__)], method.__name__)
    given = getattr(verb, 'args', ())
    if given:
        ask = functools.partial(ask, *given)
    return ask if method.__name__ in QUIET else functools.partial(asked, ask)


class LintGuard:
    """The guard of one linted thread.

    ``tell(error, adapted)`` and ``note(kind, text, at)`` are those of :class:`LintRun`.
    """

    #: Arrays that are made, and CuPy's switches, are not asked about.
    asks_calls_only = True

    def __init__(
        self,
        guard: Components,
        tell: Callable[[CaptureError, str | None], None],
        note: Callable[[str, str, Place | None], None],
    ) -> None:
        self._guard = guard
        real = guard.state.platform
        self._state = LintState(guard.state.installation)
        self._device = _Device(real.device)
        self._state.platform = Platform(real.cupy, self._device)
        self._run = LintRun(guard, getattr(real.device, 'submitted', None), tell, note)
        self._components = assemble(Components, self._state, kinds(self._run))
        #: By the guard's component: the component that replaces it.
        self._instead = {id(getattr(guard, name)): getattr(self._components, name) for name in MADE_OF}
        self._memory_of_run = _Memory()
        self._undo = Undo()
        self._me = threading.get_ident()
        #: The previous substitute or guard, which still judges the real captures of the run.
        self._before: Any = None
        #: A capture without streams in the guard's own ledger, so that graphs ask before they are launched.
        self._decoy = LedgerCapture(0, Mode.RELAXED, -1)
        #: How many nested calls are being judged.
        self._asking = 0

    # -- in and out -------------------------------------------------------------------------------------------

    def open(self, at: Place | None) -> None:
        """Begin to judge this thread's calls."""
        undo, guard, inside = self._undo, self._guard.state, self._state.inside
        cupy = guard.platform.cupy
        before = cupy.cuda.get_current_stream()
        undo.push(lambda: self._make_current_again(before))
        stream = self._play_origin(before)
        self._live = self._run.live = self._begin(stream, stream is before, at)
        hook = _hook(cupy, self)
        hook.__enter__()
        undo.push(lambda: hook.__exit__(None, None, None))
        undo.push(self._device.listen())
        guard.ledger.captures.append(self._decoy)
        undo.push(lambda: guard.ledger.captures.remove(self._decoy))
        self._before, inside.substitute = inside.substitute, self
        undo.push(lambda: setattr(inside, 'substitute', self._before))

    def _play_origin(self, before: Any) -> Any:
        """Return the stream that stands for the origin: the current one. The legacy stream gets another name."""
        if before.ptr not in LEGACY_HANDLES:
            return before
        undo, guard = self._undo, self._guard.state
        stream = self._components.lanes.wrapped(before.ptr)
        stream.ptr = Alias(before.ptr)
        undo.push(lambda: setattr(stream, 'ptr', before.ptr))  # the user's code may have kept it
        guard.own('cupy.cuda.stream._BaseStream.__enter__', stream)
        undo.push(lambda: guard.own('cupy.cuda.stream._BaseStream.__exit__', stream, None, None, None))
        return stream

    def _begin(self, stream: Any, may_block: bool, at: Place | None) -> OpenCapture:
        """Begin a capture in this thread's ledger."""
        state = self._state
        blocking = may_block and not state.platform.device.stream_flags(stream.ptr) & 1
        capture = state.ledger.begin(
            stream.ptr, Mode.RELAXED, self._me, blocking=blocking, at=at, device=state.current_device()
        )
        recording = new_recording(self._guard.state.platform, Mode.RELAXED, strict=True)
        memory: Any = self._memory_of_run
        live = OpenCapture(state.platform, capture, True, stream, memory, recording, self._me, at)
        self._components.captures.opened(live)
        self._components.lanes.make_current(live, stream.ptr)
        return live

    def look_back(self, aborted: bool) -> None:
        """Report what the end of a capture would have raised; of lanes only if the run was not ``aborted``."""
        for ptr in list(self._live.outside.held):
            self._components.outside.release(ptr)
        if not aborted:
            self._unjoined()

    def close(self) -> None:
        """Stop judging the thread's calls, and restore everything."""
        self._undo.close()

    @property
    def alone(self) -> bool:
        """Whether nothing else judges the run's real captures."""
        return self._before is None

    def _make_current_again(self, stream: Any) -> None:
        guard = self._guard.state
        if guard.platform.cupy.cuda.get_current_stream().ptr != stream.ptr:
            guard.own('cupy.cuda.stream._BaseStream.use', stream)

    def _unjoined(self) -> None:
        """Report the lanes whose work the origin does not come after, each at its last line."""
        capture = self._live.capture
        for lane in capture.lanes:
            self._run.settle(lane)
        for lane in capture.lanes[1:]:
            if self._has_unjoined_work(lane):
                lane.worked = lane.segment
        for lane in capture.unjoined():
            error = self._components.joins.unjoined(self._live, lanes=[lane])
            self._run.hear(error, f'lane {lane.number}, left unjoined, is joined to the origin at the end')

    def _has_unjoined_work(self, lane: Lane) -> bool:
        """Whether a lane has made, or waits for, work that the origin does not wait for."""
        lanes = self._live.capture.lanes
        origin, reach = lanes[0].clock, {**lane.clock, lane.number: lane.segment}
        return any(
            origin.get(other.number, 0) < segment <= reach.get(other.number, 0)
            for other in lanes[1:]
            for segment in self._run.busy.get(other, ())
        )

    # -- a call -----------------------------------------------------------------------------------------------

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to call in place of a verb of the guard.

        In a real capture or rehearsal this is the verb itself.
        """
        if self._guard.state.mine() is not None or self._me in self._guard.state.rehearsals:
            return verb if self._before is None else self._before.instead_of(verb)
        return counterpart(verb, self._instead, self._asked)

    def _asked(self, ask: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a verb; report what it raises, and make the user's call anyway, once."""
        # garbage may be collected at any point: a finalizer's calls come in the middle of another call
        if not self._asking:
            self._live.recording.steps.clear()  # a long run would have many, and nothing reads them
        made = False

        def make(*given: Any, **named: Any) -> Any:
            nonlocal made
            made = True
            return original(*given, **named)

        self._asking += 1
        try:
            return ask(make, *args, **kwargs)
        except CaptureError as error:
            if made:
                raise  # the call's own
            self._run.tell(error, lambda: ask(_nothing, *args, **kwargs))
        finally:
            self._asking -= 1
        with self._state.inside():
            return original(*args, **kwargs)

    def launching(self, upload: bool, ptr: int) -> None:
        """Judge the launch of a capturekit graph, before the guard launches it."""
        launching = self._components.launches.launching
        self._asked(lambda _make: launching(upload, ptr), lambda: None)

    # -- allocations ------------------------------------------------------------------------------------------

    def allocating(self) -> None:
        """Note an allocation from CuPy's pool: on a stream outside of the capture, work will escape next."""
        if self._state.inside.active() or self._guard.state.mine() is not None:
            return
        components, outside = self._components, self._components.outside
        stream = self._state.platform.cupy.cuda.get_current_stream()
        if components.lanes.is_outside(stream.ptr) and called() not in ALLOCATE_ONLY:
            verdict = components.verdicts.judge(Operation.WORK, stream=stream.ptr)
            assert isinstance(outside, LintOutsideStreams)
            error = components.verdicts.refusal(verdict, 'Work', stream.ptr, RULES['escaped-work'])
            outside.has_escaped(stream, error)

    def allocated(self, address: int) -> None:
        """Remember the address of memory that the pool has given."""
        self._memory_of_run.addresses.add(address)


class _Device:
    """The device, which reports the substitute's streams as being captured, and the thread's work as one node."""

    def __init__(self, device: Any) -> None:
        self._device = device
        #: What the work of the run writes, or may write; None if that is unknown.
        self._written: dict[Access, None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def capture_info(self, s: int) -> CaptureInfo:
        return CaptureInfo(CaptureStatus.ACTIVE)

    def graph_accesses(self, g: int) -> dict[int, Touched]:
        if self._written is None:
            raise CudaCallError(Code.cudaErrorNotSupported, 'asking what the work of an eager run writes')
        return {0: Touched(tuple(self._written))}

    def listen(self) -> Callable[[], None]:
        """Collect what this thread's work writes, if the device tells; return the function that ends this."""
        told: list[Callable[[Touched], None]] | None = getattr(self._device, 'told_of_work', None)
        if told is None:
            return lambda: None
        me = threading.get_ident()
        written: dict[Access, None] = {}
        self._written = written

        def hear(touched: Touched) -> None:
            if threading.get_ident() == me:
                written.update((access, None) for access in touched.accesses if access.writes is not False)

        told.append(hear)
        return lambda: told.remove(hear)


class _Memory:
    """The memory that the run has allocated, in place of a capture's graph memory."""

    pool: Any = None

    def __init__(self) -> None:
        self.addresses: set[int] = set()

    def owns(self, mem: Any) -> bool:
        return mem.ptr in self.addresses

    def active(self, lane: Lane, ends: tuple[int, ...] | None = None) -> None:
        """Do nothing: the run's memory is CuPy's own."""

    rests = active


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Takes the place of a call that is judged and not made."""


def _hook(cupy: Any, substitute: LintGuard) -> Any:
    """Return a CuPy memory hook that notes the allocations of this thread."""

    def malloc_preprocess(_hook: Any, **_kwargs: Any) -> None:
        substitute.allocating()

    def malloc_postprocess(_hook: Any, **kwargs: Any) -> None:
        substitute.allocated(kwargs['mem_ptr'])

    members = {
        'name': f'capturekit.lint {id(substitute)}',
        'malloc_preprocess': malloc_preprocess,
        'malloc_postprocess': malloc_postprocess,
    }
    return type('Hook', (cupy.cuda.MemoryHook,), members)()


class Witness:
    """Reports what real captures refuse, in every thread, and lets the script continue as with ``strict=False``.

    ``tell`` is the function that a :class:`LintGuard` reports to. A refusal that ``strict=False`` could not adapt is
    raised: the capture ends there. A witness is installed like a shadow, below the shadows of linted functions.
    """

    #: Arrays that are made, and CuPy's switches, are not asked about.
    asks_calls_only = True

    def __init__(self, guard: Components, tell: Callable[[CaptureError, str | None], None]) -> None:
        self._guard = guard
        self._tell_of = tell

    def open(self) -> None:
        """Install the witness for all threads."""
        Inside.substitute = self
        self._guard.state.inside.substitute = self

    def close(self) -> None:
        """Remove the witness; threads that have it use the plain guard from now on."""
        Inside.substitute = None
        self._guard.state.inside.substitute = None
        self._tell_of = lambda error, adapted: None

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """The guard's verb, called once more as with ``strict=False`` if the strict capture refuses."""
        name = getattr(verb, 'func', verb).__name__
        return verb if name == 'stream_handed_out' else functools.partial(self._asked, verb)

    def launching(self, upload: bool, ptr: int) -> None:
        """Let the guard judge the launch of a capturekit graph."""
        inside = self._guard.state.inside
        inside.substitute = None
        try:
            self._guard.launches.launching(upload, ptr)
        finally:
            inside.substitute = self

    def _asked(self, verb: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        live, made = self._guard.state.mine(), False

        def make(*given: Any, **named: Any) -> Any:
            nonlocal made
            made = True
            return original(*given, **named)

        given = make if callable(original) else original  # for an attribute, `original` is the instance
        try:
            return verb(given, *args, **kwargs)
        except CaptureError as error:
            if live is not None and live.strict and not made:
                steps = live.recording.steps
                before, live.strict = len(steps), False
                try:
                    answer = verb(original, *args, **kwargs)
                except CaptureError:
                    pass
                else:
                    words = '; '.join(step.text for step in steps[before:] if step.kind == 'adapted')
                    self._tell_of(error, words or 'lets it be')
                    return answer
                finally:
                    live.strict = True
            refused(error)
            self._guard.verdicts.has_refused(error, getattr(verb, 'func', verb).__name__)
            self._tell_of(error, None)
            raise error
