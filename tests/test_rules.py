"""The table of rules against every cell that was measured on a driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capturekit import rules
from capturekit.rules import Effect, Mode

DATA = Path(__file__).parent / 'data'
FILES = ('driver_rules.json', 'driver_rules_more.json')
CELLS = [cell for name in FILES for cell in json.loads((DATA / name).read_text())['cells']]
MODES = {'Global': Mode.GLOBAL, 'ThreadLocal': Mode.THREAD_LOCAL, 'Relaxed': Mode.RELAXED}
ROWS = {r[0]: r for r in rules.ROWS}
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


def expected(cell: dict[str, object]) -> tuple[str, str, str]:
    label = str(cell['operation'])
    answer = ROWS[label][3](MODES[str(cell['mode'])], cell['origin'] == 'blocking')
    if label == 'end (nothing illegal)':
        return 'cudaSuccess', 'Active', 'cudaSuccess'  # measured by ending itself: nothing came before
    status = STATUS[answer.effect]
    ending = {'Invalidated': 'cudaErrorStreamCaptureInvalidated', 'None': 'cudaErrorIllegalState'}.get(
        status, 'cudaErrorStreamCaptureUnjoined' if label in UNJOINED else 'cudaSuccess'
    )
    return answer.code.name, status, ending


def test_every_measured_operation_has_a_row_and_every_row_was_measured() -> None:
    measured = {cell['operation'] for cell in CELLS}
    assert measured - set(ROWS) == set()
    #: a memset on a lane is in every cell that forks one: it is recorded there before the operation itself
    assert set(ROWS) - measured == {'memsetAsync(side captured)'}


def test_all_492_cells_of_the_first_measurement_are_there() -> None:
    first = json.loads((DATA / FILES[0]).read_text())['cells']
    assert len(first) == 492
    assert len({(c['operation'], c['mode'], c['origin']) for c in first}) == 492


@pytest.mark.parametrize('label', sorted({str(c['operation']) for c in CELLS}))
def test_cells_agree(label: str) -> None:
    cells = [c for c in CELLS if c['operation'] == label]
    assert len(cells) >= 6
    for cell in cells:
        said = (str(cell['result']).replace('CUDA_SUCCESS', 'cudaSuccess'), cell['status_after'], cell['end_capture'])
        if said[0].startswith('CUDA_ERROR_'):
            said = ('cudaErrorStreamCaptureUnsupported', *said[1:])
        assert said == expected(cell), cell


def test_recorded_cells_added_a_node_and_others_did_not() -> None:
    for cell in CELLS:
        if cell['nodes'] is None or '[join]' in str(cell['operation']):
            continue  # the join cell's second node is the side stream's memset
        answer = ROWS[str(cell['operation'])][3](MODES[str(cell['mode'])], cell['origin'] == 'blocking')
        assert (cell['nodes'] == 2) == (answer.effect is Effect.RECORDED), cell


def test_refusals_have_a_rule_with_an_exception_and_a_remedy() -> None:
    for label, _operation, _target, pattern, name in rules.ROWS:
        if any(a.refused or a.effect is Effect.ESCAPES for a in pattern.answers):
            rule = rules.RULES[name]
            assert rule.says and rule.remedy, label
        else:
            assert name == '', label


def test_every_rule_is_used() -> None:
    used = {r[4] for r in rules.ROWS} - {''}
    assert set(rules.RULES) - used == {
        'host-read', 'host-write',  # judged by what the host would see, not by CUDA
        'invalidated', 'unjoined',  # judged from the capture's history: tests/agreement
    }  # fmt: skip


def test_an_unmeasured_call_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        rules.row(rules.Operation.EVENT_CREATE, rules.Target.LEGACY)
