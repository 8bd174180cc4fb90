"""What code reads, by its instructions: names of globals and attributes, imported modules, and what is unknown.

Nothing is run for this. If the instructions do not show which attribute is read, all of them count as read. What
instructions load is known where their line begins.

There are hundreds of modules, and each may be anything. So of ``sys.modules`` only those that code names are watched,
as those are which code imports. Where code does anything else with ``sys.modules``, all of them are.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from capturekit.functions.allowlists import FLAGS, INSTRUCTIONS, INTERFACES, OF_ARRAYS, OF_DEVICES, OUT_OF_SIGHT
from capturekit.functions.number_arguments import takes
from capturekit.model.class_layout import MISSING, among, dictionary_of_class, found_in_class, layout_of

#: Instructions that name an attribute, a global or a variable of a closure. Python 3.14 lists LOAD_DEREF elsewhere.
NAMING = frozenset({*dis.hasname, *dis.hasfree, dis.opmap['LOAD_DEREF']})


def names_shown(instructions: list[dis.Instruction]) -> set[str]:
    """The names that instructions use; ``dis`` does not show how code uses any others."""
    return {one.argval for one in instructions if one.opcode in dis.hasname and type(one.argval) is str}


def line_number(instruction: dis.Instruction) -> int | None:
    """The line of an instruction; None for one that belongs to no line."""
    return instruction.positions.lineno if instruction.positions else None


def parameters_of(code: CodeType) -> tuple[str, ...]:
    """The names of all parameters."""
    variable = sum(bool(code.co_flags & flag) for flag in (CO_VARARGS, CO_VARKEYWORDS))
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variable]


def nested(code: CodeType) -> Iterator[CodeType]:
    """The code object and those in it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested(constant)


#: Instructions of code that was asked for last, with the code, by its id: a run asks several times for each.
_Known = dict[int, tuple[CodeType, list[dis.Instruction]]]
_instructions: _Known = {}
_steps: _Known = {}
_REMEMBERED = 1024


def instructions_of(code: CodeType) -> list[dis.Instruction]:
    """The instructions of code. Do not change the list."""
    return _remembered(_instructions, code, lambda code: map(_named_as_before, dis.get_instructions(code)))


def _named_as_before(one: dis.Instruction) -> dis.Instruction:
    """An instruction under the name of Python 3.13 that means the same; it keeps the number of its own Python."""
    name = one.opname.replace('_BORROW', '').replace('SMALL_INT', 'CONST')
    name = 'BINARY_SUBSCR' if name == 'BINARY_OP' and one.argrepr == '[]' else name
    return one if name == one.opname else one._replace(opname=name)


def single_steps(code: CodeType) -> list[dis.Instruction]:
    """The same, where an instruction that loads two variables is returned as two."""
    return _remembered(_steps, code, lambda code: [one for both in instructions_of(code) for one in _single(both)])


def _remembered(
    known: _Known, code: CodeType, make: Callable[[CodeType], Iterable[dis.Instruction]]
) -> list[dis.Instruction]:
    found = known.get(id(code))
    if found is None:
        if len(known) >= _REMEMBERED:
            known.clear()
        found = known[id(code)] = code, list(make(code))
    return found[1]


def plain_steps(code: CodeType) -> list[dis.Instruction]:
    """The same, where also an instruction that stores two variables, or stores and loads one, is returned as two."""
    return [part for one in single_steps(code) for part in _stored_apart(one)]


def _stored_apart(one: dis.Instruction) -> list[dis.Instruction]:
    kinds = {'STORE_FAST_STORE_FAST': 'STORE_FAST', 'STORE_FAST_LOAD_FAST': 'LOAD_FAST'}
    if one.opname not in kinds:
        return [one]
    names = zip(('STORE_FAST', kinds[one.opname]), one.argval)
    return [one._replace(opname=kind, opcode=dis.opmap[kind], argval=name) for kind, name in names]


