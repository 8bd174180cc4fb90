"""Whether nearly each call of a function is of a new kind: watching such calls is work for nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from capturekit.functions.readable_state import is_cupys
from capturekit.functions.understood import module_of
from capturekit.model.class_layout import bases_of

#: After so many new kinds of calls in a row, more than are kept, the user is warned of it.
_MANY = 8


class Newness:
    """Whether nearly each call of a function is of a new kind, and which argument makes it new."""

    def __init__(self, fn: Callable[..., Any], limit: int) -> None:
        self._fn = fn
        self._patience = limit + _MANY
        self._new = 0
        self._last: dict[str, Any] = {}
        self._changing: set[str] = set()
        self.came_back = 0
        self.warning = ''

    def seen(self, args: Any, kwargs: Any, why: str = '') -> str:
        """Note a call of a new kind; return the warning that is due, or ''.

        ``why``: why numbers can't be read from the device's memory instead.
        """
        self._new += 1
        now = self._named(args, kwargs)
        self._changing |= {name for name, text in now.items() if name in self._last and self._last[name] != text}
        self._last = now
        if self.warning or self._new - self.came_back < self._patience:
            return ''
        names = ', '.join(sorted(self._changing)) or 'an argument'
        self.warning = (
            f'nearly each call is of a new kind, and none comes back: {names} has another value at nearly each call. '
            'Pass it as an array (cp.asarray(value)), of the same shape and dtype each time'
            + (f'. Its graph could not read it as a number: {why}' if why else '')
        )
        return self.warning

    def _named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by name, each with a value that differs between kinds of calls."""
        try:
            given = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):
            given = {str(number): value for number, value in enumerate(args)} | kwargs
        return {name: _word(value) for name, value in given.items()}


def _word(value: Any) -> Any:
    """A value that differs for arguments of different kinds of calls; it is found without calling the user's code."""
    if type(value) in (int, float, complex, str, bool, bytes, type(None)):
        return repr(value)
    if hasattr(type(value), 'strides') and any(is_cupys(module_of(base)) for base in bases_of(type(value))):
        return value.shape, str(value.dtype), value.strides
    if type(value) in (list, tuple):
        return [_word(part) for part in value]
    return type(value), id(value)
