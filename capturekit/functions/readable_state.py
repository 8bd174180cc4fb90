"""How much of an object's state can be read, by its type: what can't be read can't be compared."""

from __future__ import annotations

import enum
import sys
import threading
import types
from typing import Any

import numpy as np

from capturekit.functions.understood import (
    CONSTANT,
    CONSTANT_NAMES,
    FAR_KERNELS,
    KERNELS,
    PACKAGES,
    TYPE_CHECKS,
    module_of,
)
from capturekit.model.class_layout import (
    MISSING,
    bases_of,
    dictionary_of_class,
    is_dataclass,
    layout_of,
    made_by_class_statement,
    name_of,
    solid_base,
)
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import CONTAINERS, plain_key

#: The whole numbers that Python keeps one object of.
_SMALL = range(-5, 257)
_SEEN = (*CONTAINERS, str, bytes, int, float, complex, object, types.SimpleNamespace)
_QUALIFIED = type.__dict__['__qualname__'].__get__
_HARMLESS = frozenset({'typing', 'abc', 'collections.abc', 'enum', 'builtins'})
#: Classes of ``contextlib`` without attributes.
_MANAGERS = frozenset({
    'AbstractContextManager', 'AbstractAsyncContextManager', 'ContextDecorator', 'AsyncContextDecorator',
})  # fmt: skip


def in_package(cls: type) -> bool:
    """True for classes of packages that are understood as a whole, except Python classes of NumPy and SciPy."""
    top = module_of(cls).partition('.')[0]
    if top in ('numpy', 'scipy'):
        return False
    return top in PACKAGES


def only_checks_types(cls: type) -> bool:
    """True for metaclasses of libraries whose ``isinstance`` is understood: for JAX's arrays, say."""
    return f'{module_of(cls)}.{name_of(cls)}' in TYPE_CHECKS and is_in_its_module(cls)


def is_in_its_module(cls: type) -> bool:
    """True if a class really is in the module that it names, under its name: a user's class may name another module."""
    found: Any = sys.modules.get(module_of(cls))
    for part in str(_QUALIFIED(cls)).split('.'):
        inside = vars(found) if type(found) is types.ModuleType else dictionary_of_class(found) if found else {}
        found = inside.get(part)
        if not issubclass(type(found), type):
            return False
    return found is cls


def is_visible(value: Any) -> bool:
    """True if the whole state of a value can be read (attributes and contents), or it has none."""
    cls = type(value)
    if issubclass(cls, np.dtype):
        return False  # with metadata: the others are plain values
    if issubclass(cls, CONSTANT) or contents_of(value) is not None or issubclass(type(cls), enum.EnumMeta):
        return True
    names = {f'{module_of(base)}.{name_of(base)}' for base in bases_of(cls)[:1]}
    if names & CONSTANT_NAMES or name_of(cls) in CONSTANT_NAMES:
        return True
    if in_package(cls) or any(in_package(base) for base in bases_of(cls)):
        return True
    if cls is threading.local:
        return True
    if not made_by_class_statement(cls) and cls is not types.SimpleNamespace:
        return module_of(cls).partition('.')[0] == 'numpy' and bool(layout_of(cls).dictionary)
    return any(solid_base(cls) is seen for seen in _SEEN) and not _hides_a_slot(cls)


def _hides_a_slot(cls: type) -> bool:
    """Whether a class has a slot of the same name as one of its bases: what lies in the other is not seen."""
    members = [dictionary_of_class(base).items() for base in bases_of(cls)]
    slots = [name for items in members for name, one in items if type(one) is types.MemberDescriptorType]
    return len(slots) != len(set(slots))


def is_whole(cls: type) -> bool:
    """True if code other than the user's reads the attributes of a class's instances, so that all attributes count."""
    return issubclass(cls, types.SimpleNamespace) or any(
        base is not object
        and made_by_class_statement(base)
        and module_of(base) not in _HARMLESS
        and not (module_of(base) == 'contextlib' and name_of(base) in _MANAGERS)
        and not in_package(base)
        and is_pythons(module_of(base))
        for base in bases_of(cls)
    )


def is_pythons(module: str) -> bool:
    """True for the name of a module of Python, NumPy or SciPy."""
    return module.partition('.')[0] in sys.stdlib_module_names or module.partition('.')[0] in ('numpy', 'scipy')


def is_iterator(cls: type) -> bool:
    """True for iterators written in C, whose position can't be read."""
    for base in bases_of(cls):
        if '__next__' in dictionary_of_class(base):
            return type(dictionary_of_class(base)['__next__']) is types.WrapperDescriptorType
    return False


def named_in(value: Any, name: str) -> Any:
    """What a module, an enumeration or a class holds under a name; MISSING for other values."""
    cls = type(value)
    if cls is types.ModuleType:
        return vars(value).get(name, MISSING)
    if not issubclass(cls, type):
        return MISSING
    members: Any = dictionary_of_class(value)
    if issubclass(cls, enum.EnumMeta):
        return members.get('_member_map_', {}).get(name, MISSING)
    return members.get(name, MISSING)


def is_itself(value: Any) -> bool:
    """True for singletons, in whose place a recording gets no other object."""
    cls = type(value)
    if issubclass(type(cls), enum.EnumMeta) or value is None or value is ... or value is NotImplemented:
        return True
    if cls is bool or cls is object or issubclass(cls, (type, types.ModuleType, types.FunctionType)):
        return True
    by_value = plain_key(value) is not None or contents_of(value) is not None
    return not by_value and not is_dataclass(cls)


def is_one_of_a_kind(value: Any) -> bool:
    """True for a plain value in whose place there is never an equal object: Python has each of these once."""
    cls = type(value)
    if cls is int:
        return value in _SMALL
    return cls in (bool, type(None), type(...), type(NotImplemented)) or issubclass(type(cls), enum.EnumMeta)


def reaches_far(value: Any) -> bool:
    """True for kernels, and classes of kernels, that may use memory outside of the elements of their arrays."""
    cls = value if issubclass(type(value), type) else type(value)
    if not in_package(cls):
        return False
    if name_of(cls) in KERNELS:
        return value is cls or any(getattr(one, 'raw', True) for one in (*value.in_params, *value.out_params))
    return name_of(cls) in FAR_KERNELS


def is_cupys(module: object) -> bool:
    """True for the name of a module of CuPy or of the simulated CuPy."""
    top = module.partition('.')[0] if type(module) is str else ''
    return top in ('cupy', 'cupyx') or top.startswith('_capturekit_simulated')
