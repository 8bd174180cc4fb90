"""Which calls get what the code that they enter returns, because nothing stands between; which function a frame runs.

``any(map(f, xs))`` enters ``f`` and does something with what it returns. So does each function written in C, and each
class, that gets a function or an object of the user's. Python keeps in each frame its function, and whether code
called it without others between, and does not show them.
"""

from __future__ import annotations

import ctypes
import dis
import sys
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np

from capturekit.functions.instructions import loader_of, plain_steps, single_steps
from capturekit.functions.loaded_values import LoadedValue, loaded_before, method_in

_WORD = ctypes.sizeof(ctypes.c_void_p)
#: Where a frame's inner frame has its words: the function, its globals, its code, and the frame itself
#: (``pycore_frame.h``).
_WORDS_OF_FRAMES = {(3, 11): (0, 1, 4, 5), (3, 12): (2, 3, 0, 6), (3, 13): (2, 3, 0, 6)}
_Word = ctypes.c_size_t
_Inner = _Word * 7
#: Which word of a frame leads to the inner frame.
_INNER = 3
#: Where an inner frame shows whether C called it: from 3.12 on, this word leads to the frame below, which is one of C
#: then; in 3.11 a byte says so.
_BELOW = {(3, 12): 1, (3, 13): 1}
_ENTRY = {(3, 11): 8 * _WORD + 4}


def _words_of_frames() -> tuple[int, int, int, int] | None:
    """None where objects may be laid out in another way: other interpreters, free threads, builds that trace them."""
    odd = sys.implementation.name != 'cpython' or hasattr(sys, 'getobjects')
    return None if odd or 'free-threading' in sys.version else _WORDS_OF_FRAMES.get(sys.version_info[:2])


_HERE = _words_of_frames()
_BELOW_HERE = _BELOW.get(sys.version_info[:2])
_ENTRY_HERE = _ENTRY.get(sys.version_info[:2])
#: Whether this Python shows which calls are direct.
TELLS = _HERE is not None and (_BELOW_HERE or _ENTRY_HERE) is not None


def function_of(frame: FrameType) -> FunctionType | None:
    """The function; None where this Python does not tell, and once the function has got other code.

    Several functions may have the same code: to find them all, each object of the process would have to be looked at.
    """
    if _HERE is None:
        return None
    inner = _inner(frame, *_HERE[1:])
    if inner is None:
        return None
    function = _HERE[0]
    found = ctypes.cast(inner[function], ctypes.py_object).value if inner[function] else None
    return found if type(found) is FunctionType and found.__code__ is frame.f_code else None


def was_called_directly(frame: FrameType) -> bool:
    """Whether the code below has called this frame's function itself, so that it gets what the function returns.

    False where code written in C called it, which may do anything with what is returned, and where this Python does not
    tell.
    """
    below = frame.f_back
    if not TELLS or _HERE is None or below is None:
        return False
    inner = _inner(frame, *_HERE[1:])
    if inner is None:
        return False
    if _BELOW_HERE is not None:
        return bool(inner[_BELOW_HERE] == _at(below))
    return not ctypes.c_ubyte.from_address(_at(frame) + (_ENTRY_HERE or 0)).value


def _at(frame: FrameType) -> int:
    return _Word.from_address(id(frame) + _INNER * _WORD).value


def _inner(frame: FrameType, variables: int, code: int, itself: int) -> Any:
    """The words of the inner frame of a frame; None if they are not where they are sought."""
    inner = _Inner.from_address(_at(frame))
    known = (inner[variables], inner[code], inner[itself]) == (id(frame.f_globals), id(frame.f_code), id(frame))
    return inner if known else None


#: The id of code and the offset in it; None: the run itself.
Caller = tuple[int, int] | None