def _single(instruction: dis.Instruction) -> list[dis.Instruction]:
    """An instruction, those of which it is made where it loads two variables, or none where it does nothing."""
    if instruction.opname in ('CACHE', 'EXTENDED_ARG', 'NOT_TAKEN'):
        return []
    if not instruction.opname.startswith('LOAD_FAST') or type(instruction.argval) is not tuple:
        return [instruction]
    load = dis.opmap['LOAD_FAST']
    return [instruction._replace(opname='LOAD_FAST', opcode=load, argval=name) for name in instruction.argval]


#: Instructions that load what a call calls.
_CALLED = ('LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_ATTR', 'LOAD_METHOD', 'LOAD_DEREF')
#: Instructions that put values into a new container.
_CONTAINERS = ('BUILD_TUPLE', 'BUILD_LIST', 'BUILD_SET', 'BUILD_MAP', 'BUILD_CONST_KEY_MAP', 'BUILD_SLICE')


def call_of(steps: list[dis.Instruction], number: int, through: bool = False) -> int | None:
    """The number of the instruction that takes the value loaded there from the stack, if it calls it; else None.

    The depth is counted from below the value. A call leaves its result in the place of the function. ``through``: an
    argument may be made by an inner function.
    """
    ends = ('STORE_', 'RETURN', 'YIELD') if through else ('STORE_', 'RETURN', 'YIELD', 'MAKE_FUNCTION')
    load = steps[number]
    only_called = load.opname == 'LOAD_ATTR' and 'NULL' in load.argrepr  # in this form it is loaded for a call only
    depth = dis.stack_effect(load.opcode, load.arg, jump=False)
    if load.opname == 'LOAD_ATTR':
        depth += 1 + _has_null_below(steps, number)
    elif load.opname == 'LOAD_METHOD' or (number and steps[number - 1].opname == 'PUSH_NULL'):
        depth += 1  # what a method is loaded from lies beside it until the call
    below = depth - 1 if sys.version_info < (3, 13) else 0  # since then what a method is loaded from lies above it
    for place, step in enumerate(steps[number + 1 :], number + 1):
        if step.opname in _CONTAINERS and depth - below <= takes(step):
            break  # the value is put into a container
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth < 1:
            break
        if depth == 1 and step.opname.startswith('CALL'):
            return place
        if 'JUMP' in step.opname or step.opname.startswith(ends):
            break
    return number if only_called else None


def loader_of(steps: list[dis.Instruction], call: int) -> int | None:
    """The number of the instruction that loads what a call calls, if only one can have loaded it."""
    for number in range(call - 1, -1, -1):
        if steps[number + 1].is_jump_target:
            return None
        step = steps[number]
        if step.opname in _CALLED and call_of(steps, number) == call:
            return None if step.is_jump_target and step.opname in ('LOAD_ATTR', 'LOAD_METHOD') else number
    return None


def _has_null_below(steps: list[dis.Instruction], number: int) -> bool:
    """Whether a place for a method lies on the stack below an attribute: Python 3.11 and 3.12 make it first."""
    while number and steps[number].opname == 'LOAD_ATTR':
        number -= 1
    root = steps[number]
    return 'NULL' in root.argrepr or (number > 0 and steps[number - 1].opname == 'PUSH_NULL')


_FAST = ('LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW')
_ROOTS = (*_FAST, 'LOAD_GLOBAL', 'LOAD_DEREF')
_MODULE_DICT = vars(ModuleType)['__dict__'].__get__


class LoadedValue(NamedTuple):
    """What instructions load: a variable or a global, and the attributes that are taken of it."""

    variable: str
    is_global: bool = False
    attributes: tuple[str, ...] = ()

    def value_in(self, frame: FrameType) -> Any:
        """The value that a frame has there; MISSING if code may have to run to find it."""
        values = frame.f_globals if self.is_global else frame.f_locals
        value = values.get(self.variable, MISSING)
        for name in self.attributes:
            value = _attribute_of(value, name)
        return value


