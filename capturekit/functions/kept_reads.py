"""Host reads whose value is only kept: appended to a list, stored in an attribute, returned.

Such a value decides nothing. A launch need not find the value that was read while recording: it copies the value that
it has, and what keeps the value gets that one.

A value is followed as :mod:`capturekit.functions.number_uses` follows numbers, but farther: through lists that the run
made, attributes, tuples and returns to the callers, in all code that ran. Attributes are followed by name, whoever has
them. One use that does more than move the value, or that is not understood, makes the read one that counts.
"""

from __future__ import annotations

import dis
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from capturekit.functions.code_reads import line_number, parameters_of, plain_steps
from capturekit.functions.code_watch import CodeWatch
from capturekit.functions.handed_on import call_of
from capturekit.functions.number_uses import NotArithmetic, takes
from capturekit.functions.state_changes import ASKED_FOR, OPENING, StateChanges, opens
from capturekit.model.class_layout import MISSING
from capturekit.model.host_reads import Read, Site
from capturekit.model.source_line import is_ours

#: What makes a plain value of an array: a function, or methods.
_BY_FUNCTION, _BY_METHOD = 'float', frozenset({'item', 'get'})
#: A function of CuPy.
_COPIES = 'asnumpy'
_OPERATORS = ('BINARY_ADD', 'BINARY_SUBTRACT', 'BINARY_MULTIPLY', 'BINARY_TRUE_DIVIDE')
_PLAIN_CALLS = ('CALL', 'CALL_FUNCTION', 'CALL_METHOD')
_LOADS = ('LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_ATTR', 'LOAD_METHOD', 'LOAD_DEREF')
_KNOWN: dict[str, Any] = {'len': len, 'float': float, 'list': list, 'tuple': tuple}
_MAKES_ARRAYS = frozenset({'array', 'asarray'})
_NUMPYS = {name: getattr(np, name) for name in _MAKES_ARRAYS}
#: The types of functions that return what the code they call returns: Python's, and those that NumPy dispatches.
_RETURN: tuple[Any, ...] = (FunctionType, type(np.sum))
_GENERATORS = 0x2A0
#: The dtypes of numbers that are followed, and of arrays.
_NUMBERS, _ARRAYS = ('f4', 'f8'), ('f4', 'f8', 'c8', 'c16', 'i4', 'i8', 'u4', 'u8')


class Counts(Exception):
    """A value is used in a way that does more than keep it."""


class Part(NamedTuple):
    """A tuple or a list of so many items, one of which holds the value."""

    number: int
    length: int
    what: Any


#: What is followed: the value or what holds it and only moves, a list or an array of such values, or a tuple.
_VALUE, _LIST = 'value', 'list'


class _Code(NamedTuple):
    code: CodeType
    steps: list[dis.Instruction]
    offsets: list[int]
    lines: set[int] | None

    def number(self, offset: int) -> int:
        """The number of the instruction that is under way; a call may stand at the end of its cache."""
        return bisect_right(self.offsets, offset) - 1

    def ran(self, place: int) -> bool:
        return self.lines is None or (line_number(self.steps[place]) or 0) in self.lines


def kept_reads(watch: CodeWatch, changes: StateChanges, reads: Sequence[Read]) -> frozenset[int]:
    """The numbers of the reads of a run whose values are only kept."""
    if watch._everything or not any(map(_is_followed, reads)):
        return frozenset()
    program = _Program(watch, changes)
    known: dict[Any, bool] = {}
    found = set()
    for number, read in enumerate(reads):
        if read.site is None or not _is_followed(read):
            continue
        key = read.site, read.value.size == 1, len(read.signature)
        if key not in known:
            known[key] = program.only_keeps(*key)
        if known[key]:
            found.add(number)
    return frozenset(found)


def kept_times(watch: CodeWatch) -> tuple[dict[str, str], list[Site]]:
    """The attributes in which readings of a clock end, each with a sentence, and the readings that may get elsewhere.

    A time may be reckoned with: nothing that is made of it reaches the caller.
    """
    names: dict[str, str] = {}
    others: list[Site] = []
    program = _Program(watch) if watch._readings and not watch._everything else None
    for site, sentence in watch._readings.items():
        found = None if program is None else program.names_of_times(site)
        if found is None:
            others.append(site)
        else:
            names |= dict.fromkeys(found, sentence)
    return names, others


