"""Hashes and ids of objects that a run makes: they are made of the objects' addresses, which each call has anew."""

from __future__ import annotations

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
    parts = value if type(value) is tuple else [value]
    return all(plain_key(part) is not None and not issubclass(type(type(part)), enum.EnumMeta) for part in parts)


def is_comparison_of_ids(frame: FrameType) -> bool:
    """Whether a call of ``id`` that code begins is one of ``id(a) == id(b)``, which asks whether they are the same.

    One of the two has to be a local variable: an object that nobody holds may have the address of another one.
    """
    steps = [step for step in single_steps(frame.f_code) if step.opname not in _SKIPPED]
    for number, step in enumerate(steps):
        first = call_of(steps, number) if step.opname in _GLOBALS and step.argval == 'id' else None
        if first is None or steps[first + 1].opname not in _GLOBALS or steps[first + 1].argval != 'id':
            continue
        second = call_of(steps, first + 1)
        if second is None or steps[second + 1].opname != 'COMPARE_OP' or steps[second + 1].argval not in ('==', '!='):
            continue
        held = any(
            end - begin == 2 and steps[begin + 1].opname in _VARIABLE
            for begin, end in ((number, first), (first + 1, second))
        )
        if held and frame.f_lasti in (steps[first].offset, steps[second].offset):
            return True
    return False
