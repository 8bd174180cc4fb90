"""What the guard would have refused, let through to CUDA and remembered: for ``python -m capturekit run --observe``.

The verbs are asked as ever, but no stream is held or replaced. So work that leaves the capture is found where CuPy
allocates memory for it, and where a call names the stream. What a verb raises before CuPy's function was called is
remembered, and the function is called all the same. Then the driver is asked which captures that has cost, and the
ledger follows it.

What follows from a loss is no finding of its own: every call on a lost capture would be refused. Recordings of
``@ck.graphed`` are left to the guard: what it refuses there makes the call eager, and the script never sees it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from capturekit.guard import Components
from capturekit.guard.open_capture import OpenCapture, close_recording, tell_listeners
from capturekit.guard.state import QUIET, RAISE, OriginalCall, Policy, PolicyOfAll
from capturekit.model.errors import CaptureError, CudaCallError, InvalidatedError
from capturekit.model.rules import CaptureStatus


@dataclass(eq=False)
class LetThrough:
    """A call that would have been refused: the refusal's name and message, whether a capture was lost by it, what CuPy
    raised, or '', and how often it was made."""

    name: str
    message: str
    loses: bool = False
    answer: str = ''
    count: int = 0


class Observer(PolicyOfAll):
    """Lets through the calls that the guard would refuse, in every thread, and remembers them."""

    holds = False

    def __init__(self, guard: Components) -> None:
        super().__init__(guard)
        #: By their names and their messages without handles: a call that was made before is counted, on any stream.
        self._found: dict[tuple[str, str], LetThrough] = {}
        #: Calls that will lose a capture once CuPy makes them, by the capture.
        self._awaited: WeakKeyDictionary[OpenCapture, LetThrough] = WeakKeyDictionary()

    @property
    def found(self) -> list[LetThrough]:
        """What would have been refused, in the order of the calls; those that lost a capture come first."""
        return sorted(self._found.values(), key=lambda one: not one.loses)

    def now(self) -> Policy:
        state = self._guard.state
        graphed = state.caller() is not None or threading.get_ident() in state.rehearsals
        installed = type(state.inside).policy is self  # else the call was already under way
        return self if installed and not graphed else RAISE

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        quiet = getattr(verb, 'func', verb).__name__ in QUIET
        return verb if quiet or self.now() is RAISE else partial(self._asked, verb)

    def launching(self, upload: bool, ptr: int) -> None:
        """A graph of capturekit's own is about to be launched: the guard says whether it would have been refused."""
        mine = self._guard.state.mine()
        try:
            super().launching(upload, ptr)
        except CaptureError as error:
            self.tell(error, mine)

    def met(self, error: CaptureError, again: Callable[[], Any] | None = None, live: Any = None) -> None:
        self.tell(error, live or self._guard.state.mine())

    def _asked(self, ask: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Ask a verb about a call. Where it raises, the call is made all the same, once."""
        state = self._guard.state
        mine, good = state.mine(), [live for live in list(state.lives.values()) if not live.lost]
        call = OriginalCall(original)
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
        by_hand = [live for live in ended if live.memory is None]
        for live in ended:
            if live in by_hand:
                self._guard.captures.gone(live)
                close_recording(live, 'good' if failure is None else 'failed')
            else:  # a block ends by itself
                live.capture.status = CaptureStatus.INVALIDATED
        return by_hand

    def _status(self, live: OpenCapture) -> CaptureStatus:
        state = self._guard.state
        with state.inside, suppress(CudaCallError):  # a stream that was destroyed is in no capture
            return CaptureStatus(state.platform.device.stream_status(live.origin.ptr))
        return CaptureStatus.NONE

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
        self._guard.verdicts.word(error, mine)
        name, message = type(error).__name__, str(error)
        with self._guard.state.lock:
            one = self._found.setdefault((name, re.sub(r'0x[0-9a-f]+', '', message)), LetThrough(name, message))
            one.count += 1
        return one
