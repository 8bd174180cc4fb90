"""Values that a run reads, followed through the code that ran: what is only kept, and what is computed with.

Each launch computes anew with a value that it reads (:mod:`capturekit.graphed.read_numbers`), as in ``alpha = r @ r /
(p @ a).item()``, if all code that ran does nothing with it but to move it, and to give it to operators and functions
of numbers (:mod:`capturekit.graphed.recorded_number`). The same has to hold for what these make of it. If that is
an array, it may go anywhere: only the recording shows which it is.

A value is only kept if it is appended to a list, stored in an attribute, or returned. A launch copies the value that
it has, and what keeps the value gets that one. If the value decides something, as ``error < tolerance`` does, only
that has to come out as it did.

A value is followed through lists that the run made, attributes, tuples and returns to the callers, in all code that
ran. Attributes are followed by name, whoever has them. One use that does more than move the value, or that is not
understood, makes the read one that counts.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from capturekit.graphed.call_turns import is_alone
from capturekit.graphed.calls_followed import RunRecord
from capturekit.graphed.code_reads import keeps_argument, parameters_of
from capturekit.graphed.outcomes import (
    COMPARISONS,
    NOTHING,
    ComparedOperand,
    FunctionPlace,
    GivenNumbers,
    Kept,
    ReadOutcome,
    Reckoned,
    ReckonedOperators,
    are_known,
    no_operators,
)
from capturekit.graphed.ownership import shows_by_name
from capturekit.graphed.reasons import Reason
from capturekit.graphed.recorded_number import (
    ASKING,
    BUILT_IN,
    OF_CUPY,
    OF_MATH,
    OF_TYPES,
    REPLACED,
    is_called_by,
    is_only_called,
)
from capturekit.graphed.return_paths import Caller, is_jaxs
from capturekit.graphed.stack_steps import call_of, loader_of, takes
from capturekit.graphed.state_changes import (
    ASKED_FOR,
    PlaceUses,
    StateChanges,
    items_named,
    opens,
    opens_where_it_ran,
    texts_in,
)
from capturekit.graphed.watched_values import OtherNumbers, WatchedValue
from capturekit.model.class_layout import MISSING, attributes_of, layout_of
from capturekit.model.code_steps import CodeStep, Does, steps_of
from capturekit.model.host_reads import Read, Site
from capturekit.model.source_line import Place, is_ours

#: A function of CuPy that copies an array to the host.
COPIES = 'asnumpy'
#: Functions of Python by their names; methods of lists and arrays; functions that make arrays of lists, and that ask
#: what kind of number one is.
KNOWN: dict[str, Any] = {'len': len, 'float': float, 'list': list, 'tuple': tuple}
METHODS = frozenset({'append', 'item', 'get'})
MAKES_ARRAYS = frozenset({'array', 'asarray'})
ASKS = frozenset({'isnan', 'isinf', 'isfinite'})
_FOUND = {(module, name): getattr(module, name, None) for module in (np, math) for name in MAKES_ARRAYS | ASKS}
_FOUND |= {(math, name): function for name, function in OF_MATH.items()}
#: The kinds of watched values that are attributes.
_PLACES = ('attribute', 'slot', 'class attribute')
_GENERATORS = 0x2A0
#: The flags of code with ``*args`` or ``**kwargs``.
_VARIABLE = 0x0C
_WORDS = re.compile(r'\w+')
#: What loads something that other code may see, and what gives such a thing another value.
_OF_OUTSIDE = (Does.LOADS_GLOBAL, Does.LOADS_CELL)
_SHARED = Does.CHANGES_GLOBAL | Does.CHANGES_ATTRIBUTE | Does.CHANGES_CELL
#: The functions of NumPy that have the names of these functions of CuPy.
_OF_NUMPY = {name: getattr(np, name) for name in OF_CUPY}


class Counts(Exception):
    """A value is used in a way that does more than keep it."""


class RanCode:
    """Code that ran: its steps, and its lines that ran (None: any)."""

    def __init__(self, code: CodeType, lines: set[int] | None, calls: Iterable[int]) -> None:
        self.code = code
        self._lines = lines
        self._calls = list(calls)
        #: All names in it.
        self.names = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}

    @functools.cached_property
    def steps(self) -> list[CodeStep]:
        """The steps."""
        return steps_of(self.code)

    @functools.cached_property
    def entering(self) -> set[int]:
        """The numbers of the calls, and other steps, from which Python code was entered."""
        return set(map(self.number, self._calls))

    @functools.cached_property
    def _offsets(self) -> list[int]:
        return [step.offsets[0] for step in self.steps]

    def number(self, offset: int) -> int:
        """The number of the step that is under way; a call may stand at the end of its cache."""
        return bisect_right(self._offsets, offset) - 1

    def is_call(self, place: int) -> bool:
        return self.steps[place].does in Does.ANY_CALL

    def keeps_argument(self, name: str) -> bool:
        """Whether a variable is a parameter that gets no other value, also from no inner function."""
        return keeps_argument(self.code, name) and name not in self.code.co_cellvars

    def ran(self, place: int) -> bool:
        """Whether the line of a step ran."""
        return self._lines is None or (self.steps[place].line or 0) in self._lines


class CodeThatRan:
    """The code that ran, and how values go through it. ``changes``: those that launches make again, if any."""

    def __init__(self, run: RunRecord, changes: StateChanges | None = None) -> None:
        self._run, self._changes = run, changes
        own = run.code.own()
        calls: dict[int, list[int]] = {}
        for caller, offset in (one for callers in run.code.callers.values() for one in callers if one is not None):
            calls.setdefault(caller, []).append(offset)
        self._codes = {id(code): RanCode(code, run.lines.of(code), calls.get(id(code), ())) for code in own}
        self._only_called: dict[tuple[int, str], bool | None] = {}
        self.opened = any(opens_where_it_ran(code, run.lines.of(code), True) for code in own)
        #: The names of attributes that code takes out of a ``__dict__``.
        self._items = {name for code in own for name in items_named(code)}
        self.opened = self.opened or any(map(opens, run.values.entries.values()))
        self._grown = set() if changes is None else {place.entry.key for place in changes.growing()}

    def callee(self, code: RanCode, place: int) -> str:
        """The name of what a call calls, if that is a method of :data:`METHODS` or known by its name; else ''."""
        number = loader_of(code.steps, place)
        if number is None or place in code.entering:
            return ''
        step, name = code.steps[number], str(code.steps[number].operand)
        if name == COPIES:
            is_it = self._is_always(name, getattr(sys.modules.get('cupy'), name, None))
        elif step.does in Does.ANY_ATTRIBUTE:
            is_it = name in METHODS or self._of_numbers(code, number) is not None
        else:
            is_it = name in KNOWN and self._is_global(code, step, KNOWN[name])
        return name if is_it else ''

    def computes(self, code: RanCode, place: int) -> FunctionPlace | None:
        """Where a call finds what it calls, if that makes a number of numbers."""
        number = loader_of(code.steps, place) if code.is_call(place) else None
        if number is None or place in code.entering:
            return None
        step, count = code.steps[number], code.steps[place].amount
        name = step.operand
        if step.does in Does.ANY_ATTRIBUTE:
            found = self._of_numbers(code, number)
            if found is None or found is not OF_MATH.get(name):
                return None
            by = code.steps[number - 1].operand
            return self._if_only_called(FunctionPlace(self._globals_of(code), by, found, True, math))
        found = self.global_in(code, name) if step.does in Does.ANY_GLOBAL else MISSING
        place_of = FunctionPlace(self._globals_of(code), name, found)
        if name in BUILT_IN and found is BUILT_IN[name][0]:
            return place_of if count in BUILT_IN[name][1] else None
        is_it = id(found) in REPLACED and (found not in OF_TYPES or (name == found.__name__ and count == 1))
        return self._if_only_called(place_of) if is_it else None

    def makes_array(self, code: RanCode, place: int) -> bool:
        """Whether a call is of a function of CuPy that makes an array of one number, or of numbers beside an array.

        Where it is not known which module has the function, NumPy's or that of ``math`` may be called instead: such a
        number refuses to be given to these.
        """
        number, call = loader_of(code.steps, place), code.steps[place]
        if number is None or call.does != Does.CALLS or call.names:
            return False
        step, name, cupy = code.steps[number], code.steps[number].operand, sys.modules.get('cupy')
        if name not in OF_CUPY or name in self._run.names.strings or self.stores(name):
            return False
        function = getattr(cupy, name, None)
        own = id(getattr(function, '__code__', None))
        if call.amount != OF_CUPY[name] or any(key != own for key, _ in self._entries(code, place)):
            return False  # it has entered other code written in Python
        if step.does not in Does.ANY_ATTRIBUTE:
            return self._is_global(code, step, function)
        of_cupy = code.steps[number - 1].does not in Does.ANY_GLOBAL
        of_cupy = of_cupy or self._is_global(code, code.steps[number - 1], cupy)
        return of_cupy and self._is_met(name, (function, _OF_NUMPY[name], OF_MATH.get(name)))

    def _entries(self, code: RanCode, place: int) -> Iterator[tuple[int, Caller]]:
        """The code that a call enters, by id, each with where that was called from."""
        for key, callers in self._run.code.callers.items():
            for caller in callers:
                if caller is not None and caller[0] == id(code.code) and code.number(caller[1]) == place:
                    yield key, caller

    def _is_met(self, name: str, functions: tuple[Any, ...]) -> bool:
        """Whether code has met the first of these under a name, and nothing but them.

        Or functions of jax: one that gets such a number asks it whether it is an array, which the number refuses.
        """
        found = self._values_named(name)
        known = all(is_jaxs(one) or any(one is function for function in functions) for one in found)
        return known and any(one is functions[0] for one in found)

    def _values_named(self, name: str) -> list[Any]:
        """What code has met under a name."""
        return [entry.value for entry in self._run.values.entries.values() if entry.key == name]

    def _globals_of(self, code: RanCode) -> dict[str, Any]:
        _, own = self._run.code.globals_of.get(id(code.code), (None, 0))
        found: dict[str, Any] = self._run.code.ran_in.get(own, ({}, []))[0]
        return found

    def _if_only_called(self, place: FunctionPlace) -> FunctionPlace | None:
        """A place in a module whose code calls what it finds there, so that it never sees what it is; else None.

        Where other threads run, that counts for all code of the module; else for what ran.
        """
        key = id(place.namespace), place.name
        if key not in self._only_called:
            functions = () if place.module is None else OF_MATH
            ran = self._run.code.ran_in.get(id(place.namespace), ({}, []))[1]
            known = is_called_by(ran, place.name, functions) and place.name not in self._run.names.strings
            of_all = known and not is_alone() and is_only_called(place.namespace, place.name, functions)
            self._only_called[key] = of_all if of_all or (known and is_alone()) else None
        found = self._only_called[key]
        return None if found is None else place._replace(of_all=found)

    def _of_numbers(self, code: RanCode, number: int) -> Any:
        """The function of NumPy or ``math`` that a step loads from the module, if it is still the one that it was at
        first; else None."""
        before, name = code.steps[number - 1], code.steps[number].operand
        found = self.global_in(code, before.operand) if number and before.does in Does.ANY_GLOBAL else None
        module = next((one for one in (np, math) if found is one), None)
        known = None if module is None else _FOUND.get((module, name))
        return known if known is not None and getattr(module, name) is known else None

    def _is_always(self, name: str, value: Any) -> bool:
        """Whether this name has this value wherever the code that ran names it."""
        found = self._values_named(name)
        return bool(found) and all(one is value for one in found) and not self.stores(name)

    def _is_global(self, code: RanCode, step: CodeStep, value: Any) -> bool:
        """Whether a step loads a global or a builtin that is this value."""
        return step.does in Does.ANY_GLOBAL and self.global_in(code, step.operand) is value

    def global_in(self, code: RanCode, name: str) -> Any:
        """The global or builtin that code finds under a name while it runs; MISSING if that may change."""
        if self.stores(name, Does.CHANGES_GLOBAL):
            return MISSING
        _, own = self._run.code.globals_of.get(id(code.code), (None, 0))
        found = [entry for entry in self._run.values.entries.values() if entry.kind == 'global' and entry.key == name]
        mine = [one.value for one in found if id(one.mapping) == own]
        mine = mine or [one.value for one in found if one.where().startswith('builtin ')]
        return mine[0] if mine else MISSING

    def variable_of_closures(self, name: str) -> Any:
        """What all variables of this name hold that functions have found in their closures, and that the run has not
        made; MISSING if there are several values."""
        found = [one.value for one in self._run.values.entries.values() if one.key == name and one.kind == 'variable']
        made = self.stores(name) or any(name in code.code.co_cellvars for code in self._codes.values())
        return found[0] if found and not made and all(one is found[0] for one in found) else MISSING

    def value_of(self, code: RanCode, step: CodeStep) -> Any:
        """What a step that loads no attribute loads from outside of its function; MISSING if that may change."""
        is_global = step.does in Does.ANY_GLOBAL
        return self.global_in(code, step.operand) if is_global else self.variable_of_closures(step.operand)

    def code_of(self, code: CodeType) -> RanCode | None:
        """What is known of code, if it is the user's and ran."""
        return self._codes.get(id(code))

    def stores(self, name: str, kinds: frozenset[str] = _SHARED) -> bool:
        """Whether code stores something under a name that other code may load."""
        codes = (code for code in self._codes.values() if name in code.names)
        return any(step.operand == name and step.does in kinds for code in codes for step in code.steps)

    def callers(
        self, code: RanCode, among: Container[Caller] | None
    ) -> Iterable[tuple[RanCode, int, frozenset[Caller]] | None]:
        """The calls to which code returns: directly, each with the calls from which that code was called then. None: to
        the caller of the whole. Raises Counts.

        ``among``: the only ones that count; None: all.
        """
        if code.code.co_flags & _GENERATORS:
            raise Counts
        for caller, further in self._run.code.callers.get(id(code.code), {}).items():
            if among is not None and caller not in among:
                continue
            if caller is None:
                yield None
                continue
            outer = self._codes.get(caller[0])
            if outer is None:
                raise Counts
            place = outer.number(caller[1])
            if not outer.is_call(place) or not self._run.code.direct.is_direct(caller, code.code):
                raise Counts
            yield outer, place, frozenset(further)

    def parameters(
        self, code: RanCode, place: int, position: int, names: tuple[str, ...]
    ) -> Iterator[tuple[RanCode, str, Caller]]:
        """The parameters that get an argument of a call, with the code that the call enters. Raises Counts.

        ``position``: the argument's; ``names``: those of the last arguments. Of a method it may not be known whether
        the call passes the object as well: the next parameter is one of them, too.
        """
        load = loader_of(code.steps, place)
        left = any(owner == id(code.code) and code.number(at) == place for owner, at in self._run.code.left_at)
        if load is None or left or not self._loads_functions(code, load) or place not in code.entering:
            raise Counts
        shifts = (0, 1) if code.steps[load].does in Does.ANY_ATTRIBUTE else (0,)
        count = code.steps[place].amount - len(names)
        for inner, caller in self._entered(code, place):
            own = inner.code
            named = parameters_of(own)[: own.co_argcount + own.co_kwonlyargcount]
            if position >= count:
                found = [name for name in names[position - count : position - count + 1] if name in named]
            else:
                found = [named[position + shift] for shift in shifts if position + shift < own.co_argcount]
            if not found or own.co_flags & (_GENERATORS | _VARIABLE):
                raise Counts
            yield from ((inner, name, caller) for name in found)

    def _entered(self, code: RanCode, place: int) -> Iterator[tuple[RanCode, Caller]]:
        """The code that a call enters directly, each with where that was called from. Raises Counts."""
        for key, caller in self._entries(code, place):
            inner = self._codes.get(key)
            if inner is None or not self._run.code.direct.is_direct(caller, inner.code):
                raise Counts
            yield inner, caller

    def _loads_functions(self, code: RanCode, load: int) -> bool:
        """Whether all that a step may load are functions written in Python."""
        step, name = code.steps[load], code.steps[load].operand
        if step.does not in Does.ANY_ATTRIBUTE:
            return type(self.value_of(code, step)) is FunctionType
        found = self._values_named(name)
        functions = [one.__func__ if type(one) is staticmethod else one for one in found]
        known = bool(found) and all(type(one) is FunctionType for one in functions) and not self.stores(name)
        return known and name not in self._run.names.strings and not self._is_in_texts(name)

    def _is_in_texts(self, name: str) -> bool:
        """Whether a constant of the code that ran may name an attribute so, as in ``SimpleNamespace(step=any)``."""
        codes = [code.code for code in self._codes.values()]
        # the first constant of a function may be its docs
        every = [constant for code in codes for constant in code.co_consts[not code.co_name.startswith('<') :]]
        return any(name in _WORDS.findall(text) for text in texts_in(every))

    def attribute(self, name: str) -> Iterable[tuple[RanCode, int]]:
        """All places where code that ran names an attribute. Raises Counts if other code may see it."""
        hidden = name.startswith('__') or name in ASKED_FOR or name in self._run.names.strings | self._items
        if hidden or self._is_foreign(name):
            raise Counts
        if any(hasattr(cls, name) for cls in (np.ndarray, np.generic, self._run.array)):
            raise Counts
        if self._is_asked_for(name) or not all(shows_by_name(cls, name, self._run.ownership) for cls in self._classes):
            raise Counts
        if any(name in attributes_of(value) for value in self._run.given.own.values()):
            raise Counts  # the caller sees it in an argument
        if not all(map(self._keeps_or_carries, self._run.values.entries.values(), itertools.repeat(name))):
            raise Counts
        for code in self._codes.values():
            for place, step in enumerate(code.steps) if name in code.names else ():
                if step.operand != name or step.does not in Does.USES_NAME or not code.ran(place):
                    continue
                if place in code.entering:
                    raise Counts  # a property
                # A module's function is called there. Else it may be what code has put into the module.
                if call_of(code.steps, place) is None or not self._of_module(code, place):
                    yield code, place

    def _is_foreign(self, name: str) -> bool:
        """Whether code of libraries names an attribute so."""
        uses = PlaceUses(name, True)
        codes = self._run.code.codes.values()
        return any(foreign and not is_ours(code.co_filename) and uses.named_in(code) for code, foreign in codes)

    def _is_asked_for(self, name: str) -> bool:
        """Whether an object that is asked for computed names may have this one."""
        names = self._run.names
        if names.takes_new or name in names.asked_for:
            return True
        asked = [value for value in names.full.values() if not issubclass(type(value), type)]
        return any(name in attributes_of(value) or name in layout_of(type(value)).slots for value in asked)

    @functools.cached_property
    def _classes(self) -> list[type]:
        """The classes that the run has met, and those of the objects that it has met."""
        met = [entry.value for entry in self._run.values.entries.values()]
        met += [holder.value for holder in self._run.holders.by_id.values()]
        met += self._run.given.own.values()
        found = [value if issubclass(type(value), type) else type(value) for value in met]
        return list({id(cls): cls for cls in found}.values())

    def _keeps_or_carries(self, entry: WatchedValue, name: str) -> bool:
        """Whether a place of this name that was there before has the same object still, or what launches put there.

        An equal value may have been put there, which is no change, but would be one with another value.
        """
        if entry.key != name or entry.kind not in _PLACES or entry.read() is entry.value:
            return True
        return self._changes is not None and self._changes.carries(entry)

    def _of_module(self, code: RanCode, place: int) -> bool:
        """Whether a step loads an attribute of a module, whose attributes are compared."""
        if not place or code.steps[place].does not in Does.ANY_ATTRIBUTE or code.steps[place].is_jump_target:
            return False
        before = code.steps[place - 1]
        return before.does in _OF_OUTSIDE and type(self.value_of(code, before)) is ModuleType

    def codes(self, owner: int = 0) -> list[RanCode]:
        """The code with this id; all code that ran if that is 0."""
        return [self._codes[owner]] if owner else list(self._codes.values())

    def grows(self, name: str) -> bool:
        """Whether launches append to a list of this name, which was there before and of which nothing else is made."""
        return name in self._grown


