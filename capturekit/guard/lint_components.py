"""The components of a linted thread that differ from the guard's: they judge calls, and make none themselves.

No capture is open, so they make no calls of the driver and change nothing in CuPy; only the ledger says what would
happen to a call. All other components are the guard's own, and ask the policy of their state (:class:`LintRun`) whether
they record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from capturekit.guard.arrays import Arrays
from capturekit.guard.components import Components
from capturekit.guard.entry_points import Entry
from capturekit.guard.events import Events
from capturekit.guard.exchange import Exchange, WithoutStream
from capturekit.guard.lanes import Lanes
from capturekit.guard.manual_captures import ManualCaptures
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.patching import Installation
from capturekit.guard.policy import Policy
from capturekit.guard.random_draws import RandomDraws, drawn_without_replacement
from capturekit.guard.state import State, handle
from capturekit.guard.stream_switches import StreamSwitches, reads_for_itself
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import Operation
from capturekit.model.source_line import Place, here


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


class LintRun(Policy):
    """What a linted run has done so far: the policy that collects what a strict capture raises.

    ``guard`` still judges the real captures of the run. ``submitted`` counts the work that each stream has got; None
    if that is unknown. ``hear(error, adapted)`` is called with the error that a strict capture raises, and with what
    ``strict=False`` does instead, in words, or None if it raises, too. ``note(kind, text, at)`` is called for work that
    a capture would record differently from what the code says.
    """

    records = False
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
        #: The events that the run recorded on streams outside of the capture, with the stream.
        self.strays: dict[int, int] = {}

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

    def met(self, error: CaptureError, again: Callable[[], Any] | None = None, live: Any = None) -> None:
        """Report what a strict capture raises; ``again`` judges the call as with ``strict=False``, for the ledger.

        If that raises another error (for a callback, on a stream that was forked for it), it is reported, too.
        """
        assert again is not None
        steps, second = self.live.recording.steps, None
        before, self.live.strict = len(steps), False
        try:
            again()
        except CaptureError as found:
            second = found
        finally:
            self.live.strict = True
        adapted = '; '.join(step.text for step in steps[before:] if step.kind == 'adapted')
        self.hear(error, None if second is not None and not adapted else adapted)
        if second is not None and adapted:
            self.hear(second, None)


class LintState(State):
    """The state of a linted thread."""

    policy: LintRun = None  # type: ignore[assignment]  # where the guard's asks for that of the thread

    def __init__(self, installation: Installation, run: LintRun) -> None:
        super().__init__(installation)
        self.policy = run

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

    def entered(self, live: OpenCapture, lane: Lane, stream: Any, at: Place | None) -> None:
        live.streams[lane.stream] = self.wrapped(lane.stream) if stream is None else stream
        self.state.policy.look_at(lane.stream)
        self.has_entered(live, lane, at)

    def let_wait(self, live: OpenCapture, stream: Any, event: Any) -> None:
        live.outside.held.pop(stream.ptr, None)


class LintOutsideStreams(OutsideStreams):
    """Outside streams are not held: it is only noted whether they got work."""

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


class LintStreamSwitches(StreamSwitches):
    """Reading the handle of a stream from outside is noted."""

    state: LintState

    def handed_out(self, stream: Any, ptr: int) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get('__name__', '') == 'capturekit.guard.patching':
            frame = frame.f_back
        lane = self.state.ledger.lane(ptr)
        if reads_for_itself(frame.f_globals.get('__name__', '')) or ptr in LEGACY_HANDLES or lane is not None:
            return
        run = self.state.policy
        if ptr not in run.live.outside.held:
            run.note('outside-handle', f'the handle of {self.verdicts.subject(ptr)}, was read', here())


class LintEvents(Events):
    """The run's real events, which the ledger follows."""

    state: LintState

    def _adapt_record(self, live: OpenCapture, call: str, event: Any, lane: Lane | None = None) -> Any:
        lane = lane or self.lanes.current_lane(live)
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

    state: LintState

    def constant(self, live: OpenCapture, make: Callable[[], Any], call: str) -> Any:
        with self.state.inside:
            array = make()
        text = f'{call}: {array.dtype} {array.shape}, {counted(array.nbytes, "byte")}'
        self.state.policy.note('constant', text, here())
        return array


class LintRandomDraws(RandomDraws):
    """Random numbers are drawn by the run itself; it is noted that each launch of a graph would draw them."""

    state: LintState

    def curand_draw(
        self, entry: Entry, original: Callable[..., Any], generator: int, ptr: int, size: int, *params: Any
    ) -> Any:
        self.state.policy.note('drawn', f'{entry.call}: {size:,} numbers', here())
        return original(generator, ptr, size, *params)

    def random_seed_given(self, original: Callable[..., Any], state: Any, size: int) -> Any:
        self.state.policy.note('drawn', 'a seed for a kernel', here())
        return original(state, size)

    def choice_drawn(
        self, original: Callable[..., Any], state: Any, a: Any, size: Any = None, replace: Any = True, p: Any = None
    ) -> Any:
        count = drawn_without_replacement(a, size, replace, p)
        if count is None:
            return original(state, a, size, replace, p)
        self.state.policy.note('drawn', f'RandomState.choice(): {count} of {a} integers', here())
        with self.state.inside:
            return original(state, a, size, replace, p)

    def random_seeded(self, original: Callable[..., Any], state: Any, seed: Any = None) -> Any:
        self.state.policy.note('drawn', 'a generator is seeded', here())
        return original(state, seed)


class LintManualCaptures(ManualCaptures):
    """Captures during a linted run are real ones, which the guard judges; on a stream of the run they are refused."""

    state: LintState

    def begin(self, entry: Entry, original: Callable[..., Any], stream: Any, mode: Any = None) -> Any:
        ptr = handle(stream)
        self.outside.release(ptr)
        verdict = self.verdicts.judge(Operation.BEGIN_CAPTURE, stream=ptr)
        if verdict.answer.refused:
            self.verdicts.refuse(verdict, entry.call, ptr)
        return self.state.policy.guard.manual.begin(entry, original, stream, mode)


class LintComponents(Components):
    """The components of a linted thread."""

    kind_of_lanes = LintLanes
    kind_of_outside = LintOutsideStreams
    kind_of_streams = LintStreamSwitches
    kind_of_events = LintEvents
    kind_of_exchange = LintExchange
    kind_of_arrays = LintArrays
    kind_of_draws = LintRandomDraws
    kind_of_manual = LintManualCaptures
