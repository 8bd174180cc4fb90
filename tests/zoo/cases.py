"""The cases of the zoo: broken programs, each with its repair, out of ``programs.diff``.

A line that begins with ``===`` is a family, with what its programs do. One that begins with ``==`` is a case: its name,
the thread where it was met, what is said, words of the remedy, what a launch makes of ``x``, and what else a
:class:`Case` has, parted by `` | ``. Its program follows: lines that begin with ``-`` only the broken one has, with
``+`` only the repaired one.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo import helpers

FILE = Path(__file__).with_name('programs.diff')
#: Behind the offending line of a broken program; behind the lines of a repaired one that make the difference.
HERE, INSTEAD = '<-- here', '<-- instead'

Program = Callable[[Any, Any], Any]
Numbers = Callable[[Any], Any]


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
    a GPU. ``first``: the number of its first line in the file.
    """

    name: str
    family: str
    lines: list[str]
    first: int
    thread: str
    says: type[BaseException] | str
    words: str
    want: Numbers
    rest: Numbers | None = None
    goes_on: bool = True
    needs: str = ''
    module: str = ''

    def __post_init__(self) -> None:
        self.broken, self.repair = (self.compiled(self.tree(mark)) for mark in '-+')

    def source(self, mark: str) -> str:
        """The program with the lines of one mark, on the lines that it has in the file."""
        kept = [' ' + line[1:] if line[:1] in (' ', mark) else '' for line in self.lines]
        return '\n' * (self.first - 1) + '\n'.join([f'def {self.name}(cp, x):', *kept, ''])

    def tree(self, mark: str) -> ast.Module:
        return ast.parse(self.source(mark))

    def compiled(self, tree: ast.Module, **names: Any) -> Program:
        """The function of a tree, which knows these names besides those of the helpers."""
        space = {**vars(helpers), **names}
        exec(compile(ast.fix_missing_locations(tree), str(FILE), 'exec'), space)
        function: Program = space[self.name]
        return function

    def marked(self, mark: str, words: str) -> list[int]:
        """The numbers of the lines of one program that carry a mark."""
        found = enumerate(self.source(mark).split('\n'), 1)
        return [number for number, line in found if f'  # {words}' in line]

    @property
    def does(self) -> str:
        """What people write, in words."""
        return self.broken.__doc__ or ''

    @property
    def file(self) -> str:
        return str(FILE)

    @property
    def line(self) -> int:
        """The number of the offending line."""
        (number,) = self.marked('-', HERE)
        return number

    def __str__(self) -> str:
        return f'{self.family}-{self.name}'


@functools.cache
def all_cases() -> list[Case]:
    """Every case, family by family."""
    found, family, lines = [], '', FILE.read_text().split('\n')
    heads = [number for number, line in enumerate(lines) if line.startswith('==')]
    for head, end in zip(heads, [*heads[1:], len(lines)]):
        if lines[head].startswith('==='):
            family = re.match(r'=== (\w+):', lines[head])[1]  # type: ignore[index]
            continue
        name, thread, says, words, want, *more = lines[head][3:].split(' | ')
        given = [eval(text, vars(helpers)) for text in (says, want, f'dict({"".join(more)})')]
        found.append(Case(name, family, lines[head + 1 : end], head + 1, thread, given[0], words, given[1], **given[2]))
    return found


def named(name: str) -> Case:
    """The case of a name."""
    (found,) = (case for case in all_cases() if case.name == name)
    return found
