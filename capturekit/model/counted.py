"""Counts in words, for messages, tables and pictures: ``1 node``, ``1,204 nodes``."""

from __future__ import annotations

#: Nouns that take more than an s.
_PLURALS = {'batch': 'batches', 'branch': 'branches', 'copy': 'copies', 'launch': 'launches', 'pass': 'passes'}


def counted(number: int, noun: str, rest: str = '') -> str:
    """A number and a noun, in the singular or the plural: ``counted(2, 'edge')`` is ``2 edges``.

    Of several words the first is the noun and ``rest`` what follows: ``counted(1, 'pair', ' on the same memory')``.
    """
    return f'{number:,} {plural(noun, number)}{rest}'


def plural(noun: str, number: int = 2) -> str:
    """A noun as it stands behind a number."""
    if number == 1:
        return noun
    return _PLURALS.get(noun, f'{noun}s')
