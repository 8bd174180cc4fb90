"""What the guard would have refused, let through to CUDA and remembered: for ``python -m capturekit run --observe``.

An observer stands where a substitute stands (:mod:`capturekit.guard.lint_guard`), for every thread. The verbs are
asked as ever, by components that hold nothing back and refuse nothing: a script that is observed keeps its streams, and
its work goes where it goes without capturekit. So work that leaves the capture is found where CuPy allocates memory for
it, and where a call names the stream. What a verb raises before CuPy's function was called is remembered, and the
function is called all the same: CUDA answers as it does without capturekit. Then the driver is asked which captures
that has cost, and the ledger follows it.

What follows from a loss is no finding of its own: every call on a lost capture would be refused. Recordings of
``@ck.graphed`` are left to the guard: what it refuses there makes the call eager, and the script never sees it.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from capturekit.guard.allocators import ALLOCATE_ONLY, Allocators, Ours
from capturekit.guard.components import MADE_OF, Components, assemble
from capturekit.guard.lint_guard import counterpart
from capturekit.guard.manual_captures import ByHand, pool_hook
from capturekit.guard.open_capture import OpenCapture, close_recording, tell_listeners
from capturekit.guard.outside_streams import NOT_CURRENT, OutsideStreams, Placeholders
from capturekit.guard.patching import Inside
from capturekit.guard.stream_switches import StreamProperties, StreamSwitches
from capturekit.model.errors import CaptureError, CudaCallError, EscapedWorkError, InvalidatedError, LegacyStreamError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import RULES, CaptureStatus, Operation
from capturekit.model.source_line import called


@dataclass(eq=False)
class LetThrough:
    """A call that would have been refused: the refusal's name and message, and what came of the call.

    ``loses``: a capture was lost by it. ``answer``: what CuPy raised, or ''. ``count``: how often it was made.
    """

    name: str
    message: str
    loses: bool = False
    answer: str = ''
    count: int = 1


class Observer:
    """Lets through the calls that the guard would refuse, in every thread, and remembers them."""

    #: False: the making of arrays and CuPy's switches are observed too, not calls alone.
    asks_calls_only = False

    def __init__(self, guard: Components) -> None:
        self._guard = guard
        self._found: list[LetThrough] = []
        #: Calls that will lose a capture once CuPy makes them, by the capture.
        self._awaited: WeakKeyDictionary[OpenCapture, LetThrough] = WeakKeyDictionary()
        self._open = False
        self._components = assemble(Components, guard.state, kinds(guard, self.tell))
        #: The components that replace the guard's, by the id of the guard's component.
        self._instead = {id(getattr(guard, name)): getattr(self._components, name) for name in MADE_OF}

    @property
    def found(self) -> list[LetThrough]:
        """What would have been refused, in the order of the calls; those that lost a capture come first."""
        return sorted(self._found, key=lambda one: not one.loses)

    def open(self) -> None:
        """Begin to observe the calls of all threads."""
        self._open = True
        Inside.substitute = self
        self._guard.state.inside.substitute = self

    def close(self) -> None:
        """Stop observing. A call that is already here goes to the guard."""
        self._open = False
        Inside.substitute = None
        self._guard.state.inside.substitute = None

    # -- a call -----------------------------------------------------------------------------------------------

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is asked in the place of a verb of the guard."""
        state = self._guard.state
        mine = state.mine()
        graphed = (mine is not None and mine.caller is not None) or threading.get_ident() in state.rehearsals
        if graphed or not self._open:
            return verb
        return counterpart(verb, self._instead, self._asked)

    def launching(self, upload: bool, ptr: int) -> None:
        """A graph of capturekit's own is about to be launched: the guard says whether it would have been refused."""
        state = self._guard.state
        inside, mine = state.inside, state.mine()
        inside.substitute = None
        try:
            self._guard.launches.launching(upload, ptr)
        except CaptureError as error:
            self.tell(error, mine)
        finally:
            inside.substitute = self

    def _asked(self, ask: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Ask a verb about a call. Where it raises, the call is made all the same, once."""
        state = self._guard.state
        mine, good = state.mine(), [live for live in list(state.lives.values()) if not live.lost]
        call = _Call(original)
        try:
            return ask(call, *args, **kwargs)
        except (CaptureError, CudaCallError) as error:  # the latter: the guard could not ask the driver about it
            if error is call.failure:
                raise  # the call's own
            error.__traceback__ = error.__context__ = error.__cause__ = None  # they hold the script's arrays
            found = error
        try:
            with state.inside:
                return call.answer(*args, **kwargs)
        finally:
            with state.lock:
                ended = self._follow(found, mine, good, call.failure)
            for live in ended:  # without the lock: those who listen may wait for threads that wait for us
                tell_listeners(live, None)
            call.failure = None  # its traceback holds this frame

    def _follow(
        self, error: Exception, mine: OpenCapture | None, good: list[OpenCapture], failure: BaseException | None
    ) -> list[OpenCapture]:
        """Ask the driver what the call has cost, and remember the call. Returns the captures that it has ended."""
        state, ended, lost = self._guard.state, [], False
        for live in good:
            status = self._status(live)
            if live.capture not in state.lives or status is CaptureStatus.NONE:
                lost |= failure is not None
                ended += [live] if live.capture in state.lives else []
            elif status is CaptureStatus.INVALIDATED:
                live.capture.status = status
                lost = True
        if isinstance(error, CaptureError):
            self._remember(error, mine, lost, failure)
        return [live for live in ended if self._has_ended(live, failure)]

    def _status(self, live: OpenCapture) -> CaptureStatus:
        state = self._guard.state
        with state.inside, suppress(CudaCallError):  # a stream that was destroyed is in no capture
            return CaptureStatus(state.platform.device.stream_status(live.origin.ptr))
        return CaptureStatus.NONE

    def _has_ended(self, live: OpenCapture, failure: BaseException | None) -> bool:
        """Follow a capture that a call has ended which was let through; False for a block, which ends by itself."""
        if live.memory is not None:
            live.capture.status = CaptureStatus.INVALIDATED
            return False
        self._components.captures.gone(live)
        close_recording(live, 'good' if failure is None else 'failed')
        return True

    # -- what is remembered -----------------------------------------------------------------------------------

    def _remember(
        self, error: CaptureError, mine: OpenCapture | None, lost: bool, failure: BaseException | None
    ) -> None:
        if isinstance(error, InvalidatedError):
            awaited = self._awaited.pop(mine, None) if mine is not None else None
            if awaited is not None:
                awaited.loses = True  # it was known which call it would be
            if awaited is not None or not lost:
                return
        one = self._add(error, mine)
        one.loses |= lost
        if failure is not None:
            one.answer = f'{type(failure).__name__}: {failure}'
        if mine is not None and mine.capture in self._guard.state.lives:
            where = self._guard.state.ledger.lane(mine.origin.ptr)
            mine.note('finding' if lost else 'note', where, f'let through: {one.name}: {one.message}', error.location)
            if lost and mine.let_through is None and not isinstance(error, InvalidatedError):
                mine.let_through = error

    def tell(self, error: CaptureError, mine: OpenCapture | None) -> None:
        """Remember a call that CuPy is about to make, and of which nobody hears the end."""
        one = self._add(error, mine)
        if mine is not None and error.cuda_error:
            self._awaited.setdefault(mine, one)

    def _add(self, error: CaptureError, mine: OpenCapture | None) -> LetThrough:
        """Add a call to the list. One that was made before at the same line is counted, on whichever stream it was."""
        self._guard.verdicts.word(error, mine)
        one = LetThrough(type(error).__name__, str(error))
        with self._guard.state.lock:
            for known in self._found:
                if known.name == one.name and _without_handles(known.message) == _without_handles(one.message):
                    known.count += 1
                    return known
            self._found.append(one)
        return one


def _without_handles(message: str) -> str:
    return re.sub(r'0x[0-9a-f]+', '', message)


class _Call:
    """A call of CuPy's function, which is made once: by a verb, or after the verb has raised."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self._made = False
        self._value: Any = None
        self.failure: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._made = True
        try:
            self._value = self._original(*args, **kwargs)
        except BaseException as error:
            self.failure = error
            raise
        return self._value

    def answer(self, *args: Any, **kwargs: Any) -> Any:
        """What CuPy has answered, or answers now."""
        if not self._made:
            return self(*args, **kwargs)
        if self.failure is not None:
            raise self.failure
        return self._value


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
