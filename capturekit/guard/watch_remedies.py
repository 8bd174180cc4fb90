"""Remedies for captures that others than CuPy begin: in the words of PyTorch, and in words that hold for every program.

Rules without an entry have a remedy that names nothing of CuPy's or capturekit's.
"""

from __future__ import annotations

from capturekit.guard.manual_remedies import without_cap
from capturekit.model.rules import Rule

_WARM_UP = 'Pinned memory, workspaces and plans that a library makes at its first call are made by a run before it'

#: By the rule's name, for captures of ``torch.cuda.graph``.
TORCH: dict[str, str] = {
    'sync-captured': 'Order streams by `side.wait_stream(stream)`. Wait for results after the launch: '
    '`graph.replay()`, then `torch.cuda.synchronize()`.',
    'query-captured': 'Ask after `graph.replay()`.',
    'sync-captured-event': 'Order work by it instead: `stream.wait_event(event)`; or wait after `graph.replay()`.',
    'query-captured-event': 'Ask an event that was recorded outside the capture, after `graph.replay()`.',
    'time-captured-event': 'Time the launch: record events before and after `graph.replay()`.',
    'device-sync': 'Call it before `torch.cuda.graph(...)` or after it; inside, order streams by '
    '`side.wait_stream(stream)`.',
    'unsafe-in-mode': f"Make the call before the capture. {_WARM_UP}. `capture_error_mode='relaxed'` allows it.",
    'unsafe-sync-in-mode': 'Make the call before `torch.cuda.graph(...)` or after it; what is on one stream is in '
    'order without it.',
    'legacy-stream': 'Make a stream of the capture current for that work: in `torch.cuda.graph(...)` leave the default '
    'stream out, and hand `torch.cuda.current_stream()` to other libraries.',
    'escaped-work': 'Let the stream wait for the captured one first, `side.wait_stream(torch.cuda.current_stream())`, '
    'and join it before its result is used: `torch.cuda.current_stream().wait_stream(side)`.',
    'isolation': 'Wait before `torch.cuda.graph(...)`, or on the stream that launches before `graph.replay()`.',
    'unjoined': 'Join each after its last work: `torch.cuda.current_stream().wait_stream(side)`.',
    'host-read': 'Keep the value on the device (`torch.where` instead of `if`), or read it after `graph.replay()`.',
    'graph-launch': 'Replay it before the capture or after it.',
    'callback': 'Leave it out of the capture, or record a host function (`cudaLaunchHostFunc`).',
    'end-wrong-thread': "End it in the thread that began it, or begin it with `capture_error_mode='relaxed'`.",
    'already-capturing': 'Use the open capture, or begin the second one on another stream.',
    'dead-event': 'Record it again, in this capture or outside of any.',
}

#: By the rule's name, for captures of any other program.
GENERAL: dict[str, str] = {
    'sync-captured': 'Order streams by events: record one, and let the other stream wait for it. Wait for results '
    'after the graph was launched.',
    'query-captured': 'Ask after the graph was launched.',
    'sync-captured-event': 'Let a stream wait for it instead; or wait after the graph was launched.',
    'query-captured-event': 'Ask an event that was recorded outside the capture, after the graph was launched.',
    'time-captured-event': 'Time the launch: record events before and after it.',
    'device-sync': 'Call it before the capture begins or after it has ended; inside, order streams by events.',
    'unsafe-in-mode': f'Make the call before the capture, or begin the capture in relaxed mode. {_WARM_UP}.',
    'unsafe-sync-in-mode': 'Make the call before the capture or after it, or begin the capture in relaxed mode.',
    'legacy-stream': 'Give the work to a stream of the capture: the origin, or one that has waited for its event.',
    'escaped-work': 'Let the stream wait for an event of the captured one first, and let the captured one wait for an '
    'event of the stream before its result is used.',
    'isolation': 'Wait before the capture begins, or on the stream that launches the graph.',
    'unjoined': 'Join each after its last work: record an event on it, and let the origin wait for that.',
    'host-read': 'Keep the value on the device, or read it after the graph was launched.',
    'end-wrong-thread': 'End it in the thread that began it, or begin it in relaxed mode.',
    'graph-launch': 'Launch it before the capture or after it, or add it as a child graph.',
    'callback': 'Record a host function instead (`cudaLaunchHostFunc`).',
    'stream-flags': 'Ask before the capture.',
    'peer-copy': 'Use `cudaMemcpyAsync` with unified addresses.',
    'prefetch': 'Prefetch before the capture, or on the stream that launches the graph.',
}

#: Where another thread makes the call that the capture's mode forbids.
_ELSEWHERE = {
    'torch': "Begin the capture with `torch.cuda.graph(graph, capture_error_mode='thread_local')`: it then forbids "
    'such calls to its own thread alone.',
    '': 'Begin the capture in thread-local mode: it then forbids such calls to its own thread alone.',
    'wait': 'Let the other thread wait until the capture has ended; every mode forbids this call to all threads.',
}
_BY_MODE = ('unsafe-in-mode', 'unsafe-sync-in-mode')


def remedy(rule: Rule, maker: str, elsewhere: bool) -> str:
    """Return what to write instead, in a program whose capture a package has begun.

    ``maker`` is the package's name, '' for none that is known. ``elsewhere``: another thread has made the call.
    """
    if elsewhere and rule.name in _BY_MODE and maker != 'capturekit':
        return _ELSEWHERE['torch' if maker == 'torch' else '']
    if elsewhere and rule.name == 'device-sync':
        return _ELSEWHERE['wait']
    if maker == 'capturekit':
        return rule.remedy
    if maker == 'cupy':
        return without_cap(rule.remedy)
    words = TORCH if maker == 'torch' else GENERAL
    return words.get(rule.name) or GENERAL.get(rule.name) or without_cap(rule.remedy)
