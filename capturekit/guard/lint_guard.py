"""What a capture of an eager run would have been told: a guard beside the guard, for a thread that is linted.

The thread's calls come here instead of to the guard. A topology of the shadow's own follows them, in which the stream
that was current at first plays the origin of a strict capture; the verbs are the guard's, so that what they raise is
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
import sys
import threading
from collections.abc import Callable
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard.allocators import ALLOCATE_ONLY
from capturekit.guard.arrays import _Exchanged
from capturekit.guard.entry_points import Inside
from capturekit.guard.manual_captures import Endings
from capturekit.guard.open_capture import Live, new_recording
from capturekit.guard.random_draws import _CHOICE, _choice_refused
from capturekit.guard.stream_work import _is_ours
from capturekit.model.cleanup import Undo
from capturekit.model.counted import counted
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, CaptureInfo, Lane, LedgerCapture
from capturekit.model.rules import RULES, CaptureStatus, Mode, Operation
from capturekit.model.source_line import Place, called, here

_O = Operation


class Alias(int):
    """The legacy stream's handle under another name: the same number to CUDA, and in Python like no other."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Shadow(Endings):
    """The verbs of one linted thread.

    ``tell(error, adapted)`` is given what a strict capture raises, and what ``strict=False`` makes of the call in
    words, or None where that raises, too. ``note(kind, text, at)`` is given what would be recorded otherwise than it
    reads.
    """

    def __init__(
        self,
        outer: Endings,
        tell: Callable[[CaptureError, str | None], None],
        note: Callable[[str, str, Place | None], None],
    ) -> None:
        super().__init__()
        self._outer = outer
        self._tell_of = tell
        self._note = note
        real = outer.platform
        self.installation = outer.installation
        self._platform = Platform(real.cupy, _Device(real.device))
        self._submitted: dict[int, int] | None = getattr(real.device, 'submitted', None)
        self._memory_of_run = _Memory()
        self._undo = Undo()
        self._me = threading.get_ident()
        #: What was asked before this shadow: it goes on judging the real captures of the run.
        self._before: Any = None
        #: A capture without streams in the guard's own ledger, so that graphs ask before they are launched.
        self._decoy = LedgerCapture(0, Mode.RELAXED, -1)
        #: How much work a stream had been given when it was looked at last; the segments in which a lane worked.
        self._levels: dict[int, int] = {}
        self._busy: dict[Lane, set[int]] = {}
        self._marks = 0
        #: How many calls are being asked about, one in the other.
        self._asking = 0
        #: Events that were recorded in the run on streams outside of the capture, and on which.
        self._strays: dict[int, int] = {}

    # -- in and out -------------------------------------------------------------------------------------------

    def open(self, at: Place | None) -> None:
        """From now on this thread's calls come here."""
        undo, outer, inside = self._undo, self._outer, self.installation.inside
        cupy = outer.platform.cupy
        before = stream = cupy.cuda.get_current_stream()
        undo.push(lambda: self._make_current_again(before))
        if stream.ptr in LEGACY_HANDLES:
            stream = self._wrapped(stream.ptr)
            stream.ptr = Alias(before.ptr)
            undo.push(lambda: setattr(stream, 'ptr', before.ptr))  # somebody may have kept it
            outer.own('cupy.cuda.stream._BaseStream.__enter__', stream)
            undo.push(lambda: outer.own('cupy.cuda.stream._BaseStream.__exit__', stream, None, None, None))
        blocking = stream is before and not self.platform.device.stream_flags(stream.ptr) & 1
        capture = self.topology.begin(
            stream.ptr, Mode.RELAXED, self._me, blocking=blocking, at=at, device=self.current_device()
        )
        recording = new_recording(outer.platform, Mode.RELAXED, strict=True)
        memory: Any = self._memory_of_run
        self._live = Live(self.platform, capture, True, stream, memory, recording, self._me, at)
        self.opened(self._live)
        capture.origin.current = 1
        hook = _hook(cupy, self)
        hook.__enter__()
        undo.push(lambda: hook.__exit__(None, None, None))
        outer.topology.captures.append(self._decoy)
        undo.push(lambda: outer.topology.captures.remove(self._decoy))
        self._before, inside.shadow = inside.shadow, self
        undo.push(lambda: setattr(inside, 'shadow', self._before))

    def look_back(self, aborted: bool) -> None:
        """Tell what would have been said at the end of the capture; if the run was ``aborted``, of lanes nothing."""
        for ptr in list(self._live.trapped):
            self.spring(ptr)
        if not aborted:
            self._unjoined()

    def close(self) -> None:
        """The thread's calls don't come here any more, and all is as it was before."""
        self._undo.close()

    def _make_current_again(self, stream: Any) -> None:
        if self._outer.platform.cupy.cuda.get_current_stream().ptr != stream.ptr:
            self._outer.own('cupy.cuda.stream._BaseStream.use', stream)

    def _unjoined(self) -> None:
        """Lanes whose work the origin does not come after, each at its last line."""
        capture = self._live.capture
        for lane in capture.lanes:
            self._settle(lane)
        origin = capture.origin.clock
        for lane in capture.lanes[1:]:
            reach = {**lane.clock, lane.number: lane.segment}
            for other in capture.lanes[1:]:
                done, last = origin.get(other.number, 0), reach.get(other.number, 0)
                if any(done < segment <= last for segment in self._busy.get(other, ())):
                    lane.worked = lane.segment
        for lane in capture.unjoined():
            error = self.unjoined(self._live, lanes=[lane])
            self._tell_of(error, f'lane {lane.number}, left unjoined, is joined to the origin at the end')

    # -- a call -----------------------------------------------------------------------------------------------

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """What is asked instead of a verb of the guard's: a real capture or rehearsal in the run keeps its guard."""
        if self._outer.mine() is not None or self._me in self._outer.rehearsals:
            return verb if self._before is None else self._before.instead_of(verb)
        given = getattr(verb, 'args', ())
        ask = functools.partial(getattr(self, getattr(verb, 'func', verb).__name__), *given)
        quiet = ('stream_handed_out', 'current_stream', 'stream_eq', 'stream_hash')
        return ask if ask.func.__name__ in quiet else functools.partial(self._asked, ask)

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
            self._told(error, lambda: ask(_nothing, *args, **kwargs))
        finally:
            self._asking -= 1
        with self.inside():
            return original(*args, **kwargs)

    def _told(self, error: CaptureError, again: Callable[[], Any]) -> None:
        """Tell what a strict capture raises; ``again`` asks once more, as ``strict=False``, and the ledger follows.

        Where that raises something else (a callback, on a stream that was forked for it), it is told, too.
        """
        live = self._live
        steps, second = live.recording.steps, None
        before, live.strict = len(steps), False
        try:
            again()
        except CaptureError as found:
            second = found
        finally:
            live.strict = True
        adapted = '; '.join(step.text for step in steps[before:] if step.kind == 'adapted')
        self._tell_of(error, None if second is not None and not adapted else adapted)
        if second is not None and adapted:
            self._tell_of(second, None)

    def launching(self, upload: bool, ptr: int) -> None:
        """A graph of capturekit's own is about to be launched: the guard says so, and launches it."""
        launching = super().launching
        self._asked(lambda _make: launching(upload, ptr), lambda: None)

    # -- what the base asks the driver, and sets in CuPy --------------------------------------------------------

    def check(self, live: Live) -> None:
        """There is no capture that could be lost."""

    def refresh(self) -> None:
        """Allocators stay as they are."""

    def allocator_set(self, original: Callable[..., Any], allocator: Any) -> Any:
        return original(allocator)

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Adapting makes no calls: it is only asked what it would do."""

    def stream_is_capturing(self, original: Callable[..., Any], stream: Any) -> Any:
        return original(stream)

    def stream_is_non_blocking(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        return getter(stream)

    def runtime_stream_flags(self, original: Callable[..., Any], stream: int) -> Any:
        return original(stream)

    def stream_launch_host_func(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        go = functools.partial(original, stream, callback, arg)
        return self._on_stream(_O.LAUNCH_HOST_FUNC, 'Stream.launch_host_func()', stream.ptr, go)

    def stream_begin_capture(self, original: Callable[..., Any], stream: Any, mode: Any = None) -> Any:
        self._may_begin('Stream.begin_capture()', stream.ptr)
        return self._outer.stream_begin_capture(original, stream, mode)

    def runtime_begin_capture(self, original: Callable[..., Any], stream: int, mode: int = 2) -> Any:
        self._may_begin('cupy.cuda.runtime.streamBeginCapture()', stream)
        return self._outer.runtime_begin_capture(original, stream, mode)

    def _may_begin(self, call: str, ptr: int) -> None:
        """A capture beside this one is a real one, and the guard's; on a stream of this one it is refused."""
        self.spring(ptr)
        verdict = self.judge(_O.BEGIN_CAPTURE, stream=ptr)
        if verdict.answer.refused:
            self.refuse(verdict, call, ptr)

    # -- lanes: who worked, and who would be joined to whom ------------------------------------------------------

    def _level(self, ptr: int) -> int | None:
        """How much work a stream has been given; None where nobody knows."""
        return None if self._submitted is None else self._submitted.get(int(ptr), 0)

    def _has_worked(self, ptr: int, otherwise: bool) -> bool:
        """Whether a stream was given work since it was last asked."""
        level = self._level(ptr)
        if level is None:
            return otherwise
        before, self._levels[ptr] = self._levels.get(ptr, 0), level
        return level > before

    def _settle(self, lane: Lane) -> None:
        """Before an event closes a lane's segment: note whether it worked in it."""
        if self._has_worked(lane.stream, lane.open):
            self._busy.setdefault(lane, set()).add(lane.segment)

    def worked(self, lane: Lane) -> bool:
        return lane.open

    def _was_used(self, lane: Lane) -> None:
        self._settle(lane)

    def leave(self, stream: Any) -> None:
        super().leave(stream)
        lane = self.topology.lane(stream.ptr)
        if lane is not None:
            lane.current = max(lane.current, 0)

    def _record_on(self, live: Live, lane: Lane, at: Place | None) -> Any:
        self._settle(lane)
        self._marks -= 1
        event = _Mark(self._marks)
        self.topology.record(event.ptr, lane.stream, at)
        return event

    def _wait_on(self, live: Live, lane: Lane, event: Any, at: Place | None) -> None:
        self.topology.wait(lane.stream, event.ptr, at=at)

    def _entered(self, live: Live, lane: Lane, stream: Any, at: Place | None) -> None:
        live.streams[lane.stream] = self._wrapped(lane.stream) if stream is None else stream
        self._levels[lane.stream] = self._level(lane.stream) or 0
        live.note('fork', lane, f'lane {lane.number} forked from lane {lane.parent}', at)
        if self.platform.cupy.cuda.get_current_stream().ptr == lane.stream:
            lane.current += 1
        if live.floor is not None:
            self._wait_on(live, lane, live.floor, at)

    def _adapt_fork(self, live: Live, stream: Any, at: Place | None, parent: Lane | None = None) -> None:
        parent = parent or self._current_lane(live)
        event = self._record_on(live, parent, at)
        with self.inside():
            blocking = not self.platform.device.stream_flags(stream.ptr) & 1
        live.trapped.pop(stream.ptr, None)
        lane = self.topology.wait(stream.ptr, event.ptr, blocking=blocking, at=at, device=self.device_of(stream))
        if lane is not None:
            self._entered(live, lane, stream, at)
            live.note('adapted', lane, f'stream {stream.ptr:#x} was forked from lane {parent.number}', at)

    def _adapt_record(self, live: Live, call: str, event: Any, lane: Lane | None = None) -> Any:
        lane = lane or self._current_lane(live)
        live.note('adapted', lane, f'{call} on the legacy stream was moved to lane {lane.number}', here())

    def _recorded(self, ptr: int, handle: int, event: Any) -> None:
        super()._recorded(ptr, handle, event)
        self._live.events.clear()  # a handle that is given to a new event is seen to be
        if self.topology.lane(ptr) is None and ptr not in LEGACY_HANDLES:
            self._strays[handle] = ptr
        else:
            self._strays.pop(handle, None)

    def _waiting(self, call: str, ptr: int, event: int, go: Callable[[], Any], stream: Any = None) -> Any:
        live = self._live
        if not live.strict and event in self._strays:  # adapting would have forked the stream where it was recorded
            other = self._strays.pop(event)
            if self._outside(other):
                self._adapt_fork(live, self._wrapped(other), here(), live.capture.origin)
            super()._recorded(other, event, None)
        return super()._waiting(call, ptr, event, go, stream)

    def _choose(self, stream: Any, call: str) -> Any:
        choose = super()._choose
        try:
            return choose(stream, call)
        except CaptureError as error:
            self._told(error, lambda: choose(stream, call))
        return stream

    # -- streams outside of the capture --------------------------------------------------------------------------

    def _trap(self, live: Live, stream: Any) -> None:
        """Nothing is held back: it is only seen whether there was work."""
        live.trapped[stream.ptr] = (stream, here())
        self._levels[stream.ptr] = self._level(stream.ptr) or 0

    def spring(self, ptr: int, silent: bool = False) -> CaptureError | None:
        live = self._live
        if ptr in live.trapped:
            stream, since = live.trapped.pop(ptr)
            if self._has_worked(ptr, True):
                self._escape(stream, self._escaped(live, ptr, 1, None, since))
        return None

    def _escape(self, stream: Any, error: CaptureError) -> None:
        """Work has escaped; from here on its stream counts as forked where that began."""
        live = self._live
        self._told(error, lambda: self._adapt_fork(live, stream, error.location, live.capture.origin))
        lane = self.topology.lane(stream.ptr)
        if lane is not None:
            lane.used, lane.last_use = True, error.location
            self._busy.setdefault(lane, set()).add(lane.segment)

    def allocating(self) -> None:
        """CuPy's pool is asked for memory: on a stream that is outside, work is about to escape."""
        if self.installation.inside.depth or self._outer.mine() is not None:
            return
        stream = self.platform.cupy.cuda.get_current_stream()
        if self._outside(stream.ptr) and called() not in ALLOCATE_ONLY:
            verdict = self.judge(_O.WORK, stream=stream.ptr)
            self._escape(stream, self.refusal(verdict, 'Work', stream.ptr, RULES['escaped-work']))

    def allocated(self, address: int) -> None:
        """Where it was given."""
        self._memory_of_run.addresses.add(address)

    def stream_handed_out(self, stream: Any, ptr: int) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get('__name__', '') == 'capturekit.guard.entry_points':
            frame = frame.f_back
        lane = self.topology.lane(ptr)
        if _is_ours(frame.f_globals.get('__name__', '')) or ptr in LEGACY_HANDLES or lane is not None:
            return
        if ptr not in self._live.trapped:
            self._note('outside-handle', f'the handle of {self.subject(ptr)}, was read', here())

    # -- values ---------------------------------------------------------------------------------------------------

    def _constant(self, live: Live, make: Callable[[], Any], call: str) -> Any:
        with self.inside():
            array = make()
        self._note('constant', f'{call}: {array.dtype} {array.shape}, {counted(array.nbytes, "byte")}', here())
        return array

    def _exchanged(self, live: Live, obj: Any) -> Any:
        interface = dict(obj.__cuda_array_interface__)
        if interface.get('stream') in LEGACY_HANDLES and isinstance(live.origin.ptr, Alias):
            interface['stream'] = None  # so arrays call the origin, whose other name they don't know
            return _Exchanged(interface, obj)
        return super()._exchanged(live, obj)

    def curand_draw(
        self, call: str, original: Callable[..., Any], generator: int, ptr: int, size: int, *params: Any
    ) -> Any:
        self._note('drawn', f'{call}: {size:,} numbers', here())
        return original(generator, ptr, size, *params)

    def random_seed_given(self, original: Callable[..., Any], state: Any, size: int) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get('__name__', '').startswith('capturekit.'):
            frame = frame.f_back
        if frame.f_code.co_name in _CHOICE:
            raise _choice_refused()
        self._note('drawn', 'a seed for a kernel', here())
        return original(state, size)

    def _moved(self, go: Callable[[], Any], exc: tuple[Any, ...] = ()) -> Any:
        """The run is eager: on another device, too, its work goes where it would go anyway."""
        return go()

    def stand_in(self, live: Live, parent: Lane) -> None:
        """Nothing stands in for a stream of an eager run."""

    def random_seeded(self, original: Callable[..., Any], state: Any, seed: Any = None) -> Any:
        self._note('drawn', 'a generator is seeded', here())
        return original(state, seed)