def loaded_before(instructions: list[dis.Instruction], number: int) -> LoadedValue | None:
    """What was loaded just before an instruction; None if its value may be another one than when the line began."""
    attributes: list[str] = []
    place = number - 1
    while place > 0 and instructions[place].opname == 'LOAD_ATTR':
        attributes.insert(0, instructions[place].argval)
        place -= 1
    root = instructions[max(place, 0)]
    is_global = root.opname == 'LOAD_GLOBAL'
    is_of_closure = root.opname == 'LOAD_DEREF'
    if place < 0 or not (is_global or is_of_closure or root.opname in _FAST):
        return None
    line = line_number(instructions[number])
    before = [one.opname for one in instructions[:place] if line_number(one) in (line, None)]
    if line is None or line_number(root) != line or (not is_global and _is_stored(instructions, root.argval, line)):
        return None
    if (is_global or is_of_closure or attributes) and any(kind.startswith(_CHANGES) for kind in before):
        return None
    return LoadedValue(root.argval, is_global, tuple(attributes))


def dictionary_asked(instructions: list[dis.Instruction], number: int) -> LoadedValue | None:
    """The object whose ``__dict__`` an instruction loads, if the code asks that at once for an item by ``get``."""
    following = instructions[number + 1 : number + 2]
    asks = any(one.argval == 'get' and 'NULL' in one.argrepr for one in following)
    loads = instructions[number].opname == 'LOAD_ATTR' and instructions[number].argval == '__dict__'
    return loaded_before(instructions, number) if loads and asks else None


def _attribute_of(value: Any, name: str) -> Any:
    """An attribute that lies in an object, a module or a class; MISSING if code may have to run for it."""
    cls = type(value)
    if issubclass(cls, ModuleType):
        return _MODULE_DICT(value).get(name, MISSING)
    if cls is type:
        member = found_in_class(value, name)
        return MISSING if hasattr(type(member), '__get__') or name in type.__dict__ else member
    if value is MISSING or issubclass(cls, type):
        return MISSING
    if found_in_class(cls, '__getattribute__') is not object.__getattribute__:
        return MISSING
    layout, member = layout_of(cls), found_in_class(cls, name)
    if name in layout.slots and dictionary_of_class(cls).get(name) is member:
        return layout.read_slot(value, name)
    if hasattr(type(member), '__set__') or layout.dictionary is None:
        return MISSING
    found = layout.dictionary(value).get(name, MISSING)
    return member if found is MISSING and not hasattr(type(member), '__get__') else found


def _is_stored(instructions: list[dis.Instruction], variable: str, line: int) -> bool:
    """Whether a line gives a local variable another value."""
    stores = (
        one.argval if type(one.argval) is tuple else (one.argval,)
        for one in instructions
        if line_number(one) in (line, None)
        and ('FAST' in one.opname or one.opname in ('STORE_DEREF', 'DELETE_DEREF'))
        and one.opname not in _FAST
    )
    return any(variable in names for names in stores)


#: What may run code, or bind names, before the value is loaded.
_CHANGES = ('CALL', 'STORE_', 'DELETE_', 'FOR_ITER', 'SEND', 'YIELD', 'WITH_', 'BEFORE_WITH', 'IMPORT', 'LOAD_SPECIAL')


GLOBALS_READ = frozenset({'LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_FROM_DICT_OR_GLOBALS'})
VARIABLES = ('LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW', 'LOAD_DEREF')
#: Instructions that load something from the value that lies on the stack.
_LOADS_FROM = ('LOAD_ATTR', 'LOAD_METHOD', 'LOAD_SUPER', 'LOAD_ZERO_SUPER', 'LOAD_SPECIAL', 'LOAD_FROM_DICT')
_EMPTY = ('BUILD_LIST', 'BUILD_MAP', 'BUILD_SET')
_CALL = 'PRECALL' if 'PRECALL' in dis.opmap else 'CALL'


class NameGiven(NamedTuple):
    """What gives ``getattr`` or its like the attribute's name: a text in the code, or the value of a variable."""

    is_variable: bool
    text: str

    def value_in(self, variables: Mapping[str, Any]) -> Any:
        """The name."""
        return variables.get(self.text) if self.is_variable else self.text


_Steps = list[dis.Instruction]


