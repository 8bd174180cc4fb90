"""Functions that Numba has not compiled yet: Numba compiles one whenever it is called for the first time.

Python tells nobody when a compiled function runs, nor what it reads. One that has no compiled version, neither before
a run nor after it, was not called in that run.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from capturekit.functions.readable_state import is_in_its_module
from capturekit.functions.understood import module_of
from capturekit.model.class_layout import among, attributes_of, name_of

_CLASSES = frozenset({'numba.core.registry.CPUDispatcher'})
#: Where such a function keeps its compiled versions.
_VERSIONS = 'overloads'


def is_uncompiled(value: Any) -> bool:
    """Whether a value is a function of Numba's that has no compiled version."""
    cls = type(value)
    if f'{module_of(cls)}.{name_of(cls)}' not in _CLASSES or not is_in_its_module(cls):
        return False
    versions = attributes_of(value).get(_VERSIONS)
    return among(type(versions), (dict, OrderedDict)) and not versions
