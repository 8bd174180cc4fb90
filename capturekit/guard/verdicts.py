"""Whether a call would lose a capture; refusing it, making it wait, or making it."""

from __future__ import annotations

import linecache
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from capturekit.guard.manual_remedies import without_cap
from capturekit.guard.open_capture import Live
from capturekit.guard.state import State
from capturekit.model import errors
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, EventState, Verdict
from capturekit.model.rules import RULES, CaptureStatus, Code, Effect, FromElsewhere, Mode, Operation, Rule
from capturekit.model.source_line import Place, here

#: Seconds that another thread's device-wide synchronisation waits for captures to close.
WAIT_SECONDS = 60.0

_O = Operation
#: The operations that concern one device: the current one, if none is named.
_OF_A_DEVICE = (_O.DEVICE_SYNCHRONIZE, _O.LEGACY_WORK)


class Verdicts:
    """Decides on a call: it is refused, has to wait, or is made."""

    def __init__(self, state: State) -> None:
        self.state = state

    def judge(self, operation: Operation, **ids: Any) -> Verdict:
        """Return the verdict on a call from this thread. An event that the ledger does not know is looked up first."""
        event = ids.get('event')
        if event is not None:
            self._meet(event)
        if operation in _OF_A_DEVICE or ids.get('stream') in LEGACY_HANDLES:
            ids.setdefault('device', self.state.current_device())
        return self.state.ledger.judge(operation, thread=threading.get_ident(), **ids)

    def _meet(self, event: int) -> None:
        ledger = self.state.ledger
        if event not in ledger.marks and event not in ledger.outside:
            with self.state.inside():
                state = self.state.platform.device.event_state(event)
            if state is EventState.DEAD:
                ledger.dead_event(event)
            elif state is not EventState.NEVER:
                ledger.outside_event(event)  # an event of a foreign capture can be waited for as little

    def has_refused(self, error: CaptureError) -> None:
        """Note that a verb has raised, in case the block catches the error and continues."""
        mine = self.state.mine()
        if mine is not None:
            if mine.memory is None:
                error.remedy = without_cap(error.remedy)
            mine.refusal(error)

    def start(self, check: bool = True) -> Live | None:
        """Return this thread's open capture, after checking that it is still good. Every verb calls this first."""
        mine = self.state.mine()
        if mine is not None and check:
            self.check(mine)
        return mine

    def check(self, live: Live) -> None:
        """Raise, as early as possible, if a call that the guard did not see has lost the capture."""
        if live.capture.status is CaptureStatus.ACTIVE:
            with self.state.inside():
                status = self.state.platform.device.stream_status(live.origin.ptr)
            if status is CaptureStatus.ACTIVE:
                if live.trace is None:  # else the trace knows the line better
                    live.active_at = here() or live.active_at
            else:
                live.capture.status = CaptureStatus.INVALIDATED
                raise self.invalidated(live)

    def invalidated(self, live: Live) -> errors.InvalidatedError:
        """The error for a capture that was lost by a call that the guard did not see."""
        live.poll()
        trace = live.trace
        good = trace.good if trace is not None else live.active_at
        lost = trace.lost if trace is not None else None
        status = f'Active after {good}' if good else 'Active when begun'
        if lost is not None:
            thread = next((t.name for t in threading.enumerate() if t.ident == live.thread), str(live.thread))
            status += f', Invalidated after {lost} (thread {thread}){_source(lost)}'
        else:
            status += ', Invalidated now'
        error = errors.InvalidatedError(
            'The capture was lost by a call that capturekit did not see',
            stream=live.origin.ptr,
            lane=0,
            location=lost or here(),
            rule=f'{status}. Something below Python made a call that no capture can hold: a C library, another '
            'library, a destructor, or another thread.',
            remedy='Move that call out of the block: most often it waits for the device, allocates, or uses the legacy '
            'stream.',
            cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
        )
        error.active_at, error.lost_at = good, lost
        return error

    def refuse(self, verdict: Verdict, call: str, ptr: int | None = None, rule: Rule | None = None) -> NoReturn:
        """Raise the error for a verdict."""
        raise self.refusal(verdict, call, ptr, rule)

    def refusal(self, verdict: Verdict, call: str, ptr: int | None = None, rule: Rule | None = None) -> CaptureError:
        """The error for a verdict."""
        rule = rule or verdict.rule
        assert rule is not None
        lane = None if ptr is None else self.state.ledger.lane(ptr)
        code = verdict.answer.code
        if verdict.answer.refused:
            after = ', and the capture would be lost' if verdict.lost or verdict.answer.loses else ''
            says = f'{rule.says} ({code.name} would follow{after}).'
        else:
            says = f'{rule.says}.'
        error = rule.error(
            call,
            stream=ptr,
            lane=None if lane is None else lane.number,
            subject=self.subject(ptr),
            location=here(),
            rule=says,
            remedy=rule.remedy,
            cuda_error=code.name if verdict.answer.refused else '',
        )
        return error

    def subject(self, ptr: int | None) -> str:
        """Describe a stream in words: its lane, its handle, where it was forked."""
        if ptr is None:
            return ''
        lane = self.state.ledger.lane(ptr)
        if ptr in LEGACY_HANDLES:
            return 'the legacy default stream'
        if lane is None:
            return f'stream {ptr:#x}, which is not in the capture'
        if lane.number == 0:
            return f'lane 0, the origin (stream {ptr:#x})'
        at = f', forked at {lane.forked_at.short}' if isinstance(lane.forked_at, Place) else ''
        return f'lane {lane.number} (stream {ptr:#x}{at})'

    def refuse_read(self, ptr: int | None) -> NoReturn:
        rule = RULES['host-read']
        raise rule.error(
            'ndarray.get()',
            stream=ptr,
            lane=None if ptr is None or (lane := self.state.ledger.lane(ptr)) is None else lane.number,
            subject=self.subject(ptr),
            location=here(),
            rule=f'{rule.says} (float(), int(), bool(), print(), cp.asnumpy() and boolean masks read like this).',
            remedy=rule.remedy,
            cuda_error=Code.cudaErrorStreamCaptureUnsupported.name,
        )

    def carry_out(self, verdict: Verdict, call: str, ptr: int | None, go: Callable[[], Any]) -> Any:
        """Make a call, let it first wait until another thread's capture is closed, or refuse it."""
        me = threading.get_ident()
        if verdict.allowed:
            return go()
        theirs = verdict.lost and all(c.thread != me for c in verdict.lost)
        if theirs and verdict.rule is not None:
            if verdict.rule.from_elsewhere is FromElsewhere.RELAXED:
                return self._relaxed(go)
            if self.state.mine() is None and verdict.rule.from_elsewhere is FromElsewhere.WAITS:
                self._wait(verdict, call)
                return go()
        if verdict.answer.effect is Effect.ESCAPES and self.state.mine() is None:
            return go()
        if verdict.answer.refused and not verdict.answer.loses and self.state.mine() is None and not verdict.lost:
            return go()  # the capture survives it, and CUDA returns the error itself
        self.refuse(verdict, call, ptr)

    def _relaxed(self, go: Callable[[], Any]) -> Any:
        device = self.state.platform.device
        old = device.exchange_thread_mode(Mode.RELAXED)
        try:
            return go()
        finally:
            device.exchange_thread_mode(old)

    def _wait(self, verdict: Verdict, call: str) -> None:
        """Block this thread until all captures of other threads that the call would lose are closed."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self.state.closed:
            while any(c in self.state.lives for c in verdict.lost):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _waited_too_long(verdict, call)
                self.state.closed.wait(left)

    def unsafe(self, call: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Judge and make a call that the mode of a capture may forbid."""
        with self.state.lock:
            self.start()
            verdict = self.judge(_O.UNSAFE)
        return self.carry_out(verdict, call, None, lambda: original(*args, **kwargs))


def _waited_too_long(verdict: Verdict, call: str) -> CaptureError:
    """The error for a call that has waited for the full time and would still lose another thread's capture."""
    rule, code = verdict.rule, verdict.answer.code
    assert rule is not None
    return rule.error(
        call,
        location=here(),
        rule=f'Another thread has held a capture open for {WAIT_SECONDS:g} s, and this call would lose it '
        f'({code.name} in every mode).',
        remedy=rule.waited or rule.remedy,
        cuda_error=code.name,
    )


def _source(at: Place) -> str:
    """The text of a line; '' if it can't be read."""
    text = linecache.getline(at.file, at.line).strip()
    return f': `{text}`' if text else ''