#: So many tuples in each other are followed: code that calls itself may put each that it gets into another.
_DEEPEST = 8


class ContainerPart(NamedTuple):
    """A tuple or a list of so many items, one of which holds the value."""

    number: int
    length: int
    what: Any


class Items(NamedTuple):
    """A list or an array, or a dict: its items may be what is followed."""

    what: Any
    by_keys: bool = False


#: What is followed: the value, or what may be the value, or a part of a list of it: an item by a variable, which may be
#: a slice. Or it is a container that holds what is followed.
_VALUE, _PERHAPS = 'value', 'value or part of a list'
_NUMBERS = (_VALUE, _PERHAPS)
_LIST = Items(_VALUE)
#: Operators that lists have, too, and what they make of these is a list.
_OF_LISTS = frozenset({'+', '*', '+=', '*='})
_ARITHMETIC = frozenset('+ - * / // % **'.split())
_BUILDS = frozenset({Does.BUILDS_TUPLE, Does.BUILDS_LIST, Does.BUILDS_DICT, Does.BUILDS_DICT_OF_KEYS})
_LOADS_OBJECT = Does.ANY_LOAD | Does.ANY_ATTRIBUTE | {Does.LOADS_OF_SUPER}


class StackedValue(NamedTuple):
    """The value on the stack, when the step of this number is done.

    ``above``: how many others lie above it. ``here``: whether it has not left the function that read it. ``callers``:
    the calls to which this run of the code may return; None: any.
    """

    code: RanCode
    place: int
    above: int
    what: Any
    here: bool
    callers: frozenset[tuple[int, int] | None] | None = None

    def after(self, place: int, above: int = 0, what: Any = _VALUE) -> StackedValue:
        """What another step of the same code has made of it."""
        return self._replace(place=place, above=above, what=what)


