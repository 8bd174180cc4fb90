"""Find out whether the code of a function does nothing with a number but arithmetic.

A value is followed from the instruction that puts it on Python's stack to the one that takes it. All instructions
between the two must have a known effect on the stack; the last one has to be an operator, or store the value in a local
variable, whose uses are then followed, too. So a number reaches no function, no container and no result, no code asks
for its type, its attributes or its identity, and no branch depends on it.
"""

from __future__ import annotations

import dis
import sys
from types import FunctionType

from capturekit.model.source_line import Place

#: The operators of BINARY_OP that are arithmetic.
_OPERATORS = {'+', '-', '*', '/', '//', '%', '**'}
_LOADS = {'LOAD_FAST', 'LOAD_FAST_CHECK', 'LOAD_FAST_BORROW'}
_TWO_LOADS = {'LOAD_FAST_LOAD_FAST', 'LOAD_FAST_BORROW_LOAD_FAST_BORROW'}
_NOTHING = {'RESUME', 'NOP', 'CACHE', 'EXTENDED_ARG', 'KW_NAMES', 'PUSH_NULL', 'NOT_TAKEN'}
_PUTTING = _NOTHING | _LOADS | _TWO_LOADS | {'LOAD_CONST', 'LOAD_SMALL_INT', 'LOAD_GLOBAL', 'LOAD_DEREF', 'LOAD_NAME'}
#: How many values an instruction takes from the stack: a fixed number, and a number for each unit of its argument.
_TAKES = {
    'LOAD_ATTR': (1, 0), 'LOAD_METHOD': (1, 0), 'UNARY_NEGATIVE': (1, 0), 'BINARY_OP': (2, 0), 'COMPARE_OP': (2, 0),
    'BINARY_SUBSCR': (2, 0), 'BINARY_SLICE': (3, 0), 'BUILD_SLICE': (0, 1), 'BUILD_TUPLE': (0, 1), 'BUILD_LIST': (0, 1),
    'CALL': (2, 0) if 'PRECALL' in dis.opmap else (2, 1), 'PRECALL': (0, 1), 'CALL_KW': (3, 1),
    'STORE_FAST': (1, 0), 'STORE_FAST_LOAD_FAST': (1, 0),
    'STORE_FAST_STORE_FAST': (2, 0), 'STORE_ATTR': (2, 0), 'STORE_SUBSCR': (3, 0), 'POP_TOP': (1, 0),
    'RETURN_VALUE': (1, 0), 'UNPACK_SEQUENCE': (1, 0), 'BUILD_MAP': (0, 2), 'BUILD_CONST_KEY_MAP': (1, 1),
    'IS_OP': (2, 0), 'CONTAINS_OP': (2, 0), 'BUILD_STRING': (0, 1),
}  # fmt: skip
#: Names through which code reaches its own local variables by other means.
_OPENING = {
    'locals', 'vars', 'eval', 'exec', 'dir', '_getframe', 'currentframe', 'stack', 'f_locals', 'f_back', 'tb_frame',
    'gi_frame',
}  # fmt: skip
_OPENERS = (locals, vars, eval, exec, dir, sys._getframe)


class NotArithmetic(Exception):
    """A number is used in a way that is not understood; the text says which, ``at`` on which line if one is known."""

    def __init__(self, how: str, at: Place | None = None) -> None:
        super().__init__(how)
        self.at = at


