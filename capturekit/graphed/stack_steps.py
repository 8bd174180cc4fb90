"""What steps take from Python's stack, which step made a value there, and which one calls what another one loads."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from capturekit.model.code_steps import CodeStep, Does

#: How many values a step takes from the stack: a fixed number, and a number for each one of its count.
_TAKES = dict.fromkeys((*Does.NO_VALUE, *Does.ANY_GLOBAL, *Does.ANY_VARIABLE, Does.LOADS_CONSTANT), (0, 0)) | {
    Does.LOADS_ATTRIBUTE: (1, 0), Does.LOADS_METHOD: (1, 0), Does.CALLS: (2, 1), Does.NEGATES: (1, 0),
    Does.OPERATES: (2, 0), Does.COMPARES: (2, 0), Does.COMPARES_IDENTITY: (2, 0), Does.CONTAINS: (2, 0),
    Does.GETS_ITEM: (2, 0), Does.GETS_SLICE: (3, 0), Does.STORES_LOCAL: (1, 0), Does.STORES_ATTRIBUTE: (2, 0),
    Does.STORES_ITEM: (3, 0), Does.DROPS: (1, 0), Does.RETURNS: (1, 0), Does.UNPACKS: (1, 0),
    Does.BUILDS_TUPLE: (0, 1), Does.BUILDS_LIST: (0, 1), Does.BUILDS_SET: (0, 1), Does.BUILDS_SLICE: (0, 1),
    Does.BUILDS_TEXT: (0, 1), Does.BUILDS_DICT: (0, 2), Does.BUILDS_DICT_OF_KEYS: (1, 1),
}  # fmt: skip
#: What a step that is not in this table takes: it may be anything.
_ALL = sys.maxsize, 0


def takes(step: CodeStep) -> int:
    """How many values a step takes from the stack; more than there are for one of which it is not understood."""
    least, times = _TAKES.get(step.does, _ALL)
    return least + times * step.amount


#: Steps that put values into a new container; and those behind which a value is not called any more.
_CONTAINERS = frozenset({
    Does.BUILDS_TUPLE, Does.BUILDS_LIST, Does.BUILDS_SET, Does.BUILDS_DICT, Does.BUILDS_DICT_OF_KEYS, Does.BUILDS_SLICE,
})  # fmt: skip
_ENDS = Does.ANY_STORE | {Does.JUMPS_BACK, Does.RETURNS, Does.YIELDS}
#: Whether the place for the object of a method is made first, as in Python 3.11 and 3.12, and not behind the method.
_ROOM_IS_BELOW = sys.version_info < (3, 13)
#: Steps that load what a call calls.
_CALLED = Does.ANY_GLOBAL | Does.ANY_ATTRIBUTE | {Does.LOADS_CELL}


def call_of(steps: list[CodeStep], number: int, through: bool = False) -> int | None:
    """The number of the step that takes the value loaded there from the stack, if it calls it; else None.

    The depth is counted from below the value. A call leaves its result in the place of the function. ``through``: an
    argument may be made by an inner function.
    """
    load = steps[number]
    top = load.effect
    if load.does in Does.ANY_ATTRIBUTE:
        top += 1 + _has_room_below(steps, number)
    elif _ROOM_IS_BELOW and number and not load.is_called and steps[number - 1].does == Does.MAKES_ROOM:
        top += 1
    below = top - 1 if _ROOM_IS_BELOW else 0
    for place, depth in _depths(steps, number, top):
        step = steps[place]
        if step.does in _CONTAINERS and depth - below <= takes(step):
            break  # the value is put into a container
        if depth - _reach(step) < top:
            break  # what is loaded is copied, or decides something
        after = depth + step.effect
        if after < 1:
            break
        if after == 1 and step.does in Does.ANY_CALL:
            return place
        if step.does in _ENDS or (step.does == Does.MAKES_FUNCTION and not through):
            break
    return number if load.does == Does.LOADS_METHOD else None


def _reach(step: CodeStep) -> int:
    """How many values on the stack a step copies, puts in another order, or jumps by."""
    return step.amount if step.does in (Does.SWAPS, Does.COPIES) else step.does in Does.ANY_JUMP


def _depths(steps: list[CodeStep], number: int, depth: int) -> Iterator[tuple[int, int]]:
    """The steps behind one, each with how deep the stack is before it; ``depth``: before the first of them."""
    ends, joins = False, dict[int, int]()  # the depth where jumps lead
    for place, step in enumerate(steps[number + 1 :], number + 1):
        if step.offsets[0] in joins:
            depth = joins.pop(step.offsets[0])
        elif ends:
            break  # only jumps from elsewhere lead here
        yield place, depth
        depth += step.effect
        ends = step.does == Does.JUMPS
        if step.does in Does.ANY_JUMP:
            joins[step.operand] = depth + (step.does == Does.JUMPS_OR_DROPS)


def maker_of(steps: list[CodeStep], number: int, call: int, above: int) -> int | None:
    """The number of the step that makes an argument of a call, above which so many values lie; None if several do.

    ``number``: the step that loads what is called.
    """
    depths = dict(_depths(steps[: call + 1], number, 0))
    moves = Does.ANY_JUMP | {Does.NOTHING}
    makes = [place for place, depth in depths.items() if depth + steps[place].effect == depths[call] - above]
    made = max([place for place in makes if place < call and steps[place].does not in moves], default=None)
    if made is None or above < 0:
        return None
    jumps = [one for one in steps[number:made] if one.does in Does.ANY_JUMP]
    return None if any(one.operand > steps[made].offset for one in jumps) else made


def loader_of(steps: list[CodeStep], call: int) -> int | None:
    """The number of the step that loads what a call calls, if only one can have loaded it."""
    for number in range(call - 1, -1, -1):
        if steps[number + 1].is_jump_target:
            return None
        step = steps[number]
        if step.does in _CALLED and call_of(steps, number) == call:
            return None if step.is_jump_target and step.does in Does.ANY_ATTRIBUTE else number
    return None


def _has_room_below(steps: list[CodeStep], number: int) -> bool:
    """Whether a place for a method lies on the stack below an attribute that is not loaded as a method."""
    if not _ROOM_IS_BELOW or steps[number].does == Does.LOADS_METHOD:
        return False
    while number and steps[number].does in Does.ANY_ATTRIBUTE:
        number -= 1
    root = steps[number]
    return root.is_called or (number > 0 and steps[number - 1].does == Does.MAKES_ROOM)
