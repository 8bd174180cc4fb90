"""Python state as it was before a function is recorded: it is put back if the recording fails.

What a run changes for good is carried (:mod:`capturekit.functions.carried_state`), and put back by that. Other values
change only in the middle of a run, as in ``d['k'] = 0; d['k'] = new``. A recording that ends in that middle, or goes
another way, would leave what it has put there, which may be an array of the graph's, for the eager run that follows.
"""

from __future__ import annotations

import array
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from capturekit.functions.call_turns import is_alone
from capturekit.functions.carried_state import CarriedPlace
from capturekit.functions.watched_values import WatchedValue
from capturekit.guard import GUARD
from capturekit.model.class_layout import MISSING
from capturekit.model.source_line import Place, here
from capturekit.model.value_changes import containers

#: The kinds of watched values that are places where code puts values.
_PLACES = frozenset({'global', 'variable', 'attribute', 'slot', 'class attribute', 'function', 'context'})
#: Those that hold containers besides.
_HOLDING = _PLACES | {'argument', 'bound'}
#: The types of containers whose contents are put back; theirs count, whatever a class derived from them says.
_KINDS: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
_BYTES = (bytearray, array.array)
_LEFT = (
    'A recording was given up in the middle of the function, and a NumPy array or bytearray that it reaches holds '
    'other numbers than before. Another thread runs that may have put them there, so they are left: a function that '
    'changes such memory and puts it back goes on from the middle. Let it change a copy.'
)


class StateBefore:
    """The values in the places that a run can have reached, and what their containers and objects hold.

    ``objects``: those whose attributes the run has used, each with the function that gives its dictionary. ``missing``:
    dictionaries, each with names that the run has not found in it. ``named``: the globals of modules, each with the
    names in code that ran, also on lines that did not: ``except:`` and ``finally`` may come to those.
    """

    def __init__(
        self,
        entries: list[WatchedValue],
        objects: list[tuple[Any, Callable[[Any], Any]]],
        missing: list[tuple[Any, frozenset[str]]],
        named: Sequence[tuple[dict[str, Any], frozenset[str]]],
    ) -> None:
        self._classes = [(value, type(value)) for value, _ in objects]
        self._missing = [(names, found) for names, found in missing if type(names) is dict]
        held = [(entry, entry.read()) for entry in entries if entry.kind in _HOLDING]
        self._places = [(entry, value) for entry, value in held if entry.kind in _PLACES and _behind(value) is value]
        reached = [now for _, now in containers((entry.kept, value) for entry, value in held)]
        self._globals = [(names, name, names[name]) for names, found in named for name in found.intersection(names)]
        self._globals = [one for one in self._globals if _is_data(one[2])]
        kinds = [
            (one, next((kind for kind in _KINDS if isinstance(one, kind)), None))
            for one in (*reached, *(get(value) for value, get in objects), *(value for _, _, value in self._globals))
        ]
        self._contents = [(one, kind, kind(one)) for one, kind in kinds if kind is not None]
        self._alone = is_alone()  # else another thread may fill such memory meanwhile
        self._numbers = [(one, one.copy()) for one in map(_of_numbers, reached) if one is not None]
        self._bytes = [(one, one[:]) for one in reached if type(one) in _BYTES]

    def put_back(self) -> None:
        """Put all of it back that is another one now."""
        for value, cls in self._classes:
            if type(value) is not cls:
                object.__setattr__(value, '__class__', cls)
        for container, kind, before in self._contents:
            if isinstance(container, dict):
                _put_items_back(container, kind, before)
            elif [*map(id, kind(container))] != [*map(id, before)]:
                kind.clear(container)
                (set.update if kind is set else kind.extend)(container, before)
        for names, missing in self._missing:
            for name in missing.intersection(names):
                del names[name]
        for names, name, value in self._globals:
            if names.get(name) is not value and _is_data(names.get(name)):
                names[name] = value
        for entry, value in self._places:
            if _behind(entry.read()) is not value:
                put_there(entry, value)
        filled: list[tuple[Any, Any, Any]]
        filled = [(one, ..., before) for one, before in self._numbers if one.tobytes() != before.tobytes()]
        filled += [(one, slice(None), before) for one, before in self._bytes if one != before]
        if self._alone:
            for one, everything, before in filled:
                one[everything] = before
        elif filled:
            at = here() or Place('<unknown>', 0, '')
            warnings.warn_explicit(_LEFT, RuntimeWarning, at.file, at.line)


def _is_data(value: Any) -> bool:
    """Whether a global is no function, class or module: in the place of these a recording may have put others."""
    return not callable(value) and not isinstance(value, ModuleType)


def _behind(value: Any) -> Any:
    """What the guard has put a wrapper in the place of; any other value itself."""
    return GUARD.installation.original_of(value)


def _of_numbers(value: Any) -> Any:
    """The array of NumPy's, if a value is one that code may write into; else None."""
    array_of_numbers = isinstance(value, np.ndarray) and value.flags.writeable
    return np.ndarray.view(value, np.ndarray) if array_of_numbers else None


def _put_items_back(container: dict[Any, Any], kind: Any, before: dict[Any, Any]) -> None:
    """Put the items of a dict back. One that was taken out and comes back would stand at the end."""
    for key in [key for key in kind.keys(container) if key not in before]:
        kind.pop(container, key)
    if [*kind.keys(container)] != [*before]:
        kind.clear(container)
    for key, value in before.items():
        if dict.get(container, key, MISSING) is not value:
            kind.__setitem__(container, key, value)


def put_there(entry: WatchedValue, value: Any) -> None:
    """Put a value into the place of a watched one, or nothing where there was nothing."""
    if entry.kind == 'variable' and value is MISSING:
        del entry.holder.cell_contents
    elif entry.kind in ('class attribute', 'function') and value is MISSING:
        (type if entry.kind == 'class attribute' else object).__delattr__(entry.holder, entry.key)
    elif entry.kind == 'class attribute':
        type.__setattr__(entry.holder, entry.key, value)
    elif entry.kind == 'function':
        setattr(entry.holder, entry.key, value)
    elif entry.kind == 'context' and value is not MISSING:
        entry.holder.set(value)
    elif value is not MISSING:
        CarriedPlace(entry, ()).put(value)
    elif entry.kind != 'context':
        dict.pop(entry.mapping, entry.key)
