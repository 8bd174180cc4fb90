"""Places in which the user's code keeps values: which of them mean another array after the body of a decision.

A body is recorded once, and Python binds its names while that happens. So a name, an attribute or an item that held a
value before the body and holds an array from the body after it would mean that array, however the device decides.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FrameType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from capturekit.launch.outside_arrays import is_installed, variables_of
from capturekit.model.source_line import Place, is_foreign_frame

#: How deep containers are looked into: ``model.state['w'][0]`` is an item of an item of an attribute.
_DEPTH = 4
#: Containers with more items than these are not looked through, nor are more containers than these.
_MOST, _LOOKED_AT = 1000, 20_000
#: How many functions of the user that have called each other are looked into.
_CALLERS = 5
_NUMBERS = (int, float, complex, np.generic)
_LISTS = (list, tuple, deque)
#: Modules of Python whose objects users keep values in. Objects of other libraries are not looked into.
_KEEPERS = frozenset({'types', 'functools', 'collections', 'builtins'})
#: A name, the value before and the value now; and the frame whose variable it is.
Changed = tuple[str, Any, Any, 'FrameType | None']


class FramePlaces:
    """The arrays and numbers that can be reached from a frame and its callers: by their places, with a name for each.

    ``lists``: how long the lists are, by their identities. Everything is held, so that identities stay what they are.
    """

    def __init__(self, frame: FrameType | None, array: type) -> None:
        self.found: dict[tuple[int, Any], tuple[str, Any]] = {}
        self.lists: dict[int, int] = {}
        #: The places of containers, and by the identity of a container its first place.
        self._containers: dict[tuple[int, Any], tuple[str, Any]] = {}
        self._places: dict[int, tuple[int, Any]] = {}
        self._array = array
        self._seen: dict[int, Any] = {}
        self.frames: dict[int, FrameType] = {}
        while frame is not None and len(self.frames) < _CALLERS:
            if not is_foreign_frame(frame):
                self.frames[id(frame)] = frame
                for name, value in variables_of(frame).items():
                    self._add((id(frame), name), name, value, _DEPTH)
                if frame.f_locals is not frame.f_globals:
                    for name, value in list(frame.f_globals.items()):
                        self._add((id(frame.f_globals), name), name, value, _DEPTH)
            frame = frame.f_back

    def _add(self, key: tuple[int, Any], name: str, value: Any, depth: int) -> None:
        if isinstance(value, (self._array, *_NUMBERS)):
            self.found[key] = name, value
            return
        if not depth or len(self._seen) >= _LOOKED_AT or isinstance(value, (str, bytes, np.ndarray, type(None))):
            return
        self._containers[key] = name, value
        if id(value) not in self._seen:
            self._seen[id(value)], self._places[id(value)] = value, key
            if isinstance(value, (list, deque)):
                self.lists[id(value)] = len(value)
            for part, label, inner in _inside(value):
                self._add((id(value), part), f'{name}{label}', inner, depth - 1)

    def changed(self, now: FramePlaces, made: Callable[[Any], bool]) -> Iterator[Changed]:
        """Yield what means another array ``now``, or an array in the place of a number, and the reverse.

        Each comes with its name, the value before and the value now; and the frame whose variable it is.
        ``made``: whether the body has made an array.
        """
        for key, (name, value) in now.found.items():
            owner, part = key
            _, before = self.found.get(key, ('', None))
            if before is None:
                grown = owner in self.lists and isinstance(part, int) and part >= self.lists[owner]
                if grown and isinstance(value, self._array):
                    yield name, None, value, None
                elif made(value):
                    yield from self._replaced(owner, value, now)
            elif not self._same(before, value):
                yield name, before, value, now.frames.get(owner)

    def _replaced(self, owner: int, array: Any, now: FramePlaces) -> Iterator[Changed]:
        """Yield the place of a new container around an array, if another container, or a value, was there before."""
        while (place := now._places.get(owner)) is not None:
            _, before = self._containers.get(place) or self.found.get(place) or ('', None)
            if before is not None:
                held = (one for (inside, _), (_, one) in self.found.items() if inside == id(before))
                if id(before) != owner:
                    yield now._containers[place][0], next(held, before), array, now.frames.get(place[0])
                return
            owner = place[0]

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


def way_out(frame: FrameType) -> tuple[str, Place] | None:
    """The ``break``, ``continue`` or ``return`` that leaves the ``with`` block which a frame enters."""
    code = frame.f_code
    outs = _ways_out(''.join(linecache.getlines(code.co_filename, frame.f_globals)))
    inner = max((lines for lines in outs if frame.f_lineno in lines), key=lambda lines: lines.start, default=None)
    found = outs[inner] if inner is not None else None
    return found and (found[0], Place(code.co_filename, found[1], code.co_name))


@functools.lru_cache(maxsize=16)
def _ways_out(source: str) -> dict[range, tuple[str, int] | None]:
    """By the lines of the head of each ``with`` statement: the first statement that leaves its block, and its line."""
    try:
        blocks = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.With)]
    except (SyntaxError, ValueError):  # a file that has changed, or none
        return {}
    return {
        range(node.lineno, max(node.body[0].lineno, node.lineno + 1)): next(_leaving(node.body, False), None)
        for node in blocks
    }


def _leaving(nodes: Iterable[ast.AST], repeated: bool) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.Return) or (isinstance(node, (ast.Break, ast.Continue)) and not repeated):
            yield type(node).__name__.lower(), node.lineno
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            loops = isinstance(node, (ast.For, ast.While))
            yield from _leaving(ast.iter_child_nodes(node), repeated or loops)


def is_dropped(frame: FrameType | None) -> bool:
    """Whether a frame drops the result of the call that it is making."""
    if frame is None:
        return False
    code, at = frame.f_code.co_code, frame.f_lasti + 2
    while dis.opname[code[at]] == 'CACHE':
        at += 2
    return dis.opname[code[at]] == 'POP_TOP'
