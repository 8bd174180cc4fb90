"""Addresses of objects for which a run asks, to use them as keys of dicts: ``self.owners[hash(network)] = network``."""

from __future__ import annotations

import dis
import sys
import weakref
from bisect import bisect_right
from types import CodeType
from typing import Any, NamedTuple

from capturekit.functions.address_hashes import hashed_by_address
from capturekit.functions.code_reads import plain_steps
from capturekit.functions.collector import Before
from capturekit.functions.handed_on import loader_of
from capturekit.functions.number_uses import NotArithmetic, takes
from capturekit.functions.readable_state import is_itself
from capturekit.model.class_layout import MISSING, attributes_of, made_by_class_statement

_Steps = list[dis.Instruction]
#: Instructions that load a local variable, that call something, and methods of dicts whose first argument is a key.
VARIABLE = ('LOAD_FAST', 'LOAD_FAST_BORROW', 'LOAD_FAST_CHECK')
BY_KEY = frozenset({'get', 'pop', 'setdefault'})
_ITEMS = ('BINARY_SUBSCR', 'STORE_SUBSCR', 'DELETE_SUBSCR')
#: Instructions that are not in the table of :func:`takes`, and how many values they take.
_TAKE_ALSO = {'DELETE_SUBSCR': 2, 'CONTAINS_OP': 2, 'GET_ITER': 1, 'TO_BOOL': 1, 'UNARY_NOT': 1}


class Asked(NamedTuple):
    """A call of ``id`` or ``hash`` in code, and what is to be said if its number may do more than find something."""

    code: CodeType
    offset: int
    sentence: str


class InAttribute(NamedTuple):
    """Where code has a dict: an attribute of the object in a local variable."""

    variable: str
    attribute: str


class AddressesAsked:
    """Takes note of the addresses for which a run asks. ``before`` knows which objects were there before it."""

    def __init__(self, before: Before) -> None:
        self._before = before
        self.calls: dict[tuple[int, int], Asked] = {}
        self._dicts: dict[tuple[int, int], InAttribute | None] = {}
        #: The objects, by the number that was given for each.
        self._of: dict[int, weakref.ref[Any]] = {}

    def note(self, call: Asked, function: Any, value: Any) -> bool:
        """Take note of a call that begins. False if it is known now that the number may do more than find something."""
        if (function is not id and function is not hash) or not _stands_for_itself(value):
            return False
        key = id(call.code), call.offset
        if key not in self.calls:
            steps = plain_steps(call.code)
            offsets = [step.offset for step in steps]
            self.calls[key] = call
            self._dicts[key] = dict_found_by(steps, bisect_right(offsets, call.offset) - 1)
        place = self._dicts[key]
        found = MISSING if place is None else _read(call.code, place)
        if type(found) is not dict or not self._is_alone(function(value), value):
            return False
        # nothing may be found that was stored for an object which is gone
        if any(key in self._of and self._of[key]() is None for key in found):
            return False
        return not found or self._before.had(value) or not self._before.had(found)

    def _is_alone(self, number: int, value: Any) -> bool:
        """Whether this number was not given for another object."""
        try:
            known = self._of.setdefault(number, weakref.ref(value))
        except TypeError:  # nobody is told when it is gone
            return False
        return known() is value


def _stands_for_itself(value: Any) -> bool:
    """Whether a value is an object of a Python class which is nothing but itself: no call may have an equal one."""
    cls = type(value)
    return made_by_class_statement(cls) and hashed_by_address(cls) and is_itself(value)


def _read(code: CodeType, place: InAttribute) -> Any:
    """What is in an attribute of a variable in code that is under way."""
    frame: Any = sys._getframe(1)
    while frame.f_code is not code:
        frame = frame.f_back
    return attributes_of(frame.f_locals.get(place.variable)).get(place.attribute, MISSING)


class NotFollowed(Exception):
    """It is not seen what becomes of a value."""


def taken(steps: _Steps, place: int) -> tuple[int, int]:
    """The instruction that takes what another one puts on the stack, and how many values lie above that then."""
    above = 0
    for number in range(place + 1, len(steps)):
        one = steps[number]
        if one.is_jump_target:
            break
        if _taken_by(one) > above:
            return number, above
        above += dis.stack_effect(one.opcode, one.arg, jump=False)
    raise NotFollowed


def _taken_by(one: dis.Instruction) -> int:
    if one.opname.startswith('POP_JUMP'):
        return 1
    return _TAKE_ALSO[one.opname] if one.opname in _TAKE_ALSO else takes(one)


def dict_found_by(steps: _Steps, place: int) -> InAttribute | None:
    """The dict in which what an instruction puts on the stack finds something; None if it does anything else."""
    try:
        number, above = taken(steps, place)
    except (NotFollowed, NotArithmetic):
        return None
    one, begin = steps[number], place
    if one.opname == 'CONTAINS_OP' and above == 1:
        return _dict_before(steps, number) if number == place + 3 else None
    if steps[place].opname == 'CALL':
        load = loader_of(steps, place)
        if load is None or steps[load].opname != 'LOAD_GLOBAL':
            return None
        begin = load
    if is_item(one) and above == 0:
        return _dict_before(steps, begin)
    if one.opname != 'CALL' or above != (one.arg or 0) - 1:
        return None
    load = loader_of(steps, number)
    if load is None or steps[load].argval not in BY_KEY or is_attribute(steps[load]):
        return None
    return _dict_before(steps, load)


def _dict_before(steps: _Steps, number: int) -> InAttribute | None:
    """The attribute of a local variable that is loaded just before an instruction."""
    if number < 2 or not is_attribute(steps[number - 1]) or steps[number - 2].opname not in VARIABLE:
        return None
    if any(step.is_jump_target for step in steps[number - 1 : number + 1]):
        return None
    return InAttribute(steps[number - 2].argval, steps[number - 1].argval)


def is_attribute(step: dis.Instruction) -> bool:
    """Whether an instruction loads an attribute, and not a method for a call."""
    return step.opname == 'LOAD_ATTR' and 'NULL' not in step.argrepr


def is_item(step: dis.Instruction) -> bool:
    return step.opname in _ITEMS or (step.opname == 'BINARY_OP' and step.argrepr == '[]')
