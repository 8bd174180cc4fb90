"""The objects that a run used, and which of their attributes are watched: those that code names, or all.

No code of the user's names what libraries' code, and code written in C, asks of the user's objects and classes. A
library's function may read any of the names in it of any object that it is given, so all of them are watched on all
objects and classes of the user's that the run comes to.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Iterable, Set
from types import FunctionType, ModuleType
from typing import Any

from capturekit.functions.attributes import Attributes
from capturekit.functions.binding import AsFunction
from capturekit.functions.doubts import Doubts, NamesUsed, Unsettled
from capturekit.functions.follow_time import FollowTime
from capturekit.functions.hidden_state import is_logger
from capturekit.functions.ownership import LibraryState, Ownership
from capturekit.functions.readable_state import in_package, is_whole
from capturekit.functions.understood import ASKED_IN_C, OF_ARRAYS, OF_DEVICES, OF_PYTHON, OPENING, OUT_OF_SIGHT, SPECIAL
from capturekit.functions.watched_values import Holder, WatchedValues, itself, of_this_thread
from capturekit.model.class_layout import (
    ClassLayout,
    among,
    bases_of,
    dictionary_of_class,
    form_of_class,
    layout_of,
    made_by_class_statement,
    name_of,
)


class OutOfSight:
    """The names that code out of sight has, and where they were sought."""

    def __init__(self, attributes: Attributes, ownership: Ownership, time: FollowTime) -> None:
        self._attributes, self._ownership, self._time = attributes, ownership, time
        #: The names in libraries' code that ran, and those that code written in C asks for.
        self._names_out_of_sight: set[str] = set(ASKED_IN_C)
        #: By class, which of them were sought.
        self._sought_names: dict[int, tuple[type, set[str]]] = {}

    def held(self, holder: Holder) -> None:
        """Watch, of an object that the run came to, what code out of sight has named so far."""
        self._watch_out_of_sight(holder, self._names_out_of_sight)

    def name(self, names: Iterable[str], holders: Iterable[Holder]) -> None:
        """Watch, of the user's objects and classes, what code of a library names: it may ask them for that."""
        new = set(names) - self._names_out_of_sight - OF_PYTHON
        self._names_out_of_sight |= new
        for holder in list(holders) if new else ():
            self._time.check_limit()
            self._watch_out_of_sight(holder, new)

    def _watch_out_of_sight(self, holder: Holder, names: Set[str]) -> None:
        if not holder.owned or holder.kind == 'module':
            return
        if holder.kind == 'class':
            self._search_names(holder.value, names)
            return
        for name in sorted(names & (holder.start.keys() | holder.slots.keys())):
            self._attributes.attribute_of(holder, name)
        if holder.kind == 'object':
            if holder.layout.dictionary is not None:
                holder.missing.update(names - holder.start.keys())
            self._search_names(holder.cls, names)

    def _search_names(self, cls: type, names: Set[str]) -> None:
        """Watch what a class of the user's and its bases hold under many names, and that they lack the others."""
        known = self._sought_names.setdefault(id(cls), (cls, set()))[1]
        new = names - known
        known |= new
        for base in bases_of(cls) if new else ():
            members = dictionary_of_class(base)
            for name in sorted(new & members.keys()):
                self._attributes.search_class(cls, name)
            new = new - members.keys()
            if new and not self._ownership.is_foreign_class(base):
                what = f'attribute {{}} of class {name_of(base)}'
                self._attributes.absent.setdefault(id(base), (members, set(), what))[1].update(new)


_MODULE_DICT = vars(ModuleType)['__dict__'].__get__

#: The clock is asked for one of so many objects: that takes longer than to look at one.
_SELDOM = 16


