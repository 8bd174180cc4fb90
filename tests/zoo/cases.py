"""What a case of the zoo is, and the list of all.

A broken program and its repair are one function where they share most lines: ``# -`` stands behind lines that only the
broken one has, ``# +`` behind those that only the repaired one has. Else the repair stands beside it, as ``_``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Files of programs, in the order of the table.
FAMILIES = tuple('syncs reads joins legacy escapes calls begins bodies threads memory libraries'.split())
#: Behind the offending line of a broken program; behind the lines of a repaired one that make the difference.
HERE, INSTEAD = '<-- here', '<-- instead'
#: Behind a line that only the broken program has, or only the repaired one.
BROKEN, REPAIRED = '-', '+'

Program = Callable[[Any, Any], Any]
Numbers = Callable[[Any], Any]

CASES: list[Case] = []


@dataclass(eq=False)
class Case:
    """A broken program and its repair.

    A program is given CuPy and ``x``, eight float64 on the device; it returns its capture (or anything with a
    ``graph``) and an array that a launch makes, which is to be ``want(x)``.

    ``says`` is the exception that the broken one ends with, or 'note' or 'constant' for such a step in its recording,
    'scalar' for a scalar in ``cap.graph.constants()``, '' where there is nothing to be said, but wrong numbers.
    ``words`` stand in the remedy. ``rest``: what the broken program makes when its refused line is left out (``want``
    if None); ``goes_on`` is False where the refusal comes at the end of the capture, so that there is nothing left to
    go on. ``needs``: why the case can't be shown on the simulated device; ``module``: what else has to be installed on
    a GPU; ``since``: the Python that it takes.
    """

    broken: Program
    thread: str
    says: type[BaseException] | str
    words: str
    want: Numbers
    rest: Numbers | None = None
    goes_on: bool = True
    needs: str = ''
    module: str = ''
    since: tuple[int, int] = (3, 11)
    repair: Program | None = None

    @property
    def name(self) -> str:
        return self.broken.__name__

    @property
    def family(self) -> str:
        return self.broken.__module__.rpartition('.')[2]

    @property
    def does(self) -> str:
        """What people write, in words."""
        return inspect.getdoc(self.broken) or ''

    @property
    def file(self) -> str:
        return self.broken.__code__.co_filename

    @property
    def line(self) -> int:
        """The number of the offending line."""
        ((number, _code, _words),) = marked(self.broken, HERE)
        return number

    def repaired(self, program: Program) -> Program:
        """Decorates the program beside the broken one, with the remedy of its message applied."""
        self.repair = program
        return program

    def __str__(self) -> str:
        return f'{self.family}-{self.name}'


def case(
    thread: str, says: type[BaseException] | str, words: str, want: Numbers, **more: Any
) -> Callable[[Program], Case]:
    """Decorates a broken program: it becomes a :class:`Case` of the zoo."""

    def enter(program: Program) -> Case:
        made = Case(program, thread, says, words, want, **more)
        if '  # +' in inspect.getsource(program):
            made.broken, made.repair = (compiled(tree_without(program, lines), program) for lines in (REPAIRED, BROKEN))
        CASES.append(made)
        return made

    return enter


def tree_without(program: Program, left_out: str) -> ast.Module:
    """A program as a tree, on the lines that it has in its file, without its decorators and the lines of one mark."""
    lines, first = inspect.getsourcelines(program)
    kept = ['\n' if re.search(rf'  # \{left_out}( |$)', line) else line for line in lines]
    tree = ast.increment_lineno(ast.parse(''.join(kept)), first - 1)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.decorator_list = []
    return tree


def compiled(tree: ast.Module, program: Program, **names: Any) -> Program:
    """The function of a tree, which stands where the program does, and knows these names besides."""
    space = {**program.__globals__, **names} if names else program.__globals__
    made: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), program.__code__.co_filename, 'exec'), space, made)
    function: Program = made[program.__name__]
    return function


def marked(program: Program, mark: str) -> list[tuple[int, str, str]]:
    """The lines of a program that carry a mark: their numbers, their code without it, and what follows it."""
    lines, first = inspect.getsourcelines(program)
    found = [(number, re.match(rf'(.*)  # (?:[-+] )?{mark}(.*)', line)) for number, line in enumerate(lines, first)]
    return [(number, line[1].strip(), line[2].strip(': ')) for number, line in found if line]


def all_cases() -> list[Case]:
    """Every case, family by family."""
    for family in FAMILIES:
        importlib.import_module(f'tests.zoo.{family}')
    return sorted(CASES, key=lambda case: FAMILIES.index(case.family))


def family_does(family: str) -> str:
    """What the programs of a family do, in words."""
    words = inspect.getdoc(importlib.import_module(f'tests.zoo.{family}')) or ''
    return words.partition('\n\n')[0].replace('\n', ' ').rstrip('.')


def named(name: str) -> Case:
    """The case of a name."""
    (found,) = (case for case in all_cases() if case.name == name)
    return found
