"""The objects that a run used, and what of them is watched: attributes that code names, functions, and other state.

No code of the user names what code of libraries, and code written in C, asks of the objects and classes of the user. A
function of a library may read any of the names in it of any object that it is given, so all of them are watched on all
objects and classes of the user that the run comes to.

Numba compiles a function whenever it is called for the first time. Python tells nobody when a compiled function runs,
nor what it reads. One that has no compiled version, neither before a run nor after it, was not called in that run.
"""

from __future__ import annotations

import contextvars
import enum
import functools
import gc
import itertools
import operator
import random
import struct
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Set
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.graphed import allowlists, compiling, hidden_state, ownership
from capturekit.graphed.allowlists import SPECIAL, makes_unknown, module_of, owner_of, reads_unknown
from capturekit.graphed.binding import AsFunction
from capturekit.graphed.code_reads import MODULES
from capturekit.graphed.collector import OF_COLLECTOR
from capturekit.graphed.reasons import Reason
from capturekit.graphed.return_paths import function_of
from capturekit.graphed.settings import setting_for
from capturekit.graphed.watched_values import (
    UNBOUND,
    Holder,
    RunParts,
    WatchedValues,
    held_in_closure,
    itself,
    of_this_thread,
    read_attribute,
    read_cell,
    read_unguarded,
)
from capturekit.guard import GUARD
from capturekit.model.class_layout import (
    ClassLayout,
    among,
    attributes_of,
    bases_of,
    dictionary_of_class,
    form_of_class,
    found_in_class,
    is_dataclass,
    layout_of,
    made_by_class_statement,
    name_of,
)
from capturekit.model.cleanup import Uncollected, others_of
from capturekit.model.kept_values import Keeper, Kept, contents_of
from capturekit.model.plain_values import WITH_CODE, a, plain_key

#: Where these keep the functions that they were made of. Their ``__init__`` may be called again, with others.
_FUNCTIONS_IN: dict[type, tuple[str, ...]] = {
    property: ('fget', 'fset', 'fdel'), staticmethod: ('__func__',), classmethod: ('__func__',),
}  # fmt: skip


class HiddenParts:
    """The state of objects that is neither in attributes nor in contents."""

    def __init__(self, values: WatchedValues) -> None:
        self._values = values
        #: Generators of random numbers and files, their state, and where they are, by id.
        self.states: dict[int, tuple[Any, Kept, str]] = {}
        self.randomness: dict[str, Kept] = {}
        #: Whether a function was met that gives a generator another state: it may be called by any name.
        self.sets_states = False
        #: Functions of Numba's that had no compiled version when they were met, and where they are, by id.
        self.uncompiled: dict[int, tuple[Any, str]] = {}

    def begin(self) -> None:
        """Keep the state of the generators of random numbers that every program has."""
        self.randomness = {name: _kept(state()) for name, state in hidden_state.HOST_RANDOMNESS.items()}

    def _function_in(self, value: Any, name: str, member: Any) -> None:
        """Watch a function of which a property or a static method is made."""
        get = functools.partial(member.__get__, value)
        function = get()
        if function is not None:
            self._values.meet(function)  # which may be a class, or written in C
            entry = self._values.watch('slot', value, name, function, (self._values.at, ''), None, get)
            if entry is not None:
                entry.member = member

    def has_state(self, value: Any, cls: type) -> bool:
        """Watch state that is not in attributes. True if a value has no other state."""
        values = self._values
        if cls is types.MethodType:
            values.meet(value.__func__)
            values.keep_also(value.__self__)
            self.sets_states |= hidden_state.sets_a_state(value.__func__)
            if type(value.__func__) is types.BuiltinMethodType:
                values.keep_also(value.__func__)
        elif issubclass(cls, (staticmethod, classmethod, property)):
            base, names = next(pair for pair in _FUNCTIONS_IN.items() if issubclass(cls, pair[0]))
            for name in names:
                self._function_in(value, name, dictionary_of_class(base)[name])
        elif cls is struct.Struct:
            values.watch_state(f'{values.at}: its format', functools.partial(getattr, value, 'format'))
        elif issubclass(cls, random.SystemRandom):
            values.opaque(f'is or holds {a(cls)}, whose draws leave no trace')
        elif among(cls, hidden_state.FILES) or issubclass(cls, hidden_state.random_types()):
            self._file_or_generator(value, cls)
        elif ownership.is_iterator(cls):
            values.opaque(f"is or holds {a(cls)}: what is left in it can't be compared")
        elif cls is contextvars.ContextVar:
            where, get = f'{values.at}: its value', functools.partial(hidden_state.value_in, value)
            values.watch('context', value, where, get(), ('', ''), None, get)
            return True
        elif hidden_state.is_logger(cls):
            same = functools.partial(hidden_state.is_logger_as, value, hidden_state.logger_state(value))
            values.watch_state(f'{values.at}: its levels, handlers and filters', same)
        elif (seeded := hidden_state.seeded_by(value)) is not None:
            self.sets_states = True
            self._file_or_generator(seeded, type(seeded))
        elif is_uncompiled(value):
            self.uncompiled[id(value)] = value, values.at
        elif not values.is_array(value) and not ownership.is_visible(value):
            values.opaque(f"is or holds {a(cls)}, whose whole state can't be seen")
        return False

    def _file_or_generator(self, value: Any, cls: type) -> None:
        values = self._values
        if id(value) not in self.states:
            kept = _kept(hidden_state.state_of(value))
            self.states[id(value)] = (value, kept, values.at)
            if not among(cls, hidden_state.FILES):
                same = functools.partial(hidden_state.is_in_state, value, kept)
                values.watch('draws', value, '', True, (f'{values.at}: its state', ''), None, same)
        if among(cls, hidden_state.IN_MEMORY):
            where, get = f'{values.at}: what it holds', functools.partial(hidden_state.held_by, value)
            values.watch('contents', value, '', hidden_state.held_by(value), (where, ''), None, get)


