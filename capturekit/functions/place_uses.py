"""How code uses the places of one name: whether it only counts there, only appends, or only stores.

Instructions that name the place are looked at, on lines that ran. Each has to begin a pattern that is understood.
"""

from __future__ import annotations

import dis
import operator
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from capturekit.functions.instructions import call_of, instructions_of, line_number, single_steps

#: The names of functions and attributes through which code reads values that it does not name.
OPENING = frozenset(
    'locals vars globals eval exec dir _getframe currentframe f_locals f_globals gc ctypes inspect '
    'pickle attrgetter methodcaller cell_contents __dict__ __getattribute__ __get__ __getstate__ '
    '__reduce__ __reduce_ex__ __self__ __closure__ __globals__'.split()
)
OPENERS: tuple[Any, ...] = (
    locals, vars, globals, eval, exec, dir, operator.attrgetter, operator.methodcaller, sys._getframe,
)  # fmt: skip
#: A function of (instructions, number): the instructions of an understood use that begins with this one, or none.
Use = Callable[[list[dis.Instruction], int], set[int]]
_Steps = list[dis.Instruction]
_COPY, _SWAP = ('COPY', 1), ('SWAP', 2)
#: How Python copies a container and a key, and how it puts a new item below them.
_COPIES_BOTH = [('COPY', 2), ('COPY', 2)]
_SINKS = [('SWAP', 3), ('SWAP', 2)]
#: Instructions that put one value on the stack.
_LOADS = frozenset(
    'LOAD_CONST LOAD_SMALL_INT LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_DEREF LOAD_GLOBAL LOAD_NAME'.split()
)
_OF_GLOBALS = ('LOAD_GLOBAL', 'LOAD_NAME')
_OF_PLACES = ('LOAD_ATTR', 'LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_DEREF')
_STORES = ('STORE_', 'DELETE_')
_FORMATTING = frozenset({'format', 'format_map', 'Formatter', 'vformat', 'Template'})
_LEFT_OUT = ('CACHE', 'EXTENDED_ARG', 'NOP', 'PUSH_NULL')
_NAMING = frozenset({*dis.hasname, *dis.hasfree})


class PlaceUses:
    """The uses of one name in code that ran.

    ``of_attributes``: only attributes of this name are places; globals are others. ``docstrings``: whether code may
    read the texts that no instruction loads.
    """

    def __init__(self, name: str, of_attributes: bool, docstrings: bool) -> None:
        self._name = name
        self._of_attributes, self._docstrings = of_attributes, docstrings
        self._word = re.compile(rf'(?<!\w){re.escape(name)}(?!\w)')

    def named_in(self, code: CodeType) -> bool:
        """Whether a library's code names a place."""
        return self._name in code.co_names and any(map(self._names, instructions_of(code)))

    def only(self, code: CodeType, lines: set[int] | None, use: Use) -> bool:
        """Whether code uses the places only in the way of ``use``, and has the name in no text.

        ``lines``: those that ran; None: any.
        """
        if opens_where_it_ran(code, lines) or self._in_texts(code):
            return False
        if self._name not in (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars):
            return True
        steps = [one for one in instructions_of(code) if one.opname not in _LEFT_OUT]
        named = {n for n, one in enumerate(steps) if self._names(one) and _ran(one, lines)}
        understood: set[int] = set()
        for number in named:
            understood |= use(steps, number)
        return named <= understood

    def _names(self, one: dis.Instruction) -> bool:
        named = one.opcode in _NAMING and one.argval == self._name
        return named and not (self._of_attributes and one.opname in _OF_GLOBALS)

    def _in_texts(self, code: CodeType) -> bool:
        if not any(self._word.search(text) for text in _texts(code.co_consts)):
            return False
        loaded = [one.argval for one in instructions_of(code) if one.opcode in dis.hasconst]
        return self._docstrings or any(self._word.search(text) for text in _texts(loaded))


def opens_where_it_ran(code: CodeType, lines: set[int] | None, unless_named: bool = False) -> bool:
    """Whether code names, on lines that ran, what reads values without naming them.

    ``unless_named``: not where it takes one item out of a ``__dict__``, by a name that :func:`items_named` tells.
    """
    if OPENING.isdisjoint(code.co_names):
        return False
    steps = single_steps(code) if unless_named else instructions_of(code)
    return any(
        one.opcode in dis.hasname
        and one.argval in OPENING
        and _ran(one, lines)
        and not (unless_named and _item_named(steps, number))
        for number, one in enumerate(steps)
    )