class ValueFlow:
    """Follows one value through the code that ran, until more is done with it than to move it.

    ``of_time``: it may be reckoned with, and must not reach the caller. ``of_number``: it is a number of Python, which
    may be compared. ``of_any_use``: operators may take it, which are only noted.
    """

    def __init__(
        self, program: CodeThatRan, of_time: bool = False, of_number: bool = False, of_any_use: bool = False
    ) -> None:
        self._program = program
        self._of_time, self._of_number, self._of_any_use = of_time, of_number, of_any_use
        #: The operators that take it, and the calls that make arrays of lists of it.
        self.operators: set[tuple[RanCode, int]] = set()
        self.arrays: set[tuple[RanCode, int]] = set()
        #: The attributes that get the value; and what decides something about it.
        self.attributes: set[str] = set()
        self.outcomes: set[ReadOutcome] = set()
        self._todo: list[StackedValue] = []
        self._last: tuple[RanCode, int] | None = None
        self._seen: set[Any] = set()
        #: The names of attributes where the value is stored.
        self.stores: set[str] = set()
        #: The names under which code has lists that hold values, and the stores that put known things there.
        self._lists: set[tuple[int, str]] = set()
        self._stored: set[tuple[int, int]] = set()

    def all_of(self, code: RanCode, place: int) -> bool:
        """Follow what the call there gives. False if more is done with it than to move it."""
        return self._to_the_end(lambda: self._add(StackedValue(code, place, 0, _VALUE, True)))

    def all_of_parameter(self, code: RanCode, name: str) -> bool:
        """The same for what a function gets as an argument."""
        return self._to_the_end(lambda: self._local(StackedValue(code, 0, 0, _VALUE, True), name))

    def all_of_attribute(self, name: str) -> bool:
        """The same for what is in the attributes of a name."""
        return self._to_the_end(lambda: self._attribute(name, _VALUE))

    def _to_the_end(self, begin: Callable[[], None]) -> bool:
        try:
            begin()
            while self._todo:
                self._follow(self._todo.pop())
            for owner, name in self._lists:
                self._must_be_made(owner, name)
        except Counts:
            return False
        return True

    def _add(self, held: StackedValue) -> None:
        key = id(held.code.code), *held[1:]
        if key not in self._seen:
            self._seen.add(key)
            self._todo.append(held)

    def at(self) -> Iterator[Place]:
        """The line to which it was followed last."""
        if self._last is not None:
            code, number = self._last
            line = code.steps[number].line or code.code.co_firstlineno
            yield Place(code.code.co_filename, line, code.code.co_name)

    def _follow(self, held: StackedValue) -> None:
        """Follow what lies on the stack to the step that takes it."""
        above = held.above
        for number in range(held.place + 1, len(held.code.steps)):
            self._last = held.code, number
            one = held.code.steps[number]
            if one.is_jump_target:
                break
            moved = _moved(one, above)
            if moved is not None:
                above = moved[0]
                for copy in moved[1:]:
                    self._add(held.after(number, copy, held.what))
                continue
            if self._of_any_use and _asks_for_none(held.code.steps, number, above):
                return None  # a number is not None
            if takes(one) > above:
                return self._taken(held, number, above)
            above += one.effect
        raise Counts

    def _taken(self, held: StackedValue, number: int, above: int) -> None:
        code, one = held.code, held.code.steps[number]
        kind = one.does
        if kind == Does.DROPS or (kind == Does.COMPARES_IDENTITY and not self._of_any_use):
            return
        if kind == Does.STORES_LOCAL:
            self._stored.add((id(code.code), number))
            self._local(held, one.operand)
        elif kind == Does.STORES_ATTRIBUTE and above == 1:
            self._put_in_attribute(held, number)
        elif kind == Does.RETURNS:
            self._returned(held)
        elif kind in _BUILDS:
            self._add(held.after(number, 0, _built(one, above, held.what)))
        elif kind == Does.UNPACKS:
            for position, part in _parts(held.what, one.amount):
                self._add(held.after(number, position, part))
        elif kind in (Does.GETS_ITEM, Does.STORES_ITEM) and above == 1:
            self._item(held, number)
        elif kind in Does.ANY_ATTRIBUTE:
            self._asked(code, number, held.what)
        elif kind == Does.CALLS and above < one.amount:
            self._given(held, number, above)
        elif held.what in _NUMBERS:
            self._reckoned(held, number, above)
        else:
            raise Counts

    def _put_in_attribute(self, held: StackedValue, number: int) -> None:
        """Follow what is stored into an attribute of an object that is loaded just before."""
        one, before = held.code.steps[number], held.code.steps[number - 1].does
        in_place = self._of_any_use and before == Does.SWAPS  # x.a += ...
        if before not in _LOADS_OBJECT and not in_place:
            raise Counts  # nobody has seen the object
        self._stored.add((id(held.code.code), number))
        self.stores.add(one.operand)
        self._attribute(one.operand, held.what)

    def _reckoned(self, held: StackedValue, number: int, above: int) -> None:
        """An operator takes the value."""
        one = held.code.steps[number]
        if self._of_any_use:
            if not _is_operator(one) or (held.what == _PERHAPS and one.operand in _OF_LISTS):
                raise Counts
            self.operators.add((held.code, number))
        elif self._of_time and _reckons(one) and number not in held.code.entering:
            self._add(held.after(number))
        elif self._of_number and one.does == Does.COMPARES and one.operand in COMPARISONS:
            self.outcomes.add(ReadOutcome(one.operand, self._operand(held, number, above), above == 0))
        else:
            raise Counts

    def _operand(self, held: StackedValue, number: int, above: int) -> ComparedOperand:
        """What the value is compared with: what is loaded just after it, or just before."""
        steps = held.code.steps
        loads = steps[held.place + 1 : number] if above else steps[max(held.place - 1, 0) : held.place]
        if len(loads) != 1 or (not above and (number != held.place + 1 or steps[held.place].is_jump_target)):
            raise Counts
        found, name = None, loads[0].operand
        if loads[0].does == Does.LOADS_CONSTANT:
            found = name
        elif loads[0].does == Does.LOADS_LOCAL and held.here and held.code.keeps_argument(name):
            return ComparedOperand(name)
        elif loads[0].does in _OF_OUTSIDE:
            found = self._program.value_of(held.code, loads[0])
        if type(found) not in (int, float):
            raise Counts
        return ComparedOperand('', found)

    def _returned(self, held: StackedValue) -> None:
        for caller in self._program.callers(held.code, held.callers):
            if caller is not None:
                code, place, callers = caller
                self._add(StackedValue(code, place, 0, held.what, False, callers))
            elif self._of_time:
                raise Counts

    def _item(self, held: StackedValue, number: int) -> None:
        what, index = held.what, held.code.steps[number - 1]
        loads = held.code.steps[number].does == Does.GETS_ITEM
        if type(what) is not ContainerPart:
            for item in _items(what, index) if loads else ():
                self._add(held.after(number, 0, item))
            if not loads:
                raise Counts
        elif not _is_number(index):
            raise Counts
        elif loads and index.operand % what.length == what.number:
            self._add(held.after(number, 0, what.what))

    def _asked(self, code: RanCode, number: int, what: Any) -> None:
        """A method of a list is loaded: only to append something, whatever it is."""
        step = code.steps[number]
        call = call_of(code.steps, number)
        if not _is_list(what) or step.operand != 'append' or call is None or code.steps[call].amount != 1:
            raise Counts

    def _passed(self, held: StackedValue, number: int, position: int, names: tuple[str, ...]) -> None:
        """A function of the user's gets the value as an argument; ``names``: those of the last arguments."""
        if not self._of_any_use or _is_list(held.what):
            raise Counts
        for code, parameter, caller in self._program.parameters(held.code, number, position, names):
            self._local(StackedValue(code, 0, 0, held.what, False, frozenset({caller})), parameter)

    def _given(self, held: StackedValue, number: int, above: int) -> None:
        """A function gets the value as an argument: one that only makes another value of the same number of it."""
        code, what, call = held.code, held.what, held.code.steps[number]
        if number in code.entering or call.names:
            self._passed(held, number, call.amount - 1 - above, call.names)
            return
        if self._of_any_use and what in _NUMBERS and self._is_function_of_numbers(code, number, what):
            self.operators.add((code, number))
            return
        if call.amount != 1:
            raise Counts
        name = self._program.callee(code, number)
        if name == 'append':
            load = loader_of(code.steps, number)
            assert load is not None
            self._list(code, code.steps[load - 1], _in_a_list(what))
        elif name == 'float' and what in _NUMBERS:
            self._add(held.after(number))
        elif name in ('list', 'tuple') and type(what) is ContainerPart:
            self._add(held.after(number, 0, what))
        elif name in MAKES_ARRAYS and _is_list(what):
            self.arrays.add((code, number))
            self._add(held.after(number, 0, _LIST))
        elif name in ASKS and what in _NUMBERS and self._of_number:
            self.outcomes.add(ReadOutcome(name))
        elif name in ASKS and what in _NUMBERS and self._of_any_use:
            self.operators.add((code, number))
        elif name != 'len' or what == _VALUE:
            raise Counts

    def _is_function_of_numbers(self, code: RanCode, number: int, what: Any) -> bool:
        """Whether a call makes a number or an array of the value. Of lists, ``max`` and ``min`` make a list."""
        of = self._program.computes(code, number)
        if of is None:
            return self._program.makes_array(code, number)
        return what == _VALUE or of.function not in (max, min)

    def _list(self, code: RanCode, loads: CodeStep, what: Items) -> None:
        """A value is appended to what a step loads, which is a list of such then."""
        name = loads.operand
        if loads.does == Does.LOADS_LOCAL:
            self._lists.add((id(code.code), name))
            self._local(StackedValue(code, 0, 0, what, False), name)
        elif loads.does == Does.LOADS_ATTRIBUTE:
            self._lists.add((0, name))
            self._attribute(name, what)
        elif not (loads.does in _OF_OUTSIDE and self._program.grows(name)):
            raise Counts

    def _local(self, held: StackedValue, name: str) -> None:
        """Follow what is in a local variable, from all steps that load it."""
        code = held.code
        if name in code.code.co_cellvars or name in code.code.co_freevars:
            raise Counts
        for place, step in enumerate(code.steps):
            if step.operand != name or not code.ran(place):
                continue
            if step.does == Does.LOADS_LOCAL:
                self._add(held.after(place, 0, held.what))
            elif step.does == Does.SETS_ASIDE:
                raise Counts

    def _attribute(self, name: str, what: Any) -> None:
        """Follow what is in an attribute of this name, from all steps that load it."""
        self.attributes.add(name)
        for code, place in self._program.attribute(name):
            step = code.steps[place]
            by_name = step.does in Does.ANY_GLOBAL and call_of(code.steps, place) is None
            if by_name or step.does == Does.LOADS_ATTRIBUTE:
                self._add(StackedValue(code, place, 0, what, False))  # a global is an attribute of its module
            elif step.does not in Does.CHANGES_ATTRIBUTE | Does.ANY_GLOBAL:
                raise Counts

    def _must_be_made(self, owner: int, name: str) -> None:
        """Raise if another list than one that the run has just made may be under this name."""
        codes = self._program.codes(owner)
        kind = Does.STORES_LOCAL if owner else Does.STORES_ATTRIBUTE
        named = [code for code in codes if name in code.names]
        every = [(code, place) for code in named for place, step in enumerate(code.steps) if step.operand == name]
        stores = [(code, place) for code, place in every if code.steps[place].does == kind and code.ran(place)]
        if owner and name in parameters_of(codes[0].code):
            raise Counts
        if not stores and not (not owner and self._program.grows(name)):
            raise Counts
        for code, place in stores:
            if (id(code.code), place) not in self._stored and not _stores_a_new_list(code, place):
                raise Counts


