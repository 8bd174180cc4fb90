"""Which modules code asks ``sys.modules`` for by their names: ``'jax' in sys.modules``.

There are hundreds of modules, and each may be anything's. So only those that are named are watched, as those are which
code imports. Where code does anything else with ``sys.modules``, all of them are.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from typing import Any

from capturekit.functions.loaded_values import LoadedValue, loaded_before
from capturekit.model.class_layout import MISSING

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