def items_named(code: CodeType) -> set[str]:
    """The names of attributes that code takes out of a ``__dict__``: ``x.__dict__.get('name')``."""
    if '__dict__' not in code.co_names:
        return set()
    steps = single_steps(code)
    return {name for name in (_item_named(steps, number) for number in range(len(steps))) if name}


def _item_named(steps: list[dis.Instruction], number: int) -> str:
    """The constant name of the item that is taken out of a ``__dict__`` which is loaded there; '' if there is none."""
    after = steps[number + 1 : number + 3]
    if steps[number].argval != '__dict__' or len(after) < 2 or any(one.is_jump_target for one in after):
        return ''
    if after[0].argval == 'get' and after[0].opname in ('LOAD_ATTR', 'LOAD_METHOD'):
        is_item = call_of(steps, number + 1) is not None
        name = after[1]
    else:
        is_item, name = after[1].opname == 'BINARY_SUBSCR', after[0]
    return name.argval if is_item and name.opname == 'LOAD_CONST' and type(name.argval) is str else ''


def may_use_docstrings(code: CodeType, foreign: bool) -> bool:
    """Whether code may read a docstring, and look up what it names. Of a library's code, only formatting does."""
    reads = '__doc__' in code.co_names or any('__doc__' in text for text in _texts(code.co_consts))
    return reads and not (foreign and _FORMATTING.isdisjoint(code.co_names))


def stores(code: CodeType, lines: set[int] | None, name: str) -> bool:
    """Whether code stores something, on lines that ran, under a name that other code may load."""
    if name not in (*code.co_names, *code.co_cellvars, *code.co_freevars):
        return False
    steps = instructions_of(code)
    return any(one.argval == name and one.opname.startswith(_STORES) and _ran(one, lines) for one in steps)


def makes_a_class(code: CodeType, lines: set[int] | None, is_function: Callable[[dis.Instruction], bool]) -> bool:
    """Whether code may call ``type`` with a dict of methods, whose names are seen nowhere.

    ``is_function``: whether what an instruction loads is a function, and no class of classes.
    """
    if 'type' not in code.co_names:
        return False
    steps = [one for one in instructions_of(code) if one.opname not in ('CACHE', 'EXTENDED_ARG', 'NOP')]
    ran = [number for number, one in enumerate(steps) if _ran(one, lines)]
    many = {number for number in ran if steps[number].opname.startswith('CALL') and _may_pass_three(steps[number])}
    for number in ran:
        load = steps[number]
        if load.opname not in (*_OF_PLACES, 'LOAD_METHOD') or not many:
            continue
        call = call_of(steps, number)
        if load.argval == 'type':
            if call is None or steps[call].arg != 1 or not steps[call].opname.startswith('CALL'):
                return True
        elif call is not None and is_function(load):
            many.discard(call)
    return bool(many)


def _may_pass_three(one: dis.Instruction) -> bool:
    return one.arg == 3 or one.opname == 'CALL_FUNCTION_EX'


def beginning(code: CodeType, steps: _Steps, number: int) -> set[int]:
    """The instruction that stores an attribute of the object that ``__init__`` is given."""
    itself = code.co_varnames[0] if code.co_argcount else None
    stored = steps[number].opname == 'STORE_ATTR' and not steps[number].is_jump_target and number > 0
    kept = all(one.argval != itself for one in steps if one.opname.startswith(('STORE_FAST', 'DELETE_FAST')))
    loads = stored and steps[number - 1].opname in ('LOAD_FAST', 'LOAD_FAST_BORROW')
    return {number} if kept and loads and steps[number - 1].argval == itself else set()


def storing(steps: _Steps, number: int) -> set[int]:
    """The instruction that stores an attribute."""
    return {number} if steps[number].opname == 'STORE_ATTR' else set()


def appending(steps: _Steps, number: int) -> set[int]:
    """The instruction that loads a list, if its method ``append`` is loaded from it at once."""
    following = steps[number + 1 : number + 2]
    method = any(
        one.opname in ('LOAD_METHOD', 'LOAD_ATTR') and one.argval == 'append' and not one.is_jump_target
        for one in following
    )
    return {number} if steps[number].opname in _OF_PLACES and method else set()


