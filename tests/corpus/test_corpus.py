"""The programs: each right, and launched, in parts or eager as it says."""

from __future__ import annotations

import copyreg
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby

import pytest

from capturekit.graphed import environment, policy
from tests.agreement.program_runner import Machine
from tests.corpus.harness import GUIDE, TOPICS, Case, runs_here, topic, wrong

AFFINE = next(case for case in GUIDE if case.name == 'affine')
#: The programs of a rule run one after the other on one device, so many at a time: its text, the rule, and they.
RULES = [
    (name, says, cases[first : first + 40])
    for name in ('guide', *TOPICS)
    for says, cases in ((says, list(some)) for says, some in groupby(topic(name), lambda case: case.says))
    for first in range(0, len(cases), 40)
]  # fmt: skip


@pytest.fixture(autouse=True)
def only_pythons_own_classes_are_copied_otherwise() -> Iterator[None]:
    """What packages and other programs have told ``copy`` counts for each function that copies."""
    before = dict(copyreg.dispatch_table)
    for cls in before:
        if cls.__module__ not in ('builtins', 'types', 're', 'typing', 'numpy'):
            del copyreg.dispatch_table[cls]
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


@pytest.mark.parametrize('cases', [one[2] for one in RULES], ids=[f'{name}: {says}' for name, says, _ in RULES])
def test_programs_are_right_and_launched_as_they_say(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, 'LONGEST', float('inf'))  # no time decides
    with Machine() as machine:
        found = [(case.name, wrong(case, machine)) for case in cases]
    time.tzset()  # as the environment says again, which some of them change
    wrong_ones = [f'{name}: {what}' for name, what in found if what]
    assert not wrong_ones, '\n'.join(wrong_ones)


def test_a_program_is_right_beside_a_thread_that_waits() -> None:
    """Frames of threads are looked at then, and those of this thread would hold all that its functions have."""
    (case,) = [case for case in topic('reads') if case.name == 'a weak method whose object goes']
    with Machine() as machine, ThreadPoolExecutor(1) as others:
        leave = threading.Event()
        others.submit(leave.wait)
        try:
            assert wrong(case, machine) == ''
        finally:
            leave.set()


@pytest.mark.gpu
@pytest.mark.parametrize(('name', 'says', 'cases'), RULES)
def test_programs_are_right_on_a_gpu(name: str, says: str, cases: list[Case]) -> None:
    cupy = pytest.importorskip('cupy')
    pytest.importorskip('cuda.bindings')
    if name in ('devices', 'late') and cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip('needs two GPUs')
    with Machine(there=True) as machine:
        found = [(case.name, machine.compared(case.program()).finding) for case in cases if runs_here(case)]
    wrong_ones = [f'{name}: {what}' for name, what in found if what]
    assert not wrong_ones, f'{says}\n' + '\n'.join(wrong_ones)


def test_names_are_given_once() -> None:
    for name in ('guide', *TOPICS):
        assert [one for one, times in Counter(case.name for case in topic(name)).items() if times > 1] == [], name


def test_each_sentence_of_the_guide_has_three_programs() -> None:
    assert set(Counter(case.says for case in GUIDE).values()) == {3} and len(GUIDE) >= 80


def test_what_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replace(AFFINE, call='f(m, x + rate)', change='rate = 2.0', source='rate = 1.0\n' + AFFINE.source)
    stale = replace(changed, call='f(m, x)', source=changed.source.replace('v + 1', 'v + rate'))
    with Machine() as machine:
        assert wrong(changed, machine) == wrong(stale, machine) == ''
        assert wrong(replace(AFFINE, expected='eager'), machine).startswith('eager is expected, and the calls were ')
        assert wrong(replace(stale, expected='kept'), machine).startswith('kept is expected, and the calls were ')
        assert wrong(replace(AFFINE, call='g(x)'), machine).startswith('launched is expected, and the calls were none')
        assert 'ZeroDivisionError' in wrong(replace(AFFINE, source='1 / 0\n'), machine)
        monkeypatch.setattr(environment.Environment, 'changed', lambda self: None)
        assert 'R[5]' in wrong(stale, machine)