def _is_followed(read: Read) -> bool:
    kind = read.value.dtype.str[1:]
    single = read.value.size == 1 and kind in _NUMBERS
    return read.site is not None and (single or (read.value.size > 1 and kind in _ARRAYS))


class _Program:
    """The code that ran, and how values go through it. ``changes``: those that launches make again, if any."""

    def __init__(self, watch: CodeWatch, changes: StateChanges | None = None) -> None:
        self._watch = watch
        own = [code for code, foreign in watch._codes.values() if not foreign]
        self._codes = {id(code): _code(code, watch._lines.of(code)) for code in own}
        self._foreign = {
            name
            for code, foreign in watch._codes.values()
            if foreign and not is_ours(code.co_filename)
            for name in code.co_names
        }
        self._opened = any(not OPENING.isdisjoint(code.co_names) for code in own)
        self._opened = self._opened or any(map(opens, watch._entries.values()))
        #: The calls, and other instructions, from which Python code was entered.
        self._entered = {
            (key, self._codes[key].number(offset))
            for callers in watch._callers.values()
            for key, offset in filter(None, callers)
            if key in self._codes
        }
        self._grown = set() if changes is None else {place.entry.key for place in changes.growing()}

    def only_keeps(self, site: Site, single: bool, depth: int) -> bool:
        """Whether all values that are read at a call are only kept.

        ``single``: of arrays with one element. ``depth``: how many functions are under way for it, with the user's.
        """
        code = self._codes.get(id(site.code))
        if code is None or self._opened:
            return False
        try:
            place = code.number(site.offset)
            if not self._reads(code, place, single, depth):
                return False
            _Flow(self).all_of(code, place)
        except (Counts, NotArithmetic):
            return False
        return True

    def names_of_times(self, site: Site) -> set[str] | None:
        """The attributes that get what is made of a time that is read at a call; None if the caller may get it."""
        code = self._codes.get(id(site.code))
        if code is None or self._opened:
            return None
        try:
            flow = _Flow(self, True)
            flow.all_of(code, code.number(site.offset))
        except (Counts, NotArithmetic):
            return None
        return flow.attributes

    def _reads(self, code: _Code, place: int, single: bool, depth: int) -> bool:
        """Whether the call there makes a number of an array, or copies the array to the host."""
        if single and self.callee(code, place, {_BY_FUNCTION}) == _BY_FUNCTION:
            return code.steps[place].arg == 1
        if depth < 3 and self.callee(code, place, {_COPIES}) == _COPIES:
            return code.steps[place].arg == 1 and code.steps[place].opname in _PLAIN_CALLS
        if depth > 1:
            return False
        name = self.callee(code, place, _BY_METHOD)
        return name is not None and not code.steps[place].arg and (name == 'get' or single)

    def callee(self, code: _Code, place: int, names: Iterable[str]) -> str | None:
        """The name, one of these, under which a call loads what it calls, if that is what it is in CuPy or Python."""
        number = self.loaded(code, place)
        if number is None or (id(code.code), place) in self._entered:
            return None
        step = code.steps[number]
        name = step.argval
        if name not in names:
            return None
        if name in _KNOWN:
            is_it = self._is_global(code, step, _KNOWN[name])
        elif name == _COPIES:
            is_it = self._is_always(name, getattr(sys.modules.get('cupy'), name, None))
        elif name in _MAKES_ARRAYS:
            before = code.steps[number - 1]
            is_it = self._is_global(code, before, np) and getattr(np, name) is _NUMPYS[name]
        else:
            is_it = step.opname in ('LOAD_ATTR', 'LOAD_METHOD')
        return name if is_it else None

    def enters(self, code: _Code, place: int) -> bool:
        """Whether an instruction has entered code written in Python."""
        return (id(code.code), place) in self._entered

    def loaded(self, code: _Code, place: int) -> int | None:
        """The number of the instruction that loads what a call calls."""
        for number in range(place - 1, -1, -1):
            if code.steps[number].opname in _LOADS and call_of(code.steps, number) == place:
                return number
        return None

    def _is_always(self, name: str, value: Any) -> bool:
        """Whether this name has this value wherever the code that ran names it."""
        found = [entry.value for entry in self._watch._entries.values() if entry.key == name]
        return bool(found) and all(one is value for one in found) and not self.stores(name)

    def _is_global(self, code: _Code, step: dis.Instruction, value: Any) -> bool:
        """Whether an instruction loads a global or a builtin that is this value."""
        return step.opname in ('LOAD_GLOBAL', 'LOAD_NAME') and self._global(code, step.argval) is value

    def _global(self, code: _Code, name: str) -> Any:
        """The global or builtin that code finds under a name while it runs; MISSING if that may change."""
        if self.stores(name, ('_GLOBAL', '_NAME')):
            return MISSING
        _, own = self._watch._globals_of.get(id(code.code), (None, 0))
        found = [entry for entry in self._watch._entries.values() if entry.kind == 'global' and entry.key == name]
        mine = [one.value for one in found if id(one.mapping) == own]
        mine = mine or [one.value for one in found if one.where().startswith('builtin ')]
        return mine[0] if mine else MISSING

    def stores(self, name: str, kinds: tuple[str, ...] = ('_GLOBAL', '_NAME', '_ATTR', '_DEREF')) -> bool:
        """Whether code stores something under a name that other code may load."""
        return any(
            step.argval == name and step.opname.startswith(('STORE_', 'DELETE_')) and step.opname.endswith(kinds)
            for code in self._codes.values()
            for step in code.steps
        )

    def callers(self, code: _Code) -> Iterable[tuple[_Code, int] | None]:
        """The calls to which code returns: directly. None: to the caller of the whole. Raises Counts."""
        if code.code.co_flags & _GENERATORS:
            raise Counts
        for caller in self._watch._callers.get(id(code.code), ()):
            if caller is None:
                yield None
                continue
            outer = self._codes.get(caller[0])
            if outer is None or not self._calls_a_function(outer, outer.number(caller[1])):
                raise Counts
            yield outer, outer.number(caller[1])

    def _calls_a_function(self, code: _Code, place: int) -> bool:
        """Whether the call there calls a function written in Python, and nothing that calls others."""
        number = self.loaded(code, place) if code.steps[place].opname.startswith('CALL') else None
        if number is None:
            return False
        name = code.steps[number].argval
        found = [entry.value for entry in self._watch._entries.values() if entry.key == name]
        plain = bool(found) and all(type(one) in _RETURN for one in found)
        return plain and name not in self._watch._strings and not self.stores(name)

    def attribute(self, name: str) -> Iterable[tuple[_Code, int]]:
        """All places where code that ran names an attribute. Raises Counts if other code may see it."""
        hidden = name.startswith('__') or name in ASKED_FOR or name in self._watch._strings or name in self._foreign
        if hidden or any(hasattr(cls, name) for cls in (np.ndarray, np.generic, self._watch._array)):
            raise Counts
        for code in self._codes.values():
            for place, step in enumerate(code.steps):
                if step.argval != name or step.opcode not in dis.hasname or not code.ran(place):
                    continue
                if (id(code.code), place) in self._entered:
                    raise Counts  # a property
                if not self._of_module(code, place):
                    yield code, place

    def _of_module(self, code: _Code, place: int) -> bool:
        """Whether an instruction loads an attribute of a module, whose attributes are compared."""
        before = code.steps[place - 1] if place and code.steps[place].opname in ('LOAD_ATTR', 'LOAD_METHOD') else None
        if before is None or before.opname != 'LOAD_GLOBAL':
            return False
        return type(self._global(code, before.argval)) is ModuleType

    def codes(self, owner: int = 0) -> list[_Code]:
        """The code with this id; all code that ran if that is 0."""
        return [self._codes[owner]] if owner else list(self._codes.values())

    def grows(self, name: str) -> bool:
        """Whether launches append to a list of this name, which was there before and of which nothing else is made."""
        return name in self._grown


