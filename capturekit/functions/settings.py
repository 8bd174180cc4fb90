"""Settings of libraries that change what arithmetic does, and how to see that a function may depend on one."""

from __future__ import annotations

import decimal
import functools
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from capturekit.functions.understood import home

DECIMALS, ERRORS = 'the context of decimal numbers', "NumPy's handling of errors"
ROUTINES = "CuPy's accelerators and compute types"
#: A complex number depends on the same settings as its parts.
_PRODUCTS = [np.dtype(name) for name in ('float16', 'float32', 'float64')]


class Setting(NamedTuple):
    """A setting when a run began: ``get`` returns what it is now, and returned ``value`` then."""

    get: Callable[[], Any]
    value: Any


def routines_now() -> Setting | None:
    """Which libraries CuPy's routines use, and the types that it computes products in; None if there is no CuPy."""
    core: Any = sys.modules.get('cupy._core')
    return None if core is None else Setting(functools.partial(_routines_are, core, _routines(core)), True)


def _routines_are(core: Any, value: tuple[Any, ...]) -> bool:
    return _routines(core) == value


def _routines(core: Any) -> tuple[Any, ...]:
    return (
        *core.get_routine_accelerators(), None, *core.get_reduction_accelerators(), None,
        *core.get_elementwise_accelerators(), None, *map(core.get_compute_type, _PRODUCTS),
    )  # fmt: skip


def settings_now() -> dict[str, Setting]:
    """All settings, by name, as they are now."""
    return {DECIMALS: Setting(_decimals, _decimals()), ERRORS: _errors()}


def setting_for(value: Any) -> str | None:
    """The name of the setting that code which met a value may depend on."""
    cls = type(value)
    if cls is ModuleType:
        origin = str(value.__name__)
    elif cls is BuiltinFunctionType:
        origin = str(value.__module__)
    else:
        origin = home(value) if cls is type else home(cls)
    top = origin.partition('.')[0]
    if top in ('decimal', '_decimal', '_pydecimal'):
        return DECIMALS
    return ERRORS if top == 'numpy' else None


def _decimals() -> tuple[Any, ...]:
    found = decimal.getcontext()
    return (
        found.prec, found.rounding, found.Emin, found.Emax, found.capitals, found.clamp, *found.traps.values(),
    )  # fmt: skip


def _errors() -> Setting:
    """What NumPy does at a division by zero and the like. (``np.geterr`` would take 8 us at each call.)"""
    umath: Any = getattr(np, '_core', None) or np.core
    variable = getattr(umath.umath, '_extobj_contextvar', None)
    if variable is None:
        return Setting(lambda: tuple(umath.umath.geterrobj()[:2]), tuple(umath.umath.geterrobj()[:2]))
    return Setting(functools.partial(_is_still, variable, variable.get()), True)


def _is_still(variable: Any, value: object) -> bool:
    return variable.get() is value