_VARARGS, _VARKEYWORDS = 0x04, 0x08
#: The instructions between one that loads a function and one that calls it with the arguments of the code.
_PASSING = frozenset({'LOAD_FAST', 'LOAD_FAST_BORROW', 'BUILD_MAP', 'DICT_MERGE', 'PUSH_NULL'})
_VARIABLES = frozenset({'LOAD_FAST', 'LOAD_FAST_BORROW', 'LOAD_DEREF'})
_LOADS = (*_VARIABLES, 'LOAD_FAST_CHECK', 'LOAD_GLOBAL', 'LOAD_NAME')
#: The instructions that make a tuple.
_MAKE_TUPLES = frozenset({'LIST_TO_TUPLE', 'BUILD_TUPLE'})
#: Whether a place for named arguments lies on the stack in each call like ``f(*args)``.
_ALWAYS_NAMED = sys.version_info >= (3, 14)


#: The types of functions that return what the code they call returns: Python's, and those that NumPy dispatches.
_RETURN: tuple[Any, ...] = (FunctionType, type(np.sum))
#: The type of functions that jax compiles. They call nothing but jax's own code.
_OF_JAX = frozenset({'PjitFunction'})


class ReturnPaths:
    """Told of the code that calls enter."""

    def __init__(self) -> None:
        #: The calls, and the ids of code, between which others may have come.
        self._through_others: set[tuple[Caller, int]] = set()
        #: Where calls like ``f(*args)`` find what they call.
        self._found_in: dict[tuple[int, int], FunctionLoaded | None] = {}

    def enters(self, caller: Caller, frame: FrameType) -> None:
        """Note that a call has entered a function."""
        key = caller, id(frame.f_code)
        if key not in self._through_others and not was_called_directly(frame) and not self._is_handed_on(frame):
            self._through_others.add(key)

    def is_direct(self, caller: Caller, code: CodeType) -> bool:
        """Whether a call has entered code only directly."""
        return (caller, id(code)) not in self._through_others

    def _is_handed_on(self, frame: FrameType) -> bool:
        """Whether the code below has called a function or a method by ``f(*args)``, which is found to be this one.

        Python calls it by code written in C, from 3.12.2 on where calls are watched, and does not show that this code
        does nothing else.
        """
        below = frame.f_back
        if below is None:
            return False
        key = id(below.f_code), below.f_lasti
        if key not in self._found_in:
            self._found_in[key] = _called_by_all(below.f_code, below.f_lasti)
        found = self._found_in[key]
        function = found.value_in(below) if found is not None and found.gets_a_tuple(below) else None
        function = function.__func__ if type(function) is MethodType else function
        return type(function) is FunctionType and function.__code__ is frame.f_code


class FunctionLoaded(NamedTuple):
    """What code calls by ``f(*args)``: a variable, a global, or an attribute (``name``) of one.

    ``arguments``: what has the positional arguments. None: they are a tuple already.
    """

    of: LoadedValue
    name: str
    arguments: LoadedValue | None

    def value_in(self, frame: FrameType) -> Any:
        """What a frame has there; MISSING if code may have to run to find it."""
        value = self.of.value_in(frame)
        return method_in(value, self.name) if self.name else value

    def gets_a_tuple(self, frame: FrameType) -> bool:
        """Whether the arguments are a tuple. Of anything else, as in ``f(*map(f, xs))``, the call makes one first."""
        return self.arguments is None or type(self.arguments.value_in(frame)) is tuple


def _called_by_all(code: CodeType, offset: int) -> FunctionLoaded | None:
    """What a call like ``f(*args, **named)`` calls; None if that is not seen, or if it is another call."""
    steps = plain_steps(code)
    place = next((number for number, step in enumerate(steps) if step.offset == offset), 0)
    arguments = None if steps[place].opname != 'CALL_FUNCTION_EX' else _positional(steps, place)
    given = None if arguments is None else _loaded(steps, arguments, place)
    if arguments is None or (given is None and not gets_a_tuple(code, steps, place)):
        return None
    load = loader_of(steps, place)
    if load is None:
        variable = _called_with_all(code, steps, place)
        return None if variable is None else FunctionLoaded(LoadedValue(variable), '', given)
    if steps[load].opname in ('LOAD_ATTR', 'LOAD_METHOD'):
        of = loaded_before(steps, load)
        return None if of is None else FunctionLoaded(of, steps[load].argval, given)
    return FunctionLoaded(LoadedValue(steps[load].argval, steps[load].opname == 'LOAD_GLOBAL'), '', given)


