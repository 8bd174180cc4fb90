"""State of objects that is not in their attributes: what they are bound to or made of, their positions and levels.

Numba compiles a function whenever it is called for the first time. Python tells nobody when a compiled function runs,
nor what it reads. One that has no compiled version, neither before a run nor after it, was not called in that run.
"""

from __future__ import annotations

import contextvars
import functools
import random
import struct
import types
from collections import OrderedDict
from types import FrameType
from typing import Any

from capturekit.functions.hidden_state import (
    FILES,
    HOST_RANDOMNESS,
    IN_MEMORY,
    held_by,
    is_in_state,
    is_logger,
    is_logger_as,
    logger_state,
    random_types,
    seeded_by,
    sets_a_state,
    state_of,
    value_in,
)
from capturekit.functions.readable_state import is_in_its_module, is_iterator, is_visible
from capturekit.functions.understood import module_of
from capturekit.functions.watched_values import WatchedValues
from capturekit.model.class_layout import among, attributes_of, dictionary_of_class, name_of
from capturekit.model.kept_values import Keeper, Kept
from capturekit.model.plain_values import a

_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
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
        #: The frames of generators that were met, and where these are, by id.
        self.suspended: dict[int, tuple[FrameType, str]] = {}
        #: Where the first of these generators is that the run has resumed; None if there is none.
        self.resumed: str | None = None
        self.randomness: dict[str, Kept] = {}
        #: Whether a function was met that gives a generator another state: it may be called by any name.
        self.sets_states = False
        #: Functions of Numba's that had no compiled version when they were met, and where they are, by id.
        self.uncompiled: dict[int, tuple[Any, str]] = {}

    def begin(self) -> None:
        """Keep the state of the generators of random numbers that every program has."""
        self.randomness = {name: Keeper(never).keep(state()) for name, state in HOST_RANDOMNESS.items()}

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
            self.sets_states |= sets_a_state(value.__func__)
            if type(value.__func__) is types.BuiltinMethodType:
                values.keep_also(value.__func__)
        elif issubclass(cls, (staticmethod, classmethod, property)):
            base, names = next(pair for pair in _FUNCTIONS_IN.items() if issubclass(cls, pair[0]))
            for name in names:
                self._function_in(value, name, dictionary_of_class(base)[name])
        elif cls is struct.Struct:
            values.watch_state(f'{values.at}: its format', functools.partial(getattr, value, 'format'))
        elif issubclass(cls, _GENERATORS):
            frame = _frame_of(value)
            if frame is not None:
                self.suspended.setdefault(id(frame), (frame, values.at))
        elif issubclass(cls, random.SystemRandom):
            values.opaque(f'is or holds {a(cls)}, whose draws leave no trace')
        elif among(cls, FILES) or issubclass(cls, random_types()):
            self._file_or_generator(value, cls)
        elif is_iterator(cls):
            values.opaque(f"is or holds {a(cls)}: what is left in it can't be compared")
        elif cls is contextvars.ContextVar:
            where, get = f'{values.at}: its value', functools.partial(value_in, value)
            values.watch('context', value, where, get(), ('', ''), None, get)
            return True
        elif is_logger(cls):
            same = functools.partial(is_logger_as, value, logger_state(value))
            values.watch_state(f'{values.at}: its levels, handlers and filters', same)
        elif (seeded := seeded_by(value)) is not None:
            self.sets_states = True
            self._file_or_generator(seeded, type(seeded))
        elif is_uncompiled(value):
            self.uncompiled[id(value)] = value, values.at
        elif not values.is_array(value) and not is_visible(value):
            values.opaque(f"is or holds {a(cls)}, whose whole state can't be seen")
        return False

    def _file_or_generator(self, value: Any, cls: type) -> None:
        values = self._values
        if id(value) not in self.states:
            kept = Keeper(never).keep(state_of(value))
            self.states[id(value)] = (value, kept, values.at)
            if not among(cls, FILES):
                same = functools.partial(is_in_state, value, kept)
                values.watch('draws', value, '', True, (f'{values.at}: its state', ''), None, same)
        if among(cls, IN_MEMORY):
            where, get = f'{values.at}: what it holds', functools.partial(held_by, value)
            values.watch('contents', value, '', held_by(value), (where, ''), None, get)


def _frame_of(generator: Any) -> FrameType | None:
    """The frame of a generator or a coroutine; None if it has ended."""
    frame = getattr(generator, 'gi_frame', None) or getattr(generator, 'cr_frame', None)
    return frame or getattr(generator, 'ag_frame', None)


def never(value: object) -> bool:
    """Return False: no value is an array."""
    return False


_CLASSES = frozenset({'numba.core.registry.CPUDispatcher'})
#: Where such a function keeps its compiled versions.
_VERSIONS = 'overloads'


def is_uncompiled(value: Any) -> bool:
    """Whether a value is a function of Numba's that has no compiled version."""
    cls = type(value)
    if f'{module_of(cls)}.{name_of(cls)}' not in _CLASSES or not is_in_its_module(cls):
        return False
    versions = attributes_of(value).get(_VERSIONS)
    return among(type(versions), (dict, OrderedDict)) and not versions
