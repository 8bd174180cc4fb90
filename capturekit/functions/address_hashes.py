"""Hashes of objects that a run makes: they are made of the objects' addresses, which each call has anew."""

from __future__ import annotations

import enum
from types import FrameType

from capturekit.functions.instructions import single_steps
from capturekit.model.class_layout import MISSING, found_in_class
from capturekit.model.plain_values import plain_key

_LOADS = ('LOAD_FAST', 'LOAD_DEREF', 'LOAD_NAME')
_SKIPPED = ('PUSH_NULL', 'PRECALL', 'NOP')


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
