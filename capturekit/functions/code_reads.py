"""What code can read, by its instructions: names of globals and attributes, imported modules, and what is unknown.

Nothing is run for this. If the instructions do not show which attribute is read, all of them count as read.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from capturekit.functions.understood import INSTRUCTIONS, OUT_OF_SIGHT

_GLOBALS_MADE = frozenset({'STORE_GLOBAL', 'DELETE_GLOBAL'})
_GLOBALS_READ = frozenset({'LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_FROM_DICT_OR_GLOBALS'})
_LOCALS_MADE = frozenset({'STORE_NAME', 'DELETE_NAME'})
READERS = frozenset('getattr setattr hasattr delattr'.split())
#: The names of functions that read an attribute by a string.
_BY_STRING = frozenset('getattr setattr hasattr delattr attrgetter methodcaller __getattribute__ __setattr__'.split())
#: The names of functions that read all attributes.
_ALL = frozenset('vars __dict__ __get__'.split())
#: Methods that take an attribute's name, with their number of arguments as a function; and what is made from names.
_BY_NAME = {'__getattribute__': 2, '__setattr__': 3, '__delattr__': 2}
_MADE_BY_NAMES = ('attrgetter', 'methodcaller')
_NO_ARGUMENTS = ('PUSH_NULL', 'KW_NAMES', 'PRECALL', 'NOP', 'COPY_FREE_VARS')


class CodeNames(NamedTuple):
    """The names that a code object and those nested in it use.

    ``identities``: the globals that are compared by ``is``, each with the chain of attribute names after it, or None
    for a value that is neither global nor constant; ``imports``: modules imported in it, with the level of the import;
    ``unknown``: what is not understood, in words, or ''.
    """

    read: frozenset[str]
    written: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]
    everything: bool
    identities: frozenset[tuple[str, ...] | None]
    imports: frozenset[tuple[str, int]]
    unknown: str


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

    def add(self, code: CodeType) -> None:
        """Take in one code object, without those nested in it."""
        met: set[str] = set()
        instructions = [i for i in dis.get_instructions(code) if i.opname not in ('CACHE', 'EXTENDED_ARG')]
        line = code.co_firstlineno
        for number, instruction in enumerate(instructions):
            if instruction.starts_line and not isinstance(instruction.starts_line, bool):
                line = instruction.starts_line
            else:
                line = getattr(instruction, 'line_number', None) or line
            if instruction.opname not in INSTRUCTIONS:
                self._unknown(f'the instruction {instruction.opname}', line)
            if instruction.opname == 'IS_OP' and number:
                self._identity(instructions[:number])
            name = instruction.argval
            if instruction.opcode not in dis.hasname or type(name) is not str:
                self.everything |= instruction.opname == 'MATCH_CLASS'
                continue
            met.add(name)
            self._named(instructions, number, name, line)
        unsaid = set(code.co_names) - met  # dis does not show how the code uses these names
        self.read |= unsaid
        self.attributes |= unsaid
        self.everything |= not _ALL.isdisjoint(code.co_names)
        if not _BY_STRING.isdisjoint(code.co_names):
            texts = [part for text in code.co_consts if type(text) is str for part in text.split('.')]
            self.strings.update(text for text in texts if text.isidentifier())

    def _named(self, instructions: list[dis.Instruction], number: int, name: str, line: int) -> None:
        kind = instructions[number].opname
        if (name in _BY_NAME or name in _MADE_BY_NAMES) and not _by_constants(instructions, number, name):
            self.everything = True
        if kind in _GLOBALS_READ:
            self.read.add(name)
            if name in READERS and not _by_constant(instructions, number):
                self.everything = True
        elif kind in _GLOBALS_MADE:
            self.written.add(name)
        elif kind == 'IMPORT_NAME':
            level = instructions[number - 2].argval if number > 1 else 0
            self.imports.add((name, level if type(level) is int else 0))
            self.attributes.update(name.split('.')[1:])
        elif kind not in _LOCALS_MADE:
            self.attributes.add(name)
            if name in OUT_OF_SIGHT and kind != 'STORE_ATTR':
                self._unknown(f'attribute {name}', line)

    def _unknown(self, what: str, line: int) -> None:
        self.unknown = self.unknown or f'{what} at line {line}'

    def _identity(self, before: list[dis.Instruction]) -> None:
        last = before[-1]
        if last.opname in ('LOAD_CONST', 'LOAD_COMMON_CONSTANT') or last.argval == '__class__':
            return
        names: list[str] = []
        for instruction in reversed(before):
            names.insert(0, str(instruction.argval))
            if instruction.opname != 'LOAD_ATTR':
                break
        self.identities.add(tuple(names) if instruction.opname in _GLOBALS_READ else None)


def names_of(code: CodeType) -> CodeNames:
    """Names of globals read and written, of attributes; strings where attributes are read by string."""
    found = _Names()
    for inner in nested(code):
        found.add(inner)
    return CodeNames(
        frozenset(found.read), frozenset(found.written), frozenset(found.attributes | found.strings),
        frozenset(found.strings), found.everything, frozenset(found.identities), frozenset(found.imports),
        found.unknown,
    )  # fmt: skip


def nested(code: CodeType) -> Iterator[CodeType]:
    """The code object and those in it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested(constant)


def _by_constant(instructions: list[dis.Instruction], number: int) -> bool:
    """True if the function loaded there is called at once, and its second argument is a text in the code.

    The stack is followed from the function on: the second argument begins where there is one value more than the
    function and its first argument.
    """
    top = _effect(instructions[number])
    if instructions[number + 1].opname == 'PUSH_NULL':
        number, top = number + 1, top + 1
    depth, second, text = top, False, False
    calls = ('PRECALL',) if 'PRECALL' in dis.opmap else ('CALL', 'CALL_FUNCTION')
    for instruction in instructions[number + 1 :]:
        kind = instruction.opname
        if kind in calls and depth - top == instruction.arg:
            return second and text
        if 'JUMP' in kind or kind in ('CALL_FUNCTION_EX', 'FOR_ITER', 'RETURN_VALUE'):
            return False
        before, depth = depth, depth + _effect(instruction)
        if depth == top + 2 and before >= depth and second:
            text = False  # the second argument is computed
        elif depth <= top + 1:
            second = text = False
        elif before == top + 1 and depth == top + 2:
            second, text = True, instruction.opname == 'LOAD_CONST' and type(instruction.argval) is str
        elif depth > top + 2 and before < top + 2:
            second, text = True, False
    return False


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


def _effect(instruction: dis.Instruction) -> int:
    return dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
