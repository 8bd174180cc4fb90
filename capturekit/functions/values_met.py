"""What the values that a run meets, or is given, tell of it: attributes, state, or what no code names."""

from __future__ import annotations

import enum
import functools
import gc
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.functions import compiling
from capturekit.functions.collector import OF_COLLECTOR, Before
from capturekit.functions.doubts import Doubts, NamesUsed, ObjectUses, Unsettled
from capturekit.functions.follow_time import FollowTime
from capturekit.functions.functions_found import FunctionsFound
from capturekit.functions.handed_on import reads_unknown
from capturekit.functions.hidden_parts import HiddenParts
from capturekit.functions.holders import Holders
from capturekit.functions.ownership import LibraryState, Ownership
from capturekit.functions.readable_state import in_package, is_one_of_a_kind, reaches_far
from capturekit.functions.settings import setting_for
from capturekit.functions.understood import MAKERS, METHODS_BY_NAME, makes_unknown, owner_of
from capturekit.functions.watched_values import UNBOUND, WatchedValues, held_in_closure, itself
from capturekit.model.class_layout import among, attributes_of, found_in_class, is_dataclass
from capturekit.model.cleanup import Uncollected
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import WITH_CODE, plain_key

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
        of_user = value is object or (issubclass(type(value), type) and not self._ownership.is_foreign_class(value))
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
        if compiling.is_memoized(value):
            self._values.watch_state(compiling.FORGOTTEN, compiling.remembers())
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


#: From so many elements on, those are left out first that hold no others.
_SEARCHED = 1_000
#: The references to the owner of a view's memory that nobody else has: the view's, and two while it is asked for them.
_ALONE = 3
_PLAIN = (list, tuple, dict, set, frozenset, np.ndarray, slice)
#: Classes whose objects hold no others, and are compared by value.
_NUMBERS = frozenset({int, float, complex, bool, str, bytes, type(None)})


def shares_memory(array: Any) -> bool:
    """Whether an array is a view of memory that is not its own alone, or may overlap itself."""
    base = np.ndarray.base.__get__(array)
    if base is None:
        return False
    return type(base) is not np.ndarray or sys.getrefcount(base) > _ALONE


class GivenValues:
    """The arguments of the function that is watched, and those of the functions that it calls.

    ``given``: what the function is called with. ``ignore`` returns True for objects that the caller compares.
    """

    def __init__(
        self,
        values: WatchedValues,
        holders: Holders,
        uses: ObjectUses,
        doubts: Doubts,
        before: Before,
        time: FollowTime,
        given: Any = (),
        ignore: Callable[[Any], bool] | None = None,
    ) -> None:
        self._values, self._holders, self._uses, self._doubts = values, holders, uses, doubts
        self._before, self._time, self._given, self.ignore = before, time, given, ignore
        #: Containers among the arguments that are compared by value, by id.
        self.own: dict[int, Any] = {}
        #: The arrays among the arguments, with their shapes and strides.
        self.forms: list[tuple[Any, Any]] = []
        #: The classes of arguments whose attributes count when code names them.
        self.of_class: list[type] = []

    def keep_arguments(self) -> None:
        """Watch the values in the arguments, at any depth, that are not compared by value."""
        todo = [(self._given, 'an argument')]
        while todo:
            value, name = todo.pop()
            cls = type(value)
            if self._values.is_array(value) and hasattr(cls, 'strides'):
                self.forms.append((value, (value.shape, value.strides)))
                if not in_package(cls):  # of a class derived from ndarray
                    self._holders.hold_class(cls)
                    self.of_class.append(cls)
            if id(value) in self.own or self._values.is_array(value):
                continue
            if issubclass(cls, np.ndarray):
                self._values.keeper.has_numbers = True
                if shares_memory(value):
                    what = f'{name} is or holds a NumPy array whose memory another object has, too'
                    self._doubts.unwatchable.append(f'{what}: what the function changes there is not seen')
            if plain_key(value) is not None:
                self._uses.plain = self._uses.plain or not is_one_of_a_kind(value)
                if issubclass(type(cls), enum.EnumMeta) or issubclass(cls, WITH_CODE):
                    self._values.meet(value)
                continue
            if self.ignore is None or not self._by_value(value):
                self._values.at = name
                self._values.watch('argument', value, '', value, (name, ''), None, functools.partial(itself, value))
                if not self._values.is_array(value):
                    self._values.meet(value)
                continue
            self.own[id(value)] = value
            if is_dataclass(cls) or (issubclass(cls, tuple) and cls is not tuple):
                self._holders.hold_class(cls)
                self.of_class.append(cls)
            contents = contents_of(value)
            parts = [*contents[1], *contents[2]] if contents is not None else []
            if is_dataclass(cls) or not among(cls, _PLAIN):
                parts += attributes_of(value).values()
            if len(parts) >= _SEARCHED:
                parts = [part for part in parts if type(part) not in _NUMBERS]
                self._time.check_limit()
            todo += [(part, name) for part in parts]

    def _by_value(self, value: Any) -> bool:
        """True for values that the caller compares by value: containers, dataclass instances, NumPy arrays."""
        assert self.ignore is not None
        cls = type(value)
        if among(cls, _PLAIN):
            return True
        return self.ignore(value)

    def argument(self, value: Any) -> None:
        """Watch an argument that is an object, or the objects in a container."""
        cls = type(value)
        if among(cls, (list, tuple, dict)):
            items = value.values() if cls is dict else value
            for item in items if len(value) < _SEARCHED else [one for one in items if type(one) not in _NUMBERS]:
                if not (self.ignore is not None and self.ignore(item)):
                    self._instance(item)
        else:
            self._instance(value)

    def _instance(self, value: Any) -> None:
        cls = type(value)
        if issubclass(cls, (FunctionType, ModuleType)):
            self._values.meetings.roots.add(id(value))
        if issubclass(cls, (FunctionType, ModuleType, np.ndarray, np.generic)) or self._values.is_array(value):
            return
        if gc.is_tracked(value) and self._before.had(value) and id(value) not in self.own:
            self._values.meet(value)
