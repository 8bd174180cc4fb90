"""What launches know of numbers on the host: what has to come out of comparisons, and what computes with them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capturekit.model import errors
from capturekit.model.source_line import Place

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Comparisons by what the code says, each with the name of CuPy's function.
COMPARISONS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    '<': (operator.lt, 'less'), '<=': (operator.le, 'less_equal'), '>': (operator.gt, 'greater'),
    '>=': (operator.ge, 'greater_equal'), '==': (operator.eq, 'equal'), '!=': (operator.ne, 'not_equal'),
}  # fmt: skip
_ASKED: dict[str, Callable[[float], bool]] = {'isnan': math.isnan, 'isinf': math.isinf, 'isfinite': math.isfinite}
#: Larger integers are not the same number as a float.
_EXACT = 1 << 53


class ArgumentNumber:
    """A number among the arguments, with which each launch reckons: ``value`` is that of the call under way.

    ``then`` is that of the call that is recorded, for which ``number`` stands meanwhile.
    """

    def __init__(self, then: Any) -> None:
        self.then = self.value = then
        self.number: Any = None

    def read(self) -> Any:
        """The number of the call under way."""
        return self.value


class OtherOutcome(errors.AssumptionError):
    """A number with which a launch reckons compares otherwise than while recording: the call goes another way."""


class ComparedOperand(NamedTuple):
    """What a number is compared with: a parameter of the function that reads it, or a number."""

    parameter: str
    number: Any = None

    def value(self, parameters: Mapping[str, Any]) -> Any:
        """The number, given those that the parameters have; None if it is none that a float can be."""
        found = parameters.get(self.parameter) if self.parameter else self.number
        if type(found) is int and -_EXACT < found < _EXACT:
            return found
        return found if type(found) is float else None


class ReadOutcome(NamedTuple):
    """A comparison with ``operand``, or a question (``isnan``). ``swapped``: the operand is on the left."""

    what: str
    operand: ComparedOperand | None = None
    swapped: bool = False

    def of(self, number: float, parameters: Mapping[str, Any]) -> bool:
        """What comes out for a number."""
        if self.operand is None:
            return _ASKED[self.what](number)
        other = self.operand.value(parameters)
        plain = COMPARISONS[self.what][0]
        return bool(plain(other, number) if self.swapped else plain(number, other))

    def on_device(self, cupy: Any, number: Any, parameters: Mapping[str, Any]) -> Any:
        """The same on the device, for an array without axes of float64."""
        if self.operand is None:
            return getattr(cupy, self.what)(number)
        other = float(self.operand.value(parameters))
        function = getattr(cupy, COMPARISONS[self.what][1])
        return function(other, number) if self.swapped else function(number, other)


#: The host reads of a run whose values are only kept, by number, each with what has to come out as it did.
Kept = Mapping[int, tuple[ReadOutcome, ...]]


def are_known(outcomes: Iterable[ReadOutcome], parameters: Mapping[str, Any]) -> bool:
    """Whether all numbers that are compared with are known."""
    return all(one.operand is None or one.operand.value(parameters) is not None for one in outcomes)


def all_of(outcomes: Iterable[ReadOutcome], number: float, parameters: Mapping[str, Any]) -> NDArray[Any]:
    """What comes out of all, in order."""
    return np.array([one.of(number, parameters) for one in outcomes], bool)


def all_on_device(cupy: Any, outcomes: Iterable[ReadOutcome], array: Any, parameters: Mapping[str, Any]) -> Any:
    """The same on the device, for an array with one element."""
    number = array.reshape(()).astype('f8')
    return cupy.stack([one.on_device(cupy, number, parameters) for one in outcomes])


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
    ``arrays``: the calls that make NumPy arrays of lists of them.
    ``stores``: the names of attributes in which they are stored. ``refused``: where more is done with a number.
    """

    at: dict[tuple[int, int], bool]
    codes: list[CodeType]
    places: dict[tuple[int, str], FunctionPlace]
    readers: set[tuple[int, int]]
    arrays: set[tuple[int, int]]
    stores: set[str]
    refused: list[Place]


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
    return ReckonedOperators({}, [], {}, set(), set(), set(), [])


NOTHING = Reckoned(frozenset(), no_operators())
