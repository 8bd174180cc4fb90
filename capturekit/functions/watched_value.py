"""One value that is watched while a function runs, and compared at later calls; and what holds such values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, NamedTuple

from capturekit.guard import GUARD
from capturekit.model.class_layout import MISSING, ClassLayout, made_by_class_statement
from capturekit.model.kept_values import Kept
from capturekit.model.plain_values import a


class Holder(NamedTuple):
    """An object whose attributes are watched, and their values when the run first used it.

    ``kind``: 'object', 'class', 'module', 'function'. ``owned``: it belongs to the user, whose code names all that is
    read of it. ``whole``: all of its attributes are watched. ``missing``: names that code looked for and did not find.
    """

    value: Any
    cls: type
    kind: str
    layout: ClassLayout
    start: dict[str, Any]
    slots: dict[str, Any]
    owned: bool
    whole: bool
    missing: set[str]

    @property
    def of_user(self) -> bool:
        """Whether only the user puts attributes there: a class written in C puts none into the ``__dict__``."""
        in_c = self.kind == 'object' and not made_by_class_statement(self.cls)
        return self.owned or (in_c and self.layout.dictionary is not None)

    @property
    def whose(self) -> str:
        """The words that say whose an attribute is: `` of module train``."""
        if self.kind == 'module':
            return f' of module {self.start.get("__name__")}'
        if self.kind == 'function':
            return f' of function {getattr(self.value, "__name__", "")}'
        return f' of {a(type(self.value))}'


class WatchedValue:
    """One value that is watched.

    Attributes:
        kind: 'global', 'variable' (a closure's), 'attribute', 'slot', 'class attribute', 'function', 'of CuPy' ...
        holder: the dict of the globals, the cell, the object, the class or the function.
        key: the name.
        kept: its value when the run began (:class:`capturekit.model.pytree.Kept`).
        get: the function that reads it, where no dictionary holds it; else None.
    """

    __slots__ = ('_where', 'get', 'holder', 'kept', 'key', 'kind', 'mapping', 'member')

    def __init__(
        self, kind: str, holder: Any, key: str, kept: Kept, where: tuple[str, str], mapping: Any, get: Any = None
    ) -> None:
        self.kind = kind
        self.holder = holder
        self.key = key
        self.kept = kept
        self._where = where
        self.mapping = mapping
        self.member: Any = None
        self.get = get

    @property
    def value(self) -> Any:
        """The value when the run began, :data:`capturekit.model.pytree.MISSING` if there was none."""
        return self.kept.value

    def __repr__(self) -> str:
        return f'<{self.where()}>'

    def where(self, path: str = '') -> str:
        """The value's place in words: ``global cfg["lr"] of train.py``."""
        before, after = self._where
        return f'{before} {self.key}{path}{after}'.strip()

    def read(self) -> Any:
        """The value now."""
        if self.get is not None:
            return self.get()
        return self.mapping.get(self.key, MISSING)


#: Tells of a value and a number how many other numbers earlier runs have found there; None if one has found this one.
OtherNumbers = Callable[[WatchedValue, Any], 'int | None']


def itself(value: Any) -> Any:
    """The value, where a function that reads it is asked for."""
    return value


def read_cell(cell: CellType) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def held_in_closure(function: FunctionType) -> list[Any]:
    """The functions that the variables of a function's closure hold, and containers, in which it may keep answers."""
    inside = [read_cell(cell) for cell in function.__closure__ or ()]
    return [one for one in inside if type(one) in (FunctionType, dict, list, set)]


def of_this_thread(local: Any) -> dict[str, Any]:
    """The attributes that a ``threading.local`` has in this thread."""
    found: dict[str, Any] = threading.local.__getattribute__(local, '__dict__')
    return found


def read_attribute(dictionary: Callable[[Any], dict[str, Any]], value: object, name: str) -> Any:
    """An attribute in an object's dictionary."""
    return dictionary(value).get(name, MISSING)


def read_unguarded(dictionary: Callable[[Any], dict[str, Any]], value: object, name: str) -> Any:
    """The same, and what stands behind it where the guard has put something in its place."""
    return GUARD.installation.original_of(dictionary(value).get(name, MISSING))
