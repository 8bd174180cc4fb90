"""Where the instances of a class keep their attributes, found without running code of the class or of its metaclass."""

from __future__ import annotations

import functools
import struct
import types
import weakref
from collections.abc import Callable, Iterable
from itertools import repeat
from operator import is_
from typing import Any, NamedTuple

_WORD = struct.calcsize('P')
_HEAP, _NO_INSTANCES = 1 << 9, 1 << 7
#: What classes say of themselves, whatever their metaclass says: ``cls.__dict__``, ``cls.__mro__``, ``cls.__name__``.
dictionary_of_class: Callable[[type], Any] = type.__dict__['__dict__'].__get__
bases_of: Callable[[type], tuple[type, ...]] = type.__dict__['__mro__'].__get__
name_of: Callable[[type], str] = type.__dict__['__name__'].__get__
_QUALNAME = type.__dict__['__qualname__'].__get__
_CLASS_FLAGS, _CLASS_SIZE, _DICT_AT, _WEAK_AT = (
    type.__dict__[name].__get__ for name in ('__flags__', '__basicsize__', '__dictoffset__', '__weakrefoffset__')
)


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return 'MISSING'


MISSING = _Missing()


def form_of_class(cls: type) -> tuple[Any, ...]:
    """The bases and the names of a class, which are not in its dictionary."""
    return (bases_of(cls), name_of(cls), _QUALNAME(cls))


def made_by_class_statement(cls: type) -> bool:
    """True for classes made at run time; a few of those are written in C."""
    return bool(_CLASS_FLAGS(cls) & _HEAP)


def among(cls: type, group: Iterable[type]) -> bool:
    """``cls in group`` by identity: a metaclass may have an ``__eq__`` or ``__hash__`` of its own."""
    return any(map(is_, repeat(cls), group))


class ClassLayout(NamedTuple):
    """Where instances of a class keep their attributes: a getter of the ``__dict__`` or None, and the slots."""

    dictionary: Callable[[Any], dict[str, Any]] | None
    slots: dict[str, Any]

    def read_slot(self, value: object, name: str) -> object:
        try:
            return self.slots[name].__get__(value)
        except AttributeError:
            return MISSING


#: Class members that only say where an instance keeps something, and are not state themselves.
_NO_SLOTS = frozenset({'__dict__', '__vectorcalloffset__', '__dictoffset__', '__weaklistoffset__'})


def layout_of(cls: type) -> ClassLayout:
    """Find the ``__dict__`` and the slots of a class's instances without asking the instances."""
    dictionary = None
    slots: dict[str, Any] = {}
    decided = False
    for base in bases_of(cls):
        members = dictionary_of_class(base)
        if not decided and '__dict__' in members:
            decided = True
            found = members['__dict__']
            if among(type(found), (types.GetSetDescriptorType, types.MemberDescriptorType)):
                dictionary = found.__get__
        for name, member in list(members.items()):  # another thread may change them
            if type(member) is types.MemberDescriptorType and name not in _NO_SLOTS:
                slots.setdefault(name, member)
    return ClassLayout(dictionary, slots)


def solid_base(cls: type) -> type:
    """The innermost base whose instances ``object.__new__`` does not make as Python does, or object."""
    bases = bases_of(cls)
    for base in bases:
        made_in_c = _begins_in_c(base)
        if not made_by_class_statement(base) or _CLASS_FLAGS(base) & _NO_INSTANCES or made_in_c:
            if base is not object:
                return base
            break
    members = sum(map(_members, bases))
    words = members + (_DICT_AT(cls) > 0) + (_WEAK_AT(cls) > 0)
    return object if _CLASS_SIZE(cls) <= object.__basicsize__ + words * _WORD else cls


def _begins_in_c(cls: type) -> bool:
    """Whether code written in C makes the objects of a class, and of no base of it: it may keep there what it likes."""
    members = dictionary_of_class(cls)
    new, begin = members.get('__new__'), members.get('__init__')
    made = type(new) is types.BuiltinFunctionType and new.__self__ is cls
    return made or (type(begin) is types.WrapperDescriptorType and begin.__objclass__ is cls)


def _members(cls: type) -> int:
    """How many words of memory the members of a class say that its instances have; counted once for each class."""
    known = _COUNTED.get(id(cls))
    of_class = dictionary_of_class(cls)
    if known is None or known[0]() is not cls or known[1] != len(of_class):
        count = sum(type(member) is types.MemberDescriptorType for member in list(of_class.values()))
        known = _COUNTED[id(cls)] = weakref.ref(cls, functools.partial(_forget, id(cls))), len(of_class), count
    return known[2]


def _forget(key: int, _dead: object) -> None:
    _COUNTED.pop(key, None)


#: By id of a class: the class, how many members it had, and the count.
_COUNTED: dict[int, tuple[weakref.ref[type], int, int]] = {}


def attributes_of(value: object) -> dict[str, Any]:
    """A copy of an object's attributes: those in its ``__dict__`` and its slots."""
    layout = layout_of(type(value))
    found = dict(layout.dictionary(value)) if layout.dictionary is not None else {}
    for name in layout.slots:
        item = layout.read_slot(value, name)
        if item is not MISSING:
            found[name] = item
    return found


def own_layout(cls: type) -> tuple[bool, bool]:
    """Whether instances of a class have a ``__dict__``, and whether they have slots that a class statement made."""
    layout = layout_of(cls)
    slots = [member.__objclass__ for member in layout.slots.values()]
    return layout.dictionary is not None, any(made_by_class_statement(one) and not _begins_in_c(one) for one in slots)


def found_in_class(cls: type, name: str) -> Any:
    """What a class or one of its bases holds under a name, without asking its metaclass; MISSING if none does."""
    return next((members[name] for members in map(dictionary_of_class, bases_of(cls)) if name in members), MISSING)


def is_dataclass(cls: type) -> bool:
    return found_in_class(cls, '__dataclass_fields__') is not MISSING