def name_given(instructions: _Steps, number: int) -> tuple[dis.Instruction | None, dis.Instruction | None]:
    """The call of the function loaded there, if it is called at once, and the instruction that loads the name for it.

    The name is the second argument. It is None if it is neither a text in the code nor a variable. The stack is
    followed from the function on: the second argument begins where there is one value more than the function and its
    first argument.
    """
    top = _effect(instructions[number])
    if instructions[number + 1].opname == 'PUSH_NULL':
        number, top = number + 1, top + 1
    depth, certain, ends = top, True, False
    name: dis.Instruction | None = None
    joins: dict[int, tuple[int, dis.Instruction | None]] = {}  # where jumps lead: the depth there, and the name so far
    for position, instruction in enumerate(instructions[number + 1 :], number + 1):
        kind = instruction.opname
        if instruction.offset in joins:
            depth, other = joins.pop(instruction.offset)
            certain = certain and other == name
        elif ends:
            break  # only jumps from elsewhere lead here
        ends = kind in ('JUMP_FORWARD', 'JUMP')
        if kind == _CALL and depth - top == instruction.arg:
            return instructions[position + (kind == 'PRECALL')], name if certain else None
        if (depth == top and not _only_adds(instruction)) or depth - _reach(instruction) < top:
            break  # something else is done with the function
        if 'JUMP' in kind:
            certain = certain and depth > top + 2
            if instruction.argval <= instruction.offset:
                break
            there = depth + dis.stack_effect(instruction.opcode, instruction.arg, jump=True), name
            certain = joins.setdefault(instruction.argval, there) == there and certain
        elif kind in ('CALL_FUNCTION_EX', 'FOR_ITER', 'RETURN_VALUE'):
            break
        before, depth = depth, depth + _effect(instruction)
        if depth < top or (depth == top < before and kind != 'POP_TOP' and 'JUMP' not in kind):
            break
        if before == top + 1 and depth == top + 2:
            name = instruction if _is_a_name(instruction) else None
        elif name is None or (depth < top + 3 and 'JUMP' not in kind) or _may_change(name, kind):
            name = None  # it is computed, or the variable may have changed
    return None, None


def only_tested(instructions: list[dis.Instruction]) -> set[str]:
    """The texts by which code only asks whether an object is an array: those of ``hasattr``, and used nowhere else."""
    tests = [n for n, one in enumerate(instructions) if one.argval == 'hasattr' and one.opname in GLOBALS_READ]
    given = [name for _, name in (name_given(instructions, n) for n in tests) if name is not None]
    tested = {one.offset: one.argval for one in given if one.opname == 'LOAD_CONST' and one.argval in INTERFACES}
    others = {one.argval for one in instructions if type(one.argval) is str and one.offset not in tested}
    return set(tested.values()) - others


def _only_adds(instruction: dis.Instruction) -> bool:
    """Whether an instruction leaves alone what lies on the stack."""
    kind = instruction.opname
    if kind in _EMPTY:
        return not instruction.arg
    return kind in ('PUSH_NULL', 'NOP') or (kind.startswith('LOAD_') and not kind.startswith(_LOADS_FROM))


def _reach(instruction: dis.Instruction) -> int:
    """How many values on the stack an instruction copies or puts in another order."""
    return (instruction.arg or 0) if instruction.opname in ('SWAP', 'COPY') else 0


def _may_change(name: dis.Instruction, kind: str) -> bool:
    """Whether an instruction between the loading of the name and the call may change its variable."""
    if name.opname.startswith('LOAD_FAST'):
        return 'STORE_' in kind or 'DELETE_' in kind
    return name.opname != 'LOAD_CONST' and kind not in ('LOAD_CONST', 'PRECALL') and kind not in VARIABLES


def _is_a_name(instruction: dis.Instruction) -> bool:
    """Whether an instruction loads a text in the code, or a local variable."""
    if instruction.opname == 'LOAD_CONST':
        return type(instruction.argval) is str
    return instruction.opname in VARIABLES


def _effect(instruction: dis.Instruction) -> int:
    return dis.stack_effect(instruction.opcode, instruction.arg, jump=False)


