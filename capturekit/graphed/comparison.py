"""Whether what a run read is as it was, by tables of identities.

Most of what a run read is the same object at the next call, which is asked by a few calls into C. What is another
object, or can not be held in such a table, is compared by the rules for its kind (:class:`Environment
<capturekit.graphed.environment.Environment>`).
"""

from __future__ import annotations

import functools
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import chain
from types import CellType, FunctionType
from typing import Any

import numpy as np

from capturekit.graphed.array_blocks import extent_of, layout_of
from capturekit.graphed.watched_values import WatchedValue
from capturekit.model.class_layout import MISSING, among, form_of_class
from capturekit.model.kept_values import DEFAULT_FACTORY, UNCHANGING, Kept, answers_of, contents_of
from capturekit.model.plain_values import exact, may_change

Same = Callable[[], bool]
#: A dictionary, a name and a value; or a function, what it is asked about, and what it has returned.
Rows = list[tuple[Any, Any, Any]]
#: What a comparison raises where a name, a variable or a slot is gone.
GONE = (LookupError, ValueError, AttributeError, RuntimeError, TypeError)
_FUNCTION_PARTS = ('__code__', '__defaults__', '__kwdefaults__')
_DICTS = (dict, OrderedDict, defaultdict, Counter)
#: Up to so many names of libraries are compared one by one.
_FEW = 32
_is = operator.is_
_CELL = vars(CellType)['cell_contents'].__get__


def keys_of(mapping: Any) -> Any:
    """A view of a dictionary's keys, or of those of a class. To ask it for few names takes no look at all keys."""
    return dict.keys(mapping) if isinstance(mapping, dict) else mapping.keys()


