"""What a run has shown so far: what can not be watched, what is not settled yet, names in code, and uses of objects."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from capturekit.functions.instructions import single_steps
from capturekit.functions.ownership import is_library_frame
from capturekit.functions.readable_state import is_itself, named_in
from capturekit.model.class_layout import MISSING, found_in_class, name_of
from capturekit.model.kept_values import IsArray
from capturekit.model.plain_values import plain_key


class Doubts:
    """The sentences that say why a run's recording may not stand for later calls."""

    def __init__(self, skip: Callable[[str], bool]) -> None:
        self.unwatchable: list[str] = []
        self._skip = skip

    def add(self, frame: FrameType | None, action: str) -> None:
        """Note that something is not understood: what it is, and the user's line."""
        self.unwatchable.append(self.sentence(frame, action))

    def sentence(self, frame: FrameType | None, action: str) -> str:
        """Say that something is not understood."""
        return f'the function {action}{self.line(frame)}: what that reads is not known'

    def line(self, frame: FrameType | None) -> str:
        """The user's line at which a frame was entered."""
        while frame is not None and is_library_frame(frame, self._skip):
            frame = frame.f_back
        return '' if frame is None else f' at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}'


class Unsettled:
    """What was met since the attributes of objects were watched last; :class:`Holders` takes it from here."""

    def __init__(self) -> None:
        #: The objects that were met.
        self.pending: list[Any] = []
        #: What values are bound to, and where these are: it is watched with its contents.
        self.also: list[tuple[Any, str]] = []
        #: The names that objects such as an ``attrgetter`` ask others for.
        self.asked_names: set[str] = set()
        #: Whether something was met that asks others for any attribute.
        self.asks_all = False


class NamesUsed:
    """The names in code, and the names that code has as texts; :class:`Holders` adds to them."""

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.strings: set[str] = set()
        #: Whether code may ask any object for any attribute.
        self.everything = False
        #: The objects and classes of the user all of whose attributes count, by id.
        self.full: dict[int, Any] = {}
        #: What may be asked of arrays, and can't be compared.
        self.of_cupy: set[str] = set()
        #: Whether the ``__getattr__`` of a module reads attributes of an object by names.
        self.finds = False
        #: Whether code may do anything with ``sys.modules``, and not only ask for modules by constant names.
        self.opens_modules = False
        #: The attributes that objects, and their classes, had when code asked them for computed names, and whether code
        #: took the ``__dict__`` of an object that the run has made.
        self.asked_for: set[str] = set()
        self.takes_new = False

    def of_arrays(self) -> str | None:
        """What the code may have asked an array for that gives its address or says who owns its memory; or None."""
        return min(self.of_cupy, default=None)


class ObjectUses:
    """The comparisons by identity in a run, and the classes of which it has made objects."""

    def __init__(self, is_array: IsArray) -> None:
        self._is_array = is_array
        #: Which code compares identities; '' if none does.
        self.identities = ''
        #: By the id of code: its parameters that it compares by identity, and its name and file.
        self.compared: dict[int, tuple[frozenset[str], str]] = {}
        #: Whether a number or a text is an argument, in whose place another call may have an equal one.
        self.plain = False
        #: The classes of objects that are hashed by their address, of which the run has made some.
        self.by_address: set[str] = set()
        #: The classes of such objects that the run may have made without an event, by id.
        self.perhaps_made: dict[int, type] = {}
        #: The names of code that makes a set of another one by a method.
        self.copied_sets: set[str] = set()
        #: By the id of a class with a method ``__del__``: it, and how many of its objects the run has made, less those
        #: for which that method has run.
        self.finalized: dict[int, list[Any]] = {}

    def identity(self, chains: Iterable[tuple[str, ...] | None], start: Any, own: Any, where: str) -> None:
        """Note which code compares by identity what it names, if an equal object may come in its place."""
        for chain in chains:
            value = MISSING if chain is None else start.get(chain[0], own.get(chain[0], MISSING))
            for name in () if chain is None else chain[1:]:
                value = named_in(value, name)
            if value is MISSING or self._is_array(value) or not is_itself(value):
                self.identities = self.identities or where

    def compare_parameters(self, code: CodeType, variables: Any) -> None:
        """Note whether code asks by identity for something in whose place a recording may get an equal object."""
        names, where = self.compared.get(id(code), ((), ''))
        if not all(self._is_array(variables.get(name)) or is_itself(variables.get(name)) for name in names):
            self.identities = self.identities or where

    def makes(self, cls: type, perhaps: bool = False) -> None:
        """Note a class of which the run makes objects. ``perhaps``: where it calls the class, which is no event."""
        if hashed_by_address(cls) and perhaps:
            self.perhaps_made[id(cls)] = cls
        elif hashed_by_address(cls):
            self.by_address.add(name_of(cls))
        if found_in_class(cls, '__del__') is not MISSING:
            self.finalized.setdefault(id(cls), [cls, 0])[1] += 1


_LOADS = ('LOAD_FAST', 'LOAD_DEREF', 'LOAD_NAME')
_SKIPPED = ('PUSH_NULL', 'PRECALL', 'NOP')


def hashed_by_address(cls: type) -> bool:
    """Whether the hash of a class's objects is made of their address."""
    return found_in_class(cls, '__hash__') is object.__hash__


def is_hash_of_a_value(frame: FrameType) -> bool:
    """Whether a call of ``hash`` that code begins has nothing to do with an address, as far as the code shows it.

    What a method ``__hash__`` returns only decides the place in a dict or a set.
    """
    code = frame.f_code
    if code.co_name == '__hash__':
        return True
    before = [step for step in single_steps(code) if step.offset < frame.f_lasti]
    given = next(step for step in reversed(before) if step.opname not in _SKIPPED)
    if given.opname == 'LOAD_CONST':
        return True
    known = frame.f_globals if given.opname == 'LOAD_GLOBAL' else frame.f_locals
    value = known.get(given.argval, MISSING) if given.opname.startswith(('LOAD_GLOBAL', *_LOADS)) else MISSING
    return is_hashed_by_value(value)


def is_hashed_by_value(value: object) -> bool:
    """Whether the hash of a value has nothing to do with an address: numbers, texts, and tuples and sets of such."""
    if type(value) is tuple or type(value) is frozenset:
        return all(map(is_hashed_by_value, value))
    if plain_key(value) is None or issubclass(type(type(value)), enum.EnumMeta):
        return False
    return bool(value == value)  # no nan, whose hash is that of its address
