"""Which tests concern which module: fast ones first, since the first failure ends a trial."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Subject:
    """``tests`` that must notice a change; what ``prose`` names has texts for people, left alone."""

    tests: tuple[str, ...]
    prose: tuple[str, ...] = ()


SUBJECTS = {
    'capturekit/rules.py': Subject(
        ('tests/test_rules.py', 'tests/test_topology.py', 'tests/agreement', 'tests/test_contract.py'),
        prose=('Rule', 'Effect', 'Target'),
    ),
    'capturekit/topology.py': Subject(
        (
            'tests/test_topology.py',
            'tests/agreement',
            'tests/test_contract.py',
            'tests/test_failed.py',
            'tests/test_exit.py',
            'tests/test_guard.py',
        ),
        prose=('EventState',),
    ),
    'capturekit/intercept.py': Subject(
        (
            'tests/test_intercept.py',
            'tests/test_failed.py',
            'tests/test_contract.py',
            'tests/test_corners.py',
            'tests/test_curand.py',
            'tests/test_threads.py',
            'tests/test_guard.py',
        )
    ),
}
