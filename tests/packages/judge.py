"""One program, made twice: called eagerly and graphed, compared call by call, and timed.

With NumPy in the place of CuPy both makings run plainly: that shows that the calls into the package are right, and
that the program does the same whenever it is made.
"""

from __future__ import annotations

import importlib
import logging
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import capturekit as ck
from capturekit import simulated
from tests.benchmarks.machine import machine
from tests.ledger.outcomes import decide_without_times, noted
from tests.packages import apart
from tests.packages.compare import EQUAL, NEAR, WRONG, Found, Leaf, compare, leaves
from tests.packages.registry import Draw, Program, itself, load

Row = dict[str, Any]
#: So many calls are compared, so many more are made before any is timed, and so many are timed.
CALLS, MORE, TIMED = 6, 14, 20
#: The outcome of a program that raises when it runs plainly, and of one that gives something else at each run.
FAILS, UNSTEADY = 'fails', 'unsteady'


class Raised(Exception):
    """A call of a program has raised."""


def in_words(error: BaseException) -> str:
    """An exception and those that it came from, in one line."""
    words = ' '.join(f'{type(error).__name__}: {error}'.split())
    before = error.__cause__ or error.__context__
    return words if before is None else f'{words} (from {in_words(before)})'


@contextmanager
def told() -> Iterator[list[str]]:
    """What capturekit's logger says meanwhile."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger('capturekit').addHandler(handler)
    try:
        yield texts
    finally:
        logging.getLogger('capturekit').removeHandler(handler)


def wait(cp: Any) -> None:
    """Wait for the device, and raise what has gone wrong on it."""
    if cp is not np:
        cp.cuda.runtime.deviceSynchronize()


def sow(cp: Any, seed: int) -> None:
    """Seed all generators that a package may draw from."""
    cp.random.seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class Making:
    """A program, made for one way of calling it."""

    def __init__(self, program: Program, cp: Any, wrap: Callable[[Any], Any]) -> None:
        self._cp = cp
        sow(cp, 1000)
        self._case = program.make(cp, Draw(cp, 1000))
        self.fn = wrap(self._case.call)
        self._results: list[Any] = []

    def called(self, number: int) -> list[Leaf]:
        """What one call gives and leaves. Raises Raised."""
        arguments = self._case.arguments(Draw(self._cp, number))
        sow(self._cp, number)
        try:
            result = self.fn(*arguments)
            wait(self._cp)
        except Exception as error:
            raise Raised(f'call {number} raises {in_words(error)}') from error
        self._results.append(result)
        left = {'result': self._case.tell(result), 'arguments': arguments, 'state': self._case.state()}
        return list(leaves(left, self._cp))

    def kept(self) -> list[Leaf]:
        """What the results of all calls hold by now."""
        return list(leaves([self._case.tell(result) for result in self._results], self._cp))

    def story(self) -> list[list[Leaf]]:
        """What so many calls give, and at the end what their results hold then. Raises Raised."""
        told = [self.called(number) for number in range(1, CALLS + 1)]
        return [*told, self.kept()]

    def microseconds(self) -> list[float]:
        """The times of calls with fresh arguments, after some that do not count."""
        taken = []
        for number in range(CALLS + 1, CALLS + 1 + MORE + TIMED):
            arguments = self._case.arguments(Draw(self._cp, number))
            sow(self._cp, number)
            wait(self._cp)
            begun = time.perf_counter()
            self.fn(*arguments)
            wait(self._cp)
            taken.append((time.perf_counter() - begun) * 1e6)
        return taken[MORE:]


def judge(program: Program, cp: Any, timed: bool = True) -> Row:
    """What became of a program: eagerly and graphed, or plainly twice if ``cp`` is NumPy."""
    row: Row = {'package': program.package, 'program': program.name, 'about': program.about}
    try:
        eager = Making(program, cp, itself)
        want = eager.story()
    except Exception as error:
        return {**row, 'outcome': FAILS, 'text': str(error) if isinstance(error, Raised) else in_words(error)}
    with told() as said:
        other = Making(program, cp, itself if cp is np else ck.graphed)
        with noted() as calls:
            found = _compared(other, want)
        if cp is not np:
            row |= how(other.fn, said) | {'calls': calls}
        row |= {'outcome': found.outcome, 'text': found.text}
        if found.outcome != WRONG and timed:
            row |= _times(program, cp, eager, other)
    if cp is not np:
        other.fn.clear()
    if found.outcome != EQUAL:
        row |= _steadiness(_compared(Making(program, cp, itself), want), found)
    return row


def _compared(making: Making, want: list[list[Leaf]]) -> Found:
    """How the calls of a making differ from what is wanted."""
    try:
        got = making.story()
    except Raised as error:
        return Found(WRONG, str(error))
    worst = Found()
    for number, (mine, theirs) in enumerate(zip(want, got), 1):
        found = compare(mine, theirs)
        if found.outcome == WRONG or worst.outcome == EQUAL:
            where = f'call {number}' if number <= CALLS else 'later the results'
            worst = Found(found.outcome, found.text and f'{where}{found.text}')
        if worst.outcome == WRONG:
            break
    return worst


def _times(program: Program, cp: Any, eager: Making, other: Making) -> Row:
    """How long calls take, in the median: eager ones before and after, as a program may grow slower with what it keeps.
    What they raise is told: the calls before were right."""
    try:
        before, found = eager.microseconds(), other.microseconds()
        again = Making(program, cp, itself)
        again.story()
        of_eager = statistics.median([*before, *again.microseconds()])
        return {'eager_us': round(of_eager, 1), 'other_us': round(statistics.median(found), 1)}
    except Exception as error:
        return {'untimed': in_words(error)}


def _steadiness(again: Found, found: Found) -> Row:
    """What it means for a difference how two eager runs differ."""
    if again.outcome == WRONG:
        return {'outcome': UNSTEADY, 'text': f'{found.text}; two eager runs differ, too: {again.text}'}
    if again.outcome == NEAR:
        return {'text': f'{found.text}; two eager runs differ, too'}
    return {}


def how(graphed: Any, said: list[str]) -> Row:
    """How a graphed function runs by now: by the variant that was used last."""
    variants = graphed.variants
    last = variants[0] if variants else None
    reason = last.reason if last is not None else ''
    if not reason and (last is None or last.state not in ('recorded', 'pieces')):
        reason = said[-1] if said else 'each call is of another kind, or goes another way'
    return {
        'state': 'eager' if last is None else last.state,
        'reason': ' '.join(reason.split()),
        'launches': sum(variant.launches for variant in variants),
    }


@dataclass(frozen=True)
class Judging:
    """How the programs of a package are judged.

    ``library``: 'cupy', 'numpy', or 'simulated' for the simulated CuPy. ``always``: launch what can be launched,
    however long that takes.
    """

    package: str
    library: str
    timed: bool = True
    always: bool = False

    def __call__(self, names: list[str]) -> Row:
        """What becomes of programs, and on what they ran. Raises what has gone wrong on the device meanwhile."""
        warnings.simplefilter('ignore')
        if self.always:
            decide_without_times()
        if self.library == 'simulated':
            simulated.install()
        cp = importlib.import_module('numpy' if self.library == 'numpy' else 'cupy')
        programs = {one.name: one for one in load()[self.package]}
        rows = []
        for name in names:
            rows.append({'machine': machine(cp, self.package), **judge(programs[name], cp, self.timed)})
            wait(cp)
        return {'rows': rows}

    def rows(self, names: list[str], timeout: float = 120) -> Iterator[Row]:
        """What becomes of each of these programs: in one process, and if that dies, each in one of its own.

        This process may have used CUDA, which nobody can use after a fork.
        """
        ((_, found),) = apart.rows([names], self, timeout=timeout * len(names), how='forkserver')
        if 'rows' in found:
            yield from found['rows']
        elif len(names) == 1:
            yield {'package': self.package, 'program': names[0], **found}
        else:
            for name in names:
                yield from self.rows([name], timeout)
