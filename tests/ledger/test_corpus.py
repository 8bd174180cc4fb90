"""The programs for the sentences of the guide: each right, and launched, in parts or eager as it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.agreement.program_runner import Machine
from tests.ledger.corpus import CORPUS
from tests.ledger.harness import Case, wrong

AFFINE = next(case for case in CORPUS if case.name == 'affine')


@pytest.mark.parametrize('case', CORPUS, ids=lambda case: case.name.replace(' ', '-'))
def test_a_program_is_right_and_launched_as_it_says(case: Case) -> None:
    with Machine() as machine:
        assert wrong(case, machine) == ''


def test_each_sentence_has_three_programs() -> None:
    assert set(Counter(case.says for case in CORPUS).values()) == {3}
    assert len({case.name for case in CORPUS}) == len(CORPUS) >= 80


def test_what_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replace(AFFINE, call='f(m, x + rate)', change='rate = 2.0', source='rate = 1.0\n' + AFFINE.source)
    stale = replace(changed, call='f(m, x)', source=changed.source.replace('v + 1', 'v + rate'))
    with Machine() as machine:
        assert wrong(changed, machine) == wrong(stale, machine) == ''
        assert wrong(replace(AFFINE, expected='eager'), machine).startswith('eager is expected, and the calls were [')
        assert wrong(replace(AFFINE, call='g(x)'), machine).startswith('launched is expected, and the calls were []')
        assert wrong(replace(AFFINE, source='1 / 0'), machine) == 'it does not run plainly'
        monkeypatch.setattr('capturekit.functions.environment.Environment.changed', lambda self: None)
        assert 'R[5]' in wrong(stale, machine)
