"""Remedies for a script that calls ``begin_capture`` itself, and so has no ``cap`` object."""

from __future__ import annotations

from capturekit.model.rules import RULES, VARIANTS

_RELAXED = 'Begin the capture with `stream.begin_capture()`, which is relaxed, or make the call before it.'
_JOIN = '`origin.wait_event(side.record())`'

#: The remedies of rules, by rule, in terms of streams and events.
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
    'escaped-work': f'Fork it first: `side.wait_event(origin.record())` before its work, and {_JOIN} after it, '
    'before the result is used.',
    'host-read': 'Keep the value on the device (`cp.where` instead of `if`), or read it after `graph.launch()`.',
    'host-write': 'Write it before `begin_capture()` or before a launch. New arrays of values of the host have to be '
    'made before `begin_capture()`, too, and so have arrays for lists that are indices.',
    'isolation': 'Wait before the capture begins, or let the launching stream wait: `s.wait_event(event)`, then '
    '`graph.launch(s)`.',
    'end-elsewhere': 'End it on its origin; a lane is joined instead: `origin.wait_event(lane.record())`.',
    'graph-launch': 'Launch it before the capture or after it.',
    'prefetch': 'Prefetch before the capture, or on the launching stream before `graph.launch()`.',
    'unjoined': f'Join each after its last work: {_JOIN}.',
}

#: Replacements for whole remedies by their text, and for parts of others.
_INSTEAD = {RULES[name].remedy: words for name, words in REMEDIES.items()} | {
    VARIANTS['work-on-another-device'].remedy: 'Fork a stream of that device, `side.wait_event(origin.record())`, and '
    'make it current there.',
    VARIANTS['host-read-elsewhere'].remedy: 'Read it after `graph.launch()`: hand it to this thread then.',
}
_PARTS = (
    ('`cap.join(stream)`, or ', ''),
    ('; or `cap.join(side)`', ''),
    (', or record with `strict=False`, which does that', ''),
    ('; or open the capture with strict=False', ''),
    (
        'Make communicators before the block. End them after `cap.graph.close()`',
        'Make communicators before `begin_capture()`. End them when the graph is gone',
    ),
    ('Call `nccl.groupEnd()` in the block', 'Call `nccl.groupEnd()` before `end_capture()`'),
    ('Move that call out of the block', 'Make that call before `begin_capture()` or after `end_capture()`'),
    ('cap.stream', 'stream'),
    ('cap.graph', 'graph'),
)


def without_cap(remedy: str) -> str:
    """A remedy, rewritten for a script that has no ``cap`` object."""
    if remedy in _INSTEAD:
        return _INSTEAD[remedy]
    for ours, theirs in _PARTS:
        remedy = remedy.replace(ours, theirs)
    return remedy
