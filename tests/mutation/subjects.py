"""Which tests concern which module: fast ones first, since the first failure ends a trial."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Subject:
    """``tests`` that must notice a change; what ``prose`` names has texts for people, left alone."""

    tests: tuple[str, ...]
    prose: tuple[str, ...] = ()


SUBJECTS = {
    'capturekit/model/rules.py': Subject(
        (
            'tests/model/test_rules.py',
            'tests/model/test_ledger.py',
            'tests/agreement/test_agreement.py',
            'tests/simulated/test_contract.py',
            'tests/simulated/test_contract_refusals.py',
            'tests/simulated/test_contract_changes.py',
        ),
        prose=('Rule', 'Effect', 'Target'),
    ),
    'capturekit/model/ledger.py': Subject(
        (
            'tests/model/test_ledger.py',
            'tests/agreement/test_agreement.py',
            'tests/simulated/test_contract.py',
            'tests/simulated/test_contract_refusals.py',
            'tests/simulated/test_contract_changes.py',
            'tests/render/test_failed.py',
            'tests/recorder/test_teardown.py',
            'tests/guard/test_verdicts.py',
            'tests/gpu/test_entry_points.py',
        ),
        prose=('EventState',),
    ),
    'capturekit/guard/entry_points.py': Subject(
        (
            'tests/guard/test_entry_points.py',
            'tests/guard/test_entry_names.py',
            'tests/guard/test_entry_table.py',
            'tests/render/test_failed.py',
            'tests/simulated/test_contract.py',
            'tests/simulated/test_contract_refusals.py',
            'tests/simulated/test_contract_changes.py',
            'tests/recorder/test_corners.py',
            'tests/simulated/test_curand.py',
            'tests/guard/test_threads.py',
            'tests/guard/test_verdicts.py',
            'tests/guard/test_collectives.py',
            'tests/gpu/test_entry_points.py',
            'tests/functions/test_effects.py',
        )
    ),
    'capturekit/guard/patching.py': Subject(
        (
            'tests/guard/test_patching.py',
            'tests/guard/test_entry_points.py',
            'tests/guard/test_entry_names.py',
            'tests/guard/test_entry_table.py',
            'tests/render/test_failed.py',
            'tests/simulated/test_contract.py',
            'tests/simulated/test_contract_refusals.py',
            'tests/simulated/test_contract_changes.py',
            'tests/recorder/test_corners.py',
            'tests/simulated/test_curand.py',
            'tests/guard/test_threads.py',
            'tests/guard/test_verdicts.py',
            'tests/gpu/test_entry_points.py',
        )
    ),
}
