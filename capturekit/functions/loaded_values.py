"""What instructions load, where it is known when their line begins: values, names of attributes and of modules.

There are hundreds of modules, and each may be anything. So of ``sys.modules`` only those that code names are watched,
as those are which code imports. Where code does anything else with ``sys.modules``, all of them are.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from capturekit.functions.instructions import line_number
from capturekit.functions.understood import INTERFACES
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


GLOBALS_READ = frozenset({'LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_FROM_DICT_OR_GLOBALS'})
VARIABLES = ('LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW', 'LOAD_DEREF')
#: Instructions that load something from the value that lies on the stack.
_LOADS_FROM = ('LOAD_ATTR', 'LOAD_METHOD', 'LOAD_SUPER', 'LOAD_ZERO_SUPER', 'LOAD_SPECIAL', 'LOAD_FROM_DICT')
_EMPTY = ('BUILD_LIST', 'BUILD_MAP', 'BUILD_SET')
_CALL = 'PRECALL' if 'PRECALL' in dis.opmap else 'CALL'


class NameGiven(NamedTuple):
    """What gives ``getattr`` or its like the attribute's name: a text in the code, or the value of a variable."""

    is_variable: bool
    text: str

    def value_in(self, variables: Mapping[str, Any]) -> Any:
        """The name."""
        return variables.get(self.text) if self.is_variable else self.text


_Steps = list[dis.Instruction]


def name_given(instructions: _Steps, number: int) -> tuple[dis.Instruction | None, dis.Instruction | None]:
    """The call of the function loaded there, if it is called at once, and the instruction that loads the name for it.

    The name is the second argument. It is None if it is neither a text in the code nor a variable. The stack is
    followed from the function on: the second argument begins where there is one value more than the function and its
    first argument.
    """
    top = _effect(instructions[number])
    if instructions[number + 1].opname == 'PUSH_NULL':
        number, top = number + 1, top + 1
    depth, certain, ends = top, True, False
    name: dis.Instruction | None = None
    joins: dict[int, tuple[int, dis.Instruction | None]] = {}  # where jumps lead: the depth there, and the name so far
    for position, instruction in enumerate(instructions[number + 1 :], number + 1):
        kind = instruction.opname
        if instruction.offset in joins:
            depth, other = joins.pop(instruction.offset)
            certain = certain and other == name
        elif ends:
            break  # only jumps from elsewhere lead here
        ends = kind in ('JUMP_FORWARD', 'JUMP')
        if kind == _CALL and depth - top == instruction.arg:
            return instructions[position + (kind == 'PRECALL')], name if certain else None
        if (depth == top and not _only_adds(instruction)) or depth - _reach(instruction) < top:
            break  # something else is done with the function
        if 'JUMP' in kind:
            certain = certain and depth > top + 2
            if instruction.argval <= instruction.offset:
                break
            there = depth + dis.stack_effect(instruction.opcode, instruction.arg, jump=True), name
            certain = joins.setdefault(instruction.argval, there) == there and certain
        elif kind in ('CALL_FUNCTION_EX', 'FOR_ITER', 'RETURN_VALUE'):
            break
        before, depth = depth, depth + _effect(instruction)
        if depth < top or (depth == top < before and kind != 'POP_TOP' and 'JUMP' not in kind):
            break
        if before == top + 1 and depth == top + 2:
            name = instruction if _is_a_name(instruction) else None
        elif name is None or (depth < top + 3 and 'JUMP' not in kind) or _may_change(name, kind):
            name = None  # it is computed, or the variable may have changed
    return None, None


def only_tested(instructions: list[dis.Instruction]) -> set[str]:
    """The texts by which code only asks whether an object is an array: those of ``hasattr``, and used nowhere else."""
    tests = [n for n, one in enumerate(instructions) if one.argval == 'hasattr' and one.opname in GLOBALS_READ]
    given = [name for _, name in (name_given(instructions, n) for n in tests) if name is not None]
    tested = {one.offset: one.argval for one in given if one.opname == 'LOAD_CONST' and one.argval in INTERFACES}
    others = {one.argval for one in instructions if type(one.argval) is str and one.offset not in tested}
    return set(tested.values()) - others


