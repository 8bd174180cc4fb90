"""Whether nearly each call of a function is of a new kind: watching such calls is work for nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from capturekit.functions.readable_state import is_cupys
from capturekit.functions.understood import module_of
from capturekit.model.class_layout import bases_of

#: After so many new kinds of calls in a row, more than are kept, the user is warned of it.
_MANY = 8
_FORM = 'Pass arrays of the same form each time, padded to one size for example'
_VALUE = 'Pass it as an array (cp.asarray(value)), of the same shape and dtype each time'


class _Form(NamedTuple):
    """What differs between arrays of different kinds of calls."""

    shape: Any
    dtype: str
    strides: Any


class Newness:
    """Whether nearly each call of a function is of a new kind, and which argument makes it new."""

    def __init__(self, fn: Callable[..., Any], limit: int) -> None:
        self._fn = fn
        self._limit = limit
        self._patience = limit + _MANY
        self._new = self._again = 0
        #: The kinds that there were, by hash.
        self._known: set[int] = set()
        self._last: dict[str, Any] = {}
        self._changing: set[str] = set()
        self.came_back = 0
        self.warning = ''

    def seen(self, key: Any, args: Any, kwargs: Any, why: str = '') -> str:
        """Note a call of a new kind, or of one that was dropped; return the warning that is due, or ''.

        ``key`` is the kind's. ``why``: why numbers can't be read from the device's memory instead.
        """
        if self.warning:
            return ''
        self._new += 1
        self._again += hash(key) in self._known
        self._known.add(hash(key))
        now = self._named(args, kwargs)
        self._changing |= {name for name, text in now.items() if name in self._last and self._last[name] != text}
        self._last = now
        if self._new - self.came_back < self._patience:
            return ''
        if self._again:
            self.warning = (
                f'nearly each call is of a kind that was dropped: {len(self._known)} kinds of calls come in turn, and '
                f'only the last {self._limit} are kept. Keep more, by `ck.graphed(limit=...)`'
            )
            return self.warning
        arrays = {name for name in self._changing if isinstance(now.get(name), _Form)}
        values = self._changing - arrays
        said = [f'{_all(arrays)} has another shape, dtype or strides at nearly each call. {_FORM}'] if arrays else []
        if values or not arrays:
            said.append(f'{_all(values) or "an argument"} has another value at nearly each call. {_VALUE}')
            said += [f'Its graph could not read it as a number: {why}'] if why else []
        self.warning = f'nearly each call is of a new kind, and none comes back: {". ".join(said)}'
        return self.warning

    def _named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by name, each with a value that differs between kinds of calls."""
        try:
            given = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):
            given = {str(number): value for number, value in enumerate(args)} | kwargs
        return {name: _word(value) for name, value in given.items()}


def _all(names: set[str]) -> str:
    return ', '.join(sorted(names))


def _word(value: Any) -> Any:
    """A value that differs for arguments of different kinds of calls; it is found without calling the user's code."""
    if type(value) in (int, float, complex, str, bool, bytes, type(None)):
        return repr(value)
    if hasattr(type(value), 'strides') and any(is_cupys(module_of(base)) for base in bases_of(type(value))):
        return _Form(value.shape, str(value.dtype), value.strides)
    if type(value) in (list, tuple):
        return [_word(part) for part in value]
    return type(value), id(value)
