"""Whether a call would lose a capture; refusing it, making it wait, or making it.

CUDA answers a call that a capture forbids with a code, and CuPy raises a ``CUDARuntimeError`` whose ``status`` is that
code. A refusal of such a call is an error of both classes: ``except ck.SynchronizationError`` and ``except
cupy.cuda.runtime.CUDARuntimeError`` both catch it. The code is the one of the table of rules, which the refusal names.
For some calls CuPy raises no such error: ``answer`` in the row of an entry point says so.
"""

from __future__ import annotations

import gc
import linecache
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import CO_COROUTINE, CO_GENERATOR
from traceback import walk_stack
from types import CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, NoReturn

from capturekit.guard.entry_points import Entry
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.remedies import READ_REMEDIES, invalidated, without_cap
from capturekit.guard.state import State
from capturekit.model import errors
from capturekit.model.causes import PROGRAM, shown_with
from capturekit.model.errors import CaptureError, EscapedWorkError, InvalidatedError
from capturekit.model.ledger import LEGACY_HANDLES, EventMark, EventState, Verdict, named
from capturekit.model.rules import (
    RULES,
    VARIANTS,
    CaptureStatus,
    Code,
    Effect,
    FromElsewhere,
    Mode,
    Operation,
    Rule,
    Target,
    row,
)
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import Place, function_of_cupy, here, is_foreign_frame, other_threads

_SAID = 'CuPy would have said that the current stream is capturing.'
_RUNTIME = 'cupy_backends.cuda.api.runtime'


def _answers_with_code(entry: Entry, stream: int | None, captured: bool) -> bool:
    """Whether CuPy raises CUDA's code for a call on a stream; ``captured``: the current stream is in a capture."""
    if entry.name == 'begin_capture' and stream in LEGACY_HANDLES:
        return False  # CuPy has a RuntimeError of its own for it
    return entry.answer == 'code' or (entry.answer == 'cupy or code' and not captured)


def make_catchable(error: CaptureError, cupy_error: type[Exception]) -> None:
    """Make a refusal an error of CuPy's class as well, with the code in ``status``. It stays the same object."""
    if error.cuda_error and not isinstance(error, cupy_error):
        error.__class__ = _both(type(error), cupy_error)
        error.__dict__['status'] = int(Code[error.cuda_error])


def _both(kind: type[CaptureError], cupy_error: type[Exception]) -> type[CaptureError]:
    """The class that is a refusal and CuPy's error. It has the refusal's name, and CuPy's class keeps it."""
    for known in cupy_error.__subclasses__():
        if known.__bases__ == (kind, cupy_error):
            return known  # type: ignore[return-value]
    members: dict[str, Any] = {
        '__module__': kind.__module__,
        '__qualname__': kind.__qualname__,
        '__doc__': kind.__doc__,
        '__reduce__': lambda error: (_again, (kind, dict(error.__dict__))),
    }
    return type(kind.__name__, (kind, cupy_error), members)


def _again(kind: type[CaptureError], state: dict[str, Any]) -> CaptureError:
    """Make a pickled refusal again; it is of CuPy's class as well, where CuPy has been imported."""
    error = kind.__new__(kind, state.get('operation', ''))
    error.__dict__.update(state)
    runtime = sys.modules.get(_RUNTIME)
    if runtime is not None:
        make_catchable(error, runtime.CUDARuntimeError)
    return error


def begun_in() -> tuple[int, CodeType] | None:
    """The identity and the code of the frame that begins a capture: held itself, it would keep what is in it."""
    frames = (frame for frame, _line in walk_stack(sys._getframe(1)) if not is_foreign_frame(frame))
    return next(((id(frame), frame.f_code) for frame in frames), None)


def _is_left_open(live: OpenCapture) -> bool:
    """Whether the function that has begun a capture by hand, and was to end it, has ended itself."""
    if live.begun_in is None:
        return False
    _, code = live.begun_in
    if not any(name.lower().endswith(('end_capture', 'endcapture')) for name in code.co_names):
        return False
    frames: list[Any] = [frame for frame, _line in walk_stack(sys._getframe(1))]
    if code.co_flags & (CO_GENERATOR | CO_COROUTINE):  # it may be suspended, as in a context manager of contextlib
        alive = [one for one in gc.get_objects() if type(one) in (GeneratorType, CoroutineType)]
        frames += [getattr(one, 'gi_frame', None) or getattr(one, 'cr_frame', None) for one in alive]
    return all(frame is None or (id(frame), frame.f_code) != live.begun_in for frame in frames)


