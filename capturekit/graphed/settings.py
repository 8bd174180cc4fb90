"""Settings of libraries that change what arithmetic does, and how to see that a function may depend on one.

Python shows most warnings once for each line, and a launch shows none. Python forgets what it has shown when the
filters change, also by ``warnings.catch_warnings`` anywhere in the process. An eager run would then show the warning
again. So a function whose lines have shown a warning stays eager.
"""

from __future__ import annotations

import abc
import codecs
import decimal
import itertools
import locale
import os
import re
import sys
import time
import warnings
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from capturekit.graphed.allowlists import module_of
from capturekit.graphed.code_reads import nested
from capturekit.graphed.hidden_state import output_now
from capturekit.model.code_steps import Does, steps_of

DECIMALS, ERRORS = 'the context of decimal numbers', "NumPy's handling of errors, and its options for printing"
WARNINGS, HANDLED = 'the filters of warnings', 'the exception that the caller handles'
THREAD = 'the thread that calls'
CODECS = 'the handlers of errors in encodings'
DIGITS, DEPTH = 'the limit of digits in the text of a whole number', 'the limit of calls in calls'
LOCALE, DATES = 'the locale', 'the locale and the time zone'
REGISTERED = 'the registered subclasses of abstract classes'
SYNCHRONIZING, SPECIALS = 'whether CuPy may synchronize', "SciPy's handling of errors in special functions"
OUTPUT = 'the standard output'
ROUTINES, PRODUCTS = "CuPy's accelerators", "CuPy's compute types"
#: A complex number depends on the same settings as its parts.
_PRODUCTS = [np.dtype(name) for name in ('float16', 'float32', 'float64')]


class Setting(NamedTuple):
    """A setting when a run began: ``get`` returns what it is now, and returned ``value`` then."""

    get: Callable[[], Any]
    value: Any


def routines_now() -> dict[str, Setting]:
    """Which libraries CuPy's routines use, and the types that it computes products in, as they are now; empty if there
    is no CuPy."""
    core: Any = sys.modules.get('cupy._core')
    if core is None:
        return {}
    routine, reduction, elementwise = accelerators = (
        core.get_routine_accelerators, core.get_reduction_accelerators, core.get_elementwise_accelerators,
    )  # fmt: skip
    of_routine, of_reduction, of_elementwise = [list(ask()) for ask in accelerators]
    get, (half, single, double) = core.get_compute_type, _PRODUCTS
    of_half, of_single, of_double = get(half), get(single), get(double)

    def same_accelerators() -> bool:
        same: bool = routine() == of_routine and reduction() == of_reduction and elementwise() == of_elementwise
        return same

    def same_types() -> bool:
        same: bool = get(half) == of_half and get(single) == of_single and get(double) == of_double
        return same

    return {ROUTINES: Setting(same_accelerators, True), PRODUCTS: Setting(same_types, True)}


def settings_now() -> dict[str, Setting]:
    """All settings, by name, as they are now."""
    return {
        DECIMALS: Setting(_decimals, _decimals()),
        ERRORS: _errors(),
        WARNINGS: _unchanged(lambda: ([*_filters()], warnings.defaultaction)),  # type: ignore[attr-defined]
        HANDLED: Setting(lambda: sys.exception(), sys.exception()),
        CODECS: _unchanged(_handlers),
        THREAD: Setting(get_ident, get_ident()),
        DIGITS: _unchanged(sys.get_int_max_str_digits),
        DEPTH: _unchanged(sys.getrecursionlimit),
        REGISTERED: _unchanged(abc.get_cache_token),
        SYNCHRONIZING: _unchanged(_may_wait),
        SPECIALS: _unchanged(_specials),
        LOCALE: _unchanged(_place),
        # C's library asks the environment for the time zone, by which the text of a date may give seconds
        DATES: _unchanged(lambda: (_place(), os.environ.get('TZ'), time.timezone, time.tzname)),
        OUTPUT: Setting(*output_now()),
    }


def _unchanged(read: Callable[[], Any]) -> Setting:
    """The setting that this returns later what it returns now."""
    before = read()
    return Setting(lambda: read() == before, True)


def setting_for(value: Any) -> str | None:
    """The name of the setting that code which met a value may depend on."""
    cls = type(value)
    if value is print:
        return OUTPUT
    if cls is ModuleType:
        origin = str(value.__name__)
    elif value is get_ident:
        return THREAD
    elif cls is BuiltinFunctionType:
        origin = str(value.__module__)
    else:
        origin = module_of(value) if cls is type else module_of(cls)
    top = origin.partition('.')[0]
    if top in ('datetime', '_datetime', '_pydatetime'):
        return DATES
    if top in ('decimal', '_decimal', '_pydecimal'):
        return DECIMALS
    if top in ('warnings', '_warnings', '_py_warnings'):
        return WARNINGS
    if origin.startswith('scipy.special') or (cls is np.ufunc and _is_special(value)):
        return SPECIALS
    return ERRORS if top == 'numpy' else None


def _decimals() -> tuple[Any, ...]:
    found = decimal.getcontext()
    return (
        found.prec, found.rounding, found.Emin, found.Emax, found.capitals, found.clamp, *found.traps.values(),
        *found.flags.values(),
    )  # fmt: skip


def _errors() -> Setting:
    """What NumPy does at a division by zero and the like. (``np.geterr`` would take 8 us at each call.)

    It may warn, which the filters of warnings make an exception. The text of its numbers depends on its options.
    """
    variable, printing, filters = np._core.umath._extobj_contextvar, _printing(), [*_filters()]  # type: ignore[attr-defined]
    found, printed = variable.get(), printing()

    def same() -> bool:
        if variable.get() is not found or _filters() != filters:
            return False
        now = printing()
        return now is printed or bool(now == printed)

    return Setting(same, True)