def _kept(state: Any) -> Kept:
    return Keeper(lambda _value: False).keep(state)


def is_uncompiled(value: Any) -> bool:
    """Whether a value is a function of Numba's that has no compiled version."""
    cls = type(value)
    name = f'{module_of(cls)}.{name_of(cls)}'
    if name != 'numba.core.registry.CPUDispatcher' or not ownership.is_in_its_module(cls):
        return False
    versions = attributes_of(value).get('overloads')
    return among(type(versions), (dict, OrderedDict)) and not versions


#: What the standard library reads from a member of an enumeration for ``value`` and ``name``.
_OF_MEMBERS = frozenset({'_value_', '_name_'})
#: What the user gives to objects of libraries that call it.
_MADE_BY_USERS = (FunctionType, types.MethodType, functools.partial)
#: How many items of a tuple or list are examined.
_PARTS = 100


_MODULE_DICT = vars(ModuleType)['__dict__'].__get__


class Holders:
    """Holds the objects that a run used, and watches their attributes by the names that code asks them for."""

    def __init__(self, run: RunParts) -> None:
        self._values, self._library, self._names = run.values, run.library, run.names
        self._ownership, self._doubts, self._time = run.ownership, run.doubts, run.time
        #: By the id of what is held.
        self.by_id: dict[int, Holder] = {}
        #: The user's classes, with the names in them, and their bases and names, each by id.
        self.classes: dict[int, tuple[type, set[str]]] = {}
        self.bases: dict[int, tuple[type, tuple[Any, ...]]] = {}
        #: By the id of a dictionary of a class or of globals: it, the names that were sought in vain, and the words
        #: that say where.
        self.absent: dict[int, tuple[Any, set[str], str]] = {}
        #: The names that code looks up in classes, by the class's id.
        self._sought: dict[int, tuple[type, set[str]]] = {}
        #: The names in libraries' code that ran, and those that code written in C asks for.
        self._names_out_of_sight: set[str] = set(allowlists.ASKED_IN_C)

    def settle(self) -> None:
        """Watch the attributes of the objects that were noted."""
        left = self._values
        while left.pending or left.also or left.asks_all or left.asked_names:
            self._time.check_limit()
            if left.asked_names:
                asked, left.asked_names = left.asked_names, set()
                self.name(asked, asked)
            if left.asks_all:
                left.asks_all = False
                self.by_unseen_names()
            if left.pending:
                self._hold(left.pending.pop())
            if not left.also:
                continue
            value, at = left.also.pop()
            if type(value) is not ModuleType and not issubclass(type(value), type):
                self._values.watch('bound', value, '', value, (at, ''), None, functools.partial(itself, value))

    def depends_on(self, setting: str | None) -> None:
        """Watch a setting, as it was when the run began."""
        self._values.depends_on(setting)
        self.settle()

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
            if not owned and (ownership.in_package(value) or not made_by_class_statement(value)):
                return
        elif cls is FunctionType or issubclass(cls, AsFunction):
            owned = cls is not FunctionType or not self._ownership.skip(value.__code__.co_filename)
            layout, kind = layout_of(cls)._replace(slots={}), 'function'
        else:
            layout, kind = layout_of(cls), 'object'
            owned = among(cls, (types.SimpleNamespace, threading.local)) or not self._ownership.is_foreign_class(cls)
            if cls is threading.local:
                layout = ClassLayout(of_this_thread, {})
            whole = ownership.is_whole(cls) and not hidden_state.is_logger(cls)
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
        self.attributes_of(holder, self._names.attributes, True)
        self._watch_out_of_sight(holder, self._names_out_of_sight)

    def hold_class(self, cls: type) -> None:
        """Watch the bases of a class, and the special methods, which Python looks up without a name in code."""
        if id(cls) in self.bases or self._ownership.is_foreign_class(cls):
            return
        self.bases[id(cls)] = (cls, form_of_class(cls))
        for base in bases_of(cls):
            if id(base) not in self.classes and not self._ownership.is_foreign_class(base):
                self.classes[id(base)] = (base, set(dictionary_of_class(base)))
        self.class_names(cls, SPECIAL)

    def by_unseen_names(self) -> None:
        """Note that code may ask any object for any attribute, as ``vars`` and ``dataclasses.replace`` do."""
        self._doubts.say('the function reads attributes by names that are not in its code')

    def name(self, names: Iterable[str], strings: Iterable[str] = ()) -> None:
        """Watch attributes that were not named before, of all objects noted so far."""
        new = set(names) - self._names.attributes
        asked = set(strings) - self._names.strings
        if not allowlists.OPENING.isdisjoint(asked) or (self._names.finds and '__getattr__' in new):
            self.by_unseen_names()
        for name in sorted(asked & allowlists.OUT_OF_SIGHT):
            self._doubts.add(None, f'asks for the attribute {name}')
        self._names.of_cupy |= asked & (allowlists.OF_ARRAYS | allowlists.OF_DEVICES)
        self._names.attributes |= new
        self._names.strings |= asked
        if new or asked:
            self._time.check_limit()
            for holder in list(self.by_id.values()):
                self.attributes_of(holder, new | asked, False)

    def attributes_of(self, holder: Holder, names: Iterable[str], at_first: bool) -> None:
        """Watch the attributes with these names; ``at_first``: also those that count without being named."""
        chosen = set(names) | (self._unnamed(holder) if at_first else set())
        if holder.kind == 'class':
            self.class_names(holder.value, chosen)
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
        if holder.kind == 'object':
            if issubclass(type(holder.cls), enum.EnumMeta):
                found |= _OF_MEMBERS & holder.start.keys()
            if holder.owned:
                found |= allowlists.OF_INSTANCES & holder.start.keys()
            if holder.whole:
                found |= holder.start.keys() | holder.slots.keys()
            if not holder.owned:
                every = (*holder.start.items(), *holder.slots.items())
                found |= {name for name, value in every if self._is_data(value)}
        return found

    def attribute_of(self, holder: Holder, name: str) -> None:
        """Watch the attribute of an object with this name, or that it has none."""
        if holder.value is sys and name == MODULES and not (self._names.opens_modules or name in self._names.strings):
            return
        found = True
        if name in holder.start or name in holder.slots:
            self._attribute(holder, name, (holder.start if name in holder.start else holder.slots)[name])
        elif name in allowlists.OF_FUNCTIONS and type(holder.value) is FunctionType:
            get = functools.partial(getattr, holder.value, name)
            self._values.watch('function', holder.value, name, get(), ('', holder.whose), None, get)
        else:
            found = False
            counts = holder.owned or holder.kind == 'object' or name in self._names.strings
            if holder.layout.dictionary is not None and counts:
                holder.missing.add(name)
        of_class = holder.kind == 'object' or (holder.kind == 'module' and holder.cls is not ModuleType)
        if of_class and (not found or holder.owned):
            self.class_names(holder.cls, (name,))
        if holder.kind == 'module' and not found and name != '__getattr__':
            outer, self._values.finder = self._values.finder, holder.start.get('__getattr__')
            self.attribute_of(holder, '__getattr__')  # a module calls it for names that it does not have
            self._values.finder = outer

    def _attribute(self, holder: Holder, name: str, value: Any) -> None:
        if holder.kind == 'module' and not holder.owned:
            if hidden_state.is_output(value):
                same = hidden_state.is_as_it_was(vars(holder.value), name, value)  # printing to it is no change
                self._values.watch('state', holder.value, name, True, ('which file is', holder.whose), None, same)
                return
            value = GUARD.installation.original_of(value)
        if name in allowlists.BY_POINTER:
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
        of_cupy = holder.kind == 'module' and ownership.is_cupys(holder.start.get('__name__'))
        kind = 'of CuPy' if of_cupy else 'attribute'
        self._values.watch(kind, holder.value, name, value, where, dictionary(holder.value), get)

    def _addressed(self, name: str, cls: type) -> None:
        """Note that NumPy may read memory that an object gives by its address."""
        self._doubts.say(f'{a(cls)} has the attribute {name}: what NumPy reads there is not known')

    def _is_data(self, value: Any) -> bool:
        """True for an attribute that a library's code reads from its own object, and that the user may replace."""
        cls = type(value)
        base: Any = tuple if issubclass(cls, tuple) else list if issubclass(cls, list) else None
        parts = [value] if base is None else itertools.islice(base.__iter__(value), _PARTS)
        return issubclass(cls, _MADE_BY_USERS) or any(
            self._values.is_array(one) or issubclass(type(one), np.ndarray) or ownership.is_cupys(module_of(type(one)))
            for one in parts
        )

    def class_names(self, cls: type, names: Iterable[str]) -> None:
        """Watch what a class and its bases hold under these names, and that those of the user lack the others."""
        sought = self._sought.setdefault(id(cls), (cls, set()))[1]
        new = {*names, *(part for name in names for part in _KEPT_AS.get(name, ()))} - sought
        sought |= new
        bases = [(base, dictionary_of_class(base)) for base in bases_of(cls)] if new else []
        for name in sorted(new):
            for base, members in bases:
                if name in members:  # those further up, too: for super()
                    self.class_attribute(base, name, members[name])
        for base, members in bases:
            new = new - members.keys()
            if new and not self._ownership.is_foreign_class(base):
                what = f'attribute {{}} of class {name_of(base)}'
                self.absent.setdefault(id(base), (members, set(), what))[1].update(new)

    def class_attribute(self, cls: type, name: str, value: Any) -> None:
        """Watch what a class has under a name."""
        if not made_by_class_statement(cls):
            return
        where = ('attribute', f' of class {name_of(cls)}')
        if self._ownership.is_foreign_class(cls):
            self._library.inside_of(cls, (name,))
            if plain_key(value) is None and not issubclass(type(value), allowlists.CONSTANT):
                self._values.watch('class attribute', cls, name, value, where, dictionary_of_class(cls))
        elif name in allowlists.BY_POINTER:
            self._addressed(name, cls)
        else:
            self._values.watch('class attribute', cls, name, value, where, dictionary_of_class(cls))

    def name_out_of_sight(self, names: Iterable[str]) -> None:
        """Watch, of the user's objects and classes, what code of a library names: it may ask them for that."""
        new = set(names) - self._names_out_of_sight - allowlists.OF_PYTHON
        self._names_out_of_sight |= new
        for holder in list(self.by_id.values()) if new else ():
            self._time.check_limit()
            self._watch_out_of_sight(holder, new)

    def _watch_out_of_sight(self, holder: Holder, names: Set[str]) -> None:
        if not holder.owned or holder.kind == 'module':
            return
        if holder.kind == 'class':
            self.class_names(holder.value, names)
            return
        for name in sorted(names & (holder.start.keys() | holder.slots.keys())):
            self.attribute_of(holder, name)
        if holder.kind == 'object':
            if holder.layout.dictionary is not None:
                holder.missing.update(names - holder.start.keys())
            self.class_names(holder.cls, names)


