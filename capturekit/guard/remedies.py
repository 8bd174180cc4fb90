"""What is said to programs without a ``cap`` object: remedies, and what a watch has found, as exceptions.

A script that calls ``begin_capture`` itself is told of streams and events. Captures that others than CuPy begin are
told of in the words of PyTorch, or in words that hold for every program.
"""

from __future__ import annotations

from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError, EscapedWorkError, InvalidatedError, UnjoinedError
from capturekit.model.followed_captures import CaptureFinding
from capturekit.model.rules import RULES, VARIANTS, Code, Rule
from capturekit.model.source_line import Place

# -- instead of CuPy's functions that read on the host. Each was recorded and launched by a test ---------------------

_DRAWS = 'Make `rng = cp.random.default_rng()` before the capture, and write `{}`: it draws anew at each launch.'
_LENGTH = (
    'The values decide how long its result is. Keep the length, as `cp.where(mask, x, 0)` does, or let `@ck.graphed` '
    'record the function: it checks the length at each launch.'
)
_UNIQUE = (
    'The values decide how long its result is. Keep the length: sort, `s = cp.sort(x)`, and mark what is new, '
    '`new = cp.concatenate([cp.ones(1, bool), s[1:] != s[:-1]])`. Or let `@ck.graphed` record the function: it checks '
    'the length at each launch.'
)
_MODE = 'Write `mode={!r}`, with which CuPy does not look for indices out of bounds.'
_MASKED = 'Write `cp.copyto(a, values, where=mask)`, with a number or an array of the form of `a` as `values`.'
_FACTORED = (
    "CuPy reads here whether it has failed, because of `cupyx.errstate(linalg='raise')`. Write "
    "`with cupyx.errstate(linalg='ignore'):` around it. The device can tell a failure by the result: of `cholesky` by "
    '`cp.allclose(l @ l.T, a)`, of `solve` by `cp.allclose(a @ x, b)`.'
)

#: By the name of the function that the user's line called.
READ_REMEDIES: dict[str, str] = {
    'randint': _DRAWS.format('rng.integers(low, high, size)'),
    'random_integers': _DRAWS.format('rng.integers(low, high, size, endpoint=True)'),
    'choice': _DRAWS.format('a[rng.integers(0, len(a), size)]')
    + ' With probabilities, write `a[cp.searchsorted(cp.cumsum(p), rng.random(size))]`.',
    'exponential': _DRAWS.format('rng.exponential(scale, size)'),
    'logseries': _DRAWS.format('rng.logseries(p, size)'),
    'power': _DRAWS.format('rng.power(a, size)'),
    'rayleigh': _DRAWS.format('scale * cp.sqrt(2 * rng.standard_exponential(size))'),
    'weibull': _DRAWS.format('rng.standard_exponential(size) ** (1 / a)'),
    **dict.fromkeys(('unique', 'unique_values'), _UNIQUE),
    **dict.fromkeys(
        'argwhere compress extract flatnonzero intersect1d nonzero setdiff1d setxor1d trim_zeros union1d unique_all '
        'unique_counts unique_inverse where'.split(),
        _LENGTH,
    ),
    'average': 'Write `(x * w).sum() / w.sum()`.',
    'bincount': 'Make `counts = cp.zeros(n, int)` before the capture, and write `counts[...] = 0` and '
    '`cp.add.at(counts, x, 1)`.',
    'choose': _MODE.format('clip'),
    'histogram': 'Give the number of bins and `range=(low, high)`, two numbers of the host: `cp.histogram(x, n, '
    'range=(low, high))`.',
    'nanmax': 'Write `cp.where(cp.isnan(x), -cp.inf, x).max()`.',
    'nanmin': 'Write `cp.where(cp.isnan(x), cp.inf, x).min()`.',
    **dict.fromkeys(('percentile', 'quantile'), 'Give `q` as a number or a list of the host.'),
    **dict.fromkeys(('place', 'putmask'), _MASKED),
    **dict.fromkeys(('put', 'ravel_multi_index'), _MODE.format('wrap')),
    'repeat': 'Make `rows = cp.asarray(np.repeat(np.arange(len(x)), counts))` before the capture, and write `x[rows]`.',
    'unravel_index': 'Write `//` and `%`: for two axes, `i // dims[1], i % dims[1]`.',
    **dict.fromkeys('cholesky inv matrix_power qr solve tensorinv tensorsolve'.split(), _FACTORED),
}


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


