"""Sets that code makes, and whether the order of their members can matter.

Python tells nobody when a set is iterated over. So the code is looked at. A set that is only asked for members and its
length has no order that counts. From Python 3.12 on, the members are looked at as well, if they can be seen before
anything goes through the set: those of a set in a local variable before each line of its function, and what ``set`` or
``frozenset`` are given as it is given. If no member is hashed by its address, or all of those were there before the
run, each call finds them in the same order.
"""

from __future__ import annotations

import builtins
import gc
import types
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, GeneratorType
from typing import Any, NamedTuple

from capturekit.graphed.code_reads import nested
from capturekit.graphed.stack_steps import call_of, takes
from capturekit.graphed.watched_values import WatchedValue, hashed_by_address
from capturekit.model.class_layout import MISSING, among, name_of
from capturekit.model.code_steps import CodeStep, Does, steps_of

_SETS = frozenset({'set', 'frozenset'})
#: Objects of which Python has one each.
_SINGLE = (None, ..., NotImplemented)
_STORES = frozenset({Does.STORES_LOCAL, Does.STORES_CELL, Does.STORES_NAME})
_LOADS = Does.ANY_VARIABLE | {Does.SETS_ASIDE, Does.LOADS_NAME}
#: What may be done with a set, whatever the order of its members.
_USES = frozenset({Does.TESTS, Does.JUMPS_IF, Does.JUMPS_IF_NONE, Does.CONTAINS, Does.COMPARES, Does.DROPS})
_METHODS = frozenset(
    'add discard remove clear update isdisjoint issubset issuperset difference_update intersection_update'.split()
)
#: What gives the values of all variables.
_ALL_VARIABLES = frozenset({'locals', 'vars', 'eval', 'exec', '_getframe', 'currentframe'})
#: What makes a function of code, and what comes before.
_MAKING = frozenset({Does.LOADS_CONSTANT, Does.MAKES_FUNCTION, Does.MAKES_ROOM})
_VIEWS = frozenset({'keys', 'items'})
#: Methods that make a set of another one and of any container.
_JOINS = frozenset({'union', 'symmetric_difference'})
#: Methods that put members into a set.
ADD = frozenset({'add', 'update', 'symmetric_difference_update', '__init__', '__ior__', '__ixor__'})
#: What may be done besides with a set whose members are known: it goes no further than that.
_GOES_THROUGH = frozenset({Does.ITERATES, Does.UNPACKS})
_KNOWN_FUNCTIONS = frozenset('len sorted list tuple min max sum any all iter enumerate bool'.split())
#: Containers whose members an iterator over them gives, and texts.
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, dict, type({}.keys()), type({}.values()), type({}.items()))
_PLAIN = (str, bytes, range)
_OPERATORS = frozenset('&|-^')
_Steps = list[CodeStep]


class SetMade(NamedTuple):
    """A place where code makes a set whose order may matter.

    ``local``: the local variable that it is stored in, and looked at in the next line, or ''. ``call``: the offset of
    the call that makes it of a container, or None. ``leaves``: whether it may get where other code adds members to it.
    ``attribute``: the attribute in which it is stored, or ''. ``joins``: the offset of the call of a method that makes
    it of other sets and containers, if it is one of sets; None for other sets.
    """

    line: int
    local: str = ''
    call: int | None = None
    leaves: bool = False
    attribute: str = ''
    joins: int | None = None


def sets_made(code: CodeType) -> list[SetMade]:
    """The places where code makes a set that is not only asked for members and its length."""
    steps, found = steps_of(code), []
    for number, step in enumerate(steps):
        end: int | None = number
        if (step.does in Does.ANY_GLOBAL and step.operand in _SETS) or (
            step.does in Does.ANY_ATTRIBUTE and step.operand in _JOINS and not _is_of_class(steps, number)
        ):
            end = call_of(steps, number, True)
        elif _is_of_views(steps, step):
            end = None
        elif step.does != Does.BUILDS_SET or _has_constants(steps, number):
            continue
        every = [_without_cells(one) for one in nested(code)]
        if end is None or not _is_used_well(steps, number, end, every):
            found.append(_known_later(code, steps, number, end))
    return found


