"""The settings of Python that instructions depend on without calling anything."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from types import CodeType

from capturekit.functions.instructions import nested, single_steps
from capturekit.functions.settings import DATES, DIGITS, LOCALE, REGISTERED, WARNINGS

#: Instructions that ask a class whether it is registered as a sequence or a mapping.
_BY_FLAG = frozenset({'MATCH_SEQUENCE', 'MATCH_MAPPING'})
_FORMATS = ('FORMAT_', 'CONVERT_VALUE')
#: Names of what makes texts of numbers, or numbers of texts.
_TEXTS = frozenset('str repr format int print format_map ascii'.split())
#: A text that may be, or have in it, a format for numbers by the locale: ``n``, ``{:>10n}``.
_BY_LOCALE = re.compile(r'(?:^|[:}<>=^+\- #0-9,_.])n(?:\}|$)')
#: A format for a date, which may have names of days and months.
_OF_DATES = re.compile('%[aAbBcpxX]')
#: Methods of dates that read the time zone. NumPy makes dates, too, so that code need not name their class.
_OF_TIME_ZONES = frozenset({'strftime', 'timestamp', 'astimezone', 'fromtimestamp'})
#: Names of what takes a format, and the flag of the instruction that does before Python 3.13.
_TAKING = frozenset({'format', 'format_map', '__format__'})
_GIVEN = 4
#: Since this version of Python, the complement of a truth value warns.
_INVERTED = (3, 12)


def settings_of(code: CodeType) -> Iterator[str]:
    """The settings on which code, and code that is written in it, may depend."""
    for inner in nested(code):
        kinds = {step.opname for step in single_steps(inner)}
        if 'UNARY_INVERT' in kinds and sys.version_info >= _INVERTED:
            yield WARNINGS
        if not _BY_FLAG.isdisjoint(kinds):
            yield REGISTERED
        writes = any(kind.startswith(_FORMATS) for kind in kinds)
        texts = [text for text in inner.co_consts if type(text) is str]
        if writes or not _TEXTS.isdisjoint(inner.co_names) or any('%' in text for text in texts):
            yield DIGITS
        if _takes_formats(inner) or any(map(is_by_locale, texts)):
            yield LOCALE
        if not _OF_TIME_ZONES.isdisjoint(inner.co_names):
            yield DATES


def _takes_formats(code: CodeType) -> bool:
    """Whether code may give something a format that is not written in it."""
    steps = list(single_steps(code))
    given = any(
        (step.opname == 'FORMAT_WITH_SPEC' or (step.opname == 'FORMAT_VALUE' and (step.arg or 0) & _GIVEN))
        and before.opname != 'LOAD_CONST'
        for before, step in itertools.pairwise(steps)
    )
    return given or not _TAKING.isdisjoint(code.co_names)


def is_by_locale(text: str) -> bool:
    """Whether a text may be a format, or have one in it, that goes by the locale."""
    return bool(_BY_LOCALE.search(text) or _OF_DATES.search(text))
