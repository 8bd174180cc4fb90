"""Sets that a run makes or fills: if it also makes objects hashed by their address, the order in sets may differ.

Python tells nobody when a set is iterated over. So each place that makes a set counts, and each call of a method that
gives one members, unless all members are constants or the set is only asked for one member at once.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType

from capturekit.functions.instructions import line_number, nested, single_steps
from capturekit.functions.watched_values import WatchedValue

_SETS = frozenset({'set', 'frozenset'})
#: Methods of sets that put members into one, or make another set.
FILLING = frozenset(
    'add update symmetric_difference_update copy union difference intersection symmetric_difference __init__ '
    '__ior__ __ixor__ __or__ __xor__ __ror__ __rxor__ __copy__ __deepcopy__'.split()
)
_VIEWS = frozenset({'keys', 'items'})


def orders_of_sets(codes: list[tuple[CodeType, set[int] | None]], filled: set[str], makes: set[str]) -> Iterator[str]:
    """Say which code makes or fills sets, in whose order objects may be that the run made.

    ``codes``: with the lines that ran; None: any may have. ``filled``: the names of code that called a method which
    gives a set members. ``makes``: the names of the classes of those objects.
    """
    made = sorted(makes)
    views = any(not _VIEWS.isdisjoint(inner.co_names) for code, _ in codes for inner in nested(code))
    for name in sorted(filled) if made else ():
        yield _sentence(name, made[0])
    for code, lines in codes:
        for inner in [code] if lines is not None else nested(code):
            of = made or (['function'] if _makes_functions(inner) else [])
            if of and _makes_a_set(single_steps(inner), lines, views):
                yield _sentence(inner.co_name, of[0])
                return


def _sentence(name: str, of: str) -> str:
    return f'{name} makes a set, whose order is that of the addresses of its {of} objects'


def is_another_name_of_sets(entry: WatchedValue) -> bool:
    """Whether a watched value is the class of sets under a name that code does not show as such."""
    return any(entry.value is one for one in (set, frozenset)) and entry.key not in _SETS


def _makes_a_set(steps: list[dis.Instruction], lines: set[int] | None, views: bool) -> bool:
    """Whether an instruction on a line that ran makes a set of anything but constants.

    ``views``: whether code takes views of dicts, of which operators make sets.
    """
    for number, step in enumerate(steps):
        if lines is not None and (line_number(step) or 0) not in lines:
            continue
        if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME') and step.argval in _SETS:
            return True
        asked_at_once = [one.opname for one in steps[number + 1 : number + 2]] == ['CONTAINS_OP']
        if step.opname == 'BUILD_SET' and not (asked_at_once or _has_constants(steps, number)):
            return True
        if step.opname == 'BINARY_OP' and step.argrepr.strip('=') in {*'&|-^'} and views:
            return True
    return False


def _has_constants(steps: list[dis.Instruction], number: int) -> bool:
    """Whether all members of a set that is made there are constants."""
    count = steps[number].arg or 0
    if [step.opname for step in steps[number + 1 : number + 3]] == ['LOAD_CONST', 'SET_UPDATE']:
        return count == 0  # written with three or more
    return count > 0 and all(step.opname == 'LOAD_CONST' for step in steps[number - count : number])


def _makes_functions(code: CodeType) -> bool:
    """Whether functions are written in code: each that it makes is hashed by its address."""
    inner = [one.co_name for one in code.co_consts if type(one) is CodeType]
    return any(name == '<lambda>' or not name.startswith('<') for name in inner)
