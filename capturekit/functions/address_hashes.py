"""Hashes and ids of objects that a run makes: they are made of the objects' addresses, which each call has anew."""

from __future__ import annotations

import dis
import enum
from types import FrameType

from capturekit.functions.code_reads import single_steps
from capturekit.functions.handed_on import call_of
from capturekit.model.class_layout import MISSING, found_in_class
from capturekit.model.plain_values import plain_key

_LOADS = ('LOAD_FAST', 'LOAD_DEREF', 'LOAD_NAME')
_SKIPPED = ('PUSH_NULL', 'PRECALL', 'NOP')
_GLOBALS = ('LOAD_GLOBAL', 'LOAD_NAME')
_VARIABLE = ('LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW')


def hashed_by_address(cls: type) -> bool:
    """Whether the hash of a class's objects is made of their address."""
    return found_in_class(cls, '__hash__') is object.__hash__


def is_hash_of_a_value(frame: FrameType) -> bool:
    """Whether a call of ``hash`` that code begins has nothing to do with an address, as far as the code shows it.

    What a method ``__hash__`` returns only decides the place in a dict or a set.
    """
    code = frame.f_code
    if code.co_name == '__hash__':
        return True
    before = [step for step in single_steps(code) if step.offset < frame.f_lasti]
    given = next(step for step in reversed(before) if step.opname not in _SKIPPED)
    if given.opname == 'LOAD_CONST':
        return True
    known = frame.f_globals if given.opname == 'LOAD_GLOBAL' else frame.f_locals
    value = known.get(given.argval, MISSING) if given.opname.startswith(('LOAD_GLOBAL', *_LOADS)) else MISSING
    return is_hashed_by_value(value)


def is_hashed_by_value(value: object) -> bool:
    """Whether the hash of a value has nothing to do with an address: numbers, texts, and tuples and sets of such."""
    if type(value) is tuple or type(value) is frozenset:
        return all(map(is_hashed_by_value, value))
    if plain_key(value) is None or issubclass(type(type(value)), enum.EnumMeta):
        return False
    return bool(value == value)  # no nan, whose hash is that of its address


def is_comparison_of_ids(frame: FrameType) -> bool:
    """Whether a call of ``id`` that code begins is one of ``id(a) == id(b)``, which asks whether they are the same.

    One of the two has to be a local variable: an object that nobody holds may have the address of another one.
    """
    steps = single_steps(frame.f_code)
    for number, step in enumerate(steps):
        first = _end_of_id(steps, number) if step.argval == 'id' else None
        begin = None if first is None else _next(steps, first)
        second = None if begin is None else _end_of_id(steps, begin)
        if first is None or begin is None or second is None:
            continue
        last = steps[_next(steps, second)]
        if last.opname != 'COMPARE_OP' or last.argval not in ('==', '!='):
            continue
        held = _takes_a_variable(steps, number, first) or _takes_a_variable(steps, begin, second)
        if held and frame.f_lasti in (steps[first].offset, steps[second].offset):
            return True
    return False


def _end_of_id(steps: list[dis.Instruction], number: int) -> int | None:
    """The call of ``id``, if the instruction of this number loads it for one."""
    is_id = steps[number].opname in _GLOBALS and steps[number].argval == 'id'
    return call_of(steps, number) if is_id else None


def _next(steps: list[dis.Instruction], number: int) -> int:
    """The number of the next instruction that does something; there is always one behind a call."""
    return next(after for after in range(number + 1, len(steps)) if steps[after].opname not in _SKIPPED)


def _takes_a_variable(steps: list[dis.Instruction], begin: int, end: int) -> bool:
    """Whether a call is given a local variable and nothing else."""
    between = [step.opname for step in steps[begin + 1 : end] if step.opname not in _SKIPPED]
    return len(between) == 1 and between[0] in _VARIABLE
