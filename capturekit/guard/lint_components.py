"""The components of a linted thread that differ from the guard's: they judge calls, and make none themselves.

No capture is open, so they make no calls of the driver and change nothing in CuPy; only the ledger says what would
happen to a call. All other components are the guard's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.arrays import Arrays
from capturekit.guard.components import Components
from capturekit.guard.device_switches import DeviceSwitches
from capturekit.guard.events import Events
from capturekit.guard.exchange import Exchange, WithoutStream
from capturekit.guard.lanes import Lanes
from capturekit.guard.library_plans import LibraryPlans
from capturekit.guard.manual_captures import ManualCaptures
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import OutsideStreams, Placeholders
from capturekit.guard.random_draws import RandomDraws, drawn_without_replacement
from capturekit.guard.state import State
from capturekit.guard.stream_switches import StreamProperties, StreamSwitches, reads_for_itself
from capturekit.guard.stream_work import StreamWork
from capturekit.guard.verdicts import Verdicts
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, Lane, named
from capturekit.model.rules import Operation
from capturekit.model.source_line import Place, here

_O = Operation


class LintState(State):
    """The state of a linted thread."""

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Make no call: adapting is only asked what it would do."""


class LintVerdicts(Verdicts):
    """Verdicts without an open capture that could be lost."""

    def check(self, live: OpenCapture) -> None:
        """Do nothing: no capture can be lost."""


class LintAllocators(Allocators):
    """Allocators stay as they are."""

    def refresh(self, lane: Lane | None = None) -> None:
        """Do nothing: there is no graph memory to allocate from."""

    def allocator_set(self, original: Callable[..., Any], allocator: Any) -> Any:
        return original(allocator)


class LintLanes(Lanes):
    """Lanes in the ledger, without events: a count shows whether a stream got work since its last event."""

    def __init__(self, run: LintRun, state: State) -> None:
        super().__init__(state)
        self._run = run

    def met(self, ptr: int, stream: Any = None) -> Lane | None:
        """The lane that a stream is in the ledger: there is no driver's capture to ask about."""
        return self.state.ledger.lane(ptr)

    def was_used(self, lane: Lane, ends: tuple[int, ...] | None = None) -> None:
        self._run.settle(lane)

    def leave(self, stream: Any) -> None:
        super().leave(stream)
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None:
            lane.current = max(lane.current, 0)

    def record_on(self, live: OpenCapture, lane: Lane, at: Place | None) -> Any:
        self._run.settle(lane)
        event = self._run.new_event()
        self.state.ledger.record(event.ptr, lane.stream, at)
        return event

    def wait_on(self, live: OpenCapture, lane: Lane, event: Any, at: Place | None) -> None:
        self.state.ledger.wait(lane.stream, event.ptr, at=at)

    def entered(self, live: OpenCapture, lane: Lane, stream: Any, at: Place | None) -> None:
        live.streams[lane.stream] = self.wrapped(lane.stream) if stream is None else stream
        self._run.look_at(lane.stream)
        live.note('fork', lane, f'lane {lane.number} forked from lane {lane.parent}', at)
        if self.state.platform.cupy.cuda.get_current_stream().ptr == lane.stream:
            self.make_current(live, lane.stream)
        if live.awaited_event is not None:
            self.wait_on(live, lane, live.awaited_event, at)

    def adapt_fork(self, live: OpenCapture, stream: Any, at: Place | None, parent: Lane | None = None) -> None:
        parent = parent or self.current_lane(live)
        event = self.record_on(live, parent, at)
        with self.state.inside:
            blocking = not self.state.platform.device.stream_flags(stream.ptr) & 1
        live.outside.held.pop(stream.ptr, None)
        device = self.device_of(stream)
        lane = self.state.ledger.wait(stream.ptr, event.ptr, blocking=blocking, at=at, device=device)
        if lane is not None:
            self.entered(live, lane, stream, at)
            live.note('adapted', lane, f'{named(stream.ptr)} was forked from lane {parent.number}', at)


