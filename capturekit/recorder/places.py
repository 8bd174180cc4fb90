"""Places in which the user's code keeps values: which of them mean another array after the body of a decision.

A body is recorded once, and Python binds its names while that happens. So a name, an attribute or an item that held a
value before the body and holds an array from the body after it would mean that array, however the device decides.
"""

from __future__ import annotations

import dis
import re
import sys
from collections import deque
from collections.abc import Iterator
from types import CellType, FrameType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from capturekit.launch.outside_arrays import is_installed, variables_of

#: How deep containers are looked into: ``model.state['w'][0]`` is an item of an item of an attribute.
_DEPTH = 4
#: Containers with more items than these are not looked through, nor are more containers than these.
_MOST, _LOOKED_AT = 1000, 20_000
_NUMBERS = (int, float, complex, np.generic)
_LISTS = (list, tuple, deque)
#: Modules of Python whose objects users keep values in. Objects of other libraries are not looked into.
_KEEPERS = frozenset({'types', 'functools', 'collections', 'builtins'})


class FramePlaces:
    """The arrays and numbers that can be reached from a frame: by their places, with the name that code has for each.

    ``lists``: how long the lists are, by their identities. Everything is held, so that identities stay what they are.
    """

    def __init__(self, frame: FrameType | None, array: type) -> None:
        self.found: dict[tuple[int, Any], tuple[str, Any]] = {}
        self.lists: dict[int, int] = {}
        self._array = array
        self._seen: dict[int, Any] = {}
        if frame is not None:
            for name, value in variables_of(frame).items():
                self._add((0, name), name, value, _DEPTH)
            if frame.f_locals is not frame.f_globals:
                for name, value in list(frame.f_globals.items()):
                    self._add((1, name), name, value, _DEPTH)

    def _add(self, key: tuple[int, Any], name: str, value: Any, depth: int) -> None:
        if isinstance(value, (self._array, *_NUMBERS)):
            self.found[key] = name, value
        elif (
            depth
            and len(self._seen) < _LOOKED_AT
            and id(value) not in self._seen
            and not isinstance(value, (str, bytes, np.ndarray, type(None)))
        ):
            self._seen[id(value)] = value
            if isinstance(value, (list, deque)):
                self.lists[id(value)] = len(value)
            for part, label, inner in _inside(value):
                self._add((id(value), part), f'{name}{label}', inner, depth - 1)

    def changed(self, now: FramePlaces) -> Iterator[tuple[str, Any, Any, bool]]:
        """Yield what means another array ``now``, or an array in the place of a number, and the reverse.

        Each comes with its name, the value before and the value now; and whether it is a variable of the frame.
        """
        for key, (name, value) in now.found.items():
            owner, part = key
            _, before = self.found.get(key, ('', None))
            if before is None:
                grown = owner in self.lists and isinstance(part, int) and part >= self.lists[owner]
                if grown and isinstance(value, self._array):
                    yield name, None, value, False
            elif not self._same(before, value):
                yield name, before, value, owner in (0, 1)

    def _same(self, before: Any, value: Any) -> bool:
        arrays = isinstance(before, self._array), isinstance(value, self._array)
        if before is value or not any(arrays):
            return True
        return all(arrays) and _layout(before) == _layout(value)


def _layout(array: Any) -> Any:
    return array.data.ptr, array.shape, array.strides, array.dtype


def _inside(value: Any) -> list[tuple[Any, str, Any]]:
    """What an object holds: the place in it, what code writes behind its name, and the value there."""
    if isinstance(value, _LISTS):
        return [(n, f'[{n}]', one) for n, one in enumerate(value)] if len(value) < _MOST else []
    if isinstance(value, dict):
        keys = list(value.items()) if len(value) < _MOST else []
        return [(key, f'[{key!r:.40}]', one) for key, one in keys if isinstance(key, (str, int, float, tuple, bytes))]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        return [(name, f'.{name}', cell.cell_contents) for name, cell in cells if _filled(cell)]
    if isinstance(value, MethodType):
        return [('__self__', '', value.__self__)]
    if isinstance(value, ModuleType):
        return [] if is_installed(value) else _attributes(vars(value))
    module = (value if isinstance(value, type) else type(value)).__module__
    if module not in _KEEPERS and (module not in sys.modules or is_installed(sys.modules[module])):
        return []
    if isinstance(value, type):
        return _attributes(vars(value)) if module not in _KEEPERS else []
    slots = [
        (name, f'.{name}', one.__get__(value))
        for kind in type(value).__mro__
        for name, one in vars(kind).items()
        if name != '__dict__' and isinstance(one, MemberDescriptorType) and _has(one, value)
    ]
    return slots + _attributes(getattr(value, '__dict__', {}))


def _attributes(values: Any) -> list[tuple[Any, str, Any]]:
    if not isinstance(values, (dict, MappingProxyType)) or len(values) >= _MOST:
        return []
    return [(name, f'.{name}', one) for name, one in list(values.items())]


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # not assigned yet
        return False


def _has(member: MemberDescriptorType, value: Any) -> bool:
    try:
        return member.__get__(value) is not None
    except AttributeError:  # not assigned yet
        return False


def is_used_again(frame: FrameType, name: str) -> bool:
    """Whether the code of a frame, from where it is on, reads a variable before it sets it anew."""
    for one in dis.get_instructions(frame.f_code):
        if one.offset > frame.f_lasti and 'ATTR' not in one.opname and 'METHOD' not in one.opname:
            names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            for verb, other in zip(re.findall('LOAD|STORE|DELETE', one.opname), names):
                if other == name:
                    return bool(verb == 'LOAD')
    return False


def is_dropped(frame: FrameType | None) -> bool:
    """Whether a frame drops the result of the call that it is making."""
    if frame is None:
        return False
    code, at = frame.f_code.co_code, frame.f_lasti + 2
    while dis.opname[code[at]] == 'CACHE':
        at += 2
    return dis.opname[code[at]] == 'POP_TOP'