def note_open(error: CaptureError, live: OpenCapture, operation: Operation | None) -> None:
    """Add to a refusal of an operation a sentence on a capture that may have been left open without being meant to."""
    if live.memory is not None:
        return
    ending = operation is Operation.END_CAPTURE and not isinstance(error, InvalidatedError)
    caught = next((cause for cause in live.causes.before(*shown_with(error)) if cause.refused), None)
    if ending and isinstance(error, EscapedWorkError):
        then = ': another `end_capture()` ends it, without this work.'
    elif ending:
        then = ': after that, call `end_capture()` again.'
    elif live.end_refused is not None:
        then = (
            f', because its end was refused at {live.end_refused}: do what that refusal says, and call '
            '`end_capture()` again.'
        )
    elif _is_left_open(live) or operation is Operation.BEGIN_CAPTURE:
        then = ': call `end_capture()` also where an exception leaves that function (`try`, `finally`).'
    elif caught is not None:
        begun = live.at or caught.at
        mine = [at for at in caught.frames if begun and (at.file, at.function) == (begun.file, begun.function)]
        at = mine[-1] if mine else caught.at
        then = f': {caught.name} was raised before, at {at}, and caught. Call `end_capture()` where it is caught.'
    else:
        return
    if ending:
        live.end_refused = here()
    error.still_open = f'The capture begun at {live.at} is still open{then}'


def unended(live: OpenCapture) -> str:
    """What is said of a capture that is open when its program ends."""
    said = f'the capture begun at {live.at} was never ended and made no graph'
    if live.end_refused is not None:
        return f'{said}: its end was refused at {live.end_refused}, and `end_capture()` was not called again'
    if live.memory is not None:
        return f'{said}: leave its block, `with ck.capture() as cap:`'
    return f'{said}: call `end_capture()`'


#: Seconds that another thread's device-wide synchronisation waits for captures to close.
WAIT_SECONDS = 60.0
#: Seconds after which such a wait is told.
TOLD = 2.0
#: Seconds that a capture which is about to begin lets such a synchronisation go first.
MOMENT = 0.1
_READ_LIKE_THIS = 'float(), int(), bool(), print(), cp.asnumpy() and boolean masks'
#: Functions of CuPy that are called to read on the host.
_READERS = frozenset({'asnumpy', 'get', 'item', 'tolist'})
#: ``cupyx.profiler.benchmark(f)`` calls ``f`` between events, and waits for these.
_BENCHMARK_WAITS = 'Here `benchmark()` of CuPy does so: it waits for events around each call that it times.'
_BENCHMARK = 'Time the graph instead, after the capture: `benchmark(cap.graph.launch)`.'
#: After so many seconds it is asked whether a capture that is waited for can still end.
PATIENCE = 0.5

_O = Operation
_QUERY = 'cupy.cuda.runtime.eventQuery'
#: The operations that concern one device: the current one, if none is named.
_OF_A_DEVICE = (_O.DEVICE_SYNCHRONIZE, _O.LEGACY_WORK)