class FunctionsFound:
    """Finds the functions that run, and watches what they are made of."""

    def __init__(self, run: RunParts, holders: Holders) -> None:
        self._values, self._holders, self._library = run.values, holders, run.library
        self._ownership, self._before = run.ownership, run.before
        #: By the id of a function that ran and was there before: what to say if no watched value leads to it.
        self.ran: dict[int, Reason] = {}
        #: Code that is written inside of code that ran: the run may have made functions of it.
        self.inside: set[int] = set()
        #: The function that is followed; the code that calls it.
        self.outermost: tuple[FunctionType | None, CodeType | None] = None, None
        #: The functions that ran; those that are watched, by id.
        self.told: dict[int, FunctionType] = {}
        self._watched: dict[int, FunctionType] = {}

    def inside_library(self, frame: FrameType) -> None:
        """Keep what code of Python's own modules names, and what its function is made of if the user calls it."""
        self._library.inside_library(frame)
        code = frame.f_code
        asked = ownership.asked_by_user(frame.f_back, self._ownership.skip)
        for function in (frame.f_globals.get(code.co_name), *self._methods(code, frame.f_locals)):
            if asked and type(function) is FunctionType and function.__code__ is code:
                self.parts_of(function)

    def find(self, frame: FrameType, code: CodeType, variables: Any) -> bool:
        """Find the function that runs, whose defaults and closure are watched.

        False if Python does not tell which it is, and the run can not have made it.
        """
        if code.co_name.startswith('<') and code.co_name != '<lambda>':
            return True  # a comprehension: its cells are those of the function around it
        if self._is_outermost(frame, code):
            return True
        function = function_of(frame)
        if function is None:
            return id(code) in self.inside
        if id(function) not in self.told:
            self.told[id(function)] = function
            self._methods(code, variables)
            if id(function) not in self._watched and self._was_there(function):
                self.watch(function)
        # in a kernel's launch it may stand for the kernel
        by_user = ownership.asked_by_user(frame.f_back, self._ownership.skip)
        if by_user and id(function) in self._watched:
            text = f'the function runs {code.co_name}, which is reached in a way that is not followed'
            self.ran.setdefault(id(function), Reason(text))
        return True

    def is_new(self, frame: FrameType, code: CodeType) -> bool:
        """Whether the function that runs is to be found: it has a closure, or is none of those that were."""
        return bool(code.co_freevars) or id(function_of(frame)) not in self.told

    def _is_outermost(self, frame: FrameType, code: CodeType) -> bool:
        """Whether this is the call by which the run begins: its function is known, and watched."""
        function, caller = self.outermost
        below = frame.f_back
        return function is not None and function.__code__ is code and below is not None and below.f_code is caller

    def _was_there(self, function: FunctionType) -> bool:
        """Whether a function was there before the run.

        To ask the collector is dear, and the run makes functions of code inside of code that ran. One that it makes in
        another way is watched, too, which does no harm.
        """
        return id(function.__code__) not in self.inside or self._before.had(function)

    def _methods(self, code: CodeType, variables: Any) -> list[FunctionType]:
        """The functions of the class of the first argument that have this code. Watches where they were found."""
        found: list[FunctionType] = []
        if not code.co_argcount:
            return found
        first = variables.get(code.co_varnames[0])
        for cls in bases_of(first) if issubclass(type(first), type) else bases_of(type(first)):
            members = dictionary_of_class(cls)
            for name in (code.co_name, *members):  # named tuples have a lambda as their __new__
                inner = _unwrapped(members.get(name))
                if type(inner) is FunctionType and inner.__code__ is code:
                    self._holders.class_attribute(cls, name, members[name])
                    found.append(inner)
                    break
        return found

    def watch(self, function: FunctionType) -> None:
        """Watch a function that runs and that was there before: its code, defaults and closure."""
        self._watched[id(function)] = function
        self.parts_of(function)
        name = function.__name__
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            where = ('variable', f' of the closure of {name}')
            get = functools.partial(read_cell, cell)
            self._values.watch('variable', cell, variable, get(), where, None, get)

    def parts_of(self, function: FunctionType) -> None:
        """Watch the code and the defaults of a function."""
        for part in allowlists.FUNCTION_PARTS:
            get = functools.partial(getattr, function, part)
            self._values.watch('function', function, part, get(), ('', f' of {function.__name__}'), None, get)