def _moved(one: CodeStep, above: int) -> tuple[int, ...] | None:
    """How many values lie above a value, and above a copy of it, behind a step that only moves and copies what lies on
    the stack; None for another step."""
    if one.does == Does.SWAPS:
        return (one.amount - 1 - above if above in (0, one.amount - 1) else above,)
    if one.does == Does.COPIES:
        return (above + 1, 0) if above == one.amount - 1 else (above + 1,)
    return None


def _asks_for_none(steps: list[CodeStep], number: int, above: int) -> bool:
    """Whether a step asks whether the value is None."""
    if steps[number].does == Does.COMPARES_IDENTITY:
        before = steps[number - 1]
        return above == 1 and before.does == Does.LOADS_CONSTANT and before.operand is None
    return above == 0 and steps[number].does == Does.JUMPS_IF_NONE


def _stores_a_new_list(code: RanCode, place: int) -> bool:
    """Whether a store, to which nothing jumps, puts a list there that is made just before."""
    steps, above = code.steps, 1
    if steps[place].does == Does.STORES_ATTRIBUTE:
        above = 2
        if place < 2 or steps[place - 1].does not in Does.ANY_VARIABLE:
            return False
    if place < above or steps[place - above].does != Does.BUILDS_LIST:
        return False
    return not any(step.is_jump_target for step in steps[place - above + 1 : place + 1])


