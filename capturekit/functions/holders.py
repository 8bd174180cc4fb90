"""The objects that a run used, and which of their attributes are watched: those that code names, or all."""

from __future__ import annotations

import enum
import functools
import itertools
import operator
import threading
import types
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.functions.backends import backend_of_a_user
from capturekit.functions.binding import AsFunction
from capturekit.functions.classes_reached import changes_in_place, is_of_tables
from capturekit.functions.doubts import Doubts
from capturekit.functions.follow_time import FollowTime
from capturekit.functions.handed_on import reads_unknown
from capturekit.functions.hidden_parts import HiddenParts
from capturekit.functions.library_state import LibraryState
from capturekit.functions.logger_state import is_logger
from capturekit.functions.names_used import NamesUsed
from capturekit.functions.object_uses import ObjectUses
from capturekit.functions.output_files import is_as_it_was, is_output
from capturekit.functions.ownership import Ownership
from capturekit.functions.readable_state import (
    in_package,
    is_cupys,
    is_whole,
    reaches_far,
)
from capturekit.functions.settings import BACKENDS, setting_for
from capturekit.functions.understood import (
    BY_POINTER,
    CONSTANT,
    MAKERS,
    METHODS_BY_NAME,
    OF_ARRAYS,
    OF_DEVICES,
    OF_FUNCTIONS,
    OF_INSTANCES,
    OF_PYTHON,
    OPENING,
    OUT_OF_SIGHT,
    SPECIAL,
    module_of,
    owner_of,
)
from capturekit.functions.unsettled import Unsettled
from capturekit.functions.watched_value import (
    Holder,
    held_in_closure,
    itself,
    of_this_thread,
    read_attribute,
    read_unguarded,
)
from capturekit.functions.watched_values import UNBOUND, WatchedValues
from capturekit.guard import GUARD
from capturekit.model.class_layout import (
    Layout,
    among,
    bases_of,
    dictionary_of_class,
    form_of_class,
    layout_of,
    made_by_class_statement,
    name_of,
)
from capturekit.model.kept_values import IsArray
from capturekit.model.plain_values import a, plain_key

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_MODULE_DICT = vars(ModuleType)['__dict__'].__get__


