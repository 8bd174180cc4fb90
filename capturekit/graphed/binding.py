"""How Python treats a graphed function: it is bound, copied and pickled like the function that it wraps."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

from capturekit.graphed.reasons import NONE, Reason, Why


def function_of(given: Any) -> Any:
    """The function itself, also if a static method or a class method was given."""
    return given.__func__ if isinstance(given, (staticmethod, classmethod)) else given


def _of_function(name: str) -> Any:
    """An attribute that is the function's own."""
    return property(
        lambda self: getattr(self.__wrapped__, name), lambda self, value: setattr(self.__wrapped__, name, value)
    )


class AsFunction:
    """A wrapper that Python treats like the function inside it. ``_given`` may be a static or class method."""

    _given: Any
    __wrapped__: Any

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        given = self._given
        if isinstance(given, classmethod):
            return types.MethodType(self, owner if owner is not None else type(instance))  # type: ignore[arg-type]
        if instance is None or isinstance(given, staticmethod) or not hasattr(type(given), '__get__'):
            return self
        if (
            isinstance(given, functools.partial)
            and functools.partial.__dict__['__get__'](given, instance, owner) is given
        ):
            return self  # which newer Pythons bind, and those in between warn of
        return types.MethodType(self, instance)  # type: ignore[arg-type]

    def __reduce__(self) -> str:
        name = getattr(self.__wrapped__, '__qualname__', None)
        if not isinstance(name, str):
            raise TypeError(f'{self.__wrapped__!r} has no name: a graphed function is copied and pickled by name')
        return name

    __defaults__ = _of_function('__defaults__')
    __kwdefaults__ = _of_function('__kwdefaults__')


def lazy(fn: Any) -> Reason:
    """Why a call of the function does nothing yet (it makes a generator or a coroutine)."""
    while isinstance(fn, types.MethodType):
        fn = fn.__func__
    if inspect.iscoroutinefunction(fn):
        return Reason('the function is `async def`: it runs when it is awaited, after the call', Why.LAZY)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        text = 'the function is a generator function: it runs when it is iterated over, after the call'
        return Reason(text, Why.LAZY)
    return NONE
