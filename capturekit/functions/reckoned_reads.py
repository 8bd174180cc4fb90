"""Host reads whose value is a number that Python reckons with, as ``alpha = r @ r / (p @ a).item()`` does.

Each launch reckons anew with what it reads (:mod:`capturekit.functions.read_numbers`), if all code that ran does
nothing with the value but to move it, as :mod:`capturekit.functions.kept_reads` says, and to give it to operators and
functions of numbers (:mod:`capturekit.functions.number_functions`). The same has to hold for what these make of it. If
that is an array, it may go anywhere: only the recording shows which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from capturekit.functions.code_that_ran import CodeThatRan, Counts, RanCode
from capturekit.functions.number_functions import ASKING, BUILT_IN
from capturekit.functions.number_uses import NotArithmetic
from capturekit.functions.outcomes import Kept
from capturekit.functions.reckoning import NOTHING, GivenNumbers, Reckoned, ReckonedOperators, no_operators
from capturekit.functions.run_record import RunRecord
from capturekit.functions.state_changes import StateChanges
from capturekit.functions.value_flow import ValueFlow
from capturekit.functions.watched_value import OtherNumbers
from capturekit.model.host_reads import Read

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
