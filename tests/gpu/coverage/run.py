"""Every case in every column, warm and cold, each in a process of its own: ``python -m tests.gpu.coverage.run``.

Starting Python and importing CuPy takes longer than most cases. So this process imports everything once, without
touching CUDA, and forks a child for each run; those of the bare column before it imports capturekit.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.machine import machine
from tests.gpu.coverage import cases
from tests.packages import apart
from tests.packages.apart import Row

COLUMNS = ('bare', 'strict', 'rehearsed', 'pieces', 'graphed')
TEMPERATURES = ('warm', 'cold')
NOT_INITIALIZED = 3


class Job(NamedTuple):
    label: str
    column: str
    temperature: str


def cuda_initialized() -> bool:
    """Whether anything in this process has initialized the driver, asked without doing so."""
    try:
        driver = ctypes.CDLL('libcuda.so.1')
    except OSError:
        return False
    return driver.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())) != NOT_INITIALIZED


def answered(job: Job) -> Row:
    """What a child does."""
    from tests.gpu.coverage import child

    return child.run(*job)


def measured_on(_job: None) -> Row:
    import cupy

    return machine(cupy)


def results(jobs: list[Job], at_once: int, timeout: float) -> Iterator[Row]:
    """Every job's row, those of the bare column first."""
    os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
    from tests.gpu.coverage import child  # noqa: F401

    for module in cases.MODULES:
        cases.named(module)
    for bare in (True, False):
        if not bare:
            import capturekit  # noqa: F401
        if cuda_initialized():
            raise RuntimeError('an import has initialized CUDA: no child could use it after a fork')
        gc.collect()
        gc.freeze()
        some = [job for job in jobs if (job.column == 'bare') == bare]
        for job, row in apart.rows(some, answered, at_once=at_once, timeout=timeout):
            yield {**job._asdict(), **row}


def in_order(row: Row) -> tuple[int, int, int]:
    return list(cases.ALL).index(row['label']), COLUMNS.index(row['column']), TEMPERATURES.index(row['temperature'])


def settle(found: list[Row]) -> list[Row]:
    """Sort the rows, and tell cases that don't run here from recordings that broke what ran after them.

    A cold run asks for the eager answer after its recording. If that fails although the warm run's did not, the fault
    is the recording's.
    """
    outcomes = {(row['label'], row['column'], row['temperature']): row['outcome'] for row in found}
    for row in found:
        recorded = row.pop('recorded', None)
        warm = outcomes.get((row['label'], row['column'], 'warm'), 'eager failed')
        if row['outcome'] != 'eager failed' or row['temperature'] == 'warm' or warm == 'eager failed':
            continue
        row['after'] = f'the eager run fails: {row["error"]}: {row["text"]}'
        row.update(recorded or {'outcome': 'wrong', 'text': row['after']})
    return sorted(found, key=in_order)


def summary(found: list[Row]) -> Iterator[str]:
    """A line for each run with capturekit that is not equal, and then counts by column and temperature."""
    for row in found:
        after = row.get('after', 'good')
        if row['column'] != 'bare' and (row['outcome'], after) != ('equal', 'good'):
            text = ' '.join(
                [row['outcome'], '' if after == 'good' else after, row.get('error', ''), row.get('text', '')]
            )
            yield ' '.join(f'{row["column"]} {row["temperature"]} | {row["label"]} | {text}'.split())[:160]
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for row in found:
        part = 'given' if row['label'] in cases.GIVEN else 'more'
        outcome = f'{row["outcome"]} {row["how"]}' if row['outcome'] == 'equal' and 'how' in row else row['outcome']
        counts.setdefault((row['column'], row['temperature'], part), Counter())[outcome] += 1
    for key, count in counts.items():
        line = ', '.join(f'{n} {what}' for what, n in count.most_common())
        yield f'{" ".join(key)}, {count.total()}: {line}'


def without_folders(text: str) -> str:
    """What a crash says, without where the files lie on this machine."""
    return re.sub(r'(?<=\\")(?:/[^/"\\\s]+)+/', '', text)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='python -m tests.gpu.coverage.run', description=(__doc__ or '').split('\n')[0]
    )
    add = parser.add_argument
    add('--out', required=True, metavar='FILE', help='where the JSON goes')
    add('--jobs', type=int, default=14, metavar='N', help='processes at once')
    add('--only', nargs='+', choices=cases.ALL, metavar='LABEL', help='these cases only')
    add('--given', action='store_true', help='the given cases only')
    add('--columns', nargs='+', choices=COLUMNS, default=COLUMNS)
    add('--temperatures', nargs='+', choices=TEMPERATURES, default=TEMPERATURES)
    add('--timeout', type=float, default=60, metavar='S', help='seconds for one process')
    add('--date', default='', help='written into the JSON')
    given = parser.parse_args()
    labels = given.only or (cases.GIVEN if given.given else cases.ALL)
    jobs = [Job(*job) for job in itertools.product(labels, given.columns, given.temperatures)]
    found = settle(list(results(jobs, given.jobs, given.timeout)))
    ((_, about),) = apart.rows([None], measured_on)
    about['date'] = given.date
    text = json.dumps({'machine': about, 'rows': found}, indent=1, sort_keys=True)
    Path(given.out).write_text(without_folders(text) + '\n')
    print('\n'.join(summary(found)))


if __name__ == '__main__':
    main()
