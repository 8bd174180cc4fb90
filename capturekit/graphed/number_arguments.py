"""Number arguments that change at nearly each call: which they are.

Normally a number is a part of the kind of a call, as an axis or a count has to be. If one argument has made several
new kinds, the function is recorded with a :class:`Number` in its place, provided that its code does nothing with it
but arithmetic (:mod:`capturekit.graphed.value_flow`). What Python computes from it is computed again for each call; a
kernel that combines it with an array reads it from the graph's memory.
"""

from __future__ import annotations

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
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        for position, value in given.items():
            if type(value) not in TYPES:
                continue
            last = self._last.get(position, value)
            self._changes[position] += type(last) is type(value) and last != value
            self._last[position] = value
        found = {position for position, count in self._changes.items() if count >= FEW} - self._refused
        self.positions = tuple(sorted(found, key=str))

    def apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallNumbers | None:
        """The numbers of a call that are not part of its kind; None if there are none."""
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        found = [(position, given[position]) for position in self.positions if type(given.get(position)) in TYPES]
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
        code = getattr(fn, '__code__', None)
        if code is None:
            return ['' for _ in self.positions]
        placed = code.co_varnames[: code.co_argcount]
        named = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
        return [
            (one if one in named else '') if isinstance(one, str) else placed[one] if one < len(placed) else ''
            for one in self.positions
        ]

    def replaced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], by: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with other objects in the place of the numbers."""
        others: dict[Position, Any] = dict(zip(self.positions, by))
        placed = [others.get(number, value) for number, value in enumerate(args)]
        return tuple(placed), {name: others.get(name, value) for name, value in kwargs.items()}


def room(cupy: Any) -> Any:
    """The array in which the numbers of one call go to the device."""
    return cupy.ndarray((ROOM * WIDTH,), 'u1')
