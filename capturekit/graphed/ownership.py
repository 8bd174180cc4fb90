"""Who owns a file, a module or a class: the user, a library or Python; what of libraries the user may replace; and how
much of the state of an object can be read, by its type: what can not be read can not be compared.
"""

from __future__ import annotations

import enum
import functools
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Callable
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.graphed import allowlists
from capturekit.graphed.allowlists import SPECIAL, module_of
from capturekit.guard import GUARD
from capturekit.model.class_layout import (
    MISSING,
    bases_of,
    dictionary_of_class,
    found_in_class,
    is_dataclass,
    layout_of,
    made_by_class_statement,
    name_of,
    solid_base,
)
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import CONTAINERS, plain_key
from capturekit.model.source_line import is_ours

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
    return top in allowlists.PACKAGES and top not in ('numpy', 'scipy')


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
    if issubclass(cls, allowlists.CONSTANT) or contents_of(value) is not None or issubclass(type(cls), enum.EnumMeta):
        return True
    if not allowlists.CONSTANT_NAMES.isdisjoint((f'{module_of(cls)}.{name_of(cls)}', name_of(cls))):
        return True
    if cls is threading.local or any(map(in_package, bases_of(cls))):
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
    return type(found_in_class(cls, '__next__')) is types.WrapperDescriptorType


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
    if name_of(cls) in allowlists.KERNELS:
        return value is cls or any(getattr(one, 'raw', True) for one in (*value.in_params, *value.out_params))
    return name_of(cls) in allowlists.FAR_KERNELS


def is_cupys(module: object) -> bool:
    """True for the name of a module of CuPy or of the simulated CuPy."""
    top = module.partition('.')[0] if type(module) is str else ''
    return top in ('cupy', 'cupyx') or top.startswith('_capturekit_simulated')


_MODULE_DICT = vars(ModuleType)['__dict__'].__get__


class Ownership:
    """Tells the user's modules and classes from others. ``skip`` returns True for files whose code isn't followed."""

    def __init__(self, skip: Callable[[str], bool]) -> None:
        self.skip = skip

    def is_foreign_module(self, module: ModuleType) -> bool:
        """True for modules that aren't the user's."""
        members = _MODULE_DICT(module)
        return self._foreign_name(members.get('__name__'), members)

    def _foreign_name(self, name: object, members: dict[str, Any] | None) -> bool:
        """True for the names of modules that aren't the user's."""
        if type(name) is not str or name == '__main__':
            return False
        if name in sys.builtin_module_names or name.partition('.')[0] in ('cupy', 'cupyx', 'cupy_backends', 'numpy'):
            return True
        if members is None:
            module = sys.modules.get(name)
            members = _MODULE_DICT(module) if type(module) is ModuleType else {}
        file = members.get('__file__')
        return type(file) is str and self.skip(file)

    def is_foreign_class(self, cls: type) -> bool:
        """True for classes that aren't the user's."""
        if not made_by_class_statement(cls):
            return True
        if f'{module_of(cls)}.{name_of(cls)}' in allowlists.TYPE_CHECKS and is_in_its_module(cls):
            return True  # its ``isinstance`` is understood
        if not self._foreign_name(module_of(cls), None):
            return False
        return is_in_its_module(cls) or (in_package(cls) and not self._has_code_of_user(cls))

    def _has_code_of_user(self, cls: type) -> bool:
        """Whether a class that is not in the module which it names has a method of the user's."""
        members = dictionary_of_class(cls).values()
        return any(type(one) is FunctionType and not self.skip(one.__code__.co_filename) for one in members)


#: Modules of SciPy that ask for a backend, or change which one is asked: a module or a class of anybody's.
_OF_BACKENDS = ('scipy._lib._uarray', 'scipy.fft._backend', 'uarray')
_skipped: dict[str, bool] = {}


def default_skip(filename: str) -> bool:
    """True for code of CuPy, capturekit, numpy, scipy and Python's standard library.

    Code of torch, JAX or Numba is never the line that a message shows, but it may read state of its own like any code.
    """
    answer = _skipped.get(filename)
    if answer is None:
        answer = _skipped[filename] = is_ours(filename) or _is_library(filename)
    return answer


