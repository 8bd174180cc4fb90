"""Host reads whose value is a number that Python reckons with, or that is only kept.

Each launch reckons anew with a value that it reads (:mod:`capturekit.functions.read_numbers`), as in ``alpha = r @ r /
(p @ a).item()``, if all code that ran does nothing with it but to move it, and to give it to operators and functions
of numbers (:mod:`capturekit.functions.number_functions`). The same has to hold for what these make of it. If that is
an array, it may go anywhere: only the recording shows which it is.

A value is only kept if it is appended to a list, stored in an attribute, or returned. A launch copies the value that
it has, and what keeps the value gets that one. If the value decides something, as ``error < tolerance`` does, only
that has to come out as it did.

A value is followed through lists that the run made, attributes, tuples and returns to the callers, in all code that
ran. Attributes are followed by name, whoever has them. One use that does more than move the value, or that is not
understood, makes the read one that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from capturekit.functions.code_that_ran import COPIES, CodeThatRan, Counts, RanCode
from capturekit.functions.number_arguments import NotArithmetic
from capturekit.functions.number_functions import ASKING, BUILT_IN
from capturekit.functions.outcomes import (
    NOTHING,
    GivenNumbers,
    Kept,
    ReadOutcome,
    Reckoned,
    ReckonedOperators,
    are_known,
    no_operators,
)
from capturekit.functions.run_record import RunRecord
from capturekit.functions.state_changes import StateChanges
from capturekit.functions.value_flow import ValueFlow
from capturekit.functions.watched_values import OtherNumbers
from capturekit.model.host_reads import Read, Site

#: The method that reads a number. Functions of numbers read one, too, if they are given an array.
_READER = 'item'
#: Functions that ask the methods of a number.
_BY_METHODS = tuple(function for function, _ in BUILT_IN.values())
#: The bytes of one unit of code.
_UNIT = 2
_NUMBERS = ('f4', 'f8', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8')
_Place = tuple[RanCode, int]


class _Parameter(NamedTuple):
    """A parameter of the function."""

    code: RanCode
    name: str


def reckoned_numbers(
    run: RunRecord,
    changes: StateChanges,
    reads: Sequence[Read],
    kept: Kept,
    state: OtherNumbers | None,
    given: GivenNumbers | None = None,
) -> Reckoned:
    """The reads of a run whose values are reckoned with. ``kept``: those that are only kept.

    ``state`` tells which numbers in attributes earlier runs have found: the changes are told which are reckoned with.
    ``given``: the numbers among the arguments.
    """
    wanted = [number for number, read in enumerate(reads) if number not in kept and _is_followed(read)]
    if run.names.everything or not (wanted or state or given):
        return NOTHING
    program = CodeThatRan(run, changes)
    if program.opened:
        return NOTHING
    operators = no_operators()
    numbers = changes.new_numbers(state) if state is not None else []
    numbers = [one for one in numbers if _add(program, _takers(program, one.name, operators), operators)]
    known: dict[object, bool] = {}
    found = []
    for number in wanted:
        site = reads[number].site
        if site not in known:
            known[site] = _is_reckoned(program, reads[number], operators)
        if known[site]:
            found.append(number)
    parameters = _parameters(program, given, kept, operators)
    if given is not None and not parameters.issuperset(given.names):
        return Reckoned(frozenset(), operators, parameters)  # the graph reads them, and can read no others beside
    stored = changes.where_numbers_stay(operators.stores)
    if stored is None or (stored and state is None):
        return NOTHING
    for one in (*numbers, *stored):
        changes.reckon_with(one)
    return Reckoned(frozenset(found), operators, parameters)


def _parameters(
    program: CodeThatRan, given: GivenNumbers | None, kept: Kept, operators: ReckonedOperators
) -> frozenset[str]:
    """The parameters with whose numbers operators alone compute. Values that are only kept meet none of them."""
    code = None if given is None else program.code_of(given.code)
    if code is None or given is None:
        return frozenset()
    operands = {outcome.operand.parameter for outcomes in kept.values() for outcome in outcomes if outcome.operand}
    names = [name for name in given.names if name not in operands]
    return frozenset(
        name for name in names if _add(program, _takers(program, _Parameter(code, name), operators), operators)
    )


def _is_followed(read: Read) -> bool:
    single = read.value.size == 1 and read.value.dtype.str[1:] in _NUMBERS
    return single and read.site is not None and len(read.signature) == 1


def _is_reckoned(program: CodeThatRan, read: Read, operators: ReckonedOperators) -> bool:
    """Whether operators take what is read there, and nothing else does more than move it."""
    code = None if read.site is None else program.code_of(read.site.code)
    if code is None or read.site is None:
        return False
    place = code.number(read.site.offset)
    if not code.steps[place].arg and program.callee(code, place, {_READER}) == _READER:
        return _add(program, _takers(program, (code, place), operators), operators)
    of = program.computes(code, place)
    if of is None or of.function in _BY_METHODS or code.steps[place].arg != 1 or read.value.shape:
        return False
    followed = _add(program, {(code, place)}, operators) and operators.at[id(code.code), code.steps[place].offset]
    operators.readers.update(_keys(code, place) if followed else ())
    return followed


def _add(program: CodeThatRan, taken: set[_Place] | None, operators: ReckonedOperators) -> bool:
    """Add operators, and those that take what comes out of them. False if there is none."""
    todo = list(taken or ())
    while todo:
        code, place = todo.pop()
        key = id(code.code), code.steps[place].offset
        if key not in operators.at:
            found = _takers(program, (code, place), operators)
            of = program.computes(code, place)
            if found is None and of is not None and of.function not in ASKING:  # a number goes where it is not followed
                return False
            operators.codes.append(code.code)
            operators.at.update(dict.fromkeys(_keys(code, place), found is not None))
            if of is not None and of.function not in _BY_METHODS:
                operators.places[id(of.namespace), of.name] = of
            todo += found or ()
    return taken is not None


def _keys(code: RanCode, place: int) -> Iterator[tuple[int, int]]:
    """Where a frame may stand while the instruction is under way: Python 3.11 may call a function just before CALL, and
    a call of a function written in Python may stand at the end of its cache."""
    yield id(code.code), code.steps[place].offset
    if code.is_call(place) and place + 1 < len(code.steps):
        yield id(code.code), code.steps[place + 1].offset - _UNIT
    if code.steps[place - 1].opname == 'PRECALL':
        yield id(code.code), code.steps[place - 1].offset


def _takers(program: CodeThatRan, of: _Place | str | _Parameter, operators: ReckonedOperators) -> set[_Place] | None:
    """The operators that take what comes out of an instruction, or is in the attributes of a name; None if anything
    else does more than move it."""
    flow = ValueFlow(program, of_any_use=True)
    try:
        if isinstance(of, str):
            flow.all_of_attribute(of)
        elif isinstance(of, _Parameter):
            flow.all_of_parameter(*of)
        else:
            flow.all_of(*of)
    except (Counts, NotArithmetic):
        return None
    operators.stores.update(flow.stores)
    return flow.operators


#: What makes a plain value of an array: a function, or methods.
_BY_FUNCTION, _BY_METHOD = 'float', frozenset({'item', 'get'})
#: The dtypes of numbers that are followed, and of arrays.
_KEPT_NUMBERS, _ARRAYS = ('f4', 'f8'), ('f4', 'f8', 'c8', 'c16', 'i4', 'i8', 'u4', 'u8')


def kept_reads(run: RunRecord, changes: StateChanges, reads: Sequence[Read]) -> Kept:
    """The reads of a run whose values are only kept."""
    if run.names.everything or not any(map(_is_kept, reads)):
        return {}
    program = CodeThatRan(run, changes)
    known: dict[Any, tuple[ReadOutcome, ...] | None] = {}
    found = {}
    for number, read in enumerate(reads):
        if read.site is None or not _is_kept(read):
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


def _is_kept(read: Read) -> bool:
    kind = read.value.dtype.str[1:]
    single = read.value.size == 1 and kind in _KEPT_NUMBERS
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