class Holders:
    """The objects that a run used. :class:`capturekit.functions.watch.Watch` adds the names that code uses."""

    def __init__(self, is_array: IsArray, skip: Callable[[str], bool]) -> None:
        self._is_array, self._skip = is_array, skip
        self._ownership, self._doubts, self._unsettled = Ownership(skip), Doubts(skip), Unsettled()
        self._names, self._uses = NamesUsed(), ObjectUses(is_array)
        self._library = LibraryState(self._ownership)
        self._values = WatchedValues(is_array, self._doubts, self._unsettled)
        self._values.note = self._note
        self._hidden = HiddenParts(self._values)
        self._holders: dict[int, Holder] = {}
        self._classes: dict[int, tuple[type, set[str]]] = {}
        self._bases: dict[int, tuple[type, tuple[Any, ...]]] = {}
        self._absent: dict[int, tuple[Any, set[str], str]] = {}
        self._far = False
        #: The names that code looks up in classes.
        self._sought: dict[tuple[int, str], type] = {}
        self._time = FollowTime()
        #: Whether the run called code of threads, and the locks that it may have used, by id: its changes are then
        #: ordered with those of other threads.
        self._waits = False
        self._locks: dict[int, Any] = {}
        #: The functions that a watched value is or holds, by id.
        self._reached: set[int] = set()

    def _know(self, function: FunctionType) -> None:
        raise NotImplementedError

    # Values

    def _note(self, value: Any) -> None:
        cls = type(value)
        if id(value) in self._holders:
            return
        self._far = self._far or reaches_far(value)
        if among(cls, _LOCKS):
            self._locks[id(value)] = value
        setting = setting_for(value)
        self._values.depends_on(setting)
        if setting == BACKENDS and backend_of_a_user():
            self._values.opaque("is or holds a function of SciPy, for which a backend of the user's is set")
        if plain_key(value) is not None and not issubclass(type(cls), enum.EnumMeta):
            self._library.of_library(cls)
            return
        if self._hidden.has_state(value, cls):
            return
        finds = False
        if among(cls, (operator.attrgetter, operator.methodcaller)):
            texts = [text for text in value.__reduce__()[1] if type(text) is str]
            self._unsettled.asked_names.update(part for text in texts for part in text.split('.'))
        if among(cls, _BUILTIN) and (any(value is one for one in _READ_ALL) or value.__name__ in _METHODS_BY_NAME):
            finds = self._finds_names(value)
            self._unsettled.asks_all = self._unsettled.asks_all or not (value is format or finds)
        if any(value is one for one in MAKERS) or (among(cls, UNBOUND) and value.__name__ in _METHODS_BY_NAME):
            self._unsettled.asks_all = True
        if cls is FunctionType:
            self._reached.add(id(value))
            self._know(value)
            if self._skip(value.__code__.co_filename):  # a library's decorator made it, and holds what it decorates
                self._unsettled.also += [(part, self._values.at) for part in held_in_closure(value)]
        if value is not self._values.named and reads_unknown(value):
            self._values.opaque(f'is or holds {owner_of(value)}.{value.__name__}(), {_UNSEEN}')
        if not finds and (not self._is_array(value) or not in_package(cls)):
            self._unsettled.pending.append(value)

    def _finds_names(self, value: Any) -> bool:
        """Whether a module's ``__getattr__`` is what finds attributes of an object: it gets names that are in code."""
        finds = value is self._values.finder and value.__name__ == '__getattribute__'
        finds = finds and among(value.__objclass__, (object, ModuleType))
        finds = finds and '__getattr__' not in self._names.attributes
        if finds:
            self._names.finds = True
            self._values.keeper.memory.pop(id(value), None)  # so that it is met again where code has it by another way
        return finds

    def _settle(self) -> None:
        """Watch the attributes of the objects that were noted."""
        left = self._unsettled
        while left.pending or left.also or left.asks_all or left.asked_names:
            self._time.check_limit()
            if left.asked_names:
                asked, left.asked_names = left.asked_names, set()
                self._name(asked, asked, False)
            if left.asks_all:
                left.asks_all = False
                self._name((), (), True)
            if left.pending:
                self._hold(left.pending.pop())
            if not left.also:
                continue
            value, at = left.also.pop()
            if type(value) is not ModuleType and not issubclass(type(value), type):
                self._values.watch('bound', value, '', value, (at, ''), None, functools.partial(itself, value))

    def _hold(self, value: Any) -> None:
        cls = type(value)
        if id(value) in self._holders:
            return
        owned, whole = True, False
        if issubclass(cls, ModuleType):
            owned = not self._ownership.is_foreign_module(value)
            layout, kind = layout_of(cls)._replace(dictionary=_MODULE_DICT), 'module'
            self._class(cls)
        elif issubclass(cls, type):
            owned = not self._ownership.is_foreign_class(value)
            layout, kind = Layout(None, {}), 'class'
            self._library.of_library(value)
            self._class(value)
            self._class(cls)
            if not owned and (in_package(value) or not made_by_class_statement(value)):
                return
        elif cls is FunctionType or issubclass(cls, AsFunction):
            owned = cls is not FunctionType or not self._skip(value.__code__.co_filename)
            layout, kind = layout_of(cls)._replace(slots={}), 'function'
        else:
            layout, kind = layout_of(cls), 'object'
            owned = among(cls, (types.SimpleNamespace, threading.local)) or not self._ownership.is_foreign_class(cls)
            if cls is threading.local:
                layout = Layout(of_this_thread, {})
            whole = is_whole(cls) and not is_logger(cls)
            if owned:
                self._class(cls)
            else:
                self._library.of_library(cls)
            if not owned and not layout.dictionary and not layout.slots:
                return
        slots = {name: layout.read_slot(value, name) for name in layout.slots}
        start = dict(layout.dictionary(value)) if layout.dictionary is not None else {}
        if not owned and kind in ('module', 'function') and layout.dictionary is not None:
            self._library.foreign[id(value)] = f'{kind} {value.__name__}', layout.dictionary(value)
        holder = Holder(value, cls, kind, layout, start, slots, owned, whole, set())
        self._holders[id(value)] = holder
        self._attributes_of(holder, self._names.attributes, True)

    def _class(self, cls: type) -> None:
        """Watch the bases of a class, and the special methods, which Python looks up without a name in code."""
        if id(cls) in self._bases or self._ownership.is_foreign_class(cls):
            return
        self._bases[id(cls)] = (cls, form_of_class(cls))
        for base in bases_of(cls):
            if id(base) not in self._classes and not self._ownership.is_foreign_class(base):
                self._classes[id(base)] = (base, set(dictionary_of_class(base)))
        self._class_names(cls, SPECIAL)

    def _class_names(self, cls: type, names: Iterable[str]) -> None:
        for name in sorted(names):
            self._search_class(cls, name)

    def _name(self, names: Iterable[str], strings: Iterable[str], everything: bool) -> None:
        """Watch attributes that were not named before, of all objects noted so far."""
        new = set(names) - self._names.attributes
        asked = set(strings) - self._names.strings
        everything = everything or not OPENING.isdisjoint(asked) or (self._names.finds and '__getattr__' in new)
        for name in sorted(asked & OUT_OF_SIGHT):
            self._doubts.unwatchable.append(f'the function asks for the attribute {name}: what that reads is not known')
        self._names.of_cupy |= asked & (OF_ARRAYS | OF_DEVICES)
        self._names.attributes |= new
        self._names.strings |= asked
        again = everything and not self._names.everything
        self._names.everything |= everything
        if new or asked or again:
            for holder in list(self._holders.values()):
                self._time.check_limit()
                self._attributes_of(holder, new | asked, again)

    # Attributes

    def _attributes_of(self, holder: Holder, names: Iterable[str], at_first: bool) -> None:
        """Watch the attributes with these names; ``at_first``: also those that count without being named."""
        chosen = set(names) | (self._unnamed(holder) if at_first else set())
        if holder.kind == 'class':
            for name in sorted(chosen):
                self._search_class(holder.value, name)
            if type(holder.value) is not type:
                self._class_names(type(holder.value), chosen)
            return
        for name in sorted(chosen):
            self._attribute_of(holder, name)

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

    def _attribute_of(self, holder: Holder, name: str) -> None:
        if name in holder.start:
            self._attribute(holder, name, holder.start[name])
            found = True
        elif name in holder.slots:
            self._attribute(holder, name, holder.slots[name])
            found = True
        elif name in OF_FUNCTIONS and type(holder.value) is FunctionType:
            get = functools.partial(getattr, holder.value, name)
            self._values.watch('function', holder.value, name, get(), ('', self._of(holder)), None, get)
            found = True
        else:
            found = False
            counts = holder.owned or holder.kind == 'object' or name in self._names.strings
            if holder.layout.dictionary is not None and counts:
                holder.missing.add(name)
        of_class = holder.kind == 'object' or (holder.kind == 'module' and holder.cls is not ModuleType)
        if of_class and (not found or holder.owned):
            self._search_class(holder.cls, name)
        if holder.kind == 'module' and not found and name != '__getattr__':
            outer, self._values.finder = self._values.finder, holder.start.get('__getattr__')
            self._attribute_of(holder, '__getattr__')  # a module calls it for names that it does not have
            self._values.finder = outer

    def _attribute(self, holder: Holder, name: str, value: Any) -> None:
        if holder.kind == 'module' and not holder.owned:
            if is_output(value):
                same = is_as_it_was(vars(holder.value), name, value)  # printing to it is no change
                self._values.watch('state', holder.value, name, True, ('which file is', self._of(holder)), None, same)
                return
            value = GUARD.installation.original_of(value)
        if name in BY_POINTER:
            self._addressed(name, holder.cls)
        where = ('attribute', self._of(holder))
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
            self._is_array(one) or issubclass(type(one), np.ndarray) or is_cupys(module_of(type(one))) for one in parts
        )

    def _of(self, holder: Holder) -> str:
        if holder.kind == 'module':
            return f' of module {holder.start.get("__name__")}'
        if holder.kind == 'function':
            return f' of function {getattr(holder.value, "__name__", "")}'
        return f' of {a(type(holder.value))}'

    def _search_class(self, cls: type, name: str) -> None:
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
                self._class_attribute(base, name, members[name])  # those further up, too: for super()
            elif not foreign and not found:
                self._absent.setdefault(id(base), (members, set(), f'attribute {{}} of class {name_of(base)}'))[1].add(
                    name
                )

    def _class_attribute(self, cls: type, name: str, value: Any) -> None:
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


_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType)
_UNSEEN = 'which code written in C may call: what that reads is not known'
_METHODS_BY_NAME = frozenset(name.partition('.')[2] for name in METHODS_BY_NAME)
_READ_ALL = (getattr, setattr, hasattr, delattr, vars, dir)
