"""Random programs of blocks are right, or refused where they may be; and what is wrong is seen."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from itertools import count, islice

import pytest

from tests.agreement.block_programs import program
from tests.agreement.block_runner import Found, Machine, Workers
from tests.agreement.block_source import PRELUDE, Block, Program
from tests.agreement.choices import seeded
from tests.agreement.lost_block_mends import LOST
from tests.agreement.lost_mends import LostMend
from tests.agreement.trying import Kind, try_many
from tests.examples import examples

#: A cause has to be found by this many programs that speak of its subject.
WITHIN = 20
HEAD = 'def block0(X, Y, M, S, keep, caught, missed, right):\n    with ck.capture() as cap:\n'


@pytest.fixture
def machine() -> Iterator[Machine]:
    with Machine() as one:
        yield one


def written(captured: str, plain: str, block: Block | None = None, *lines: int) -> Program:
    """A program of one block, of whose lines in the capture these may be refused."""
    source = f'{PRELUDE}{HEAD}        {captured}\n    keep(cap)\n'
    first = source.splitlines().index('    with ck.capture() as cap:') + 1
    other = f'{PRELUDE}def block0(X, Y, M, S, keep, caught, missed, right):\n    {plain}\n    keep(None)\n'
    marks = {0: frozenset(first + line for line in lines)}
    return Program(source, other, [block or Block()], marks, [0, 1], False)


def test_blocks_are_right_or_refused_where_they_may_be(machine: Machine) -> None:
    here = Kind(program, lambda _choices, one, number: machine.run(one, number), 'blocks ')
    tally = try_many(here, 0, examples(120), 0)
    assert not tally.found, tally.found
    assert tally.counts['launched'] * 2 > tally.counts['blocks'] and tally.counts['sound'] * 2 > tally.programs


@pytest.mark.parametrize(
    ('captured', 'plain', 'finding'),
    [
        ('X[0] *= 2.0', 'X[0] *= 2.0', ''),
        ('X[0] *= 2.0', 'X[0] *= 3.0', 'wrong number (sound)'),
        ('float(X[0].sum())', 'pass', 'a sound block is refused: HostReadError'),
        ("raise ValueError('no')", 'pass', 'bare ValueError: no (sound)'),
        ('S[0].use()', 'pass', ''),
        ('missed(0)', 'pass', 'not refused'),
        ('right(False)', 'pass', 'another thread got a wrong number'),
        ('__import__("sys").excepthook = print', 'pass', 'not restored after a block: the hooks'),
    ],
)  # fmt: skip
def test_the_machine_can_fail(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, captured: str, plain: str, finding: str
) -> None:
    monkeypatch.setattr(sys, 'excepthook', sys.excepthook)  # one program leaves another one
    found = machine.run(written(captured, plain, None, 1)).finding
    assert found.startswith(finding) and bool(found) == bool(finding), found


def test_a_refusal_has_to_be_at_a_line_that_may_be_refused(machine: Machine) -> None:
    read, block = 'X[0] *= 2.0; float(X[0].sum())', Block(wrong='a number that is read')
    assert machine.run(written(read, 'pass', block, 1)).finding == ''
    assert machine.run(written(read, 'pass', block, 2)).finding.startswith('refused at another line')


def test_a_process_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, 'run', lambda self, program, seed: os._exit(3) if seed else Found())
    workers = Workers(False, 60)
    try:
        assert [workers.run([], seed).finding for seed in (0, 1, 0)] == ['', 'the process died', '']
    finally:
        workers.close()


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('lost', LOST, ids=[lost.cause for lost in LOST])
def test_a_cause_is_found_again_when_its_mend_is_taken_out(lost: LostMend) -> None:
    workers = Workers(False, 60)
    made = ((number, seeded(f'blocks 1/{number}')) for number in count(lost.first))
    ones = ((choices, number) for number, choices in made if re.search(lost.about, str(program(choices))))
    for choices, number in islice(ones, WITHIN):
        with lost.out():
            found = workers.run(choices.drawn, number).finding
            workers.close()  # what the next one shall not have
        if found:
            assert not workers.run(choices.drawn, number).finding
            workers.close()
            return
    pytest.fail(f'{WITHIN} programs do not find it')
