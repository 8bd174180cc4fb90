"""The instructions of code, as all that looks at them takes them: one at a time, with their lines and names."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType


def names_shown(instructions: list[dis.Instruction]) -> set[str]:
    """The names that instructions use; ``dis`` does not show how code uses any others."""
    return {one.argval for one in instructions if one.opcode in dis.hasname and type(one.argval) is str}


def line_number(instruction: dis.Instruction) -> int | None:
    """The line of an instruction; None for one that belongs to no line."""
    return instruction.positions.lineno if instruction.positions else None


def parameters_of(code: CodeType) -> tuple[str, ...]:
    """The names of all parameters."""
    variable = sum(bool(code.co_flags & flag) for flag in (CO_VARARGS, CO_VARKEYWORDS))
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variable]


def nested(code: CodeType) -> Iterator[CodeType]:
    """The code object and those in it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested(constant)


#: Instructions of code that was asked for last, with the code, by its id: a run asks several times for each.
_Known = dict[int, tuple[CodeType, list[dis.Instruction]]]
_instructions: _Known = {}
_steps: _Known = {}
_REMEMBERED = 1024


def instructions_of(code: CodeType) -> list[dis.Instruction]:
    """The instructions of code. Do not change the list."""
    return _remembered(_instructions, code, dis.get_instructions)


def single_steps(code: CodeType) -> list[dis.Instruction]:
    """The same, where an instruction that loads two variables is returned as two."""
    return _remembered(_steps, code, lambda code: [one for both in instructions_of(code) for one in _single(both)])


def _remembered(
    known: _Known, code: CodeType, make: Callable[[CodeType], Iterable[dis.Instruction]]
) -> list[dis.Instruction]:
    found = known.get(id(code))
    if found is None:
        if len(known) >= _REMEMBERED:
            known.clear()
        found = known[id(code)] = code, list(make(code))
    return found[1]


def plain_steps(code: CodeType) -> list[dis.Instruction]:
    """The same, where also an instruction that stores two variables, or stores and loads one, is returned as two."""
    return [part for one in single_steps(code) for part in _stored_apart(one)]


def _stored_apart(one: dis.Instruction) -> list[dis.Instruction]:
    kinds = {'STORE_FAST_STORE_FAST': 'STORE_FAST', 'STORE_FAST_LOAD_FAST': 'LOAD_FAST'}
    if one.opname not in kinds:
        return [one]
    names = zip(('STORE_FAST', kinds[one.opname]), one.argval)
    return [one._replace(opname=kind, opcode=dis.opmap[kind], argval=name) for kind, name in names]


def _single(instruction: dis.Instruction) -> list[dis.Instruction]:
    """An instruction, those of which it is made where it loads two variables, or none where it does nothing."""
    if instruction.opname in ('CACHE', 'EXTENDED_ARG'):
        return []
    if not instruction.opname.startswith('LOAD_FAST') or type(instruction.argval) is not tuple:
        return [instruction]
    load = dis.opmap['LOAD_FAST']
    return [instruction._replace(opname='LOAD_FAST', opcode=load, argval=name) for name in instruction.argval]


#: Instructions that load what a call calls.
_CALLED = ('LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_ATTR', 'LOAD_METHOD', 'LOAD_DEREF')


def call_of(steps: list[dis.Instruction], number: int, through: bool = False) -> int | None:
    """The number of the instruction that takes the value loaded there from the stack, if it calls it; else None.

    The depth is counted from below the value. A call leaves its result in the place of the function. ``through``: an
    argument may be made by an inner function.
    """
    ends = ('STORE_', 'RETURN', 'YIELD') if through else ('STORE_', 'RETURN', 'YIELD', 'MAKE_FUNCTION')
    load = steps[number]
    only_called = load.opname == 'LOAD_ATTR' and 'NULL' in load.argrepr  # in this form it is loaded for a call only
    depth = dis.stack_effect(load.opcode, load.arg, jump=False)
    if load.opname == 'LOAD_ATTR':
        depth += 1 + _has_null_below(steps, number)
    elif load.opname == 'LOAD_METHOD' or (number and steps[number - 1].opname == 'PUSH_NULL'):
        depth += 1  # what a method is loaded from lies beside it until the call
    for place, step in enumerate(steps[number + 1 :], number + 1):
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth < 1:
            break
        if depth == 1 and step.opname.startswith('CALL'):
            return place
        if 'JUMP' in step.opname or step.opname.startswith(ends):
            break
    return number if only_called else None


def loader_of(steps: list[dis.Instruction], call: int) -> int | None:
    """The number of the instruction that loads what a call calls, if only one can have loaded it."""
    for number in range(call - 1, -1, -1):
        if steps[number + 1].is_jump_target:
            return None
        step = steps[number]
        if step.opname in _CALLED and call_of(steps, number) == call:
            return None if step.is_jump_target and step.opname in ('LOAD_ATTR', 'LOAD_METHOD') else number
    return None


def _has_null_below(steps: list[dis.Instruction], number: int) -> bool:
    """Whether a place for a method lies on the stack below an attribute: Python 3.11 and 3.12 make it first."""
    while number and steps[number].opname == 'LOAD_ATTR':
        number -= 1
    root = steps[number]
    return 'NULL' in root.argrepr or (number > 0 and steps[number - 1].opname == 'PUSH_NULL')
