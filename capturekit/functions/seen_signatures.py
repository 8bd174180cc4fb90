"""Functions of whose signature it is known what ``inspect.signature`` reads to find it."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any

from capturekit.model.class_layout import MISSING

_LONGEST = 100
_PARTIAL = frozenset({'_partialmethod', '__partialmethod__'})


def has_plain_signature(function: Any) -> bool:
    """Whether a function, and all that it wraps, is one of Python, and a signature that it has is kept as such."""
    for _ in range(_LONGEST):
        if type(function) is MethodType:
            function = function.__func__
            continue
        if type(function) is not FunctionType or not _PARTIAL.isdisjoint(function.__dict__):
            return False
        inside = function.__dict__
        if inside.get('__signature__') is not None:
            return type(inside['__signature__']) is inspect.Signature
        function = inside.get('__wrapped__', MISSING)
        if function is MISSING:
            return True
    return False
