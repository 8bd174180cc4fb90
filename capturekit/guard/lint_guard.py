"""What a capture of an eager run would refuse: the policy of a thread that is linted.

The thread's calls go to a second set of components with its own ledger, in which the stream that was current at first
takes the part of the origin of a strict capture. The verdicts are the guard's, so they raise what a capture raises. The
error is reported instead, the call is made anyway, and the ledger is updated as ``strict=False`` would (a wait becomes
a join, an escaped stream is forked). So one run finds all problems, and reports none twice. No capture is open, and no
calls of the driver are made.

The legacy stream, which is usually the current one, can't be captured. It then takes the part of the origin under
another name (:class:`Alias`), so that ``Stream.null`` still is a stream outside of the capture.

The simulated device reports which streams got work and what it writes, a GPU does not. There a stream counts as used if
CuPy allocates on it, if a call names it, or else if it was current; and any work may write any array.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.driver.node_accesses import Access, Touched
from capturekit.guard import Components
from capturekit.guard.allocators import ALLOCATE_ONLY, memory_hook
from capturekit.guard.arrays import Arrays
from capturekit.guard.current_streams import CurrentStreams, reads_for_itself
from capturekit.guard.entry_points import Entry
from capturekit.guard.events import Events
from capturekit.guard.lanes import Lanes
from capturekit.guard.manual_captures import ManualCaptures
from capturekit.guard.open_capture import OpenCapture, new_recording
from capturekit.guard.patching import Installation
from capturekit.guard.random_draws import RandomDraws, drawn_without_replacement
from capturekit.guard.state import QUIET, RAISE, OriginalCall, Policy, PolicyOfAll, State, handle
from capturekit.model.cleanup import Undo
from capturekit.model.counted import counted
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, CaptureInfo, Lane, LedgerCapture
from capturekit.model.rules import RULES, CaptureStatus, Code, Mode, Operation
from capturekit.model.source_line import Place, called, here


class Alias(int):
    """The legacy stream's handle under another name: CUDA gets the same number, but in Python it equals no other."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


# -- the components that differ from the guard's: they judge calls, and make none themselves ---------------------------


class LintState(State):
    """The state of a linted thread."""

    policy: LintGuard = None  # type: ignore[assignment]  # where the guard's asks for that of the thread

    def __init__(self, installation: Installation, policy: LintGuard) -> None:
        super().__init__(installation)
        self.policy = policy

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Make no call: adapting is only asked what it would do."""


class LintLanes(Lanes):
    """Lanes in the ledger, without events: a count shows whether a stream got work since its last event."""

    state: LintState

    def was_used(self, lane: Lane, ends: tuple[int, ...] | None = None) -> None:
        self.state.policy.settle(lane)

    def record_on(self, live: OpenCapture, lane: Lane, at: Place | None) -> Any:
        self.state.policy.settle(lane)
        event = self.state.policy.new_event()
        self.state.ledger.record(event.ptr, lane.stream, at)
        return event

    def wait_on(self, live: OpenCapture, lane: Lane, event: Any, at: Place | None) -> None:
        self.state.ledger.wait(lane.stream, event.ptr, at=at)

    def entered(self, live: OpenCapture, lane: Lane, stream: Any, at: Place | None, *, polled: bool = False) -> None:
        live.streams[lane.stream] = self.wrapped(lane.stream) if stream is None else stream
        self.state.policy.look_at(lane.stream)
        self.has_entered(live, lane, at)

    def let_wait(self, live: OpenCapture, stream: Any, event: Any) -> None:
        live.outside.held.pop(stream.ptr, None)


class LintStreams(CurrentStreams):
    """Outside streams are not held: it is noted whether they got work, and where their handle is read."""

    state: LintState

    def hold(self, live: OpenCapture, stream: Any) -> None:
        live.outside.held[stream.ptr] = (stream, here())
        self.state.policy.look_at(stream.ptr)

    def release(self, ptr: int, silent: bool = False) -> CaptureError | None:
        run = self.state.policy
        if ptr in run.live.outside.held:
            stream, since = run.live.outside.held.pop(ptr)
            if run.has_worked(ptr, True):
                self.has_escaped(stream, self.escaped(run.live, ptr, 1, None, since))
        return None

    def has_escaped(self, stream: Any, error: CaptureError) -> None:
        """Note escaped work; from then on its stream counts as forked at the line where the work began."""
        run = self.state.policy
        run.met(error, lambda: self.lanes.adapt_fork(run.live, stream, error.location, run.live.capture.origin))
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None:
            lane.used, lane.last_use = True, error.location
            run.busy.setdefault(lane, set()).add(lane.segment)

    def handed_out(self, stream: Any, ptr: int) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get('__name__', '') == 'capturekit.guard.patching':
            frame = frame.f_back
        lane, run = self.state.ledger.lane(ptr), self.state.policy
        if reads_for_itself(frame.f_globals.get('__name__', '')) or ptr in LEGACY_HANDLES or lane is not None:
            return
        if ptr not in run.live.outside.held:
            run.note('outside-handle', f'the handle of {self.verdicts.subject(ptr)}, was read', here())


class LintEvents(Events):
    """The run's real events, which the ledger follows."""

    state: LintState

    def _adapt_record(self, live: OpenCapture, call: str, event: Any, lane: Lane) -> Any:
        live.note('adapted', lane, f'{call} on the legacy stream was moved to lane {lane.number}', here())

    def _recorded(self, ptr: int, key: int, event: Any) -> None:
        super()._recorded(ptr, key, event)
        strays = self.state.policy.strays
        self.state.policy.live.events.clear()  # a handle that is given to a new event is seen to be
        if self.state.ledger.lane(ptr) is None and ptr not in LEGACY_HANDLES:
            strays[key] = ptr
        else:
            strays.pop(key, None)

    def _waiting(self, call: str, ptr: int, event: int, go: Callable[[], Any], stream: Any = None) -> Any:
        live, strays = self.state.policy.live, self.state.policy.strays
        if not live.strict and event in strays:  # adapting would have forked the stream where it was recorded
            other = strays.pop(event)
            if self.lanes.is_outside(other):
                self.lanes.adapt_fork(live, self.lanes.wrapped(other), here(), live.capture.origin)
            super()._recorded(other, event, None)
        return super()._waiting(call, ptr, event, go, stream)


