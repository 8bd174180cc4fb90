"""What code can read, by its instructions: names of globals and attributes, imported modules, and what is unknown.

Nothing is run for this. If the instructions do not show which attribute is read, all of them count as read.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import NamedTuple

from capturekit.functions.instructions import line_number, names_shown, nested, parameters_of, single_steps
from capturekit.functions.loaded_values import (
    GLOBALS_READ,
    MODULES,
    VARIABLES,
    LoadedValue,
    NameGiven,
    dictionary_asked,
    module_asked,
    name_given,
    only_tested,
)
from capturekit.functions.understood import FLAGS, INSTRUCTIONS, OF_ARRAYS, OF_DEVICES, OUT_OF_SIGHT
from capturekit.model.class_layout import among

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
    everything: bool
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
        self.everything = False
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
                self.everything = True
                self.of_arrays |= _OF_CUPY.intersection(instructions[number - 1].argval)
            return
        if name in READERS and instruction.opname in GLOBALS_READ:
            self._called(code, instructions, number)
        self._named(instructions, number, name, line)
        of = dictionary_asked(instructions, number)
        self.looked_at.update([] if of is None else [(of, '__dict__')])
        self.everything |= name in _ALL and of is None

    def finish(self, code: CodeType, instructions: list[dis.Instruction]) -> None:
        """Take in what no single instruction of a code object shows."""
        if _asks_numpy_for_the_time(code):
            self._unknown('the time of day as a datetime64', code.co_firstlineno)
        unsaid = set(code.co_names) - names_shown(instructions)
        self.read |= unsaid
        self.attributes |= unsaid
        self.modules.update([None] if MODULES in unsaid else [])
        self.of_arrays |= unsaid & _OF_CUPY
        self.everything |= not _ALL.isdisjoint(unsaid)
        if not _BY_STRING.isdisjoint(code.co_names):
            texts = [part for text in code.co_consts if type(text) is str for part in text.split('.')]
            tested = only_tested(instructions)
            self.attributes |= tested
            self.strings.update(text for text in texts if text.isidentifier() and text not in tested)

    def _named(self, instructions: list[dis.Instruction], number: int, name: str, line: int) -> None:
        kind = instructions[number].opname
        if (name in _BY_NAME or name in _MADE_BY_NAMES) and not _by_constants(instructions, number, name):
            self.everything = True
        if name in _FORMATS and kind in _ATTRIBUTES and 'NULL' not in instructions[number].argrepr:
            # Of a text, it is what reads attributes by the names in the text, and it is handed on.
            self.everything = True
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

    def _called(self, code: CodeType, instructions: list[dis.Instruction], number: int) -> None:
        """Note where ``getattr`` or its like, which is loaded there, is called, and where the name comes from."""
        call, name = name_given(instructions, number)
        if call is None:
            self.everything = True
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
        everything = self.everything or '__dict__' in unseen
        modules = self.modules | ({None} if MODULES in unseen else set())
        return CodeNames(
            frozenset(self.read), frozenset(self.written), frozenset(self.attributes | self.strings),
            frozenset(self.strings), everything, frozenset(self.identities), frozenset(self.imports), self.unknown,
            self.sites, frozenset(self.parameters), frozenset(self.looked_at), frozenset(self.of_arrays),
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