#: The attribute of ``sys``.
MODULES = 'modules'


def module_asked(instructions: list[dis.Instruction], number: int) -> str | LoadedValue | None:
    """The name by which the code asks for a module where it loads ``modules``, or the variable that has it.

    None if it may do anything with ``modules``.
    """
    before = instructions[number - 1] if number else instructions[number]
    if before.opname != 'LOAD_GLOBAL' or before.argval != 'sys' or instructions[number].opname != 'LOAD_ATTR':
        return None
    steps = [one for one in instructions[number - 2 if number > 1 else 0 : number + 7] if one.opname != 'PRECALL']
    first = steps.index(instructions[number])
    after = steps[first + 1 :]
    kinds = [one.opname for one in after]
    if kinds[:1] == ['CONTAINS_OP']:
        plain = first > 1 and not _jumps(steps[first - 1 : first + 2])
        return _name(instructions, steps[first - 2]) if plain else None
    if kinds[1:2] == ['BINARY_SUBSCR']:
        return None if _jumps(after[:2]) else _name(instructions, after[0])
    loads_get = bool(after) and after[0].argval == 'get' and after[0].opname in ('LOAD_METHOD', 'LOAD_ATTR')
    calls = 0 if not loads_get else 2 if _is_call(after[2:3], 1) else 3 if _is_call(after[3:4], 2) else 0
    return _name(instructions, after[1]) if calls and not _jumps(after[: calls + 1]) else None


def module_named(name: str) -> Any:
    """What ``sys.modules`` has under a name; MISSING if there is nothing."""
    return sys.modules.get(name, MISSING)


def is_in_place(modules: Any) -> bool:
    """Whether ``sys.modules`` is still this dict."""
    return sys.modules is modules


def _is_call(at: Sequence[dis.Instruction], count: int) -> bool:
    return bool(at) and at[0].opname == 'CALL' and at[0].arg == count


def _name(instructions: list[dis.Instruction], load: dis.Instruction) -> str | LoadedValue | None:
    if load.opname == 'LOAD_CONST':
        return load.argval if type(load.argval) is str else None
    is_variable = load.opname.startswith('LOAD_FAST')
    return loaded_before(instructions, instructions.index(load) + 1) if is_variable else None


def _jumps(steps: Sequence[dis.Instruction]) -> bool:
    return any(step.is_jump_target for step in steps)


#: What code may ask objects of CuPy for that can not be compared.
_OF_CUPY = OF_ARRAYS | OF_DEVICES
_GLOBALS_MADE = frozenset({'STORE_GLOBAL', 'DELETE_GLOBAL'})
#: Builtins that instructions call without naming them.
_BUILT_IN = {'IMPORT_NAME': ('__import__',), 'LOAD_BUILD_CLASS': ('__build_class__',)}
_LOCALS_MADE = frozenset({'STORE_NAME', 'DELETE_NAME'})
READERS = frozenset('getattr setattr hasattr delattr'.split())
#: The names of functions that read an attribute by a string.
_BY_STRING = frozenset('getattr setattr hasattr delattr attrgetter methodcaller __getattribute__ __setattr__'.split())
#: The names of functions that read all attributes.
_ALL = frozenset('vars __dict__ __get__'.split())
#: Methods that take an attribute's name, with their number of arguments as a function; and what is made from names.
_BY_NAME = {'__getattribute__': 2, '__setattr__': 3, '__delattr__': 2}
_FORMATS = ('format', 'format_map')
_ATTRIBUTES = ('LOAD_ATTR', 'LOAD_SUPER_ATTR')
_MADE_BY_NAMES = ('attrgetter', 'methodcaller')
#: Types of constants of which there is only one with each value.
_ONE_OF_A_KIND = (type(None), bool, type(...))
_NO_ARGUMENTS = ('PUSH_NULL', 'KW_NAMES', 'PRECALL', 'NOP', 'COPY_FREE_VARS')