def _is_of_class(steps: _Steps, number: int) -> bool:
    """Whether a step loads a method of the class of sets, which is where such a set is made."""
    before = steps[number - 1] if number else steps[number]
    return before.does in Does.ANY_GLOBAL and before.operand in _SETS


def is_another_name_of_sets(entry: WatchedValue) -> bool:
    """Whether a watched value is the class of sets, or the module that has it, under a name that code does not show."""
    return any(entry.value is one for one in (set, frozenset, builtins)) and entry.key not in _SETS


def orders_of_sets(
    codes: list[tuple[CodeType, set[int] | None]],
    seen: SetsSeen,
    makes: set[str],
    only_asked: Callable[[str], bool],
    by_name: bool,
    copied: set[str],
) -> Iterator[str]:
    """Say which code may go through a set of objects that the run made.

    ``codes``: with the lines that ran; None: any may have. ``makes``: the names of the classes of those objects.
    ``only_asked``: whether what is in an attribute is only asked for members. ``by_name``: whether code may ask for
    methods by names that are values. ``copied``: the names of code that makes a set of another one by a method.
    """
    made = sorted(makes)
    seen.adds_elsewhere = by_name or any(_adds_elsewhere(code, lines, seen) for code, lines in codes)
    yield from seen.found
    if made and copied and seen.adds_elsewhere:
        yield f'{min(copied)} makes a set, whose order is that of the addresses of its {made[0]} objects'
    for code, lines in codes:
        for inner in [code] if lines is not None else nested(code):
            of = made or (['function'] if _makes_functions(inner) else [])
            if of and any(
                lines is None or (one.line in lines and not (seen.knows(code, one) or only_asked(one.attribute)))
                for one in sets_made(inner)
            ):
                yield f'{inner.co_name} makes a set, whose order is that of the addresses of its {of[0]} objects'
                return


def is_only_asked(steps: _Steps, place: int) -> bool:
    """Whether a set that is loaded there is only asked for members."""
    return _is_used_well(steps, place, place, [])


def _adds_elsewhere(code: CodeType, lines: set[int] | None, seen: SetsSeen) -> bool:
    """Whether code puts members into anything but a local variable that is looked at."""
    steps = steps_of(code)
    for number, step in enumerate(steps):
        if step.does not in Does.ANY_ATTRIBUTE or step.operand not in ADD:
            continue
        before, call = steps[number - 1], call_of(steps, number, True)
        ran = lines is None or step.line in lines
        if not ran or (lines is not None and call is not None and not seen.calls_sets(code, steps[call].offset)):
            continue
        if before.does != Does.LOADS_LOCAL or not seen.looks_at(code, before.operand):
            return True
        if not _is_alone(steps, before):
            return True
    return False


def _calls_that_may_add(code: CodeType) -> set[int]:
    """The offsets of the calls of methods that put members into a set, if they are those of sets."""
    steps = steps_of(code)
    loads = [n for n, step in enumerate(steps) if step.operand in ADD and step.does in Does.ANY_ATTRIBUTE]
    return {steps[call].offset for number in loads if (call := call_of(steps, number, True)) is not None}


