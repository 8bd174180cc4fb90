"""Functions that make numbers of numbers, by which launches reckon: Python's own, and those of ``math``.

Python's ``abs``, ``max``, ``min`` and ``pow`` ask the methods of a number. ``float`` and functions of ``math`` ask a
number for its value, which a :class:`~capturekit.functions.recorded_number.Number` shows to nobody. So while code is
recorded that gives them such numbers, it finds another object in their place, which does the same with all others. If
that gets an array which the code reads in this way (``float(a)``, ``math.sqrt(a)``), it reads it as ``a.item()`` does.
All code has to call at once what it finds there: it never sees what is there.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from capturekit.functions.call_turns import is_alone
from capturekit.functions.collector import functions_of
from capturekit.functions.instructions import call_of, nested, single_steps
from capturekit.functions.loaded_values import GLOBALS_READ
from capturekit.functions.number_arguments import COMPUTED
from capturekit.functions.outcomes import FunctionPlace
from capturekit.functions.recorded_number import Number, unfollowed
from capturekit.model.class_layout import dictionary_of_class

#: Python's own, each with the numbers of arguments that it may have.
BUILT_IN: dict[str, tuple[Any, range]] = {
    'abs': (abs, range(1, 2)), 'pow': (pow, range(2, 3)), 'max': (max, range(2, 256)), 'min': (min, range(2, 256)),
}  # fmt: skip
_NAMES = (
    'acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees erf erfc exp exp2 expm1 fabs floor '
    'fmod gamma hypot lgamma log log10 log1p log2 pow radians remainder sin sinh sqrt tan tanh trunc'
)
#: What comes out of these is a truth value, which has to come out at each launch as it did.
ASKING = (math.isfinite, math.isinf, math.isnan)
#: Those of ``math``, by name: some came with a later Python.
OF_MATH: dict[str, Callable[..., Any]] = {
    name: getattr(math, name) for name in (*_NAMES.split(), *(one.__name__ for one in ASKING)) if hasattr(math, name)
}
#: The types that make a number of an array, or of another number. Code finds them among the builtins.
OF_TYPES = (float, int)
#: The functions in the place of which another object is put, by id.
REPLACED: dict[int, Any] = {id(function): function for function in (*OF_TYPES, *OF_MATH.values())}
_MATH = ModuleType(math.__name__)


class RecordedNumbers(Protocol):
    """The numbers of a recording, as the functions need them."""

    cupy: Any

    def reads_here(self) -> bool:
        """Whether the code reads an array by the function that it calls at present."""
        ...


class _OfNumbers:
    """What stands in the place of a function while numbers are recorded.

    It is no function of Python: a frame that calls one does not tell which of its instructions does.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._asks = any(function is one for one in ASKING)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if len(args) == 1 and not named:
            args = (_read(args[0]),)
        of = next((one._of for one in args if type(one) is Number), None)
        if of is None:
            return self._function(*args, **named)
        of.standing()
        if named or not all(type(one) is Number or type(one) in COMPUTED for one in args):
            raise unfollowed(f'{self._function.__name__} gets it beside something else than numbers')
        numbers = tuple([one if type(one) is Number else of.constant(one) for one in args])
        return of.compared(self._function, numbers) if self._asks else of.computed(self._function, numbers)


def _read(value: Any) -> Any:
    """What an array holds that the code under way reads, if launches reckon with that; any other value itself."""
    numbers: RecordedNumbers | None = getattr(_recorded, 'numbers', None)
    if numbers is None or type(value) is not numbers.cupy.ndarray or value.shape or not numbers.reads_here():
        return value
    return value.item()


_functions = {key: _OfNumbers(function) for key, function in REPLACED.items()}
_standing: dict[int, Any] = {**_functions, id(math): _MATH}
#: The numbers that this thread records.
_recorded = threading.local()
_lock = threading.Lock()
#: How many recordings that are under way need each place.
_needed: Counter[tuple[int, str]] = Counter()