def _only_adds(instruction: dis.Instruction) -> bool:
    """Whether an instruction leaves alone what lies on the stack."""
    kind = instruction.opname
    if kind in _EMPTY:
        return not instruction.arg
    return kind in ('PUSH_NULL', 'NOP') or (kind.startswith('LOAD_') and not kind.startswith(_LOADS_FROM))


def _reach(instruction: dis.Instruction) -> int:
    """How many values on the stack an instruction copies or puts in another order."""
    return (instruction.arg or 0) if instruction.opname in ('SWAP', 'COPY') else 0


def _may_change(name: dis.Instruction, kind: str) -> bool:
    """Whether an instruction between the loading of the name and the call may change its variable."""
    if name.opname.startswith('LOAD_FAST'):
        return 'STORE_' in kind or 'DELETE_' in kind
    return name.opname != 'LOAD_CONST' and kind not in ('LOAD_CONST', 'PRECALL') and kind not in VARIABLES


def _is_a_name(instruction: dis.Instruction) -> bool:
    """Whether an instruction loads a text in the code, or a local variable."""
    if instruction.opname == 'LOAD_CONST':
        return type(instruction.argval) is str
    return instruction.opname in VARIABLES


def _effect(instruction: dis.Instruction) -> int:
    return dis.stack_effect(instruction.opcode, instruction.arg, jump=False)


#: The attribute of ``sys``.
MODULES = 'modules'


def module_asked(instructions: list[dis.Instruction], number: int) -> str | LoadedValue | None:
    """The name by which the code asks for a module where it loads ``modules``, or the variable that has it.

    None if it may do anything with ``modules``.
    """
    before = instructions[number - 1] if number else instructions[number]
    if before.opname != 'LOAD_GLOBAL' or before.argval != 'sys' or instructions[number].opname != 'LOAD_ATTR':
        return None
    steps = [one for one in instructions[number - 2 if number > 1 else 0 : number + 7] if one.opname != 'PRECALL']
    first = steps.index(instructions[number])
    after = steps[first + 1 :]
    kinds = [one.opname for one in after]
    if kinds[:1] == ['CONTAINS_OP']:
        plain = first > 1 and not _jumps(steps[first - 1 : first + 2])
        return _name(instructions, steps[first - 2]) if plain else None
    if kinds[1:2] == ['BINARY_SUBSCR']:
        return None if _jumps(after[:2]) else _name(instructions, after[0])
    loads_get = bool(after) and after[0].argval == 'get' and after[0].opname in ('LOAD_METHOD', 'LOAD_ATTR')
    calls = 0 if not loads_get else 2 if _is_call(after[2:3], 1) else 3 if _is_call(after[3:4], 2) else 0
    return _name(instructions, after[1]) if calls and not _jumps(after[: calls + 1]) else None


def module_named(name: str) -> Any:
    """What ``sys.modules`` has under a name; MISSING if there is nothing."""
    return sys.modules.get(name, MISSING)


def is_in_place(modules: Any) -> bool:
    """Whether ``sys.modules`` is still this dict."""
    return sys.modules is modules


def _is_call(at: Sequence[dis.Instruction], count: int) -> bool:
    return bool(at) and at[0].opname == 'CALL' and at[0].arg == count


def _name(instructions: list[dis.Instruction], load: dis.Instruction) -> str | LoadedValue | None:
    if load.opname == 'LOAD_CONST':
        return load.argval if type(load.argval) is str else None
    is_variable = load.opname.startswith('LOAD_FAST')
    return loaded_before(instructions, instructions.index(load) + 1) if is_variable else None


def _jumps(steps: Sequence[dis.Instruction]) -> bool:
    return any(step.is_jump_target for step in steps)
