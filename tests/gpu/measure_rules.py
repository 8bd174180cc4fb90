"""Measures what the driver answers to calls made while a stream is being captured, and says what differs from before.

``python -m tests.gpu.measure_rules --out FILE`` measures every cell of the tables in ``tests/data/driver_rules*.json``
on the GPU at hand, in processes, several at a time: what may crash, hang or leave something behind has one of its own,
and what a process did not come to when it ended is measured by another. FILE is of the same form, with the machine, the
driver, CUDA and the date. Then each cell is compared with the files, and with the table in
``capturekit/model/rules.py``.

Exit status: 0 if all agree, 1 if a cell differs or could not be measured, 2 if nothing could be.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import measured
from tests.measured import Cell

_ORIGINS = ('nonblocking', 'blocking')
#: Cells of one process, where they can share one.
_BATCH = 60
_ABOUT = (
    'What the CUDA driver answered, measured cell by cell by tests/gpu/measure_rules.py on one {device}: driver '
    "{driver}, cuda-bindings {cuda_bindings}, {date}. One fresh capture per cell: begin on 'origin' (created blocking "
    "or non-blocking), one memset recorded, one event recorded ('captured'); operations that name 'side' first fork a "
    'side stream by waiting on that event and give it one memset, which is never joined, so that a good capture ends '
    'Unjoined. Then the operation, then the capture status of the origin, then cudaStreamEndCapture from the same '
    "thread. status_after 'None' means that the capture was gone."
)

Batch = list[Cell]


@dataclass
class Measuring:
    """What was measured so far; ``cells``: the module that measures one."""

    cells: str
    patience: float
    found: dict[measured.Key, Cell] = field(default_factory=dict)
    why: str = ''
    machine: dict[str, Any] = field(default_factory=dict)
    processes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def batch(self, batch: Batch) -> list[Batch]:
        """Measure some cells in one process; return what is left to be tried in others."""
        answers, why = self._process(batch)
        with self.lock:
            self.processes += 1
            self.why = why
            for answer in answers:
                if 'machine' in answer:
                    self.machine = answer['machine']
                else:
                    self.found[measured.key(answer)] = answer
        left = [cell for cell in batch if measured.key(cell) not in self.found]
        if len(left) == len(batch) == 1:
            with self.lock:
                self.found[measured.key(left[0])] = {**left[0], 'error': why}
            return []
        # The first that is missing was under way when the process ended.
        return [part for part in (left[:1], left[1:]) if part]

    def _process(self, batch: Batch) -> tuple[list[dict[str, Any]], str]:
        """What one process answers, line by line, and how it ended."""
        command = [sys.executable, '-m', 'tests.gpu.measure_rules', '--cells', self.cells, '--worker']
        try:
            ran = subprocess.run(
                command, input=json.dumps(batch), capture_output=True, text=True, timeout=self.patience
            )
            out, why = ran.stdout, f'the process ended with status {ran.returncode}: {ran.stderr.strip()[-300:]}'
        except subprocess.TimeoutExpired as late:
            out, why = (late.stdout or b'').decode(), f'the process did not end in {self.patience:g} s'
        complete = [line for line in out.splitlines(keepends=True) if line.startswith('{') and line.endswith('}\n')]
        return [json.loads(line) for line in complete], why


def work(cells: Any) -> None:
    """Measure what standard input asks for. The first cell that fails ends the process: its capture may be open."""
    batch = json.load(sys.stdin)
    print(json.dumps({'machine': cells.machine()}), flush=True)
    for cell in batch:
        found = cells.cell(cell['operation'], cell['mode'], cell['origin'] == 'blocking')
        print(json.dumps(found), flush=True)


def batches(names: Sequence[str], cells: Any) -> list[Batch]:
    """All cells of some operations, those of risky ones by themselves and first."""
    alone: list[Batch] = []
    shared: Batch = []
    for name in names:
        pairs = cells.pairs(name) if hasattr(cells, 'pairs') else itertools.product(measured.MODES, _ORIGINS)
        of_one = [{'operation': name, 'mode': mode, 'origin': origin} for mode, origin in pairs]
        if cells.risky(name):
            alone.append(of_one)
        else:
            shared += of_one
    return alone + [shared[i : i + _BATCH] for i in range(0, len(shared), _BATCH)]


def measure(names: Sequence[str], cells: Any, jobs: int, patience: float) -> Measuring:
    """Measure all cells of some operations, ``jobs`` processes at a time."""
    made = Measuring(cells.__name__, patience)
    made.batch([])  # is there a device at all?
    if not made.machine:
        return made
    todo = deque(batches(names, cells))
    total, began = sum(map(len, todo)), time.monotonic()
    running: set[Future[list[Batch]]] = set()
    with ThreadPoolExecutor(jobs) as pool:
        while todo or running:
            while todo and len(running) < jobs:
                running.add(pool.submit(made.batch, todo.popleft()))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                todo.extend(one.result())
            wrong = sum('error' in cell for cell in made.found.values())
            text = f'{len(made.found):,} of {total:,} cells, {wrong} not measured, {made.processes} processes'
            print(f'measuring: {text}, {time.monotonic() - began:.0f} s', file=sys.stderr, flush=True)
    return made


def report(cells: list[Cell], against: Sequence[Path], names: Sequence[str], has_table: bool) -> bool:
    """Say what differs from files, and from the table where there is one; whether anything does."""
    old = [cell for cell in measured.read(against) if cell['operation'] in names]
    differ = False
    for whom, lines in (
        (' + '.join(path.name for path in against), list(measured.differences(cells, old))),
        ('capturekit/model/rules.py', list(measured.against_the_table(cells if has_table else []))),
    ):
        print(f'{len(lines)} of {len(cells)} differ from {whom}')
        for line in lines:
            print(f'  {line}')
        differ = differ or bool(lines)
    return differ


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        'python -m tests.gpu.measure_rules', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--out', type=Path, metavar='FILE', help='write the cells there')
    parser.add_argument('--jobs', type=int, default=min(os.cpu_count() or 1, 16), help='processes (%(default)s)')
    parser.add_argument('--only', default='', metavar='TEXT', help='only operations that have TEXT in their label')
    parser.add_argument('--patience', type=float, default=60, help='seconds for each process (%(default)s)')
    parser.add_argument(
        '--against', type=Path, nargs='+', metavar='FILE', help='what to compare with (those of tests/data)'
    )
    parser.add_argument('--cells', default='tests.gpu.rule_cells', help=argparse.SUPPRESS)
    parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        cells = importlib.import_module(given.cells)
    except ImportError as error:
        print(f'needs cuda-bindings: {error}', file=sys.stderr)
        return 2
    if given.worker:
        work(cells)
        return 0
    names = [name for name in cells.OPERATIONS if given.only in name]
    if not names:
        print(f'no operation has {given.only!r} in its label', file=sys.stderr)
        return 2
    made = measure(names, cells, given.jobs, given.patience)
    if not made.machine:
        print(f'nothing can be measured here: {made.why}', file=sys.stderr)
        return 2
    ordered = [made.found[measured.key(cell)] for name in names for batch in batches([name], cells) for cell in batch]
    date = datetime.date.today().isoformat()
    about = getattr(cells, 'ABOUT', _ABOUT).format(**made.machine, date=date)
    head = {'about': about, 'date': date, **made.machine}
    print(f'{made.machine["device"]}, driver {made.machine["driver"]}, {len(ordered)} cells')
    if given.out is not None:
        measured.write(given.out, head, ordered)
    with_version = [{**cell, 'driver_version': made.machine['driver_version']} for cell in ordered]
    own = getattr(cells, 'AGAINST', None)
    return int(report(with_version, given.against or own or measured.files(), names, own is None))


if __name__ == '__main__':
    sys.exit(main())
