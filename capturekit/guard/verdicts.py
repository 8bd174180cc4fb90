"""What every verb stands on: who has a capture open, what a call would cost, refusing, waiting, letting through."""

from __future__ import annotations

import linecache
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from capturekit.driver.cuda import Platform, current
from capturekit.driver.vendor_libraries import Libraries
from capturekit.guard.entry_points import Installation
from capturekit.guard.line_trace import TRACING
from capturekit.guard.open_capture import Live
from capturekit.launch.plan import Feed
from capturekit.model import errors
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.host_reads import Rehearsal
from capturekit.model.ledger import LEGACY_HANDLES, EventState, Lane, Ledger, LedgerCapture, Verdict
from capturekit.model.rules import CaptureStatus, Code, Effect, FromElsewhere, Mode, Operation, Rule, table
from capturekit.model.source_line import Place, here

#: Seconds that another thread's device-wide synchronisation waits for captures to close.
WAIT_SECONDS = 60.0

_O = Operation
#: What concerns one device: the current one, where none is named.
_OF_A_DEVICE = (_O.DEVICE_SYNCHRONIZE, _O.LEGACY_WORK)


class Judging:
    """What every verb stands on: who has a capture open, what a call would cost, refusing, waiting, letting through."""

    def __init__(self) -> None:
        self.topology = Ledger()
        self.installation = Installation()
        self.lock = threading.RLock()
        self.closed = threading.Condition(self.lock)
        self.lives: dict[LedgerCapture, Live] = {}
        self.threads: dict[int, list[Live]] = {}
        self.allocators: dict[int, Any] = {}
        self.foreign: set[int] = set()
        #: Streams of the guard's own that stand in where a device has no lane: the device of each.
        self.standing_in: dict[int, int] = {}
        self.rehearsals: dict[int, Rehearsal] = {}
        self.redraws: dict[int, list[Feed]] = {}
        self._platform: Platform | None = None
        self.libraries = Libraries(self._records, self._workspace)

    def _records(self, stream: int) -> bool:
        """Whether a stream is in a capture of capturekit's own, where libraries may record."""
        lane = self.topology.lane(stream)
        live = None if lane is None else self.lives.get(lane.capture)
        return live is not None and live.memory is not None

    def _workspace(self, stream: int) -> tuple[int, int] | None:
        """The workspace that cuBLAS is to use on a stream: the graph's own."""
        lane = self.topology.lane(stream)
        live = None if lane is None else self.lives.get(lane.capture)
        if lane is None or live is None or live.memory is None:
            return None
        with self.inside():
            return live.memory.workspace(lane.stream)

    def install(self, platform: Platform) -> None:
        """Put the wrappers in place (counted)."""
        with self.lock:
            if self._platform is not None and self._platform.cupy is not platform.cupy and self.lives:
                raise RuntimeError('captures are open on another CuPy: close them first')
            first = not self.installation.installed
            if first:
                self.topology.table = table(platform.device.driver_version() or None)
            self._platform = platform
            self.installation.install(self)
            if first:
                try:
                    self.libraries.open(platform)
                except BaseException:
                    self.libraries.close()
                    self.installation.uninstall()
                    raise

    def uninstall(self) -> None:
        """Take the wrappers away again (counted); the last time what was known of events is forgotten, too."""
        with self.lock:
            try:
                self.installation.uninstall()
            finally:
                if not self.installation.installed:
                    self.libraries.close()
                if not self.installation.installed:
                    for live in list(self.lives.values()):
                        self.gone(live)  # begun by hand and never ended: nobody is left to hear of its end
                    self.topology.marks.clear()
                    self.topology.outside.clear()

    @contextmanager
    def rehearsing(self, platform: Platform, rehearsal: Rehearsal, drawn: list[Feed] | None = None) -> Iterator[None]:
        """Keep what this thread's host reads give, for a block; draw anew only what is not ``drawn`` already."""
        me = threading.get_ident()
        if self.mine() is not None:
            raise errors.UnmatchedError(
                'ck.rehearse()',
                location=here(),
                rule='A rehearsal runs eagerly, and this thread has a capture open.',
                remedy='Rehearse before the capture.',
            )
        self.install(platform)
        before = self.rehearsals.get(me)
        self.rehearsals[me] = rehearsal
        if drawn:
            self.redraws[me] = drawn
        try:
            yield
        finally:
            self.redraws.pop(me, None)
            if before is None:
                del self.rehearsals[me]
            else:
                self.rehearsals[me] = before
            self.uninstall()

    def opened(self, live: Live) -> None:
        """A capture has begun."""
        with self.lock:
            self.lives[live.capture] = live
            self.threads.setdefault(live.thread, []).append(live)
            live.streams[live.origin.ptr] = live.origin
            live.note('begin', live.capture.origin, f'capture begun in {live.recording.mode} mode', live.at)

    def settle(self, live: Live) -> None:
        """Before a capture ends: find out which line made which nodes, while the graph's nodes can be read."""
        if live.trace is None:
            return
        live.trace.poll()
        order = None
        with self.inside(), suppress(CudaCallError):  # a lost capture's nodes can't be read: what is known will do
            info = self.platform.device.capture_info(live.origin.ptr)
            if info.status is CaptureStatus.ACTIVE:
                order = self.platform.device.graph_nodes(info.graph)[live.numbered.get(info.graph, 0) :]
                live.edges = self.platform.device.graph_edge_count(info.graph)
        live.trace.finish(order)

    def gone(self, live: Live) -> None:
        """A capture is over: waiting threads go on."""
        with self.lock:
            self.topology.end(live.capture)
            if live.trace is not None:
                TRACING.close(live.trace)
            if self.lives.pop(live.capture, None) is not None:
                stack = self.threads[live.thread]
                stack.remove(live)
                if not stack:
                    del self.threads[live.thread]
            self.closed.notify_all()

    def mine(self) -> Live | None:
        """The capture opened last by this thread."""
        stack = self.threads.get(threading.get_ident())
        return stack[-1] if stack else None

    def has_refused(self, error: CaptureError) -> None:
        """A verb has raised: the capture of this thread keeps it in mind, should the block go on."""
        mine = self.mine()
        if mine is not None:
            mine.refusal(error)

    def occupied(self) -> bool:
        """Whether this thread has a capture open, or is in a rehearsal."""
        return self.mine() is not None or threading.get_ident() in self.rehearsals

    def live_of(self, lane: Lane) -> Live:
        return self.lives[lane.capture]

    @property
    def platform(self) -> Platform:
        return self._platform if self._platform is not None else current()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Calls made in the block are the guard's own: wrappers let them through."""
        inside = self.installation.inside
        inside.depth += 1
        try:
            yield
        finally:
            inside.depth -= 1

    @contextmanager
    def on(self, device: int, platform: Platform | None = None) -> Iterator[None]:
        """Another device for a while, for calls of the guard's own."""
        runtime = (platform or self.platform).cupy.cuda.runtime
        with self.inside():
            before = runtime.getDevice()
            if before == device:
                yield
                return
            try:
                runtime.setDevice(device)  # which may fail and have been done: it tells of errors from before, too
                yield
            finally:
                runtime.setDevice(before)

    def current_device(self) -> int:
        """The number of this thread's device."""
        return int(self.platform.cupy.cuda.runtime.getDevice())

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Call CuPy's original of an entry point, past the wrappers."""
        with self.inside():
            return self.installation.originals[entry](*args, **kwargs)

    def judge(self, operation: Operation, **ids: Any) -> Verdict:
        """The verdict on a call from this thread; an event or stream met for the first time is looked up first."""
        event = ids.get('event')
        if event is not None:
            self._meet(event)
        if operation in _OF_A_DEVICE or ids.get('stream') in LEGACY_HANDLES:
            ids.setdefault('device', self.current_device())
        return self.topology.judge(operation, thread=threading.get_ident(), **ids)

    def _meet(self, event: int) -> None:
        topology = self.topology
        if event not in topology.marks and event not in topology.outside:
            with self.inside():
                state = self.platform.device.event_state(event)
            if state is EventState.DEAD:
                topology.dead_event(event)
            elif state is not EventState.NEVER:
                topology.outside_event(event)  # or foreign: as little to be waited for

    def _start(self, check: bool = True) -> Live | None:
        """What every verb does first: see whether this thread has a capture, and whether it is still good."""
        mine = self.mine()
        if mine is not None and check:
            self.check(mine)
        return mine

    def check(self, live: Live) -> None:
        """Notice, as soon as possible, that something below Python has lost the capture."""
        if live.capture.status is CaptureStatus.ACTIVE:
            with self.inside():
                status = self.platform.device.stream_status(live.origin.ptr)
            if status is CaptureStatus.ACTIVE:
                if live.trace is None:  # else it knows better
                    live.active_at = here() or live.active_at
            else:
                live.capture.status = CaptureStatus.INVALIDATED
                raise self.invalidated(live)

    def invalidated(self, live: Live) -> errors.InvalidatedError:
        """The error that says a capture was lost below Python."""
        live.poll()
        trace = live.trace
        good = trace.good if trace is not None else live.active_at
        lost = trace.lost if trace is not None else None
        told = f'Active after {good}' if good else 'Active when begun'
        if lost is not None:
            thread = next((t.name for t in threading.enumerate() if t.ident == live.thread), str(live.thread))
            told += f', Invalidated after {lost} (thread {thread}){_source(lost)}'
        else:
            told += ', Invalidated now'
        error = errors.InvalidatedError(
            'The capture was lost by a call that capturekit did not see',
            stream=live.origin.ptr,
            lane=0,
            location=lost or here(),
            rule=f'{told}. Something below Python made a call that no capture can hold: a C library, another library, '
            'a destructor, or meanwhile another thread.',
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
        lane = None if ptr is None else self.topology.lane(ptr)
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
        """A stream in words: its lane, its handle, where it was forked."""
        if ptr is None:
            return ''
        lane = self.topology.lane(ptr)
        if ptr in LEGACY_HANDLES:
            return 'the legacy default stream'
        if lane is None:
            return f'stream {ptr:#x}, which is not in the capture'
        if lane.number == 0:
            return f'lane 0, the origin (stream {ptr:#x})'
        at = f', forked at {lane.forked_at.short}' if isinstance(lane.forked_at, Place) else ''
        return f'lane {lane.number} (stream {ptr:#x}{at})'

    def _pass(self, verdict: Verdict, call: str, ptr: int | None, go: Callable[[], Any]) -> Any:
        """Let a call through, make it wait for somebody else's capture to close, or refuse it."""
        me = threading.get_ident()
        if verdict.allowed:
            return go()
        theirs = verdict.lost and all(c.thread != me for c in verdict.lost)
        if theirs and verdict.rule is not None:
            if verdict.rule.from_elsewhere is FromElsewhere.RELAXED:
                return self._relaxed(go)
            if self.mine() is None and verdict.rule.from_elsewhere is FromElsewhere.WAITS:
                self._wait(verdict, call)
                return go()
        if verdict.answer.effect is Effect.ESCAPES and self.mine() is None:
            return go()
        if verdict.answer.refused and not verdict.answer.loses and self.mine() is None and not verdict.lost:
            return go()  # harmless, and CUDA says it itself
        self.refuse(verdict, call, ptr)

    def _relaxed(self, go: Callable[[], Any]) -> Any:
        device = self.platform.device
        old = device.exchange_thread_mode(Mode.RELAXED)
        try:
            return go()
        finally:
            device.exchange_thread_mode(old)

    def _wait(self, verdict: Verdict, call: str) -> None:
        """Block this thread until the captures that a call would lose are closed; none of them is its own."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self.closed:
            while any(c in self.lives for c in verdict.lost):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _waited_too_long(verdict, call)
                self.closed.wait(left)

    def unsafe(self, call: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls that the mode of a capture may keep away."""
        with self.lock:
            self._start()
            verdict = self.judge(_O.UNSAFE)
        return self._pass(verdict, call, None, lambda: original(*args, **kwargs))


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
