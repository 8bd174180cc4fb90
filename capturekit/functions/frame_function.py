"""The function whose call a frame is, and whether code called it without others between.

Python keeps both in each frame, and does not show them.
"""

from __future__ import annotations

import ctypes
import sys
from types import FrameType, FunctionType
from typing import Any

_WORD = ctypes.sizeof(ctypes.c_void_p)
#: Where a frame's inner frame has its words: the function, its globals, its code, and the frame itself
#: (``pycore_frame.h``).
_PLACES = {(3, 11): (0, 1, 4, 5), (3, 12): (2, 3, 0, 6), (3, 13): (2, 3, 0, 6)}
_Word = ctypes.c_size_t
_Inner = _Word * 7
#: Which word of a frame leads to the inner frame.
_INNER = 3
#: Where an inner frame shows whether C called it: from 3.12 on, this word leads to the frame below, which is one of C
#: then; in 3.11 a byte says so.
_BELOW = {(3, 12): 1, (3, 13): 1}
_ENTRY = {(3, 11): 8 * _WORD + 4}


def _places() -> tuple[int, int, int, int] | None:
    """None where objects may be laid out in another way: other interpreters, free threads, builds that trace them."""
    odd = sys.implementation.name != 'cpython' or hasattr(sys, 'getobjects')
    return None if odd or 'free-threading' in sys.version else _PLACES.get(sys.version_info[:2])


_HERE = _places()
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
