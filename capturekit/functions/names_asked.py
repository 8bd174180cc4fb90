"""Which attributes code asks for by ``getattr`` and its like, whose names are values.

A name that is in the code, or in a variable, is seen. Of an object that is seen (from Python 3.12 on), a computed name
may be any: all attributes of that object and of its class count then, and of no other.
"""

from __future__ import annotations

import functools
import os
import threading
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from capturekit.functions.attributes import Attributes
from capturekit.functions.code_reads import names_of
from capturekit.functions.collector import Before
from capturekit.functions.doubts import NamesUsed
from capturekit.functions.holders import Holders
from capturekit.functions.lines_run import LinesRun
from capturekit.functions.loaded_values import NameGiven
from capturekit.functions.ownership import Ownership
from capturekit.functions.understood import INTERFACES
from capturekit.functions.watched_values import WatchedValues
from capturekit.model.class_layout import (
    MISSING,
    attributes_of,
    bases_of,
    dictionary_of_class,
    layout_of,
    made_by_class_statement,
    solid_base,
)
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import plain_key

_ASKING = (getattr, setattr, hasattr, delattr)
_own_folder = os.path.dirname(os.path.abspath(__file__))


class NamesAsked:
    """The attributes that a run asks for by names which are values."""

    def __init__(
        self,
        values: WatchedValues,
        holders: Holders,
        attributes: Attributes,
        names: NamesUsed,
        ownership: Ownership,
        lines: LinesRun,
        before: Before,
    ) -> None:
        self._values, self._holders, self._attributes = values, holders, attributes
        self._names, self._ownership, self._lines, self._before = names, ownership, lines, before
        #: Code that calls ``getattr`` or its like, and where: see :class:`capturekit.functions.code_reads.CodeNames`.
        self._asking: dict[int, CodeType] = {}
        self._sites: dict[tuple[int, int], NameGiven] = {}
        #: Code and offset of a call that asks an object for a computed name. The object is told next.
        self._to_ask: tuple[int, int] | None = None

    def call_asks(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        """Note what a call that begins is going to ask for: which object was not known yet."""
        if self._to_ask is None or not any(function is one for one in _ASKING):
            return
        told, self._to_ask = self._to_ask == (id(code), offset), None
        if not told or not self._takes_in_full(first):
            self._holders.name((), (), True)
        self._holders.settle()

    def look_at_all(self, value: Any) -> None:
        """Watch all attributes of a value: code takes its ``__dict__``."""
        if value is MISSING or not self._takes_in_full(value, True):
            self._holders.name((), (), True)
        self._holders.settle()

    def answer_all(self) -> None:
        """Take it that a call whose object was not told may have asked any object."""
        if self._to_ask is not None:
            self._to_ask = None
            self._holders.name((), (), True)
            self._holders.settle()

    def asked(self, frame: FrameType, tests: bool) -> None:
        """Watch the attribute that code of the user, or of Python itself for it, asks ``getattr`` or its like for.

        ``tests``: it asks by ``hasattr``, which gives the code nothing of the attribute.
        """
        code = frame.f_code
        if self._names.everything or code.co_filename.startswith(_own_folder):
            return
        if id(code) not in self._asking:
            self._asking[id(code)] = code
            self._sites |= names_of(code).sites
        given = self._sites.get((id(code), frame.f_lasti))
        name = None if given is None else given.value_in(frame.f_locals)
        self.answer_all()
        if type(name) is not str:
            self._to_ask = id(code), frame.f_lasti
            if self._lines.of(code) is None:
                self.answer_all()
        elif tests and name in INTERFACES:
            self._holders.name((name,), (), False)
            self._holders.settle()
        elif name not in self._names.strings and not (name == '__dict__' and self._wraps(frame)):
            self._holders.name((name,), (name,), False)
            self._holders.settle()

    def _takes_in_full(self, value: Any, takes: bool = False) -> bool:
        """Watch all attributes of an object and of its class. False if it is not one that has nothing else.

        ``takes``: whether code gets its ``__dict__``, by which it may see them later.
        """
        cls = type(value)
        if id(value) in self._names.full:
            self._had(value)
            return True
        of_thread = cls is threading.local
        if not of_thread and (not _is_plain(value) or any(map(self._ownership.is_foreign_class, bases_of(cls)[:-1]))):
            return False
        if self._before.had(value):
            self._values.meet(value)
            self._holders.settle()
            holder = self._holders.by_id.get(id(value))
            if holder is None or holder.kind != 'object' or not holder.owned:
                return False
            for name in sorted(holder.start.keys() | holder.slots.keys()):
                self._attributes.attribute_of(holder, name)
            self._names.full[id(value)] = value
        elif takes or of_thread:
            self._names.takes_new = True
        if of_thread:
            return True
        self._had(value)
        self._holders.hold_class(cls)
        for base in bases_of(cls)[:-1]:
            if id(base) not in self._names.full:
                self._names.full[id(base)] = base
                self._attributes.class_names(
                    cls, [name for name in dictionary_of_class(base) if not name.startswith('__')]
                )
        return True

    def _had(self, value: Any) -> None:
        """Note what an object has when it is asked, and its class, for the run may take it away again."""
        self._names.asked_for.update(attributes_of(value), layout_of(type(value)).slots)
        for base in bases_of(type(value))[:-1]:
            self._names.asked_for.update(dictionary_of_class(base))

    def _wraps(self, frame: FrameType) -> bool:
        """Watch all attributes of a function that ``functools.wraps`` copies to one that the run made."""
        if frame.f_code is not functools.update_wrapper.__code__:
            return False
        wrapper, wrapped = frame.f_locals['wrapper'], frame.f_locals['wrapped']
        wrapped = wrapped.__func__ if type(wrapped) is MethodType else wrapped
        if type(wrapper) is not FunctionType or type(wrapped) is not FunctionType or self._before.had(wrapper):
            return False
        if self._before.had(wrapped):
            where, get = ('', f' of {wrapped.__name__}'), functools.partial(getattr, wrapped, '__dict__')
            self._values.watch('function', wrapped, '__dict__', get(), where, None, get)
            self._holders.settle()
        return True


def _is_plain(value: Any) -> bool:
    """Whether a value is an object of a Python class that has attributes and nothing else."""
    cls = type(value)
    plain = type(cls) is type and solid_base(cls) is object and plain_key(value) is None and contents_of(value) is None
    return plain and all(made_by_class_statement(base) for base in bases_of(cls)[:-1])