class LintOutsideStreams(OutsideStreams):
    """Outside streams are not held: it is only noted whether they got work."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def hold(self, live: OpenCapture, stream: Any) -> None:
        live.outside.held[stream.ptr] = (stream, here())
        self._run.look_at(stream.ptr)

    def release(self, ptr: int, silent: bool = False) -> CaptureError | None:
        live = self._run.live
        if ptr in live.outside.held:
            stream, since = live.outside.held.pop(ptr)
            if self._run.has_worked(ptr, True):
                self.has_escaped(stream, self.escaped(live, ptr, 1, None, since))
        return None

    def has_escaped(self, stream: Any, error: CaptureError) -> None:
        """Note escaped work; from then on its stream counts as forked at the line where the work began."""
        live = self._run.live
        self._run.tell(error, lambda: self.lanes.adapt_fork(live, stream, error.location, live.capture.origin))
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None:
            lane.used, lane.last_use = True, error.location
            self._run.busy.setdefault(lane, set()).add(lane.segment)


class LintPlaceholders(Placeholders):
    """Placeholders are not used: the streams of an eager run stay."""

    def put(self, live: OpenCapture, parent: Lane) -> None:
        """Do nothing: the legacy stream stays."""


class LintStreamSwitches(StreamSwitches):
    """A stream that a capture would refuse still becomes current."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def choose(self, stream: Any, call: str) -> Any:
        choose = super().choose
        try:
            return choose(stream, call)
        except CaptureError as error:
            self._run.tell(error, lambda: choose(stream, call))
        return stream


class LintDeviceSwitches(DeviceSwitches):
    """Device switches are not changed: the run is eager, so its work on other devices goes where it always goes."""

    def moved(self, go: Callable[[], Any], exc: tuple[Any, ...] = ()) -> Any:
        return go()


