"""State of objects that is not in their attributes: what they are bound to or made of, their positions and levels."""

from __future__ import annotations

import contextvars
import functools
import random
import struct
import types
from collections.abc import Callable
from types import FrameType
from typing import Any

from capturekit.functions.hidden_state import FILES, IN_MEMORY, held_by, is_in_state, random_types, state_of, value_in
from capturekit.functions.library_state import LibraryState
from capturekit.functions.logger_state import is_logger, is_logger_as, logger_state
from capturekit.functions.readable_state import is_iterator, is_visible
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import among, dictionary_of_class
from capturekit.model.kept_values import IsArray, Keeper, Kept
from capturekit.model.plain_values import a

_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
#: Where these keep the functions that they were made of. Their ``__init__`` may be called again, with others.
_FUNCTIONS_IN: dict[type, tuple[str, ...]] = {
    property: ('fget', 'fset', 'fdel'), staticmethod: ('__func__',), classmethod: ('__func__',),
}  # fmt: skip


class HiddenParts(LibraryState):
    """The state of objects that is neither in attributes nor in contents."""

    def __init__(self, is_array: IsArray) -> None:
        super().__init__()
        self._is_array = is_array
        self._at = ''
        self._states: dict[int, tuple[Any, Kept, str]] = {}
        self._suspended: dict[int, tuple[FrameType, str]] = {}

    def _watch(
        self, kind: str, holder: Any, key: str, value: Any, where: tuple[str, str], mapping: Any, get: Any = None
    ) -> WatchedValue | None:
        raise NotImplementedError

    def _watch_state(self, name: str, get: Callable[[], Any]) -> None:
        """Watch what a function returns: a setting of a library."""
        self._watch('state', get, name, get(), ('', ''), None, get)

    def _meet(self, value: Any) -> None:
        raise NotImplementedError

    def _opaque(self, what: str) -> None:
        raise NotImplementedError

    def _keep_also(self, value: Any) -> None:
        raise NotImplementedError

    def _function_in(self, value: Any, name: str, member: Any) -> None:
        """Watch a function of which a property or a static method is made."""
        get = functools.partial(member.__get__, value)
        function = get()
        if function is not None:
            self._meet(function)  # which may be a class, or written in C
            entry = self._watch('slot', value, name, function, (self._at, ''), None, get)
            if entry is not None:
                entry.member = member

    def _has_state(self, value: Any, cls: type) -> bool:
        """Watch state that is not in attributes. True if a value has no other state."""
        if cls is types.MethodType:
            self._meet(value.__func__)
            self._keep_also(value.__self__)
            if type(value.__func__) is types.BuiltinMethodType:
                self._keep_also(value.__func__)
        elif issubclass(cls, (staticmethod, classmethod, property)):
            base, names = next(pair for pair in _FUNCTIONS_IN.items() if issubclass(cls, pair[0]))
            for name in names:
                self._function_in(value, name, dictionary_of_class(base)[name])
        elif cls is struct.Struct:
            self._watch_state(f'{self._at}: its format', functools.partial(getattr, value, 'format'))
        elif issubclass(cls, _GENERATORS):
            frame = getattr(value, 'gi_frame', None) or getattr(value, 'cr_frame', None)
            frame = frame or getattr(value, 'ag_frame', None)
            if frame is not None:
                self._suspended.setdefault(id(frame), (frame, self._at))
        elif issubclass(cls, random.SystemRandom):
            self._opaque(f'is or holds {a(cls)}, whose draws leave no trace')
        elif among(cls, FILES) or issubclass(cls, random_types()):
            if id(value) not in self._states:
                kept = Keeper(never).keep(state_of(value))
                self._states[id(value)] = (value, kept, self._at)
                if not among(cls, FILES):
                    get = functools.partial(is_in_state, value, kept)
                    self._watch('draws', value, '', True, (f'{self._at}: its state as it was', ''), None, get)
            if among(cls, IN_MEMORY):
                where = f'{self._at}: what it holds', ''
                self._watch('contents', value, '', held_by(value), where, None, functools.partial(held_by, value))
        elif is_iterator(cls):
            self._opaque(f"is or holds {a(cls)}: what is left in it can't be compared")
        elif cls is contextvars.ContextVar:
            self._watch_state(f'{self._at}: its value', functools.partial(value_in, value))
            return True
        elif is_logger(cls):
            same = functools.partial(is_logger_as, value, logger_state(value))
            self._watch_state(f'{self._at}: its levels, handlers and filters as they were', same)
        elif not self._is_array(value) and not is_visible(value):
            self._opaque(f"is or holds {a(cls)}, whose whole state can't be seen")
        return False


def never(value: object) -> bool:
    """Return False: no value is an array."""
    return False
