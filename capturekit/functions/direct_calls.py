"""Which calls get what the code that they enter returns, because nothing stands between.

``any(map(f, xs))`` enters ``f`` and does something with what it returns. So does each function written in C, and each
class, that gets a function or an object of the user's.
"""

from __future__ import annotations

import dis
from types import CodeType, FrameType, FunctionType, MethodType

from capturekit.functions.code_reads import single_steps
from capturekit.functions.frame_function import was_called_directly

#: The id of code and the offset in it; None: the run itself.
Caller = tuple[int, int] | None

_VARARGS, _VARKEYWORDS = 0x04, 0x08
#: The instructions between one that loads a function and one that calls it with the arguments of the code.
_PASSING = frozenset({'LOAD_FAST', 'LOAD_FAST_BORROW', 'BUILD_MAP', 'DICT_MERGE', 'PUSH_NULL'})
_VARIABLES = frozenset({'LOAD_FAST', 'LOAD_FAST_BORROW', 'LOAD_DEREF'})


class DirectCalls:
    """Told of the code that calls enter."""

    def __init__(self) -> None:
        #: The calls, and the ids of code, between which others may have come.
        self._through_others: set[tuple[Caller, int]] = set()
        #: The variables that calls like ``f(*args)`` find a function in.
        self._variables: dict[tuple[int, int], str | None] = {}

    def enters(self, caller: Caller, frame: FrameType) -> None:
        """Note that a call has entered a function."""
        key = caller, id(frame.f_code)
        if key not in self._through_others and not was_called_directly(frame) and not self._is_handed_on(frame):
            self._through_others.add(key)

    def is_direct(self, caller: Caller, code: CodeType) -> bool:
        """Whether a call has entered code only directly."""
        return (caller, id(code)) not in self._through_others

    def _is_handed_on(self, frame: FrameType) -> bool:
        """Whether the code below has called a function or a method in a variable, with all its arguments.

        Python calls such a method by code of its own in C, so that the frames do not show a direct call.
        """
        below = frame.f_back
        if below is None:
            return False
        key = id(below.f_code), below.f_lasti
        if key not in self._variables:
            self._variables[key] = _called_with_all(below.f_code, below.f_lasti)
        name = self._variables[key]
        function = None if name is None else below.f_locals.get(name)
        function = function.__func__ if type(function) is MethodType else function
        return type(function) is FunctionType and function.__code__ is frame.f_code


def _called_with_all(code: CodeType, offset: int) -> str | None:
    """The variable that a call finds its function in, if it is like ``f(*args, **kwargs)`` with the code's own."""
    steps = single_steps(code)
    place = next((number for number, step in enumerate(steps) if step.offset == offset), 0)
    if steps[place].opname != 'CALL_FUNCTION_EX':
        return None
    first = place - 1
    own = _own_arguments(code)
    while first > 0 and steps[first].opname in _PASSING and (steps[first].argval in own or not _loads(steps[first])):
        first -= 1
    jumps = any(step.is_jump_target for step in steps[first + 1 : place + 1])
    return steps[first].argval if steps[first].opname in _VARIABLES and not jumps else None


def _loads(step: dis.Instruction) -> bool:
    return step.opname.startswith('LOAD_')


def _own_arguments(code: CodeType) -> set[str]:
    """The names of ``*args`` and ``**kwargs``, unless they get other values."""
    first = code.co_argcount + code.co_kwonlyargcount
    names = set(code.co_varnames[first : first + bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)])
    return names - {step.argval for step in single_steps(code) if step.opname.startswith(('STORE_', 'DELETE_'))}