def counting(steps: _Steps, number: int) -> set[int]:
    """The instructions that load and store the value, if this one begins ``place += amount``.

    The amount may be anything that is read without a call: it does not come from the value, whose other uses are
    understood, too.
    """
    load = steps[number]
    attribute = load.opname == 'LOAD_ATTR'
    if load.opname not in _OF_PLACES:
        return set()
    end = _after_the_amount(steps, number + 1)
    found = [] if end is None else steps[end : end + (2 if attribute else 1)]
    if end is None or len(found) < (2 if attribute else 1) or any(one.is_jump_target for one in found):
        return set()
    store = found[-1]
    if attribute and (_plainly(found[0]) != _SWAP or number == 0 or _plainly(steps[number - 1]) != _COPY):
        return set()
    if store.opname != load.opname.replace('LOAD', 'STORE') or store.argval != load.argval:
        return set()
    return {number, end + len(found) - 1}


def counting_item(counted: Any) -> Use:
    """The use of a dict of which items are loaded and stored by constant keys, and one item only counts."""

    def use(steps: _Steps, number: int) -> set[int]:
        following = steps[number + 1 :]
        if steps[number].opname not in _OF_PLACES or not following or 'NULL' in steps[number].argrepr:
            return set()
        key = following[0]
        if key.opname != 'LOAD_CONST' or type(key.argval) is not str or key.is_jump_target:
            return set()
        copies = _begins_with(steps, number + 2, _COPIES_BOTH)
        item = number + 2 + copies
        if item >= len(steps) or steps[item].is_jump_target:
            return set()
        if key.argval != counted:
            stores = not copies and steps[item].opname == 'STORE_SUBSCR'
            return {number} if stores or _loads_an_item(steps[item]) else set()
        return {number} if _counts_an_item(steps, number + 2) else set()

    return use


def _counts_an_item(steps: _Steps, number: int) -> bool:
    """Whether these instructions, before which a dict and a key were loaded, add an amount to the item."""
    item = number + _begins_with(steps, number, _COPIES_BOTH)
    loads = number < item < len(steps) and _loads_an_item(steps[item]) and not steps[item].is_jump_target
    end = _after_the_amount(steps, item + 1) if loads else None
    sinks = 0 if end is None else _begins_with(steps, end, _SINKS)
    if end is None or not sinks:
        return False
    stored = steps[end : end + sinks + 1]
    plain = len(stored) == sinks + 1 and stored[-1].opname == 'STORE_SUBSCR'
    return plain and not any(one.is_jump_target for one in stored)


def _begins_with(steps: _Steps, number: int, wanted: list[tuple[str, Any]]) -> int:
    """How many instructions stand there of this sequence: all or none."""
    found = steps[number : number + len(wanted)]
    stands = [_plainly(one) for one in found] == wanted and not any(one.is_jump_target for one in found)
    return len(wanted) if stands else 0


def _loads_an_item(one: dis.Instruction) -> bool:
    return one.opname == 'BINARY_SUBSCR' or (one.opname == 'BINARY_OP' and one.argrepr == '[]')


def _after_the_amount(steps: _Steps, number: int) -> int | None:
    """The instruction after the one that adds what is loaded from here on; None if that is not understood."""
    depth = 0
    while number < len(steps) and not (depth == 1 and _adds_in_place(steps[number])):
        taken, depth = _needs(steps[number], depth)
        if not taken or steps[number].is_jump_target:
            return None
        number += 1
    return None if number == len(steps) or steps[number].is_jump_target else number + 1


def _adds_in_place(one: dis.Instruction) -> bool:
    return one.opname == 'BINARY_OP' and one.argrepr in ('+=', '-=')


def _needs(one: dis.Instruction, depth: int) -> tuple[bool, int]:
    """Whether an instruction reads a part of the amount, and how many values of it lie on the stack then."""
    if one.opname in _LOADS and 'NULL' not in one.argrepr:
        return True, depth + 1
    if one.opname == 'LOAD_ATTR' and 'NULL' not in one.argrepr:
        return depth > 0, depth
    if one.opname in ('BINARY_SUBSCR', 'BINARY_OP'):
        return depth > 1, depth - 1
    return one.opname == 'UNARY_NEGATIVE' and depth > 0, depth


def _ran(one: dis.Instruction, lines: set[int] | None) -> bool:
    return lines is None or (line_number(one) or 0) in lines


def _plainly(one: dis.Instruction) -> tuple[str, Any]:
    return one.opname, one.arg


def _texts(constants: Any) -> Iterator[str]:
    for one in constants:
        if type(one) is str:
            yield one
        elif type(one) in (tuple, frozenset):
            yield from _texts(one)