class LintArrays(Arrays):
    """Uploads are made by the run itself; it is noted that a capture would make them constants."""

    state: LintState

    def constant(self, live: OpenCapture, make: Callable[[], Any], call: str) -> Any:
        with self.state.inside:
            array = make()
        text = f'{call}: {array.dtype} {array.shape}, {counted(array.nbytes, "byte")}'
        self.state.policy.note('constant', text, here())
        return array

    def ordered(self, live: OpenCapture, named: int) -> bool:
        """Arrays of the run name the origin by its real handle, not by the alias."""
        return (named in LEGACY_HANDLES and isinstance(live.origin.ptr, Alias)) or super().ordered(live, named)


class LintRandomDraws(RandomDraws):
    """Random numbers are drawn by the run itself; it is noted that each launch of a graph would draw them."""

    state: LintState

    def _recording(self, what: str) -> None:
        self.state.policy.note('drawn', what, here())

    def choice_drawn(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if drawn_without_replacement(*args[1:], **kwargs) is None:
            return original(*args, **kwargs)
        with self.state.inside:  # CuPy draws a seed in it
            return super().choice_drawn(original, *args, **kwargs)


class LintManualCaptures(ManualCaptures):
    """Captures during a linted run are real ones, which the guard judges; on a stream of the run they are refused."""

    state: LintState

    def begin(self, entry: Entry, original: Callable[..., Any], stream: Any, mode: Any = None) -> Any:
        ptr = handle(stream)
        self.streams.release(ptr)
        verdict = self.verdicts.judge(Operation.BEGIN_CAPTURE, stream=ptr)
        if verdict.answer.refused:
            raise self.verdicts.refusal(verdict, entry.call, ptr)
        return self.state.policy.guard.manual.begin(entry, original, stream, mode)


class LintComponents(Components):
    """The components of a linted thread."""

    kind_of_lanes = LintLanes
    kind_of_streams = LintStreams
    kind_of_events = LintEvents
    kind_of_arrays = LintArrays
    kind_of_draws = LintRandomDraws
    kind_of_manual = LintManualCaptures


class LintGuard(Policy):
    """The policy of one linted thread: what a strict capture raises is collected.

    ``guard`` still judges the real captures of the run. ``tell(error, adapted)`` is called with the error that a strict
    capture raises, and with what ``strict=False`` does instead, in words, or None if it raises, too.
    ``note(kind, text, at)`` is called for work that a capture would record differently from what the code says.
    """

    records = False
    #: The capture that the run stands for.
    live: OpenCapture

    def __init__(
        self,
        guard: Components,
        tell: Callable[[CaptureError, str | None], None],
        note: Callable[[str, str, Place | None], None],
    ) -> None:
        self.guard, self._tell, self.note = guard, tell, note
        real = guard.state.platform
        #: How much work each stream has got, None if that is unknown; and when it was last checked.
        self._submitted: dict[int, int] | None = getattr(real.device, 'submitted', None)
        self._levels: dict[int, int] = {}
        #: The segments in which a lane worked.
        self.busy: dict[Lane, set[int]] = {}
        self._events = 0
        #: The events that the run recorded on streams outside of the capture, with the stream.
        self.strays: dict[int, int] = {}
        self._state = LintState(guard.state.installation, self)
        self._device = _Device(real.device)
        self._state.platform = Platform(real.cupy, self._device)
        self._components = LintComponents(self._state)
        own = vars(self._components)
        #: By the guard's component: the component that is asked instead.
        self._instead = {id(one): own[name] for name, one in vars(guard).items() if name in own}
        self._memory_of_run = _Memory()
        self._undo = Undo()
        self._me = threading.get_ident()
        #: The previous policy, which still judges the real captures of the run.
        self._before: Any = None
        #: A capture without streams in the guard's own ledger, so that graphs ask before they are launched.
        self._decoy = LedgerCapture(0, Mode.RELAXED, -1)
        #: How many nested calls are being judged.
        self._asking = 0

    def new_event(self) -> Any:
        """An event that exists only in the ledger; no real event has its handle."""
        self._events -= 1
        return SimpleNamespace(ptr=self._events)

    def look_at(self, ptr: int) -> None:
        """Ignore the work that a stream has got so far."""
        self._levels[ptr] = 0 if self._submitted is None else self._submitted.get(int(ptr), 0)

    def has_worked(self, ptr: int, otherwise: bool) -> bool:
        """Whether a stream got work since it was last checked; ``otherwise`` if that is unknown."""
        if self._submitted is None:
            return otherwise
        before = self._levels.get(ptr, 0)
        self.look_at(ptr)
        return self._levels[ptr] > before

    def settle(self, lane: Lane) -> None:
        """Note whether a lane worked in its segment, before an event ends the segment."""
        if self.has_worked(lane.stream, lane.open):
            self.busy.setdefault(lane, set()).add(lane.segment)

    def met(self, error: CaptureError, again: Callable[[], Any] | None = None, live: Any = None) -> None:
        """Report what a strict capture raises; ``again`` judges the call as with ``strict=False``, for the ledger.

        If that raises another error (for a callback, on a stream that was forked for it), it is reported, too.
        """
        assert again is not None
        second = None
        with self.live.adapting() as told:
            try:
                again()
            except CaptureError as found:
                second = found
        adapted = '; '.join(told)
        self._tell(error, None if second is not None and not adapted else adapted)
        if second is not None and adapted:
            self._tell(second, None)

    def open(self, at: Place | None) -> None:
        """Begin to judge this thread's calls."""
        undo, guard, inside = self._undo, self.guard.state, self._state.inside
        cupy = guard.platform.cupy
        before = cupy.cuda.get_current_stream()
        undo.push(lambda: guard.use(before))
        stream = self._play_origin(before)
        self.live = self._begin(stream, stream is before, at)
        hook = memory_hook(
            cupy,
            f'capturekit.lint {id(self)}',
            malloc_preprocess=lambda **_facts: self._allocating(),
            malloc_postprocess=lambda mem_ptr, **_facts: self._memory_of_run.addresses.add(mem_ptr),
        )
        hook.__enter__()
        undo.push(lambda: hook.__exit__(None, None, None))
        undo.push(self._device.listen())
        guard.ledger.captures.append(self._decoy)
        undo.push(lambda: guard.ledger.captures.remove(self._decoy))
        self._before, inside.policy = inside.policy, self
        undo.push(lambda: setattr(inside, 'policy', self._before))

    def _play_origin(self, before: Any) -> Any:
        """Return the stream that stands for the origin: the current one. The legacy stream gets another name."""
        if before.ptr not in LEGACY_HANDLES:
            return before
        undo, guard = self._undo, self.guard.state
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
        recording = new_recording(self.guard.state.platform, Mode.RELAXED, strict=True)
        memory: Any = self._memory_of_run
        live = OpenCapture(state.platform, capture, True, stream, memory, recording, self._me, at)
        self._components.captures.opened(live)
        self._components.lanes.make_current(live, stream.ptr)
        return live

    def look_back(self, aborted: bool) -> None:
        """Report what the end of a capture would have raised.

        If the run was not ``aborted``, these are also the lanes whose work the origin does not come after.
        """
        for ptr in list(self.live.outside.held):
            self._components.streams.release(ptr)
        capture = self.live.capture
        if aborted:
            return
        for lane in capture.lanes:
            self.settle(lane)
        for lane in capture.lanes[1:]:
            if self._has_unjoined_work(lane):
                lane.worked = lane.segment
        for lane in capture.unjoined():
            error = self._components.lanes.unjoined(self.live, lanes=[lane])
            self._tell(error, f'lane {lane.number}, left unjoined, is joined to the origin at the end')

    def close(self) -> None:
        """Stop judging the thread's calls, and restore everything."""
        self._undo.close()

    @property
    def alone(self) -> bool:
        """Whether nothing else judges the run's real captures."""
        return self._before is None

    def _has_unjoined_work(self, lane: Lane) -> bool:
        """Whether a lane has made, or waits for, work that the origin does not wait for."""
        lanes = self.live.capture.lanes
        origin, reach = lanes[0].clock, {**lane.clock, lane.number: lane.segment}
        return any(
            origin.get(other.number, 0) < segment <= reach.get(other.number, 0)
            for other in lanes[1:]
            for segment in self.busy.get(other, ())
        )

    def now(self) -> Policy:
        return RAISE if self._before is None else self._before.now()

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to call in place of a verb of the guard.

        In a real capture or rehearsal this is the verb itself.
        """
        if self.guard.state.mine() is not None or self._me in self.guard.state.rehearsals:
            return verb if self._before is None else self._before.instead_of(verb)
        method: Any = getattr(verb, 'func', verb)
        ask = getattr(self._instead[id(method.__self__)], method.__name__)
        given = getattr(verb, 'args', ())
        if given:
            ask = functools.partial(ask, *given)
        return ask if method.__name__ in QUIET else functools.partial(self._asked, ask)

    def _asked(self, ask: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a verb; report what it raises, and make the user's call anyway, once."""
        # garbage may be collected at any point: a finalizer's calls come in the middle of another call
        if not self._asking:
            self.live.recording.steps.clear()  # a long run would have many, and nothing reads them
        call = OriginalCall(original)
        self._asking += 1
        try:
            return ask(call, *args, **kwargs)
        except CaptureError as error:
            if call.made:
                raise  # the call's own
            self.met(error, lambda: ask(lambda *_args, **_kwargs: None, *args, **kwargs))
        finally:
            self._asking -= 1
            call.failure = None  # its traceback holds this frame
        with self._state.inside:
            return original(*args, **kwargs)

    def launching(self, upload: bool, ptr: int) -> None:
        """Judge the launch of a capturekit graph, before the guard launches it."""
        launching = self._components.work.launching
        self._asked(lambda _make: launching(upload, ptr), lambda: None)

    def _allocating(self) -> None:
        """Note an allocation from CuPy's pool: on a stream outside of the capture, work will escape next."""
        if self._state.inside.active() or self.guard.state.mine() is not None:
            return
        components, outside = self._components, self._components.streams
        stream = self._state.platform.cupy.cuda.get_current_stream()
        if components.lanes.is_outside(stream.ptr) and called() not in ALLOCATE_ONLY:
            verdict = components.verdicts.judge(Operation.WORK, stream=stream.ptr)
            assert isinstance(outside, LintStreams)
            error = components.verdicts.refusal(verdict, 'Work', stream.ptr, RULES['escaped-work'])
            outside.has_escaped(stream, error)


class _Device:
    """The device, which reports the run's streams as being captured, and the thread's work as one node."""

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


class Witness(PolicyOfAll):
    """Reports what the real captures of a linted script refuse, in every thread; it continues as with ``strict=False``.

    ``tell`` is the function that a :class:`LintGuard` reports to. A refusal that ``strict=False`` could not adapt is
    raised: the capture ends there. A witness stands below the policies of linted functions.
    """

    def __init__(self, guard: Components, tell: Callable[[CaptureError, str | None], None]) -> None:
        super().__init__(guard)
        self._tell_of = tell

    def close(self) -> None:
        super().close()
        self._tell_of = lambda error, adapted: None

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """The guard's verb, called once more as with ``strict=False`` if the strict capture refuses."""
        quiet = getattr(verb, 'func', verb).__name__ == 'handed_out'
        return verb if quiet else functools.partial(self._asked, verb)

    def _asked(self, verb: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        live, call = self._guard.state.mine(), OriginalCall(original)
        given = call if callable(original) else original  # for an attribute, `original` is the instance
        try:
            return verb(given, *args, **kwargs)
        except CaptureError as error:
            if live is not None and live.strict and not call.made:
                with suppress(CaptureError):
                    with live.adapting() as told:
                        answer = verb(original, *args, **kwargs)
                    self._tell_of(error, '; '.join(told) or 'lets it be')
                    return answer
            refused(error)
            entry = next((one for one in getattr(verb, 'args', ()) if isinstance(one, Entry)), None)
            self._guard.verdicts.has_refused(error, entry)
            self._tell_of(error, None)
            raise error
        finally:
            call.failure = None  # its traceback holds this frame
