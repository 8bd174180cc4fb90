"""What a run shows of host reads with whose values launches reckon."""

from __future__ import annotations

from types import CodeType
from typing import NamedTuple


class Operators(NamedTuple):
    """The instructions that take numbers, by the id of their code and the offset. ``codes`` keeps that alive.

    The value is whether a number that comes out is followed, too. ``functions``: the names of the functions of ``math``
    that are called there.
    """

    at: dict[tuple[int, int], bool]
    codes: list[CodeType]
    functions: set[str]


class Reckoned(NamedTuple):
    """The reads that launches reckon with, by number, and the operators that do."""

    reads: frozenset[int]
    operators: Operators


NOTHING = Reckoned(frozenset(), Operators({}, [], set()))