class SetsSeen:
    """Looks at the members of sets while a run is followed line by line.

    ``had``: whether an object was there before the run.
    """

    def __init__(self, had: Any) -> None:
        self._had = had
        #: By the id of code: its local variables that hold sets, and the calls that make sets of containers.
        self._locals: dict[int, frozenset[str]] = {}
        self._calls: dict[int, frozenset[int]] = {}
        #: The calls that were given something whose members can't be seen.
        self._unseen: set[tuple[int, int]] = set()
        #: The calls of methods of sets that make another set, or put members into it.
        self._joined: set[tuple[int, int]] = set()
        #: Whether code puts members into sets that may be none of these.
        self.adds_elsewhere = False
        #: Sentences that say which function makes a set of such objects.
        self.found: dict[str, None] = {}

    def follow(self, code: CodeType) -> tuple[bool, bool]:
        """Whether each line of code, and whether its calls have to be told of."""
        builds = any(one.does == Does.BUILDS_SET for one in steps_of(code))
        if builds or not (_SETS | _JOINS | ADD).isdisjoint(code.co_names):
            places = sets_made(code)
            self._locals[id(code)] = frozenset(one.local for one in places if one.local)
            calls = [call for one in places for call in (one.call, one.joins) if call is not None]
            self._calls[id(code)] = frozenset(calls) | _calls_that_may_add(code)
        return self.has_locals(code), bool(self._calls.get(id(code)))

    def knows(self, code: CodeType, place: SetMade) -> bool:
        """Whether the members of all sets that were made there have been seen."""
        if place.joins is not None and (id(code), place.joins) not in self._joined:
            return True
        if place.leaves and self.adds_elsewhere:
            return False
        if place.call is not None and (id(code), place.call) not in self._unseen:
            return True
        return bool(place.local)

    def calls_sets(self, code: CodeType, offset: int) -> bool:
        """Whether a method of sets was called there."""
        return (id(code), offset) in self._joined

    def looks_at(self, code: CodeType, name: str) -> bool:
        """Whether the local variable of this name is looked at in each line."""
        return name in self._locals.get(id(code), ())

    def has_locals(self, code: CodeType) -> bool:
        """Whether code keeps sets in local variables that have to be looked at."""
        return bool(self._locals.get(id(code)))

    def line(self, code: CodeType, variables: dict[str, Any]) -> None:
        """Look at the sets in the local variables of a function that comes to a line."""
        for name in self._locals.get(id(code), ()):
            value = variables.get(name, MISSING)
            if among(type(value), (set, frozenset)):
                self._look(code, value)

    def call(self, code: CodeType, offset: int, function: Any, argument: Any) -> CodeType | None:
        """Look at what ``set`` or ``frozenset`` makes a set of.

        Returns the code of a generator that gives it the members, whose values have to be told.
        """
        if offset not in self._calls.get(id(code), ()):
            return None
        if function is not set and function is not frozenset:
            if _is_of_sets(function):
                self._joined.add((id(code), offset))
            return None
        if among(type(argument), _CONTAINERS):
            self._look(code, argument)
        elif type(argument) is GeneratorType and argument.gi_code in code.co_consts:
            return argument.gi_code
        elif not among(type(argument), _PLAIN):
            self._unseen.add((id(code), offset))
        return None

    def yielded(self, code: CodeType, value: Any) -> None:
        """Look at what a generator expression gives a set."""
        self._look(code, (value,))

    def _look(self, code: CodeType, members: Any) -> None:
        new = next(self._new_in(members), None)
        if new is not None:
            text = f'{code.co_name} makes a set, whose order is that of the addresses of its {name_of(new)} objects'
            self.found[text] = None

    def _new_in(self, members: Any) -> Iterator[type]:
        for one in members:
            if among(type(one), (tuple, frozenset)):
                yield from self._new_in(one)
            elif hashed_by_address(type(one)) and not self._was_there(one):
                yield type(one)

    def _was_there(self, one: Any) -> bool:
        """Whether an object was there before the run. The collector knows nothing of a bare ``object()``."""
        return any(one is single for single in _SINGLE) or (gc.is_tracked(one) and self._had(one))


