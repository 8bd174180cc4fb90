"""What instructions load, where it is known when their line begins: a variable, a global, or an attribute of one."""

from __future__ import annotations

import dis
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from capturekit.functions.instructions import line_number
from capturekit.model.class_layout import MISSING, dictionary_of_class, found_in_class, layout_of

_FAST = ('LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW')
_ROOTS = (*_FAST, 'LOAD_GLOBAL', 'LOAD_DEREF')
_MODULE_DICT = vars(ModuleType)['__dict__'].__get__


class LoadedValue(NamedTuple):
    """What instructions load: a variable or a global, and the attributes that are taken of it."""

    variable: str
    is_global: bool = False
    attributes: tuple[str, ...] = ()

    def value_in(self, frame: FrameType) -> Any:
        """The value that a frame has there; MISSING if code may have to run to find it."""
        values = frame.f_globals if self.is_global else frame.f_locals
        value = values.get(self.variable, MISSING)
        for name in self.attributes:
            value = _attribute_of(value, name)
        return value


def loaded_before(instructions: list[dis.Instruction], number: int) -> LoadedValue | None:
    """What was loaded just before an instruction; None if its value may be another one than when the line began."""
    attributes: list[str] = []
    place = number - 1
    while place > 0 and instructions[place].opname == 'LOAD_ATTR':
        attributes.insert(0, instructions[place].argval)
        place -= 1
    root = instructions[max(place, 0)]
    is_global = root.opname == 'LOAD_GLOBAL'
    is_of_closure = root.opname == 'LOAD_DEREF'
    if place < 0 or not (is_global or is_of_closure or root.opname in _FAST):
        return None
    line = line_number(instructions[number])
    before = [one.opname for one in instructions[:place] if line_number(one) in (line, None)]
    if line is None or line_number(root) != line or (not is_global and _is_stored(instructions, root.argval, line)):
        return None
    if (is_global or is_of_closure or attributes) and any(kind.startswith(_CHANGES) for kind in before):
        return None
    return LoadedValue(root.argval, is_global, tuple(attributes))


def dictionary_asked(instructions: list[dis.Instruction], number: int) -> LoadedValue | None:
    """The object whose ``__dict__`` an instruction loads, if the code asks that at once for an item by ``get``."""
    following = instructions[number + 1 : number + 2]
    asks = any(one.argval == 'get' and 'NULL' in one.argrepr for one in following)
    loads = instructions[number].opname == 'LOAD_ATTR' and instructions[number].argval == '__dict__'
    return loaded_before(instructions, number) if loads and asks else None


def method_in(value: Any, name: str) -> Any:
    """A function or a method that an object, a class or a module has under a name; MISSING if code may have to run."""
    cls = type(value)
    found = _attribute_of(value, name)
    if found is not MISSING or value is MISSING or issubclass(cls, ModuleType):
        return found
    owner = value if cls is type else cls
    if issubclass(cls, type) and cls is not type:
        return MISSING
    if found_in_class(cls, '__getattribute__') not in (object.__getattribute__, type.__getattribute__):
        return MISSING
    member = found_in_class(owner, name)
    return member.__func__ if type(member) in (staticmethod, classmethod) else member


def _attribute_of(value: Any, name: str) -> Any:
    """An attribute that lies in an object, a module or a class; MISSING if code may have to run for it."""
    cls = type(value)
    if issubclass(cls, ModuleType):
        return _MODULE_DICT(value).get(name, MISSING)
    if cls is type:
        member = found_in_class(value, name)
        return MISSING if hasattr(type(member), '__get__') or name in type.__dict__ else member
    if value is MISSING or issubclass(cls, type):
        return MISSING
    if found_in_class(cls, '__getattribute__') is not object.__getattribute__:
        return MISSING
    layout, member = layout_of(cls), found_in_class(cls, name)
    if name in layout.slots and dictionary_of_class(cls).get(name) is member:
        return layout.read_slot(value, name)
    if hasattr(type(member), '__set__') or layout.dictionary is None:
        return MISSING
    found = layout.dictionary(value).get(name, MISSING)
    return member if found is MISSING and not hasattr(type(member), '__get__') else found


def _is_stored(instructions: list[dis.Instruction], variable: str, line: int) -> bool:
    """Whether a line gives a local variable another value."""
    stores = (
        one.argval if type(one.argval) is tuple else (one.argval,)
        for one in instructions
        if line_number(one) in (line, None)
        and ('FAST' in one.opname or one.opname in ('STORE_DEREF', 'DELETE_DEREF'))
        and one.opname not in _FAST
    )
    return any(variable in names for names in stores)


#: What may run code, or bind names, before the value is loaded.
_CHANGES = ('CALL', 'STORE_', 'DELETE_', 'FOR_ITER', 'SEND', 'YIELD', 'WITH_', 'BEFORE_WITH', 'IMPORT', 'LOAD_SPECIAL')
