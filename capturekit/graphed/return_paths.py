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

from capturekit.graphed.code_reads import LoadedValue, keeps_argument, loaded_at
from capturekit.graphed.stack_steps import loader_of, maker_of
from capturekit.model.code_steps import Does, steps_of

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
#: The word of an inner frame that leads to the frame below, from Python 3.12 on: where C called, that is one of C.
_BELOW = 1
#: The byte of an inner frame of Python 3.11 that says whether C called.
_ENTRY = 8 * _WORD + 4


def _words_of_frames() -> tuple[int, int, int, int] | None:
    """None where objects may be laid out in another way: other interpreters, free threads, builds that trace them."""
    odd = sys.implementation.name != 'cpython' or hasattr(sys, 'getobjects')
    return None if odd or 'free-threading' in sys.version else _WORDS_OF_FRAMES.get(sys.version_info[:2])


_HERE = _words_of_frames()


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
    inner = None if _HERE is None else _inner(frame, *_HERE[1:])
    if inner is None or below is None:
        return False
    if sys.version_info >= (3, 12):
        return bool(inner[_BELOW] == _at(below))
    return not ctypes.c_ubyte.from_address(_at(frame) + _ENTRY).value


def _at(frame: FrameType) -> int:
    return _Word.from_address(id(frame) + _INNER * _WORD).value


def _inner(frame: FrameType, variables: int, code: int, itself: int) -> Any:
    """The words of the inner frame of a frame; None if they are not where they are sought."""
    inner = _Inner.from_address(_at(frame))
    known = (inner[variables], inner[code], inner[itself]) == (id(frame.f_globals), id(frame.f_code), id(frame))
    return inner if known else None


#: The id of code and the offset in it; None: the run itself.
Caller = tuple[int, int] | None

#: The type of functions that jax compiles.
_OF_JAX = frozenset({'PjitFunction'})


class ReturnPaths:
    """Told of the code that calls enter."""

    def __init__(self) -> None:
        #: The calls, and the ids of code, between which others may have come.
        self._through_others: set[tuple[Caller, int]] = set()
        #: By the id of code and an offset in it: where it finds the function that it calls with a tuple of arguments.
        self._unpacked: dict[tuple[int, int], LoadedValue | None] = {}

    def enters(self, caller: Caller, frame: FrameType) -> None:
        """Note that a call has entered a function."""
        key = caller, id(frame.f_code)
        if key not in self._through_others and not was_called_directly(frame) and not self._is_handed_on(frame):
            self._through_others.add(key)

    def _is_handed_on(self, frame: FrameType) -> bool:
        """Whether code has called this function like ``f(x, *args, **named)``.

        Python calls it by code written in C, from 3.12.2 on where calls are watched, and does not show that this code
        does nothing else. Solvers whose methods are decorated need it.
        """
        below = frame.f_back
        if below is None:
            return False
        key = id(below.f_code), below.f_lasti
        if key not in self._unpacked:
            self._unpacked[key] = _called_with_a_tuple(below.f_code, below.f_lasti)
        loads = self._unpacked[key]
        function = None if loads is None else loads.value_in(below)
        function = function.__func__ if type(function) is MethodType else function
        return type(function) is FunctionType and function.__code__ is frame.f_code

    def is_direct(self, caller: Caller, code: CodeType) -> bool:
        """Whether a call has entered code only directly."""
        return (caller, id(code)) not in self._through_others


def _called_with_a_tuple(code: CodeType, offset: int) -> LoadedValue | None:
    """Where code finds what it calls like ``f(x, *args, **named)``, if it shows that it has a tuple to hand on.

    Of anything else, as in ``f(*map(g, xs))``, the call makes a tuple first, so it may call others.
    """
    steps = steps_of(code)
    place = next((number for number, step in enumerate(steps) if step.offset == offset), 0)
    load = loader_of(steps, place) if steps[place].does == Does.CALLS_UNPACKED else None
    found = None if load is None else loaded_at(steps, load)
    if load is None or found is None:
        return None
    made = maker_of(steps, load, place, -2 - steps[place].effect)  # below the named arguments, if they have a place
    given = None if made is None else steps[made]
    if given is None or (given.does in Does.ANY_VARIABLE and given.operand != _own_arguments(code)):
        return None
    return found[0] if given.does in (Does.LOADS_LOCAL, Does.MAKES_TUPLE, Does.BUILDS_TUPLE) else None


def _own_arguments(code: CodeType) -> str | None:
    """The name of ``*args``; None if code has none, or gives it other values."""
    if not code.co_flags & inspect.CO_VARARGS:
        return None
    name = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
    return name if keeps_argument(code, name) else None


def is_jaxs(value: Any) -> bool:
    """Whether a value is a function that jax has compiled."""
    return type(value).__name__ in _OF_JAX and type(value).__module__.startswith('jax')
