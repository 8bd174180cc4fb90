"""The components of an observed script that differ from the guard's: they hold nothing back and refuse nothing.

The guard puts a stream that is current and not in the capture into a capture that is thrown away, and another stream in
the place of the legacy one. A script that is observed keeps its streams, and its work goes where it goes without
capturekit. So work that leaves the capture is found where CuPy allocates memory for it, and where a call names the
stream.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from capturekit.guard.allocators import ALLOCATE_ONLY, Allocators, Ours
from capturekit.guard.by_hand import ByHand, pool_hook
from capturekit.guard.components import Components
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import NOT_CURRENT, OutsideStreams
from capturekit.guard.placeholders import Placeholders
from capturekit.guard.stream_properties import StreamProperties
from capturekit.guard.stream_switches import StreamSwitches
from capturekit.model.errors import CaptureError, EscapedWorkError, LegacyStreamError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import RULES, Operation
from capturekit.model.source_line import called

Tell = Callable[[CaptureError, 'OpenCapture | None'], None]
_O = Operation


class ObservedOutsideStreams(OutsideStreams):
    """Streams outside of the capture are held in none: their work runs at once."""

    def hold(self, live: OpenCapture, stream: Any) -> None:
        live.poll()
        self.lanes.make_current(live, stream.ptr)

    def release(self, ptr: int, silent: bool = False) -> None:
        """Nothing was held."""

    def hold_again(self) -> None:
        """Nothing was held."""


class ObservedPlaceholders(Placeholders):
    """The legacy stream stays, unless ``strict=False`` gives its work to a lane."""

    def put(self, live: OpenCapture, parent: Lane) -> None:
        if not live.strict:
            super().put(live, parent)


class ObservedStreamSwitches(StreamSwitches):
    """A stream that a capture would refuse becomes current all the same."""

    def __init__(self, tell: Tell, *others: Any) -> None:
        super().__init__(*others)
        self._tell = tell

    def choose(self, stream: Any, call: str) -> Any:
        try:
            return super().choose(stream, call)
        except LegacyStreamError as error:
            self._tell(_for_itself(error), self.state.mine())
        return stream


class ObservedAllocators(Allocators):
    """Memory for work that escapes comes from where it comes without capturekit."""

    def __init__(self, tell: Tell, guards: Allocators, *others: Any) -> None:
        super().__init__(*others)
        self._tell = tell
        self.kept, self.foreign = guards.kept, guards.foreign  # what a thread had before is one thing for both

    def _malloc_outside(self, live: OpenCapture, size: int) -> Any:
        return self._anyway(live, size, super()._malloc_outside)

    def _followed(self, live: OpenCapture, device: int, allocator: Callable[[int], Any]) -> Ours:
        plain = super()._followed(live, device, allocator)
        return Ours(lambda size: self._anyway(live, size, lambda _live, size: plain(size)))

    def _anyway(self, live: OpenCapture, size: int, malloc: Callable[[OpenCapture, int], Any]) -> Any:
        try:
            return malloc(live, size)
        except EscapedWorkError as error:
            self._tell(_for_itself(error), live)
        kept = self.kept.get(threading.get_ident())
        if kept is not None:
            return kept(size)
        self.restore()
        try:
            return self.state.platform.cupy.cuda.alloc(size)
        finally:
            self.refresh()


class ObservedByHand(ByHand):
    """Nothing is kept out beside a capture that was begun by hand; the pool only tells what it is asked for."""

    def __init__(self, tell: Tell, *others: Any) -> None:
        super().__init__(*others)
        self._tell = tell

    def keep_out(self, live: OpenCapture) -> None:
        live.pool_hook = pool_hook(self, self.state.platform.cupy, live)
        live.pool_hook.__enter__()

    def pool_asked(self, live: OpenCapture) -> None:
        stream = self.state.platform.cupy.cuda.get_current_stream()
        if self.state.inside.active() or live is not self.state.mine() or called() in ALLOCATE_ONLY:
            return
        with self.state.lock:
            if self.state.ledger.lane(stream.ptr) is not None:
                return
            verdict = self.verdicts.judge(_O.WORK, stream=stream.ptr)
            legacy = NOT_CURRENT if not verdict.answer.refused else RULES['legacy-stream']
            rule = legacy if stream.ptr in LEGACY_HANDLES else RULES['escaped-work']
            self._tell(self.verdicts.refusal(verdict, 'Work', stream.ptr, rule), live)

    def _refused_to_pool(self, error: CaptureError) -> NoReturn:
        raise error

    def pool_grows(self, live: OpenCapture) -> None:
        try:
            super().pool_grows(live)
        except CaptureError as error:
            self._tell(_for_itself(error), live)


class ObservedStreamProperties(StreamProperties):
    """CUDA is asked for flags and priorities as CuPy asks it, even where that loses the capture."""

    def stream_is_non_blocking(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        return self._ask(_O.STREAM_GET_FLAGS, 'Stream.is_non_blocking', stream.ptr, lambda: getter(stream))

    def runtime_stream_flags(self, original: Callable[..., Any], stream: int) -> Any:
        call = 'cupy.cuda.runtime.streamGetFlags()'
        return self._ask(_O.STREAM_GET_FLAGS, call, stream, lambda: original(stream))

    def stream_priority(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        return self._ask(_O.STREAM_GET_PRIORITY, 'Stream.priority', stream.ptr, lambda: getter(stream))

    def runtime_stream_priority(self, original: Callable[..., Any], stream: int) -> Any:
        call = 'cupy.cuda.runtime.streamGetPriority()'
        return self._ask(_O.STREAM_GET_PRIORITY, call, stream, lambda: original(stream))

    def _ask(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with self.state.lock:
            verdict = self.verdicts.judge(operation, stream=ptr)
        return self.verdicts.carry_out(verdict, call, ptr, go)


def _for_itself(error: CaptureError) -> CaptureError:
    """The error without the frames that it was raised in, which hold the script's arrays."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def kinds(guard: Components, tell: Tell) -> dict[str, Callable[..., Any]]:
    """What is made in the place of the guard's components, by their names. Some are the guard's own."""

    def the_guards(name: str) -> Callable[..., Any]:
        return lambda *_others: getattr(guard, name)

    return {
        **{name: the_guards(name) for name in ('verdicts', 'lanes', 'uploads', 'compiled', 'libraries')},
        'allocators': functools.partial(ObservedAllocators, tell, guard.allocators),
        'outside': ObservedOutsideStreams,
        'placeholders': ObservedPlaceholders,
        'streams': functools.partial(ObservedStreamSwitches, tell),
        'by_hand': functools.partial(ObservedByHand, tell),
        'properties': ObservedStreamProperties,
    }