class CodeNames(NamedTuple):
    """The names that a code object and those nested in it use.

    ``identities``: the globals that are compared by ``is``, each with the chain of attribute names after it, or None
    for a value that is neither global nor constant; ``parameters``: those of the code object itself that are compared
    so with something unknown; ``imports``: modules imported in it, with the level of the import;
    ``unknown``: what is not understood, in words, or ''; ``sites``: the calls of ``getattr``, ``setattr``, ``hasattr``
    and ``delattr`` whose names can be found, by the id of their code object and the offset of the call in it;
    ``looked_at``: the objects that are asked for items of their ``__dict__``, and the names by which ``sys.modules`` is
    asked for modules, each with that attribute, where they have the values that they had when their line began;
    ``of_arrays``: names of what arrays have and can't be compared, such as ``flags`` or ``base``; ``modules``: the
    names by which ``sys.modules`` is asked for modules, and None if it is used otherwise.
    """

    read: frozenset[str]
    written: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]
    identities: frozenset[tuple[str, ...] | None]
    imports: frozenset[tuple[str, int]]
    unknown: str
    sites: dict[tuple[int, int], NameGiven]
    parameters: frozenset[str]
    looked_at: frozenset[tuple[LoadedValue, str]]
    of_arrays: frozenset[str]
    modules: frozenset[str | None]


