"""What code reaches without naming it: classes written in C, as the class of an object, and all that a module has.

Python tells nobody when such a class is called. :func:`capturekit.functions.handed_on.classes_called` finds those that
code names. Here are the others: ``type(file)``, ``vars(module)[name]`` and ``getattr(module, name)``.
"""

from __future__ import annotations

import array
import copy
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from capturekit.functions.handed_on import reads_unknown
from capturekit.functions.hidden_state import FILES
from capturekit.functions.instructions import nested, single_steps
from capturekit.functions.readable_state import in_package, is_pythons, is_visible
from capturekit.functions.understood import CONSTANT, PACKAGES, makes_unknown, module_of
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import among, attributes_of, made_by_class_statement, name_of
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import may_change, plain_key

_MODULE_DICT = vars(ModuleType)['__dict__'].__get__
_OF_OBJECTS = frozenset({'type', '__class__'})
_ATTRIBUTE = ('LOAD_ATTR', 'LOAD_METHOD')
_STORES = ('STORE_FAST', 'STORE_DEREF', 'STORE_NAME')
#: Containers that change in place; and those of NumPy and SciPy that nobody changes.
_IN_PLACE = (list, dict, set, bytearray, deque, array.array)
_NUMPYS = frozenset({'sctypeDict', 'typecodes', 'submodules'})
_LOADS = ('LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_FAST', 'LOAD_DEREF', *_ATTRIBUTE)


def classes_of_files(values: Iterable[Any], codes: list[CodeType]) -> Iterator[str]:
    """Say which watched file's class the code may call: the class of an object needs no name."""
    if not any(_OF_OBJECTS & {*inner.co_names} for code in codes for inner in nested(code)):
        return
    for value in values:
        if among(type(value), FILES):
            yield f'the function may make a {name_of(type(value))} by the class of one: what it reads is not known'


def taken_from_modules(
    entries: list[WatchedValue], values: Iterable[Any], codes: list[CodeType], owned: set[int]
) -> Iterator[str]:
    """Say which module with such classes or functions the code does anything with but take attributes by their names.

    It is asked only where code reads attributes by names that are not in it. ``values``: the objects that it met.
    ``owned``: the user's modules, all of whose values are watched, by id.
    """
    unknown = {id(value): found for value in values if (found := _unknown_in(value, id(value) in owned))}
    for module in handed_around(entries, [value for value in values if id(value) in unknown], codes):
        what = f'{unknown[id(module)]} out of module {module.__name__}'
        yield f'the function may take {what}: what that reads is not known'


def handed_around(
    entries: list[WatchedValue], modules: Iterable[ModuleType], codes: list[CodeType]
) -> Iterator[ModuleType]:
    """The modules that code does anything with but take attributes by their names."""
    every = [inner for code in codes for inner in nested(code)]
    imported = {name for code in every for name in _imported(code)}
    named: dict[int, set[str]] = {}
    for entry in entries:
        if entry.key and type(entry.kept.value) is ModuleType:
            named.setdefault(id(entry.kept.value), set()).add(entry.key.rpartition('.')[2])
    for module in modules:
        names = named.get(id(module))
        known = imported | (names or set())
        while new := {name for code in every for name in _stored(code, known)} - known:
            known |= new
        if names is None or any(_escapes(code, known, module) for code in every):
            yield module


def _unknown_in(module: Any, owned: bool) -> str:
    """What a module has that reads anything, or that changes in place; '' if there is nothing of that kind.

    The modules of CuPy, NumPy and SciPy are understood, but for what somebody has put into them.
    """
    if type(module) is not ModuleType:
        return ''
    understood = module.__name__.partition('.')[0] in PACKAGES
    for name, value in _MODULE_DICT(module).items():
        if name.startswith('__') or (understood and (name.startswith('_') or name in _NUMPYS)):
            continue
        found = '' if understood else _unknown(value)
        if found or (not owned and changes_in_place(value, understood)):
            return found or f'{name}, which may change in place,'
    return ''


def changes_in_place(value: Any, understood: bool) -> bool:
    """Whether a value in a module has a state that its identity does not show.

    ``understood``: the module's own objects have none that counts.
    """
    cls = type(value)
    if issubclass(cls, _IN_PLACE) or name_of(cls) == 'ndarray' or may_change(value):
        return True
    if issubclass(cls, (tuple, frozenset)):
        return any(changes_in_place(one, understood) for one in value)
    if plain_key(value) is not None or issubclass(cls, (type, ModuleType, FunctionType)):
        return False
    if understood:
        return made_by_class_statement(cls) and not in_package(cls) and not is_pythons(module_of(cls))
    if contents_of(value) is not None or not is_visible(value):
        return True
    return not issubclass(cls, CONSTANT) and bool(attributes_of(value))


def is_of_tables(module: ModuleType) -> bool:
    """Whether all that changes in place in a module of Python can be compared: in those written in C, where it was put
    there, and in ``copy``, whose tables say how objects are copied."""
    return module is copy or _is_compiled(module)


def _is_compiled(module: ModuleType) -> bool:
    """Whether a module is written in C and has functions and constants alone: all else in it was put there."""
    file = _MODULE_DICT(module).get('__file__')
    return module.__name__ not in ('sys', 'builtins') and not (type(file) is str and file.endswith('.py'))


def _unknown(value: Any) -> str:
    if issubclass(type(value), type):
        return makes_unknown(value)
    return f'{value.__name__}()' if reads_unknown(value) else ''


def _imported(code: CodeType) -> Iterator[str]:
    """The variables in which code puts modules that it imports."""
    steps = single_steps(code)
    for step, following in itertools.pairwise(steps):
        if step.opname == 'IMPORT_NAME' and following.opname.startswith('STORE_'):
            yield following.argval


def _stored(code: CodeType, names: set[str]) -> Iterator[str]:
    """The variables in which code puts what has one of these names."""
    for step, following in itertools.pairwise(single_steps(code)):
        if step.opname.startswith(_LOADS) and step.argval in names and following.opname in _STORES:
            yield following.argval


def _escapes(code: CodeType, names: set[str], module: ModuleType) -> bool:
    """Whether code loads a module that has one of these names, and neither stores it nor takes a named attribute."""
    steps = single_steps(code)
    for number, step in enumerate(steps[:-1]):
        if type(step.argval) is not str or step.argval not in names or not step.opname.startswith(_LOADS):
            continue
        following, before = steps[number + 1], steps[number - 1] if number else step
        if following.opname in _STORES or (following.opname.startswith(_ATTRIBUTE) and following.argval != '__dict__'):
            continue
        its_own = step.opname.startswith(_ATTRIBUTE) and before.argval in names and before.opname.startswith(_LOADS)
        if not its_own or type(_MODULE_DICT(module).get(step.argval)) is ModuleType:  # copy.copy is no module
            return True
    return False
