"""Values that compare by their contents: a key for each, a holder for others, and their text in messages."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import re
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable
from typing import Any

import numpy as np

from capturekit.model.class_layout import among, attributes_of, name_of

BY_EQUALITY = frozenset({type(None), bool, int, str, bytes, type(...), type(NotImplemented)})
#: Immutable types whose text is the whole value.
_BY_TEXT = frozenset({
    datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction,
    pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()),
})  # fmt: skip
#: Plain types with code that may be replaced or goes by settings, or with state besides the value.
WITH_CODE = (decimal.Decimal, fractions.Fraction, pathlib.PurePath, np.generic, datetime.date)
BY_IDENTITY = (
    types.FunctionType, types.BuiltinFunctionType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ModuleType, type, np.ufunc, re.Pattern, types.GenericAlias, types.UnionType,
    type(np.dot),
)  # fmt: skip
DICTS = (OrderedDict, defaultdict, dict)
CONTAINERS = frozenset({list, tuple, OrderedDict, defaultdict, Counter, dict, set, frozenset, deque})
#: Those of them whose instances take attributes, among which one may hide a method.
WITH_ATTRIBUTES = frozenset({OrderedDict, Counter})
#: Containers without attributes of their own.
BUILT_IN = (CONTAINERS - WITH_ATTRIBUTES) | {np.ndarray, bytearray, array.array, slice}
attribute_text = '.{}'.format


def plain_key(value: object) -> Hashable | None:
    """A key of an immutable value, made of its value and type; None for other values.

    Equal for nan and nan; different for 1, 1.0 and True, for 0.0 and -0.0, and for nan and -nan.
    """
    cls = type(value)
    one: Any = value
    if type(cls) is not type:
        if issubclass(cls, np.dtype):
            found = exact(one)
            return None if found is None else (np.dtype, _form_of(one) if _has_parts(one) else value, found)
        return (enum.Enum, id(value)) if issubclass(type(cls), enum.EnumMeta) else None
    if cls in BY_EQUALITY:
        return (cls, value)
    if cls is float:
        if value and value == value:
            return float, value
        return float, '-nan' if value != value and math.copysign(1, one) < 0 else repr(one)  # a nan has a sign
    if cls is complex:
        return (complex, plain_key(one.real), plain_key(one.imag))
    if cls in _BY_TEXT or cls is range:
        return (cls, repr(value))
    if cls is slice:
        keys = (plain_key(one.start), plain_key(one.stop), plain_key(one.step))
        return None if None in keys else (slice, *keys)
    return _scalar_key(value) if issubclass(cls, np.generic) and cls is not np.void else None


def may_change(value: object) -> bool:
    """Whether a plain value can become another one in place: fields get other names, attributes other values."""
    cls = type(value)
    if type(cls) is not type and issubclass(cls, np.dtype):
        return _has_parts(value)
    return issubclass(cls, (fractions.Fraction, pathlib.PurePath))


def _has_parts(dtype: Any) -> bool:
    return dtype.names is not None or dtype.subdtype is not None


def _form_of(dtype: Any) -> Hashable:
    """A dtype with fields, or of arrays, as it is now."""
    if dtype.subdtype is not None:
        return dtype.type, dtype.shape, plain_key(dtype.base)
    fields = [(name, *dtype.fields[name][1:], plain_key(dtype.fields[name][0])) for name in dtype.names]
    return dtype.type, dtype.itemsize, *fields


def is_nan(value: object) -> bool:
    """Whether a number or a time is not equal to itself: code that looks for it in a container tells it by identity."""
    cls = type(value)
    one: Any = value
    if cls is float:
        return value != value
    if cls is decimal.Decimal:
        return bool(one.is_nan())
    return issubclass(cls, (complex, np.inexact, np.datetime64, np.timedelta64)) and bool(value != value)


def _scalar_key(value: Any) -> Hashable | None:
    cls = type(value)
    if cls.__module__ != 'numpy' or value.dtype.hasobject:
        return None
    if issubclass(cls, (np.longdouble, np.clongdouble)):
        signs = bool(np.signbit(value.real)), bool(np.signbit(value.imag))  # which a nan has without showing it
        return (cls, repr(value), signs)  # its bytes include padding
    return (cls, value.dtype, value.tobytes())


def exact(dtype: np.dtype[Any]) -> Hashable:
    """What two dtypes that are equal may still differ in; None if it can't be compared, as ``metadata``."""
    if dtype.isbuiltin == 1:
        return dtype.char
    inside: list[np.dtype[Any]] = [] if dtype.subdtype is None else [dtype.base]
    inside += [dtype.fields[name][0] for name in dtype.names or () if dtype.fields is not None]
    found = [exact(part) for part in inside]
    if dtype.metadata is not None or None in found:
        return None
    return dtype.char, dtype.type, dtype.isalignedstruct, dtype.names, *found


class Held:
    """A value and its key, by which it compares. A key made of an id is valid while the value is held."""

    __slots__ = ('key', 'value')

    def __init__(self, key: Hashable, value: object) -> None:
        self.key = key
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f'<{show(self.value)}>'


class HeldArray(Held):
    """A numpy array, of which ``value`` is a copy."""

    __slots__ = ()


class HeldSet(Held):
    """A set, of which ``value`` is a copy in the same order; the keys of its members are stored with it."""

    __slots__ = ()


def by_identity(value: object) -> Held:
    return Held(id(value), value)


def member_key(member: Any) -> Held:
    """A key of a dict, or a member of a set, by value where it is simple and by identity where not."""
    if among(type(member), (tuple, frozenset)):
        return Held((type(member), type(member)([member_key(part) for part in member])), member)
    key = plain_key(member)
    return Held(key, member) if key is not None else by_identity(member)


def show(value: Any) -> str:
    """The text of a value in a message, made without calling its code."""
    cls = type(value)
    if cls is int and value.bit_length() > 4096:  # Python refuses to write longer ones than it is set to
        return f'a whole number of {value.bit_length()} bits'
    if issubclass(type(cls), enum.EnumMeta):
        name = attributes_of(value).get('_name_')
        return f'{name_of(cls)}.{name}'
    if (cls is tuple or cls is frozenset) and all(plain_key(part) is not None for part in value):
        inner = ', '.join(show(part) for part in value)
        inner += ',' if cls is tuple and len(value) == 1 else ''
        text = f'({inner})' if cls is tuple else f'frozenset({{{inner}}})'
    elif plain_key(value) is not None:
        text = repr(value)
    elif issubclass(cls, types.FunctionType):
        return f'function {value.__name__}'
    elif issubclass(cls, type):
        return f'class {name_of(value)}'
    elif among(cls, BUILT_IN):
        return with_article(name_of(cls))
    else:
        return with_article(f'{name_of(cls)} object')
    return text if len(text) <= 60 else text[:57] + '...'


def index_text(key: object) -> str:
    if type(key) is str:
        return '["' + key + '"]'
    return f'[{show(key)}]'


def a(cls: type) -> str:
    """``an O object``."""
    return with_article(f'{name_of(cls)} object')


def with_article(noun: str) -> str:
    return f'{"an" if noun[:1].lower() in "aeiou" else "a"} {noun}'
