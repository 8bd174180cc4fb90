"""What the values that a run meets tell of it: they may have attributes, or state, or read what code does not name."""

from __future__ import annotations

import enum
import operator
import threading
import types
import weakref
from types import FunctionType, ModuleType
from typing import Any

from capturekit.functions.collector import OF_COLLECTOR
from capturekit.functions.doubts import NamesUsed, Unsettled
from capturekit.functions.functions_found import FunctionsFound
from capturekit.functions.handed_on import reads_unknown
from capturekit.functions.hidden_parts import HiddenParts
from capturekit.functions.holders import Holders
from capturekit.functions.library_state import LibraryState
from capturekit.functions.object_uses import ObjectUses
from capturekit.functions.ownership import Ownership
from capturekit.functions.readable_state import in_package, reaches_far
from capturekit.functions.settings import setting_for
from capturekit.functions.understood import MAKERS, METHODS_BY_NAME, makes_unknown, owner_of
from capturekit.functions.watched_value import held_in_closure
from capturekit.functions.watched_values import UNBOUND, WatchedValues
from capturekit.model.class_layout import among, found_in_class
from capturekit.model.cleanup import Uncollected
from capturekit.model.plain_values import plain_key

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_WEAK: Any = (weakref.ReferenceType, *weakref.ProxyTypes)


class ValuesMet:
    """Takes note of each value that is kept by identity, which :class:`WatchedValues` tells it of.

    ``uncollected``: the block without garbage collection, which ends before code can ask whether the collector is on.
    """

    def __init__(
        self,
        values: WatchedValues,
        holders: Holders,
        hidden: HiddenParts,
        functions: FunctionsFound,
        library: LibraryState,
        names: NamesUsed,
        uses: ObjectUses,
        unsettled: Unsettled,
        ownership: Ownership,
        uncollected: Uncollected,
    ) -> None:
        self._values, self._holders, self._hidden, self._functions = values, holders, hidden, functions
        self._library, self._names, self._uses, self._unsettled = library, names, uses, unsettled
        self._ownership, self._uncollected = ownership, uncollected
        #: Whether a value was met from which code gets far, without names.
        self.far = False
        #: Whether a weak reference was met: what it leads to must not be kept alive.
        self.weak = False
        #: The locks that the run may have used, by id: its changes are then ordered with those of other threads.
        self.locks: dict[int, Any] = {}
        #: The functions that a watched value is or holds, by id.
        self.reached: set[int] = set()

    def note(self, value: Any) -> None:
        """Take note of a value that is kept by identity."""
        if id(value) in OF_COLLECTOR:
            self._uncollected.let_go()
        self.weak = self.weak or issubclass(type(value), _WEAK)
        made = makes_unknown(value) if issubclass(type(value), type) else ''
        if made and value is not self._values.named:  # else it is seen at the end whether the code may call it
            self._values.opaque(f'holds {made}: what its objects read is not known')
        of_user = issubclass(type(value), type) and not self._ownership.is_foreign_class(value)
        if of_user and found_in_class(value, '__init__') is object.__init__:
            self._uses.makes(value, True)
        self._note(value)

    def _note(self, value: Any) -> None:
        cls = type(value)
        if id(value) in self._holders.by_id:
            return
        self.far = self.far or reaches_far(value)
        if among(cls, _LOCKS):
            self.locks[id(value)] = value
        self._values.depends_on(setting_for(value))
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
            self.reached.add(id(value))
            self._functions.know(value)
            # if a library's decorator made it, it holds what it decorates
            if self._ownership.skip(value.__code__.co_filename):
                self._unsettled.also += [(part, self._values.at) for part in held_in_closure(value)]
        if value is not self._values.named and reads_unknown(value):
            self._values.opaque(f'is or holds {owner_of(value)}.{value.__name__}(), {_UNSEEN}')
        if not finds and (not self._values.is_array(value) or not in_package(cls)):
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


_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType)
_UNSEEN = 'which code written in C may call: what that reads is not known'
_METHODS_BY_NAME = frozenset(name.partition('.')[2] for name in METHODS_BY_NAME)
_READ_ALL = (getattr, setattr, hasattr, delattr, vars, dir)