class Verdicts:
    """Decides on a call: it is refused, has to wait, or is made."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: What components below do about a stream that is not known, and about one that became current unseen.
        self.meet: Callable[[int], object] = lambda _stream: None
        self.settle: Callable[[], object] = lambda: None

    def judge(self, operation: Operation, **ids: Any) -> Verdict:
        """Return the verdict on a call from this thread. An event that the ledger does not know is looked up first."""
        event, stream = ids.get('event'), ids.get('stream')
        if event is not None:
            self._meet(event)
        if stream is not None:
            self.meet(stream)
        if operation in _OF_A_DEVICE or stream in LEGACY_HANDLES:
            ids.setdefault('device', self.state.current_device())
        verdict = self.state.ledger.judge(operation, thread=threading.get_ident(), **ids)
        return replace(verdict, asked=(operation, ids)) if verdict.lost else verdict

    def _meet(self, event: int) -> None:
        ledger = self.state.ledger
        if event not in ledger.marks and event not in ledger.outside:
            with self.state.inside:
                state = self.state.platform.device.event_state(event)
            if state is EventState.DEAD:
                ledger.dead_event(event)
            elif state is not EventState.NEVER and not (state is EventState.CAPTURED and self._is_of_mine(event)):
                ledger.outside_event(event)  # an event of a foreign capture can be waited for as little

    def _is_of_mine(self, event: int) -> bool:
        """Note an event that was recorded in this thread's capture by a method that no wrapper saw; False for others.

        CUDA does not say what an event belongs to: a stream that waits for it becomes part of that capture."""
        mine, device = self.state.mine(), self.state.platform.device
        if mine is None:
            return False
        with self.state.inside:
            asking = self.state.platform.cupy.cuda.Stream(non_blocking=True)
            mine.events.append(asking)
            device.stream_wait_event(asking.ptr, event)
            found, own = device.capture_info(asking.ptr), device.capture_info(mine.origin.ptr)
        if found.status is not CaptureStatus.ACTIVE or found.number != own.number:
            return False
        # how much of the capture's work comes before it is not known
        self.state.ledger.marks[event] = EventMark(mine.capture, 0, {}, here(), found.dependencies)
        return True

    def has_refused(self, error: CaptureError, entry: Entry | None = None) -> None:
        """Note that a call was refused, in case the block goes on, and let ``except`` clauses for CuPy catch it."""
        state, cuda = self.state, self.state.platform.cupy.cuda
        mine = state.mine()
        with state.inside:
            captured = state.ledger.lane(cuda.get_current_stream().ptr) is not None
        told = state.threads.get(threading.get_ident()) or list(state.lives.values())
        if told and all(live.memory is None for live in (told if mine is None else [mine])):
            error.remedy = without_cap(error.remedy)
        if mine is not None:
            mine.refusal(error)
            note_open(error, mine, None if entry is None else entry.operation)
            by_cupy = mine.memory is None and entry is not None and entry.answer.startswith('cupy')
            if by_cupy and captured and error.cuda_error and _SAID not in error.rule:
                error.rule = f'{error.rule} {_SAID}'
        if entry is None or _answers_with_code(entry, error.stream, captured):
            make_catchable(error, cuda.runtime.CUDARuntimeError)
        if mine is not None and mine.caller is not None:
            return  # a graphed function is being recorded: its caller gets an eager run instead
        for live in told:
            if live.caller is None:
                live.causes.remember(error)
                live.causes.add_to(error)
        PROGRAM.remember(error)

    @staticmethod
    def word(error: CaptureError, live: OpenCapture | None) -> None:
        """Put the remedy in the words of the script: one that begins its captures by hand has no ``cap``."""
        if live is not None and live.memory is None:
            error.remedy = without_cap(error.remedy)

    def start(self, check: bool = True) -> OpenCapture | None:
        """Return this thread's open capture, after checking that it is still good. Every verb calls this first."""
        mine = self.state.mine()
        if mine is not None and check:
            self.check(mine)
        if mine is not None and mine.unsettled:
            self.settle()
        return mine

    def check(self, live: OpenCapture) -> None:
        """Raise, as early as possible, if a call that the guard did not see has lost the capture."""
        if live.capture.status is not CaptureStatus.ACTIVE or not self.state.policy.records:
            return
        with self.state.inside:
            status = self.state.platform.device.stream_status(live.capture.origin.stream)
        if status is not CaptureStatus.ACTIVE:
            live.capture.status = CaptureStatus.INVALIDATED
            raise self.invalidated(live)
        if live.trace is None:  # else the trace knows the line better
            live.active_at = here() or live.active_at

    def invalidated(self, live: OpenCapture) -> errors.InvalidatedError:
        """The error for a capture that was lost below Python, or by a call that was let through."""
        if (through := live.let_through) is not None:
            return errors.InvalidatedError(
                f'The capture was lost by {through.operation}, which was let through',
                stream=live.origin.ptr,
                lane=0,
                location=through.location,
                rule=through.rule,
                remedy=through.remedy,
                cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
            )
        live.poll()
        good, lost = (live.active_at, None) if live.trace is None else (live.trace.good, live.trace.lost)
        losses = (one.loss for one in live.ended_in_driver if one.loss)
        seen = self.state.call_watch.loss(live.origin.ptr) or next(losses, None)
        if seen is not None:
            maker = 'cupy' if live.memory is None else 'capturekit'
            error = invalidated(seen, live.origin.ptr, live.at, maker)
            error.active_at = good
            return error
        status = f'Active after {good}' if good else 'Active when begun'
        if lost is not None:
            thread = next((t.name for t in threading.enumerate() if t.ident == live.thread), str(live.thread))
            text = linecache.getline(lost.file, lost.line).strip()  # '' if it can't be read
            status += f', Invalidated after {lost} (thread {thread})' + (f': `{text}`' if text else '')
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
            'stream. `capturekit run --watch` names the call.',
            cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
        )
        error.active_at, error.lost_at = good, lost
        return error

    def refusal(self, verdict: Verdict, call: str, ptr: int | None = None, rule: Rule | None = None) -> CaptureError:
        """The error for a verdict."""
        rule = rule or verdict.rule
        assert rule is not None
        code = verdict.answer.code
        if verdict.answer.refused:
            after = ', and the capture would be lost' if verdict.lost or verdict.answer.loses else ''
            says = f'{rule.says} ({code.name} would follow{after}).'
        else:
            says = f'{rule.says}.'
        remedy = rule.remedy
        if issubclass(rule.error, errors.SynchronizationError) and function_of_cupy() == 'benchmark':
            says, remedy = f'{says} {_BENCHMARK_WAITS}', _BENCHMARK
        answered = code if verdict.answer.refused else None
        error = self.error(call, ptr, rule=says, remedy=remedy, code=answered, kind=rule.error)
        self.word(error, self.state.mine())
        return error

    def error(
        self,
        call: str,
        ptr: int | None = None,
        *,
        rule: str,
        remedy: str,
        code: Code | None = None,
        kind: type[CaptureError] = errors.UnsupportedCallError,
    ) -> CaptureError:
        """An error at the user's line, about a stream if one is given."""
        lane = None if ptr is None else self.state.ledger.lane(ptr)
        return kind(
            call,
            stream=ptr,
            lane=None if lane is None else lane.number,
            subject=self.subject(ptr),
            location=here(),
            rule=rule,
            remedy=remedy,
            cuda_error='' if code is None else code.name,
        )

    def subject(self, ptr: int | None) -> str:
        """Describe a stream in words: its lane, its handle, where it was forked."""
        if ptr is None:
            return ''
        if ptr in LEGACY_HANDLES:
            return 'the legacy default stream'
        lane = self.state.ledger.lane(ptr)
        if lane is None:
            return f'{named(ptr)}, which is not in the capture'
        if lane.number == 0:
            return f'lane 0, the origin ({named(ptr)})'
        at = f', forked at {lane.forked_at.short}' if isinstance(lane.forked_at, Place) else ''
        return f'lane {lane.number} ({named(ptr)}{at})'

    def refuse_read(self, ptr: int | None, rule: Rule = RULES['host-read']) -> NoReturn:
        function = function_of_cupy()
        reads = f' Here `{function}()` of CuPy does so.' if function and function not in _READERS else ''
        remedy = READ_REMEDIES.get(function, rule.remedy) if rule is RULES['host-read'] else rule.remedy
        remedy = f'{remedy} Or call `{function}()` before the capture or after a launch.' if reads else remedy
        says = f'{rule.says} ({_READ_LIKE_THIS} read like this).{reads}'
        code = Code.cudaErrorStreamCaptureUnsupported
        raise self.error('ndarray.get()', ptr, rule=says, remedy=remedy, code=code, kind=rule.error)

    def refuse_read_elsewhere(self, call: str, mem: Any) -> None:
        """Refuse to read memory on the host that another thread's open capture was given for work that has not run."""
        others = [live for live in list(self.state.lives.values()) if live.thread != threading.get_ident()]
        if not others:
            return
        with self.state.inside:  # a pool may be asked for a block, to see which one it is
            live = self._relaxed(lambda: next((one for one in others if one.records(mem)), None))
        if live is None:
            return
        rule = VARIANTS['host-read-elsewhere']
        raise rule.error(
            call,
            subject=f'an array of the capture that was begun at {live.at}',
            location=here(),
            rule=f'{rule.says}.',
            remedy=rule.remedy,
        )

    def carry_out(self, verdict: Verdict, call: str, ptr: int | None, go: Callable[[], Any]) -> Any:
        """Make a call, let it first wait until another thread's capture is closed, or refuse it."""
        if verdict.allowed:
            return go()
        theirs = verdict.lost and all(one.thread != threading.get_ident() for one in verdict.lost)
        if theirs and verdict.rule is not None:
            if verdict.rule.from_elsewhere is FromElsewhere.RELAXED:
                self._note_relaxed(verdict, call)
                return self._relaxed(go)
            if self.state.mine() is None and verdict.rule.from_elsewhere is FromElsewhere.WAITS:
                with self.turn(call, self._again(verdict), self.state.current_device()):
                    return go()
        answer = verdict.answer
        if self.state.mine() is None and answer.effect is Effect.ESCAPES:
            return go()
        if self.state.mine() is None and answer.refused and not answer.loses and not verdict.lost:
            return go()  # the capture survives it, and CUDA returns the error itself
        raise self.refusal(verdict, call, ptr)

    def about_event(
        self, operation: Operation, call: str, event: int, go: Callable[[], Any], ptr: int | None = None
    ) -> Any:
        """Make a call about an event, in a thread without a capture.

        CUDA calls an event of a capture that is over an invalid argument: CuPy raises that, or says for ever that the
        event is not done. Both are refused with the reason."""
        try:
            answer = go()
        except self.state.platform.cupy.cuda.runtime.CUDARuntimeError as error:
            if isinstance(error, CaptureError) or error.status != Code.cudaErrorInvalidValue:
                raise
        else:
            if answer is not False or self.state.own(_QUERY, event) != Code.cudaErrorInvalidValue:
                return answer
        target = Target.DEAD_FORK if operation is _O.WAIT_EVENT else Target.DEAD_EVENT
        verdict = Verdict(row(operation, target)[0](Mode.RELAXED, False))
        raise self.refusal(verdict, call, ptr, VARIANTS['event-after-capture']) from None

    def _note_relaxed(self, verdict: Verdict, call: str) -> None:
        """Note in the captures of other threads that a call would have lost them; once for each line."""
        at = here()
        for capture in verdict.lost:
            live = self.state.lives.get(capture)  # it may just have ended
            if live is not None and (call, at) not in live.relaxed:
                live.relaxed.add((call, at))
                mode = capture.mode.name.lower()
                text = f'{call} of another thread was made in relaxed mode: in {mode} mode it loses the capture'
                live.note('note', None, text, at)

    def _relaxed(self, go: Callable[[], Any]) -> Any:
        device = self.state.platform.device
        old = device.exchange_thread_mode(Mode.RELAXED)
        try:
            return go()
        finally:
            device.exchange_thread_mode(old)

    def _again(self, verdict: Verdict) -> Callable[[], Verdict]:
        """Return what judges a call once more, after a wait: other captures may have begun meanwhile."""
        asked, rule = verdict.asked, verdict.rule  # its words may be those of a special case
        return lambda: verdict if asked is None else replace(self.judge(asked[0], **asked[1]), rule=rule)

    @contextmanager
    def turn(self, call: str, judge: Callable[[], Verdict], device: int) -> Iterator[None]:
        """Wait until a call of a thread without a capture loses none, and let no other thread begin one on the device
        meanwhile. The call is judged again whenever a capture has closed."""
        state, way = self.state, (threading.get_ident(), device)
        try:
            with state.lock:
                self._wait(call, judge)
                state.under_way.append(way)
            yield
        finally:
            with state.lock, state.inside:
                state.under_way = [one for one in state.under_way if one is not way]
                state.closed.notify_all()

    def _wait(self, call: str, judge: Callable[[], Verdict]) -> None:
        """Block this thread until a call loses no capture any more."""
        state, begun, told = self.state, time.monotonic(), False
        verdict = judge()
        if not self._open_of(verdict):
            return
        state.waiting += 1
        try:
            while self._open_of(verdict):
                waited = time.monotonic() - begun
                held = self._held_for_good(verdict) if waited > PATIENCE else None
                if waited >= WAIT_SECONDS or held is not None:
                    raise _waited_too_long(verdict, call, held)
                if waited >= TOLD and not told:
                    told = True
                    self._tell_of_wait(verdict, call)
                state.closed.wait(min(WAIT_SECONDS - waited, PATIENCE))
                verdict = judge()
        finally:
            state.waiting -= 1

    def _open_of(self, verdict: Verdict) -> list[OpenCapture]:
        return [self.state.lives[capture] for capture in verdict.lost if capture in self.state.lives]

    def _held_for_good(self, verdict: Verdict) -> str | None:
        """Why a capture that a call would lose never ends: its thread has ended, or waits for this thread's end."""
        frames = other_threads()
        for live in self._open_of(verdict):
            frame = frames.get(live.thread)
            if frame is None:
                return f'The thread that began the capture at {live.at} has ended and has left it open'
            if _joins(frame, threading.current_thread()):
                return f'The thread of the capture that was begun at {live.at} waits for this one at {here(frame)}'
        return None

    def _tell_of_wait(self, verdict: Verdict, call: str) -> None:
        """Warn at the line of a call that waits, and name the line at which the capture's thread is."""
        at, frames = here(), other_threads()
        for live in self._open_of(verdict)[:1]:
            frame = frames.get(live.thread)
            now = '' if frame is None else f', whose thread is at {here(frame)}'
            warnings.warn_explicit(
                f'capturekit: {call} waits for the end of the capture that was begun at {live.at}{now}. If the capture '
                'waits for this thread, neither goes on: wait for the thread after the block. '
                f'After {WAIT_SECONDS:g} s the call is refused.',
                RuntimeWarning,
                at.file if at is not None else '<unknown>',
                at.line if at is not None else 1,
            )

    def give_way(self) -> None:
        """Before a capture begins, let calls of other threads end that would lose it.

        Those that still wait for captures to close go first, or two threads with captures back to back would keep them
        for ever; but for a moment only, because what they wait for may itself wait for this capture."""
        state, me, device = self.state, threading.get_ident(), self.state.current_device()

        def free() -> bool:
            return not any(thread != me and where == device for thread, where in state.under_way)

        with state.lock:
            state.closed.wait_for(free, WAIT_SECONDS)
            if state.waiting and state.mine() is None:
                state.closed.wait_for(lambda: not state.waiting and free(), MOMENT)
                state.closed.wait_for(free, WAIT_SECONDS)  # those that went first must not meet a capture half way

    def unsafe(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Judge and make a call that the mode of a capture may forbid."""
        with self.state.lock:
            self.start()
            verdict = self.judge(_O.UNSAFE)
        call = entry.call.removeprefix('cupy.cuda.')
        return self.carry_out(verdict, call, None, lambda: original(*args, **kwargs))


def _joins(frame: FrameType | None, thread: threading.Thread) -> bool:
    """Whether the innermost frame of a thread waits in ``Thread.join()``, without a time, for another one."""
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        if frame.f_code.co_name == 'join' and frame.f_locals.get('self') is thread:
            return frame.f_locals.get('timeout') is None
        frame = frame.f_back
    return False


def _waited_too_long(verdict: Verdict, call: str, why: str | None) -> CaptureError:
    """The error for a call that has waited and would still lose another thread's capture. ``why``: why it is of no use
    to wait longer; None after the full time."""
    rule, code = verdict.rule, verdict.answer.code
    assert rule is not None
    held = why or f'Another thread has held a capture open for {WAIT_SECONDS:g} s'
    return rule.error(
        call,
        location=here(),
        rule=f'{held}, and this call would lose it ({code.name} in every mode).',
        remedy=rule.waited or rule.remedy,
        cuda_error=code.name,
    )
