"""Which modules code asks ``sys.modules`` for by constant names: ``'jax' in sys.modules``.

There are hundreds of modules, and each may be anything's. So only those that are named are watched, as those are which
code imports. Where code does anything else with ``sys.modules``, all of them are.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from typing import Any

from capturekit.model.class_layout import MISSING

#: The attribute of ``sys``.
MODULES = 'modules'


def module_asked(instructions: Sequence[dis.Instruction], number: int) -> str | None:
    """The name by which the code asks for a module where it loads ``modules``; None if it may do anything with it."""
    before = instructions[number - 1] if number else instructions[number]
    if before.opname != 'LOAD_GLOBAL' or before.argval != 'sys' or instructions[number].opname != 'LOAD_ATTR':
        return None
    steps = [one for one in instructions[number - 2 if number > 1 else 0 : number + 7] if one.opname != 'PRECALL']
    first = steps.index(instructions[number])
    after = steps[first + 1 :]
    kinds = [one.opname for one in after]
    if kinds[:1] == ['CONTAINS_OP']:
        return _name(steps[first - 2]) if first > 1 and not _jumps(steps[first - 1 : first + 2]) else None
    if kinds[:2] == ['LOAD_CONST', 'BINARY_SUBSCR']:
        return None if _jumps(after[:2]) else _name(after[0])
    loads_get = bool(after) and after[0].argval == 'get' and after[0].opname in ('LOAD_METHOD', 'LOAD_ATTR')
    calls = 0 if not loads_get else 2 if _is_call(after[2:3], 1) else 3 if _is_call(after[3:4], 2) else 0
    return _name(after[1]) if calls and not _jumps(after[: calls + 1]) else None


def module_named(name: str) -> Any:
    """What ``sys.modules`` has under a name; MISSING if there is nothing."""
    return sys.modules.get(name, MISSING)


def is_in_place(modules: Any) -> bool:
    """Whether ``sys.modules`` is still this dict."""
    return sys.modules is modules


def _is_call(at: Sequence[dis.Instruction], count: int) -> bool:
    return bool(at) and at[0].opname in ('CALL', 'CALL_METHOD') and at[0].arg == count


def _name(load: dis.Instruction) -> str | None:
    return load.argval if load.opname == 'LOAD_CONST' and type(load.argval) is str else None


def _jumps(steps: Sequence[dis.Instruction]) -> bool:
    return any(step.is_jump_target for step in steps)
