"""Every case in every column, warm and cold, each in a process of its own: ``python -m tests.gpu.coverage.run``.

Starting Python and importing CuPy takes longer than most cases. So a server process imports everything once, without
touching CUDA, and forks a child for each run. The bare column has a server of its own, which never imports capturekit.
A child writes one line of JSON; one that ends without it, or takes too long, has *died*.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import itertools
import json
import math
import os
import re
import selectors
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.coverage import cases

COLUMNS = ('bare', 'strict', 'rehearsed', 'pieces', 'graphed')
TEMPERATURES = ('warm', 'cold')
NOT_INITIALIZED = 3


@dataclass(frozen=True)
class Job:
    """One run: a case, a column, a temperature."""

    label: str
    column: str
    temperature: str


@dataclass
class Running:
    """A child at work: its process, the end of its pipe, what it has written and said, and when it is too late."""

    job: Job
    pid: int
    pipe: int
    said: int
    deadline: float
    text: bytes = b''
    timed_out: bool = False


def cuda_initialized() -> bool:
    """Whether anything in this process has initialized the driver, asked without doing so."""
    try:
        driver = ctypes.CDLL('libcuda.so.1')
    except OSError:
        return False
    return driver.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())) != NOT_INITIALIZED


# -- the server -----------------------------------------------------------------------------------------------------


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Fork a child that does its work and ends; return its process id and the end of the pipe to read from."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = 1
    try:
        os.close(read)
        work(write)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def written(pipe: int, value: Any) -> None:
    """Write one line of JSON."""
    data = json.dumps(value, default=str).encode() + b'\n'
    while data:
        data = data[os.write(pipe, data) :]


def start(job: Job, timeout: float, gpu: str | None = None) -> Running:
    said = os.memfd_create('said')

    def work(pipe: int) -> None:
        if gpu is not None:
            os.environ['CUDA_VISIBLE_DEVICES'] = gpu
        os.dup2(said, 1)
        os.dup2(said, 2)
        faulthandler.enable()
        from tests.gpu.coverage import child

        written(pipe, child.run(job.label, ALL[job.label], job.column, job.temperature))

    pid, pipe = forked(work)
    return Running(job, pid, pipe, said, time.monotonic() + timeout)


def row_of(child: Running) -> dict[str, Any]:
    """What a child that has closed its pipe has answered, or how it died."""
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    said = os.pread(child.said, 1 << 20, 0).decode(errors='replace')
    os.close(child.said)
    if child.text.endswith(b'\n'):
        return json.loads(child.text)
    if child.timed_out:
        end = 'it took too long and was killed'
    elif os.WIFSIGNALED(status):
        end = signal.Signals(os.WTERMSIG(status)).name
    else:
        end = f'exit status {os.waitstatus_to_exitcode(status)}'
    words = ' '.join(said.split())
    text = words if len(words) < 800 else f'{words[:400]} ... {words[-400:]}'
    return {**vars(child.job), 'outcome': 'died', 'error': end, 'text': text}


def rows(
    jobs: list[Job], at_once: int, timeout: float, gpus: list[str], until: float = math.inf
) -> Iterator[dict[str, Any]]:
    """Run the jobs, so many at a time, on these GPUs in turn, and yield each one's row as it comes. None is begun after
    ``until``, a time of the monotonic clock."""
    waiting, running = list(reversed(jobs)), {}
    turn = itertools.cycle(gpus or [None])
    selector = selectors.DefaultSelector()
    while waiting or running:
        if time.monotonic() > until:
            waiting.clear()
        while waiting and len(running) < at_once:
            child = start(waiting.pop(), timeout, next(turn))
            running[child.pipe] = child
            selector.register(child.pipe, selectors.EVENT_READ)
        for key, _ in selector.select(timeout=0.5):
            child = running[key.fd]
            data = os.read(child.pipe, 1 << 16)
            child.text += data
            if not data:
                selector.unregister(child.pipe)
                del running[child.pipe]
                yield row_of(child)
        for child in running.values():
            if time.monotonic() > child.deadline and not child.timed_out:
                child.timed_out = True
                os.kill(child.pid, signal.SIGKILL)


def serve(
    jobs: list[Job], at_once: int, timeout: float, gpus: list[str], until: float, with_capturekit: bool
) -> Callable[[int], None]:
    """The work of a server: import, check that CUDA is untouched, run the jobs and pass on their rows."""

    def work(pipe: int) -> None:
        os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
        if with_capturekit:
            import capturekit  # noqa: F401
        from tests.gpu.coverage import child, names  # noqa: F401

        if cuda_initialized():
            raise RuntimeError('an import has initialized CUDA: no child could use it after a fork')
        gc.collect()
        gc.freeze()
        for row in rows(jobs, at_once, timeout, gpus, until):
            written(pipe, row)

    return work


def lines(pipe: int) -> Iterator[dict[str, Any]]:
    with os.fdopen(pipe) as file:
        for line in file:
            yield json.loads(line)


def results(jobs: list[Job], at_once: int, timeout: float, gpus: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Every job's row, from a server for the bare column and one for the others; without those that are not begun
    within so many seconds."""
    until = time.monotonic() + seconds
    for bare in (True, False):
        mine = [job for job in jobs if (job.column == 'bare') == bare]
        if not mine:
            continue
        begun, missing = time.monotonic(), set(mine)
        pid, pipe = forked(serve(mine, at_once, timeout, gpus, until, with_capturekit=not bare))
        for row in lines(pipe):
            missing.discard(Job(row['label'], row['column'], row['temperature']))
            yield row
        _, status = os.waitpid(pid, 0)
        late = status == 0 and time.monotonic() > until  # else the server has ended too early
        for job in mine:
            if job in missing and not late:
                yield {**vars(job), 'outcome': 'died', 'error': 'no server', 'text': 'the server ended before this run'}
        print(f'{len(mine) - late * len(missing)} of {len(mine)} runs in {time.monotonic() - begun:.0f} s', flush=True)


