"""Tables in text files: headings in brackets, and rows whose cells stand between bars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rows(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Each row's line, heading and cells."""
    heading = ''
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        if line.startswith('['):
            heading = line[1:-1]
        elif line and not line.startswith('#'):
            yield number, heading, line.split(' | ')


def evaluated(text: str, path: Path, number: int, names: dict[str, Any]) -> Any:
    """What a cell says in Python; errors in it are told to be in its line of the file."""
    return eval(compile('\n' * (number - 1) + text, path, 'eval'), names)


def calls(path: Path, heading: str, names: dict[str, Any]) -> dict[str, Any]:
    """The functions of ``b`` under a heading, by their labels."""
    found = [(number, *cells) for number, under, cells in rows(path) if under == heading]
    return {label: evaluated(f'lambda b: {how}', path, number, names) for number, label, how in found}
