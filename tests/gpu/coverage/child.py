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

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import cupy as cp
import numpy as np

from tests.gpu.coverage import cases
from tests.gpu.coverage.values import arrays, difference, to_host

CALLS = 4
#: What has to live as long as the process: memory that was written over, and what a graph works in.
KEPT: list[Any] = []
Row = dict[str, Any]


class Wrong(Exception):
    """An answer that is not the eager one."""


def capturekit() -> Any:
    """capturekit, which the bare column must not even import."""
    import capturekit as ck

    return ck


def eager(fn: Callable[[], Any]) -> Any:
    cp.cuda.runtime.deviceSynchronize()
    out = fn()
    cp.cuda.runtime.deviceSynchronize()
    return to_host(out)


def record_bare(fn: Callable[[], Any], row: Row) -> tuple[Any, Callable[[], None]]:
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
    KEPT.append(pool)
    return out, lambda: graph.launch(stream)


def record(fn: Callable[[], Any], row: Row) -> tuple[Any, Callable[[], None]]:
    """Record a case in the row's column; return what it returned, and the launch of its graph."""
    if row['column'] == 'bare':
        return record_bare(fn, row)
    ck, rehearsal = capturekit(), None
    if row['column'] != 'strict':
        rehearsal = ck.rehearse(fn)
        cp.cuda.runtime.deviceSynchronize()
        row['rehearsal'] = to_host(rehearsal.result)
    with ck.capture(rehearsal=rehearsal, pieces=row['column'] == 'pieces') as cap:
        out = fn()
    KEPT.append(cap)
    return out, cap.graph.launch


def answers_of(fn: Callable[[], Any], row: Row) -> list[Any]:
    """What two launches of the recorded case gave, or four calls of the graphed one, with memory poisoned between."""
    found = []
    row['stage'] = 'recording'
    if row['column'] != 'graphed':
        out, launch = record(fn, row)
        row['stage'] = 'launching'
        for _ in range(2):
            launch()
            cp.cuda.runtime.deviceSynchronize()
            found.append(to_host(out))
            poison(out)
        return found
    graphed = capturekit().graphed(fn)
    try:
        for _ in range(CALLS):
            out = graphed()
            cp.cuda.runtime.deviceSynchronize()
            found.append(to_host(out))
            poison(out)
            del out
    finally:
        row['variants'] = [described(variant) for variant in getattr(graphed, 'variants', [])]
        used = {variant['state'] for variant in row['variants'] if variant['launches'] != 0}
        row['how'] = next((state for state in ('recorded', 'pieces') if state in used), 'eager')
    return found


def described(variant: Any) -> Row:
    return {
        'state': str(variant.state),
        'reason': ' '.join(str(variant.reason or '').split())[:600],
        'seams': [' '.join(str(seam).split())[:200] for seam in variant.seams or ()],
        'calls': variant.calls,
        'launches': variant.launches,
    }


def poison(out: Any) -> None:
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
    cp.cuda.runtime.deviceSynchronize()
    KEPT[:] = [one for one in KEPT if not isinstance(one, list)] + [blocks]


def check(label: str, want: Any, answers: list[Any], row: Row) -> None:
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


def outcome_of(error: BaseException, row: Row) -> str:
    if isinstance(error, Wrong):
        return 'wrong'
    if row['column'] != 'bare' and isinstance(error, capturekit().CaptureError):
        return 'lost' if isinstance(error, capturekit().InvalidatedError) else 'refused'
    told, behind = row.get('at end', ''), error
    while behind is not None:
        told += ''.join([str(behind), *getattr(behind, '__notes__', ())])
        behind = behind.__cause__ or behind.__context__
    if 'StreamCaptureInvalidated' in told:
        return 'lost'
    return 'wrong' if row['stage'] == 'launching' else 'other error'


def aftermath(column: str, streams: Iterable[Any]) -> str:
    """'good' if no stream captures any more and a small capture works, else what is wrong."""
    try:
        if any(stream.is_capturing() for stream in [cp.cuda.get_current_stream(), *streams]):
            return 'a stream is still captured'
        x = cp.arange(8.0)
        cp.cuda.runtime.deviceSynchronize()
        y, launch = record(lambda: x * 2, {'column': 'bare' if column == 'bare' else 'strict'})
        launch()
        cp.cuda.runtime.deviceSynchronize()
        return 'good' if np.array_equal(y.get(), np.arange(8) * 2.0) else 'a small capture gives wrong values'
    except Exception as error:
        return f'a small capture fails: {type(error).__name__}: {str(error)[:200]}'


def fill(row: Row, error: BaseException, outcome: str) -> None:
    row['outcome'] = outcome
    row['error'] = '' if isinstance(error, Wrong) else type(error).__name__
    row['text'] = str(error)[: 1000 if outcome == 'refused' else 300]
    if outcome == 'refused':
        row['operation'] = str(getattr(error, 'operation', ''))


def judge(label: str, fn: Callable[[], Any], want: Callable[[], Any], row: Row, streams: Iterable[Any] = ()) -> None:
    """Run a case in the row's column, compare its answers with what is wanted, and note in the row what came of it."""
    try:
        answers = answers_of(fn, row)
    except Exception as error:
        fill(row, error, outcome_of(error, row))
        row['after'] = aftermath(row['column'], streams)
        row.pop('rehearsal', None)
        want()
        return
    try:
        check(label, want(), answers, row)
        row['outcome'] = 'equal'
    except Wrong as error:
        fill(row, error, 'wrong')
    finally:
        row.pop('rehearsal', None)


def run(label: str, column: str, temperature: str) -> Row:
    """Run one case and tell what became of it."""
    start = time.perf_counter()
    row: Row = {'label': label, 'column': column, 'temperature': temperature, 'stage': 'eager'}
    expression = cases.ALL[label]
    try:
        names = cases.namespace(expression)
        names['__builtins__'] = __builtins__
        fn = eval(f'lambda: (\n{expression}\n)', names)  # a function like any other: one that calls eval stays eager
        warm = eager(fn) if temperature == 'warm' else None
        streams = [thing for thing in names.values() if isinstance(thing, cp.cuda.Stream)]
        judge(label, fn, lambda: eager(fn) if temperature == 'cold' else warm, row, streams)
    except Exception as error:  # of the case itself; where it was recorded before, that may have broken it
        row['recorded'] = {name: row[name] for name in ('outcome', 'error', 'text', 'operation') if name in row}
        row.pop('rehearsal', None)
        fill(row, error, 'eager failed')
    row['seconds'] = round(time.perf_counter() - start, 2)
    return row
