"""What code does, step by step, in words that are the same on Python 3.11 to 3.14.

Only this file knows the names of instructions, and what each version of Python makes of them. An instruction that does
two things is two steps, what only prepares a call is part of its step, and what does nothing at all is none.
"""

from __future__ import annotations

import dis
import itertools
import sys
from types import CodeType
from typing import Any, NamedTuple


class Does:
    """What a step does: each is the names of all instructions that do it. Those that do two things are in ``_TWO``."""

    UNKNOWN = ''
    LOADS_LOCAL = 'LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_BORROW'
    LOADS_GLOBAL, LOADS_NAME, LOADS_NAME_IN_CLASS = 'LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_FROM_DICT_OR_GLOBALS'
    LOADS_CELL, LOADS_CELL_IN_CLASS = 'LOAD_DEREF', 'LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF'
    LOADS_CONSTANT = 'LOAD_CONST LOAD_SMALL_INT'
    LOADS_PYTHONS_OWN = 'LOAD_COMMON_CONSTANT LOAD_ASSERTION_ERROR'
    LOADS_ATTRIBUTE, LOADS_METHOD = 'LOAD_ATTR', 'LOAD_METHOD'
    LOADS_OF_SUPER = 'LOAD_SUPER_ATTR LOAD_SUPER_METHOD LOAD_ZERO_SUPER_ATTR LOAD_ZERO_SUPER_METHOD'
    LOADS_CLOSURE = 'LOAD_CLOSURE'
    SETS_ASIDE = 'LOAD_FAST_AND_CLEAR'  # a variable that a comprehension has, too
    STORES_LOCAL, DELETES_LOCAL = 'STORE_FAST STORE_FAST_MAYBE_NULL', 'DELETE_FAST'
    STORES_GLOBAL, DELETES_GLOBAL = 'STORE_GLOBAL', 'DELETE_GLOBAL'
    STORES_NAME, DELETES_NAME = 'STORE_NAME', 'DELETE_NAME'
    STORES_CELL, DELETES_CELL = 'STORE_DEREF', 'DELETE_DEREF'
    STORES_ATTRIBUTE, DELETES_ATTRIBUTE = 'STORE_ATTR', 'DELETE_ATTR'
    STORES_ITEM, DELETES_ITEM, STORES_SLICE = 'STORE_SUBSCR', 'DELETE_SUBSCR', 'STORE_SLICE'
    GETS_ITEM, GETS_SLICE = 'BINARY_SUBSCR', 'BINARY_SLICE'
    IMPORTS, IMPORTS_FROM = 'IMPORT_NAME', 'IMPORT_FROM'
    CALLS, CALLS_UNPACKED = 'CALL CALL_KW', 'CALL_FUNCTION_EX'
    MAKES_ROOM = 'PUSH_NULL'  # for the object of a method, beside what is called
    RUNS_CODE = 'BEFORE_WITH CALL_INTRINSIC_1 CALL_INTRINSIC_2 LOAD_SPECIAL SEND'  # without a call
    MAKES_FUNCTION, MAKES_CLASS = 'MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE', 'LOAD_BUILD_CLASS'
    MAKES_TUPLE, MAKES_CELL = 'LIST_TO_TUPLE', 'MAKE_CELL'
    BUILDS_TUPLE, BUILDS_LIST, BUILDS_SET = 'BUILD_TUPLE', 'BUILD_LIST', 'BUILD_SET'
    BUILDS_DICT, BUILDS_DICT_OF_KEYS = 'BUILD_MAP', 'BUILD_CONST_KEY_MAP'
    BUILDS_SLICE, BUILDS_TEXT = 'BUILD_SLICE', 'BUILD_STRING'
    UPDATES_SET = 'SET_UPDATE'
    OPERATES, COMPARES = 'BINARY_OP', 'COMPARE_OP'
    COMPARES_IDENTITY, CONTAINS = 'IS_OP', 'CONTAINS_OP'
    NEGATES, INVERTS, TESTS = 'UNARY_NEGATIVE', 'UNARY_INVERT', 'UNARY_NOT TO_BOOL'
    FORMATS, FORMATS_BY = 'FORMAT_SIMPLE FORMAT_VALUE CONVERT_VALUE', 'FORMAT_WITH_SPEC'
    ITERATES, UNPACKS = 'GET_ITER LIST_EXTEND UNPACK_EX', 'UNPACK_SEQUENCE'
    SWAPS, COPIES, DROPS = 'SWAP', 'COPY', 'POP_TOP'
    JUMPS = 'JUMP JUMP_FORWARD'
    JUMPS_BACK = 'JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_NO_INTERRUPT'
    JUMPS_IF = 'POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE JUMP_IF_FALSE JUMP_IF_TRUE'
    JUMPS_IF_NONE = 'POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE'
    JUMPS_OR_DROPS = 'JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP'
    LOOPS, ENDS_LOOP = 'FOR_ITER', 'END_FOR POP_ITER'
    RETURNS, YIELDS, RAISES = 'RETURN_VALUE', 'YIELD_VALUE', 'RAISE_VARARGS'
    HANDLES = 'PUSH_EXC_INFO POP_EXCEPT CHECK_EXC_MATCH CHECK_EG_MATCH'
    EXITS = 'WITH_EXCEPT_START'
    MATCHES_CLASS, MATCHES_FLAG = 'MATCH_CLASS', 'MATCH_SEQUENCE MATCH_MAPPING'
    NOTHING = 'NOP RESUME COPY_FREE_VARS'
    OTHER = (
        'CLEANUP_THROW DICT_MERGE DICT_UPDATE END_SEND EXIT_INIT_CHECK GET_LEN GET_YIELD_FROM_ITER INTERPRETER_EXIT '
        'LIST_APPEND LOAD_LOCALS MAP_ADD MATCH_KEYS POP_BLOCK PREP_RERAISE_STAR RERAISE RETURN_GENERATOR '
        'SETUP_ANNOTATIONS SETUP_CLEANUP SETUP_FINALLY SETUP_WITH SET_ADD UNARY_POSITIVE'
    )

    #: Several that are asked for together: what loads a value, and what loads what, or puts it away.
    ANY_ATTRIBUTE = frozenset({LOADS_ATTRIBUTE, LOADS_METHOD})
    ANY_GLOBAL = frozenset({LOADS_GLOBAL, LOADS_NAME})
    READS_GLOBAL = ANY_GLOBAL | {LOADS_NAME_IN_CLASS}
    ANY_VARIABLE = frozenset({LOADS_LOCAL, LOADS_CELL})
    ANY_LOAD = ANY_GLOBAL | ANY_VARIABLE | {SETS_ASIDE, LOADS_CELL_IN_CLASS, LOADS_CLOSURE}
    ANY_CALL = frozenset({CALLS, CALLS_UNPACKED})
    ANY_JUMP = frozenset({JUMPS, JUMPS_BACK, JUMPS_IF, JUMPS_IF_NONE, JUMPS_OR_DROPS})
    CHANGES_GLOBAL = frozenset({STORES_GLOBAL, STORES_NAME, DELETES_GLOBAL, DELETES_NAME})
    CHANGES_CELL = frozenset({STORES_CELL, DELETES_CELL})
    CHANGES_ATTRIBUTE = frozenset({STORES_ATTRIBUTE, DELETES_ATTRIBUTE})
    CHANGES_VARIABLE = CHANGES_GLOBAL | CHANGES_CELL | {STORES_LOCAL, DELETES_LOCAL}
    CHANGES_ANY = CHANGES_VARIABLE | CHANGES_ATTRIBUTE | {STORES_ITEM, STORES_SLICE, DELETES_ITEM}
    ANY_STORE = frozenset(one for one in CHANGES_ANY if one.startswith('STORE'))
    #: What has a name that code uses for a global, an attribute or a module; and the same with variables of closures.
    USES_NAME = READS_GLOBAL | CHANGES_GLOBAL | ANY_ATTRIBUTE | CHANGES_ATTRIBUTE
    USES_NAME |= {LOADS_OF_SUPER, IMPORTS, IMPORTS_FROM}
    USES_ANY_NAME = USES_NAME | CHANGES_CELL | {LOADS_CELL, LOADS_CELL_IN_CLASS, LOADS_CLOSURE, MAKES_CELL}
    #: What does nothing with any value that code has.
    NO_VALUE = frozenset({NOTHING, MAKES_ROOM})


