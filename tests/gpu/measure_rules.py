"""Measures what the driver answers to calls made while a stream is being captured, and says what differs from before.

``python -m tests.gpu.measure_rules --out FILE`` measures every cell of the tables in ``tests/data/driver_rules*.json``
on the GPU at hand, in processes, several at a time: what may crash, hang or leave something behind has one of its own,
and the cells of a process that died are measured by two others. FILE is of the same form, with the machine, the
driver, CUDA and the date. Then each cell is compared with the files, and with the table in
``capturekit/model/rules.py``.

Exit status: 0 if all agree, 1 if a cell differs or could not be measured, 2 if nothing could be.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import measured
from tests.measured import Cell
from tests.packages import apart
from tests.packages.apart import Row

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
    """What was measured, by cell, and on what; ``why``: why there is no machine."""

    found: dict[measured.Key, Cell] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    why: str = ''


def answers(job: tuple[str, Batch]) -> Row:
    """Measure some cells by a module. The first that fails ends the process: its capture may be open."""
    module, batch = job
    cells: Any = importlib.import_module(module)
    found = [cells.cell(one['operation'], one['mode'], one['origin'] == 'blocking') for one in batch]
    return {'machine': cells.machine(), 'cells': found}


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
    """Measure all cells of some operations, ``jobs`` processes at a time. Where one dies, its cells are parted."""
    made = Measuring()
    todo: list[tuple[str, Batch]] = [(cells.__name__, [])]  # is there a device at all?
    while todo:
        parts: list[tuple[str, Batch]] = []
        for (module, batch), row in apart.rows(todo, answers, at_once=jobs, timeout=patience, how='forkserver'):
            if 'cells' in row:
                made.machine = row['machine']
                made.found.update({measured.key(cell): cell for cell in row['cells']})
                continue
            made.why = f'{row["error"]}: {row["text"]}'
            if len(batch) == 1:
                made.found[measured.key(batch[0])] = {**batch[0], 'error': made.why}
            else:
                half = (len(batch) + 1) // 2
                parts += [(module, part) for part in (batch[:half], batch[half:]) if part]
        if not todo[0][1] and made.machine:
            parts = [(cells.__name__, batch) for batch in batches(names, cells)]
        todo = parts
        print(
            f'measuring: {len(made.found):,} cells, {sum(len(b) for _, b in todo):,} left', file=sys.stderr, flush=True
        )
    return made


def report(cells: list[Cell], against: Sequence[Path], names: Sequence[str], has_table: bool) -> bool:
    """Say what differs from files, and from the table where there is one; whether anything does."""
    old = [cell for cell in measured.read(against) if cell['operation'] in names]
    differ = False
    found = {' + '.join(path.name for path in against): list(measured.differences(cells, old))}
    if has_table:
        found['capturekit/model/rules.py'] = list(measured.against_the_table(cells))
    for whom, lines in found.items():
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
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        cells = importlib.import_module(given.cells)
    except ImportError as error:
        print(f'needs cuda-bindings: {error}', file=sys.stderr)
        return 2
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
