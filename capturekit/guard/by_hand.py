"""Captures that a script begins by hand: what is current beside them, what CuPy allocates, and words without a `cap`.

``stream.begin_capture()`` makes nothing current. ``y = x + 1`` on the next line, without ``with stream:`` around it,
goes to whatever stream was current before: it runs at once and is missing from the graph; beside a blocking stream the
legacy one loses the capture. So what is current then is kept out: a stream is trapped, as others from outside are, and
a stream of the guard's own stands in for the legacy one. Calls that name the stand-in mean the legacy stream.

A capture whose mode keeps allocations away loses itself when CuPy's pool asks the device for more; the pool tells hooks
before it asks.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, NoReturn

from capturekit.guard.allocators import ALLOCATE_ONLY
from capturekit.guard.device_switches import Visits
from capturekit.guard.open_capture import Live
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import RULES, VARIANTS, Mode, Operation
from capturekit.model.source_line import called

_RELAXED = 'Begin the capture with `stream.begin_capture()`, which is relaxed, or make the call before it.'
_ALLOCATED = 'Begin the capture with `stream.begin_capture()`, which is relaxed, or make the arrays before it.'
_JOIN = '`origin.wait_event(side.record())`'

#: Remedies of rules in terms of what a script has that begins its captures itself: streams and events.
REMEDIES: dict[str, str] = {
    'sync-captured': f'Order streams by {_JOIN}; what is on one stream is in order. Wait for results after the '
    'launch: `graph.launch(s)`, then `s.synchronize()`.',
    'query-captured': 'Ask after the graph was launched: `graph.launch(s)`, then `s.done`.',
    'sync-captured-event': 'Order work by it instead: `stream.wait_event(event)`; or wait after `graph.launch()`.',
    'query-captured-event': 'Ask an event that was recorded outside the capture, after `graph.launch()`.',
    'time-captured-event': 'Time the launch: record events on the stream before and after `graph.launch(stream)`.',
    'device-sync': f'Call it before `begin_capture()` or after `end_capture()`; between them, order streams with '
    f'{_JOIN}.',
    'unsafe-in-mode': _RELAXED,
    'unsafe-sync-in-mode': _RELAXED,
    'legacy-stream': 'Use a stream of the capture: `with stream:` around the work, with the stream that was given to '
    '`begin_capture()` or forked from it.',
    'escaped-work': f'Fork it first: `side.wait_event(origin.record())`, and {_JOIN} before `end_capture()`.',
    'host-read': 'Keep the value on the device (`cp.where` instead of `if`), or read it after `graph.launch()`.',
    'isolation': 'Wait before the capture begins, or let the launching stream wait: `s.wait_event(event)`, then '
    '`graph.launch(s)`.',
    'end-wrong-thread': 'End it in the thread that began it, or begin it with `stream.begin_capture()`, which is '
    'relaxed.',
    'graph-launch': 'Launch it before the capture or after it.',
    'prefetch': 'Prefetch before the capture, or on the launching stream before `graph.launch()`.',
    'unjoined': f'Join each after its last work: {_JOIN}.',
}

#: Remedies by their text, and parts of others.
_INSTEAD = {RULES[name].remedy: words for name, words in REMEDIES.items()} | {
    VARIANTS['work-on-another-device'].remedy: 'Fork a stream of that device, `side.wait_event(origin.record())`, and '
    'make it current there.'
}
_PARTS = (
    ('`cap.join(stream)`, or ', ''),
    ('; or `cap.join(side)`', ''),
    ('cap.stream', 'stream'),
    ('cap.graph', 'graph'),
)


def without_cap(remedy: str) -> str:
    """A remedy in the words of a script that has no ``cap``."""
    if remedy in _INSTEAD:
        return _INSTEAD[remedy]
    for ours, theirs in _PARTS:
        remedy = remedy.replace(ours, theirs)
    return remedy


class ByHand(Visits):
    """Captures that a script begins by hand: what is current beside them, and what CuPy allocates."""

    def has_refused(self, error: CaptureError) -> None:
        mine = self.mine()
        if mine is not None and mine.memory is None:
            error.remedy = without_cap(error.remedy)
        super().has_refused(error)

    def keep_out(self, live: Live) -> None:
        """A capture was begun by hand: what is current in this thread, and not in it, is kept out."""
        live.hook = _hook(self, live)
        live.hook.__enter__()
        stream = self.platform.cupy.cuda.get_current_stream()
        if stream.ptr in LEGACY_HANDLES:
            self.stand_in(live, live.capture.origin)
        elif self.topology.lane(stream.ptr) is None and stream.ptr not in self.standing_in:
            self._trap(live, stream)

    def kept_out(self, live: Live) -> CaptureError | None:
        """At the end of a capture begun by hand: what was sent to streams that it has kept out."""
        found = live.escaped if isinstance(live.escaped, CaptureError) else None
        live.escaped = None
        for ptr in list(live.trapped):
            error = self.spring(ptr, silent=True)
            found = found or error
        if found is not None:
            self._trap_again()
        return found

    def gone(self, live: Live) -> None:
        """A capture is over: what it has kept out is free again."""
        if live.memory is not None:
            super().gone(live)
            return
        with self.lock:
            try:
                self._stand_back(live)
            finally:
                super().gone(live)
            mine, visited = self.mine(), bool(live.visits)
            live.visits.clear()
            if mine is None or mine.memory is not None or not visited:
                return
            if self.platform.cupy.cuda.get_current_stream().ptr in LEGACY_HANDLES:
                self.stand_in(mine, mine.capture.origin)  # another capture of this thread goes on

    def _stand_back(self, live: Live) -> None:
        mine = live.thread == threading.get_ident()
        if live.hook is not None and mine:
            hook, live.hook = live.hook, None
            hook.__exit__(None, None, None)
        for ptr in list(live.trapped):
            self.spring(ptr, silent=True)
        use = 'cupy.cuda.stream._BaseStream.use'
        for device, (stream, legacy) in live.visits.items():
            self.standing_in.pop(stream.ptr, None)
            if mine and self.platform.cupy.cuda.get_current_stream(device).ptr == stream.ptr:
                with self.on(device):
                    self.own(use, legacy)
            self.give_spare(device, stream)

    def meant(self, stream: Any) -> Any:
        """The stream that a call means: the legacy one, where a stream of the guard's own stands in for it."""
        device = self.standing_in.get(int(getattr(stream, 'ptr', stream)))
        for live in self.lives.values() if device is not None else ():
            if live.memory is None and device in live.visits:
                legacy = live.visits[device][1]
                return legacy.ptr if isinstance(stream, int) else legacy
        return stream

    def pool_asked(self, live: Live) -> None:
        """The pool is asked for memory: work will follow, unless the array is to be empty."""
        stream = self.platform.cupy.cuda.get_current_stream()
        if self.installation.inside.depth or stream.ptr not in live.trapped or called() in ALLOCATE_ONLY:
            return
        with self.lock:
            verdict = self.judge(Operation.WORK, stream=stream.ptr)
            rule, of = self.outside_of(live, stream.ptr)
            self._refused_to_pool(self.refusal(verdict, 'Work', of, rule))

    def pool_grows(self, live: Live) -> None:
        """The pool is about to ask the device for memory."""
        if self.installation.inside.depth or live.capture.mode is Mode.RELAXED or live.capture not in self.lives:
            return
        with self.lock:
            verdict = self.judge(Operation.UNSAFE)
            if verdict.answer.refused:
                rule = replace(RULES['unsafe-in-mode'], remedy=_ALLOCATED)
                self._refused_to_pool(self.refusal(verdict, "An allocation of CuPy's memory pool", None, rule))

    def _refused_to_pool(self, error: CaptureError) -> NoReturn:
        refused(error)
        self.has_refused(error)
        raise error


def _hook(guard: ByHand, live: Live) -> Any:
    """CuPy's own way to be told of allocations in this thread."""

    def malloc_preprocess(_hook: Any, **_facts: Any) -> None:
        guard.pool_asked(live)

    def alloc_preprocess(_hook: Any, **_facts: Any) -> None:
        guard.pool_grows(live)

    members = {
        'name': f'capturekit.by_hand {id(live)}',
        'malloc_preprocess': malloc_preprocess,
        'alloc_preprocess': alloc_preprocess,
    }
    return type('Hook', (guard.platform.cupy.cuda.MemoryHook,), members)()
