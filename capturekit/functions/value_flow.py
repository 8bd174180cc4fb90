"""Follows a value through the code that ran, to find out whether it is only kept."""

from __future__ import annotations

import dis
from typing import Any, NamedTuple

from capturekit.functions.code_that_ran import ASKS, KNOWN, MAKES_ARRAYS, CodeThatRan, Counts, RanCode
from capturekit.functions.instructions import call_of, loader_of, parameters_of
from capturekit.functions.number_arguments import is_operator, takes
from capturekit.functions.outcomes import COMPARISONS, ComparedOperand, ReadOutcome

#: So many tuples in each other are followed: code that calls itself may put each that it gets into another.
_DEEPEST = 8
LOADS_CONSTANT = ('LOAD_CONST', 'LOAD_SMALL_INT')
#: The types of constant ends of slices.
_ENDS = (int, type(None))
_FAST = ('LOAD_FAST', 'LOAD_FAST_BORROW')


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


class StackedValue(NamedTuple):
    """The value on the stack, when the instruction of this number is done.

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
        """What another instruction of the same code has made of it."""
        return self._replace(place=place, above=above, what=what)


class ValueFlow:
    """Follows one value through the code that ran. Raises Counts where it does more than move.

    ``of_time``: it may be reckoned with, and must not reach the caller. ``of_number``: it is a number of Python, which
    may be compared. ``of_any_use``: operators may take it, which are only noted.
    """

    def __init__(
        self, program: CodeThatRan, of_time: bool = False, of_number: bool = False, of_any_use: bool = False
    ) -> None:
        self._program = program
        self._of_time, self._of_number, self._of_any_use = of_time, of_number, of_any_use
        #: The operators that take it.
        self.operators: set[tuple[RanCode, int]] = set()
        #: The attributes that get the value; and what decides something about it.
        self.attributes: set[str] = set()
        self.outcomes: set[ReadOutcome] = set()
        self._todo: list[StackedValue] = []
        self._seen: set[Any] = set()
        #: The names of attributes where the value is stored.
        self.stores: set[str] = set()
        #: The names under which code has lists that hold values, and the stores that put known things there.
        self._lists: set[tuple[int, str]] = set()
        self._stored: set[tuple[int, int]] = set()

    def all_of(self, code: RanCode, place: int) -> None:
        """Follow what the call there gives."""
        self._add(StackedValue(code, place, 0, _VALUE, True))
        self._to_the_end()

    def _to_the_end(self) -> None:
        while self._todo:
            self._follow(self._todo.pop())
        for owner, name in self._lists:
            self._must_be_made(owner, name)

    def all_of_parameter(self, code: RanCode, name: str) -> None:
        """Follow what a function gets as an argument."""
        self._local(StackedValue(code, 0, 0, _VALUE, True), name)
        self._to_the_end()

    def all_of_attribute(self, name: str) -> None:
        """Follow what is in the attributes of a name."""
        self._attribute(name, _VALUE)
        self._to_the_end()

    def _add(self, held: StackedValue) -> None:
        key = id(held.code.code), *held[1:]
        if key not in self._seen:
            self._seen.add(key)
            self._todo.append(held)

    def _follow(self, held: StackedValue) -> None:
        """Follow what lies on the stack to the instruction that takes it."""
        above = held.above
        for number in range(held.place + 1, len(held.code.steps)):
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
            if takes(one) > above:  # Python 3.11 takes the arguments just before the call
                return self._taken(held, number + (one.opname == 'PRECALL'), above)
            above += dis.stack_effect(one.opcode, one.arg, jump=False)
        raise Counts

    def _taken(self, held: StackedValue, number: int, above: int) -> None:
        code, one = held.code, held.code.steps[number]
        kind = one.opname
        if kind == 'POP_TOP' or (kind == 'IS_OP' and not self._of_any_use):
            return
        if kind == 'STORE_FAST':
            self._stored.add((id(code.code), number))
            self._local(held, one.argval)
        elif kind == 'STORE_ATTR' and above == 1:
            self._put_in_attribute(held, number)
        elif kind == 'RETURN_VALUE':
            self._returned(held)
        elif kind.startswith('BUILD_'):
            self._add(held.after(number, 0, _built(one, above, held.what)))
        elif kind == 'UNPACK_SEQUENCE':
            for position, part in _parts(held.what, one.arg or 0):
                self._add(held.after(number, position, part))
        elif kind in ('BINARY_SUBSCR', 'STORE_SUBSCR') and above == 1:
            self._item(held, number)
        elif kind == 'BINARY_SLICE' and above == 2 and type(held.what) is ContainerPart:
            self._some_items(held, number, _slice_before(code.steps, number))
        elif kind in ('LOAD_ATTR', 'LOAD_METHOD'):
            self._asked(code, number, held.what)
        elif kind == 'CALL' and above < (one.arg or 0):
            self._given(held, number, above)
        elif kind == 'CALL_KW' and 0 < above <= (one.arg or 0):
            names = code.steps[number - 1].argval
            self._passed(held, number, (one.arg or 0) - above, names if type(names) is tuple else ())
        elif held.what in _NUMBERS:
            self._reckoned(held, number, above)
        else:
            raise Counts

    def _put_in_attribute(self, held: StackedValue, number: int) -> None:
        """Follow what is stored into an attribute of an object that is loaded just before."""
        one, before = held.code.steps[number], held.code.steps[number - 1].opname
        in_place = self._of_any_use and before == 'SWAP'  # x.a += ...
        if not before.startswith('LOAD_') and not in_place:
            raise Counts  # nobody has seen the object
        self._stored.add((id(held.code.code), number))
        self.stores.add(one.argval)
        self._attribute(one.argval, held.what)

    def _reckoned(self, held: StackedValue, number: int, above: int) -> None:
        """An operator takes the value."""
        one = held.code.steps[number]
        if self._of_any_use:
            if not is_operator(one) or (held.what == _PERHAPS and _lists_have(one)):
                raise Counts
            self.operators.add((held.code, number))
        elif self._of_time and _reckons(one) and number not in held.code.entering:
            self._add(held.after(number))
        elif self._of_number and one.opname == 'COMPARE_OP' and one.argval in COMPARISONS:
            self.outcomes.add(ReadOutcome(one.argval, self._operand(held, number, above), above == 0))
        else:
            raise Counts

    def _operand(self, held: StackedValue, number: int, above: int) -> ComparedOperand:
        """What the value is compared with: what is loaded just after it, or just before."""
        steps = held.code.steps
        loads = steps[held.place + 1 : number] if above else steps[max(held.place - 1, 0) : held.place]
        if len(loads) != 1 or (not above and (number != held.place + 1 or steps[held.place].is_jump_target)):
            raise Counts
        found, name = None, loads[0].argval
        if loads[0].opname in LOADS_CONSTANT:
            found = name
        elif loads[0].opname in _FAST and held.here and _is_parameter(held.code, name):
            return ComparedOperand(name)
        elif loads[0].opname == 'LOAD_GLOBAL':
            found = self._program.global_in(held.code, name)
        elif loads[0].opname == 'LOAD_DEREF':
            found = self._program.variable_of_closures(name)
        if type(found) not in (int, float):
            raise Counts
        return ComparedOperand('', found)

    def _returned(self, held: StackedValue) -> None:
        for caller in self._program.callers(held.code, held.callers):
            if caller is not None:
                self._add(StackedValue(caller.code, caller.place, 0, held.what, False, caller.callers))
            elif self._of_time:
                raise Counts

    def _item(self, held: StackedValue, number: int) -> None:
        steps, what = held.code.steps, held.what
        loads, index = steps[number].opname == 'BINARY_SUBSCR', steps[number - 1]
        if type(what) is not ContainerPart:
            for item in _items(what, index) if loads else ():
                self._add(held.after(number, 0, item))
            if not loads:
                raise Counts
            return
        if loads and (index.opname == 'BUILD_SLICE' or type(index.argval) is slice):
            return self._some_items(held, number, _slice_before(steps, number - 1, index))
        if index.opname not in LOADS_CONSTANT or type(index.argval) is not int:
            raise Counts
        if loads and index.argval % what.length == what.number:
            self._add(held.after(number, 0, what.what))

    def _some_items(self, held: StackedValue, number: int, of: slice | None) -> None:
        """Some items of a tuple are taken."""
        if of is None:
            raise Counts
        taken = range(held.what.length)[of]
        if held.what.number in taken:
            self._add(held.after(number, 0, ContainerPart(taken.index(held.what.number), len(taken), held.what.what)))

    def _asked(self, code: RanCode, number: int, what: Any) -> None:
        """A method of a list is loaded: only to append something, whatever it is."""
        step = code.steps[number]
        call = call_of(code.steps, number)
        if not _is_list(what) or step.argval != 'append' or call is None or code.steps[call].arg != 1:
            raise Counts

    def _passed(self, held: StackedValue, number: int, position: int, names: tuple[str, ...]) -> None:
        """A function of the user's gets the value as an argument; ``names``: those of the last arguments."""
        if not self._of_any_use or _is_list(held.what):
            raise Counts
        for code, parameter, caller in self._program.parameters(held.code, number, position, names):
            self._local(StackedValue(code, 0, 0, held.what, False, frozenset({caller})), parameter)

    def _given(self, held: StackedValue, number: int, above: int) -> None:
        """A function gets the value as an argument: one that only makes another value of the same number of it."""
        code, what = held.code, held.what
        if number in code.entering:
            self._passed(held, number, (code.steps[number].arg or 0) - 1 - above, names_below(code, number))
            return
        if self._of_any_use and what in _NUMBERS and self._is_function_of_numbers(code, number, what):
            self.operators.add((code, number))
            return
        name = self._program.callee(code, number, {'append', *KNOWN, *MAKES_ARRAYS, *ASKS})
        if name is None or code.steps[number].arg != 1:
            raise Counts
        if name == 'append':
            load = loader_of(code.steps, number)
            assert load is not None
            self._list(code, code.steps[load - 1], _in_a_list(what))
        elif name == 'float' and what in _NUMBERS:
            self._add(held.after(number))
        elif name in ('list', 'tuple') and type(what) is ContainerPart:
            self._add(held.after(number, 0, what))
        elif name in MAKES_ARRAYS and _is_list(what) and not self._of_any_use:
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

    def _list(self, code: RanCode, loads: dis.Instruction, what: Items) -> None:
        """A value is appended to what an instruction loads, which is a list of such then."""
        name = loads.argval
        if loads.opname.startswith('LOAD_FAST'):
            self._lists.add((id(code.code), name))
            self._local(StackedValue(code, 0, 0, what, False), name)
        elif loads.opname == 'LOAD_ATTR' and 'NULL' not in loads.argrepr:
            self._lists.add((0, name))
            self._attribute(name, what)
        elif not (loads.opname in ('LOAD_GLOBAL', 'LOAD_DEREF') and self._program.grows(name)):
            raise Counts

    def _local(self, held: StackedValue, name: str) -> None:
        """Follow what is in a local variable, from all instructions that load it."""
        code = held.code
        if name in code.code.co_cellvars or name in code.code.co_freevars:
            raise Counts
        for place, step in enumerate(code.steps):
            if step.argval != name or 'FAST' not in step.opname or not code.ran(place):
                continue
            if step.opname in (*_FAST, 'LOAD_FAST_CHECK'):
                self._add(held.after(place, 0, held.what))
            elif step.opname not in ('STORE_FAST', 'DELETE_FAST'):
                raise Counts

    def _attribute(self, name: str, what: Any) -> None:
        """Follow what is in an attribute of this name, from all instructions that load it."""
        self.attributes.add(name)
        for code, place in self._program.attribute(name):
            step = code.steps[place]
            by_name = step.opname in ('LOAD_GLOBAL', 'LOAD_NAME') and call_of(code.steps, place) is None
            if by_name or (step.opname == 'LOAD_ATTR' and 'NULL' not in step.argrepr):
                self._add(StackedValue(code, place, 0, what, False))  # a global is an attribute of its module
            elif step.opname not in ('STORE_ATTR', 'DELETE_ATTR', 'LOAD_GLOBAL', 'LOAD_NAME'):
                raise Counts

    def _must_be_made(self, owner: int, name: str) -> None:
        """Raise if another list than one that the run has just made may be under this name."""
        codes = self._program.codes(owner)
        kind = 'STORE_FAST' if owner else 'STORE_ATTR'
        named = [code for code in codes if name in code.names]
        every = [(code, place) for code in named for place, step in enumerate(code.steps) if step.argval == name]
        stores = [(code, place) for code, place in every if code.steps[place].opname == kind and code.ran(place)]
        if owner and name in parameters_of(codes[0].code):
            raise Counts
        if not stores and not (not owner and self._program.grows(name)):
            raise Counts
        for code, place in stores:
            if (id(code.code), place) not in self._stored and not _stores_a_new_list(code, place):
                raise Counts


