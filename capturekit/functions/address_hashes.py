"""Hashes of objects that a run makes: they are those of the objects' addresses, which each call has anew.

So is the order of a set of such objects, and Python tells nobody when a set is iterated over. So the code is looked at:
a set that it makes may be asked for its members and its length, and be given members, but not go anywhere else. That is
asked only of functions that also make objects which are hashed by their address.
"""

from __future__ import annotations

import dis
import enum
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

from capturekit.functions.code_reads import nested, single_steps
from capturekit.functions.handed_on import call_of
from capturekit.functions.sets_made import SetsMade
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import MISSING, found_in_class
from capturekit.model.plain_values import plain_key

_SETS = frozenset({'set', 'frozenset'})
_STORES = ('STORE_FAST', 'STORE_DEREF', 'STORE_NAME')
_LOADS = ('LOAD_FAST', 'LOAD_DEREF', 'LOAD_NAME')
#: What may be done with a set, whatever the order of its members.
_USES = ('CONTAINS_OP', 'TO_BOOL', 'POP_JUMP', 'UNARY_NOT', 'COMPARE_OP', 'POP_TOP')
_METHODS = frozenset('add discard remove clear update isdisjoint issubset issuperset'.split())
_SKIPPED = ('PUSH_NULL', 'PRECALL', 'NOP')
_Steps = list[dis.Instruction]


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


def orders_of_sets(codes: Iterable[CodeType], makes: Iterable[str], seen: SetsMade | None) -> Iterator[str]:
    """Say which code may go through a set of objects that the run made.

    ``makes``: the names of their classes. ``seen``: what members sets got; None if not all of that was seen.
    """
    made = sorted(makes)
    for code in codes if made else ():
        for inner in nested(code):
            if _goes_through_a_set(inner, [_without_cells(one) for one in nested(code)], seen):
                yield f'{inner.co_name} makes a set, whose order is that of the addresses of its {made[0]} objects'
                return


def is_another_name_of_sets(entry: WatchedValue) -> bool:
    """Whether a watched value is the class of sets under a name that code does not show as such."""
    return any(entry.value is one for one in (set, frozenset)) and entry.key not in _SETS


def _goes_through_a_set(code: CodeType, every: list[_Steps], seen: SetsMade | None) -> bool:
    """Whether code makes a set that it uses otherwise than by asking for members. ``every``: it, and code around it."""
    steps = single_steps(code)
    for number, step in enumerate(steps):
        end: int | None = number
        if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME') and step.argval in _SETS:
            end = call_of(_with_generator(steps, number), number)
        elif step.opname != 'BUILD_SET' or _has_constants(steps, number):
            continue
        if end is None:
            return True
        if step.opname != 'BUILD_SET' and seen is not None and seen.settled_at(code, steps[end].offset):
            continue
        if not _is_used_well(steps, number, end, every):
            return True
    return False


def _with_generator(steps: _Steps, number: int) -> _Steps:
    """The steps, with nothing in the way of a call whose first argument is a generator expression.

    Where a function is made, ``call_of`` stops: what lies on the stack may be a default of it. An expression has none.
    """
    place = number + 1
    while place < len(steps) and steps[place].opname in (*_SKIPPED, 'LOAD_CLOSURE', 'LOAD_FAST', 'LOAD_CONST'):
        place += 1
    variables = sum(step.opname in ('LOAD_CLOSURE', 'LOAD_FAST') for step in steps[number + 1 : place])
    if place < len(steps) and steps[place].opname == 'BUILD_TUPLE' and steps[place].arg == variables > 0:
        place += 1 + sum(step.opname == 'LOAD_CONST' for step in steps[place + 1 : place + 3])
    elif variables:
        return steps
    made = steps[place] if place < len(steps) else steps[number]
    if made.opname != 'MAKE_FUNCTION' or '<genexpr>' not in [
        getattr(steps[place - n].argval, 'co_name', '') for n in (1, 2)
    ]:
        return steps
    return [*steps[:place], made._replace(opname='NOP'), *steps[place + 1 :]]


def _has_constants(steps: _Steps, number: int) -> bool:
    """Whether all members of a set that is made there are constants."""
    count = steps[number].arg or 0
    if [step.opname for step in steps[number + 1 : number + 3]] == ['LOAD_CONST', 'SET_UPDATE']:
        return count == 0  # written with three or more
    return count > 0 and all(step.opname == 'LOAD_CONST' for step in steps[number - count : number])


def _without_cells(code: CodeType) -> _Steps:
    """The instructions of code, but for those that load the variables of an inner function's closure as such."""
    cells = {*code.co_cellvars, *code.co_freevars}
    return [step for step in single_steps(code) if step.opname != 'LOAD_FAST' or step.argval not in cells]


def _is_used_well(steps: _Steps, number: int, end: int, every: list[_Steps]) -> bool:
    """Whether a set is only asked for members, which the steps from ``number`` to ``end`` put on the stack."""
    user = next(step for step in steps[end + 1 :] if step.opname not in _SKIPPED)
    if user.opname in _STORES:
        places = ((one, place) for one in every for place, step in enumerate(one) if step.argval == user.argval)
        loads = [(one, place) for one, place in places if one[place].opname.startswith(_LOADS)]
        return bool(every) and all(_is_used_well(one, place, place, []) for one, place in loads)
    if user.opname in ('LOAD_ATTR', 'LOAD_METHOD'):
        return user.argval in _METHODS
    return user.opname.startswith(_USES) or (user.opname.startswith('CALL') and _is_length(steps, number))


def _is_length(steps: _Steps, number: int) -> bool:
    """Whether what is loaded there is the argument of ``len``."""
    before = [step for step in steps[:number] if step.opname not in _SKIPPED]
    return bool(before) and before[-1].argval == 'len'
