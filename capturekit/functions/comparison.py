"""Whether what a run read is as it was: tables of watched values, and functions that compare each kind of thing in one.

Most of what a run read is the same object at the next call, which is asked by a few calls into C. What is another
object, or can not be held in such a table, is compared by the rules for its kind (:class:`Environment
<capturekit.functions.environment.Environment>`). A comparison may also raise, where what it looks for is gone: see
:data:`GONE`.
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

from capturekit.functions import comparison
from capturekit.functions.array_blocks import layout_of
from capturekit.functions.watched_values import WatchedValue
from capturekit.model.class_layout import MISSING, among, form_of_class
from capturekit.model.kept_values import DEFAULT_FACTORY, UNCHANGING, Kept, answers_of, contents_of
from capturekit.model.plain_values import exact, may_change

Same = Callable[[], bool]
#: What a comparison raises where a name, a variable or a slot is gone.
GONE = (LookupError, ValueError, AttributeError, RuntimeError, TypeError)
_is = operator.is_
_GET = operator.itemgetter.__call__


def names_and_code(
    rows: Sequence[tuple[Any, Any, Any]],
    functions: Sequence[tuple[Any, Any, Any, Any]],
    absent: Sequence[tuple[Any, frozenset[str]]],
    sizes: Sequence[tuple[Any, int]],
    rest: Sequence[Same],
) -> Same:
    """Whether dictionaries hold what they held, functions have the parts that they had, names are missing that were
    missing, and dictionaries have the sizes that they had; then the ``rest``.

    Nearly each run reads such things, so they are compared without a call for each kind of them.
    """
    empty = [keys for keys, _ in absent if not keys]  # such as the dictionaries of most functions
    lacking = [(keys.isdisjoint, names) for keys, names in absent if keys]

    def same() -> bool:
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
        for one in rest:
            if one() is not True:
                break
        else:
            return True
        return False

    return same


def objects(table: Sequence[tuple[Any, type, Any, Any]]) -> Same:
    """Whether objects are of the class that they were of, and have the same ``__dict__``."""

    def same() -> bool:
        for value, cls, get, attributes in table:
            if type(value) is not cls or get(value) is not attributes:
                return False
        return True

    return same


def all_names(table: Sequence[tuple[Any, Any, list[str]]]) -> Same:
    """Whether objects have the names that they had, in that order."""

    def same() -> bool:
        for get, value, names in table:
            if [*get(value)] != names:
                break
        else:
            return True
        return False

    return same


def no_names(table: Sequence[tuple[Any, Sequence[Any]]]) -> Same:
    """Whether objects that had no names have none, as most functions: by what lists their names, in C."""
    return lambda: not any(any(map(get, values)) for get, values in table)


def classes(table: Sequence[tuple[type, Any]]) -> Same:
    """Whether classes have the names and bases that they had."""

    def same() -> bool:
        for cls, form in table:
            if form_of_class(cls) != form:
                break
        else:
            return True
        return False

    return same


def arrays(table: Sequence[tuple[Any, Any]]) -> Same:
    """Whether arrays have the shapes and strides that they had."""
    if any((array.shape, array.strides) != form for array, form in table):
        return lambda: False
    looks = [(array, *layout_of(array)) for array, _ in table]

    def same() -> bool:
        for array, look, layout in looks:
            if look(array) != layout:
                break
        else:
            return True
        return False

    return same


def many_names(table: Sequence[tuple[Any, Sequence[tuple[str, Any]]]]) -> Same:
    """Whether dictionaries hold what they held, of which there may be hundreds: compared entirely in C."""
    mappings = [values for values, _ in table]
    whole = [[*found, found[0]] for _, found in table]  # of two or more an itemgetter makes a tuple
    getters = [operator.itemgetter(*[name for name, _ in found]) for found in whole]
    before = [value for found in whole for _, value in found]
    return lambda: all(map(_is, chain.from_iterable(map(_GET, getters, mappings)), before))


def variables(cells: Sequence[tuple[Any, Any]], slots: Sequence[tuple[Any, Any, Any]]) -> Same:
    """Whether the variables of closures and the slots of objects hold what they held."""

    def same() -> bool:
        for cell, value in cells:
            if cell.cell_contents is not value:
                return False
        for get, value, item in slots:
            if get(value) is not item:
                break
        else:
            return True
        return False

    return same


def attributes_of_functions(table: Sequence[tuple[Any, str, Any]]) -> Same:
    """Whether functions have the attributes that they had: their texts, types and dictionaries."""
    functions, names, before = zip(*table)
    return lambda: all(map(_is, map(getattr, functions, names), before))


def returned(table: Sequence[tuple[Callable[[], Any], Any]]) -> Same:
    """Whether functions return what they returned."""

    def same() -> bool:
        for get, value in table:
            if get() is not value:
                break
        else:
            return True
        return False

    return same


def containers(
    sequences: Sequence[tuple[Any, Any]],
    numbers: Sequence[tuple[Any, Any, bytes]],
    shown: Sequence[tuple[Callable[[Any], list[Any]], Any, list[Any]]],
) -> Same:
    """Whether containers and arrays of NumPy hold what they held, and functions show what they showed of an object."""
    holders, sizes = [holder for holder, _ in sequences], [len(items) for _, items in sequences]
    held = [one for _, items in sequences for one in items]

    def same() -> bool:
        if [*map(len, holders)] != sizes or not all(map(_is, chain.from_iterable(holders), held)):
            return False
        for array, kind, data in numbers:
            flags = array.flags
            now = array.dtype, array.shape, array.strides, (flags.writeable, flags.aligned)
            if now != kind[:4] or array.tobytes() != data or exact(array.dtype) != kind[4]:
                return False
        for show, value, items in shown:
            seen = show(value)
            if len(seen) != len(items) or not all(map(_is, seen, items)):
                return False
        return True

    return same


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