class Holders:
    """Holds the objects that a run used, and the names by which code asks them for attributes."""

    def __init__(
        self,
        values: WatchedValues,
        attributes: Attributes,
        out_of_sight: OutOfSight,
        library: LibraryState,
        names: NamesUsed,
        unsettled: Unsettled,
        ownership: Ownership,
        doubts: Doubts,
        time: FollowTime,
    ) -> None:
        self._values, self._attributes, self._out_of_sight, self._library = values, attributes, out_of_sight, library
        self._names, self._unsettled, self._ownership = names, unsettled, ownership
        self._doubts, self._time = doubts, time
        #: By the id of what is held.
        self.by_id: dict[int, Holder] = {}
        #: The user's classes, with the names in them, and their bases and names, each by id.
        self.classes: dict[int, tuple[type, set[str]]] = {}
        self.bases: dict[int, tuple[type, tuple[Any, ...]]] = {}

    def settle(self) -> None:
        """Watch the attributes of the objects that were noted."""
        left = self._unsettled
        while left.pending or left.also or left.asks_all or left.asked_names:
            self._time.check_limit()
            if left.asked_names:
                asked, left.asked_names = left.asked_names, set()
                self.name(asked, asked, False)
            if left.asks_all:
                left.asks_all = False
                self.name((), (), True)
            if left.pending:
                self._hold(left.pending.pop())
            if not left.also:
                continue
            value, at = left.also.pop()
            if type(value) is not ModuleType and not issubclass(type(value), type):
                self._values.watch('bound', value, '', value, (at, ''), None, functools.partial(itself, value))

    def _hold(self, value: Any) -> None:
        cls = type(value)
        if id(value) in self.by_id:
            return
        owned, whole = True, False
        if issubclass(cls, ModuleType):
            owned = not self._ownership.is_foreign_module(value)
            layout, kind = layout_of(cls)._replace(dictionary=_MODULE_DICT), 'module'
            self.hold_class(cls)
        elif issubclass(cls, type):
            owned = not self._ownership.is_foreign_class(value)
            layout, kind = ClassLayout(None, {}), 'class'
            self._library.of_library(value)
            self.hold_class(value)
            self.hold_class(cls)
            if not owned and (in_package(value) or not made_by_class_statement(value)):
                return
        elif cls is FunctionType or issubclass(cls, AsFunction):
            owned = cls is not FunctionType or not self._ownership.skip(value.__code__.co_filename)
            layout, kind = layout_of(cls)._replace(slots={}), 'function'
        else:
            layout, kind = layout_of(cls), 'object'
            owned = among(cls, (types.SimpleNamespace, threading.local)) or not self._ownership.is_foreign_class(cls)
            if cls is threading.local:
                layout = ClassLayout(of_this_thread, {})
            whole = is_whole(cls) and not is_logger(cls)
            if owned:
                self.hold_class(cls)
            else:
                self._library.of_library(cls)
            if not owned and not layout.dictionary and not layout.slots:
                return
        slots = {name: layout.read_slot(value, name) for name in layout.slots}
        start = dict(layout.dictionary(value)) if layout.dictionary is not None else {}
        if not owned and kind in ('module', 'function') and layout.dictionary is not None:
            self._library.foreign[id(value)] = f'{kind} {value.__name__}', layout.dictionary(value)
        holder = Holder(value, cls, kind, layout, start, slots, owned, whole, set())
        self.by_id[id(value)] = holder
        self._attributes.attributes_of(holder, self._names.attributes, True)
        self._out_of_sight.held(holder)

    def hold_class(self, cls: type) -> None:
        """Watch the bases of a class, and the special methods, which Python looks up without a name in code."""
        if id(cls) in self.bases or self._ownership.is_foreign_class(cls):
            return
        self.bases[id(cls)] = (cls, form_of_class(cls))
        for base in bases_of(cls):
            if id(base) not in self.classes and not self._ownership.is_foreign_class(base):
                self.classes[id(base)] = (base, set(dictionary_of_class(base)))
        self._attributes.class_names(cls, SPECIAL)

    def name(self, names: Iterable[str], strings: Iterable[str], everything: bool) -> None:
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
            for number, holder in enumerate(list(self.by_id.values())):
                if number % _SELDOM == 0:
                    self._time.check_limit()
                self._attributes.attributes_of(holder, new | asked, again)