_KINDS = [does for name, does in vars(Does).items() if name.isupper() and type(does) is str]
#: What each instruction does that is one step. Those of 3.14's template strings are not understood.
_KNOWN = {name: does for does in _KINDS for name in does.split()}
for _way in ('JUMP_FORWARD_IF', 'JUMP_BACKWARD_IF'):  # of Python 3.11
    _KNOWN |= {name.replace('JUMP_IF', _way): does for name, does in _KNOWN.items() if 'POP_JUMP_IF' in name}
#: Instructions that are two steps each.
_TWO = {
    'LOAD_FAST_LOAD_FAST': (Does.LOADS_LOCAL, Does.LOADS_LOCAL),
    'LOAD_FAST_BORROW_LOAD_FAST_BORROW': (Does.LOADS_LOCAL, Does.LOADS_LOCAL),
    'STORE_FAST_STORE_FAST': (Does.STORES_LOCAL, Does.STORES_LOCAL),
    'STORE_FAST_LOAD_FAST': (Does.STORES_LOCAL, Does.LOADS_LOCAL),
    'RETURN_CONST': (Does.LOADS_CONSTANT, Does.RETURNS),
}
#: Instructions that are no steps, and those that are a part of the call behind them.
_NONE, _OF_CALLS = ('CACHE', 'EXTENDED_ARG', 'NOT_TAKEN'), ('KW_NAMES', 'PRECALL')
#: The names of all instructions that are understood.
UNDERSTOOD = {*_KNOWN, *_TWO, *_NONE, *_OF_CALLS}
#: Instructions that do what their argument says.
_BY_ARGUMENT = {'LOAD_GLOBAL', 'LOAD_ATTR', 'LOAD_METHOD', 'LOAD_SUPER_ATTR', 'BINARY_OP', 'FORMAT_VALUE'}
_BY_ARGUMENT |= {'CALL_INTRINSIC_1'}
_UNIT, _WITH_FORMAT = 2, 4