class Witness:
    """Hears what real captures refuse, in every thread, and goes on behind what ``strict=False`` would have made of it.

    ``tell`` is what a :class:`Shadow` tells by. A refusal with no such meaning is raised as ever: the capture would be
    over there. It stands where a shadow stands, beneath those of linted functions.
    """

    def __init__(self, outer: Endings, tell: Callable[[CaptureError, str | None], None]) -> None:
        self._outer = outer
        self._tell_of = tell

    def open(self) -> None:
        """From now on every thread's calls come by here."""
        Inside.shadow = self
        self._outer.installation.inside.shadow = self

    def close(self) -> None:
        """No thread's calls come by here any more; one that has met it meets nothing but the guard."""
        Inside.shadow = None
        self._outer.installation.inside.shadow = None
        self._tell_of = lambda error, adapted: None

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """The guard's own verb, asked a second time where a strict capture refuses and ``strict=False`` would not."""
        name = getattr(verb, 'func', verb).__name__
        return verb if name == 'stream_handed_out' else functools.partial(self._asked, verb)

    def launching(self, upload: bool, ptr: int) -> None:
        """A graph of capturekit's own is about to be launched: the guard says whether it may."""
        inside = self._outer.installation.inside
        inside.shadow = None
        try:
            self._outer.launching(upload, ptr)
        finally:
            inside.shadow = self

    def _asked(self, verb: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        live, made = self._outer.mine(), False

        def make(*given: Any, **named: Any) -> Any:
            nonlocal made
            made = True
            return original(*given, **named)

        given = make if callable(original) else original  # of an attribute it is the instance
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
            self._outer.has_refused(error)
            self._tell_of(error, None)
            raise


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


class _Mark:
    """An event that was never made."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for a call that is asked about and not made."""


def _hook(cupy: Any, shadow: Shadow) -> Any:
    """CuPy's own way to be told of allocations in this thread."""

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