def _printing() -> Callable[[], Any]:
    """What returns NumPy's options for printing, on which the text of its numbers depends, too."""
    options: Any = sys.modules.get('numpy._core.printoptions')
    if options is not None:
        return options.format_options.get  # type: ignore[no-any-return]
    printer: Any = sys.modules['numpy._core.arrayprint']  # NumPy 2.0
    return lambda: printer._format_options['legacy']


def _may_wait() -> bool:
    """Whether CuPy may wait for the device in this thread (``cupyx.allow_synchronize``)."""
    detection: Any = sys.modules.get('cupy._core.syncdetect')
    return True if detection is None else bool(detection._is_allowed())


def _specials() -> Any:
    special: Any = sys.modules.get('scipy.special')
    return None if special is None else special.geterr()


def _is_special(function: Any) -> bool:
    special = sys.modules.get('scipy.special')
    return special is not None and vars(special).get(function.__name__) is function


def _place() -> str:
    """The locale, by which numbers and dates may be written."""
    return locale.setlocale(locale.LC_ALL)


def _filters() -> Any:
    """The filters of warnings; since Python 3.14 a context may have its own."""
    get: Any = getattr(warnings, '_get_filters', None)
    return warnings.filters if get is None else get()


def _handlers() -> list[Any]:
    """What Python's encodings call for what they can't encode: the functions with which it begins may be replaced."""
    return [codecs.lookup_error(name) for name in _HANDLERS]


_HANDLERS = (
    'strict', 'ignore', 'replace', 'backslashreplace', 'xmlcharrefreplace', 'namereplace', 'surrogateescape',
    'surrogatepass',
)  # fmt: skip


#: Names of what makes texts of numbers, or numbers of texts.
_TEXTS = frozenset('str repr format int print format_map ascii'.split())
#: A text that may be, or have in it, a format for numbers by the locale: ``n``, ``{:>10n}``.
_BY_LOCALE = re.compile(r'(?:^|[:}<>=^+\- #0-9,_.])n(?:\}|$)')
#: A format for a date, which may have names of days and months.
_OF_DATES = re.compile('%[aAbBcpxX]')
#: Methods of dates that read the time zone. NumPy makes dates, too, so that code need not name their class.
_OF_TIME_ZONES = frozenset({'strftime', 'timestamp', 'astimezone', 'fromtimestamp'})
#: Names of what takes a format.
_TAKING = frozenset({'format', 'format_map', '__format__'})


def settings_of(code: CodeType) -> Iterator[str]:
    """The settings on which code, and code that is written in it, may depend."""
    for inner in nested(code):
        kinds = {step.does for step in steps_of(inner)}
        if Does.INVERTS in kinds:  # from Python 3.12 on, the complement of a truth value warns
            yield WARNINGS
        if Does.MATCHES_FLAG in kinds:
            yield REGISTERED
        writes = not kinds.isdisjoint((Does.FORMATS, Does.FORMATS_BY))
        texts = [text for text in inner.co_consts if type(text) is str]
        if writes or not _TEXTS.isdisjoint(inner.co_names) or any('%' in text for text in texts):
            yield DIGITS
        if _takes_formats(inner) or any(map(is_by_locale, texts)):
            yield LOCALE
        if not _OF_TIME_ZONES.isdisjoint(inner.co_names):
            yield DATES


def _takes_formats(code: CodeType) -> bool:
    """Whether code may give something a format that is not written in it."""
    given = any(
        step.does == Does.FORMATS_BY and before.does != Does.LOADS_CONSTANT
        for before, step in itertools.pairwise(steps_of(code))
    )
    return given or not _TAKING.isdisjoint(code.co_names)


def is_by_locale(text: str) -> bool:
    """Whether a text may be a format, or have one in it, that goes by the locale."""
    return bool(_BY_LOCALE.search(text) or _OF_DATES.search(text))


_REGISTRY = '__warningregistry__'
#: The line under which a warning counts as shown for a whole module.
_WHOLE_MODULE = 0


def forget_ours() -> None:
    """Let Python forget what it has shown for lines of capturekit: it takes these for warnings of CuPy's compiled code,
    and all functions that call it come by these lines."""
    for values in _our_modules(len(sys.modules)):
        values.pop(_REGISTRY, None)


@lru_cache(1)
def _our_modules(_number: int) -> list[dict[str, Any]]:
    """The dictionaries of capturekit's modules, looked up again when there is another number of modules."""
    return [vars(module) for name, module in list(sys.modules.items()) if name.startswith('capturekit.')]


def shown_before(
    values: dict[str, Any], codes: Iterable[CodeType], lines_of: Callable[[CodeType], set[int] | None]
) -> tuple[CodeType, int] | None:
    """Return the first line of these codes of a module that has shown a warning, and its code; None if there is none.

    ``values``: the module's dictionary, where Python remembers the text, the category and the line of each warning.
    ``lines_of``: returns the lines of a code that ran; None: any of them may have run.
    """
    registry = values.get(_REGISTRY)
    shown = {key[-1] for key in list(registry) if type(key) is tuple} if type(registry) is dict else set()
    found: list[tuple[CodeType, int]] = []
    for code in codes if shown else ():
        ran = lines_of(code)
        lines = {line for _start, _end, line in code.co_lines()} if ran is None else ran
        found += [(code, line or code.co_firstlineno) for line in shown if line == _WHOLE_MODULE or line in lines]
    return min(found, key=lambda place: place[1], default=None)
