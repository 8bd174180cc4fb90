"""Watched values, in tables that are compared by identity: the quick look, which a launch takes each time.

Most of what a run read is the same object at the next call, which is asked by a few calls into C. What is another
object, or can't be held in such a table, is compared by the rules for its kind (:class:`Environment
<capturekit.functions.environment.Environment>`).
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import numpy as np

from capturekit.functions import comparison
from capturekit.functions.comparison import Same
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import MISSING, among
from capturekit.model.kept_values import DEFAULT_FACTORY, UNCHANGING, Kept, answers_of, contents_of
from capturekit.model.plain_values import may_change

_FUNCTION_PARTS = ('__code__', '__defaults__', '__kwdefaults__')
_DICTS = (dict, OrderedDict, defaultdict, Counter)
Rows = list[tuple[Any, Any, Any]]


class IdentityTables:
    """Values that were read, by how they are read again. All hold what is there when they are added."""

    def __init__(self) -> None:
        #: Entries of dictionaries; names that are missing there.
        self.rows: Rows = []
        self.absent: list[tuple[Any, str]] = []
        #: The code and the defaults of functions, by the function's id.
        self.functions: dict[int, tuple[Any, Any, Any, Any]] = {}
        self._cells: list[tuple[CellType, Any]] = []
        self._slots: Rows = []
        #: Attributes that functions have besides; what other functions return that read a value.
        self._of_functions: Rows = []
        self._returned: list[tuple[Callable[[], Any], Any]] = []
        self._insides = _Insides()

    def add(self, entry: WatchedValue, value: Any) -> bool:
        """Add a watched value and what it holds; False if it has to be compared by its rules."""
        if entry.kind == 'variable' and value is not MISSING:
            self._cells.append((entry.holder, value))
        elif entry.kind == 'slot' and value is not MISSING:
            self._slots.append((entry.member.__get__, entry.holder, value))
        elif entry.kind == 'function' and entry.key in _FUNCTION_PARTS:
            function = entry.holder
            self.functions[id(function)] = (function, *[getattr(function, part) for part in _FUNCTION_PARTS])
        elif entry.kind in ('argument', 'bound'):
            pass
        elif entry.mapping is None:
            if not self._read(entry, value):
                return False
        elif (raw := entry.mapping.get(entry.key, MISSING)) is MISSING:
            self.absent.append((entry.mapping, entry.key))
        else:
            self.rows.append((entry.mapping, entry.key, raw))  # which may be what the guard has put there
        return self._insides.add(entry.kept, value)

    def _read(self, entry: WatchedValue, value: Any) -> bool:
        """Add what a function reads; False if it returns another object each time."""
        if entry.get is None or is_setting(entry) or entry.get() is not value:
            return False
        if entry.kind == 'function' and type(entry.holder) is FunctionType:
            self._of_functions.append((entry.holder, entry.key, value))
        else:
            self._returned.append((entry.get, value))
        return True

    def comparisons(self) -> list[Same]:
        """What compares all but the rows, the missing names and the parts of functions."""
        insides = self._insides
        tables = (
            (comparison.variables, [self._cells, [*self._slots, *insides.parts]]),
            (comparison.attributes_of_functions, [self._of_functions]),
            (comparison.returned, [self._returned]),
            (comparison.containers, [insides.sequences, insides.numbers, insides.shown]),
        )
        return [compare(*table) for compare, table in tables if any(table)]


def is_setting(entry: WatchedValue) -> bool:
    """Whether a function says by True that a setting is as it was."""
    return entry.kind == 'state' and entry.get is not None and entry.value is True


class _Insides:
    """Containers in watched values, prepared for a fast comparison of their items."""

    def __init__(self) -> None:
        self.sequences: list[tuple[Any, Any]] = []
        self.numbers: list[tuple[Any, Any, bytes]] = []
        #: What shows the items of an object, the object and the items.
        self.shown: list[tuple[Callable[[Any], list[Any]], Any, list[Any]]] = []
        #: What gets a part of an object, the object and the part.
        self.parts: Rows = []
        self.seen: set[int] = set()

    def add(self, kept: Kept, value: Any) -> bool:
        """Add a container; False if it can't be compared fast."""
        if kept.kind == 'plain':
            return not may_change(value)
        if kept.kind in ('same', 'method') or id(value) in self.seen:
            return True
        self.seen.add(id(value))
        contents = contents_of(value)
        if kept.kind in ('big', 'carried') or contents is None:
            return False
        if any(part.kind == 'carried' for part in kept.parts):
            return False
        _, labels, items, _ = contents
        if any(may_change(one) for one in (items if kept.kind == 'set' else labels)):
            return False
        return self._lay(value, contents) and all(self.add(part, item) for part, item in zip(kept.parts, items))

    def _lay(self, value: Any, contents: tuple[str, list[Any], list[Any], Any]) -> bool:
        """Prepare the comparison of the items of one container; False if there is no fast one."""
        cls = type(value)
        _, labels, items, data = contents
        if among(cls, _DICTS):
            count = len(value)
            self.sequences += [(value, labels[:count]), (value.values(), items[:count])]
            if cls is defaultdict:
                self.parts.append((DEFAULT_FACTORY.__get__, value, DEFAULT_FACTORY.__get__(value)))
        elif cls is np.ndarray and not value.dtype.hasobject:
            dtype, shape, raw, *more = data
            self.numbers.append((value, (dtype, shape, *more), raw))
        elif among(cls, (list, deque, set)):
            self.sequences.append((value, items))
        elif cls is functools._lru_cache_wrapper:
            self.shown.append((answers_of, value, items))
        else:
            return issubclass(cls, UNCHANGING)
        return True