class IdentityTables:
    """Values that were read, by how they are read again. All hold what is there when they are added."""

    def __init__(self) -> None:
        #: Entries of dictionaries, and those of libraries, of which there may be hundreds.
        self.rows: Rows = []
        self.inner: Rows = []
        #: The keys of dictionaries, with names that are missing there; dictionaries that may not grow, and their sizes.
        self.absent: list[tuple[Any, frozenset[str]]] = []
        self.sizes: list[tuple[Any, int]] = []
        #: The code and the defaults of functions, by the function's id.
        self.functions: dict[int, tuple[Any, Any, Any, Any]] = {}
        #: Functions that have to return the same object, and those that have to return an equal one.
        self.identical: Rows = []
        self.equal: Rows = []
        #: Settings: functions that say by True that one is as it was.
        self.settings: list[Callable[[], Any]] = []
        #: See :class:`Environment <capturekit.graphed.environment.Environment>`.
        self.objects: Sequence[tuple[Any, type, Any, Any]] = ()
        self.names: Sequence[tuple[Any, Any, list[str]]] = ()
        self.classes: Sequence[tuple[type, Any]] = ()
        self.forms: Sequence[tuple[Any, Any]] = ()
        #: What shares its memory, and where that lies.
        self.shared: Sequence[tuple[Any, tuple[int, int]]] = ()
        self._sequences: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()

    def add(self, entry: WatchedValue, value: Any) -> bool:
        """Add a watched value and what it holds; False if it has to be compared by its rules."""
        if entry.kind == 'variable' and value is not MISSING:
            self.identical.append((_CELL, entry.holder, value))
        elif entry.kind == 'slot' and value is not MISSING:
            self.identical.append((entry.member.__get__, entry.holder, value))
        elif entry.kind == 'function' and entry.key in _FUNCTION_PARTS:
            function = entry.holder
            self.functions[id(function)] = (function, *[getattr(function, part) for part in _FUNCTION_PARTS])
        elif entry.kind in ('argument', 'bound'):
            pass
        elif entry.mapping is None:
            if entry.kind == 'state' and entry.get is not None and entry.value is True:
                self.settings.append(entry.get)
                return True
            if entry.get is None or entry.get() is not value:  # it returns another object each time
                return False
            if entry.kind == 'function' and type(entry.holder) is FunctionType:
                self.identical.append((operator.attrgetter(entry.key), entry.holder, value))
            else:
                self.identical.append((operator.call, entry.get, value))
        elif (raw := entry.mapping.get(entry.key, MISSING)) is MISSING:
            self.absent.append((keys_of(entry.mapping), frozenset({entry.key})))
        else:
            self.rows.append((entry.mapping, entry.key, raw))  # which may be what the guard has put there
        return self._add_contents(entry.kept, value)

    def leave_out(self, settings: Sequence[WatchedValue]) -> None:
        """Do not compare these settings."""
        self.settings = [get for get in self.settings if not any(get is entry.get for entry in settings)]

    def _add_contents(self, kept: Kept, value: Any) -> bool:
        """Add what a container holds; False if it can't be compared fast."""
        if kept.kind == 'plain':
            return not may_change(value)
        if kept.kind in ('same', 'method') or id(value) in self._seen:
            return True
        self._seen.add(id(value))
        contents = contents_of(value)
        if kept.kind in ('big', 'carried') or contents is None or any(part.kind == 'carried' for part in kept.parts):
            return False
        _, labels, items, _ = contents
        if any(may_change(one) for one in (items if kept.kind == 'set' else labels)):
            return False
        return self._lay(value, labels, items) and all(map(self._add_contents, kept.parts, items))

    def _lay(self, value: Any, labels: list[Any], items: list[Any]) -> bool:
        """Add the items of one container; False if there is no fast comparison of them."""
        cls = type(value)
        if among(cls, _DICTS):
            count = len(value)
            self._sequences += [(value, labels[:count]), (value.values(), items[:count])]
            if cls is defaultdict:
                self.identical.append((DEFAULT_FACTORY.__get__, value, DEFAULT_FACTORY.__get__(value)))
        elif cls is np.ndarray and not value.dtype.hasobject:
            self.equal.append((_state_of_array, value, _state_of_array(value)))
        elif among(cls, (list, deque, set)):
            self._sequences.append((value, items))
        elif cls is functools._lru_cache_wrapper:
            self.equal.append((lambda cache: [*map(id, answers_of(cache))], value, [*map(id, items)]))
        else:
            return issubclass(cls, UNCHANGING)
        return True

    def comparison(self, rest: Sequence[Same]) -> Same:
        """What compares all of it, and then asks the ``rest``."""
        asked = [*self.settings, *rest]
        if any((array.shape, array.strides) != form for array, form in self.forms):
            return lambda: False
        equal: Rows = [(lambda one, get=get: [*get(one)], value, names) for get, value, names in self.names if names]
        equal += [(form_of_class, cls, form) for cls, form in self.classes]
        equal += [(look, array, layout) for array, _ in self.forms for look, layout in (layout_of(array),)]
        equal += [*self.equal, *((extent_of, value, extent) for value, extent in self.shared)]
        nameless = [(get, value) for get, value, names in self.names if not names]
        asked += [_no_names(nameless)] if nameless else []
        asked += [_sequences(self._sequences)] if self._sequences else []
        rows, few = self.rows, len(self.inner) <= _FEW
        if few:
            rows = [*rows, *self.inner]
        else:
            asked.append(_many_names(self.inner))
        return self._all_same(rows, equal, asked)

    def _all_same(self, rows: Rows, equal: Rows, rest: Sequence[Same]) -> Same:
        """Whether dictionaries hold what they held, functions have the parts that they had, names are missing that were
        missing, dictionaries have the sizes that they had, objects are of the class that they were of and have the same
        ``__dict__``, and functions return what they returned; then the ``rest``.

        Nearly each run reads such things, so they are compared without a call for each kind of them.
        """
        functions, sizes, objects, identical = [*self.functions.values()], self.sizes, self.objects, self.identical
        empty = [keys for keys, _ in self.absent if not keys]  # such as the dictionaries of most functions
        lacking = [(keys.isdisjoint, names) for keys, names in self.absent if keys]

        def same() -> bool:
            try:
                for mapping, key, value in rows:
                    if mapping[key] is not value:
                        return False
                for function, code, defaults, keywords in functions:
                    if (
                        function.__code__ is not code
                        or function.__defaults__ is not defaults
                        or function.__kwdefaults__ is not keywords
                    ):
                        return False
                if any(empty):
                    return False
                for lacks, names in lacking:
                    if not lacks(names):
                        return False
                for mapping, size in sizes:
                    if len(mapping) != size:
                        return False
                for value, cls, get, attributes in objects:
                    if type(value) is not cls or get(value) is not attributes:
                        return False
                for get, value, item in identical:
                    if get(value) is not item:
                        return False
                for get, value, before in equal:
                    if get(value) != before:
                        return False
                for one in rest:
                    if one() is not True:
                        return False
            except GONE:
                return False
            return True

        return same


def _no_names(rows: Sequence[tuple[Any, Any]]) -> Same:
    """Whether objects that had no names have none, as most functions."""
    getters, values = zip(*rows)
    return lambda: not any(map(operator.call, getters, values))


def _many_names(rows: Rows) -> Same:
    """Whether dictionaries hold what they held, compared entirely in C."""
    mappings, names, before = zip(*rows)
    return lambda: all(map(_is, map(operator.getitem, mappings, names), before))


def _sequences(held: Sequence[tuple[Any, Any]]) -> Same:
    """Whether containers hold what they held."""
    holders, sizes = [holder for holder, _ in held], [len(items) for _, items in held]
    before = [one for _, items in held for one in items]
    return lambda: [*map(len, holders)] == sizes and all(map(_is, chain.from_iterable(holders), before))


def _state_of_array(array: Any) -> tuple[Any, ...]:
    """All that is to be seen of an array of NumPy."""
    flags = array.flags
    state = array.dtype, array.shape, array.strides, (flags.writeable, flags.aligned)
    return *state, array.tobytes(), exact(array.dtype)
