"""What a run shows of host reads with whose values launches reckon."""

from __future__ import annotations

from types import CodeType, ModuleType
from typing import Any, NamedTuple


class FunctionPlace(NamedTuple):
    """Where code finds a function of numbers: in the globals of a module, by its name or by that of ``math``.

    ``module``: what is found there, if it is ``math``. ``of_all``: whether no code of the module sees what is there.
    Else only code that ran is known not to see it.
    """

    namespace: dict[str, Any]
    name: str
    function: Any
    of_all: bool = True
    module: ModuleType | None = None

    @property
    def found(self) -> Any:
        """What is there."""
        return self.function if self.module is None else self.module


class ReckonedOperators(NamedTuple):
    """The instructions that take numbers, by the id of their code and the offset. ``codes`` keeps that alive.

    The value is whether a number that comes out is followed, too. ``places``: where what they call is found, by the id
    of the namespace and the name. ``readers``: the calls of functions that read an array, as ``float(a)`` does.
    ``stores``: the names of attributes in which they are stored.
    """

    at: dict[tuple[int, int], bool]
    codes: list[CodeType]
    places: dict[tuple[int, str], FunctionPlace]
    readers: set[tuple[int, int]]
    stores: set[str]


class Reckoned(NamedTuple):
    """The reads that launches reckon with, by number, and the operators that do. ``parameters``: those of the function
    with whose numbers launches may reckon, too."""

    reads: frozenset[int]
    operators: ReckonedOperators
    parameters: frozenset[str] = frozenset()


class GivenNumbers(NamedTuple):
    """The parameters of a function that get numbers which change from call to call."""

    code: CodeType
    names: tuple[str, ...]


def no_operators() -> ReckonedOperators:
    return ReckonedOperators({}, [], {}, set(), set())


NOTHING = Reckoned(frozenset(), no_operators())
