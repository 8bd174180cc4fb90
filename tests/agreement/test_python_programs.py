"""Random Python programs give the same plainly and graphed; and they find each known cause of wrong answers again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count, islice
from random import Random
from typing import Any

import pytest

from capturekit.graphed import faster_way, policy
from capturekit.graphed.environment import Environment
from tests.agreement.choices import replayed, seeded, shortest
from tests.agreement.lost_mends import LOST, LostMend
from tests.agreement.program_runner import Machine, Program
from tests.agreement.python_programs import kind, program
from tests.agreement.trying import try_many
from tests.examples import examples

#: A cause has to be found by this many programs that speak of its subject.
WITHIN = 300
#: A program that gives another answer at each call, were it not for what is compared: its global is bound anew.
STALE = Program(
    'G = 1.0\nf = over(lambda x: x * G)\nimport cupy as cp\nX, R = cp.ones(2), []',
    ['r = f(X)\nR.append(r)'] * 3 + ['G = 2.0', 'r = f(X)\nR.append(r)'],
)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with Machine() as one:
        yield one


def test_programs_agree_and_half_of_the_calls_are_launched() -> None:
    with kind() as programs:
        tally = try_many(programs, 0, examples(120), 10)  # of seeds 5 to 11, 37 to 65 % of the calls are launched
    assert not tally.found, tally.found
    assert tally.counts['raced'] * 10 < tally.programs
    assert tally.counts['launched'] * 100 > 45 * tally.counts['calls']


class DrawnTime:
    """The time of a call, on the host and on the device, which says nothing of what the call took."""

    random = Random(1)
    busy = False

    def __init__(self) -> None:
        self.host = 0.0

    def end(self) -> None:
        self.host = self.random.random()

    def device(self) -> float | None:
        return self.random.choice((None, self.random.random()))


def test_calls_that_take_turns_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a call is launched or runs eagerly because that is faster changes nothing that can be seen."""
    monkeypatch.setattr(faster_way, 'STOPWATCH', lambda _platform: DrawnTime)
    monkeypatch.setattr(policy, 'AGAIN', 2)
    monkeypatch.setattr(policy, 'TRIES', float('inf'))
    with kind() as programs:
        tally = try_many(programs, 0, examples(80), 12)
    assert not tally.found and tally.counts['launched']


@pytest.mark.parametrize(('there', 'late'), [(False, False), (True, False), (True, True)])
def test_a_wrong_answer_is_seen(there: bool, late: bool, sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left stale is a difference, and is none with the check in place; also on the CuPy that is there."""
    spun: list[int] = []
    monkeypatch.setattr('tests.agreement.program_runner.Spins', lambda cupy, seed: spun.append)
    with Machine(there) as machine:
        found = machine.compared(Program(STALE.source, STALE.steps, late))
        assert (found.finding, found.counts['launched'], bool(spun)) == ('', 2, late)
        monkeypatch.setattr(Environment, 'changed', lambda self: None)
        assert 'R[3]' in machine.compared(STALE).finding


@pytest.mark.parametrize(
    ('step', 'seen'),
    [
        ('r = f(X)', ''),
        ('r = f(X)\nR.append(r if graphed else r.copy())', 'object'),
        ('R.append(f(X) * (1 + graphed))', '[1.0, 1.0]'),
        ('R.append(f(X).astype(cp.float32 if graphed else cp.float64))', 'float32'),
        ('X += graphed', '[2.0, 2.0]'),
        ('if graphed:\n    raise ValueError(3)', 'ValueError: 3'),
        ('R.append(X if graphed else X[:])', 'object'),
        ('G = 1 + graphed', 'int 2'),
        ('def late(): pass\nlate.made = graphed', 'bool True'),
        ('over.__globals__ and R.append([0.0, -0.0][graphed])', '-0.0'),
    ],
)
def test_whatever_a_caller_can_see_is_compared(machine: Machine, step: str, seen: str) -> None:
    told = 'graphed = hasattr(over(lambda x: x), "variants")\n'
    one = Program(STALE.source + f'\n{told}del graphed', [f'{told}{step}\ndel graphed'])
    assert seen in machine.compared(one).finding
    assert bool(machine.compared(one).finding) == bool(seen)


def test_draws_are_shortened() -> None:
    numbers = [7, 3, 9, 1, 4, 4, 8]
    assert shortest(numbers, lambda left: 9 in left) == [9]
    assert shortest(numbers, lambda left: len(left) > 2 and left[2] == 9) == [0, 0, 9]
    first = program(seeded('0/1'))
    again = seeded('0/1')
    program(again)
    assert str(program(replayed(again.drawn))) == str(first)


def test_each_mend_can_be_taken_out() -> None:
    for lost in LOST:
        with lost.out():
            pass
    assert len(LOST) >= 32


# Where its mend is out, a cause may also show in a finalizer.
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('lost', LOST, ids=[lost.cause for lost in LOST])
def test_a_cause_is_found_again_when_its_mend_is_taken_out(lost: LostMend) -> None:
    made = (program(seeded(f'0/{number}')) for number in count(lost.first))
    ones = islice((one for one in made if re.search(lost.about, str(one))), WITHIN)
    while True:
        with lost.out(), Machine() as machine:
            one = next((one for one in ones if machine.compared(one).finding), None)
        assert one is not None, f'{WITHIN} programs do not find it'
        with lost.with_what_is_beside(), Machine() as machine:
            if not machine.compared(one).finding:
                return
