"""The yardstick for 'existing CuPy code, captured unchanged': one-line CuPy expressions, and the names they use.

They stand in ``expressions.ini``. ``GIVEN`` and ``MORE`` map a label to an expression. ``namespace(expression)`` builds
what that expression names and nothing else, so that in a cold process nothing of the case has run before its capture:
arrays are uploaded from NumPy and kernels are only defined. ``RANDOM`` labels draw numbers, whose values can't be
compared. ``FRESH`` labels draw from a generator that lives outside of the expression: two launches must differ.

Imports neither CuPy nor NumPy until ``namespace`` is called.
"""

from __future__ import annotations

import configparser
import functools
import importlib
from pathlib import Path
from types import CodeType
from typing import Any

#: What the short names of modules stand for.
MODULES = {
    'cp': 'cupy',
    'cupyx': 'cupyx',
    'itp': 'cupyx.scipy.interpolate',
    'nd': 'cupyx.scipy.ndimage',
    'np': 'numpy',
    'sf': 'cupyx.scipy.fft',
    'sl': 'cupyx.scipy.linalg',
    'sp': 'cupyx.scipy.sparse',
    'spatial': 'cupyx.scipy.spatial',
    'spc': 'cupyx.scipy.special',
    'spl': 'cupyx.scipy.sparse.linalg',
    'ss': 'cupyx.scipy.signal',
    'st': 'cupyx.scipy.stats',
    'win': 'cupyx.scipy.signal.windows',
    'xs': 'cupyx.signal',
}


def sections() -> dict[str, dict[str, str]]:
    """The sections of the file. Two cases of one name in a section are an error."""
    parser = configparser.RawConfigParser(delimiters=(':',), comment_prefixes=('#',))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(Path(__file__).with_name('expressions.ini'), encoding='utf-8')
    return {name: dict(parser[name]) for name in parser.sections()}


SECTIONS = sections()
ARRAYS = SECTIONS.pop('arrays')
GIVEN = SECTIONS['the first 106']
ALL = {label: expression for cases in SECTIONS.values() for label, expression in cases.items()}
MORE = {label: expression for label, expression in ALL.items() if label not in GIVEN}

RANDOM = frozenset(SECTIONS['random']) - {'seeded legacy', 'seeded RandomState', 'seeded Generator'} | {
    'random legacy', 'randn', 'choice', 'permutation', 'sparse random',
}  # fmt: skip
#: One number out of 4097 may well be drawn twice.
FRESH = RANDOM - {'monte carlo'}


def names_of(code: CodeType) -> set[str]:
    """The global names that a compiled expression uses, those of its lambdas and comprehensions included."""
    inner = [names_of(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def namespace(expression: str) -> dict[str, Any]:
    """Build the arrays and helpers that an expression names; needs CuPy and a GPU."""
    import cupyx

    from tests.gpu.coverage import functions

    cupyx.seterr(linalg='ignore')
    names = names_of(compile(expression, '<case>', 'eval'))
    return {name: named(name) for name in sorted(names) if name in {**MODULES, **ARRAYS, **vars(functions)}}


@functools.cache
def named(name: str) -> Any:
    """What a name stands for: a module, an array that is made now, or a function."""
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    if name in ARRAYS:
        return eval(ARRAYS[name], namespace(ARRAYS[name]))
    return getattr(importlib.import_module('tests.gpu.coverage.functions'), name)