@contextmanager
def taking_numbers(numbers: RecordedNumbers, places: Iterable[FunctionPlace]) -> Iterator[None]:
    """For the block, let functions that are found in these places take numbers of a recording."""
    taken: list[FunctionPlace] = []
    others = not is_alone()
    try:
        with _lock:
            for place in [place for place in places if place.of_all or not others]:
                _needed[_key(place)] += 1
                taken.append(place)
                _put(place, _standing[id(place.found)])
        _recorded.numbers = numbers
        yield
    finally:
        _recorded.numbers = None
        with _lock:
            for place in taken:
                _needed[_key(place)] -= 1
                if not _needed[_key(place)]:
                    _take_back(place, _standing[id(place.found)])


def _key(place: FunctionPlace) -> tuple[int, str]:
    return id(place.namespace), place.name


def _put(place: FunctionPlace, standing: Any) -> None:
    """Put something in the place of a function, unless somebody else has done so."""
    if standing is _MATH:
        vars(_MATH).update({name: _functions.get(id(value), value) for name, value in list(vars(math).items())})
    if place.found in OF_TYPES:
        place.namespace.setdefault(place.name, standing)
    elif place.namespace.get(place.name) is place.found:
        place.namespace[place.name] = standing


def _take_back(place: FunctionPlace, standing: Any) -> None:
    if place.namespace.get(place.name) is standing:
        if place.found in OF_TYPES:
            del place.namespace[place.name]  # the builtin is found again
        else:
            place.namespace[place.name] = place.found


def is_called_by(codes: Iterable[CodeType], name: str, of_module: Container[str] = ()) -> bool:
    """Whether code calls at once what it loads under the name of a global, with plain arguments.

    ``of_module``: functions of the module that is there. Code takes attributes of that alone, and calls these at once.
    """
    inner = {id(one): one for code in codes for one in nested(code)}
    return all(_only_calls(code, name, of_module) for code in inner.values() if name in code.co_names)


def is_only_called(namespace: dict[str, Any], name: str, of_module: Container[str] = ()) -> bool:
    """Whether all functions with these globals do so."""
    functions = {id(one): one for found in functions_of(namespace).values() for one in found}
    if _may_run_meanwhile(namespace) or not all(id(one) in functions for one in _by_name(namespace)):
        return False
    return is_called_by([function.__code__ for function in functions.values()], name, of_module)


def _by_name(namespace: dict[str, Any]) -> Iterator[FunctionType]:
    """The functions that the module and its classes have by a name. If one of these is not listed among all of the
    module's, ``gc.freeze`` has taken it out of the collector's lists, and others with it."""
    for value in list(namespace.values()):
        members = list(dictionary_of_class(value).values()) if issubclass(type(value), type) else [value]
        yield from (one for one in members if type(one) is FunctionType and one.__globals__ is namespace)


def _may_run_meanwhile(namespace: dict[str, Any]) -> bool:
    """Whether code of the module itself, which no function has, may run in another thread."""
    main: Any = sys.modules.get('__main__')
    if namespace is getattr(main, '__dict__', None):
        return threading.current_thread() is not threading.main_thread()
    return bool(getattr(namespace.get('__spec__'), '_initializing', False))


def _only_calls(code: CodeType, name: str, of_module: Container[str]) -> bool:
    steps = single_steps(code)
    for number, step in enumerate(steps):
        if step.argval != name or not step.opname.endswith(('_GLOBAL', '_GLOBALS', '_NAME')):
            continue
        loads = number if step.opname in GLOBALS_READ else None
        if of_module and loads is not None:
            loads = number + 1 if steps[number + 1].opname in ('LOAD_ATTR', 'LOAD_METHOD') else None
            if loads is not None and steps[loads].argval not in of_module:
                continue
        call = None if loads is None else call_of(steps, loads)
        if call is None or steps[call].opname != 'CALL':
            return False
    return True
