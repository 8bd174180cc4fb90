"""What a call would cost a capture; refusing it, making it wait, or carrying it out."""

from __future__ import annotations

import linecache
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from capturekit.guard.cupy_errors import answers_with_code, make_catchable, say_as_cupy
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
#: What concerns one device: the current one, where none is named.
_OF_A_DEVICE = (_O.DEVICE_SYNCHRONIZE, _O.LEGACY_WORK)


class Verdicts:
    """What a call would cost; refusing it, making it wait, or carrying it out."""

    def __init__(self, state: State) -> None:
        self.state = state

    def judge(self, operation: Operation, **ids: Any) -> Verdict:
        """Return the verdict on a call from this thread. An event that was not met before is looked up first."""
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
                ledger.outside_event(event)  # or foreign: as little to be waited for

    def has_refused(self, error: CaptureError, verb: str = '') -> None:
        """Remember that a verb has raised, in case the block goes on, and let ``except`` clauses for CuPy catch it."""
        mine = self.state.mine()
        cuda = self.state.platform.cupy.cuda
        with self.state.inside():
            captured = self.state.ledger.lane(cuda.get_current_stream().ptr) is not None
        if mine is not None:
            self.word(error, mine)
            if mine.memory is None:
                say_as_cupy(error, verb, captured)
            mine.refusal(error)
        if answers_with_code(verb, error.stream, captured):
            make_catchable(error, cuda.runtime.CUDARuntimeError)

    @staticmethod
    def word(error: CaptureError, live: Live | None) -> None:
        """Put the remedy in the words of the script: one that begins its captures by hand has no ``cap``."""
        if live is not None and live.memory is None:
            error.remedy = without_cap(error.remedy)

    def start(self, check: bool = True) -> Live | None:
        """What every verb does first: see whether this thread has a capture, and whether it is still good."""
        mine = self.state.mine()
        if mine is not None and check:
            self.check(mine)
        return mine

    def check(self, live: Live) -> None:
        """Notice, as soon as possible, that something below Python has lost the capture."""
        if live.capture.status is CaptureStatus.ACTIVE:
            with self.state.inside():
                status = self.state.platform.device.stream_status(live.origin.ptr)
            if status is CaptureStatus.ACTIVE:
                if live.trace is None:  # else it knows better
                    live.active_at = here() or live.active_at
            else:
                live.capture.status = CaptureStatus.INVALIDATED
                raise self.invalidated(live)

    def invalidated(self, live: Live) -> errors.InvalidatedError:
        """The error that says a capture was lost below Python, or by a call that was let through."""
        if live.let_through is not None:
            return _lost_by(live, live.let_through)
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
            'library, a destructor, or meanwhile another thread.',
            remedy='Move that call out of the block: most often it waits for the device, allocates, or uses the legacy '
            'stream.',
            cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
        )
        error.active_at, error.lost_at = good, lost
        return error

    def refuse(self, verdict: Verdict, call: str, ptr: int | None = None, rule: Rule | None = None) -> NoReturn:
        """Raise what the verdict means for a person."""
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
        """Return a stream in words: its lane, its handle, where it was forked."""
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
        """Let a call through, make it wait for somebody else's capture to close, or refuse it."""
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
            return go()  # harmless, and CUDA says it itself
        self.refuse(verdict, call, ptr)

    def _relaxed(self, go: Callable[[], Any]) -> Any:
        device = self.state.platform.device
        old = device.exchange_thread_mode(Mode.RELAXED)
        try:
            return go()
        finally:
            device.exchange_thread_mode(old)

    def _wait(self, verdict: Verdict, call: str) -> None:
        """Block this thread until the captures that a call would lose are closed; none of them is its own."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self.state.closed:
            while any(c in self.state.lives for c in verdict.lost):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _waited_too_long(verdict, call)
                self.state.closed.wait(left)

    def unsafe(self, call: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls that the mode of a capture may keep away."""
        with self.state.lock:
            self.start()
            verdict = self.judge(_O.UNSAFE)
        return self.carry_out(verdict, call, None, lambda: original(*args, **kwargs))


def _lost_by(live: Live, error: CaptureError) -> errors.InvalidatedError:
    """The error of a capture that is lost because a call was let through which would have been refused."""
    return errors.InvalidatedError(
        f'The capture was lost by {error.operation}, which was let through',
        stream=live.origin.ptr,
        lane=0,
        location=error.location,
        rule=error.rule,
        remedy=error.remedy,
        cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
    )


def _waited_too_long(verdict: Verdict, call: str) -> CaptureError:
    """The error of a call that would still lose another thread's capture after all that waiting."""
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
    """The text of a line, where it can be had."""
    text = linecache.getline(at.file, at.line).strip()
    return f': `{text}`' if text else ''
