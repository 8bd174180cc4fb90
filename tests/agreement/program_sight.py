"""All that a caller can see of a program's modules, as lines of text that two runs have in common."""

from __future__ import annotations

import collections
import enum
import functools
import io
import logging
import types
from typing import Any

import numpy as np

_PLAIN = (int, float, complex, bool, str, bytes, type(None), range, slice, type(...), np.generic, np.dtype)
_OWN_MODULES = ('program_under_test', 'settings_of_program')
_HIDDEN = frozenset('over awaited settled numbered __builtins__ __warningregistry__'.split())


class Sight:
    """One look. Objects get a number where they are met first, so that lines tell who is whom.

    Arrays that share memory are told by where they lie in it. Tuples and plain values have no identity here: Python
    promises none for them.
    """

    def __init__(self, cupy: Any, made: list[Any], left_out: frozenset[str]) -> None:
        self._cupy = cupy
        self._left_out = left_out | _HIDDEN
        self._made = {id(one): one for one in made}
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []
        self._lines: list[str] = []
        self._arrays: list[tuple[str, Any]] = []

    def of_modules(self, *modules: Any) -> list[str]:
        """Look at modules. Returns a line for each thing in them, with its path."""
        for module in modules:
            for name, value in list(vars(module).items()):
                if name not in self._left_out and not isinstance(value, types.ModuleType) and _is_own(name):
                    self._look(name, value)
        self._memory()
        return self._lines

    def _say(self, path: str, text: str) -> None:
        self._lines.append(f'{path}: {text}')

    def _look(self, path: str, value: Any) -> None:
        if id(value) in self._made:
            value = value.__wrapped__
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        cls = type(value)
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            self._say(path, f'{cls.__name__} {value!r}')
            return
        if cls in (tuple, frozenset):
            self._say(path, f'{cls.__name__} of {len(value)}')
            self._parts(path, value)
            return
        known = self._numbers.get(id(value))
        if known is not None:
            self._say(path, f'object {known}')
            return
        self._numbers[id(value)] = len(self._numbers)
        self._held.append(value)
        head = f'object {len(self._numbers) - 1}, {cls.__name__}'
        if isinstance(value, self._cupy.ndarray):
            self._array(path, head, value)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._say(path, f'{head} {value.dtype} {value.shape} {value.strides} {_numbers(value)}')
        else:
            self._say(path, head)
            self._inside(path, value, cls)

    def _array(self, path: str, head: str, value: Any) -> None:
        self._say(path, f'{head} {value.dtype} {value.shape} {value.strides} {_numbers(value.get())}')
        if value.size:
            self._arrays.append((path, value))

    def _parts(self, path: str, values: Any) -> None:
        for number, value in enumerate(values):
            self._look(f'{path}[{number}]', value)

    def _inside(self, path: str, value: Any, cls: type) -> None:
        if isinstance(value, (types.ModuleType, logging.Logger)):
            return
        if cls.__module__.partition('.')[0] in ('cupy', 'capturekit', 'logging') or cls.__module__ == 'cupyx.cusparse':
            return  # the last one's objects hold handles, which are other numbers each time
        if isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, type):
            if value.__dict__.get('__module__') in _OWN_MODULES:
                self._names(path, {n: v for n, v in value.__dict__.items() if _is_own(n)})
                self._say(path, f'bases {[base.__name__ for base in value.__mro__]}')
        elif isinstance(value, types.GeneratorType):
            self._say(path, f'at {value.gi_frame.f_lasti if value.gi_frame else None}')
        elif isinstance(value, types.MethodType):
            self._look(f'{path}.__self__', value.__self__)
        elif isinstance(value, functools.partial):
            self._parts(path, (value.func, value.args, value.keywords))
        else:
            self._contents(path, value)
            self._names(path, _attributes(value))

    def _contents(self, path: str, value: Any) -> None:
        if isinstance(value, (list, tuple, collections.deque)):
            self._parts(path, list(type(value).__iter__(value)))
        elif isinstance(value, (set, frozenset)):
            self._say(path, f'holds {sorted(map(repr, value))}')
        elif isinstance(value, dict):
            for number, (key, item) in enumerate(dict.items(value)):
                self._say(f'{path}.key {number}', repr(key) if isinstance(key, _PLAIN) else type(key).__name__)
                self._look(f'{path}[{key!r}]' if isinstance(key, _PLAIN) else f'{path}.item {number}', item)
        elif isinstance(value, np.ndarray):
            self._parts(path, value.ravel().tolist())
        elif type(value).__name__ in ('array', 'bytearray'):
            self._say(path, repr(value))
        elif isinstance(value, BaseException):
            self._parts(path, value.args)
        elif isinstance(value, io.StringIO):
            self._say(path, 'closed' if value.closed else f'{value.getvalue()!r} at {value.tell()}')

    def _names(self, path: str, values: dict[str, Any]) -> None:
        for name, value in list(values.items()):
            self._look(f'{path}.{name}', value)

    def _function(self, path: str, value: types.FunctionType) -> None:
        self._look(f'{path}.__defaults__', value.__defaults__)
        self._look(f'{path}.__kwdefaults__', value.__kwdefaults__)
        self._names(path, value.__dict__)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                self._look(f'{path}.closure {name}', cell.cell_contents)
            except ValueError:
                self._say(f'{path}.closure {name}', 'empty')

    def _memory(self) -> None:
        """Say which arrays share memory, and how far apart they begin."""
        spans = sorted((*_extent(array), number) for number, (_, array) in enumerate(self._arrays))
        groups: list[list[int]] = []
        end = -1
        for low, high, number in spans:
            if low < end:
                groups[-1].append(number)
            else:
                groups.append([number])
            end = max(end, high)
        for group in sorted(sorted(group) for group in groups if len(group) > 1):
            first = self._arrays[group[0]][1]
            told = [f'{self._arrays[n][0]} at {int(self._arrays[n][1].data.ptr) - int(first.data.ptr)}' for n in group]
            self._say('memory', ', '.join(told))


def _is_own(name: str) -> bool:
    return not (name.startswith('__') and name.endswith('__')) and not name.startswith('_abc')


def _numbers(array: Any) -> str:
    """The elements; two that print alike and are not the same bits are told apart, but for the kinds of nan."""
    flat = array.ravel()
    return repr(flat.tolist()) if flat.size < 40 else flat.tobytes().hex()


def _attributes(value: Any) -> dict[str, Any]:
    try:
        found = dict(object.__getattribute__(value, '__dict__'))
    except AttributeError:
        found = {}
    for cls in type(value).__mro__:
        for name, member in cls.__dict__.items():
            if isinstance(member, types.MemberDescriptorType) and cls.__module__ in _OWN_MODULES:
                try:
                    found[name] = member.__get__(value)
                except AttributeError:
                    continue
    return found


def _extent(array: Any) -> tuple[int, int]:
    low = high = int(array.data.ptr)
    for size, stride in zip(array.shape, array.strides):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high + array.itemsize
