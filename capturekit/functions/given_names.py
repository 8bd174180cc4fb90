"""Which attribute ``getattr`` or its like is asked for: what gives a call the name, by the code's instructions."""

from __future__ import annotations

import dis
from collections.abc import Mapping
from typing import Any, NamedTuple

from capturekit.functions.understood import INTERFACES

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