def _unwrapped(member: Any) -> Any:
    """The function of a method, of a class or static method, and the getter of a property."""
    inner = member.__func__ if among(type(member), (classmethod, staticmethod)) else member
    return inner.fget if type(inner) is property else inner


_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_WEAK: Any = (weakref.ReferenceType, *weakref.ProxyTypes)


class ValuesMet:
    """Takes note of each value that is kept by identity, which :class:`WatchedValues` tells it of.

    ``uncollected``: the block without garbage collection, which ends before code can ask whether the collector is on.
    """

    def __init__(self, run: RunParts, holders: Holders, hidden: HiddenParts, uncollected: Uncollected) -> None:
        self._values, self._holders, self._hidden = run.values, holders, hidden
        self._library, self._names, self._uses = run.library, run.names, run.uses
        self._ownership, self._uncollected = run.ownership, uncollected
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
        self.far = self.far or ownership.reaches_far(value)
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
            self._values.asked_names.update(part for text in texts for part in text.split('.'))
        if among(cls, _BUILTIN) and (any(value is one for one in _READ_ALL) or value.__name__ in _METHODS_BY_NAME):
            finds = self._finds_names(value)
            self._values.asks_all = self._values.asks_all or not (value is format or finds)
        if any(value is one for one in allowlists.MAKERS) or (
            among(cls, UNBOUND) and value.__name__ in _METHODS_BY_NAME
        ):
            self._values.asks_all = True
        if cls is FunctionType:
            self.reached.add(id(value))
            # if a library's decorator made it, it holds what it decorates
            if self._ownership.skip(value.__code__.co_filename):
                self._values.also += [(part, self._values.at) for part in held_in_closure(value)]
        if compiling.is_memoized(value):
            self._values.watch_state(compiling.FORGOTTEN, compiling.remembers())
        if value is not self._values.named and reads_unknown(value):
            self._values.opaque(f'is or holds {owner_of(value)}.{value.__name__}(), {_UNSEEN}')
        if not finds and (not self._values.is_array(value) or not ownership.in_package(cls)):
            self._values.pending.append(value)

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
_METHODS_BY_NAME = frozenset(name.partition('.')[2] for name in allowlists.METHODS_BY_NAME)
_READ_ALL = (getattr, setattr, hasattr, delattr, vars, dir)


