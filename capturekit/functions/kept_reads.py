"""Host reads whose value is only kept: appended to a list, stored in an attribute, returned.

A launch need not find the value that was read while recording: it copies the value that it has, and what keeps the
value gets that one. If the value decides something, as ``error < tolerance`` does, only that has to come out as it did.

A value is followed as :mod:`capturekit.functions.number_uses` follows numbers, but farther: through lists that the run
made, attributes, tuples and returns to the callers, in all code that ran. Attributes are followed by name, whoever has
them. One use that does more than move the value, or that is not understood, makes the read one that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capturekit.functions.code_that_ran import COPIES, CodeThatRan, Counts, RanCode
from capturekit.functions.number_uses import NotArithmetic
from capturekit.functions.outcomes import Kept, ReadOutcome, are_known
from capturekit.functions.run_record import RunRecord
from capturekit.functions.state_changes import StateChanges
from capturekit.functions.value_flow import ValueFlow
from capturekit.model.host_reads import Read, Site

#: What makes a plain value of an array: a function, or methods.
_BY_FUNCTION, _BY_METHOD = 'float', frozenset({'item', 'get'})
#: The dtypes of numbers that are followed, and of arrays.
_NUMBERS, _ARRAYS = ('f4', 'f8'), ('f4', 'f8', 'c8', 'c16', 'i4', 'i8', 'u4', 'u8')


def kept_reads(run: RunRecord, changes: StateChanges, reads: Sequence[Read]) -> Kept:
    """The reads of a run whose values are only kept."""
    if run.names.everything or not any(map(_is_followed, reads)):
        return {}
    program = CodeThatRan(run, changes)
    known: dict[Any, tuple[ReadOutcome, ...] | None] = {}
    found = {}
    for number, read in enumerate(reads):
        if read.site is None or not _is_followed(read):
            continue
        key = read.site, read.value.size == 1, len(read.signature)
        if key not in known:
            known[key] = _outcomes(program, *key)
        outcomes = known[key]
        if outcomes is not None and are_known(outcomes, read.parameters):
            found[number] = outcomes
    return found


def kept_times(run: RunRecord) -> tuple[set[str], list[str]]:
    """The attributes in which readings of a clock end, and what to say of the readings that may get elsewhere.

    A time may be reckoned with: nothing that is made of it reaches the caller.
    """
    names: set[str] = set()
    others: list[str] = []
    program = CodeThatRan(run) if run.code_watch.clock.readings and not run.names.everything else None
    for site, sentence in run.code_watch.clock.readings.items():
        found = None if program is None else _names_of_times(program, site)
        if found is None:
            others.append(sentence)
        else:
            names |= found
    return names, others


def _is_followed(read: Read) -> bool:
    kind = read.value.dtype.str[1:]
    single = read.value.size == 1 and kind in _NUMBERS
    return read.site is not None and (single or (read.value.size > 1 and kind in _ARRAYS))


def _outcomes(program: CodeThatRan, site: Site, single: bool, depth: int) -> tuple[ReadOutcome, ...] | None:
    """What the code asks of the values that are read at a call and otherwise only kept; None if it does more with them.

    ``single``: of arrays with one element. ``depth``: how many functions are under way for it, with the user's.
    """
    code = program.code_of(site.code)
    if code is None or program.opened:
        return None
    try:
        place = code.number(site.offset)
        name = _reader(program, code, place, single, depth)
        flow = ValueFlow(program, of_number=name in ('float', 'item'))
        if name is not None:
            flow.all_of(code, place)
    except (Counts, NotArithmetic):
        return None
    return None if name is None else tuple(sorted(flow.outcomes, key=str))


def _names_of_times(program: CodeThatRan, site: Site) -> set[str] | None:
    """The attributes that get what is made of a time that is read at a call; None if the caller may get it."""
    code = program.code_of(site.code)
    if code is None or program.opened:
        return None
    try:
        flow = ValueFlow(program, of_time=True)
        flow.all_of(code, code.number(site.offset))
    except (Counts, NotArithmetic):
        return None
    return flow.attributes


def _reader(program: CodeThatRan, code: RanCode, place: int, single: bool, depth: int) -> str | None:
    """The name of what makes a number of an array, or copies the array to the host, if the call there is one of it."""
    count = code.steps[place].arg
    if single and program.callee(code, place, {_BY_FUNCTION}) == _BY_FUNCTION:
        return _BY_FUNCTION if count == 1 else None
    if depth < 3 and program.callee(code, place, {COPIES}) == COPIES:
        return COPIES if count == 1 and code.steps[place].opname == 'CALL' else None
    name = program.callee(code, place, _BY_METHOD) if depth == 1 and not count else None
    return name if name == 'get' or single else None