_UNKNOWN = 'The table of rules has no row for this call'
_ESCAPED = 'This stream is not in the capture: its work ran at once and is missing from the graph'
_NEVER_SEEN = 'The call that lost it is none that is followed, and the capture was never ended'
_UNSEEN = 'A call that is not followed has lost the capture before: see the line of this one, and what runs above it'


def error_of(finding: CaptureFinding, begun: Place | None, maker: str) -> CaptureError:
    """Return a finding as the exception of its rule. ``begun`` is the line that began the capture."""
    rule = finding.rule
    unseen = finding.kind == 'lost' and finding.code == Code.cudaErrorStreamCaptureInvalidated
    says = _says(finding, unseen)
    instead = '' if rule is None or unseen else remedy(rule, maker, finding.elsewhere)
    error = _kind(finding)(
        _operation(finding),
        stream=finding.call.stream,
        subject='' if finding.kind == 'unjoined' else finding.subject,
        location=finding.at,
        rule=f'{says}{_answer(finding, begun)}.',
        remedy=instead,
        cuda_error='' if finding.kind == 'escaped' else code_name(finding.code),
    )
    if isinstance(error, UnjoinedError):
        error.lanes = [{'text': text} for text in finding.lanes]
    return error


def invalidated(finding: CaptureFinding, stream: int, begun: Place | None, maker: str) -> InvalidatedError:
    """Return the exception of a capture that a watched call has lost."""
    told = error_of(finding, begun, maker)
    error = InvalidatedError(
        f'The capture was lost by {told.operation}',
        stream=stream,
        lane=0,
        subject=told.subject,
        location=finding.at,
        rule=told.rule,
        remedy=told.remedy,
        cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
    )
    error.lost_at = finding.at
    error.function, error.libraries, error.answer = finding.call.function, finding.libraries, code_name(finding.code)
    return error


def code_name(code: int) -> str:
    """Return CUDA's name of an error code."""
    return Code(code).name if code in tuple(Code) else f'error {code}'


def _kind(finding: CaptureFinding) -> type[CaptureError]:
    if finding.kind == 'escaped' and (finding.rule is None or finding.rule.name == 'escaped-work'):
        return EscapedWorkError
    if finding.kind == 'unjoined':
        return UnjoinedError
    return InvalidatedError if finding.rule is None else finding.rule.error


def _says(finding: CaptureFinding, unseen: bool) -> str:
    if finding.rule is None:
        return _UNKNOWN
    if finding.kind == 'escaped' and finding.rule.name == 'escaped-work':
        return _ESCAPED
    if not finding.call.function:
        return _NEVER_SEEN
    return _UNSEEN if unseen else finding.rule.says


def _operation(finding: CaptureFinding) -> str:
    made = f'{finding.call.function}()' if finding.call.function else 'A call that was not seen'
    by = f', called by {finding.libraries[0]}' if finding.libraries else ''
    pause = ',' if by else ''
    if finding.kind != 'unjoined':
        return f'{made}{by}{pause if finding.subject else ""}'
    lanes = f': {"; ".join(finding.lanes)}' if finding.lanes else ''
    return f'{counted(len(finding.lanes) or 1, "lane")} left unjoined{lanes}; {made}{by}{pause} ended the capture'


def _answer(finding: CaptureFinding, begun: Place | None) -> str:
    if finding.kind == 'escaped':
        return ''
    whose = '' if begun is None else f' begun at {begun}'
    other = '. Another thread than that of the capture made the call' if finding.elsewhere else ''
    return f' (CUDA answered {code_name(finding.code)}, and the capture{whose} was lost){other}'
