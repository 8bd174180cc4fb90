"""One case, in one column, at one temperature, in a process of its own: what became of it.

Columns:
    bare: CuPy's own ``begin_capture`` and ``end_capture``, without capturekit.
    strict: ``ck.capture()``.
    rehearsed: ``ck.capture(rehearsal=ck.rehearse(fn))``.
    pieces: ``ck.capture(rehearsal=ck.rehearse(fn), pieces=True)``.
    graphed: ``ck.graphed(fn)``, called four times.

Temperatures: *warm*: the case has run eagerly before; *cold*: nothing of it has run in this process.

Outcomes:
    equal: every launch (or call) gave what the eager run gives.
    refused: capturekit raised a ``CaptureError``.
    lost: the driver invalidated the capture.
    wrong: a launch gave something else, or failed.
    other error: any other exception came out of the recording.
    eager failed: the case itself does not run here.
    died: the process ended before it could answer.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from typing import Any

import cupy as cp
import numpy as np

from tests.gpu.coverage import cases
from tests.gpu.coverage.values import arrays, difference, to_host

COLUMNS = ('bare', 'strict', 'rehearsed', 'pieces', 'graphed')
TEMPERATURES = ('warm', 'cold')
CALLS = 4


class Wrong(Exception):
    """An answer that is not the eager one."""


def capturekit() -> Any:
    """capturekit, which the bare column must not even import."""
    import capturekit as ck

    return ck


def synchronize() -> None:
    cp.cuda.runtime.deviceSynchronize()


# -- the columns ----------------------------------------------------------------------------------------------------


def record_bare(fn: Callable[[], Any], row: dict[str, Any]) -> tuple[Any, Callable[[], None]]:
    stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc), stream:
        stream.begin_capture()
        try:
            out = fn()
        except BaseException as error:
            try:
                stream.end_capture()
            except Exception as at_end:
                row['at end'] = f'{type(at_end).__name__}: {at_end}'
            raise error
        graph = stream.end_capture()
    row['keep'] = pool
    return out, lambda: graph.launch(stream)


def record_strict(fn: Callable[[], Any], row: dict[str, Any]) -> tuple[Any, Callable[[], None]]:
    with capturekit().capture() as cap:
        out = fn()
    row['keep'] = cap
    return out, cap.graph.launch


def record_rehearsed(
    fn: Callable[[], Any], row: dict[str, Any], pieces: bool = False
) -> tuple[Any, Callable[[], None]]:
    ck = capturekit()
    rehearsal = ck.rehearse(fn)
    synchronize()
    row['rehearsal'] = to_host(rehearsal.result)
    with ck.capture(rehearsal=rehearsal, pieces=pieces) as cap:
        out = fn()
    row['keep'] = cap
    return out, cap.graph.launch


def record_pieces(fn: Callable[[], Any], row: dict[str, Any]) -> tuple[Any, Callable[[], None]]:
    return record_rehearsed(fn, row, pieces=True)


RECORD = {'bare': record_bare, 'strict': record_strict, 'rehearsed': record_rehearsed, 'pieces': record_pieces}


def launched(column: str, fn: Callable[[], Any], row: dict[str, Any]) -> list[Any]:
    """What two launches of the recorded case gave, with memory poisoned between them."""
    row['stage'] = 'recording'
    out, launch = RECORD[column](fn, row)
    row['stage'] = 'launching'
    answers = []
    for _ in range(2):
        launch()
        synchronize()
        answers.append(to_host(out))
        row['poison'] = poison(out)
    return answers


def called(fn: Callable[[], Any], row: dict[str, Any]) -> list[Any]:
    """What four calls of the graphed case gave, with memory poisoned between them."""
    row['stage'] = 'recording'
    graphed = capturekit().graphed(fn)
    answers = []
    try:
        for _ in range(CALLS):
            out = graphed()
            synchronize()
            answers.append(to_host(out))
            row['poison'] = poison(out)
            del out
    finally:
        row['variants'] = [described(variant) for variant in getattr(graphed, 'variants', [])]
        row['how'] = how(row['variants'])
    return answers


def described(variant: Any) -> dict[str, Any]:
    seams = [' '.join(str(seam).split())[:200] for seam in getattr(variant, 'seams', None) or ()]
    return {
        'state': str(getattr(variant, 'state', '?')),
        'reason': ' '.join(str(getattr(variant, 'reason', '') or '').split())[:600],
        'seams': seams,
        'calls': getattr(variant, 'calls', None),
        'launches': getattr(variant, 'launches', None),
    }


def how(variants: list[dict[str, Any]]) -> str:
    """'recorded' or 'pieces' if a graph was launched for any call, else 'eager'."""
    used = {variant['state'] for variant in variants if variant['launches'] != 0}
    return next((state for state in ('recorded', 'pieces') if state in used), 'eager')


def poison(out: Any) -> list[Any]:
    """Fill freed memory: blocks as large as the answer's arrays and many others, every byte 255 (NaN, or -1).

    Memory that nobody holds is written over, or given back to the driver: a graph that still reads it shows.
    """
    pool = cp.get_default_memory_pool()
    sizes = [array.nbytes for array in arrays(out) if array.nbytes] + [512 << k for k in range(11)]
    blocks = [pool.malloc(size) for size in sizes for _ in range(3)]
    pool.free_all_blocks()
    blocks += [pool.malloc(size) for size in sizes]
    for block in blocks:
        cp.cuda.runtime.memset(block.ptr, 255, block.mem.size)
    synchronize()
    return blocks


# -- judging --------------------------------------------------------------------------------------------------------


def check(label: str, want: Any, answers: list[Any], row: dict[str, Any]) -> None:
    """Raises Wrong where an answer is not what it should be."""
    values = label not in cases.RANDOM
    if 'rehearsal' in row and (text := difference(want, row['rehearsal'], values)):
        raise Wrong(f'rehearsal: {text}')
    what = 'call' if row['column'] == 'graphed' else 'launch'
    for number, answer in enumerate(answers, 1):
        if text := difference(want, answer, values):
            raise Wrong(f'{what} {number}: {text}')
    if label in cases.FRESH:
        for number, (before, after) in enumerate(itertools.pairwise(answers), 2):
            if not difference(before, after):
                raise Wrong(f'{what} {number} drew the same numbers as the one before')


def story(error: BaseException | None) -> str:
    """The text of an exception with its notes, and those of the exceptions behind it."""
    parts = []
    while error is not None:
        parts += [f'{type(error).__name__}: {error}', *getattr(error, '__notes__', ())]
        error = error.__cause__ or error.__context__
    return '\n'.join(parts)


def outcome_of(error: BaseException, row: dict[str, Any]) -> str:
    if isinstance(error, Wrong):
        return 'wrong'
    if row['column'] != 'bare':
        ck = capturekit()
        if isinstance(error, ck.InvalidatedError):
            return 'lost'
        if isinstance(error, ck.CaptureError):
            return 'refused'
    if 'StreamCaptureInvalidated' in story(error) + row.get('at end', ''):
        return 'lost'
    return 'wrong' if row['stage'] == 'launching' else 'other error'


def aftermath(column: str, names: dict[str, Any]) -> str:
    """'good' if no stream captures any more and a small capture works, else what is wrong."""
    try:
        streams = [thing for thing in names.values() if isinstance(thing, cp.cuda.Stream)]
        if any(stream.is_capturing() for stream in [cp.cuda.get_current_stream(), *streams]):
            return 'a stream is still captured'
        x, stream = cp.arange(8.0), cp.cuda.Stream(non_blocking=True)
        if column == 'bare':
            with stream:
                stream.begin_capture()
                y = x * 2
                graph = stream.end_capture()
            graph.launch(stream)
        else:
            with capturekit().capture() as cap:
                y = x * 2
            cap.graph.launch()
        synchronize()
        return 'good' if np.array_equal(y.get(), np.arange(8) * 2.0) else 'a small capture gives wrong values'
    except Exception as error:
        return f'a small capture fails: {type(error).__name__}: {str(error)[:200]}'


def fill(row: dict[str, Any], error: BaseException, outcome: str) -> None:
    row['outcome'] = outcome
    row['error'] = '' if isinstance(error, Wrong) else type(error).__name__
    row['text'] = str(error)[: 1000 if outcome == 'refused' else 300]
    if outcome == 'refused':
        row['operation'] = str(getattr(error, 'operation', ''))


def run(label: str, expression: str, column: str, temperature: str) -> dict[str, Any]:
    """Run one case and tell what became of it."""
    start = time.perf_counter()
    row: dict[str, Any] = {'label': label, 'column': column, 'temperature': temperature, 'stage': 'eager'}
    want: Any = None
    fn: Any = None

    def eager() -> Any:
        synchronize()
        out = fn()
        synchronize()
        return to_host(out)

    try:
        names = cases.namespace(expression)
        names['__builtins__'] = __builtins__
        fn = eval(f'lambda: (\n{expression}\n)', names)  # a function like any other: one that calls eval stays eager
        synchronize()
        if temperature == 'warm':
            want = eager()
    except Exception as error:
        fill(row, error, 'eager failed')
        return finished(row, start)
    answers, fault = None, None
    try:
        answers = called(fn, row) if column == 'graphed' else launched(column, fn, row)
    except Exception as error:
        fault = error
        fill(row, error, outcome_of(error, row))
        row['after'] = aftermath(column, names)
    if temperature == 'cold':
        try:
            want = eager()
        except Exception as error:
            row['recorded'] = {name: row[name] for name in ('outcome', 'error', 'text', 'operation') if name in row}
            fill(row, error, 'eager failed')
            return finished(row, start)
    if fault is None:
        try:
            check(label, want, answers or [], row)
            row['outcome'] = 'equal'
        except Wrong as error:
            fill(row, error, 'wrong')
    return finished(row, start)


def finished(row: dict[str, Any], start: float) -> dict[str, Any]:
    for name in ('poison', 'rehearsal', 'keep'):
        row.pop(name, None)
    row['seconds'] = round(time.perf_counter() - start, 2)
    return row


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    properties = cp.cuda.runtime.getDeviceProperties(0)
    try:
        with open('/proc/driver/nvidia/version') as file:
            driver = next((word for word in file.readline().split() if word[0].isdigit() and '.' in word), '')
    except OSError:
        driver = ''
    gc.collect()
    return {
        'gpu': properties['name'].decode(),
        'driver': driver,
        'cuda driver': cp.cuda.runtime.driverGetVersion(),
        'cuda runtime': cp.cuda.runtime.runtimeGetVersion(),
        'cupy': cp.__version__,
        'numpy': np.__version__,
        'capturekit': capturekit().__version__,
    }
