"""Functions that make numbers of numbers, by which launches reckon: Python's own, and those of ``math``.

Python's ``abs``, ``max``, ``min`` and ``pow`` ask the methods of a number. A function of ``math`` asks a number for its
value, which a :class:`~capturekit.functions.number_arguments.Number` shows to nobody. So while such a function is
recorded, the module has another object in its place, which does the same with numbers of Python.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from capturekit.functions.number_arguments import TYPES, Number, unfollowed

#: Python's own, each with the numbers of arguments that it may have. The last two return one of their arguments.
BUILT_IN: dict[str, tuple[Any, range]] = {
    'abs': (abs, range(1, 2)), 'pow': (pow, range(2, 3)), 'max': (max, range(2, 256)), 'min': (min, range(2, 256)),
}  # fmt: skip
CHOOSING = frozenset({'max', 'min'})
_NAMES = (
    'acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees erf erfc exp exp2 expm1 fabs floor '
    'fmod gamma hypot lgamma log log10 log1p log2 pow radians remainder sin sinh sqrt tan tanh trunc'
)
#: What comes out of these is a truth value, which has to come out at each launch as it did.
_ASKING = frozenset({'isfinite', 'isinf', 'isnan'})
#: Those of ``math``, by name: some came with a later Python.
OF_MATH: dict[str, Callable[..., Any]] = {
    name: getattr(math, name) for name in (*_NAMES.split(), *sorted(_ASKING)) if hasattr(math, name)
}


class _OfNumbers:
    """What stands in the module ``math`` for one of its functions while numbers are recorded.

    It is no function of Python: a frame that calls one does not tell which of its instructions does.
    """

    def __init__(self, name: str) -> None:
        self._plain, self._asks = OF_MATH[name], name in _ASKING

    def __call__(self, *args: Any, **named: Any) -> Any:
        of = next((one._of for one in args if type(one) is Number), None)
        if of is None:
            return self._plain(*args, **named)
        of.standing()
        if named or not all(type(one) is Number or type(one) in TYPES for one in args):
            raise unfollowed(f'math.{self._plain.__name__} gets it beside something else than numbers')
        numbers = tuple([one if type(one) is Number else of.constant(one) for one in args])
        return of.compared(self._plain, numbers) if self._asks else of.computed(self._plain, numbers)


_standing = {name: _OfNumbers(name) for name in OF_MATH}
_lock = threading.Lock()
#: How many recordings that are under way need each of these.
_needed: Counter[str] = Counter()


@contextmanager
def taking_numbers(names: Iterable[str]) -> Iterator[None]:
    """Let functions of ``math`` take such numbers, for the block."""
    wanted = [*names]
    with _lock:
        _needed.update(wanted)
        _put(wanted, OF_MATH, _standing)
    try:
        yield
    finally:
        with _lock:
            _needed.subtract(wanted)
            _put([name for name in wanted if not _needed[name]], _standing, OF_MATH)


def _put(names: Iterable[str], there: dict[str, Any], new: dict[str, Any]) -> None:
    """Replace functions in the module, but for those that somebody else has replaced."""
    for name in names:
        if vars(math).get(name) is there[name]:
            setattr(math, name, new[name])