def _moved(one: dis.Instruction, above: int) -> tuple[int, ...] | None:
    """How many values lie above a value, and above a copy of it, behind an instruction that only moves and copies what
    lies on the stack; None for another instruction."""
    count = one.arg or 0
    if one.opname == 'SWAP':
        return (count - 1 - above if above in (0, count - 1) else above,)
    if one.opname == 'COPY':
        return (above + 1, 0) if above == count - 1 else (above + 1,)
    return None


def names_below(code: RanCode, number: int) -> tuple[str, ...]:
    """The names of the last arguments of a call, which Python 3.11 and 3.12 tell just before it."""
    for one in code.steps[max(number - 2, 0) : number]:
        if one.opname == 'KW_NAMES':
            names: tuple[str, ...] = code.code.co_consts[one.arg or 0]
            return names
    return ()


def _asks_for_none(steps: list[dis.Instruction], number: int, above: int) -> bool:
    """Whether an instruction asks whether the value is None."""
    if steps[number].opname == 'IS_OP':
        return above == 1 and steps[number - 1].opname == 'LOAD_CONST' and steps[number - 1].argval is None
    return above == 0 and steps[number].opname.startswith('POP_JUMP_') and steps[number].opname.endswith('_NONE')


def _stores_a_new_list(code: RanCode, place: int) -> bool:
    """Whether a store, to which nothing jumps, puts a list there that is made just before."""
    steps, above = code.steps, 1
    if steps[place].opname == 'STORE_ATTR':
        above = 2
        if place < 2 or steps[place - 1].opname not in (*_FAST, 'LOAD_DEREF'):
            return False
    if place < above or steps[place - above].opname != 'BUILD_LIST':
        return False
    return not any(step.is_jump_target for step in steps[place - above + 1 : place + 1])


