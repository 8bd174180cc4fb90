"""The function whose call a frame is. Python keeps it in each frame, from 3.11 on, and does not show it."""

from __future__ import annotations

import ctypes
import sys
from types import FrameType, FunctionType

_WORD = ctypes.sizeof(ctypes.c_void_p)
#: Where a frame's inner frame has its words: the function, its globals, its code, and the frame itself
#: (``pycore_frame.h``).
_PLACES = {(3, 11): (0, 1, 4, 5), (3, 12): (2, 3, 0, 6), (3, 13): (2, 3, 0, 6)}
_WORDS = 7
#: Which word of a frame leads to the inner frame.
_INNER = 3


def _places() -> tuple[int, int, int, int] | None:
    """None where objects may be laid out in another way: other interpreters, free threads, builds that trace them."""
    odd = sys.implementation.name != 'cpython' or hasattr(sys, 'getobjects')
    return None if odd or 'free-threading' in sys.version else _PLACES.get(sys.version_info[:2])


_HERE = _places()


def function_of(frame: FrameType) -> FunctionType | None:
    """The function; None where this Python does not tell, and once the function has got other code.

    Several functions may have the same code: to find them all, each object of the process would have to be looked at.
    """
    if _HERE is None:
        return None
    function, variables, code, itself = _HERE
    at = ctypes.c_size_t.from_address(id(frame) + _INNER * _WORD).value
    inner = (ctypes.c_size_t * _WORDS).from_address(at)
    if (inner[variables], inner[code], inner[itself]) != (id(frame.f_globals), id(frame.f_code), id(frame)):
        return None
    found = ctypes.cast(inner[function], ctypes.py_object).value if inner[function] else None
    return found if type(found) is FunctionType and found.__code__ is frame.f_code else None
