"""``cupyx.scipy``: SciPy's functions of the same names, by a table of those that CuPy has; SciPy is imported late.

Most become one launch each. What CuPy's host reads before it knows what to do (:data:`READING`) is computed from arrays
that are read to the host, so that a capture refuses it as it refuses CuPy's.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from capturekit.simulated.cupy.signatures import named
from capturekit.simulated.cupy.surface import FFT, READING, READING_AN_ARGUMENT

from . import arrays, launches
from .launches import Layout
from .runtime_calls import cupy
from .ufuncs import ufunc

#: How SciPy's and CuPy's functions call the array that they write into.
_OUTPUTS = ('output', 'out')


def scipys(module: str, name: str) -> Any:
    """Return SciPy's function; raises ImportError without SciPy."""
    try:
        return getattr(importlib.import_module(f'scipy.{module}'), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"the simulated CuPy makes cupyx.scipy.{module}.{name} of SciPy's function, and SciPy has none here "
            f'({error}). Write: pip install scipy'
        ) from error


def found(module: str, name: str) -> Any:
    """Return CuPy's function ``cupyx.scipy.{module}.{name}``."""
    function = scipys(module, name)
    if isinstance(function, np.ufunc):
        return ufunc(name, function.nin, function.nout, function)
    if module == 'fft' and name in FFT and not name.endswith(('freq', 'shift')):
        call: Callable[..., Any] = functools.partial(_transform, name)
    elif name in READING.get(module, ()):
        call = functools.partial(_read, function)
    else:
        call = functools.partial(_launch, f'cupyx_scipy_{module}_{name}', function)
    if name in READING_AN_ARGUMENT:
        call = functools.partial(_read_if_given, READING_AN_ARGUMENT[name], function, call)
    return _named(call, name, function, f'cupyx.scipy.{module}')


def _named(call: Callable[..., Any], name: str, function: Any, module: str) -> Callable[..., Any]:
    def of_scipy(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    of_scipy.__doc__ = f'See SciPy: {function.__module__}.{name}.'
    return named(of_scipy, name, inspect.signature(function), module)


def _quietly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return function(*args, **kwargs)


def _launch(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    target = next((kwargs.pop(key) for key in _OUTPUTS if isinstance(kwargs.get(key), Layout)), None)
    if 'check_finite' in inspect.signature(function).parameters:
        kwargs.setdefault('check_finite', False)  # as in CuPy
    made = launches.launch(name, functools.partial(_quietly, function), args, kwargs)
    if target is None:
        return made
    target[...] = made
    return target


def _read_if_given(name: str, function: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if inspect.signature(function).bind(*args, **kwargs).arguments.get(name) is None:
        return call(*args, **kwargs)
    return _read(function, *args, **kwargs)


def reads(*args: Any) -> None:
    """Read on the host, if nothing that is given is on the device: CuPy reads there what it has made itself."""
    if not any(launches.as_array(one) is not None for one in args):
        arrays.array(np.zeros(1)).get()


def _read(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    reads(*args, *kwargs.values())
    return uploaded(_quietly(function, *map(on_host, args), **{key: on_host(one) for key, one in kwargs.items()}))


def on_host(value: Any) -> Any:
    """Return a value with the arrays in it read to the host."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_host, value))
    array = launches.as_array(value)
    if array is None and hasattr(value, 'format') and hasattr(value, 'get'):
        return value.get()  # a sparse matrix
    return value if array is None else array.get()


def uploaded(value: Any) -> Any:
    """Return a value with the arrays in it on the device."""
    if isinstance(value, np.ndarray):
        return arrays.array(value)
    if isinstance(value, (list, tuple)):
        parts = [uploaded(one) for one in value]
        return parts if isinstance(value, list) else tuple(parts)
    return {key: uploaded(one) for key, one in value.items()} if isinstance(value, dict) else value


def _transform(name: str, x: Any, *args: Any, plan: Any = None, **kwargs: Any) -> Any:
    """The transform of ``cupy.fft``, which has the plans; nothing is overwritten."""
    kwargs.pop('overwrite_x', None)
    return getattr(cupy.fft, name)(x, *args[:3], **kwargs)
