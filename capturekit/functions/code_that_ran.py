"""The code that a run came to, and what its instructions load, call and store."""

from __future__ import annotations

import dis
import functools
import itertools
import math
import re
import sys
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from capturekit.functions.call_turns import is_alone
from capturekit.functions.instructions import call_of, line_number, loader_of, parameters_of, plain_steps
from capturekit.functions.number_functions import BUILT_IN, OF_MATH, OF_TYPES, REPLACED, is_called_by, is_only_called
from capturekit.functions.outcomes import FunctionPlace
from capturekit.functions.ownership import shows_by_name
from capturekit.functions.place_uses import PlaceUses, items_named, opens_where_it_ran
from capturekit.functions.recorded_number import OF_CUPY
from capturekit.functions.return_paths import TELLS, Caller, is_jaxs, is_plain, returns_for
from capturekit.functions.run_record import RunRecord
from capturekit.functions.state_changes import ASKED_FOR, StateChanges, opens
from capturekit.functions.watched_values import WatchedValue
from capturekit.model.class_layout import MISSING, attributes_of, layout_of
from capturekit.model.source_line import is_ours

#: A function of CuPy that copies an array to the host.
COPIES = 'asnumpy'
#: Functions of Python by their names; functions that make arrays of lists, and that ask what kind of number one is.
KNOWN: dict[str, Any] = {'len': len, 'float': float, 'list': list, 'tuple': tuple}
MAKES_ARRAYS = frozenset({'array', 'asarray'})
ASKS = frozenset({'isnan', 'isinf', 'isfinite'})
_FOUND = {(module, name): getattr(module, name, None) for module in (np, math) for name in MAKES_ARRAYS | ASKS}
_FOUND |= {(math, name): function for name, function in OF_MATH.items()}
#: The kinds of watched values that are attributes.
_PLACES = ('attribute', 'slot', 'class attribute')
_GENERATORS = 0x2A0
#: The instructions that name an attribute, a global or a variable of a closure.
_BY_NAME = frozenset({*dis.hasname, *dis.hasfree})
#: The flags of code with ``*args`` or ``**kwargs``.
_VARIABLE = 0x0C
_WORDS = re.compile(r'\w+')
#: The functions of NumPy that have the names of these functions of CuPy.
_OF_NUMPY = {name: getattr(np, name) for name in OF_CUPY}


def _texts(code: CodeType) -> Iterator[str]:
    """The constants of code that are texts, at any depth, without the first one of a function: it may be its docs."""
    todo = list(code.co_consts[not code.co_name.startswith('<') :])
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, (tuple, frozenset)):
            todo += one


class CallThatRan(NamedTuple):
    """A call in code that ran; ``callers``: the calls from which that code was called then."""

    code: RanCode
    place: int
    callers: frozenset[Caller]


class Counts(Exception):
    """A value is used in a way that does more than keep it."""


