"""Functions written in C that code hands on instead of calling them: what calls them from C makes no event.

``sorted(parts, key=id)``, ``map(os.path.exists, names)`` or ``operator.call(time.time)`` call them out of sight. So
where code loads such a function and does not call it at once, what it reads counts as read.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from capturekit.functions.code_reads import nested, single_steps
from capturekit.functions.understood import owner_of, reads
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import among

_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType)
_LOADS = ('LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_ATTR', 'LOAD_DEREF', 'LOAD_FAST', 'LOAD_CLASSDEREF')
#: What makes objects that read attributes whose names they were given.
_MAKERS = frozenset({'attrgetter', 'methodcaller'})


def reads_unknown(value: Any) -> bool:
    """Whether a value is a function written in C of which it is not known what it reads."""
    return among(type(value), _BUILTIN) and reads(value) is None


def handed_on(entries: Iterable[WatchedValue], codes: list[CodeType], asked: set[str]) -> Iterator[str]:
    """Say which watched functions of that kind the code hands on. ``asked``: names of attributes that are in texts."""
    found = {entry.key: entry.kept.value for entry in entries if entry.key and reads_unknown(entry.kept.value)}
    if not found:
        return
    every = [inner for code in codes for inner in nested(code)]
    by_name = any(not _MAKERS.isdisjoint(code.co_names) for code in every)
    for name, function in found.items():
        where = next((code for code in every if name in _names(code) and _hands_on(code, name)), None)
        if where is not None or (by_name and name in asked):
            place = '' if where is None else f' in {where.co_name}'
            yield (
                f'the function hands on {owner_of(function)}.{function.__name__}{place}: what that reads is not known'
            )


def _names(code: CodeType) -> tuple[str, ...]:
    return (*code.co_names, *code.co_freevars, *code.co_varnames, *code.co_cellvars)


def _hands_on(code: CodeType, name: str) -> bool:
    """Whether code loads what has this name without calling it at once."""
    steps = single_steps(code)
    return any(
        step.argval == name and step.opname.startswith(_LOADS) and not _called_at_once(steps, number)
        for number, step in enumerate(steps)
    )


def _called_at_once(steps: list[dis.Instruction], number: int) -> bool:
    """Whether the instruction that takes the value loaded there from the stack calls it.

    The depth is counted from below the value. A call leaves its result in the place of the function.
    """
    load = steps[number]
    if load.opname == 'LOAD_ATTR' and 'NULL' in load.argrepr:
        return True  # in this form it is loaded for a call only
    depth = dis.stack_effect(load.opcode, load.arg, jump=False)
    if load.opname == 'LOAD_ATTR':
        depth += 1 + _has_null_below(steps, number)
    elif number and steps[number - 1].opname == 'PUSH_NULL':
        depth += 1
    for step in steps[number + 1 :]:
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth < 1:
            return False
        if depth == 1 and step.opname.startswith('CALL'):
            return True
        if 'JUMP' in step.opname or step.opname.startswith(('STORE_', 'RETURN', 'YIELD', 'MAKE_FUNCTION')):
            return False
    return False


def _has_null_below(steps: list[dis.Instruction], number: int) -> bool:
    """Whether a place for a method lies on the stack below an attribute: Python 3.11 and 3.12 make it first."""
    while number and steps[number].opname == 'LOAD_ATTR':
        number -= 1
    root = steps[number]
    return 'NULL' in root.argrepr or (number > 0 and steps[number - 1].opname == 'PUSH_NULL')
