"""Tries a graphed function: a program, calls with a change between them, and what is expected of these calls.

``with Machine() as machine: assert wrong(case, machine) == ''`` is a whole test.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from capturekit.graphed.call_turns import is_alone
from tests.agreement.program_runner import Machine, Program, different
from tests.ledger.outcomes import EAGER, LAUNCHED, noted

#: What each program has already: modules, a class whose objects hold what they are given, and two arrays.
BEGIN = """
import abc, array, asyncio, builtins, codecs, collections, contextlib, contextvars, copy, copyreg, ctypes, dataclasses
import decimal, enum, functools, gc, inspect, io, itertools, logging, math, operator, os, random, re, sys, threading
import time, traceback, types, typing, uuid, warnings, weakref
import numpy as np
import cupy as cp
import cupyx
import cupyx.scipy.sparse
class Box:
    def __init__(self, **values):
        for name, value in values.items(): setattr(self, name, value)
x, m, R = cp.arange(1.0, 5.0), cp.arange(16.0).reshape(4, 4) % 7, []
"""
#: So many calls are made, or with a change so many before it and after it.
CALLS, EACH = 8, 5
#: Orders in which the device's work is late, where it is.
ORDERS = (0, 1)


@dataclass(frozen=True)
class Case:
    """A program. ``says``: the rule that it is for. ``call``: one call of its graphed function, in which ``n`` is the
    number of the call. ``change``: a statement, made before each call if it names ``n``, else once, or ''.
    ``expected``: what becomes of the calls, as the package says. ``late``: whether the device's work waits.
    """

    says: str
    name: str
    call: str
    change: str
    expected: str
    source: str
    late: bool = False

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
        graphed = '' if 'ck.graphed' in self.source else 'f = ck.graphed(f)\n'
        return Program(BEGIN + (self.source + graphed).replace('ck.graphed', 'over'), steps, self.late)


def runs_here(case: Case) -> bool:
    """False for programs that are right only while no other thread runs, if one does, as some runners of tests have."""
    return ': alone, ' not in case.name or is_alone()


def wrong(case: Case, machine: Machine) -> str:
    """Run a program plainly and graphed: what differs, or what becomes of its calls if that is unexpected; else ''."""
    program = case.program()
    if not runs_here(case):
        return ''
    with noted() as calls:
        found = machine.compared(program)
        if found.finding or found.counts['raced']:
            return found.finding or f'it does not run plainly: {machine.run(program, False).broken}'
    if fault := next((outcome for outcome in calls if 'in the eager run' in outcome), ''):
        return f'a launch was wrong, though another run has seen it: {fault}'
    plain = machine.run(program, False) if case.late else None
    for order in ORDERS[1:] if plain else ():
        if plain and (differs := different(plain, machine.run(program, True, order), program)):
            return f'late in order {order}: {differs}'
    told = ', '.join(f'{len(list(alike))} times {outcome}' for outcome, alike in groupby(calls))
    return '' if _as_expected(case, calls) else f'{case.expected} is expected, and the calls were {told or "none"}'


def _as_expected(case: Case, calls: list[str]) -> bool:
    """Whether these outcomes are those of the program's calls that are expected."""
    times, rest = divmod(len(calls), case.calls)  # of each call that the program makes
    if not times or rest:
        return False
    expected, _, since = case.expected.partition(' since ')
    if since and sys.version_info < tuple(map(int, since.split('.'))):
        return True
    before, _, after = expected.rpartition(' > ')
    at = EACH * times if case.calls > CALLS else 2 * times
    if after == 'kept':
        return set(calls[at - 1 :]) == {LAUNCHED}
    kind, _, reason = after.partition(': ')
    if kind == 'seen':
        return calls[at].startswith(f'{EAGER}: ') and reason in calls[at] and calls[at - 1] == calls[-1] == LAUNCHED
    return _is(calls[-1], after) and (case.calls == CALLS or _is(calls[at - 1], before or after))


def _is(outcome: str, wanted: str) -> bool:
    kind, _, reason = wanted.partition(': ')
    return kind == 'right' or (outcome.partition(':')[0] == kind and reason in outcome)


def cases_of(text: str, late: bool = False) -> list[Case]:
    """The programs that are written in a text, as :mod:`tests.corpus` says."""
    cases: list[Case] = []
    says = ''
    for part in re.split(r'^(?==== |--- )', text, flags=re.MULTILINE):
        head, _, source = part.partition('\n')
        if head.startswith('=== '):
            says = head[4:]
        elif head.startswith('--- '):
            words = [word.strip() for word in re.split(r'\s\|(?=\s)', head[4:])]
            name, call, change, expected = words if len(words) == 4 else [words[0], 'f(x + n)', *['', *words[1:]][-2:]]
            cases += _each(Case(says, name, call or 'f(x + n)', change, expected, source, late))
    return cases


def _each(case: Case) -> Iterator[Case]:
    """The programs that lines with ``$`` make of one."""
    lines = re.findall(r'^\$ (.*)\n', case.source, flags=re.MULTILINE)
    source = re.sub(r'^\$ .*\n', '', case.source, flags=re.MULTILINE)
    for line in lines:
        values = line.split(' || ')

        def put(text: str, values: list[str] = values) -> str:
            return re.sub(r'\$(\d)', lambda found: values[int(found[1]) - 1].strip().replace(' ;; ', '\n    '), text)

        yield replace(
            case,
            name=f'{case.name}: {line}',
            call=put(case.call),
            change=put(case.change),
            expected=put(case.expected),
            source=put(source),
        )
    if not lines:
        yield case


def topic(name: str) -> list[Case]:
    """The programs of one text."""
    return cases_of((Path(__file__).with_name(f'{name}.txt')).read_text(), name.startswith('late'))


#: The programs for the sentences of the guide.
GUIDE: list[Case] = topic('guide')
#: The other texts.
TOPICS = sorted(path.stem for path in Path(__file__).parent.glob('*.txt') if path.stem != 'guide')
