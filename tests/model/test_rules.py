"""The table of rules against every cell that was measured on a driver."""

from __future__ import annotations

import re

import pytest

from capturekit.model import errors, rules
from capturekit.model.ledger import PER_THREAD_HANDLE
from capturekit.model.rules import CaptureStatus, Code, Effect, Mode, Operation, Target
from capturekit.simulated.device.constants import CONSTANTS, ERRORS
from tests import measured

CELLS = measured.read(measured.files())
ROWS = {r[0]: r for r in rules.ROWS}


def test_rows_and_measured_operations_are_the_same() -> None:
    seen = {cell['operation'] for cell in CELLS}
    assert seen - set(ROWS) == set()
    #: a memset on a lane is in every cell that forks one: it is recorded there before the operation itself
    assert set(ROWS) - seen == {'memsetAsync(side captured)'}


def test_all_492_cells_of_the_first_measurement_are_there() -> None:
    first = measured.read([measured.DATA / 'driver_rules.json'])
    assert len(first) == 492
    assert len({(c['operation'], c['mode'], c['origin']) for c in first}) == 492


@pytest.mark.parametrize('label', sorted({str(c['operation']) for c in CELLS}))
def test_cells_agree(label: str) -> None:
    cells = [c for c in CELLS if c['operation'] == label]
    assert len(cells) >= 6
    for cell in cells:
        assert measured.told(cell) == measured.expected(cell), cell


def test_recorded_cells_added_a_node_and_others_did_not() -> None:
    for cell in CELLS:
        if cell['nodes'] is None or '[join]' in str(cell['operation']):
            continue  # the join cell's second node is the side stream's memset
        answer = ROWS[str(cell['operation'])][3](measured.MODES[cell['mode']], cell['origin'] == 'blocking')
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


def test_the_history_of_a_capture_changes_answers() -> None:
    assert {operation for history, operation in rules.BY_HISTORY if history is rules.History.LOST} > {
        Operation.WORK, Operation.END_CAPTURE,
    }  # fmt: skip
    for (history, operation), (answer, name) in rules.BY_HISTORY.items():
        assert answer.refused
        assert rules.after(history, operation) == (answer, rules.RULES.get(name))
    with pytest.raises(KeyError):
        rules.after(rules.History.UNJOINED, Operation.WORK)


def test_a_variant_of_a_rule_raises_what_the_rule_raises() -> None:
    for name, rule in rules.VARIANTS.items():
        assert rule.says and rule.remedy and name not in rules.RULES
        if rule.name in rules.RULES:
            told = rules.RULES[rule.name]
            assert rule != told and (rule.error, rule.from_elsewhere) == (told.error, told.from_elsewhere)


def test_a_lane_is_told_as_the_origin_is() -> None:
    told = {(r[1], r[2]): r[4] for r in rules.ROWS}
    both = [call for call, target in told if target is Target.LANE and (call, Target.ORIGIN) in told]
    assert len(both) > 15
    for call in both:
        if call is not Operation.END_CAPTURE:
            assert told[call, Target.LANE] == told[call, Target.ORIGIN], call


def test_codes_modes_and_statuses_are_cudas() -> None:
    """The stand-in's constants, which tests/simulated/test_signatures.py holds against CuPy's."""
    for name, code in Code.__members__.items():
        assert name == 'cudaSuccess' or ERRORS[code.value][0] == name, name
    for kind, members in (('Mode', Mode), ('Status', CaptureStatus)):
        for name, one in members.__members__.items():
            assert CONSTANTS[f'streamCapture{kind}{name.title().replace("_", "")}'] == one, name
    assert (CONSTANTS['streamLegacy'], CONSTANTS['streamPerThread']) == (1, PER_THREAD_HANDLE)


#: Where CUDA's code names what was done wrong, the exception is of that name.
BY_CODE = {
    Code.cudaErrorStreamCaptureIsolation: errors.IsolationError,
    Code.cudaErrorStreamCaptureMerge: errors.MergeError,
    Code.cudaErrorStreamCaptureUnmatched: errors.UnmatchedError,
    Code.cudaErrorStreamCaptureWrongThread: errors.WrongThreadError,
    Code.cudaErrorStreamCaptureImplicit: errors.LegacyStreamError,
    Code.cudaErrorCapturedEvent: errors.SynchronizationError,
    Code.cudaErrorIllegalState: errors.UnmatchedError,
}
WAITING = re.compile(r'.*(Synchronize|Query)$')


def test_exceptions_are_of_the_kind_that_cuda_names() -> None:
    for label, operation, _target, pattern, name in rules.ROWS:
        if not name or name == 'legacy-stream':
            continue
        kind = rules.RULES[name].error
        for answer in pattern.answers:
            if answer.code in BY_CODE:
                assert kind is BY_CODE[answer.code], label
            elif answer.code is Code.cudaErrorInvalidValue:
                assert kind is (errors.UnsupportedCallError if name == 'outside-pointer' else errors.IsolationError), (
                    label
                )
            elif answer.code is Code.cudaErrorStreamCaptureUnsupported:
                waits = WAITING.match(operation.value)
                assert kind is (errors.SynchronizationError if waits else errors.UnsupportedCallError), label
            elif answer.effect is Effect.ESCAPES:
                assert kind is errors.EscapedWorkError, label


# -- by driver ------------------------------------------------------------------------------------------------


def test_named_drivers_and_measured_drivers_are_the_same() -> None:
    assert {one.cuda for one in rules.MEASURED} == {cell['driver_version'] for cell in CELLS}
    assert rules.NEWEST.cuda == max(one.cuda for one in rules.MEASURED)


def test_a_rule_a_kind_of_call_and_a_call_stand_once() -> None:
    """Of two, one would never be heard."""
    assert len(rules.RULES) == sum(line[:1].isalpha() for line in rules._WORDS.splitlines())
    assert len({kind[:2] for kind in rules.KINDS}) == len(rules.KINDS)
    assert len({row[0] for row in rules.ROWS}) == len(rules.ROWS)
