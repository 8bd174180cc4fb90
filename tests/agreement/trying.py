"""Tries random programs one after the other, tells how far it is, and prints each with a finding, shortened."""

from __future__ import annotations

import faulthandler
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.agreement.choices import Choices, replayed, seeded, shortest


@dataclass
class Outcome:
    """What a program gave: a finding in words, or ''; what is counted of it, and what else is worth to be told.

    ``signature``: the finding without what is another one in each program.
    """

    finding: str = ''
    counts: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    signature: str = ''


@dataclass
class Kind:
    """Random programs: one of some draws, whose text is ``str()``, and how it is run, with its number."""

    program: Callable[[Choices], Any]
    run: Callable[[Choices, Any, int], Outcome]
    #: Begins the seeds: no two kinds of programs draw the same.
    prefix: str = ''
    #: In so many runs a program is shortened.
    tries: int = 120

    def tried(self, choices: Choices, number: int) -> Outcome:
        one = self.program(choices)
        return self.run(choices, one, number)


@dataclass
class Tally:
    """What has been seen so far."""

    programs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    #: The numbers of programs with a finding, by its signature.
    found: dict[str, list[int]] = field(default_factory=dict)

    def add(self, number: int, outcome: Outcome) -> None:
        self.programs += 1
        self.counts.update(outcome.counts)
        self.reasons.update(outcome.reasons)
        if outcome.finding:
            self.found.setdefault(outcome.signature, []).append(number)

    def __str__(self) -> str:
        counts = ', '.join(f'{count} {name}' for name, count in self.counts.items())
        kinds = ', '.join(f'{len(numbers)} {kind}: {numbers[:5]}' for kind, numbers in self.found.items())
        return (
            f'{self.programs} programs, {counts}; {sum(map(len, self.found.values()))} with a finding {kinds}'.rstrip()
        )


def try_many(kind: Kind, first: int, count: int, seed: int, longest: float = 0, seconds: float = math.inf) -> Tally:
    """Run programs, and print how far it is and the first of each kind of finding, shortened.

    ``longest``: seconds for one program, after which the process ends with the stacks of all threads; 0: any.
    ``seconds``: no new program is begun after so many.
    """
    tally, begun = Tally(), time.monotonic()
    said = begun
    for number in range(first, first + count):
        if time.monotonic() > begun + seconds:
            break
        if longest:
            faulthandler.dump_traceback_later(longest, exit=True)
        choices = seeded(f'{kind.prefix}{seed}/{number}')
        outcome = kind.tried(choices, number)
        tally.add(number, outcome)
        if outcome.finding and len(tally.found[outcome.signature]) == 1:
            print(f'--- program {number}: {_shown(kind, number, choices.drawn, outcome)}\n', flush=True)
        if time.monotonic() - said > 10:
            said = time.monotonic()
            print(f'{said - begun:6.0f} s: {tally}', flush=True)
    if longest:
        faulthandler.cancel_dump_traceback_later()
    return tally


def _shown(kind: Kind, number: int, drawn: list[int], outcome: Outcome) -> str:
    """The finding with the shortest program that has it."""

    def fails(numbers: list[int]) -> bool:
        found = kind.tried(replayed(numbers), number)
        return bool(found.finding) and found.signature == outcome.signature

    short = shortest(drawn, lambda numbers: fails(list(numbers)), kind.tries)
    told = kind.tried(replayed(short), number).finding or outcome.finding
    return f'{told}\n{kind.program(replayed(short))}'
