"""Captures of a whole process, followed by what CUDA's functions are told and what they answer.

:class:`Follower` is told of every call of CUDA's that matters to captures, before it is made and after, whoever makes
it: CuPy, PyTorch, Numba, a C library. It keeps an account of captures, lanes and events, as the guard does for what
goes through CuPy. From a call's error code it knows that a capture may be lost, and asks the driver which one. The
first such call is the finding; what follows from it is none. Not safe for threads: the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from capturekit.model.cuda_functions import ApiCall
from capturekit.model.ledger import LEGACY_HANDLES, EventState, Lane, Ledger, LedgerCapture, Verdict, named
from capturekit.model.rules import ROWS, RULES, CaptureStatus, Code, Effect, Mode, Operation, Rule
from capturekit.model.source_line import Place

_O = Operation
#: The rule for a code that a call got though the account did not foresee it.
_BY_CODE = {
    Code.cudaErrorStreamCaptureInvalidated: 'invalidated',
    Code.cudaErrorStreamCaptureMerge: 'merge',
    Code.cudaErrorStreamCaptureUnmatched: 'end-elsewhere',
    Code.cudaErrorStreamCaptureUnjoined: 'unjoined',
    Code.cudaErrorStreamCaptureIsolation: 'isolation',
    Code.cudaErrorStreamCaptureImplicit: 'legacy-stream',
    Code.cudaErrorStreamCaptureWrongThread: 'end-wrong-thread',
}
_OF_EVENTS = (_O.EVENT_QUERY, _O.EVENT_SYNCHRONIZE, _O.EVENT_ELAPSED_TIME)
_EXTERNAL = {_O.EVENT_RECORD: _O.EVENT_RECORD_EXTERNAL, _O.WAIT_EVENT: _O.WAIT_EVENT_EXTERNAL}
#: Codes that are answers and no errors.
_NO_ERROR = (Code.cudaSuccess, Code.cudaErrorNotReady)
#: Events of captures that are over are forgotten when there are so many, and no capture is open.
_MOST_MARKS = 4096


@dataclass(frozen=True)
class CaptureFinding:
    """A call that has harmed a capture.

    Attributes:
        kind: 'lost', 'escaped' or 'unjoined'. call: what was called. code: CUDA's answer. rule: the rule for it, None
            where the table has none. at: the line of the user's code. libraries: what the call came through, the
            nearest first. subject: the stream or event in words. elsewhere: another thread than the capture's made it.
        lanes: those that are not joined, in words. count: how often it was made, at this line.
    """

    kind: str
    call: ApiCall
    code: int
    rule: Rule | None
    at: Place | None
    libraries: tuple[str, ...]
    subject: str = ''
    elsewhere: bool = False
    lanes: tuple[str, ...] = ()
    count: int = 1


@dataclass(eq=False)
class FollowedCapture:
    """A capture from its begin to its end, and what has harmed it.

    Attributes:
        capture: the account of its lanes. at: the line that began it. maker: the package that began it, or ''. own:
            whether capturekit began it for itself. loss: what lost it first. escaped: work of its thread that went past
            it. copied: by thread, the stream and the line of its last copy to the host.
    """

    capture: LedgerCapture
    at: Place | None
    maker: str
    own: bool = False
    loss: CaptureFinding | None = None
    escaped: list[CaptureFinding] = field(default_factory=list)
    copied: dict[int, tuple[int, Place | None]] = field(default_factory=dict)

    @property
    def findings(self) -> list[CaptureFinding]:
        """What has lost it, and then what has escaped it."""
        return ([] if self.loss is None else [self.loss]) + self.escaped


class Follower:
    """Follows every capture of a process. ``ended`` is called with each capture that is over.

    ``surroundings`` tells of the process: ``status(stream)`` and ``blocking(stream)`` of a stream (None and False where
    it can't be asked), ``device()``, the line that a ``place(thread)`` is at (None if it runs no Python), the
    ``libraries()`` that this thread's call came through, the nearest first, the ``maker()`` of a capture that begins
    now, and whether it is capturekit's ``own()``.
    """

    def __init__(
        self,
        surroundings: Any,
        ended: Callable[[FollowedCapture], None] = lambda _one: None,
    ) -> None:
        self.ledger = Ledger()
        self.captures: dict[LedgerCapture, FollowedCapture] = {}
        self._ask = surroundings
        self._ended = ended
        self._modes: dict[int, Mode] = {}
        self._blocking: dict[int, bool] = {}

    @property
    def idle(self) -> bool:
        """Whether no capture is open."""
        return not self.captures

    # -- told of calls ------------------------------------------------------------------------------------------------

    def before(self, call: ApiCall) -> None:
        """Hear that a call is about to be made. A stream's kind can be asked for only before it is captured."""
        if call.operation not in (_O.BEGIN_CAPTURE, _O.WAIT_EVENT) or call.stream in (None, *LEGACY_HANDLES):
            return
        stream = call.stream
        assert stream is not None
        forks = call.event is not None and self.ledger.event_state(call.event) is EventState.CAPTURED
        if self.ledger.lane(stream) is None and (call.operation is _O.BEGIN_CAPTURE or forks):
            self._blocking[stream] = self._ask.blocking(stream)

    def after(self, call: ApiCall, code: int) -> None:
        """Hear what a call was answered."""
        if call.operation is None:
            if code == Code.cudaSuccess and call.mode is not None:
                self._modes[call.thread] = call.mode
            return
        if call.operation is _O.BEGIN_CAPTURE:
            self._begun(call, code)
        if not self.captures:
            return
        verdict = self._judged(call)
        if code in _NO_ERROR:
            self._succeeded(call, code, verdict)
        else:
            self._failed(call, code, verdict)
        if call.operation is _O.END_CAPTURE:
            self._over(call, code)

    def worked(self, stream: int) -> bool:
        """Note work on the origin of a capture, the most frequent call; False if :meth:`after` has to hear it."""
        lane = self.ledger.lanes.get(stream)
        if lane is None or lane.number:
            return False
        lane.worked = lane.segment
        return True

    def settle(self) -> None:
        """Ask the driver which captures that have not ended are lost, though no call that did it was seen."""
        for one in self.captures.values():
            origin = one.capture.origin.stream
            if one.loss is None and self._ask.status(origin) is CaptureStatus.INVALIDATED:
                call, rule = ApiCall('', None, one.capture.thread, origin), RULES['invalidated']
                code = Code.cudaErrorStreamCaptureInvalidated
                one.loss = CaptureFinding('lost', call, code, rule, None, (), self.subject(call))

    # -- what a call has done -----------------------------------------------------------------------------------------

    def _judged(self, call: ApiCall) -> Verdict | None:
        """What the table says to a call; None where nobody has measured it."""
        assert call.operation is not None
        operation = _EXTERNAL.get(call.operation, call.operation) if call.external else call.operation
        stream = None if operation in (*_OF_EVENTS, _O.UNSAFE) else call.stream
        legacy = call.stream in LEGACY_HANDLES or call.operation in (_O.DEVICE_SYNCHRONIZE, _O.LEGACY_WORK)
        device = self._ask.device() if legacy else None
        mode = self._modes.get(call.thread, Mode.GLOBAL)
        asked = {'stream': stream, 'event': call.event, 'event2': call.event2}
        try:
            return self.ledger.judge(operation, thread=call.thread, thread_mode=mode, device=device, **asked)
        except KeyError:
            return None

    def _begun(self, call: ApiCall, code: int) -> None:
        if code != Code.cudaSuccess or call.stream is None:
            return
        at, mode = self._place(call), Mode.GLOBAL if call.mode is None else call.mode
        blocking = self._blocking.pop(call.stream, False)
        capture = self.ledger.begin(
            call.stream, mode, call.thread, blocking=blocking, at=at, device=self._ask.device() or 0
        )
        self.captures[capture] = FollowedCapture(capture, at, self._ask.maker(), self._ask.own())

    def _succeeded(self, call: ApiCall, code: int, verdict: Verdict | None) -> None:
        operation, stream, event = call.operation, call.stream, call.event
        if operation is _O.EVENT_DESTROY and event is not None:
            self.ledger.forget_event(event)
        elif operation is _O.EVENT_RECORD and not call.external and event is not None and stream is not None:
            self.ledger.record(event, stream, None)
        elif operation is _O.WAIT_EVENT and not call.external and event is not None and stream is not None:
            if self.ledger.event_state(event) is EventState.CAPTURED:
                blocking = self._blocking.pop(stream, False)
                self.ledger.wait(stream, event, blocking=blocking, at=self._place(call))
        elif verdict is not None and verdict.answer.effect is Effect.RECORDED and stream is not None:
            self._recorded(call, stream)
        elif verdict is not None and verdict.answer.effect is Effect.ESCAPES:
            self._escaped(call, code, verdict)

    def _recorded(self, call: ApiCall, stream: int) -> None:
        lane = self.ledger.lane(stream)
        if lane is None:
            return
        at = self._place(call) if lane.number or call.reads else None
        self.ledger.work(stream, at or lane.last_use)
        if call.reads and lane.capture in self.captures:
            self.captures[lane.capture].copied[call.thread] = (stream, at)

    def _escaped(self, call: ApiCall, code: int, verdict: Verdict) -> None:
        """Note work that went past the capture that its thread has open."""
        mine = [one for one in self.captures.values() if one.capture.thread == call.thread and not one.own]
        if not mine or mine[-1].loss is not None or self._ask.own() or self._captured(call.stream):
            return
        at, known = self._place(call), mine[-1].escaped
        for number, one in enumerate(known):
            if (one.at, one.call.function, one.call.stream) == (at, call.function, call.stream):
                known[number] = replace(one, count=one.count + 1)
                return
        known.append(self._finding('escaped', call, code, verdict.rule))

    def _captured(self, stream: int | None) -> bool:
        """Whether a stream is in a capture that began before it was followed."""
        if stream is None or stream in LEGACY_HANDLES:
            return False
        return self._ask.status(stream) in (CaptureStatus.ACTIVE, CaptureStatus.INVALIDATED)

    def _failed(self, call: ApiCall, code: int, verdict: Verdict | None) -> None:
        """Find out which captures a call that got an error has lost."""
        good = [one for one in self.captures.values() if one.loss is None]
        if not good or (call.operation is _O.END_CAPTURE and self._ends(call, code)):
            return
        lost = [one for one in good if self._lost(one, call, code, verdict)]
        for one in lost:  # all are told of before one is marked: an event of a lost capture stands for nothing
            rule, copied = self.rule(call, code, verdict), one.copied.get(call.thread)
            if rule is not None and rule.name == 'sync-captured' and copied == (call.stream, self._place(call)):
                rule = RULES['host-read']
            one.loss = self._finding('lost', call, code, rule, elsewhere=call.thread != one.capture.thread)
        for one in lost:
            one.capture.status = CaptureStatus.INVALIDATED

    def _finding(self, kind: str, call: ApiCall, code: int, rule: Rule | None, **more: Any) -> CaptureFinding:
        at = self._place(call)
        return CaptureFinding(kind, call, code, rule, at, self._ask.libraries(), self.subject(call), **more)

    def _lost(self, one: FollowedCapture, call: ApiCall, code: int, verdict: Verdict | None) -> bool:
        status = self._ask.status(one.capture.origin.stream)
        if status is not None:
            return status is not CaptureStatus.ACTIVE
        lane = None if call.stream is None else self.ledger.lane(call.stream)
        if code == Code.cudaErrorStreamCaptureInvalidated:
            return lane is not None and lane.capture is one.capture
        return verdict is not None and one.capture in verdict.lost

    def rule(self, call: ApiCall, code: int, verdict: Verdict | None) -> Rule | None:
        """Return the rule for an answer: the table's for such a call, or else the one for the code."""
        if verdict is not None and verdict.rule is not None and verdict.answer.code == code:
            return verdict.rule
        if code in _BY_CODE:
            return RULES[_BY_CODE[Code(code)]]
        for _label, operation, _target, pattern, name in ROWS:
            if operation is call.operation and any(answer.code == code for answer in pattern.answers):
                return RULES.get(name)
        return None

    # -- the end ------------------------------------------------------------------------------------------------------

    def _ends(self, call: ApiCall, code: int) -> bool:
        """Note why the end of a capture has made no graph; False if the end is not the capture's own."""
        lane = None if call.stream is None else self.ledger.lane(call.stream)
        if lane is None or lane.number or lane.capture not in self.captures:
            return False
        one = self.captures[lane.capture]
        if one.loss is not None:
            return True
        lanes = tuple(_story(lane, one.capture) for lane in one.capture.unjoined())
        kind = 'unjoined' if code == Code.cudaErrorStreamCaptureUnjoined else 'lost'
        one.loss = self._finding(kind, call, code, self.rule(call, code, self._judged(call)), lanes=lanes)
        return True

    def _over(self, call: ApiCall, code: int) -> None:
        lane = None if call.stream is None else self.ledger.lane(call.stream)
        if lane is None or lane.number or code == Code.cudaErrorIllegalState:
            return
        if code != Code.cudaSuccess and self._ask.status(lane.stream) is CaptureStatus.ACTIVE:
            return
        self.ledger.end(lane.capture)
        one = self.captures.pop(lane.capture, None)
        if not self.captures and len(self.ledger.marks) > _MOST_MARKS:
            self.ledger.marks.clear()
        if one is not None:
            self._ended(one)

    def _place(self, call: ApiCall) -> Place | None:
        """The line of a call; for a thread without Python that of a thread with a capture, which may wait for it."""
        threads = (call.thread, *(one.capture.thread for one in self.captures.values()))
        places: Iterator[Place | None] = map(self._ask.place, dict.fromkeys(threads))
        return next((at for at in places if at is not None), None)

    # -- words --------------------------------------------------------------------------------------------------------

    def subject(self, call: ApiCall) -> str:
        """Describe what a call addresses."""
        if call.operation in _OF_EVENTS and call.event is not None:
            captured = self.ledger.event_state(call.event) is EventState.CAPTURED
            return f'an event {"of the capture" if captured else "from outside of the capture"} ({call.event:#x})'
        if call.operation is _O.LEGACY_WORK or call.stream in LEGACY_HANDLES:
            return 'the legacy default stream'
        if call.stream is None:
            return ''
        lane = self.ledger.lane(call.stream)
        if lane is None:
            return f'{named(call.stream)}, which is not in the capture'
        if lane.number == 0:
            return f'lane 0, the origin ({named(call.stream)})'
        at = f', forked at {lane.forked_at.short}' if isinstance(lane.forked_at, Place) else ''
        return f'lane {lane.number} ({named(call.stream)}{at})'


def _story(lane: Lane, capture: LedgerCapture) -> str:
    """Tell of a lane that was not joined, as the guard does."""
    parent = capture.lanes[lane.parent or 0]
    last = f', last used at {lane.last_use}' if lane.last_use else ''
    forked = f'forked from lane {parent.number} at {lane.forked_at}'
    return f'lane {lane.number} ({named(lane.stream)}) {forked}{last}{lane.why_unjoined}'