class LintStreamWork(StreamWork):
    """Host functions are not kept, because there is no graph."""

    def stream_launch_host_func(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        go = functools.partial(original, stream, callback, arg)
        return self.on_stream(_O.LAUNCH_HOST_FUNC, 'Stream.launch_host_func()', stream.ptr, go)


class LintStreamProperties(StreamProperties):
    """Streams are not captured, so CUDA can be asked. Reading the handle of an outside stream is noted."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def stream_is_capturing(self, original: Callable[..., Any], stream: Any) -> Any:
        return original(stream)

    def stream_is_non_blocking(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        return getter(stream)

    def runtime_stream_flags(self, original: Callable[..., Any], stream: int) -> Any:
        return original(stream)

    def stream_handed_out(self, stream: Any, ptr: int) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get('__name__', '') == 'capturekit.guard.patching':
            frame = frame.f_back
        lane = self.state.ledger.lane(ptr)
        if reads_for_itself(frame.f_globals.get('__name__', '')) or ptr in LEGACY_HANDLES or lane is not None:
            return
        if ptr not in self._run.live.outside.held:
            self._run.note('outside-handle', f'the handle of {self.verdicts.subject(ptr)}, was read', here())


class LintEvents(Events):
    """The run's real events, which the ledger follows."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run
        #: The events that the run recorded on streams outside of the capture, with the stream.
        self._strays: dict[int, int] = {}

    def _adapt_record(self, live: OpenCapture, call: str, event: Any, lane: Lane | None = None) -> Any:
        lane = lane or self.lanes.current_lane(live)
        live.note('adapted', lane, f'{call} on the legacy stream was moved to lane {lane.number}', here())

    def _recorded(self, ptr: int, handle: int, event: Any) -> None:
        super()._recorded(ptr, handle, event)
        self._run.live.events.clear()  # a handle that is given to a new event is seen to be
        if self.state.ledger.lane(ptr) is None and ptr not in LEGACY_HANDLES:
            self._strays[handle] = ptr
        else:
            self._strays.pop(handle, None)

    def _waiting(self, call: str, ptr: int, event: int, go: Callable[[], Any], stream: Any = None) -> Any:
        live = self._run.live
        if not live.strict and event in self._strays:  # adapting would have forked the stream where it was recorded
            other = self._strays.pop(event)
            if self.lanes.is_outside(other):
                self.lanes.adapt_fork(live, self.lanes.wrapped(other), here(), live.capture.origin)
            super()._recorded(other, event, None)
        return super()._waiting(call, ptr, event, go, stream)


class LintExchange(Exchange):
    """Arrays of the run name the origin by its real handle, not by the alias."""

    def exchanged(self, live: OpenCapture, obj: Any) -> Any:
        interface = dict(obj.__cuda_array_interface__)
        if interface.get('stream') in LEGACY_HANDLES and isinstance(live.origin.ptr, Alias):
            interface['stream'] = None
            return WithoutStream(interface, obj)
        return super().exchanged(live, obj)


class LintArrays(Arrays):
    """Uploads are made by the run itself; it is noted that a capture would make them constants."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def constant(self, live: OpenCapture, make: Callable[[], Any], call: str) -> Any:
        with self.state.inside:
            array = make()
        text = f'{call}: {array.dtype} {array.shape}, {counted(array.nbytes, "byte")}'
        self._run.note('constant', text, here())
        return array


class LintRandomDraws(RandomDraws):
    """Random numbers are drawn by the run itself; it is noted that each launch of a graph would draw them."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def curand_draw(
        self, call: str, original: Callable[..., Any], generator: int, ptr: int, size: int, *params: Any
    ) -> Any:
        self._run.note('drawn', f'{call}: {size:,} numbers', here())
        return original(generator, ptr, size, *params)

    def random_seed_given(self, original: Callable[..., Any], state: Any, size: int) -> Any:
        self._run.note('drawn', 'a seed for a kernel', here())
        return original(state, size)

    def choice_drawn(
        self, original: Callable[..., Any], state: Any, a: Any, size: Any = None, replace: Any = True, p: Any = None
    ) -> Any:
        count = drawn_without_replacement(a, size, replace, p)
        if count is None:
            return original(state, a, size, replace, p)
        self._run.note('drawn', f'RandomState.choice(): {count} of {a} integers', here())
        with self.state.inside:
            return original(state, a, size, replace, p)

    def random_seeded(self, original: Callable[..., Any], state: Any, seed: Any = None) -> Any:
        self._run.note('drawn', 'a generator is seeded', here())
        return original(state, seed)


class LintManualCaptures(ManualCaptures):
    """Captures during a linted run are real ones, which the guard judges; on a stream of the run they are refused."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def stream_begin_capture(self, original: Callable[..., Any], stream: Any, mode: Any = None) -> Any:
        self._may_begin('Stream.begin_capture()', stream.ptr)
        return self._run.guard.manual.stream_begin_capture(original, stream, mode)

    def runtime_begin_capture(self, original: Callable[..., Any], stream: int, mode: int = 2) -> Any:
        self._may_begin('cupy.cuda.runtime.streamBeginCapture()', stream)
        return self._run.guard.manual.runtime_begin_capture(original, stream, mode)

    def _may_begin(self, call: str, ptr: int) -> None:
        self.outside.release(ptr)
        verdict = self.verdicts.judge(_O.BEGIN_CAPTURE, stream=ptr)
        if verdict.answer.refused:
            self.verdicts.refuse(verdict, call, ptr)


class LintPlans(LibraryPlans):
    """Plans are made and used by the run itself; those that a capture would refuse are told."""

    def _can_suspend(self, live: OpenCapture) -> bool:
        return not live.decisions.open and all(lane.joined_at is not None for lane in live.capture.lanes[1:])

    def _suspended(self, live: OpenCapture, call: str, make: Callable[[], Any]) -> Any:
        return make()

    def plan_used(self, original: Callable[..., Any], plan: Any, *args: Any) -> Any:
        return original(plan, *args)


#: The components that need the run.
_OF_THE_RUN: dict[str, Callable[..., Any]] = {
    'lanes': LintLanes,
    'outside': LintOutsideStreams,
    'streams': LintStreamSwitches,
    'properties': LintStreamProperties,
    'events': LintEvents,
    'arrays': LintArrays,
    'draws': LintRandomDraws,
    'manual': LintManualCaptures,
}


def kinds(run: LintRun) -> dict[str, Callable[..., Any]]:
    """The functions that make components in the place of the guard's, by name."""
    return {
        'verdicts': LintVerdicts,
        'allocators': LintAllocators,
        'placeholders': LintPlaceholders,
        'devices': LintDeviceSwitches,
        'work': LintStreamWork,
        'exchange': LintExchange,
        'plans': LintPlans,
        **{name: functools.partial(kind, run) for name, kind in _OF_THE_RUN.items()},
    }