def _reckons(one: CodeStep) -> bool:
    """Whether a step makes a new number of two."""
    return one.does == Does.OPERATES and one.operand in ('+', '-', '*', '/')


def _is_operator(one: CodeStep) -> bool:
    """Whether a step is arithmetic or a comparison."""
    operates = one.does == Does.OPERATES and one.operand.removesuffix('=') in _ARITHMETIC
    return operates or one.does in (Does.NEGATES, Does.COMPARES)


def _is_number(index: CodeStep) -> bool:
    return index.does == Does.LOADS_CONSTANT and type(index.operand) is int


def _built(one: CodeStep, above: int, what: Any) -> Any:
    """What a container that is built of the value is."""
    if one.does == Does.BUILDS_TUPLE:
        if _depth(what) == _DEEPEST:
            raise Counts
        return ContainerPart(one.amount - 1 - above, one.amount, what)
    if one.does == Does.BUILDS_LIST:
        return _in_a_list(what)
    if (one.does == Does.BUILDS_DICT and not above % 2) or (one.does == Does.BUILDS_DICT_OF_KEYS and above):
        return _in_a_list(what)._replace(by_keys=True)
    raise Counts


def _in_a_list(what: Any) -> Items:
    """A list of which an item is this."""
    if _depth(what) == _DEEPEST:
        raise Counts
    return Items(what)