#: What a class keeps under other names: from Python 3.14 on its annotations, which are made when they are asked for.
_KEPT_AS = dict.fromkeys(('__annotations__', '__annotate__'), ('__annotations_cache__', '__annotate_func__'))
#: From so many elements on, those are left out first that hold no others.
_SEARCHED = 1_000
#: The references to the owner of a view's memory that nobody else has: the view's, and one while it is asked for them.
_ALONE = 2
_PLAIN = (list, tuple, dict, set, frozenset, np.ndarray, slice)
#: Classes whose objects hold no others, and are compared by value.
_NUMBERS = frozenset({int, float, complex, bool, str, bytes, type(None)})


def shares_memory(array: Any) -> bool:
    """Whether an array is a view of memory that is not its own alone, or may overlap itself."""
    base = np.ndarray.base.__get__(array)
    if base is None:
        return False
    return type(base) is not np.ndarray or others_of([base]) > _ALONE


class GivenValues:
    """The arguments of the function that is watched, and those of the functions that it calls.

    ``given``: what the function is called with. ``ignore`` returns True for objects that the caller compares.
    """

    def __init__(self, run: RunParts, holders: Holders, given: Any, ignore: Callable[[Any], bool] | None) -> None:
        self._values, self._holders, self._uses, self._doubts = run.values, holders, run.uses, run.doubts
        self._before, self._time, self._given, self.ignore = run.before, run.time, given, ignore
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
                if not ownership.in_package(cls):  # of a class derived from ndarray
                    self._holders.hold_class(cls)
                    self.of_class.append(cls)
            if id(value) in self.own or self._values.is_array(value):
                continue
            if issubclass(cls, np.ndarray):
                self._values.keeper.has_numbers = True
                if shares_memory(value):
                    what = f'{name} is or holds a NumPy array whose memory another object has, too'
                    self._doubts.say(f'{what}: what the function changes there is not seen')
            if plain_key(value) is not None:
                self._uses.plain = self._uses.plain or not ownership.is_one_of_a_kind(value)
                if issubclass(type(cls), enum.EnumMeta) or issubclass(cls, WITH_CODE):
                    self._values.meet(value)
                continue
            if self.ignore is None or not (among(cls, _PLAIN) or self.ignore(value)):  # the caller compares others
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
