"""The components of a linted thread that differ from the guard's: they ask, and make no calls of their own.

No capture is open, so that nothing reaches the driver and nothing is set in CuPy; what would become of a call is told
by the ledger alone. The others, all verdicts among them, are the guard's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.arrays import Arrays
from capturekit.guard.device_switches import DeviceSwitches
from capturekit.guard.events import Events
from capturekit.guard.exchange import Exchange, WithoutStream
from capturekit.guard.lanes import Lanes
from capturekit.guard.lint_run import Alias, LintRun
from capturekit.guard.manual_captures import ManualCaptures
from capturekit.guard.open_capture import Live
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.placeholders import Placeholders
from capturekit.guard.random_draws import CHOICE, RandomDraws, choice_refused
from capturekit.guard.state import State
from capturekit.guard.stream_properties import StreamProperties, reads_for_itself
from capturekit.guard.stream_switches import StreamSwitches
from capturekit.guard.stream_work import StreamWork
from capturekit.guard.verdicts import Verdicts
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import Operation
from capturekit.model.source_line import Place, here

_O = Operation


class LintState(State):
    """The state of a linted thread."""

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Adapting makes no calls: it is only asked what it would do."""


class LintVerdicts(Verdicts):
    """No capture is open that could be lost."""

    def check(self, live: Live) -> None:
        """Nothing was lost."""


class LintAllocators(Allocators):
    """Allocators stay as they are."""

    def refresh(self) -> None:
        """There is no memory of a graph to allocate in."""

    def allocator_set(self, original: Callable[..., Any], allocator: Any) -> Any:
        return original(allocator)


class LintLanes(Lanes):
    """Lanes of the ledger, without events: work that a stream was given since its last event is seen by its count."""

    def __init__(self, run: LintRun, state: State) -> None:
        super().__init__(state)
        self._run = run

    def was_used(self, lane: Lane) -> None:
        self._run.settle(lane)

    def leave(self, stream: Any) -> None:
        super().leave(stream)
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None:
            lane.current = max(lane.current, 0)

    def record_on(self, live: Live, lane: Lane, at: Place | None) -> Any:
        self._run.settle(lane)
        event = self._run.new_event()
        self.state.ledger.record(event.ptr, lane.stream, at)
        return event

    def wait_on(self, live: Live, lane: Lane, event: Any, at: Place | None) -> None:
        self.state.ledger.wait(lane.stream, event.ptr, at=at)

    def entered(self, live: Live, lane: Lane, stream: Any, at: Place | None) -> None:
        live.streams[lane.stream] = self.wrapped(lane.stream) if stream is None else stream
        self._run.look_at(lane.stream)
        live.note('fork', lane, f'lane {lane.number} forked from lane {lane.parent}', at)
        if self.state.platform.cupy.cuda.get_current_stream().ptr == lane.stream:
            self.make_current(live, lane.stream)
        if live.awaited_event is not None:
            self.wait_on(live, lane, live.awaited_event, at)

    def adapt_fork(self, live: Live, stream: Any, at: Place | None, parent: Lane | None = None) -> None:
        parent = parent or self.current_lane(live)
        event = self.record_on(live, parent, at)
        with self.state.inside():
            blocking = not self.state.platform.device.stream_flags(stream.ptr) & 1
        live.outside.held.pop(stream.ptr, None)
        device = self.device_of(stream)
        lane = self.state.ledger.wait(stream.ptr, event.ptr, blocking=blocking, at=at, device=device)
        if lane is not None:
            self.entered(live, lane, stream, at)
            live.note('adapted', lane, f'stream {stream.ptr:#x} was forked from lane {parent.number}', at)


class LintOutsideStreams(OutsideStreams):
    """Nothing is held back: it is only seen whether there was work."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def hold(self, live: Live, stream: Any) -> None:
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
        """Work has escaped; from here on its stream counts as forked where that began."""
        live = self._run.live
        self._run.tell(error, lambda: self.lanes.adapt_fork(live, stream, error.location, live.capture.origin))
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None:
            lane.used, lane.last_use = True, error.location
            self._run.busy.setdefault(lane, set()).add(lane.segment)


class LintPlaceholders(Placeholders):
    """Nothing takes the place of a stream of an eager run."""

    def put(self, live: Live, parent: Lane) -> None:
        """The legacy stream stays."""


class LintStreamSwitches(StreamSwitches):
    """A stream that a capture would refuse becomes current all the same."""

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
    """The run is eager: on another device, too, its work goes where it would go anyway."""

    def moved(self, go: Callable[[], Any], exc: tuple[Any, ...] = ()) -> Any:
        return go()


class LintStreamWork(StreamWork):
    """A host function is kept by nobody for a graph."""

    def stream_launch_host_func(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        go = functools.partial(original, stream, callback, arg)
        return self.on_stream(_O.LAUNCH_HOST_FUNC, 'Stream.launch_host_func()', stream.ptr, go)


class LintStreamProperties(StreamProperties):
    """Streams are not captured: CUDA can be asked. A handle that is read from outside of the capture is noted."""

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
    """Events as the run records them, followed in the ledger."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run
        #: Events that were recorded in the run on streams outside of the capture, and on which.
        self._strays: dict[int, int] = {}

    def _adapt_record(self, live: Live, call: str, event: Any, lane: Lane | None = None) -> Any:
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
    """Arrays of the run's own call the origin, whose other name they don't know."""

    def exchanged(self, live: Live, obj: Any) -> Any:
        interface = dict(obj.__cuda_array_interface__)
        if interface.get('stream') in LEGACY_HANDLES and isinstance(live.origin.ptr, Alias):
            interface['stream'] = None
            return WithoutStream(interface, obj)
        return super().exchanged(live, obj)


class LintArrays(Arrays):
    """Values of the host go where the run puts them; that they would be constants is noted."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def constant(self, live: Live, make: Callable[[], Any], call: str) -> Any:
        with self.state.inside():
            array = make()
        text = f'{call}: {array.dtype} {array.shape}, {counted(array.nbytes, "byte")}'
        self._run.note('constant', text, here())
        return array


class LintRandomDraws(RandomDraws):
    """Numbers are drawn as ever; that each launch would draw them is noted."""

    def __init__(self, run: LintRun, *others: Any) -> None:
        super().__init__(*others)
        self._run = run

    def curand_draw(
        self, call: str, original: Callable[..., Any], generator: int, ptr: int, size: int, *params: Any
    ) -> Any:
        self._run.note('drawn', f'{call}: {size:,} numbers', here())
        return original(generator, ptr, size, *params)

    def random_seed_given(self, original: Callable[..., Any], state: Any, size: int) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get('__name__', '').startswith('capturekit.'):
            frame = frame.f_back
        if frame.f_code.co_name in CHOICE:
            raise choice_refused()
        self._run.note('drawn', 'a seed for a kernel', here())
        return original(state, size)

    def random_seeded(self, original: Callable[..., Any], state: Any, seed: Any = None) -> Any:
        self._run.note('drawn', 'a generator is seeded', here())
        return original(state, seed)


class LintManualCaptures(ManualCaptures):
    """A capture beside the linted run is a real one, and the guard's; on a stream of the run it is refused."""

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


#: Those that need to know of the run.
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
    """What is made in the place of the guard's components, by their names."""
    return {
        'verdicts': LintVerdicts,
        'allocators': LintAllocators,
        'placeholders': LintPlaceholders,
        'devices': LintDeviceSwitches,
        'work': LintStreamWork,
        'exchange': LintExchange,
        **{name: functools.partial(kind, run) for name, kind in _OF_THE_RUN.items()},
    }
