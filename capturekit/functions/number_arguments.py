"""Number arguments that change at nearly each call: which they are; and what instructions take from Python's stack.

Normally a number is a part of the kind of a call, as an axis or a count has to be. If one argument has made several
new kinds, the function is recorded with a :class:`Number` in its place, provided that its code does nothing with it
but arithmetic (:mod:`capturekit.functions.value_flow`). What Python computes from it is computed again for each call; a
kernel that combines it with an array reads it from the graph's memory.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

#: The exact types of numbers among arguments that are followed. NumPy's are left out: most of them may overflow.
TYPES = (float, int)
#: The types of numbers that are computed of such, and that these meet.
COMPUTED = (*TYPES, np.float64)
#: New values of an argument, each a new kind of call, after which it is taken for a number that changes.
FEW = 3
#: How many numbers of a call may meet arrays in one graph, and the bytes of each.
ROOM, WIDTH = 32, 8
Position = int | str


class Unfit(Exception):
    """The recorded graph can't read a call's numbers: the call runs eagerly."""


class NumberArguments:
    """Which arguments of a function are numbers that change from call to call, by position or name."""

    def __init__(self) -> None:
        self.positions: tuple[Position, ...] = ()
        #: Why numbers stay parts of the kind; '' if nothing has shown that they must.
        self.reason = ''
        self._last: dict[Position, Any] = {}
        self._changes: Counter[Position] = Counter()
        self._refused: set[Position] = set()

    def seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the arguments of a call that made a new kind."""
        given: list[tuple[Position, Any]] = [*enumerate(args), *kwargs.items()]
        for position, value in given:
            if type(value) not in TYPES:
                continue
            last = self._last.get(position, value)
            self._changes[position] += type(last) is type(value) and last != value
            self._last[position] = value
        found = {position for position, count in self._changes.items() if count >= FEW} - self._refused
        self.positions = tuple(sorted(found, key=str))

    def apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallNumbers | None:
        """The numbers of a call that are not part of its kind; None if there are none."""
        found: list[tuple[Position, Any]] = []
        for position in self.positions:
            if isinstance(position, int):
                value = args[position] if position < len(args) else None
            else:
                value = kwargs.get(position)
            if type(value) in TYPES:
                found.append((position, value))
        return CallNumbers(self, *zip(*found)) if found else None

    def refuse(self, positions: Sequence[Position], reason: str) -> None:
        """Make these arguments parts of the kind again, for good."""
        self._refused.update(positions)
        self.positions = tuple(one for one in self.positions if one not in self._refused)
        self.reason = self.reason or reason


class Mark:
    """The placeholder for a number in the form of a call."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f'<any {self.kind.__name__}>'


_MARKS = {kind: Mark(kind) for kind in TYPES}


class CallNumbers(NamedTuple):
    """The numbers of one call: whose they are, their positions, and their values."""

    of: NumberArguments
    positions: tuple[Position, ...]
    values: tuple[Any, ...]

    def marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, without the values of the numbers."""
        return self.replaced(args, kwargs, [_MARKS[type(value)] for value in self.values])

    def names(self, fn: Any) -> list[str]:
        """The parameters of a function that get the numbers; '' if there is none."""
        return names_of_positions(fn, self.positions)

    def replaced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], by: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with other objects in the place of the numbers."""
        new, named = list(args), dict(kwargs)
        for position, thing in zip(self.positions, by):
            if isinstance(position, int):
                new[position] = thing
            else:
                named[position] = thing
        return tuple(new), named


def room(cupy: Any) -> Any:
    """The array in which the numbers of one call go to the device."""
    return cupy.ndarray((ROOM * WIDTH,), 'u1')


def names_of_positions(fn: Any, positions: Sequence[Position]) -> list[str]:
    """The parameters that positional and named arguments are bound to; '' if there is none."""
    code = getattr(fn, '__code__', None)
    if code is None:
        return ['' for _ in positions]
    placed = code.co_varnames[: code.co_argcount]
    named = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return [
        (one if one in named else '') if isinstance(one, str) else placed[one] if one < len(placed) else ''
        for one in positions
    ]


#: The operators of BINARY_OP that are arithmetic.
_OPERATORS = {'+', '-', '*', '/', '//', '%', '**'}
_LOADS = {'LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW'}
_TWO_LOADS = {'LOAD_FAST_LOAD_FAST', 'LOAD_FAST_BORROW_LOAD_FAST_BORROW'}
_NOTHING = {'RESUME', 'NOP', 'CACHE', 'EXTENDED_ARG', 'KW_NAMES', 'PUSH_NULL', 'NOT_TAKEN'}
_PUTTING = _NOTHING | _LOADS | _TWO_LOADS | {'LOAD_CONST', 'LOAD_SMALL_INT', 'LOAD_GLOBAL', 'LOAD_DEREF', 'LOAD_NAME'}
#: How many values an instruction takes from the stack: a fixed number, and a number for each unit of its argument.
_TAKES = {
    'LOAD_ATTR': (1, 0), 'LOAD_METHOD': (1, 0), 'UNARY_NEGATIVE': (1, 0), 'BINARY_OP': (2, 0), 'COMPARE_OP': (2, 0),
    'BINARY_SUBSCR': (2, 0), 'BINARY_SLICE': (3, 0), 'BUILD_SLICE': (0, 1), 'BUILD_TUPLE': (0, 1), 'BUILD_LIST': (0, 1),
    'CALL': (2, 0) if 'PRECALL' in dis.opmap else (2, 1), 'PRECALL': (0, 1), 'CALL_KW': (3, 1),
    'STORE_FAST': (1, 0), 'STORE_FAST_LOAD_FAST': (1, 0),
    'STORE_FAST_STORE_FAST': (2, 0), 'STORE_ATTR': (2, 0), 'STORE_SUBSCR': (3, 0), 'POP_TOP': (1, 0),
    'RETURN_VALUE': (1, 0), 'UNPACK_SEQUENCE': (1, 0), 'BUILD_MAP': (0, 2), 'BUILD_CONST_KEY_MAP': (1, 1),
    'IS_OP': (2, 0), 'CONTAINS_OP': (2, 0), 'BUILD_STRING': (0, 1), 'BUILD_SET': (0, 1),
}  # fmt: skip


class NotArithmetic(Exception):
    """A number is used in a way that is not understood; the text says which."""


def is_operator(one: dis.Instruction) -> bool:
    """Whether an instruction is arithmetic or a comparison."""
    operator = one.argrepr.removesuffix('=') if one.opname == 'BINARY_OP' else ''
    return one.opname in ('UNARY_NEGATIVE', 'COMPARE_OP') or operator in _OPERATORS


def takes(one: dis.Instruction) -> int:
    """How many values an instruction takes from the stack. Raises NotArithmetic for one that is not understood."""
    if one.opname in _PUTTING:
        return 0
    if one.opname not in _TAKES:
        raise NotArithmetic(f'{one.opname} is not understood')
    least, times = _TAKES[one.opname]
    return least + times * (one.arg or 0)
