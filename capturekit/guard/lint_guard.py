"""What a capture of an eager run would have been told: a guard beside the guard, for a thread that is linted.

The thread's calls come here instead of to the guard. A ledger of the shadow's own follows them, in which the stream
that was current at first plays the origin of a strict capture; the verdicts are the guard's, so that what they raise is
what a capture raises. It is told instead of raised, the call is made all the same, and the ledger goes on as
``strict=False`` would have it (a wait became a join, an escaped stream was forked), so that one run meets all there is
and no trouble is told twice over. Nothing of it reaches the driver: no capture is open.

The legacy stream is no stream that could be captured, and mostly the one that is current. It then plays the origin
under another name (:class:`Alias`), so that ``Stream.null`` stays what it would be in a capture: somebody else.

On the simulated device it is known which streams got work. A GPU doesn't tell: there a stream counts as worked on where
CuPy allocates on it, where a call names it, and else where it was current.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard.allocators import ALLOCATE_ONLY
from capturekit.guard.components import MADE_OF, Components, assemble
from capturekit.guard.lint_components import LintOutsideStreams, LintState, kinds
from capturekit.guard.lint_run import Alias, LintRun
from capturekit.guard.open_capture import Live, new_recording
from capturekit.model.cleanup import Undo
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, CaptureInfo, Lane, LedgerCapture
from capturekit.model.rules import RULES, CaptureStatus, Mode, Operation
from capturekit.model.source_line import Place, called

#: Asked as they are, since they make no call.
QUIET = ('stream_handed_out', 'current_stream', 'stream_eq', 'stream_hash')


class Shadow:
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
        self._state = LintState()
        self._state.installation = guard.state.installation
        self._state.platform = Platform(real.cupy, _Device(real.device))
        self._run = LintRun(guard, getattr(real.device, 'submitted', None), tell, note)
        self._components = assemble(Components, self._state, kinds(self._run))
        #: By what the guard's component is: the one that is asked instead.
        self._instead = {id(getattr(guard, name)): getattr(self._components, name) for name in MADE_OF}
        self._memory_of_run = _Memory()
        self._undo = Undo()
        self._me = threading.get_ident()
        #: What was asked before this shadow: it goes on judging the real captures of the run.
        self._before: Any = None
        #: A capture without streams in the guard's own ledger, so that graphs ask before they are launched.
        self._decoy = LedgerCapture(0, Mode.RELAXED, -1)
        #: How many calls are being asked about, one in the other.
        self._asking = 0

    # -- in and out -------------------------------------------------------------------------------------------

    def open(self, at: Place | None) -> None:
        """Judge this thread's calls from now on."""
        undo, guard, inside = self._undo, self._guard.state, self._state.installation.inside
        cupy = guard.platform.cupy
        before = cupy.cuda.get_current_stream()
        undo.push(lambda: self._make_current_again(before))
        stream = self._play_origin(before)
        self._live = self._run.live = self._begin(stream, stream is before, at)
        hook = _hook(cupy, self)
        hook.__enter__()
        undo.push(lambda: hook.__exit__(None, None, None))
        guard.ledger.captures.append(self._decoy)
        undo.push(lambda: guard.ledger.captures.remove(self._decoy))
        self._before, inside.shadow = inside.shadow, self
        undo.push(lambda: setattr(inside, 'shadow', self._before))

    def _play_origin(self, before: Any) -> Any:
        """Return the stream that stands for the origin: the current one. The legacy stream gets another name."""
        if before.ptr not in LEGACY_HANDLES:
            return before
        undo, guard = self._undo, self._guard.state
        stream = self._components.lanes.wrapped(before.ptr)
        stream.ptr = Alias(before.ptr)
        undo.push(lambda: setattr(stream, 'ptr', before.ptr))  # somebody may have kept it
        guard.own('cupy.cuda.stream._BaseStream.__enter__', stream)
        undo.push(lambda: guard.own('cupy.cuda.stream._BaseStream.__exit__', stream, None, None, None))
        return stream

    def _begin(self, stream: Any, may_block: bool, at: Place | None) -> Live:
        """A capture begins in the ledger of this thread."""
        state = self._state
        blocking = may_block and not state.platform.device.stream_flags(stream.ptr) & 1
        capture = state.ledger.begin(
            stream.ptr, Mode.RELAXED, self._me, blocking=blocking, at=at, device=state.current_device()
        )
        recording = new_recording(self._guard.state.platform, Mode.RELAXED, strict=True)
        memory: Any = self._memory_of_run
        live = Live(state.platform, capture, True, stream, memory, recording, self._me, at)
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
        """Judge the thread's calls no more, and put everything back as it was before."""
        self._undo.close()

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
        """Return whether a lane has made, or waits for, work that the origin does not wait for."""
        lanes = self._live.capture.lanes
        origin, reach = lanes[0].clock, {**lane.clock, lane.number: lane.segment}
        return any(
            origin.get(other.number, 0) < segment <= reach.get(other.number, 0)
            for other in lanes[1:]
            for segment in self._run.busy.get(other, ())
        )

    # -- a call -----------------------------------------------------------------------------------------------

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is asked in the place of a verb of the guard.

        In a real capture or rehearsal that is the verb itself.
        """
        if self._guard.state.mine() is not None or self._me in self._guard.state.rehearsals:
            return verb if self._before is None else self._before.instead_of(verb)
        method: Any = getattr(verb, 'func', verb)
        ask = getattr(self._instead[id(method.__self__)], method.__name__)
        given = getattr(verb, 'args', ())
        if given:
            ask = functools.partial(ask, *given)
        return ask if method.__name__ in QUIET else functools.partial(self._asked, ask)

    def _asked(self, ask: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Ask a verb about a call; tell what it raises, and make the call all the same, once."""
        # garbage is collected anywhere: what a finalizer calls comes in the middle of another call
        if not self._asking:
            self._live.recording.steps.clear()  # of long runs they would be many, and nobody reads them
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
        """A graph of capturekit's own is about to be launched: the guard says so, and launches it."""
        launching = self._components.launches.launching
        self._asked(lambda _make: launching(upload, ptr), lambda: None)

    # -- allocations ------------------------------------------------------------------------------------------

    def allocating(self) -> None:
        """CuPy's pool is asked for memory: on a stream that is outside, work is about to escape."""
        if self._state.installation.inside.depth or self._guard.state.mine() is not None:
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
    """The device, as if the shadow's streams were being captured."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def capture_info(self, s: int) -> CaptureInfo:
        return CaptureInfo(CaptureStatus.ACTIVE)


class _Memory:
    """What the run has allocated, where a capture has its graph's memory."""

    pool: Any = None

    def __init__(self) -> None:
        self.addresses: set[int] = set()

    def owns(self, mem: Any) -> bool:
        return mem.ptr in self.addresses

    def active(self, lane: Lane) -> None:
        """Blocks of the run are CuPy's own."""

    rests = active


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for a call that is asked about and not made."""


def _hook(cupy: Any, shadow: Shadow) -> Any:
    """Return a hook of CuPy's that hears of the allocations in this thread."""

    def malloc_preprocess(_hook: Any, **_kwargs: Any) -> None:
        shadow.allocating()

    def malloc_postprocess(_hook: Any, **kwargs: Any) -> None:
        shadow.allocated(kwargs['mem_ptr'])

    members = {
        'name': f'capturekit.lint {id(shadow)}',
        'malloc_preprocess': malloc_preprocess,
        'malloc_postprocess': malloc_postprocess,
    }
    return type('Hook', (cupy.cuda.MemoryHook,), members)()