def _slice_before(steps: list[dis.Instruction], number: int, made: dis.Instruction | None = None) -> slice | None:
    """The slice with constant ends that an instruction takes, or makes, or is; None if it is none."""
    if made is not None and type(made.argval) is slice:
        return made.argval
    ends = steps[max(number - 2, 0) : number]
    constant = len(ends) == 2 and all(one.opname in LOADS_CONSTANT and type(one.argval) in _ENDS for one in ends)
    return slice(*[one.argval for one in ends]) if constant and (made is None or made.arg == 2) else None


def _is_parameter(code: RanCode, name: str) -> bool:
    """Whether a variable is a parameter that gets no other value."""
    stores = any(step.argval == name and step.opname.startswith(('STORE_', 'DELETE_')) for step in code.steps)
    return name in parameters_of(code.code) and name not in code.code.co_cellvars and not stores


def _reckons(one: dis.Instruction) -> bool:
    """Whether an instruction makes a new number of two."""
    return one.opname == 'BINARY_OP' and one.argrepr in ('+', '-', '*', '/')


def _built(one: dis.Instruction, above: int, what: Any) -> Any:
    """What a container that is built of the value is."""
    count = one.arg or 0
    if one.opname == 'BUILD_TUPLE':
        if _depth(what) == _DEEPEST:
            raise Counts
        return ContainerPart(count - 1 - above, count, what)
    if one.opname == 'BUILD_LIST':
        return _in_a_list(what)
    if (one.opname == 'BUILD_MAP' and not above % 2) or (one.opname == 'BUILD_CONST_KEY_MAP' and above):
        return _in_a_list(what)._replace(by_keys=True)
    raise Counts


def _in_a_list(what: Any) -> Items:
    """A list of which an item is this."""
    if _depth(what) == _DEEPEST:
        raise Counts
    return Items(what)


def _is_list(what: Any) -> bool:
    return type(what) is Items and not what.by_keys


def _items(what: Any, index: dis.Instruction) -> list[Any]:
    """What an item of something by an index may be that holds the value."""
    if type(what) is Items and what.by_keys:
        return [what.what]
    slices = index.opname == 'BUILD_SLICE' or type(index.argval) is slice
    if slices or what == _VALUE:
        return [what]  # an item of the value is one of an array that was read
    if index.opname in LOADS_CONSTANT and type(index.argval) is int:
        return [what.what if type(what) is Items else _VALUE]
    return [_PERHAPS] if what in (_LIST, _PERHAPS) else [what, what.what]


def _lists_have(one: dis.Instruction) -> bool:
    """Whether an operator may make one list of another."""
    return one.opname == 'BINARY_OP' and one.argrepr in _OF_LISTS


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