class RanCode:
    """Code that ran: its instructions, and its lines that ran (None: any)."""

    def __init__(self, code: CodeType, lines: set[int] | None, calls: Iterable[int]) -> None:
        self.code = code
        self._lines = lines
        self._calls = list(calls)
        #: All names in it.
        self.names = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}

    @functools.cached_property
    def steps(self) -> list[dis.Instruction]:
        """The instructions."""
        return plain_steps(self.code)

    @functools.cached_property
    def entering(self) -> set[int]:
        """The numbers of the calls, and other instructions, from which Python code was entered."""
        return set(map(self.number, self._calls))

    @functools.cached_property
    def _offsets(self) -> list[int]:
        return [step.offset for step in self.steps]

    def number(self, offset: int) -> int:
        """The number of the instruction that is under way; a call may stand at the end of its cache."""
        return bisect_right(self._offsets, offset) - 1

    def is_call(self, place: int) -> bool:
        return self.steps[place].opname.startswith('CALL')

    def ran(self, place: int) -> bool:
        """Whether the line of an instruction ran."""
        return self._lines is None or (line_number(self.steps[place]) or 0) in self._lines


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

    def callee(self, code: RanCode, place: int, names: Iterable[str]) -> str | None:
        """The name, one of these, under which a call loads what it calls, if that is what it is in CuPy or Python."""
        number = loader_of(code.steps, place)
        if number is None or place in code.entering:
            return None
        step = code.steps[number]
        name = step.argval
        if name not in names:
            return None
        if name in KNOWN:
            is_it = self._is_global(code, step, KNOWN[name])
        elif name == COPIES:
            is_it = self._is_always(name, getattr(sys.modules.get('cupy'), name, None))
        elif name in MAKES_ARRAYS:
            is_it = self._is_of(np, code, number)
        elif name in ASKS:
            is_it = self._is_of(np, code, number) or self._is_of(math, code, number)
        else:
            is_it = step.opname in ('LOAD_ATTR', 'LOAD_METHOD')
        return name if is_it else None

    def computes(self, code: RanCode, place: int) -> FunctionPlace | None:
        """Where a call finds what it calls, if that makes a number of numbers."""
        number = loader_of(code.steps, place) if code.is_call(place) else None
        if number is None or place in code.entering:
            return None
        step, count = code.steps[number], code.steps[place].arg or 0
        name = step.argval
        if step.opname in ('LOAD_ATTR', 'LOAD_METHOD'):
            if name not in OF_MATH or not self._is_of(math, code, number):
                return None
            by = code.steps[number - 1].argval
            return self._if_only_called(FunctionPlace(self._globals_of(code), by, OF_MATH[name], True, math))
        found = self.global_in(code, name) if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME') else MISSING
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
        number = loader_of(code.steps, place)
        if number is None or code.steps[place].opname != 'CALL':
            return False
        step, name, cupy = code.steps[number], code.steps[number].argval, sys.modules.get('cupy')
        if name not in OF_CUPY or name in self._run.names.strings or self.stores(name):
            return False
        function = getattr(cupy, name, None)
        if code.steps[place].arg != OF_CUPY[name] or not self._enters_only(code, place, function):
            return False
        if step.opname not in ('LOAD_ATTR', 'LOAD_METHOD'):
            return self._is_global(code, step, function)
        of_cupy = code.steps[number - 1].opname not in ('LOAD_GLOBAL', 'LOAD_NAME')
        of_cupy = of_cupy or self._is_global(code, code.steps[number - 1], cupy)
        return of_cupy and self._is_met(name, (function, _OF_NUMPY[name], OF_MATH.get(name)))

    def _enters_only(self, code: RanCode, place: int, function: Any) -> bool:
        """Whether a call enters no code written in Python but that of this function."""
        if place not in code.entering:
            return True
        own = id(getattr(function, '__code__', None))
        entered = ((key, caller) for key, callers in self._run.code.callers.items() for caller in callers if caller)
        return all(
            key == own for key, caller in entered if caller[0] == id(code.code) and code.number(caller[1]) == place
        )

    def _is_met(self, name: str, functions: tuple[Any, ...]) -> bool:
        """Whether code has met the first of these under a name, and nothing but them.

        Or functions of jax: one that gets such a number asks it whether it is an array, which the number refuses.
        """
        found = [entry.value for entry in self._run.values.entries.values() if entry.key == name]
        known = all(is_jaxs(one) or any(one is function for function in functions) for one in found)
        return known and any(one is functions[0] for one in found)

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

    def _is_of(self, module: Any, code: RanCode, number: int) -> bool:
        """Whether an instruction loads a function of a module, which is still the one that it was at first."""
        name = code.steps[number].argval
        known = _FOUND[module, name] is not None and getattr(module, name) is _FOUND[module, name]
        return known and number > 0 and self._is_global(code, code.steps[number - 1], module)

    def _is_always(self, name: str, value: Any) -> bool:
        """Whether this name has this value wherever the code that ran names it."""
        found = [entry.value for entry in self._run.values.entries.values() if entry.key == name]
        return bool(found) and all(one is value for one in found) and not self.stores(name)

    def _is_global(self, code: RanCode, step: dis.Instruction, value: Any) -> bool:
        """Whether an instruction loads a global or a builtin that is this value."""
        return step.opname in ('LOAD_GLOBAL', 'LOAD_NAME') and self.global_in(code, step.argval) is value

    def global_in(self, code: RanCode, name: str) -> Any:
        """The global or builtin that code finds under a name while it runs; MISSING if that may change."""
        if self.stores(name, ('_GLOBAL', '_NAME')):
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

    def code_of(self, code: CodeType) -> RanCode | None:
        """What is known of code, if it is the user's and ran."""
        return self._codes.get(id(code))

    def stores(self, name: str, kinds: tuple[str, ...] = ('_GLOBAL', '_NAME', '_ATTR', '_DEREF')) -> bool:
        """Whether code stores something under a name that other code may load."""
        return any(
            step.argval == name and step.opname.startswith(('STORE_', 'DELETE_')) and step.opname.endswith(kinds)
            for code in self._codes.values()
            if name in code.names
            for step in code.steps
        )

    def callers(self, code: RanCode, among: Container[Caller] | None) -> Iterable[CallThatRan | None]:
        """The calls to which code returns: directly. None: to the caller of the whole. Raises Counts.

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
            direct = outer.is_call(place) and self._run.code.direct.is_direct(caller, code.code)
            if not direct and not self._calls(outer, place, code.code):
                raise Counts
            yield CallThatRan(outer, place, frozenset(further))

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
        shifts = (0, 1) if code.steps[load].opname in ('LOAD_ATTR', 'LOAD_METHOD') else (0,)
        count = (code.steps[place].arg or 0) - len(names)
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
        for key, callers in self._run.code.callers.items():
            for caller in callers:
                if caller is None or caller[0] != id(code.code) or code.number(caller[1]) != place:
                    continue
                inner = self._codes.get(key)
                if inner is None:
                    raise Counts
                if not self._run.code.direct.is_direct(caller, inner.code) and not self._calls(code, place, inner.code):
                    raise Counts
                yield inner, caller

    def _loads_functions(self, code: RanCode, load: int) -> bool:
        """Whether all that an instruction may load are functions written in Python."""
        step, name = code.steps[load], code.steps[load].argval
        if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
            return type(self.global_in(code, name)) is FunctionType
        if step.opname not in ('LOAD_ATTR', 'LOAD_METHOD'):
            return type(self.variable_of_closures(name)) is FunctionType
        found = [entry.value for entry in self._run.values.entries.values() if entry.key == name]
        functions = [one.__func__ if type(one) is staticmethod else one for one in found]
        known = bool(found) and all(type(one) is FunctionType for one in functions) and not self.stores(name)
        return known and name not in self._run.names.strings and not self._is_in_texts(name)

    def _calls(self, code: RanCode, place: int, inner: CodeType) -> bool:
        """Whether the call there calls a function with this code, and nothing that calls it in turn."""
        number = loader_of(code.steps, place) if code.is_call(place) else None
        if number is None:
            return False
        step, name = code.steps[number], code.steps[number].argval
        if code.steps[place].opname == 'CALL_FUNCTION_EX':  # it may call others, to make a tuple of its arguments
            return False
        if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
            return returns_for(self.global_in(code, name), inner)
        if step.opname not in ('LOAD_ATTR', 'LOAD_METHOD'):
            return returns_for(self.variable_of_closures(name), inner)
        found = [entry.value for entry in self._run.values.entries.values() if entry.key == name]
        known = all(map(is_plain, found)) and any(returns_for(one, inner) for one in found) and not self.stores(name)
        if known and self._of_module(code, number):
            return name not in self._run.names.strings
        # Python shows calls of such functions to be direct. So the object has something else under the name.
        if TELLS and all(type(one) is FunctionType for one in found):
            return False
        return known and name not in self._run.names.strings and not self._is_in_texts(name)

    def _is_in_texts(self, name: str) -> bool:
        """Whether a constant of the code that ran may name an attribute so, as in ``SimpleNamespace(step=any)``."""
        return any(name in _WORDS.findall(text) for code in self._codes.values() for text in _texts(code.code))

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
                if step.argval != name or step.opcode not in dis.hasname or not code.ran(place):
                    continue
                if place in code.entering:
                    raise Counts  # a property
                # A module's function is called there. Else it may be what code has put into the module.
                if call_of(code.steps, place) is None or not self._of_module(code, place):
                    yield code, place

    def _is_foreign(self, name: str) -> bool:
        """Whether code of libraries names an attribute so."""
        uses = PlaceUses(name, True, False)
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
        """Whether an instruction loads an attribute of a module, whose attributes are compared."""
        before = code.steps[place - 1] if place and code.steps[place].opname in ('LOAD_ATTR', 'LOAD_METHOD') else None
        if before is None or before.opname != 'LOAD_GLOBAL' or code.steps[place].is_jump_target:
            return False
        return type(self.global_in(code, before.argval)) is ModuleType

    def codes(self, owner: int = 0) -> list[RanCode]:
        """The code with this id; all code that ran if that is 0."""
        return [self._codes[owner]] if owner else list(self._codes.values())

    def grows(self, name: str) -> bool:
        """Whether launches append to a list of this name, which was there before and of which nothing else is made."""
        return name in self._grown
