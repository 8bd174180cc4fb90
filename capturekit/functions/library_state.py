"""What Python's own modules and libraries hold that code of theirs uses, and that the user may replace."""

from __future__ import annotations

from types import FrameType, ModuleType
from typing import Any

from capturekit.functions.ownership import Ownership
from capturekit.functions.readable_state import in_package, is_cupys
from capturekit.functions.understood import OF_PYTHON, SPECIAL
from capturekit.guard import GUARD
from capturekit.model.class_layout import (
    MISSING,
    bases_of,
    dictionary_of_class,
    layout_of,
    made_by_class_statement,
    name_of,
)


class LibraryState:
    """The names in modules and classes of libraries that a run has used, and what they stood for."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        #: By module, class or object: the names that a library's code uses there, and that any code uses in CuPy's
        #: classes.
        self.inner: dict[int, tuple[Any, dict[str, Any]]] = {}
        #: Those of them in which no new name may appear, either.
        self.complete: set[int] = set()
        #: Python classes of libraries whose objects were met, by id: a special method may be put into one later.
        self.libraries: dict[int, type] = {}
        #: The dictionaries of modules and functions that were met and are not the user's, by id; and what they are of.
        self.foreign: dict[int, tuple[str, dict[str, Any]]] = {}

    def sizes(self, others: bool) -> list[tuple[str, Any, int]]:
        """These classes, with their dictionaries and numbers of names. ``others``: and modules and functions."""
        found = [(f'class {name_of(cls)}', dictionary_of_class(cls)) for cls in self.libraries.values()]
        found += self.foreign.values() if others else []
        return [(name, values, len(values)) for name, values in found]

    def of_library(self, cls: type) -> None:
        """Note a class of a library, whose objects the code has."""
        if id(cls) in self.libraries or in_package(cls) or not made_by_class_statement(cls):
            return
        for base in bases_of(cls):
            if made_by_class_statement(base) and not in_package(base) and self._ownership.is_foreign_class(base):
                self.libraries[id(base)] = base
                self.inside_of(base, SPECIAL & dictionary_of_class(base).keys())

    def inside_of(self, cls: type, names: Any) -> None:
        """Keep what a library's Python class has under these names; None for a name that it does not have."""
        if made_by_class_statement(cls):
            members = dictionary_of_class(cls)
            known = self.inner.setdefault(id(cls), (members, {}))[1]
            for name in names:
                value = GUARD.installation.original_of(members.get(name))
                known.setdefault(name, None if value is MISSING else value)

    def inside_whole(self, values: Any, start: dict[str, Any]) -> None:
        """Keep all that the dictionary of a library's module or class had in it at the start."""
        known = self.inner.setdefault(id(values), (values, {}))[1]
        for name, value in start.items():
            original = GUARD.installation.original_of(value)
            if name not in OF_PYTHON and original is not MISSING:
                known.setdefault(name, original)

    def inside_cupy(self, frame: FrameType) -> None:
        """Keep the functions, classes and modules that CuPy's own code names."""
        todo, original_of = [frame.f_globals], GUARD.installation.original_of
        for values in todo:
            known = self.inner.setdefault(id(values), (values, {}))[1]
            for name in frame.f_code.co_names:
                value = values.get(name)
                if name in known or not (callable(value) or type(value) is ModuleType):
                    continue
                if original_of(value) is MISSING:
                    continue
                known[name] = original_of(value)
                if type(value) is ModuleType and values is frame.f_globals and is_cupys(value.__name__):
                    todo.append(vars(value))

    def inside_library(self, frame: FrameType) -> None:
        """Keep what code of Python's own modules names in its module, and the attributes of objects there."""
        values, own, original_of = frame.f_globals, frame.f_builtins, GUARD.installation.original_of
        mine = self.inner.setdefault(id(values), (values, {}))[1]
        builtin = self.inner.setdefault(id(own), (own, {}))[1]
        for name in frame.f_code.co_names:
            value = original_of(values.get(name, MISSING))
            if value is MISSING and name in own:
                mine[name] = None
                builtin[name] = own[name]
            elif name not in mine and value is not MISSING:
                mine[name] = value
                self._inside_object(value)

    def _inside_object(self, value: Any) -> None:
        """Keep the attributes of an object in a module of Python, such as the encoder of ``json``, and of its class."""
        cls = type(value)
        get = layout_of(cls).dictionary if made_by_class_statement(cls) else None
        if get is None or issubclass(cls, (type, ModuleType)):
            return
        values = get(value)
        self.inner.setdefault(id(values), (values, dict(values)))
        for base in bases_of(cls):
            self.inside_of(base, dictionary_of_class(base))
        self.complete.update(id(one) for one in (values, *bases_of(cls)))