def _is_of_sets(method: Any) -> bool:
    """Whether a function is a method of sets."""
    if among(type(method), (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return issubclass(method.__objclass__, (set, frozenset))
    if among(type(method), (types.BuiltinMethodType, types.MethodWrapperType)):
        return issubclass(type(method.__self__), (set, frozenset))
    return False


def _makes_functions(code: CodeType) -> bool:
    """Whether functions are written in code, each hashed by its address, with which it does more than call them."""
    inner = [one for one in code.co_consts if type(one) is CodeType]
    made = [one for one in inner if one.co_name == '<lambda>' or not one.co_name.startswith('<')]
    every = [_without_cells(one) for one in nested(code)] if made else []
    if any(not _ALL_VARIABLES.isdisjoint(one.co_names) for one in nested(code)):
        return bool(made)
    return not all(_is_only_called(code, one, every) for one in made)


def _is_only_called(code: CodeType, inner: CodeType, every: list[_Steps]) -> bool:
    """Whether a function that is written in code is stored in one variable, and only called from there."""
    steps = steps_of(code)
    for number, step in enumerate(steps):
        if step.operand is inner:
            stored = next(one for one in steps[number + 1 :] if one.does not in _MAKING)
            break
    else:
        return False
    if stored.does not in (Does.STORES_LOCAL, Does.STORES_CELL):
        return False
    uses = [(one, n) for one in every for n, step in enumerate(one) if step.operand == stored.operand]
    uses = [(one, n) for one, n in uses if one[n].does not in Does.ANY_STORE | {Does.LOADS_CLOSURE, Does.MAKES_CELL}]
    return all(one[n].does in _LOADS and call_of(one, n) is not None for one, n in uses)


def _is_of_views(steps: _Steps, step: CodeStep) -> bool:
    """Whether a step may make a set of the keys or the items of dicts."""
    if step.does != Does.OPERATES or step.operand.strip('=') not in _OPERATORS:
        return False
    before = {one.operand for one in steps if one.line == step.line and one.offset < step.offset}
    return not before.isdisjoint(_VIEWS | _views_in(steps))


def _views_in(steps: _Steps) -> set[str]:
    """The variables and attributes in which code stores views of dicts."""
    calls = [number for number, one in enumerate(steps[:-3]) if one.operand in _VIEWS]
    after = [[one for one in steps[number + 1 : number + 5] if one.does not in Does.NO_VALUE] for number in calls]
    return {one.operand for few in after for one in few[1:3] if one.does in Does.ANY_STORE and one.operand}


def _known_later(code: CodeType, steps: _Steps, number: int, end: int | None) -> SetMade:
    """Where the members of a set that is made there can be seen before anything goes through it."""
    line = steps[number].line or 0
    if end is None:
        return SetMade(line)
    behind = _end_of(steps, number, end)
    user = _next(steps, behind)
    frozen = steps[number].operand == 'frozenset'
    stored = _stored(steps, behind)
    joins = steps[end].offset if steps[number].operand in _JOINS else None
    local = '' if stored is None or stored.operand in code.co_cellvars else stored.operand
    loads = [one.line for one in steps if one.operand == local and one.does in Does.ANY_LOAD]
    if stored is not None and local and stored.line not in loads:
        leaves = not frozen and not (user is stored and _stays(steps, stored))
        return SetMade(line, local, leaves=leaves, joins=joins)
    attribute = _attribute_of(steps, user)
    is_class = steps[number].operand in _SETS and _next(steps, number).does not in Does.ANY_ATTRIBUTE
    is_call = steps[end].does == Does.CALLS and is_class
    if is_call and not steps[end].amount:
        return SetMade(line, call=-1, leaves=not frozen, attribute=attribute)
    through = user.does in _GOES_THROUGH | _USES or _is_argument_of(steps, number, _KNOWN_FUNCTIONS)
    call = steps[end].offset if is_call and steps[end].amount == 1 else None
    return SetMade(line, call=call, leaves=not frozen and not through, attribute=attribute, joins=joins)


def _end_of(steps: _Steps, number: int, end: int) -> int:
    """The step that puts a set on the stack: behind the loop for one that is made by a comprehension."""
    if [step.does for step in steps[number + 1 : number + 3]] != [Does.SWAPS, Does.LOOPS]:
        return end
    target = steps[number + 2].operand
    end = next(place for place, step in enumerate(steps) if step.offset >= target) - 1
    while steps[end + 1].does in Does.NO_VALUE | {Does.ENDS_LOOP, Does.DROPS}:
        end += 1
    return end


def _stored(steps: _Steps, end: int) -> CodeStep | None:
    """The step that stores a set in a local variable, or what operators make of it and of other sets."""
    above = 0
    for step in steps[end + 1 :]:
        if step.does == Does.SWAPS and step.amount == 2 and above < 2:
            above = 1 - above  # the variable of a comprehension gets its former value next
            continue
        if step.does == Does.STORES_LOCAL and above == 0:
            return step
        operator = step.does == Does.OPERATES and step.operand in _OPERATORS
        if takes(step) > above and not (operator and above == 1):
            return None
        above += step.effect
    return None


def _is_alone(steps: _Steps, load: CodeStep) -> bool:
    """Whether a line does nothing else with the variable that is loaded there."""
    return [step.operand for step in steps if step.line == load.line].count(load.operand) == 1


def _attribute_of(steps: _Steps, user: CodeStep) -> str:
    """The attribute of a local variable in which a set is stored, or ''."""
    place = next(number for number, step in enumerate(steps) if step is user)
    stores = steps[place + 1 : place + 2]
    if user.does not in Does.ANY_VARIABLE or [step.does for step in stores] != [Does.STORES_ATTRIBUTE]:
        return ''
    return str(stores[0].operand)


def _stays(steps: _Steps, stored: CodeStep) -> bool:
    """Whether what is stored in a variable goes no further, and nothing goes through it in the line of its store."""
    for place, step in enumerate(steps):
        if step.operand != stored.operand or step.does not in (Does.LOADS_LOCAL, Does.SETS_ASIDE):
            continue
        if step.line == stored.line:
            return False
        user = _next(steps, place)
        if user.does in Does.ANY_ATTRIBUTE:
            if user.operand not in _METHODS | {'pop'} or (user.operand in ADD and not _is_alone(steps, step)):
                return False
        elif user.does not in _USES | _GOES_THROUGH and not _is_argument_of(steps, place, _KNOWN_FUNCTIONS):
            return False
    return True


def _next(steps: _Steps, number: int) -> CodeStep:
    """The next step that does something with a value."""
    return next(step for step in steps[number + 1 :] if step.does not in Does.NO_VALUE)


def _is_argument_of(steps: _Steps, number: int, functions: Iterable[str]) -> bool:
    """Whether what is loaded there is the first argument of a function of one of these names."""
    before = [step for step in steps[:number] if step.does not in Does.NO_VALUE][-1:]
    return any(step.does == Does.LOADS_GLOBAL and step.operand in functions for step in before)


def _has_constants(steps: _Steps, number: int) -> bool:
    """Whether all members of a set that is made there are constants."""
    count = steps[number].amount
    if [step.does for step in steps[number + 1 : number + 3]] == [Does.LOADS_CONSTANT, Does.UPDATES_SET]:
        return count == 0  # written with three or more
    return count > 0 and all(step.does == Does.LOADS_CONSTANT for step in steps[number - count : number])


def _without_cells(code: CodeType) -> _Steps:
    """The steps of code, but for those that load the variables of an inner function's closure as such."""
    cells = {*code.co_cellvars, *code.co_freevars}
    return [step for step in steps_of(code) if step.does != Does.LOADS_LOCAL or step.operand not in cells]


def _is_used_well(steps: _Steps, number: int, end: int, every: list[_Steps]) -> bool:
    """Whether a set is only asked for members, which the steps from ``number`` to ``end`` put on the stack."""
    user = _next(steps, end)
    if user.does in _STORES:
        places = ((one, place) for one in every for place, step in enumerate(one) if step.operand == user.operand)
        loads = [(one, place) for one, place in places if one[place].does in _LOADS]
        return bool(every) and all(_is_used_well(one, place, place, []) for one, place in loads)
    if user.does in Does.ANY_ATTRIBUTE:
        return user.operand in _METHODS
    return user.does in _USES or (user.does in Does.ANY_CALL and _is_argument_of(steps, number, {'len'}))