class NumberUses:
    """The uses of local variables that hold numbers, in the code of a function. Raises NotArithmetic.

    ``operators`` are the offsets of the instructions that take numbers.
    """

    def __init__(self, fn: FunctionType, names: tuple[str, ...]) -> None:
        code = fn.__code__
        self.operators: set[int] = set()
        self._code = code
        self._instructions = list(dis.get_instructions(code))
        self._at = {one.offset: number for number, one in enumerate(self._instructions)}
        self._names: set[str] = set()
        self._known: set[int] = set()
        _must_be_plain(fn)
        self._captured = {*code.co_cellvars, *code.co_freevars}
        for name in names:
            self._local(name)

    def result(self, offset: int) -> None:
        """Follow a number that the instruction at this offset has computed."""
        if offset not in self._known:
            self._known.add(offset)
            self._follow(self._at[offset], 0)

    def _local(self, name: str) -> None:
        """Follow all uses of a local variable."""
        if name in self._names:
            return
        self._names.add(name)
        if name in self._captured:
            raise NotArithmetic(f'a function or a comprehension inside of it uses {name}')
        for number, one in enumerate(self._instructions):
            if one.opname in _LOADS and one.argval == name:
                self._follow(number, 0)
            elif one.opname in _TWO_LOADS and name in one.argval:
                for above, loaded in enumerate(reversed(one.argval)):
                    if loaded == name:
                        self._follow(number, above)
            elif name in (one.argval if isinstance(one.argval, tuple) else (one.argval,)) and (
                'FAST' in one.opname and not one.opname.startswith(('STORE_FAST', 'DELETE_FAST'))
            ):
                raise NotArithmetic(f'{one.opname} of {name} is not understood', self._line(one))
            elif one.opname == 'STORE_FAST_LOAD_FAST' and one.argval[1] == name:
                self._follow(number, 0)

    def _follow(self, number: int, above: int) -> None:
        """Follow the value that lies under ``above`` others when the instruction of this number is done."""
        for one in self._instructions[number + 1 :]:
            if one.is_jump_target:
                raise NotArithmetic('it is used across a branch', self._line(one))
            if one.opname.startswith('STORE_FAST') and above == 0:
                names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
                return self._local(names[0])
            if one.opname == 'STORE_FAST_STORE_FAST' and above == 1:
                return self._local(one.argval[1])
            try:
                taken = takes(one)
            except NotArithmetic as error:
                raise NotArithmetic(str(error), self._line(one)) from None
            if taken > above:
                return self._must_be_arithmetic(one)
            above += dis.stack_effect(one.opcode, one.arg, jump=False)
        raise NotArithmetic('it is used across a branch')

    def _must_be_arithmetic(self, one: dis.Instruction) -> None:
        if is_operator(one):
            self.operators.add(one.offset)
            return
        how = 'it is given to a function' if 'CALL' in one.opname else f'{one.opname} takes it'
        raise NotArithmetic(how, self._line(one))

    def _line(self, one: dis.Instruction) -> Place | None:
        code = self._code
        line = next((line for start, end, line in code.co_lines() if start <= one.offset < end), None)
        return None if line is None else Place(code.co_filename, line, code.co_name)


def is_operator(one: dis.Instruction) -> bool:
    """Whether an instruction is arithmetic or a comparison."""
    operator = one.argrepr.removesuffix('=') if one.opname == 'BINARY_OP' else ''
    return one.opname in ('UNARY_NEGATIVE', 'COMPARE_OP') or operator in _OPERATORS


def takes(one: dis.Instruction) -> int:
    """How many values an instruction takes from the stack. Raises NotArithmetic for one that is not understood."""
    if one.opname in _PUTTING:
        return 0
    if one.opname not in _TAKES:
        raise NotArithmetic(f'{one.opname} is not understood')
    least, times = _TAKES[one.opname]
    return least + times * (one.arg or 0)


def _must_be_plain(fn: FunctionType) -> None:
    """Raise if a function handles exceptions, which it would then get from a Number, or reads its own frame."""
    code = fn.__code__
    if code.co_exceptiontable:
        raise NotArithmetic('the function has a try, a with or a comprehension')
    reached = [fn.__globals__.get(name) for name in code.co_names]
    for cell in fn.__closure__ or ():
        try:
            reached.append(cell.cell_contents)
        except ValueError:
            continue
    opening = sorted(_OPENING.intersection(code.co_names))
    opening += [opener.__name__ for opener in _OPENERS if any(one is opener for one in reached)]
    if opening:
        raise NotArithmetic(f'the function uses {opening[0]}')
