"""What a function read from Python besides its arrays, and whether it is as it was.

:class:`Environment` is made by :class:`capturekit.functions.watch.Watch` from one run. It compares identities first,
and by value only what is another object. No code of the user's is called for it.
"""

from __future__ import annotations

import functools
import operator
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from itertools import chain
from types import CellType
from typing import Any

import numpy as np

from capturekit.functions.carried_state import CarriedState
from capturekit.functions.watched_value import WatchedValue
from capturekit.guard import GUARD
from capturekit.model.class_layout import MISSING, among, attributes_of, bases_of, name_of
from capturekit.model.kept_values import VIEWS, Kept, contents_of
from capturekit.model.plain_values import show
from capturekit.model.value_changes import ValueDifference, difference

_FUNCTION_PARTS = ('__code__', '__defaults__', '__kwdefaults__')
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_is = operator.is_
_GET = operator.itemgetter.__call__


_Rows = list[tuple[Any, Any, Any]]
#: What is looked at first: entries of dictionaries, names not in them, cells, slots, and what takes longer.
_Laid = tuple[_Rows, list[tuple[Any, str]], list[tuple[CellType, Any]], _Rows, list[WatchedValue]]


class Environment:
    """What a run read besides its arguments. Holds on to all of it."""

    #: Whether the function may work beyond the elements of an array: a copy of it is too little then.
    far = False
    #: Whether code asks if two objects are the same: one that is equal is another then.
    by_identity = False
    #: Whether it is not known to its end, as following the run took too long.
    too_much = False

    def __init__(
        self,
        entries: list[WatchedValue],
        objects: list[tuple[Any, type, Any, Any]],
        arrays: list[Any],
        unwatchable: list[str],
        written: str | None,
        missing: list[tuple[Any, Any, frozenset[str], str]] | None = None,
        bases: list[tuple[type, tuple[type, ...]]] | None = None,
        names: list[tuple[Any, Any, list[str]]] | None = None,
        forms: list[tuple[Any, Any]] | None = None,
        carried: CarriedState | None = None,
    ) -> None:
        self.entries = entries
        #: What is in it but can't be compared, in sentences.
        self.unwatchable = unwatchable
        self._objects = objects
        self._arrays = arrays
        #: Dictionaries, and names that were looked for and are not in them; classes, and the bases that they had.
        self._missing: list[tuple[Any, frozenset[str], str]] = []
        self._unfound = missing or []
        #: Objects all of whose attributes count, and their names in order; arrays, and their shapes and strides.
        self._names = names or []
        self._forms = forms or []
        self._bases = bases or []
        #: The containers that were reached, by id: an argument that is one of them is another kind of call.
        self.reached: set[int] = set()
        #: The containers among the arguments that are compared by value, by id.
        self.own: dict[int, Any] = {}
        #: What the run changes in a way that launches do again, or None.
        self.carried = carried
        self._written = written
        self._empty()
        if written is None:
            self._prepare()
        else:
            self._more = True
            self._slow.extend(entries)

    def _empty(self) -> None:
        """Nothing is laid out yet."""
        self._rows: _Rows = []
        self._absent: list[tuple[Any, str]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._slots: list[tuple[Any, Any, Any]] = []
        self._functions: list[tuple[Any, Any, Any, Any]] = []
        self._sequences: list[tuple[Any, Any]] = []
        self._numbers: list[tuple[Any, Any, bytes]] = []
        self._slow: list[WatchedValue] = []
        #: Names in modules of CuPy's, with what they were, and with what is there while the guard is in place.
        self._inner: list[tuple[Any, list[str], list[Any], bool]] = []
        self._inner_now: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        self._inner_absent: list[tuple[Any, frozenset[str]]] = []
        self._inner_sizes: list[tuple[Any, int]] = []
        self._more = False

    def keep_inner(self, found: Iterable[tuple[Any, dict[str, Any], bool]]) -> None:
        """Compare what is CuPy's, too: modules' and classes' dictionaries, what was in them, whether that was all."""
        self._inner = [(values, list(names), list(names.values()), whole) for values, names, whole in found]
        self._lay_inner()
        self._more = self._more or bool(self._inner)

    def _lay_inner(self) -> None:
        """Lay out what of CuPy's is compared at each call, for a comparison that runs in C from end to end."""
        laid: list[tuple[Any, list[tuple[str, Any]]]] = []
        self._inner_absent = []
        for values, names, _, _ in self._inner:
            pairs = [(name, values.get(name, MISSING)) for name in names]  # read once: the guard may come and go
            found = [pair for pair in pairs if pair[1] is not MISSING]
            if found:
                laid.append((values, [*found, found[0]]))  # of two or more an itemgetter makes a tuple
            if len(found) < len(names):
                self._inner_absent.append((values, frozenset(name for name, value in pairs if value is MISSING)))
        self._inner_now = (
            [operator.itemgetter(*[name for name, _ in found]) for _, found in laid],
            [values for values, _ in laid],
            [value for _, found in laid for _, value in found],
        )
        self._inner_sizes = [(values, len(values)) for values, _, _, whole in self._inner if whole]

    def _another(self) -> str | None:
        """What of CuPy's is another one; looked at through what the guard has put in place."""
        behind = GUARD.installation.behind
        for values, names, before, whole in self._inner:
            now = {
                name: found
                for name in (list(values) if whole else names)
                if (found := behind(values.get(name))) is not None
            }
            then = dict(zip(names, before))
            for name in (*names, *now):
                found = now.get(name)
                if (None if found is MISSING else found) is not then.get(name):
                    return f'{name} of {values.get("__name__") or values.get("__module__")} is not what it was'
        return None

    def arrays(self) -> list[Any]:
        """The arrays in it, which are held by identity."""
        return list(self._arrays)

    def written(self) -> str | None:
        """Say what the run itself changed of what is watched, or what can't be watched; None if nothing."""
        return self._written

    def changed(self) -> str | None:
        """None if everything is as it was when the run began; else a sentence about the first thing that isn't."""
        try:
            for mapping, key, value in self._rows:
                if mapping[key] is not value:
                    break
            else:
                for function, code, defaults, keywords in self._functions:
                    if (
                        function.__code__ is not code
                        or function.__defaults__ is not defaults
                        or function.__kwdefaults__ is not keywords
                    ):
                        break
                else:
                    if not self._more or self._same():
                        return None
        except (LookupError, ValueError, AttributeError, RuntimeError, TypeError):
            pass
        return self._compare()

    def _same(self) -> bool:
        """The part of ``changed`` that is not needed for globals, functions and plain values."""
        for value, cls, get, attributes in self._objects:
            if type(value) is not cls or get(value) is not attributes:
                return False
        for mapping, key in self._absent:
            if key in mapping:
                return False
        for mapping, names, _ in self._missing:
            if not names.isdisjoint(mapping):
                return False
        for cls, bases in self._bases:
            if bases_of(cls) is not bases:
                return False
        if not self._cupy_same():
            return False
        for get, value, attributes in self._names:
            if list(get(value)) != attributes:
                return False
        for array, form in self._forms:
            if (array.shape, array.strides) != form:
                return False
        for cell, value in self._cells:
            if cell.cell_contents is not value:
                return False
        for get, value, item in self._slots:
            if get(value) is not item:
                return False
        for sequence, items in self._sequences:
            if len(sequence) != len(items) or not all(map(_is, sequence, items)):
                return False
        for array, kind, numbers in self._numbers:
            if (array.dtype, array.shape, array.strides, array.flags.writeable) != kind or array.tobytes() != numbers:
                return False
        if self.carried is not None and self.carried.unfit() is not None:
            return False
        return all(self._difference(entry) is None for entry in self._slow)

    def _cupy_same(self) -> bool:
        """The part of ``changed`` that is about what CuPy's own code calls."""
        getters, mappings, before = self._inner_now
        if not all(map(_is, chain.from_iterable(map(_GET, getters, mappings)), before)):
            return False
        if not all(names.isdisjoint(mapping) for mapping, names in self._inner_absent):
            return False
        return all(len(mapping) == size for mapping, size in self._inner_sizes)

    def _difference(self, entry: WatchedValue) -> ValueDifference | None:
        """Compare one thing by its rules."""
        value = entry.read()
        found = difference(entry.kept, value)
        if found is None and self.by_identity and _replaced(entry.kept, value, set()):
            return ValueDifference('', 'is or holds another object, equal to the one that was there')
        return found

    def _compare(self) -> str | None:
        """Compare everything by its rules. Values that are others and equal are the ones to look for next time."""
        for value, cls, get, attributes in self._objects:
            if type(value) is not cls:
                return f'an object that was {_a(cls)} is {_a(type(value))}'
            if self.carried is not None and get(value) is not attributes:
                return f'{_a(cls)} has another __dict__ than when recorded'
        for cls, bases in self._bases:
            if bases_of(cls) is not bases:
                return f'class {name_of(cls)} has other bases than when recorded'
        for get, value, attributes in self._names:
            if list(get(value)) != attributes:
                return f'{_a(type(value))} has attributes {", ".join(get(value))} and had {", ".join(attributes)}'
        other = self._another()
        if other is not None:
            return other
        for array, form in self._forms:
            if (array.shape, array.strides) != form:
                return f'an array is of shape {array.shape} and was of shape {form[0]} when recorded'
        for get, value, names, where in self._unfound:
            mapping = get(value)
            if not names.isdisjoint(mapping):
                name = min(names.intersection(mapping))
                return f'{where.format(name)} is {show(mapping[name])} and was not there when recorded'
        for entry in self.entries:
            found = self._difference(entry)
            if found is not None:
                return f'{entry.where(found.path)} {found.text} when recorded'
        unfit = None if self.carried is None else self.carried.unfit()
        if unfit is not None:
            return unfit
        if self._written is None:
            self._objects = [(value, cls, get, get(value)) for value, cls, get, _ in self._objects]
            self._prepare()
        return None

    def _prepare(self) -> None:
        """Lay out what ``changed`` looks at first: identities."""
        self._missing = [(get(value), names, where) for get, value, names, where in self._unfound]
        self._lay_inner()
        laid: _Laid = ([], [], [], [], [])
        rows, absent, cells, slots, slow = laid
        functions: dict[int, Any] = {}
        inner = _Insides()
        reached: set[int] = set()
        dictionaries = {id(value): get(value) for value, _, get, _ in self._objects}
        for entry in self.entries:
            if entry.kind == 'attribute':
                entry.mapping = dictionaries.get(id(entry.holder), entry.mapping)
            value = entry.read()
            _note_containers(entry.kept, value, reached)
            if self.carried is not None and difference(entry.kept, value) is not None:
                slow.append(entry)  # the run has just changed it, and a call that begins like the run has not yet come
                continue
            if entry.kind == 'variable' and value is not MISSING:
                cells.append((entry.holder, value))
            elif entry.kind == 'slot' and value is not MISSING:
                slots.append((entry.member.__get__, entry.holder, value))
            elif entry.kind == 'function':
                function = entry.holder
                functions[id(function)] = (function, *[getattr(function, part) for part in _FUNCTION_PARTS])
            elif entry.kind in ('argument', 'bound'):
                pass
            elif entry.mapping is None:
                slow.append(entry)
                continue
            elif (raw := entry.mapping.get(entry.key, MISSING)) is MISSING:
                absent.append((entry.mapping, entry.key))
            else:
                rows.append((entry.mapping, entry.key, raw))  # which may be what the guard has put there
            if not inner.add(entry.kept, value):
                slow.append(entry)
        self._rows, self._absent, self._cells, self._slots, self._slow = laid
        self._functions, self._sequences, self._numbers = list(functions.values()), inner.sequences, inner.numbers
        grown = set[int]() if self.carried is None else self.carried.lists()
        self.reached = reached | grown | {id(value) for value, _, _, _ in self._objects}
        self._more = self._has_more()

    def _has_more(self) -> bool:
        """Whether there is anything to look at besides globals, functions and plain values."""
        return self.carried is not None or any((
            self._objects, self._absent, self._cells, self._slots, self._slow, self._sequences, self._numbers,
            self._missing, self._bases, self._names, self._forms, self._inner,
        ))  # fmt: skip


def _replaced(kept: Kept, value: Any, seen: set[tuple[int, int]]) -> bool:
    """Whether an equal value is, or holds, another object than the one that was kept. Tuples have no identity here."""
    if kept.kind in ('plain', 'same', 'method', 'big', 'carried') or (id(kept), id(value)) in seen:
        return False
    seen.add((id(kept), id(value)))
    if value is not kept.value and not issubclass(type(value), _UNCHANGING):
        return True
    contents = contents_of(value)
    items = [] if contents is None else contents[2]
    return any(_replaced(part, item, seen) for part, item in zip(kept.parts, items))


def _note_containers(kept: Kept, value: Any, reached: set[int]) -> None:
    """Add the ids of a container and of those that it holds, at any depth."""
    if kept.kind in ('plain', 'same', 'method', 'carried') or id(value) in reached:
        return
    reached.add(id(value))
    contents = contents_of(value)
    for part, item in zip(kept.parts, attributes_of(value).values() if contents is None else contents[2]):
        _note_containers(part, item, reached)


class _Insides:
    """Containers in watched values, laid out for a fast comparison of what they hold."""

    def __init__(self) -> None:
        self.sequences: list[tuple[Any, Any]] = []
        self.numbers: list[tuple[Any, Any, bytes]] = []
        self.seen: set[int] = set()

    def add(self, kept: Kept, value: Any) -> bool:
        """False if a fast comparison can't tell."""
        if kept.kind in ('plain', 'same') or id(value) in self.seen:
            return True
        if kept.kind == 'method':
            return True
        self.seen.add(id(value))
        cls = type(value)
        contents = contents_of(value)
        if kept.kind in ('big', 'carried') or contents is None or cls is defaultdict:
            return False
        if any(part.kind == 'carried' for part in kept.parts):
            return False
        _, labels, items, data = contents
        if among(cls, _DICTS):
            self.sequences.append((value, labels))
            self.sequences.append((value.values(), items))
        elif cls is np.ndarray and not value.dtype.hasobject:
            dtype, shape, raw, *more = data
            self.numbers.append((value, (dtype, shape, *more), raw))
        elif among(cls, (list, deque, set)):
            self.sequences.append((value, items))
        elif not issubclass(cls, _UNCHANGING):
            return False
        return all(self.add(part, item) for part, item in zip(kept.parts, items))


_UNCHANGING = (
    tuple, frozenset, slice, functools.partial, types.BuiltinMethodType, types.MethodWrapperType, *VIEWS,
)  # fmt: skip


def _a(cls: type) -> str:
    name = name_of(cls)
    return f'{"an" if name[:1].lower() in "aeiou" else "a"} {name} object'
