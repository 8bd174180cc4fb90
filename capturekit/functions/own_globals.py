"""What code asks its own ``globals()`` for."""

from __future__ import annotations

from types import FrameType

from capturekit.functions.code_reads import single_steps
from capturekit.functions.given_names import VARIABLES, NameGiven

_ITEMS = ('BINARY_SUBSCR', 'BINARY_OP')  # from Python 3.14 on the latter, with [] as its operator
_SKIPPED = ('PRECALL', 'NOP')


def name_of_global(frame: FrameType) -> str | None:
    """The name under which code takes a value out of ``globals()``, which it calls there, at once: ``globals()[name]``.

    The name has to be a text in the code, the value of a variable, or an attribute of one. It is None where the code
    does anything else with ``globals()``.
    """
    steps = [step for step in single_steps(frame.f_code) if step.opname not in _SKIPPED]
    after = [step for step in steps if step.offset > frame.f_lasti][:3]
    item = next((number for number, step in enumerate(after) if step.opname in _ITEMS), 0)
    if not item or (after[item].opname == 'BINARY_OP' and after[item].argrepr != '[]'):
        return None
    loads = after[:item]
    attribute = loads[1].argval if item > 1 and loads[1].opname == 'LOAD_ATTR' else None
    if item > 1 and (attribute is None or loads[0].opname not in VARIABLES):
        return None
    if loads[0].opname != 'LOAD_CONST' and loads[0].opname not in VARIABLES:
        return None
    is_variable = loads[0].opname != 'LOAD_CONST'
    found = NameGiven(is_variable, loads[0].argval, attribute).value_in(frame.f_locals)
    return found if type(found) is str else None