def _is_list(what: Any) -> bool:
    return type(what) is Items and not what.by_keys


def _items(what: Any, index: CodeStep) -> list[Any]:
    """What an item of something by an index may be that holds the value."""
    if type(what) is Items and what.by_keys:
        return [what.what]
    if what == _VALUE:
        return [what]  # an item of the value is one of an array that was read
    if _is_number(index):
        return [what.what if type(what) is Items else _VALUE]
    return [_PERHAPS] if what in (_LIST, _PERHAPS) else [what, what.what]


def _depth(what: Any) -> int:
    return 1 + _depth(what.what) if type(what) in (ContainerPart, Items) else 0


def _parts(what: Any, count: int) -> list[tuple[int, Any]]:
    """The items of what is unpacked that hold the value: how many lie above each, and what each is."""
    if type(what) is not ContainerPart:
        part = what.what if type(what) is Items else _VALUE
        return [(position, part) for position in range(count)]
    if what.length != count:
        raise Counts
    return [(what.number, what.what)]


#: The method that reads a number. Functions of numbers read one, too, if they are given an array.
_READER = 'item'
#: Functions that ask the methods of a number.
_BY_METHODS = tuple(function for function, _ in BUILT_IN.values())
_DTYPES = ('f4', 'f8', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8')
_Place = tuple[RanCode, int]


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
    if not (wanted or state or given):
        return NOTHING
    program = CodeThatRan(run, changes)
    if program.opened:
        return NOTHING
    operators = no_operators()
    numbers = changes.new_numbers(state) if state is not None else []
    numbers = [one for one in numbers if _add(program, _takers(program, operators, name=one.entry.key), operators)]
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
    return frozenset(name for name in names if _add(program, _takers(program, operators, code, name=name), operators))


def _is_followed(read: Read) -> bool:
    single = read.value.size == 1 and read.value.dtype.str[1:] in _DTYPES
    return single and read.site is not None and len(read.signature) == 1


def _is_reckoned(program: CodeThatRan, read: Read, operators: ReckonedOperators) -> bool:
    """Whether operators take what is read there, and nothing else does more than move it."""
    code = None if read.site is None else program.code_of(read.site.code)
    if code is None or read.site is None:
        return False
    place = code.number(read.site.offset)
    if not code.steps[place].amount and program.callee(code, place) == _READER:
        return _add(program, _takers(program, operators, code, place), operators)
    of = program.computes(code, place)
    if of is None or of.function in _BY_METHODS or code.steps[place].amount != 1 or read.value.shape:
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
            found = _takers(program, operators, code, place)
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
    """Where a frame may stand while the step is under way."""
    return ((id(code.code), offset) for offset in code.steps[place].offsets)


def _takers(
    program: CodeThatRan, operators: ReckonedOperators, code: RanCode | None = None, place: int = 0, name: str = ''
) -> set[_Place] | None:
    """The operators that take what comes out of a step, is in a parameter of code, or in the attributes of a name; None
    if anything else does more than move it."""
    flow = ValueFlow(program, of_any_use=True)
    if code is None:
        moved = flow.all_of_attribute(name)
    else:
        moved = flow.all_of_parameter(code, name) if name else flow.all_of(code, place)
    if not moved:
        operators.refused.extend(flow.at())
        return None
    operators.stores.update(flow.stores)
    for made in flow.arrays:
        operators.codes.append(made[0].code)
        operators.arrays.update(_keys(*made))
    return flow.operators


#: The function that makes a plain value of an array.
_BY_FUNCTION = 'float'
#: The dtypes of numbers that are followed, and of arrays.
_KEPT_NUMBERS, _ARRAYS = ('f4', 'f8'), ('f4', 'f8', 'c8', 'c16', 'i4', 'i8', 'u4', 'u8')


def kept_reads(run: RunRecord, changes: StateChanges, reads: Sequence[Read]) -> Kept:
    """The reads of a run whose values are only kept."""
    if not any(map(_is_kept, reads)):
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


def kept_times(run: RunRecord) -> tuple[set[str], list[Reason]]:
    """The attributes in which readings of a clock end, and what to say of the readings that may get elsewhere.

    A time may be reckoned with: nothing that is made of it reaches the caller.
    """
    names, others = set[str](), list[Reason]()
    if not run.code_watch.clock:
        return names, others
    program = CodeThatRan(run)
    for site, reason in run.code_watch.clock.items():
        code, flow = program.code_of(site.code), ValueFlow(program, of_time=True)
        if code is None or program.opened or not flow.all_of(code, code.number(site.offset)):
            others.append(reason)
        else:
            names |= flow.attributes
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
    place = code.number(site.offset)
    name = _reader(program, code, place, single, depth)
    flow = ValueFlow(program, of_number=name in ('float', 'item'))
    return tuple(sorted(flow.outcomes, key=str)) if name is not None and flow.all_of(code, place) else None


def _reader(program: CodeThatRan, code: RanCode, place: int, single: bool, depth: int) -> str | None:
    """The name of what makes a number of an array, or copies the array to the host, if the call there is one of it."""
    call, name = code.steps[place], program.callee(code, place)
    if single and name == _BY_FUNCTION:
        return name if call.amount == 1 else None
    if depth < 3 and name == COPIES:
        return name if call.amount == 1 and call.does == Does.CALLS and not call.names else None
    reads = depth == 1 and not call.amount and (name == 'get' or (single and name == 'item'))
    return name if reads else None
