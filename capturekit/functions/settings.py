"""Settings of libraries that decide what arithmetic does: each with what shows that a function may depend on it."""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.functions.understood import home


def settings_for(value: Any) -> list[tuple[str, Callable[[], Any]]]:
    """The settings that code which met a value may depend on: names, and functions that tell what they are now."""
    cls = type(value)
    if cls is ModuleType:
        origin = value.__name__
    elif cls is BuiltinFunctionType:
        origin = str(value.__module__)
    else:
        origin = home(value) if cls is type else home(cls)
    top = origin.partition('.')[0]
    if top in ('decimal', '_decimal', '_pydecimal'):
        return [('the context of decimal numbers', _decimals)]
    if top == 'numpy':
        return [("NumPy's handling of errors", _errors())]
    return []


def _decimals() -> tuple[Any, ...]:
    found = decimal.getcontext()
    return (
        found.prec, found.rounding, found.Emin, found.Emax, found.capitals, found.clamp, *found.traps.values(),
    )  # fmt: skip


def _errors() -> Callable[[], Any]:
    """The function that tells what NumPy does at a division by zero and the like; ``np.geterr`` takes 8 us."""
    umath: Any = getattr(np, '_core', None) or np.core
    variable = getattr(umath.umath, '_extobj_contextvar', None)
    if variable is None:
        return lambda: tuple(umath.umath.geterrobj()[:2])
    return functools.partial(_is_still, variable, variable.get())


def _is_still(variable: Any, value: object) -> bool:
    return variable.get() is value
