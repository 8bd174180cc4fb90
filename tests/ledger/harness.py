"""Tries a graphed function: a program, calls with a change between them, and what is expected of these calls.

``with Machine() as machine: assert wrong(case, machine) == ''`` is a whole test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.agreement.program_runner import Machine, Program
from tests.ledger.outcomes import noted

#: What each program has already: modules, and two arrays.
BEGIN = """
import collections, io, math, os, sys, time
import numpy as np
import cupy as cp
import cupyx.scipy.sparse
x, m, R = cp.arange(1.0, 5.0), cp.arange(16.0).reshape(4, 4) % 7, []
"""
#: So many calls are made, or with a change so many before it and after it.
CALLS, EACH = 8, 5


@dataclass(frozen=True)
class Case:
    """A program. ``says``: the sentence that it is for. ``call``: one call of its graphed function, in which ``n`` is
    the number of the call. ``change``: a statement, made before each call if it names ``n``, else once, or ''.
    ``expected``: what becomes of the last call, and of the last one before the change: launched, in parts or eager.
    """

    says: str
    name: str
    call: str
    change: str
    expected: str
    source: str

    @property
    def calls(self) -> int:
        """How many calls are made."""
        return 2 * EACH if self.change and not re.search(r'\bn\b', self.change) else CALLS

    def program(self) -> Program:
        """The program, for :class:`Machine`."""
        each = self.calls == CALLS
        steps = [f'n = {number}\n{self.change * each}\nr = {self.call}\nR.append(r)' for number in range(self.calls)]
        if self.calls > CALLS:
            steps.insert(EACH, self.change)
        return Program(BEGIN + self.source.replace('ck.graphed', 'over'), steps)


def wrong(case: Case, machine: Machine) -> str:
    """Run a program plainly and graphed: what differs, or what becomes of its calls if that is unexpected; else ''."""
    with noted() as calls:
        found = machine.compared(case.program())
    if found.difference or found.raced:
        return found.difference or 'it does not run plainly'
    ends = [calls[EACH - 1], calls[-1]] if len(calls) == 2 * EACH else calls[-1:]
    alike = all(outcome.partition(':')[0] == case.expected for outcome in ends)
    return '' if alike and len(calls) == case.calls else f'{case.expected} is expected, and the calls were {calls}'


def cases_of(text: str) -> list[Case]:
    """The programs that are written in a text, as :mod:`tests.ledger.corpus` says."""
    cases, says = [], ''
    for part in re.split(r'^(?==== |--- )', text, flags=re.MULTILINE):
        head, _, source = part.partition('\n')
        if head.startswith('=== '):
            says = head[4:]
        elif head.startswith('--- '):
            name, call, change, expected = (word.strip() for word in head[4:].split('|'))
            cases.append(Case(says, name, call, change, expected, source))
    return cases