class CodeStep(NamedTuple):
    """One thing that code does.

    ``operand``: the name, the constant, the operator or the target of a jump. ``amount``: how many values it takes, or
    how deep it reaches into the stack; of a call, the number of arguments. ``effect``: how many more values the stack
    has behind it. ``is_called``: whether what it loads is only loaded to be called. ``names``: those of the last
    arguments of a call. ``offsets``: where a frame may stand while it is under way, the first one first.
    """

    does: str
    operand: Any
    amount: int
    effect: int
    line: int | None
    offset: int
    is_jump_target: bool
    is_called: bool
    names: tuple[str, ...]
    offsets: tuple[int, ...]


#: Steps of code that was asked for last, with the code, by its id: a run asks several times for each.
_steps: dict[int, tuple[CodeType, list[CodeStep]]] = {}
_REMEMBERED = 1024


def steps_of(code: CodeType) -> list[CodeStep]:
    """The steps of code. Do not change the list."""
    found = _steps.get(id(code))
    if found is None:
        if len(_steps) >= _REMEMBERED:
            _steps.clear()
        found = _steps[id(code)] = code, _read(code)
    return found[1]


def _read(code: CodeType) -> list[CodeStep]:
    steps: list[CodeStep] = []
    every = [*dis.get_instructions(code)]
    names: tuple[str, ...] = ()
    before: tuple[int, ...] = ()
    is_target, effect = False, 0  # all four: what is known of a step by what comes before as a part of it
    for one, after in itertools.pairwise((*every, every[-1])):
        is_target = is_target or one.is_jump_target
        name, operand, count, at = one.opname, one.argval, one.arg or 0, one.offset
        if name in _NONE:
            continue
        line = one.positions.lineno if one.positions else None
        if name in _TWO:
            for does, part in zip(_TWO[name], (operand, None) if name == 'RETURN_CONST' else operand):
                change = 1 if does in (Does.LOADS_LOCAL, Does.LOADS_CONSTANT) else -1
                steps.append(CodeStep(does, part, 0, change, line, at, is_target, False, (), (at,)))
                is_target = False
            continue
        effect += dis.stack_effect(one.opcode, one.arg, jump=False)
        if name in _OF_CALLS:
            names, before = code.co_consts[count] if name == 'KW_NAMES' else names, (*before, at)
            continue
        does, is_called = _KNOWN.get(name, Does.UNKNOWN), False
        if type(operand) is tuple and does in (Does.LOADS_LOCAL, Does.STORES_LOCAL):
            does = Does.UNKNOWN  # of several variables, so it does more than one thing
        if name in _BY_ARGUMENT:
            does, operand, is_called = _by_argument(one, does, count)
        elif name == 'CALL_KW':  # the names lie on the stack
            loads = steps.pop()
            names, before, effect = loads.operand, loads.offsets, effect + 1
            is_target = is_target or loads.is_jump_target
        elif does == Does.UNKNOWN:
            operand = name
        offsets = (*before, at, after.offset - _UNIT) if does in Does.ANY_CALL else (at,)
        steps.append(CodeStep(does, operand, count, effect, line, at, is_target, is_called, names, offsets))
        is_target, names, before, effect = False, (), (), 0
    return steps


def _by_argument(one: dis.Instruction, does: str, count: int) -> tuple[str, Any, bool]:
    """What an instruction does, its operand, and whether it loads something to be called."""
    operand, is_called = one.argval, does == Does.LOADS_METHOD
    if does == Does.OPERATES:
        operand = one.argrepr
        does = Does.GETS_ITEM if operand == '[]' else does
    elif does == Does.RUNS_CODE:
        does = Does.MAKES_TUPLE if one.argrepr == 'INTRINSIC_LIST_TO_TUPLE' else does
    elif does == Does.FORMATS:
        does = Does.FORMATS_BY if count & _WITH_FORMAT else does
    elif does != Does.LOADS_ATTRIBUTE:
        is_called = is_called or bool(count & 1)
    elif sys.version_info >= (3, 12) and count & 1:
        does, is_called = Does.LOADS_METHOD, True
    return does, operand, is_called


def drops_result(code: CodeType, offset: int) -> bool:
    """Whether code drops the result of the call at an offset."""
    bytecode, at = code.co_code, offset + _UNIT
    while dis.opname[bytecode[at]] in _NONE:
        at += _UNIT
    return dis.opname[bytecode[at]] == Does.DROPS
