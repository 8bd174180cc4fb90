"""Print the two commands that README.md gives for a fresh machine, word for word, a line each."""

from __future__ import annotations

import re
from pathlib import Path

STARTS = ('pip install . &&', "pip install '.[test]' &&")


def commands(readme: str) -> list[str]:
    """The first line of a fenced block that begins with each of :data:`STARTS`.

    Raises:
        LookupError: there is none.
    """
    lines = [
        line
        for block in re.findall(r'^```\w*\n(.*?)^```', readme, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    found = []
    for start in STARTS:
        line = next((line for line in lines if line.startswith(start)), None)
        if line is None:
            raise LookupError(f'README.md has no block with a line that begins with {start}')
        found.append(line)
    return found


if __name__ == '__main__':
    print(*commands((Path(__file__).parents[1] / 'README.md').read_text()), sep='\n')
