"""What a function does with what it reads, and deeds that need things of their own: streams, generators, threads.

They stand in ``statements.txt``. ``- `` begins a statement, whose other lines are indented as much; ``y`` is the array
at work, ``x`` the argument, ``{v}`` what is read. ``==`` begins a deed, with its weight and its marks. Its lines of the
function begin with ``- ``, those before the function with ``< ``, those around a call with ``( `` and ``) ``; ``? ``
begins a change between calls, ``?+`` another line of it, and ``# `` a word about the next one.

``surroundings.txt`` has deeds with what Python keeps around a function: a program may have one besides its deed. It is
drawn last, so that the rest of a program is as it would be without. Behind ``===`` stand the lines before the function
and the changes that all deeds of a group have.
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


def _deed(text: str, group: tuple[str, tuple[str, ...]] = ('', ())) -> Deed:
    head, _, lines = text.partition('\n')
    weight, *marks = head.split()
    before, changes = _around(lines)
    body, after, first = (_lines(lines, mark) for mark in ('- ', ') ', '( '))
    before = '\n'.join(one for one in (group[0], before) if one)
    return Deed(before, body, (*group[1], *changes), 'late' in marks, after, first, int(weight), 'odd' in marks)


def _lines(text: str, mark: str) -> str:
    return '\n'.join(line[2:] for line in text.split('\n') if line.startswith(mark))


def _around(text: str) -> tuple[str, tuple[str, ...]]:
    """The lines before the function, and the changes."""
    changes = '\n'.join(line for line in text.split('\n') if line.startswith('?')).removeprefix('? ').split('\n? ')
    return _lines(text, '< '), tuple(change.replace('\n?+', '\n') for change in changes if change)


def _deeds(text: str) -> list[Deed]:
    """The deeds of a group."""
    around, *deeds = ('\n' + text).split('\n== ')
    return [_deed(deed, _around(around)) for deed in deeds]


def _sections(name: str) -> list[str]:
    """The parts of a text, without their first lines."""
    parts = ('\n' + Path(__file__).with_name(name).read_text()).split('\n=== ')[1:]
    return [part.partition('\n')[2] for part in parts]


_NUMBERS, _ARRAYS, _PLAIN, _DEEDS = _sections('statements.txt')
USES_OF_NUMBERS, USES_OF_ARRAYS = _statements(_NUMBERS), _statements(_ARRAYS)
#: Statements that read nothing besides.
PLAIN = _statements(_PLAIN)
WEIGHTED_DEEDS = tuple(deed for deed in _deeds(_DEEDS) for _ in range(deed.weight))
USUAL_DEEDS = tuple(deed for deed in WEIGHTED_DEEDS if not deed.odd)
SURROUNDINGS = [deed for section in _sections('surroundings.txt') for deed in _deeds(section)]
WEIGHTED_SURROUNDINGS = tuple(one for one in SURROUNDINGS for _ in range(one.weight))
USUAL_SURROUNDINGS = tuple(one for one in WEIGHTED_SURROUNDINGS if not one.odd)
