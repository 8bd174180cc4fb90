"""The backends of SciPy's functions: whatever is called in the place of ``scipy.fft.fft`` and its like.

SciPy asks ``uarray``, which holds backends that are set for all threads, and others for one thread. A backend is a
module or a class with a method ``__ua_function__``. Those of CuPy and SciPy are understood; which ones are set is
compared at each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

from capturekit.functions.readable_state import is_in_its_module
from capturekit.functions.understood import PACKAGES, module_of
from capturekit.model.class_layout import MISSING, found_in_class

_PARTS = ('__ua_domain__', '__ua_function__', '__ua_convert__')
_METHODS = frozenset(_PARTS)
_MODULES = ('scipy._lib._uarray', 'scipy.fft._backend', 'uarray')


def uses_backends(module: str, function: str = '') -> bool:
    """Whether a function of a library, by the name of its module and its own, asks for backends or changes them."""
    return function in _METHODS or module.startswith(_MODULES)


def backends_hold() -> Callable[[], bool]:
    """Return what tells whether the same backends are set as now, with the same methods."""
    found = [*_backends()]  # it keeps them alive, so that their ids stay theirs
    before = _form(found)
    return lambda: _form(_backends()) == before


def backend_of_a_user(frame: FrameType | None = None) -> bool:
    """Whether a backend is set that is no library's. ``frame``: of a function that is given one as ``backend``."""
    given = [] if frame is None else [frame.f_locals.get('backend')]
    return not all(_is_of_a_library(one) for one in (*_backends(), *given))


def _form(values: Iterable[Any]) -> list[Any]:
    return [one if type(one) in (str, bool) else (id(one), *map(id, _parts(one))) for one in values]


def _backends() -> Iterator[Any]:
    """What ``uarray`` holds, in order: names of domains, backends, and how each was set."""
    ask = getattr(sys.modules.get('scipy._lib.uarray'), 'get_state', None)
    if ask is None:
        return
    of_all, of_thread, own = ask()._pickle()
    yield from _flat(of_all)
    yield own
    for domain, chosen in of_thread.items():
        if any(chosen):  # a block that has ended leaves an empty list
            yield domain
            yield from _flat(chosen)


def _flat(value: Any) -> Iterator[Any]:
    """The values in nested containers, each container between marks."""
    if type(value) not in (dict, list, tuple):
        yield value
        return
    yield '('
    for one in (part for pair in value.items() for part in pair) if type(value) is dict else value:
        yield from _flat(one)
    yield ')'


def _parts(backend: Any) -> Iterator[Any]:
    """The methods of a backend: of what the user's code answers, nothing is asked."""
    inside = vars(backend) if type(backend) is ModuleType else {}
    cls = backend if issubclass(type(backend), type) else type(backend)
    for name in _PARTS:
        yield inside.get(name, found_in_class(cls, name))


def _is_of_a_library(value: Any) -> bool:
    cls = type(value)
    if cls in (str, bool, type(None)) or value is MISSING:
        return True
    if cls is ModuleType:
        return value.__name__.partition('.')[0] in PACKAGES and sys.modules.get(value.__name__) is value
    return issubclass(cls, type) and module_of(value).partition('.')[0] in PACKAGES and is_in_its_module(value)