class _Names:
    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.attributes: set[str] = set()
        self.strings: set[str] = set()
        self.identities: set[tuple[str, ...] | None] = set()
        self.imports: set[tuple[str, int]] = set()
        self.unknown = ''
        self.sites: dict[tuple[int, int], NameGiven] = {}
        self.parameters: set[str] = set()
        self.looked_at: set[tuple[LoadedValue, str]] = set()
        self.of_arrays: set[str] = set()
        self.modules: set[str | None] = set()

    def add(self, code: CodeType) -> None:
        """Take in one code object, without those nested in it."""
        instructions = single_steps(code)
        line = code.co_firstlineno
        for number, instruction in enumerate(instructions):
            line = _line_of(instruction) or line
            self.take(code, instructions, number, line)
        self.finish(code, instructions)

    def take(self, code: CodeType, instructions: list[dis.Instruction], number: int, line: int) -> None:
        """Take in one instruction."""
        instruction = instructions[number]
        if instruction.opname not in INSTRUCTIONS:
            self._unknown(f'the instruction {instruction.opname}', line)
        if instruction.opname == 'IS_OP' and number:
            self._identity(code, instructions[:number])
        if instruction.opname == 'RAISE_VARARGS' and not instruction.arg:
            self.attributes.add('__context__')  # it raises the exception that is handled: the caller's, perhaps
        self.read.update(_BUILT_IN.get(instruction.opname, ()))
        name = instruction.argval
        if instruction.opcode not in dis.hasname or type(name) is not str:
            if instruction.opname == 'MATCH_CLASS':
                self._unknown('a class pattern', line)
            return
        if name in READERS and instruction.opname in GLOBALS_READ:
            self._called(code, instructions, number, line)
        self._named(instructions, number, name, line)
        of = dictionary_asked(instructions, number)
        self.looked_at.update([] if of is None else [(of, '__dict__')])
        if name in _ALL and of is None:
            self._unknown(name, line)

    def finish(self, code: CodeType, instructions: list[dis.Instruction]) -> None:
        """Take in what no single instruction of a code object shows."""
        if _asks_numpy_for_the_time(code):
            self._unknown('the time of day as a datetime64', code.co_firstlineno)
        unsaid = set(code.co_names) - names_shown(instructions)
        self.read |= unsaid
        self.attributes |= unsaid
        self.modules.update([None] if MODULES in unsaid else [])
        self.of_arrays |= unsaid & _OF_CUPY
        if not _ALL.isdisjoint(unsaid):
            self._unknown(min(_ALL & unsaid), code.co_firstlineno)
        if not _BY_STRING.isdisjoint(code.co_names):
            texts = [part for text in code.co_consts if type(text) is str for part in text.split('.')]
            tested = only_tested(instructions)
            self.attributes |= tested
            self.strings.update(text for text in texts if text.isidentifier() and text not in tested)

    def _named(self, instructions: list[dis.Instruction], number: int, name: str, line: int) -> None:
        kind = instructions[number].opname
        by_name = (name in _BY_NAME or name in _MADE_BY_NAMES) and not _by_constants(instructions, number, name)
        # Of a text, ``format`` is what reads attributes by the names in the text, and it is handed on.
        formats = name in _FORMATS and kind in _ATTRIBUTES and 'NULL' not in instructions[number].argrepr
        if by_name or formats:
            self._unknown(f'{name} with names that are not in the code', line)
        if kind in GLOBALS_READ:
            self.read.add(name)
        elif kind in _GLOBALS_MADE:
            self.written.add(name)
        elif kind == 'IMPORT_NAME':
            level = instructions[number - 2].argval if number > 1 else 0
            self.imports.add((name, level if type(level) is int else 0))
            self.attributes.update(name.split('.')[1:])
        elif kind not in _LOCALS_MADE:
            self.attributes.add(name)
            self._asks_for_modules(instructions, number)
            whole = name == 'flags' and not _one_flag(instructions[number + 1 : number + 3])
            if whole or (name in _OF_CUPY and kind.startswith('LOAD_')):
                self.of_arrays.add(FLAGS if whole else name)
            if name == 'acquire' and not _result_is_dropped(instructions[number + 1 :]):
                self._unknown('the result of acquire, or a lock that it does not wait for,', line)
            if name in OUT_OF_SIGHT and kind != 'STORE_ATTR':
                self._unknown(f'attribute {name}', line)

    def _asks_for_modules(self, instructions: list[dis.Instruction], number: int) -> None:
        if instructions[number].argval == MODULES:
            asked = module_asked(instructions, number)
            if isinstance(asked, LoadedValue):
                self.looked_at.add((asked, MODULES))
            else:
                self.modules.add(asked)

    def _called(self, code: CodeType, instructions: list[dis.Instruction], number: int, line: int) -> None:
        """Note where ``getattr`` or its like, which is loaded there, is called, and where the name comes from."""
        call, name = name_given(instructions, number)
        if call is None:
            self._unknown(f'{instructions[number].argval}, which it does not call at once,', line)
        elif name is not None and (name.opname == 'LOAD_CONST' or _is_one(code, name.argval)):
            self.sites[id(code), call.offset] = NameGiven(name.opname != 'LOAD_CONST', name.argval)

    def _unknown(self, what: str, line: int) -> None:
        self.unknown = self.unknown or f'{what} at line {line}'

    def _identity(self, code: CodeType, before: list[dis.Instruction]) -> None:
        last = before[-1]
        if last.opname == 'LOAD_COMMON_CONSTANT' or last.argval == '__class__':
            return
        if last.opname == 'LOAD_CONST' and among(type(last.argval), _ONE_OF_A_KIND):
            return
        names: list[str] = []
        for instruction in reversed(before):
            names.insert(0, str(instruction.argval))
            if instruction.opname != 'LOAD_ATTR':
                break
        if instruction.opname in GLOBALS_READ:
            self.identities.add(tuple(names))
        else:
            left = before[-len(names) - 1 : -len(names)] if instruction.opname.startswith('LOAD_') else []
            given = [one.argval for one in (*before[-1:], *left) if _is_as_given(code, one)]
            self.parameters.update(given[:1])
            self.identities.update([] if given else [None])

    def found(self, of_line: bool = False) -> CodeNames:
        """All that was taken in. ``of_line``: whoever asks looks at the variables when the line begins."""
        unseen = set() if of_line else {name for _, name in self.looked_at}
        unknown = self.unknown or ('the __dict__ of an object' if '__dict__' in unseen else '')
        modules = self.modules | ({None} if MODULES in unseen else set())
        return CodeNames(
            frozenset(self.read), frozenset(self.written), frozenset(self.attributes | self.strings),
            frozenset(self.strings), frozenset(self.identities), frozenset(self.imports), unknown, self.sites,
            frozenset(self.parameters), frozenset(self.looked_at), frozenset(self.of_arrays),
            frozenset(modules),
        )  # fmt: skip


