"""Signatures of functions, and classes of plain values: what all stand-ins share, so that it is made once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from capturekit.simulated.cupy.surface import FFT, LACKING, PARAMETERS

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_NAMES = {
    'float': float, 'int': int, 'complex': complex, 'inf': np.inf, 'nan': np.nan, 'float64': np.float64,
    'int64': np.int64,
}  # fmt: skip


@functools.cache
def signature(parameters: str) -> inspect.Signature:
    """Return the signature of what stands between the parentheses."""
    # Defaults are literals or one of a few names; a lambda is Python's own parser for signatures.
    return inspect.signature(eval(f'lambda {parameters}: None', dict(_NAMES)))


_OF_NAMES = {name: text for names, text in PARAMETERS.items() for name in names.split()}


@functools.cache
def signature_like(name: str, function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of CuPy's function or method of a name, which is like that of a function of NumPy's."""
    if name in _OF_NAMES:
        return signature(_OF_NAMES[name])
    lacking = LACKING | {'out'} if name in FFT else LACKING
    kept = [one for key, one in inspect.signature(function).parameters.items() if key not in lacking]
    if name.startswith('ndarray.'):
        kept[0] = kept[0].replace(name='self')
    return inspect.Signature(kept)


def declared(name: str, signature: inspect.Signature, call: Call, module: str = 'cupy') -> Callable[..., Any]:
    """Return a function of this name and signature; ``call`` gets required arguments and given optional ones."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return call(*_spread(signature, signature.bind(*args, **kwargs)))

    function.__doc__ = f'See :func:`numpy.{name}`.'
    return named(function, name, signature, module)


def named(
    function: Any, name: str, signature: inspect.Signature | None = None, module: str = 'cupy'
) -> Callable[..., Any]:
    """Return the function with a name, and a signature if its own is another."""
    function.__name__ = function.__qualname__ = name
    function.__code__ = function.__code__.replace(co_name=name)  # what looks for CuPy's function in the stack finds it
    function.__module__ = module
    if signature is not None:
        function.__signature__ = signature
    found: Callable[..., Any] = function
    return found


def _spread(signature: inspect.Signature, bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name not in bound.arguments:
            continue
        value = bound.arguments[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.update(value)
        elif parameter.default is parameter.empty:
            positional.append(value)
        else:
            named[name] = value
    return tuple(positional), named