def about_the_machine() -> dict[str, Any]:
    """GPU, driver and versions; asked in a process of its own."""

    def work(pipe: int) -> None:
        from tests.gpu.coverage import child

        written(pipe, child.machine())

    pid, pipe = forked(work)
    found = list(lines(pipe))
    os.waitpid(pid, 0)
    return found[0] if found else {}


# -- what came of it ------------------------------------------------------------------------------------------------

ALL = {**cases.GIVEN, **cases.MORE}
PLACE = {label: place for place, label in enumerate(ALL)}


def in_order(row: dict[str, Any]) -> tuple[int, int, int]:
    return PLACE[row['label']], COLUMNS.index(row['column']), TEMPERATURES.index(row['temperature'])


def settle(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def told(row: dict[str, Any]) -> str:
    """What became of a run that is not simply equal, in one line; '' for one that is."""
    after = row.get('after', 'good')
    if row['outcome'] == 'equal' and after == 'good':
        return ''
    text = ' '.join(part for part in (row.get('error', ''), *row.get('text', '').split()) if part)
    return f'{row["outcome"]} | {text}' if after == 'good' else f'{row["outcome"]} | after: {after} | {text}'


def summary(found: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each run with capturekit that is not equal, and then counts by column and temperature."""
    for label, column in dict.fromkeys((row['label'], row['column']) for row in found if row['column'] != 'bare'):
        texts: dict[str, list[str]] = {}
        for row in found:
            if (row['label'], row['column']) == (label, column):
                texts.setdefault(told(row), []).append(row['temperature'])
        for text, temperatures in texts.items():
            if text:
                yield f'{column} {"+".join(temperatures)} | {label} | {text}'[:160]
    for column in COLUMNS:
        for temperature in TEMPERATURES:
            for name, part in (('given', cases.GIVEN), ('more', cases.MORE)):
                run = [
                    r for r in found if (r['column'], r['temperature']) == (column, temperature) and r['label'] in part
                ]
                counts = Counter(r['outcome'] for r in run)
                ways = Counter(r['how'] for r in run if r['outcome'] == 'equal' and 'how' in r)
                line = ', '.join(f'{n} {what}' for what, n in counts.most_common())
                line += f' ({", ".join(f"{n} {way}" for way, n in ways.most_common())})' if ways else ''
                if run:
                    yield f'{column:9} {temperature} {name:5} {len(run):3}: {line}'


def without_folders(text: str) -> str:
    """What a crash says, without where the files lie on this machine."""
    return re.sub(r'(?<=\\")(?:/[^/"\\\s]+)+/', '', text)


def combined(paths: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The rows of several files; where two have the same run, the later file's."""
    machine: dict[str, Any] = {}
    found: dict[Job, dict[str, Any]] = {}
    for path in paths:
        data = json.loads(without_folders(Path(path).read_text()))
        machine = data['machine']
        found |= {Job(row['label'], row['column'], row['temperature']): row for row in data['rows']}
    return machine, sorted(found.values(), key=in_order)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='python -m tests.gpu.coverage.run', description=(__doc__ or '').split('\n')[0]
    )
    parser.add_argument('--out', required=True, metavar='FILE', help='where the JSON goes')
    parser.add_argument('--jobs', type=int, default=14, metavar='N', help='processes at once')
    parser.add_argument('--only', nargs='+', metavar='LABEL', help='these cases only')
    parser.add_argument('--given', action='store_true', help='the given cases only')
    parser.add_argument('--columns', nargs='+', choices=COLUMNS, default=COLUMNS)
    parser.add_argument('--temperatures', nargs='+', choices=TEMPERATURES, default=TEMPERATURES)
    parser.add_argument('--gpus', nargs='+', default=[], metavar='N', help='spread over these GPUs of the machine')
    parser.add_argument('--more', action='store_true', help='the cases that are not given only')
    parser.add_argument('--timeout', type=float, default=60, metavar='S', help='seconds for one process')
    parser.add_argument(
        '--seconds', type=float, default=math.inf, metavar='S', help='begin no run after so many seconds'
    )
    parser.add_argument('--date', default='', help='written into the JSON')
    parser.add_argument(
        '--combine', nargs='+', metavar='FILE', help='run nothing: put the rows of these files together'
    )
    given = parser.parse_args()
    if unknown := set(given.only or ()) - set(ALL):
        parser.error(f'no such cases: {", ".join(sorted(unknown))}')
    if given.combine:
        machine, found = combined(given.combine)
    else:
        labels = given.only or (cases.GIVEN if given.given else cases.MORE if given.more else ALL)
        jobs = [
            Job(label, column, temperature)
            for column in given.columns
            for temperature in given.temperatures
            for label in labels
        ]
        machine = {**about_the_machine(), 'date': given.date}
        found = settle(list(results(jobs, given.jobs, given.timeout, given.gpus, given.seconds)))
        found = json.loads(without_folders(json.dumps(found)))
    Path(given.out).write_text(json.dumps({'machine': machine, 'rows': found}, indent=1, sort_keys=True) + '\n')
    print('\n'.join(summary(found)))


if __name__ == '__main__':
    main()