class Alias(int):
    """The legacy stream's handle under another name: CUDA gets the same number, but in Python it equals no other."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class UnmadeEvent:
    """An event that exists only in the ledger."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class LintRun:
    """What a linted run has done so far.

    ``guard`` still judges the real captures of the run. ``submitted`` counts the work that each stream has got; None
    if that is unknown. ``hear(error, adapted)`` is called with the error that a strict capture raises, and with what
    ``strict=False`` does instead, in words, or None if it raises, too. ``note(kind, text, at)`` is called for work that
    a capture would record differently from what the code says.
    """

    #: The capture that the run stands for.
    live: OpenCapture

    def __init__(
        self,
        guard: Components,
        submitted: dict[int, int] | None,
        hear: Callable[[CaptureError, str | None], None],
        note: Callable[[str, str, Place | None], None],
    ) -> None:
        self.guard = guard
        self.hear = hear
        self.note = note
        self._submitted = submitted
        #: How much work a stream had got when it was last checked; the segments in which a lane worked.
        self._levels: dict[int, int] = {}
        self.busy: dict[Lane, set[int]] = {}
        self._events = 0

    def new_event(self) -> UnmadeEvent:
        """An event for the ledger only; no real event has its handle."""
        self._events -= 1
        return UnmadeEvent(self._events)

    def _level(self, ptr: int) -> int | None:
        """How much work a stream has got; None if that is unknown."""
        return None if self._submitted is None else self._submitted.get(int(ptr), 0)

    def look_at(self, ptr: int) -> None:
        """Ignore the work that a stream has got so far."""
        self._levels[ptr] = self._level(ptr) or 0

    def has_worked(self, ptr: int, otherwise: bool) -> bool:
        """Whether a stream got work since it was last checked; ``otherwise`` if that is unknown."""
        level = self._level(ptr)
        if level is None:
            return otherwise
        before, self._levels[ptr] = self._levels.get(ptr, 0), level
        return level > before

    def settle(self, lane: Lane) -> None:
        """Note whether a lane worked in its segment, before an event ends the segment."""
        if self.has_worked(lane.stream, lane.open):
            self.busy.setdefault(lane, set()).add(lane.segment)

    def tell(self, error: CaptureError, again: Callable[[], Any]) -> None:
        """Report what a strict capture raises; ``again`` judges the call as with ``strict=False``, for the ledger.

        If that raises another error (for a callback, on a stream that was forked for it), it is reported, too.
        """
        live = self.live
        steps, second = live.recording.steps, None
        before, live.strict = len(steps), False
        try:
            again()
        except CaptureError as found:
            second = found
        finally:
            live.strict = True
        adapted = '; '.join(step.text for step in steps[before:] if step.kind == 'adapted')
        self.hear(error, None if second is not None and not adapted else adapted)
        if second is not None and adapted:
            self.hear(second, None)
