"""Which calls get what the code that they enter returns, because nothing stands between; which function a frame runs.

``any(map(f, xs))`` enters ``f`` and does something with what it returns. So does each function written in C, and each
class, that gets a function or an object of the user's. Python keeps in each frame its function, and whether code
called it without others between, and does not show them.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import numpy as np

from capturekit.graphed.code_reads import keeps_argument
from capturekit.graphed.stack_steps import loader_of, maker_of
from capturekit.model.code_steps import CodeStep, Does, steps_of

_WORD = ctypes.sizeof(ctypes.c_void_p)
#: Where a frame's inner frame has its words: the function, its globals, its code, and the frame itself
#: (``pycore_frame.h``).
_WORDS_OF_FRAMES = {(3, 11): (0, 1, 4, 5), (3, 12): (2, 3, 0, 6), (3, 13): (2, 3, 0, 6), (3, 14): (2, 3, 0, 6)}
#: The bit that Python 3.14 sets in a word of a frame which holds no reference of its own: its caller has one.
_BORROWED = 1
_Word = ctypes.c_size_t
_Inner = _Word * 7
#: Which word of a frame leads to the inner frame.
_INNER = 3
#: Where an inner frame shows whether C called it: from 3.12 on, this word leads to the frame below, which is one of C
#: then; in 3.11 a byte says so.
_BELOW = {(3, 12): 1, (3, 13): 1, (3, 14): 1}
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
    function = inner[_HERE[0]] & ~_BORROWED
    found = ctypes.cast(function, ctypes.py_object).value if function else None
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

#: The types of functions that return what the code they call returns: Python's, and those that NumPy dispatches.
_RETURN: tuple[Any, ...] = (FunctionType, type(np.sum))
#: The type of functions that jax compiles. They call nothing but jax's own code.
_OF_JAX = frozenset({'PjitFunction'})


class ReturnPaths:
    """Told of the code that calls enter."""

    def __init__(self) -> None:
        #: The calls, and the ids of code, between which others may have come.
        self._through_others: set[tuple[Caller, int]] = set()
        #: By the id of code and an offset in it: the variable of the function that it hands all its arguments to.
        self._wrapped: dict[tuple[int, int], str | None] = {}

    def enters(self, caller: Caller, frame: FrameType) -> None:
        """Note that a call has entered a function."""
        key = caller, id(frame.f_code)
        if key not in self._through_others and not was_called_directly(frame) and not self._is_handed_on(frame):
            self._through_others.add(key)

    def _is_handed_on(self, frame: FrameType) -> bool:
        """Whether a wrapper has called this function with all that it was given: ``wrapped(*args, **named)``.

        Python calls it by code written in C, from 3.12.2 on where calls are watched, and does not show that this code
        does nothing else. Solvers whose methods are decorated need it.
        """
        below = frame.f_back
        if below is None:
            return False
        key = id(below.f_code), below.f_lasti
        if key not in self._wrapped:
            self._wrapped[key] = _wrapped_in(below.f_code, below.f_lasti)
        variable, wrapper = self._wrapped[key], function_of(below)
        if variable is None or wrapper is None or wrapper.__closure__ is None:
            return False
        function = wrapper.__closure__[below.f_code.co_freevars.index(variable)].cell_contents
        function = function.__func__ if type(function) is MethodType else function
        return type(function) is FunctionType and function.__code__ is frame.f_code

    def is_direct(self, caller: Caller, code: CodeType) -> bool:
        """Whether a call has entered code only directly."""
        return (caller, id(code)) not in self._through_others


def _wrapped_in(code: CodeType, offset: int) -> str | None:
    """The variable of the enclosing code whose function a call like ``f(x, *args, **named)`` calls; None of others."""
    steps = steps_of(code)
    place = next((number for number, step in enumerate(steps) if step.offset == offset), 0)
    load = loader_of(steps, place) if gets_a_tuple(code, steps, place) else None
    is_enclosing = load is not None and steps[load].does == Does.LOADS_CELL and steps[load].operand in code.co_freevars
    return steps[load].operand if load is not None and is_enclosing else None


def gets_a_tuple(code: CodeType, steps: list[CodeStep], place: int) -> bool:
    """Whether a step is a call like ``f(x, *args, **named)``, whose code shows that it has a tuple to hand on.

    Of anything else, as in ``f(*map(g, xs))``, the call makes a tuple first, so it may call others.
    """
    if steps[place].does != Does.CALLS_UNPACKED:
        return False
    made = maker_of(steps, place, -2 - steps[place].effect)  # below the named arguments, if there is a place for them
    if made is None:
        return False
    given = steps[made].does == Does.LOADS_LOCAL and steps[made].operand == _own_arguments(code)
    return given or steps[made].does in (Does.MAKES_TUPLE, Does.BUILDS_TUPLE)


def _own_arguments(code: CodeType) -> str | None:
    """The name of ``*args``; None if code has none, or gives it other values."""
    if not code.co_flags & inspect.CO_VARARGS:
        return None
    name = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
    return name if keeps_argument(code, name) else None


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