def _is_as_given(code: CodeType, instruction: dis.Instruction) -> bool:
    """Whether an instruction loads a parameter that the code gives no other value."""
    name = instruction.argval
    if instruction.opname not in VARIABLES or name not in parameters_of(code):
        return False
    changed = (one.argval for one in single_steps(code) if one.opname.startswith(('STORE_', 'DELETE_')))
    return not any(name in one if type(one) is tuple else name == one for one in changed)


def names_of(code: CodeType) -> CodeNames:
    """Names of globals read and written, of attributes; strings where attributes are read by string."""
    names = _Names()
    names.add(code)
    own = frozenset(names.parameters)
    for inner in nested(code):
        if inner is not code:
            names.add(inner)
    return names.found()._replace(parameters=own)


def names_by_line(code: CodeType) -> dict[int, CodeNames]:
    """The same for each line of a code object, without those nested in it; under 0 what belongs to no line."""
    lines = {0: _Names()}
    instructions = single_steps(code)
    line = code.co_firstlineno
    for number, instruction in enumerate(instructions):
        line = _line_of(instruction) or line
        lines.setdefault(line_number(instruction) or 0, _Names()).take(code, instructions, number, line)
    lines[0].finish(code, instructions)
    return {number: names.found(number > 0) for number, names in lines.items()}


def _line_of(instruction: dis.Instruction) -> int | None:
    """The line that an instruction begins."""
    if instruction.starts_line and not isinstance(instruction.starts_line, bool):
        return instruction.starts_line
    return getattr(instruction, 'line_number', None)


def _one_flag(after: list[dis.Instruction]) -> bool:
    """Whether one flag of an array is read at once, by its name, which is not ``OWNDATA``."""
    if [one.opname for one in after[:1]] == ['LOAD_ATTR']:
        return True  # under a name that is refused by itself
    item = len(after) == 2 and after[0].opname == 'LOAD_CONST' and after[1].opname.startswith('BINARY_')
    return item and after[0].argval not in ('OWNDATA', 'O')


def _result_is_dropped(after: list[dis.Instruction]) -> bool:
    """Whether what was loaded is called at once, without arguments, and nothing is made of the result."""
    steps = [one for one in after[:4] if one.opname not in _NO_ARGUMENTS]
    return [one.opname for one in steps[1:2]] == ['POP_TOP'] and steps[0].opname == 'CALL' and not steps[0].arg


def _asks_numpy_for_the_time(code: CodeType) -> bool:
    """Whether code makes a ``datetime64`` of the text 'now' or 'today', for which NumPy reads the clock."""
    texts = [text for text in code.co_consts if type(text) is str]
    of_numpy = 'datetime64' in code.co_names or any('datetime64' in text or 'M8' in text for text in texts)
    return of_numpy and not {'now', 'today'}.isdisjoint(texts)


def _is_one(code: CodeType, variable: str) -> bool:
    """False where a comprehension may have a variable of its own of this name, and both are variables of the frame."""
    return [*code.co_varnames, *code.co_cellvars, *code.co_freevars].count(variable) == 1


def _by_constants(instructions: list[dis.Instruction], number: int, name: str) -> bool:
    """True if a function that takes attribute names is called at once, with constant strings."""
    given: list[dis.Instruction] = []
    for instruction in instructions[number + 1 :]:
        if instruction.opname.startswith('CALL'):
            break
        if instruction.opname in _NO_ARGUMENTS:
            continue
        if not instruction.opname.startswith('LOAD_') or 'FAST_' in instruction.opname.removeprefix('LOAD_FAST_LOAD'):
            return False
        if instruction.opname.startswith(('LOAD_ATTR', 'LOAD_METHOD', 'LOAD_SUPER')):
            return False
        given += [instruction] * (2 if instruction.opname.count('LOAD') > 1 else 1)
    texts = [one.opname == 'LOAD_CONST' and type(one.argval) is str for one in given]
    if name in _MADE_BY_NAMES:
        return bool(texts) and all(texts[:1] if name == 'methodcaller' else texts)
    return texts[:1] == [True] or (len(texts) == _BY_NAME[name] and texts[1])
