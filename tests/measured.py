"""Cells of the driver's behaviour as files hold them, what the table of rules says of each, and how two sets differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from capturekit.model import rules
from capturekit.model.rules import Effect, Mode

Cell = dict[str, Any]
Key = tuple[str, str, str]

DATA = Path(__file__).parent / 'data'
MODES = {'Global': Mode.GLOBAL, 'ThreadLocal': Mode.THREAD_LOCAL, 'Relaxed': Mode.RELAXED}
STATUS = {
    Effect.NOTHING: 'Active',
    Effect.RECORDED: 'Active',
    Effect.ESCAPES: 'Active',
    Effect.INVALIDATES: 'Invalidated',
    Effect.ENDS: 'None',
}
#: Labels of calls that leave their side stream with work and unjoined, so that a good capture ends Unjoined.
UNJOINED = {
    'beginCapture(side already captured)',
    'streamDestroy(side captured)',
    'streamGetPriority(side captured)',
    'streamIsCapturing(side captured)',
    'eventRecord(side captured)',
    'launchHostFunc(side captured)',
    'mallocAsync(side captured)',
    'freeAsync(side captured, outside pointer)',
    'eventRecordExternal(side captured)',
    'waitEventExternal(side captured, uncaptured recorded)',
    'freeAsync(origin, outside pointer)',
}
_FIELDS = ('result', 'value', 'status_after', 'side_after', 'end_capture', 'nodes', 'note', 'error')


def files() -> list[Path]:
    """All files of cells that the repository has."""
    return sorted(DATA.glob('driver_rules*.json'))


def read(paths: Iterable[Path]) -> list[Cell]:
    """The cells of some files, each with the ``driver_version`` of its file."""
    found = []
    for path in paths:
        data = json.loads(path.read_text())
        found += [{**cell, 'driver_version': data['driver_version']} for cell in data['cells']]
    return found


def write(path: Path, head: dict[str, Any], cells: Sequence[Cell]) -> None:
    """A file of cells, one a line."""
    lines = [f'{json.dumps(name)}: {json.dumps(value)},' for name, value in head.items()]
    rows = ',\n'.join(json.dumps(cell) for cell in cells)
    path.write_text('\n'.join(['{', *lines, '"cells": [', rows, ']', '}', '']))


def key(cell: Cell) -> Key:
    """What a cell is the answer to."""
    return cell['operation'], cell['mode'], cell['origin']


def told(cell: Cell) -> tuple[str, str, str]:
    """What was answered, in the words of the runtime."""
    result = cell['result'].replace('CUDA_SUCCESS', 'cudaSuccess')
    if result.startswith('CUDA_ERROR_'):
        result = 'cudaErrorStreamCaptureUnsupported'
    return result, cell['status_after'], cell['end_capture']


def expected(cell: Cell) -> tuple[str, str, str]:
    """What the table says that the driver answers."""
    label = cell['operation']
    row = next(row for row in rules.ROWS if row[0] == label)
    answer = row[3](MODES[cell['mode']], cell['origin'] == 'blocking')
    if label == 'end (nothing illegal)':
        return 'cudaSuccess', 'Active', 'cudaSuccess'  # measured by ending itself: nothing came before
    status = STATUS[answer.effect]
    ending = {'Invalidated': 'cudaErrorStreamCaptureInvalidated', 'None': 'cudaErrorIllegalState'}.get(
        status, 'cudaErrorStreamCaptureUnjoined' if label in UNJOINED else 'cudaSuccess'
    )
    return answer.code.name, status, ending


def differences(new: Iterable[Cell], old: Iterable[Cell]) -> Iterator[str]:
    """A line for each cell that is not in both, or says something else."""
    before, after = {key(cell): cell for cell in old}, {key(cell): cell for cell in new}
    for at in {**before, **after}:
        one, other = before.get(at), after.get(at)
        if one is None or other is None:
            yield f'{_where(at)}: {"not there before" if one is None else "not measured"}'
            continue
        parts = [f'{f} was {one.get(f)}, is {other.get(f)}' for f in _FIELDS if one.get(f) != other.get(f)]
        if parts:
            yield f'{_where(at)}: {"; ".join(parts)}'


def against_the_table(cells: Iterable[Cell]) -> Iterator[str]:
    """A line for each cell of which :mod:`capturekit.model.rules` says something else."""
    labels = {row[0] for row in rules.ROWS}
    for cell in cells:
        if cell['operation'] not in labels:
            yield f'{_where(key(cell))}: the table has no row of this label'
        elif 'error' in cell:
            yield f'{_where(key(cell))}: {cell["error"]}'
        elif told(cell) != expected(cell):
            yield f'{_where(key(cell))}: the table says {", ".join(expected(cell))}; it is {", ".join(told(cell))}'


def _where(at: Key) -> str:
    return f'{at[0]}, {at[1]}, {at[2]} origin'
