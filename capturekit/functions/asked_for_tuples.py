"""Code that asks whether a variable is a tuple: ``x[0] if isinstance(x, tuple) else x``."""

from __future__ import annotations

import dis
from collections.abc import Sequence

_FALSE = ('POP_JUMP_IF_FALSE', 'POP_JUMP_FORWARD_IF_FALSE')
_PASSING = ('PRECALL', 'TO_BOOL')
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_LEAVING = ('JUMP_FORWARD', 'JUMP_BACKWARD', 'RETURN_VALUE')


def asks_for_tuple(steps: Sequence[dis.Instruction], call: int) -> str | None:
    """The variable of which a call asks whether it is a tuple, if names there are Python's; else None.

    Nothing jumps in between, so that the call takes what is loaded just before it.
    """
    first = call - 1
    while steps[first].opname in _PASSING:
        first -= 1
    loads = steps[max(first - 2, 0) : first + 1]
    if steps[call].arg != 2 or [one.opname for one in loads] != ['LOAD_GLOBAL', 'LOAD_FAST', 'LOAD_GLOBAL']:
        return None
    named = loads[0].argval == 'isinstance' and loads[2].argval == 'tuple'
    jumps = any(one.is_jump_target for one in steps[first - 1 : call + 1])
    return loads[1].argval if named and not jumps else None


def call_that_finds_no_tuple(steps: Sequence[dis.Instruction], load: int) -> int | None:
    """The call that has just found that the variable which is loaded there is no tuple, wherever the code comes from.

    None if there is none: the code before the load always leaves, and one instruction jumps to it.
    """
    one = steps[load]
    jumping = [n for n, step in enumerate(steps) if step.opcode in _JUMPS and step.argval == one.offset]
    if not one.is_jump_target or len(jumping) != 1 or not load or steps[load - 1].opname not in _LEAVING:
        return None
    jump = jumping[0]
    call = jump - 1
    while steps[call].opname in _PASSING:
        call -= 1
    if steps[jump].opname not in _FALSE or any(step.is_jump_target for step in steps[call + 1 : jump + 1]):
        return None
    asks = steps[call].opname.startswith('CALL') and asks_for_tuple(steps, call) == one.argval
    return call if asks else None