def _code(code: CodeType, lines: set[int] | None) -> _Code:
    steps = plain_steps(code)
    return _Code(code, steps, [step.offset for step in steps], lines)


class _Flow:
    """Follows one value through the code that ran. Raises Counts where it does more than move.

    ``of_time``: it may be reckoned with, and must not reach the caller.
    """

    def __init__(self, program: _Program, of_time: bool = False) -> None:
        self._program = program
        self._of_time = of_time
        #: The attributes that get the value.
        self.attributes: set[str] = set()
        self._todo: list[tuple[_Code, int, int, Any]] = []
        self._seen: set[Any] = set()
        #: The names under which code has lists that hold values, and the stores that put known things there.
        self._lists: set[tuple[int, str]] = set()
        self._stored: set[tuple[int, int]] = set()

    def all_of(self, code: _Code, place: int) -> None:
        """Follow what the call there gives."""
        self._add(code, place, 0, _VALUE)
        while self._todo:
            self._follow(*self._todo.pop())
        for owner, name in self._lists:
            self._must_be_made(owner, name)

    def _add(self, code: _Code, place: int, above: int, what: Any) -> None:
        key = id(code.code), place, above, what
        if key not in self._seen:
            self._seen.add(key)
            self._todo.append((code, place, above, what))

    def _follow(self, code: _Code, place: int, above: int, what: Any) -> None:
        """Follow what lies under ``above`` others when an instruction is done, to the one that takes it."""
        for number in range(place + 1, len(code.steps)):
            one = code.steps[number]
            if one.is_jump_target:
                break
            if one.opname == 'SWAP' and above in (0, (one.arg or 0) - 1):
                above = (one.arg or 0) - 1 - above
                continue
            if takes(one) > above:
                return self._taken(code, number, above, what)
            above += dis.stack_effect(one.opcode, one.arg, jump=False)
        raise Counts

    def _taken(self, code: _Code, number: int, above: int, what: Any) -> None:
        one = code.steps[number]
        kind = one.opname
        if kind in ('POP_TOP', 'IS_OP'):
            return
        if kind == 'STORE_FAST':
            self._stored.add((id(code.code), number))
            self._local(code, one.argval, what)
        elif kind == 'STORE_ATTR' and above == 1:
            self._stored.add((id(code.code), number))
            self._attribute(one.argval, what)
        elif kind == 'RETURN_VALUE':
            self._returned(code, what)
        elif kind.startswith('BUILD_'):
            self._add(code, number, 0, _built(one, above, what))
        elif kind == 'UNPACK_SEQUENCE':
            for position, part in _parts(what, one.arg or 0):
                self._add(code, number, position, part)
        elif kind in ('BINARY_SUBSCR', 'STORE_SUBSCR') and above == 1:
            self._item(code, number, what)
        elif kind in ('LOAD_ATTR', 'LOAD_METHOD'):
            self._asked(code, number, what)
        elif kind in _PLAIN_CALLS and above < (one.arg or 0):
            self._given(code, number, what)
        elif self._of_time and what == _VALUE and _reckons(one) and not self._program.enters(code, number):
            self._add(code, number, 0, _VALUE)
        else:
            raise Counts

    def _returned(self, code: _Code, what: Any) -> None:
        for caller in self._program.callers(code):
            if caller is not None:
                self._add(*caller, 0, what)
            elif self._of_time:
                raise Counts

    def _item(self, code: _Code, number: int, what: Any) -> None:
        loads, index = code.steps[number].opname == 'BINARY_SUBSCR', code.steps[number - 1]
        if type(what) is not Part:
            if not loads:
                raise Counts
            self._add(code, number, 0, _VALUE)
            return
        if index.opname not in ('LOAD_CONST', 'LOAD_SMALL_INT') or type(index.argval) is not int:
            raise Counts
        if loads and index.argval % what.length == what.number:
            self._add(code, number, 0, what.what)

    def _asked(self, code: _Code, number: int, what: Any) -> None:
        """A method of a list is loaded: only to append something, whatever it is."""
        step = code.steps[number]
        call = call_of(code.steps, number)
        if what != _LIST or step.argval != 'append' or call is None or code.steps[call].arg != 1:
            raise Counts

    def _given(self, code: _Code, number: int, what: Any) -> None:
        """A function gets the value as an argument: one that only makes another value of the same number of it."""
        one = code.steps[number]
        name = self._program.callee(code, number, {'append', *_KNOWN, *_MAKES_ARRAYS})
        if name is None or one.arg != 1:
            raise Counts
        if name == 'append':
            load = self._program.loaded(code, number)
            assert load is not None
            self._list(code, code.steps[load - 1])
        elif name == 'float' and what == _VALUE:
            self._add(code, number, 0, _VALUE)
        elif name in _MAKES_ARRAYS and what == _LIST:
            self._add(code, number, 0, _LIST)
        elif name in ('list', 'tuple') and type(what) is Part:
            self._add(code, number, 0, what)
        elif name != 'len' or what == _VALUE:
            raise Counts

    def _list(self, code: _Code, loads: dis.Instruction) -> None:
        """A value is appended to what an instruction loads."""
        name = loads.argval
        if loads.opname.startswith('LOAD_FAST'):
            self._lists.add((id(code.code), name))
            self._local(code, name, _LIST)
        elif loads.opname == 'LOAD_ATTR' and 'NULL' not in loads.argrepr:
            self._lists.add((0, name))
            self._attribute(name, _LIST)
        elif not (loads.opname in ('LOAD_GLOBAL', 'LOAD_DEREF') and self._program.grows(name)):
            raise Counts

    def _local(self, code: _Code, name: str, what: Any) -> None:
        """Follow what is in a local variable, from all instructions that load it."""
        if name in code.code.co_cellvars or name in code.code.co_freevars:
            raise Counts
        for place, step in enumerate(code.steps):
            if step.argval != name or 'FAST' not in step.opname or not code.ran(place):
                continue
            if step.opname in ('LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW'):
                self._add(code, place, 0, what)
            elif step.opname not in ('STORE_FAST', 'DELETE_FAST'):
                raise Counts

    def _attribute(self, name: str, what: Any) -> None:
        """Follow what is in an attribute of this name, from all instructions that load it."""
        self.attributes.add(name)
        for code, place in self._program.attribute(name):
            step = code.steps[place]
            if step.opname == 'LOAD_ATTR' and 'NULL' not in step.argrepr:
                self._add(code, place, 0, what)
            elif step.opname not in ('STORE_ATTR', 'DELETE_ATTR', 'LOAD_GLOBAL'):
                raise Counts

    def _must_be_made(self, owner: int, name: str) -> None:
        """Raise if another list than one that the run has just made may be under this name."""
        codes = self._program.codes(owner)
        stores = [
            (code, place)
            for code in codes
            for place, step in enumerate(code.steps)
            if step.argval == name and step.opname == ('STORE_FAST' if owner else 'STORE_ATTR') and code.ran(place)
        ]
        if owner and name in parameters_of(codes[0].code):
            raise Counts
        if not stores and not (not owner and self._program.grows(name)):
            raise Counts
        for code, place in stores:
            above = 1 if owner else 2
            plain = owner or code.steps[place - 1].opname in ('LOAD_FAST', 'LOAD_FAST_BORROW', 'LOAD_DEREF')
            if (id(code.code), place) not in self._stored and not (plain and _is_new_list(code, place - above)):
                raise Counts


