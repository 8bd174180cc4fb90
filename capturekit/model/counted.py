"""Counts in words, for messages, tables and pictures: ``1 node``, ``1,204 nodes``."""

from __future__ import annotations

#: Nouns whose plural does not end in a plain s.
_PLURALS = {'batch': 'batches', 'branch': 'branches', 'copy': 'copies', 'launch': 'launches', 'pass': 'passes'}


def counted(number: int, noun: str, rest: str = '') -> str:
    """A number and a noun, in the singular or the plural: ``counted(2, 'edge')`` is ``2 edges``.

    ``rest`` are the words after the noun: ``counted(1, 'pair', ' on the same memory')``.
    """
    return f'{number:,} {plural(noun, number)}{rest}'


def plural(noun: str, number: int = 2) -> str:
    """A noun in the form that it has after a number."""
    if number == 1:
        return noun
    return _PLURALS.get(noun, f'{noun}s')