def gets_a_tuple(code: CodeType, steps: list[dis.Instruction], place: int) -> bool:
    """Whether the code shows that the positional arguments of a call like ``f(*args)`` are a tuple before it."""
    number = _positional(steps, place)
    if number is None:
        return False
    step = steps[number]
    if step.opname in _MAKE_TUPLES or step.argrepr == 'INTRINSIC_LIST_TO_TUPLE':
        return True
    if step.opname == 'LOAD_CONST':
        return type(step.argval) is tuple
    return step.opname in _VARIABLES and step.argval in _own_arguments(code, _VARARGS)


def _positional(steps: list[dis.Instruction], place: int) -> int | None:
    """The instruction that leaves the positional arguments of a call like ``f(*args)`` on the stack, if it is one."""
    above = int(_ALWAYS_NAMED or bool(steps[place].arg))
    for number in range(place - 1, -1, -1):
        step = steps[number]
        if steps[number + 1].is_jump_target or 'JUMP' in step.opname or above < 0:
            return None
        if not above:
            return number
        above -= dis.stack_effect(step.opcode, step.arg, jump=False)
    return None


def _loaded(steps: list[dis.Instruction], number: int, place: int) -> LoadedValue | None:
    """What an instruction loads, if it is a variable, or an attribute of one, that is the same still at a place."""
    step = steps[number]
    if any(one.opname.startswith(('STORE_', 'CALL')) for one in steps[number + 1 : place]):
        return None
    if step.opname == 'LOAD_ATTR':
        return loaded_before(steps, number + 1)
    return LoadedValue(step.argval, step.opname in ('LOAD_GLOBAL', 'LOAD_NAME')) if step.opname in _LOADS else None


def _called_with_all(code: CodeType, steps: list[dis.Instruction], place: int) -> str | None:
    """The variable that a call finds its function in, if it is like ``f(*args, **kwargs)`` with the code's own."""
    first, own = place - 1, _own_arguments(code, _VARARGS) | _own_arguments(code, _VARKEYWORDS)
    while first > 0 and steps[first].opname in _PASSING and (steps[first].argval in own or not _loads(steps[first])):
        first -= 1
    jumps = any(step.is_jump_target for step in steps[first + 1 : place + 1])
    return steps[first].argval if steps[first].opname in _VARIABLES and not jumps else None


def _loads(step: dis.Instruction) -> bool:
    return step.opname.startswith('LOAD_')


def _own_arguments(code: CodeType, kind: int) -> set[str]:
    """The name of ``*args``, or of ``**kwargs``, as a set, which is empty if it gets other values."""
    if not code.co_flags & kind:
        return set()
    first = code.co_argcount + code.co_kwonlyargcount
    name = code.co_varnames[first + (kind == _VARKEYWORDS and bool(code.co_flags & _VARARGS))]
    return {name} - {step.argval for step in single_steps(code) if step.opname.startswith(('STORE_', 'DELETE_'))}


def is_jaxs(value: Any) -> bool:
    """Whether a value is a function that jax has compiled."""
    return type(value).__name__ in _OF_JAX and type(value).__module__.startswith('jax')


def is_plain(value: Any) -> bool:
    """Whether a value is a function that returns what the code returns which it enters, if it enters any."""
    return type(value) in _RETURN or type(value).__name__ in _OF_JAX


def returns_for(value: Any, code: CodeType) -> bool:
    """Whether a value is a function that returns what this code returns, where it has entered it.

    One that NumPy dispatches also asks its arguments for arrays and numbers (``__array__``), and then computes.
    """
    if type(value) is FunctionType:
        return value.__code__ is code
    return is_plain(value) and code.co_name == '__array_function__'