def _is_new_list(code: _Code, place: int) -> bool:
    """Whether the instruction there makes a list of constants."""
    one = code.steps[place] if place >= 0 else None
    if one is None or one.opname != 'BUILD_LIST' or (one.arg or 0) > place:
        return False
    return all(step.opname in ('LOAD_CONST', 'LOAD_SMALL_INT') for step in code.steps[place - (one.arg or 0) : place])


def _reckons(one: dis.Instruction) -> bool:
    """Whether an instruction makes a new number of two."""
    return one.opname in _OPERATORS or (one.opname == 'BINARY_OP' and one.argrepr in ('+', '-', '*', '/'))


def _built(one: dis.Instruction, above: int, what: Any) -> Any:
    """What a container that is built of the value is."""
    count = one.arg or 0
    if one.opname == 'BUILD_TUPLE':
        return Part(count - 1 - above, count, what)
    if one.opname == 'BUILD_LIST' or (one.opname == 'BUILD_MAP' and not above % 2):
        return _VALUE
    if one.opname == 'BUILD_CONST_KEY_MAP' and above:
        return _VALUE
    raise Counts


def _parts(what: Any, count: int) -> list[tuple[int, Any]]:
    """The items of what is unpacked that hold the value: how many lie above each, and what each is."""
    if type(what) is not Part:
        return [(position, _VALUE) for position in range(count)]
    if what.length != count:
        raise Counts
    return [(what.number, what.what)]