def _is_library(filename: str) -> bool:
    if filename.startswith('<__array_function__') or python_module(filename):
        return True
    folders = [getattr(sys.modules.get(name), '__path__', ()) for name in allowlists.PACKAGES]
    return any(filename.startswith(str(folder) + os.sep) for among in folders for folder in among)


def asks_for_backends(module: str, function: str = '') -> bool:
    """Whether a function of SciPy, by the name of its module and its own, asks for a backend or changes these."""
    return function.startswith('__ua_') or module.startswith(_OF_BACKENDS)


@functools.cache
def python_module(filename: str) -> str:
    """The name of the standard module that a file holds; '' for other files."""
    if filename.startswith('<frozen '):
        return filename[8:-1]
    paths = sysconfig.get_paths()
    for folder in {paths['stdlib'], paths['platstdlib'], os.path.dirname(os.__file__)}:
        if filename.startswith(folder + os.sep):
            inside = filename[len(folder) + 1 :]
            if not inside.startswith(('site-packages', 'dist-packages')):
                return inside.removesuffix('.py').removesuffix(os.sep + '__init__').replace(os.sep, '.')
    return ''


def is_library_frame(frame: FrameType, skip: Callable[[str], bool]) -> bool:
    """True if a frame's code is not the user's. Code made from a string, as by dataclasses, belongs to its module."""
    name = frame.f_code.co_filename
    if skip(name):
        return True
    file = frame.f_globals.get('__file__') if name[:1] == '<' else None
    return type(file) is str and skip(file)


def asked_by_user(frame: FrameType | None, skip: Callable[[str], bool]) -> bool:
    """True if the frame, or the one that called it through Python's standard library, is the user's.

    False if a library that is understood as a whole comes between: its own row in the table says what it reads.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library_frame(frame, skip):
            return True
        module = python_module(name)
        if not module or module.partition('.')[0] in allowlists.WHOLE:
            return False
        frame = frame.f_back
    return False


#: The modules of ``inspect.signature``: Python 3.14 looks annotations up in the second.
_OF_SIGNATURES = ('inspect', 'annotationlib')


def is_of_signature(frame: FrameType) -> bool:
    """True if ``inspect.signature`` has called the frame, and nothing but code of its modules was between."""
    outer: FrameType | None = frame
    while outer is not None and python_module(outer.f_code.co_filename) in _OF_SIGNATURES:
        if outer.f_code.co_name == 'signature' and outer is not frame:
            return True
        outer = outer.f_back
    return False


def is_followed(filename: str, function: str) -> bool:
    """True for code of the standard library that can be followed like the user's."""
    module = python_module(filename)
    only = allowlists.FOLLOWED.get(module, allowlists.FOLLOWED.get(module.partition('.')[0]))
    return only is not None and (not only or function in only)


#: Classes written in C that compare and show all attributes.
_SHOWING = (types.SimpleNamespace,)
#: These show an attribute only by its name, whatever they are written in. So do the types of the module typing, where
#: nobody keeps values.
_BY_NAME = (types.ModuleType, types.FunctionType, type, BaseException)


def shows_by_name(cls: type, name: str, ownership: Ownership) -> bool:
    """Whether what code puts into an attribute of an instance is seen only by code that names the attribute.

    The user's own ``__setattr__`` is code that runs, and so is seen by itself.
    """
    if issubclass(cls, _BY_NAME) or cls is functools.partial or module_of(cls) == 'typing':
        return True
    if issubclass(cls, _SHOWING):
        return False
    for base in bases_of(cls):
        if not made_by_class_statement(base):
            continue
        inside = dictionary_of_class(base)
        setter = inside.get('__setattr__')
        foreign = is_pythons(module_of(base)) or ownership.is_foreign_class(base)
        if setter is not None and (foreign or type(setter) is not types.FunctionType):
            return False
        if not _is_put_plainly(inside.get(name)):
            return False
    return True


def _is_put_plainly(member: object) -> bool:
    """Whether a member of a class lets an attribute of its name be put into instances, or is code that runs then."""
    if type(member) is property:
        return type(member.fset) in (types.FunctionType, type(None))
    return type(member) is types.MemberDescriptorType or not hasattr(type(member), '__set__')


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
