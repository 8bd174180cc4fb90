"""Readings of a clock that can't reach a result: code that times itself and keeps the times in attributes.

A reading is understood if the statement is ``self.begun = time.time()`` or ``self.took = time.time() - self.begun``,
and if no code that ran names these attributes in any other statement. A launch then takes no readings: the objects were
made by the call, and nobody can see them afterwards.
"""

from __future__ import annotations

import dis
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from capturekit.functions.code_reads import single_steps
from capturekit.model.class_layout import MISSING, bases_of, dictionary_of_class, made_by_class_statement

#: The functions that read a clock and do nothing else.
CLOCKS = (
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns,
    time.process_time, time.process_time_ns, time.thread_time, time.thread_time_ns,
)  # fmt: skip
_CALLS = ('CALL', 'CALL_FUNCTION', 'CALL_METHOD')
_VARIABLES = ('LOAD_FAST', 'LOAD_FAST_BORROW', 'LOAD_DEREF')
_PREPARATIONS = ('PUSH_NULL', 'PRECALL')


class Reading(NamedTuple):
    """A statement that reads a clock.

    ``call``: the offset of the call; ``objects``: the variables that hold the objects; ``stored``: the attribute that
    gets the time; ``subtracted``: the one that is subtracted, or ''; ``steps``: where these are in the code.
    """

    call: int
    objects: tuple[str, ...]
    stored: str
    subtracted: str
    steps: frozenset[int]


def readings_of(code: CodeType) -> Iterator[Reading]:
    """The statements of code that read a clock and put the time into an attribute."""
    steps = [one for one in single_steps(code) if one.opname not in _PREPARATIONS]
    for number, step in enumerate(steps):
        if step.opname in _CALLS and step.arg == 0:
            found = _reading(steps, number)
            if found is not None:
                yield found


def _reading(steps: list[dis.Instruction], call: int) -> Reading | None:
    """The statement whose call of a clock is there."""
    rest = steps[call + 1 : call + 6]
    names = [one.opname for one in rest]
    if any(one.is_jump_target for one in rest):
        return None
    if names[1:2] == ['STORE_ATTR'] and names[0] in _VARIABLES:
        return Reading(steps[call].offset, (rest[0].argval,), rest[1].argval, '', frozenset({rest[1].offset}))
    subtracts = names[2:3] == ['BINARY_SUBTRACT'] or (names[2:3] == ['BINARY_OP'] and rest[2].argrepr == '-')
    if not subtracts or names[1] != 'LOAD_ATTR' or names[4:5] != ['STORE_ATTR']:
        return None
    if names[0] not in _VARIABLES or names[3] not in _VARIABLES or 'NULL' in rest[1].argrepr:
        return None
    return Reading(
        steps[call].offset, (rest[0].argval, rest[3].argval), rest[4].argval, rest[1].argval,
        frozenset({rest[1].offset, rest[4].offset}),
    )  # fmt: skip


def attributes_of_reading(frame: FrameType, function: Any) -> tuple[str, ...]:
    """The attributes that keep the time which is read in a frame; () if it may get to another place."""
    if not any(function is clock for clock in CLOCKS):
        return ()
    for reading in readings_of(frame.f_code):
        if reading.call == frame.f_lasti:
            names = (reading.stored, reading.subtracted) if reading.subtracted else (reading.stored,)
            holders = [frame.f_locals.get(variable) for variable in reading.objects]
            return names if all(_only_keeps(type(one), name) for one in holders for name in names) else ()
    return ()


def _only_keeps(cls: type, name: str) -> bool:
    """Whether instances of a class keep an attribute without any code of the class seeing it."""
    for base in bases_of(cls):
        if base is object:
            continue
        inside = dictionary_of_class(base)
        if not made_by_class_statement(base) or '__setattr__' in inside or '__getattribute__' in inside:
            return False
        found = inside.get(name, MISSING)
        if found is not MISSING and hasattr(type(found), '__set__'):
            return False
    return '__getattr__' not in {key for base in bases_of(cls) for key in dictionary_of_class(base)}


def only_in_readings(code: CodeType, name: str) -> bool:
    """Whether code names an attribute only in statements that read a clock."""
    allowed = {offset for reading in readings_of(code) for offset in reading.steps}
    texts = [text for text in code.co_consts if type(text) is str]
    texts += [text for part in code.co_consts if type(part) in (tuple, frozenset) for text in part if type(text) is str]
    return name not in texts and all(
        one.offset in allowed for one in single_steps(code) if one.argval == name and one.opcode in dis.hasname
    )
