"""The source of a program of blocks, twice: one that captures and launches, and one that does the same plainly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PRELUDE = Path(__file__).with_name('block_prelude.txt').read_text()


@dataclass
class Line:
    """One statement, in both sources; None where a source has not got it. ``marks``: what may be refused there."""

    captured: str | None
    plain: str | None
    body: list[Line] | None = None
    marks: frozenset[int] = frozenset()


@dataclass
class Block:
    """What is known of one block. ``ends``: 'launched', or the name of the exception that leaves it."""

    ends: str = 'launched'
    wrong: str = ''
    moves: bool = False
    strict: bool = True
    interrupted: list[int] = field(default_factory=list)


@dataclass
class Program:
    """Two sources, whose functions ``block0``, ``block1`` ... belong together, and the lines of each mark."""

    captured: str
    plain: str
    blocks: list[Block]
    marks: dict[int, frozenset[int]]
    changes: list[int]
    late: bool

    @property
    def sound(self) -> bool:
        return not any(block.wrong for block in self.blocks)

    def __str__(self) -> str:
        return f'{self.captured.removeprefix(PRELUDE)}# {self.blocks}\n# changes: {self.changes}, late: {self.late}'


def rendered(lines: list[Line], captured: bool) -> tuple[str, dict[int, frozenset[int]]]:
    """The text of a source, which begins with :data:`PRELUDE`, and for each mark the numbers of its lines."""
    text = PRELUDE.splitlines()
    marks: dict[int, set[int]] = {}

    def add(lines: list[Line], depth: int) -> None:
        for line in lines:
            own = line.captured if captured else line.plain
            if own is not None:
                text.extend('    ' * depth + part for part in own.splitlines())
                for mark in line.marks:
                    marks.setdefault(mark, set()).update(range(len(text) - own.count('\n'), len(text) + 1))
            if line.body is not None:
                before = len(text)
                add(line.body, depth + (own is not None))
                if own is not None and len(text) == before:
                    text.append('    ' * (depth + 1) + 'pass')

    add(lines, 0)
    return '\n'.join(text) + '\n', {mark: frozenset(numbers) for mark, numbers in marks.items()}
