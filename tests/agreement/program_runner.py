"""Runs a program twice from equal starts, plainly and graphed, and finds the first difference that a caller can see."""

from __future__ import annotations

import ast
import contextvars
import functools
import gc
import logging
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.agreement.program_sight import Sight
from tests.agreement.program_world import FILE, OTHER, world
from tests.agreement.python_values import PRELUDE
from tests.agreement.trying import Outcome
from tests.late import Late, Spins

_NAMED = [node for node in ast.walk(ast.parse(PRELUDE)) if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
#: The names that every program has: they are looked at after the last step only.
_USUAL = frozenset(node.name for node in _NAMED)
#: Numbers that functions read or are given: ordinary ones in the beginning and at the end.
NUMBERS = [
    37.5, 61.3, 3.0625, 1.0,
    -0.0, math.nan, math.inf, 1e308, -3.0, 1e-310, -1e5, 0.0,
    2.5, 9.0, 21.5, 70.1,
]  # fmt: skip


@dataclass
class Program:
    """A module's source, and the steps: statements that run in it one after the other.

    ``late``: whether the device's work waits. ``options``: what ``over``, the decorator, is given.
    """

    source: str
    steps: list[str]
    late: bool = False
    options: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        own = self.source.removeprefix(PRELUDE)
        return f'{own}\n# late: {self.late}, options: {self.options}\n' + '\n'.join(
            f'# step {number}\n{step}' for number, step in enumerate(self.steps)
        )


@dataclass
class Run:
    """One run: for each step what it raised, or ''; which calls a graph answered; and all that can be seen, by step.

    Nobody looks, and so waits for the device, between calls that follow each other.
    """

    outcomes: list[str] = field(default_factory=list)
    sights: list[list[str]] = field(default_factory=list)
    calls: int = 0
    launched: int = 0
    reasons: list[str] = field(default_factory=list)
    broken: str = ''


class Standin:
    """A simulated CuPy that programs run on one after the other, or with ``there`` the CuPy that is there.

    It is made anew now and then. What is there before the programs is frozen meanwhile, if nothing is frozen yet, so
    that the garbage collector does not go through it at each.
    """

    #: How many devices it has, and after how many runs it is made anew.
    DEVICES, LASTS = 2, 120

    def __init__(self, there: bool = False) -> None:
        self._left = 0
        self._device: Any = None
        self._is_there = there
        self._froze = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._away()

    def _there(self, late: bool, seed: int = 0) -> None:
        """See to it that it is there, with the device as it always is."""
        if not self._left:
            self._away()
            self._device = SimulatedDevice(devices=self.DEVICES)
            install(self._device)
            gc.collect()
            if not gc.get_freeze_count():  # else to unfreeze would bring back all that others have frozen
                gc.freeze()
                self._froze = True
            self._left = self.LASTS
        self._left -= 1
        self._device.be_late(False)
        self._device.random.seed(seed)
        self._device.be_late(late)

    def _away(self) -> None:
        if self._device is not None:
            uninstall()
            if self._froze:
                gc.unfreeze()
                self._froze = False
        self._device, self._left = None, 0


class Machine(Standin):
    """Runs programs: ``with Machine() as machine: machine.compared(...)``. On the CuPy that is there, spinning kernels
    stand before the device's work where that waits.
    """

    _spins: Any = None

    def compared(self, program: Program) -> Outcome:
        """Run a program both ways, and say the first difference. Where there is one, it is run once more on a new
        device, and that counts. ``raced``: plain runs were not alike, or broke off.

        Plain runs on streams that are late in other orders, and on streams that are not, have to agree, or the program
        has a race of its own; where it differs, many more are tried.
        """
        found = self._compared(program, (3, 5))
        if found.finding:
            self._away()
            found = self._compared(program, range(3, 33))
        return found

    def _compared(self, program: Program, orders: Iterable[int]) -> Outcome:
        plain = self.run(program, False)
        in_time = replace(program, late=False)
        others = [(in_time, 0), *((program, seed) for seed in orders)] if program.late else []
        if plain.broken or any(different(plain, self.run(one, False, seed), program) for one, seed in others):
            return Outcome(counts=Counter(calls=0, launched=0, raced=1))
        graphed = self.run(program, True)
        counts = Counter(calls=graphed.calls, launched=graphed.launched, raced=0)
        return Outcome(different(plain, graphed, program), counts, graphed.reasons)

    def told(self, program: Program) -> str:
        """The program, and what both runs gave at each step."""
        runs = self.run(program, False), self.run(program, True)
        lines = [str(program)]
        for number in range(len(program.steps)):
            lines += [f'step {number}: {" | ".join(one.outcomes[number] or "went on" for one in runs)}']
        lines += [f'{runs[1].launched} of {runs[1].calls} calls launched', *runs[1].reasons, runs[0].broken]
        return '\n'.join([*lines, f'difference: {different(*runs, program) or "none"}'])

    def run(self, program: Program, graphed: bool, seed: int = 0) -> Run:
        """Run a program, with the world as it always is; another seed is another device."""
        found = Run()
        with self._found_there(program) if self._is_there else self._simulated(program, seed):
            self._run(program, graphed, found)
        return found

    @contextmanager
    def _simulated(self, program: Program, seed: int) -> Iterator[None]:
        self._there(program.late)
        if seed:
            install(SimulatedDevice(seed, devices=2), late=program.late)
        try:
            yield
        finally:
            if seed:
                uninstall()

    @contextmanager
    def _found_there(self, program: Program) -> Iterator[None]:
        import cupy

        self._spins = self._spins or Spins(cupy, 7)
        late = Late(self._spins)
        if program.late:
            late.install(cupy)
        try:
            yield
        finally:
            late.uninstall()

    @staticmethod
    def _run(program: Program, graphed: bool, found: Run) -> None:
        with world() as (home, cupy):
            made: list[Any] = []
            home.over = _decorator(program, made, graphed)
            home.awaited, home.settled, home.numbered = _awaited, settled, functools.partial(_numbered, cupy)
            contextvars.copy_context().run(_steps, program, home, made, found, cupy)
            for one in made:
                one.clear()


def different(plain: Run, graphed: Run, program: Program) -> str:
    """Say the first difference; '' if there is none."""
    for number, step in enumerate(program.steps):
        if plain.outcomes[number] != graphed.outcomes[number]:
            one, other = (run.outcomes[number] or 'no exception' for run in (plain, graphed))
            return f'step {number}: {one}; graphed: {other}\n{step}'
        for one, other in zip(plain.sights[number], graphed.sights[number]):
            if one != other:
                return f'after step {number}: {one}; graphed: {other}\n{step}'
        if len(plain.sights[number]) != len(graphed.sights[number]):
            return f'after step {number}: there is more on one side\n{step}'
    return ''


def _decorator(program: Program, made: list[Any], graphed: bool) -> Callable[..., Any]:
    def over(fn: Any = None, **more: Any) -> Any:
        if fn is None:
            return functools.partial(over, **more)
        if graphed:
            options: Any = {**program.options, **more}
            made.append(ck.graphed(fn, **options))
        return made[-1] if graphed else fn

    return over


def _steps(program: Program, home: Any, made: list[Any], found: Run, cupy: Any) -> None:
    with _said(found.reasons):
        try:
            exec(compile(program.source, FILE, 'exec'), vars(home))
        except Exception as error:
            found.broken = f'its module raises {type(error).__name__}: {error}'
            found.outcomes, found.sights = [''] * len(program.steps), [[]] * len(program.steps)
            return
        for number, step in enumerate(program.steps):
            before = _launches(made)
            try:
                exec(compile(step, 'step_of_program.py', 'exec'), vars(home))
                found.outcomes.append('')
            except Exception as error:
                text = re.sub(r'0x[0-9a-fA-F]+', '0x', str(error))
                found.outcomes.append(f'{type(error).__name__}: {text}')
            if _calls(step):
                found.calls += 1
                found.launched += _launches(made) > before
            found.sights.append([])
            left_out = _USUAL if number + 1 < len(program.steps) else frozenset()
            if not left_out or not _calls(program.steps[number + 1]) or not _calls(step):
                _wait(cupy)
                found.sights[-1] = Sight(cupy, made, left_out).of_modules(home, sys.modules[OTHER])


def _calls(step: str) -> bool:
    return 'r = ' in step


def _wait(cupy: Any) -> None:
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(device):
            cupy.cuda.runtime.deviceSynchronize()


def _launches(made: list[Any]) -> int:
    return sum(variant.launches for one in made for variant in one.variants)


def _awaited(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError('it waits for something')


def settled(clears: bool, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function whose checks come later, and where they do not hold, call it without graphs, as is documented."""
    result, last = fn(*args, **kwargs), getattr(fn, 'last', None)
    if clears and hasattr(fn, 'clear'):
        fn.clear()
    return result if last is None or last.holds() else fn.__wrapped__(*args, **kwargs)


def _numbered(cupy: Any, fn: Any, part: int, *given: Any) -> list[Any]:
    """Call a function with one of eight parts of :data:`NUMBERS`: with arrays of these sums, or, if more is given, with
    that and the number itself. What it returns or raises, and the array.
    """
    found: list[Any] = []
    for place in (2 * part, 2 * part + 1):
        total = NUMBERS[place]
        args = (*given, total) if given else (cupy.asarray([total, 0, 0] if place % 2 else [0, total, -0.0], float),)
        try:
            found.append((fn(*args), args))
        except Exception as error:
            found.append((type(error).__name__, str(error), args))
    return found


@contextmanager
def _said(reasons: list[str]) -> Iterator[None]:
    """Collect what the logger says instead of showing it."""
    logger = logging.getLogger('capturekit')
    handler = logging.Handler()
    handler.emit = lambda record: reasons.append(_general(record.getMessage()))  # type: ignore[method-assign]
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before[0]
        logger.setLevel(before[1])


def _general(text: str) -> str:
    return re.sub(r'\d+', '#', text.partition('eagerly: ')[2] or text)[:110]
