"""What code asks for something that arrays have and that can't be compared: their address, or who owns their memory;
and for ``__dict__``, also by ``vars``.

An object of the user may have an attribute of the same name, ``base`` say. What an instruction takes it of is found out
when its line begins, if it is a variable, a global, or an attribute of one.
"""

from __future__ import annotations

import dis
from collections import namedtuple
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from capturekit.model.class_layout import MISSING, dictionary_of_class, found_in_class, layout_of

_FAST = ('LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW')
_ROOTS = (*_FAST, 'LOAD_GLOBAL', 'LOAD_DEREF')
_FIELD: Any = type(vars(namedtuple('_Row', 'field'))['field'])
_MODULE_DICT = vars(ModuleType)['__dict__'].__get__


class AskedOf(NamedTuple):
    """What is asked for an attribute: a variable or a global, and the attributes that are taken of it first."""

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


def asked_before(instructions: list[dis.Instruction], number: int) -> AskedOf | None:
    """What an instruction takes an attribute of; None if its value may be another one than when the line began."""
    return loaded_before(instructions, number) if instructions[number].opname == 'LOAD_ATTR' else None


def loaded_before(instructions: list[dis.Instruction], number: int) -> AskedOf | None:
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
    line = _line_of(instructions[number])
    before = [one.opname for one in instructions[:place] if _line_of(one) in (line, None)]
    if line is None or _line_of(root) != line or (not is_global and _is_stored(instructions, root.argval, line)):
        return None
    if (is_global or is_of_closure or attributes) and any(kind.startswith(_CHANGES) for kind in before):
        return None
    return AskedOf(root.argval, is_global, tuple(attributes))


def item_asked(instructions: list[dis.Instruction], number: int) -> AskedOf | None:
    """The object whose dictionary of attributes an instruction loads, if it is only looked into at once.

    That is ``x.__dict__.get(name)``, or ``vars(x)`` in a loop or before ``in``.
    """
    name = instructions[number].argval
    if name == '__dict__':
        return asked_before(instructions, number) if _gets(instructions[number + 1 : number + 2]) else None
    call = _call_of_vars(instructions, number) if name == 'vars' else None
    if call is None:
        return None
    after = [one for one in instructions[call + 1 : call + 2] if not one.is_jump_target]
    looks = any(one.opname in ('GET_ITER', 'CONTAINS_OP') for one in after) or _gets(after)
    return loaded_before(instructions, call) if looks else None


def looks_by_vars(instructions: list[dis.Instruction], offset: int) -> bool:
    """Whether the call at an offset is one of ``vars`` that :func:`item_asked` understands."""
    for number, one in enumerate(instructions):
        if one.argval == 'vars' and item_asked(instructions, number) is not None:
            call = _call_of_vars(instructions, number)
            if call is not None and instructions[call].offset == offset:
                return True
    return False


def _gets(following: list[dis.Instruction]) -> bool:
    """Whether the method ``get`` of a dict is loaded to be called."""
    return any(one.argval == 'get' and 'NULL' in one.argrepr for one in following)


def _call_of_vars(instructions: list[dis.Instruction], number: int) -> int | None:
    """The call of ``vars``, which is loaded there, with a variable or an attribute of one; None for any other."""
    place = number + 1 + (instructions[number + 1].opname == 'PUSH_NULL')
    if instructions[number].opname != 'LOAD_GLOBAL' or not instructions[place].opname.startswith(_ROOTS):
        return None
    while instructions[place + 1].opname == 'LOAD_ATTR':
        place += 1
    call = instructions[place + 1]  # Python 3.11 has others, but doesn't tell when a line begins
    plain = call.opname == 'CALL' and call.arg == 1
    return place + 1 if plain and not any(one.is_jump_target for one in instructions[number + 1 : place + 2]) else None


def has_of_its_own(value: Any, name: str) -> bool:
    """Whether an object has an attribute itself, or in its class as something that is written in Python."""
    cls = type(value)
    if issubclass(cls, ModuleType):
        return cls is ModuleType and name in _MODULE_DICT(value)
    if value is MISSING or issubclass(cls, type):
        return False
    if found_in_class(cls, '__getattribute__') is not object.__getattribute__:
        return False
    layout, member = layout_of(cls), found_in_class(cls, name)
    if type(member) is property:
        return type(member.fget) is FunctionType
    if name in layout.slots or type(member) is FunctionType or type(member) is _FIELD:
        return True
    if not hasattr(type(member), '__set__') and layout.dictionary is not None and name in layout.dictionary(value):
        return True
    return member is not MISSING and not hasattr(type(member), '__get__')


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
        if _line_of(one) in (line, None)
        and ('FAST' in one.opname or one.opname in ('STORE_DEREF', 'DELETE_DEREF'))
        and one.opname not in _FAST
    )
    return any(variable in names for names in stores)


def _line_of(instruction: dis.Instruction) -> int | None:
    return instruction.positions.lineno if instruction.positions else None


#: What may run code, or bind names, before the value is loaded.
_CHANGES = ('CALL', 'STORE_', 'DELETE_', 'FOR_ITER', 'SEND', 'YIELD', 'WITH_', 'BEFORE_WITH', 'IMPORT', 'LOAD_SPECIAL')
