"""The attributes of objects and classes that are watched: those that code names, and those that count without it."""

from __future__ import annotations

import enum
import functools
import itertools
import sys
import types
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.functions.doubts import Doubts, NamesUsed
from capturekit.functions.handed_on import changes_in_place, is_of_tables
from capturekit.functions.hidden_state import is_as_it_was, is_output
from capturekit.functions.loaded_values import MODULES
from capturekit.functions.ownership import LibraryState, Ownership
from capturekit.functions.readable_state import is_cupys
from capturekit.functions.understood import BY_POINTER, CONSTANT, OF_FUNCTIONS, OF_INSTANCES, OF_PYTHON, module_of
from capturekit.functions.watched_values import Holder, WatchedValues, read_attribute, read_unguarded
from capturekit.guard import GUARD
from capturekit.model.class_layout import bases_of, dictionary_of_class, made_by_class_statement, name_of
from capturekit.model.plain_values import a, plain_key


class Attributes:
    """Watches attributes by their names."""

    def __init__(
        self, values: WatchedValues, names: NamesUsed, library: LibraryState, ownership: Ownership, doubts: Doubts
    ) -> None:
        self._values, self._names, self._library = values, names, library
        self._ownership, self._doubts = ownership, doubts
        #: By the id of a dictionary of a class or of globals: it, the names that were sought in vain, and the words
        #: that say where.
        self.absent: dict[int, tuple[Any, set[str], str]] = {}
        #: The names that code looks up in classes.
        self._sought: dict[tuple[int, str], type] = {}

    def attributes_of(self, holder: Holder, names: Iterable[str], at_first: bool) -> None:
        """Watch the attributes with these names; ``at_first``: also those that count without being named."""
        chosen = set(names) | (self._unnamed(holder) if at_first else set())
        if holder.kind == 'class':
            for name in sorted(chosen):
                self.search_class(holder.value, name)
            if type(holder.value) is not type:
                self.class_names(type(holder.value), chosen)
            return
        for name in sorted(chosen):
            self.attribute_of(holder, name)

    def _unnamed(self, holder: Holder) -> set[str]:
        """The attributes that count though no code names them."""
        found: set[str] = set()
        if holder.kind == 'class' and issubclass(holder.cls, enum.EnumMeta):
            found = {'_member_names_', '_member_map_', '_value2member_map_', '_boundary_'}
        if holder.kind == 'class' and self._names.everything and holder.owned:
            found |= {name for base in bases_of(holder.value) for name in _public(base)}
        elif holder.kind == 'object':
            if issubclass(type(holder.cls), enum.EnumMeta):
                found |= _OF_MEMBERS & holder.start.keys()
            if holder.owned:
                found |= OF_INSTANCES & holder.start.keys()
            if holder.whole or (self._names.everything and holder.of_user):
                found |= holder.start.keys() | holder.slots.keys()
                if self._names.everything:
                    found |= {name for base in bases_of(holder.cls) for name in _public(base)}
            if not holder.owned:
                found |= {name for name, value in holder.start.items() if self._is_data(value)}
                found |= {name for name, value in holder.slots.items() if self._is_data(value)}
            if not holder.owned and self._names.everything:
                found |= {name for name, value in holder.start.items() if name[:1] != '_' and _is_plain(value)}
        elif holder.cls is FunctionType and self._names.everything:
            found = {n for n, value in holder.start.items() if n[:2] != '__' and (holder.owned or _is_plain(value))}
        elif holder.kind == 'module' and self._names.everything and holder.owned:
            found = {name for name in holder.start if name not in OF_PYTHON}
        elif holder.kind == 'module' and self._names.everything and is_of_tables(holder.value):
            found = {
                name for name, value in holder.start.items() if name[:2] != '__' and changes_in_place(value, False)
            }
        return found

    def attribute_of(self, holder: Holder, name: str) -> None:
        """Watch the attribute of an object with this name, or that it has none."""
        if holder.value is sys and name == MODULES and not (self._names.opens_modules or name in self._names.strings):
            return
        if name in holder.start:
            self._attribute(holder, name, holder.start[name])
            found = True
        elif name in holder.slots:
            self._attribute(holder, name, holder.slots[name])
            found = True
        elif name in OF_FUNCTIONS and type(holder.value) is FunctionType:
            get = functools.partial(getattr, holder.value, name)
            self._values.watch('function', holder.value, name, get(), ('', holder.whose), None, get)
            found = True
        else:
            found = False
            counts = holder.owned or holder.kind == 'object' or name in self._names.strings
            if holder.layout.dictionary is not None and counts:
                holder.missing.add(name)
        of_class = holder.kind == 'object' or (holder.kind == 'module' and holder.cls is not ModuleType)
        if of_class and (not found or holder.owned):
            self.search_class(holder.cls, name)
        if holder.kind == 'module' and not found and name != '__getattr__':
            outer, self._values.finder = self._values.finder, holder.start.get('__getattr__')
            self.attribute_of(holder, '__getattr__')  # a module calls it for names that it does not have
            self._values.finder = outer

    def _attribute(self, holder: Holder, name: str, value: Any) -> None:
        if holder.kind == 'module' and not holder.owned:
            if is_output(value):
                same = is_as_it_was(vars(holder.value), name, value)  # printing to it is no change
                self._values.watch('state', holder.value, name, True, ('which file is', holder.whose), None, same)
                return
            value = GUARD.installation.original_of(value)
        if name in BY_POINTER:
            self._addressed(name, holder.cls)
        where = ('attribute', holder.whose)
        member = holder.layout.slots.get(name)
        if name not in holder.start and member is not None:
            get = functools.partial(holder.layout.read_slot, holder.value, name)
            entry = self._values.watch('slot', holder.value, name, value, where, None, get)
            if entry is not None:
                entry.member = member
            return
        dictionary = holder.layout.dictionary
        assert dictionary is not None
        get = functools.partial(
            read_unguarded if holder.kind == 'module' else read_attribute, dictionary, holder.value, name
        )
        kind = 'of CuPy' if holder.kind == 'module' and is_cupys(holder.start.get('__name__')) else 'attribute'
        self._values.watch(kind, holder.value, name, value, where, dictionary(holder.value), get)

    def _addressed(self, name: str, cls: type) -> None:
        """Note that NumPy may read memory that an object gives by its address."""
        self._doubts.unwatchable.append(f'{a(cls)} has the attribute {name}: what NumPy reads there is not known')

    def _is_data(self, value: Any) -> bool:
        """True for an attribute that a library's code reads from its own object, and that the user may replace."""
        cls = type(value)
        base: Any = tuple if issubclass(cls, tuple) else list if issubclass(cls, list) else None
        parts = [value] if base is None else itertools.islice(base.__iter__(value), _PARTS)
        return issubclass(cls, _MADE_BY_USERS) or any(
            self._values.is_array(one) or issubclass(type(one), np.ndarray) or is_cupys(module_of(type(one)))
            for one in parts
        )

    def search_class(self, cls: type, name: str) -> None:
        """Watch what a class and its bases hold under a name."""
        if (id(cls), name) in self._sought:
            return
        self._sought[id(cls), name] = cls
        found = False
        for base in bases_of(cls):
            foreign = self._ownership.is_foreign_class(base)
            members = dictionary_of_class(base)
            if name in members:
                found = True
                self.class_attribute(base, name, members[name])  # those further up, too: for super()
            elif not foreign and not found:
                self.absent.setdefault(id(base), (members, set(), f'attribute {{}} of class {name_of(base)}'))[1].add(
                    name
                )

    def class_attribute(self, cls: type, name: str, value: Any) -> None:
        """Watch what a class has under a name."""
        if not made_by_class_statement(cls):
            return
        where = ('attribute', f' of class {name_of(cls)}')
        if self._ownership.is_foreign_class(cls):
            self._library.inside_of(cls, (name,))
            if plain_key(value) is None and not issubclass(type(value), CONSTANT):
                self._values.watch('class attribute', cls, name, value, where, dictionary_of_class(cls))
        elif name in BY_POINTER:
            self._addressed(name, cls)
        else:
            self._values.watch('class attribute', cls, name, value, where, dictionary_of_class(cls))

    def class_names(self, cls: type, names: Iterable[str]) -> None:
        """Watch what a class and its bases hold under these names."""
        for name in sorted(names):
            self.search_class(cls, name)


def _is_plain(value: Any) -> bool:
    return plain_key(value) is not None


#: What the standard library reads from a member of an enumeration for ``value`` and ``name``.
_OF_MEMBERS = frozenset({'_value_', '_name_'})
#: What the user gives to objects of libraries that call it.
_MADE_BY_USERS = (FunctionType, types.MethodType, functools.partial)
#: How many items of a tuple or list are examined.
_PARTS = 100


def _public(cls: type) -> list[str]:
    return [name for name in dictionary_of_class(cls) if name not in OF_PYTHON] if made_by_class_statement(cls) else []
