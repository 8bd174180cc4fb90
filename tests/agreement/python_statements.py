"""What a function does with what it reads, and deeds that need things of their own: streams, generators, threads.

They stand in ``statements.txt``. ``- `` begins a statement, whose other lines are indented as much; ``y`` is the array
at work, ``x`` the argument, ``{v}`` what is read. ``==`` begins a deed, with its weight and its marks. Its lines of the
function begin with ``- ``, those before the function with ``< ``, those around a call with ``( `` and ``) ``; ``? ``
begins a change between calls, ``?+`` another line of it, and ``# `` a word about the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Deed:
    """A deed with all it needs: lines before the function, lines in it, changes between calls, lines around a call.

    ``late``: whether it works on streams, so that the device is to be late. ``after``: what is done in the same step
    behind a call whose result is ``r``. ``odd``: functions with it run eagerly.
    """

    before: str
    body: str
    changes: tuple[str, ...] = ()
    late: bool = False
    after: str = ''
    first: str = ''
    weight: int = 2
    odd: bool = False


def _statements(text: str) -> tuple[str, ...]:
    return tuple(one.replace('\n  ', '\n') for one in text.strip('\n').removeprefix('- ').split('\n- '))


def _deed(text: str) -> Deed:
    head, *lines = text.strip('\n').split('\n')
    weight, *marks = head.split()
    parts = {mark: '\n'.join(line[2:] for line in lines if line.startswith(mark)) for mark in ('< ', '- ', ') ', '( ')}
    changes = '\n'.join(line for line in lines if line.startswith('?')).removeprefix('? ').split('\n? ')
    kept = tuple(change.replace('\n?+', '\n') for change in changes if change)
    before, body, after, first = parts.values()
    return Deed(before, body, kept, 'late' in marks, after, first, int(weight), 'odd' in marks)


_SECTIONS = Path(__file__).with_name('statements.txt').read_text().split('=== ')[1:]
_NUMBERS, _ARRAYS, _PLAIN, _DEEDS = (section.partition('\n')[2] for section in _SECTIONS)
USES_OF_NUMBERS, USES_OF_ARRAYS = _statements(_NUMBERS), _statements(_ARRAYS)
#: Statements that read nothing besides.
PLAIN = _statements(_PLAIN)
DEEDS = tuple(_deed(text) for text in ('\n' + _DEEDS).split('\n== ')[1:])
WEIGHTED_DEEDS = tuple(deed for deed in DEEDS for _ in range(deed.weight))
USUAL_DEEDS = tuple(deed for deed in WEIGHTED_DEEDS if not deed.odd)
