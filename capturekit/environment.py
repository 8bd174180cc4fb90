"""What a function read from Python besides its arguments: globals, closures, defaults, attributes.

:class:`Watch` follows the first, eager run and keeps what the code that ran can have read, as it was when the run
began; its :class:`Environment` tells later whether that is still so. No code of the user's is called for it: neither
``__eq__`` nor ``__getattr__`` nor properties.

Objects are told from those that the run made by their addresses: what the garbage collector knew when the run began
was there before.
"""

from __future__ import annotations

import copy
import dataclasses
import dis
import functools
import gc
import io
import operator
import os
import random
import sys
import sysconfig
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress, starmap, tee
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from capturekit.containers import (
    MISSING,
    Difference,
    IsArray,
    Keeper,
    Kept,
    Layout,
    among,
    bases_of,
    contents_of,
    dictionary_of_class,
    difference,
    layout_of,
    made_by_class_statement,
    name_of,
)
from capturekit.places import is_foreign

_GLOBALS_MADE = frozenset({'STORE_GLOBAL', 'DELETE_GLOBAL'})
_GLOBALS_READ = frozenset({'LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_FROM_DICT_OR_GLOBALS'})
_LOCALS_MADE = frozenset({'STORE_NAME', 'DELETE_NAME'})
#: Names of what reads an attribute whose name is a string.
_BY_STRING = frozenset('getattr setattr hasattr delattr attrgetter methodcaller __getattribute__ __setattr__'.split())
#: Names of what reads all attributes.
_ALL = frozenset('vars __dict__'.split())
#: What reads all attributes, where a global is it.
_ALL_READERS = (copy, copy.copy, copy.deepcopy, dataclasses.asdict, dataclasses.astuple, dataclasses.replace)
_FUNCTION_PARTS = ('__code__', '__defaults__', '__kwdefaults__')
#: Files whose position is asked: what these types answer comes from Python's own code.
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.FileIO, io.BytesIO, io.StringIO)
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_VARIABLE = (0x04, 0x08)  # CO_VARARGS, CO_VARKEYWORDS
_SEARCHED = 1_000
#: Python 3.12 freezes some hundred objects of its own when it starts; gc.freeze() freezes thousands.
_FROZEN_AT_START = 2_000
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_MODULE_DICT = vars(ModuleType)['__dict__'].__get__
_PACKAGES = ('numpy', 'scipy', 'cuda')

_own_file = os.path.abspath(__file__)
_skipped: dict[str, bool] = {}


def default_skip(filename: str) -> bool:
    """True for code of CuPy, capturekit, numpy, scipy and Python's standard library."""
    answer = _skipped.get(filename)
    if answer is None:
        answer = _skipped[filename] = is_foreign(filename) or _is_library(filename)
    return answer


def _is_library(filename: str) -> bool:
    if filename.startswith('<__array_function__'):
        return True
    paths = sysconfig.get_paths()
    for folder in {paths['stdlib'], paths['platstdlib'], os.path.dirname(os.__file__)}:
        if filename.startswith(folder + os.sep):
            inside = filename[len(folder) + 1 :]
            if not inside.startswith(('site-packages', 'dist-packages')):
                return True
    for name in _PACKAGES:
        for folder in getattr(sys.modules.get(name), '__path__', ()):
            if filename.startswith(str(folder) + os.sep):
                return True
    return False


class Names(NamedTuple):
    """What a code object and those nested in it name."""

    read: frozenset[str]
    written: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]
    everything: bool


def names_of(code: CodeType) -> Names:
    """Names of globals read and written, of attributes; strings where attributes are read by string."""
    read: set[str] = set()
    written: set[str] = set()
    attributes: set[str] = set()
    strings: set[str] = set()
    everything = False
    for inner in _nested(code):
        met: set[str] = set()
        for instruction in dis.get_instructions(inner):
            name = instruction.argval
            if instruction.opcode not in dis.hasname or type(name) is not str:
                everything |= instruction.opname == 'MATCH_CLASS'
                continue
            met.add(name)
            if instruction.opname in _GLOBALS_READ:
                read.add(name)
            elif instruction.opname in _GLOBALS_MADE:
                written.add(name)
            elif instruction.opname not in _LOCALS_MADE:
                attributes.add(name)
        unknown = set(inner.co_names) - met  # in the code, but dis doesn't say how
        read |= unknown
        attributes |= unknown
        everything |= not _ALL.isdisjoint(inner.co_names)
        if not _BY_STRING.isdisjoint(inner.co_names):
            texts = [part for text in inner.co_consts if type(text) is str for part in text.split('.')]
            strings.update(text for text in texts if text.isidentifier())
        if 'globals' in inner.co_names:
            read.update(text for text in inner.co_consts if type(text) is str)
    return Names(frozenset(read), frozenset(written), frozenset(attributes | strings), frozenset(strings), everything)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _nested(constant)


class Entry:
    """One thing that is watched.

    Attributes:
        kind: 'global', 'variable' (a closure's), 'attribute', 'slot', 'class attribute', 'function'.
        holder: the dict of the globals, the cell, the object, the class or the function.
        key: the name.
        kept: its value when the run began (:class:`capturekit.containers.Kept`).
    """

    __slots__ = ('_get', '_where', 'holder', 'kept', 'key', 'kind', 'mapping', 'member')

    def __init__(
        self, kind: str, holder: Any, key: str, kept: Kept, where: tuple[str, str], mapping: Any, get: Any = None
    ) -> None:
        self.kind = kind
        self.holder = holder
        self.key = key
        self.kept = kept
        self._where = where
        self.mapping = mapping
        self.member: Any = None
        self._get = get

    @property
    def value(self) -> Any:
        """The value when the run began, :data:`capturekit.containers.MISSING` if there was none."""
        return self.kept.value

    def __repr__(self) -> str:
        return f'<{self.where()}>'

    def where(self, path: str = '') -> str:
        """The thing in words: ``global cfg["lr"] of train.py``."""
        before, after = self._where
        return f'{before} {self.key}{path}{after}'.lstrip()

    def read(self) -> Any:
        """The value now."""
        if self._get is not None:
            return self._get()
        return self.mapping.get(self.key, MISSING)


_Rows = list[tuple[Any, Any, Any]]


class Environment:
    """What a run read besides its arguments. Holds on to all of it."""

    def __init__(
        self,
        entries: list[Entry],
        objects: list[tuple[Any, type, Any, Any]],
        arrays: list[Any],
        unwatchable: list[str],
        written: str | None,
    ) -> None:
        self.entries = entries
        #: What is in it but can't be compared, in sentences.
        self.unwatchable = unwatchable
        self._objects = objects
        self._arrays = arrays
        self._written = written
        self._rows: _Rows = []
        self._absent: list[tuple[Any, str]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._slots: list[tuple[Any, Any, Any]] = []
        self._functions: list[tuple[Any, Any, Any, Any]] = []
        self._sequences: list[tuple[Any, Any]] = []
        self._numbers: list[tuple[Any, Any, bytes]] = []
        self._slow: list[Entry] = []
        self._more = False
        if written is None:
            self._prepare()
        else:
            self._slow, self._more = entries, True

    def arrays(self) -> list[Any]:
        """The arrays in it, which are held by identity."""
        return list(self._arrays)

    def written(self) -> str | None:
        """Say what the run itself changed of what is watched, or what can't be watched; None if nothing."""
        return self._written

    def changed(self) -> str | None:
        """None if everything is as it was when the run began; else a sentence about the first thing that isn't."""
        try:
            for mapping, key, value in self._rows:
                if mapping[key] is not value:
                    break
            else:
                for function, code, defaults, keywords in self._functions:
                    if (
                        function.__code__ is not code
                        or function.__defaults__ is not defaults
                        or function.__kwdefaults__ is not keywords
                    ):
                        break
                else:
                    if not self._more or self._same():
                        return None
        except (LookupError, ValueError, AttributeError, RuntimeError, TypeError):
            pass
        return self._compare()

    def _same(self) -> bool:
        """The part of ``changed`` that is not needed for globals, functions and plain values."""
        for value, cls, get, attributes in self._objects:
            if type(value) is not cls or get(value) is not attributes:
                return False
        for mapping, key in self._absent:
            if key in mapping:
                return False
        for cell, value in self._cells:
            if cell.cell_contents is not value:
                return False
        for get, value, item in self._slots:
            if get(value) is not item:
                return False
        for sequence, items in self._sequences:
            if len(sequence) != len(items) or not all(map(_is, sequence, items)):
                return False
        for array, kind, numbers in self._numbers:
            if (array.dtype, array.shape) != kind or array.tobytes() != numbers:
                return False
        return all(difference(entry.kept, entry.read()) is None for entry in self._slow)

    def _compare(self) -> str | None:
        """Compare everything by its rules. Values that are others and equal are the ones to look for next time."""
        for value, cls, _, _ in self._objects:
            if type(value) is not cls:
                return f'an object that was {_a(cls)} is {_a(type(value))}'
        for entry in self.entries:
            found = difference(entry.kept, entry.read())
            if found is not None:
                return f'{entry.where(found.path)} {found.text} when recorded'
        if self._written is None:
            self._objects = [(value, cls, get, get(value)) for value, cls, get, _ in self._objects]
            self._prepare()
        return None

    def _prepare(self) -> None:
        """Lay out what ``changed`` looks at first: identities."""
        rows: _Rows = []
        absent: list[tuple[Any, str]] = []
        cells: list[tuple[CellType, Any]] = []
        slots: list[tuple[Any, Any, Any]] = []
        functions: dict[int, Any] = {}
        slow: list[Entry] = []
        inner = _Insides()
        dictionaries = {id(value): get(value) for value, _, get, _ in self._objects}
        for entry in self.entries:
            if entry.kind == 'attribute':
                entry.mapping = dictionaries.get(id(entry.holder), entry.mapping)
            value = entry.read()
            if entry.kind == 'variable' and value is not MISSING:
                cells.append((entry.holder, value))
            elif entry.kind == 'slot' and value is not MISSING:
                slots.append((entry.member.__get__, entry.holder, value))
            elif entry.kind == 'function':
                function = entry.holder
                functions[id(function)] = (function, *[getattr(function, part) for part in _FUNCTION_PARTS])
            elif entry.mapping is None:
                slow.append(entry)
                continue
            elif value is MISSING:
                absent.append((entry.mapping, entry.key))
            else:
                rows.append((entry.mapping, entry.key, value))
            if not inner.add(entry.kept, value):
                slow.append(entry)
        self._rows, self._absent, self._cells, self._slots = rows, absent, cells, slots
        self._functions, self._slow = list(functions.values()), slow
        self._sequences, self._numbers = inner.sequences, inner.numbers
        rest = (self._objects, absent, cells, slots, slow, inner.sequences, inner.numbers)
        self._more = any(rest)


class _Insides:
    """Containers in watched values, laid out for a fast comparison of what they hold."""

    def __init__(self) -> None:
        self.sequences: list[tuple[Any, Any]] = []
        self.numbers: list[tuple[Any, Any, bytes]] = []
        self._seen: set[int] = set()

    def add(self, kept: Kept, value: Any) -> bool:
        """False if a fast comparison can't tell."""
        if kept.kind in ('plain', 'same') or id(value) in self._seen:
            return True
        if kept.kind == 'method':
            return True
        self._seen.add(id(value))
        cls = type(value)
        contents = contents_of(value)
        if kept.kind == 'big' or contents is None:
            return False
        _, labels, items, data = contents
        if among(cls, _DICTS):
            self.sequences.append((value, labels))
            self.sequences.append((value.values(), items))
        elif cls is np.ndarray and not value.dtype.hasobject:
            self.numbers.append((value, data[:2], data[2]))
        elif among(cls, (list, deque, set)):
            self.sequences.append((value, items))
        elif not issubclass(cls, _UNCHANGING):
            return False
        return all(self.add(part, item) for part, item in zip(kept.parts, items))


_UNCHANGING = (tuple, frozenset, slice, functools.partial, types.BuiltinMethodType)
_is = operator.is_


def _no_dictionary(value: object) -> None:
    return None


def _a(cls: type) -> str:
    name = name_of(cls)
    return f'{"an" if name[:1].lower() in "aeiou" else "a"} {name} object'


class _Holder(NamedTuple):
    """An object whose attributes are watched, and what they were at first sight."""

    value: Any
    cls: type
    kind: str
    layout: Layout
    start: dict[str, Any]
    slots: dict[str, Any]
    owned: bool


class Watch:
    """Follow one run of ``fn`` in this thread: ``with Watch(fn, is_array=...) as watch: fn(x)``.

    Arguments:
        is_array: tells arrays, which are compared by identity.
        skip: tells files whose code is not followed.
        ignore: tells objects that are compared by the caller: as arguments, their attributes are not watched.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        is_array: IsArray,
        skip: Callable[[str], bool] = default_skip,
        ignore: Callable[[Any], bool] | None = None,
    ) -> None:
        self._fn = fn
        self._is_array = is_array
        self._skip = skip
        self._ignore = ignore
        self._keeper = Keeper(is_array, met=self._meet)
        self._environment: Environment | None = None
        self._failure: BaseException | None = None
        self._previous: Any = None

        self._codes: dict[int, tuple[CodeType, bool]] = {}
        self._inside: set[int] = set()
        self._known: dict[int, list[FunctionType]] = {}
        self._functions: dict[int, FunctionType] = {}
        self._searched: set[int] = set()
        self._globals: dict[int, tuple[dict[str, Any], dict[str, Any], str]] = {}
        self._made: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self._holders: dict[int, _Holder] = {}
        self._pending: list[Any] = []
        self._attributes: set[str] = set()
        self._strings: set[str] = set()
        self._everything = False
        self._classes: dict[int, tuple[type, set[str]]] = {}
        self._entries: dict[tuple[str, int, str], Entry] = {}
        self._unwatchable: list[str] = []
        self._states: dict[int, tuple[Any, Kept, str]] = {}
        self._suspended: dict[int, tuple[FrameType, str]] = {}
        self._resumed: str | None = None
        self._at = ''

    @property
    def environment(self) -> Environment:
        """What was read.

        Raises:
            RuntimeError: the block has not ended, or ended with an exception.
        """
        if self._environment is None:
            raise RuntimeError('the run that is watched did not come to its end')
        return self._environment

    def __enter__(self) -> Watch:
        self._existing = _known_to_the_collector()
        self._created: set[int] = set()
        self._frozen = gc.get_freeze_count() > _FROZEN_AT_START
        self._randomness = {name: Keeper(_never).keep(state()) for name, state in _HOST_RANDOMNESS.items()}
        function: Any = self._fn
        while among(type(function), (types.MethodType, functools.partial)):
            function = function.__func__ if type(function) is types.MethodType else function.func
        if type(function) is FunctionType:
            self._function(function)
        self._previous = sys.getprofile()
        self._callback: Any = self._chained if callable(self._previous) else self._profile
        sys.setprofile(self._callback)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if sys.getprofile() is self._callback:
            sys.setprofile(None)
            if callable(self._previous):
                sys.setprofile(self._previous)
            elif hasattr(self._previous, 'enable'):
                self._previous.enable()  # cProfile before Python 3.12: not a function, and not to be set as one
        elif self._failure is None:
            self._unwatchable.append('the function set a profile function: what it ran afterwards is not known')
        if kind is None:
            self._environment = self._finish()

    def _chained(self, frame: FrameType, event: str, argument: Any) -> None:
        self._profile(frame, event, argument)
        self._previous(frame, event, argument)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != 'call' or self._failure is not None:
            return
        try:
            self._called(frame)
        except Exception as error:
            self._failure = error

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is None:
            filename = code.co_filename
            foreign = filename == _own_file or self._skip(filename) or code.co_name == '<module>'
            self._codes[id(code)] = (code, foreign)
            known = (code, foreign)
            if not foreign:
                self._collect(frame, code)
        if code.co_flags & 0x2A0 and id(frame) in self._suspended:  # generators and coroutines
            self._resumed = self._resumed or self._suspended[id(frame)][1]
        if known[1]:
            if code.co_name == '__init__' and code.co_argcount:
                self._created.add(id(frame.f_locals.get(code.co_varnames[0])))
            return
        count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in _VARIABLE)
        if not count and not code.co_freevars:
            if id(code) not in self._searched:
                self._find(frame, code, {})
            return
        variables = frame.f_locals
        arguments = [variables[name] for name in code.co_varnames[:count] if name in variables]
        if code.co_name == '__init__' and arguments and id(arguments[0]) not in self._holders:
            self._created.add(id(arguments[0]))
        for number, argument in enumerate(arguments):
            if self._ignore is None or not self._ignore(argument):
                self._at = f'argument {code.co_varnames[number]} of {code.co_name}'
                self._argument(argument)
        if code.co_freevars or id(code) not in self._searched:
            self._find(frame, code, variables)
        self._settle()

    def _existed(self, value: object) -> bool:
        """True if the value was there before the run. Only for what the garbage collector knows."""
        if id(value) in self._created:
            return False
        if id(value) in self._existing:
            return True
        if self._frozen and id(value) not in _known_to_the_collector():
            self._existing.add(id(value))  # frozen objects are not listed
            return True
        self._created.add(id(value))
        return False

    def _argument(self, value: Any) -> None:
        """Watch an argument that is an object, or the objects in a container."""
        cls = type(value)
        if among(cls, (list, tuple, dict)):
            items = value.values() if cls is dict else value
            for _, item in zip(range(_SEARCHED), items):
                if not (self._ignore is not None and self._ignore(item)):
                    self._instance(item)
        else:
            self._instance(value)

    def _instance(self, value: Any) -> None:
        cls = type(value)
        if issubclass(cls, (FunctionType, ModuleType, np.ndarray, np.generic)) or self._is_array(value):
            return
        if gc.is_tracked(value) and self._existed(value):
            self._meet(value)

    # Code and functions

    def _collect(self, frame: FrameType, code: CodeType) -> None:
        """Watch what code met for the first time names."""
        for inner in _nested(code):
            if inner is not code:
                self._inside.add(id(inner))
        names = names_of(code)
        values = frame.f_globals
        if id(values) not in self._globals:
            self._globals[id(values)] = (values, dict(values), os.path.basename(code.co_filename))
        _, start, file = self._globals[id(values)]
        readers = [start[name] for name in names.read if name in start]
        everything = names.everything or any(value is reader for value in readers for reader in _ALL_READERS)
        everything |= dataclasses in [value for value in readers if type(value) is ModuleType] and bool(
            names.attributes & {'asdict', 'astuple', 'replace'}
        )
        for name in sorted(names.read | names.written):
            if name in start:
                self._global(values, name, start[name], file)
            elif name in names.written:
                self._made[id(values), name] = (values, file)
        self._name(names.attributes, names.strings, everything)
        self._settle()

    def _global(self, values: dict[str, Any], name: str, value: Any, file: str) -> None:
        if type(value) is ModuleType and self._is_foreign_module(value):
            return
        self._watch('global', values, name, value, ('global', f' of {file}'), values)

    def _is_foreign_module(self, module: ModuleType) -> bool:
        members = _MODULE_DICT(module)
        return self._foreign_name(members.get('__name__'), members)

    def _foreign_name(self, name: object, members: dict[str, Any] | None) -> bool:
        """True for modules that aren't the user's."""
        if type(name) is not str or name == '__main__':
            return False
        if name in sys.builtin_module_names or name.partition('.')[0] in ('cupy', 'cupyx', 'cupy_backends', 'numpy'):
            return True
        if members is None:
            module = sys.modules.get(name)
            members = _MODULE_DICT(module) if type(module) is ModuleType else {}
        assert members is not None
        file = members.get('__file__')
        return type(file) is str and self._skip(file)

    def _is_foreign_class(self, cls: type) -> bool:
        return not made_by_class_statement(cls) or self._foreign_name(dictionary_of_class(cls).get('__module__'), None)

    def _find(self, frame: FrameType, code: CodeType, variables: Any) -> None:
        """Find the function that runs, whose defaults and closure are watched."""
        if code.co_name.startswith('<') and code.co_name != '<lambda>':
            return  # a comprehension: its cells are those of the function around it
        candidates = self._known.setdefault(id(code), [])
        if id(code) not in self._searched:
            self._searched.add(id(code))
            named = frame.f_globals.get(code.co_name)
            wrapped = named.__dict__.get('__wrapped__') if type(named) is FunctionType else None
            self._add_known(code, [named, wrapped, *self._methods(code, variables)])
            likely = any(_runs(function, variables) for function in candidates)
            if not likely and (code.co_freevars or id(code) not in self._inside):
                self._add_known(code, _functions_of(code))
        for function in candidates:
            if id(function) not in self._functions and _runs(function, variables) and self._existed(function):
                self._function(function)

    def _add_known(self, code: CodeType, found: Iterable[object]) -> None:
        for function in found:
            if type(function) is FunctionType and function.__code__ is code:
                self._know(function)

    def _methods(self, code: CodeType, variables: Any) -> Iterator[object]:
        """Functions of the class of the first argument that have this code. Where they were found is watched."""
        if not code.co_argcount:
            return
        first = variables.get(code.co_varnames[0])
        classes = bases_of(first) if issubclass(type(first), type) else bases_of(type(first))
        for cls in classes:
            found = dictionary_of_class(cls).get(code.co_name)
            inner = found.__func__ if among(type(found), (classmethod, staticmethod)) else found
            if type(inner) is property:
                inner = inner.fget
            if type(inner) is FunctionType and inner.__code__ is code:
                self._class_attribute(cls, code.co_name, found)
                yield inner

    def _function(self, function: FunctionType) -> None:
        """Watch a function that runs: its code, defaults and closure."""
        self._functions[id(function)] = function
        self._know(function)
        name = function.__name__
        for part in _FUNCTION_PARTS:
            value = getattr(function, part)
            get = functools.partial(getattr, function, part)
            self._watch('function', function, part, value, ('', f' of {name}'), None, get)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if self._existed(cell):
                value = _read_cell(cell)
                where = ('variable', f' of the closure of {name}')
                self._watch('variable', cell, variable, value, where, None, functools.partial(_read_cell, cell))

    def _know(self, function: FunctionType) -> None:
        known = self._known.setdefault(id(function.__code__), [])
        if not any(other is function for other in known):
            known.append(function)

    # Values and the objects in them

    def _watch(
        self, kind: str, holder: Any, key: str, value: Any, where: tuple[str, str], mapping: Any, get: Any = None
    ) -> Entry | None:
        if (kind, id(holder), key) in self._entries:
            return None
        entry = Entry(kind, holder, key, _ABSENT, where, mapping, get)
        self._entries[kind, id(holder), key] = entry
        if value is MISSING:
            return entry
        before, self._at = self._at, entry.where()
        if kind == 'function' and key == '__code__':
            entry.kept = Kept('same', value)
        else:
            entry.kept = self._keeper.keep(value)
        if entry.kept.kind == 'big':
            self._unwatchable.append(f'{self._at} holds too many values to compare at each call')
        self._at = before
        return entry

    def _meet(self, value: Any) -> None:
        """Note an object that is kept by identity: it may have attributes, or a state of its own."""
        cls = type(value)
        if id(value) in self._holders:
            return
        if cls is types.MethodType:
            self._meet(value.__func__)
            self._meet(value.__self__)
        elif issubclass(cls, (staticmethod, classmethod)):
            self._meet(value.__func__)
        elif cls is property:
            for function in (value.fget, value.fset):
                self._meet(function)
        elif issubclass(cls, _GENERATORS):
            frame = getattr(value, 'gi_frame', None) or getattr(value, 'cr_frame', None)
            frame = frame or getattr(value, 'ag_frame', None)
            if frame is not None:
                self._suspended.setdefault(id(frame), (frame, self._at))
        elif issubclass(cls, random.SystemRandom):
            self._unwatchable.append(f'{self._at} is or holds {_a(cls)}, whose draws leave no trace')
        elif among(cls, _FILES) or issubclass(cls, _random_types()):
            if id(value) not in self._states:
                self._states[id(value)] = (value, Keeper(_never).keep(_state(value)), self._at)
        elif _is_iterator(cls):
            self._unwatchable.append(f"{self._at} is or holds {_a(cls)}: what is left in it can't be compared")
        if cls is FunctionType:
            self._know(value)
        if not self._is_array(value):
            self._pending.append(value)

    def _settle(self) -> None:
        """Watch the attributes of the objects met."""
        while self._pending:
            self._hold(self._pending.pop())

    def _hold(self, value: Any) -> None:
        cls = type(value)
        if id(value) in self._holders:
            return
        slots: dict[str, Any] = {}
        owned = True
        if issubclass(cls, ModuleType):
            if self._is_foreign_module(value):
                return
            layout, kind = Layout(_MODULE_DICT, {}), 'module'
        elif issubclass(cls, type):
            if self._is_foreign_class(value):
                return
            layout, kind = Layout(None, {}), 'class'
            self._class(value)
        elif cls is FunctionType:
            if self._skip(value.__code__.co_filename):
                return
            layout, kind = layout_of(cls)._replace(slots={}), 'function'
        else:
            layout, kind = layout_of(cls), 'object'
            owned = cls is types.SimpleNamespace or not self._is_foreign_class(cls)
            if not layout.dictionary and not layout.slots:
                return
            slots = {name: layout.read_slot(value, name) for name in layout.slots}
            if owned:
                self._class(cls)
        start = dict(layout.dictionary(value)) if layout.dictionary is not None else {}
        holder = _Holder(value, cls, kind, layout, start, slots, owned)
        self._holders[id(value)] = holder
        self._attributes_of(holder, self._attributes, self._strings)

    def _class(self, cls: type) -> None:
        for base in bases_of(cls):
            if id(base) not in self._classes and not self._is_foreign_class(base):
                self._classes[id(base)] = (base, set(dictionary_of_class(base)))

    def _name(self, names: Iterable[str], strings: Iterable[str], everything: bool) -> None:
        """Watch attributes that were not named before, of all objects met so far."""
        new = set(names) - self._attributes
        asked = set(strings) - self._strings
        self._attributes |= new
        self._strings |= asked
        again = everything and not self._everything
        self._everything |= everything
        if new or asked or again:
            for holder in list(self._holders.values()):
                self._attributes_of(holder, new | asked, asked)

    def _attributes_of(self, holder: _Holder, names: Iterable[str], asked: Iterable[str]) -> None:
        if holder.kind == 'class':
            for name in sorted(names):
                self._search_class(holder.value, name)
            return
        if holder.kind == 'object':
            chosen = set(names)
            if self._everything and holder.owned:
                chosen |= holder.start.keys() | holder.slots.keys()
            if not holder.owned:
                chosen |= {name for name, value in holder.start.items() if self._is_data(value)}
                chosen |= {name for name, value in holder.slots.items() if self._is_data(value)}
        else:
            chosen = set(names)
        for name in sorted(chosen):
            if name in holder.start:
                value = holder.start[name]
                if type(value) is not ModuleType or not self._is_foreign_module(value):
                    self._attribute(holder, name, value)
            elif name in holder.slots:
                self._attribute(holder, name, holder.slots[name])
            elif holder.owned:
                of_class = holder.kind == 'object' and self._search_class(holder.cls, name)
                if (of_class or name in asked) and holder.layout.dictionary is not None:
                    self._attribute(holder, name, MISSING)

    def _attribute(self, holder: _Holder, name: str, value: Any) -> None:
        where = ('attribute', self._of(holder))
        member = holder.layout.slots.get(name)
        if name not in holder.start and member is not None:
            get = functools.partial(holder.layout.read_slot, holder.value, name)
            entry = self._watch('slot', holder.value, name, value, where, None, get)
            if entry is not None:
                entry.member = member
            return
        dictionary = holder.layout.dictionary
        assert dictionary is not None
        get = functools.partial(_read_attribute, dictionary, holder.value, name)
        self._watch('attribute', holder.value, name, value, where, dictionary(holder.value), get)

    def _is_data(self, value: Any) -> bool:
        return issubclass(type(value), np.ndarray) or self._is_array(value)

    def _of(self, holder: _Holder) -> str:
        if holder.kind == 'module':
            return f' of module {holder.start.get("__name__")}'
        if holder.kind == 'function':
            return f' of function {holder.value.__name__}'
        return f' of {_a(type(holder.value))}'

    def _search_class(self, cls: type, name: str) -> bool:
        """Watch what a class and its bases hold under a name. True if one does."""
        passed: list[type] = []
        for base in bases_of(cls):
            members = dictionary_of_class(base)
            if name in members:
                if not self._is_foreign_class(base):
                    self._class_attribute(base, name, members[name])
                    for other in passed:
                        self._class_attribute(other, name, MISSING)
                    return True
                return False
            if not self._is_foreign_class(base):
                passed.append(base)
        return False

    def _class_attribute(self, cls: type, name: str, value: Any) -> None:
        if type(value) is types.MemberDescriptorType or self._is_foreign_class(cls):
            return
        where = ('attribute', f' of class {name_of(cls)}')
        self._watch('class attribute', cls, name, value, where, dictionary_of_class(cls))

    # The end

    def _finish(self) -> Environment:
        written = self._written()
        if self._failure is not None:
            self._unwatchable.append(f'what the function reads could not be followed: {self._failure!r}')
        self._unwatchable = list(dict.fromkeys(self._unwatchable))
        if written is None and self._unwatchable:
            written = self._unwatchable[0]
        entries = list(self._entries.values())
        watched = {id(entry.holder) for entry in entries}
        objects: list[tuple[Any, type, Any, Any]] = []
        for holder in self._holders.values():
            if holder.kind == 'object' and id(holder.value) in watched and holder.cls is type(holder.value):
                get = holder.layout.dictionary or _no_dictionary
                objects.append((holder.value, holder.cls, get, get(holder.value)))
        arrays = list(self._keeper.arrays.values())
        environment = Environment(entries, objects, arrays, self._unwatchable, written)
        for found in (self._existing, self._created, self._codes, self._known, self._globals, self._states):
            found.clear()
        self._holders.clear()
        self._suspended.clear()
        return environment

    def _written(self) -> str | None:
        for holder in self._holders.values():
            if type(holder.value) is not holder.cls:
                return f'the function changes the class of {_a(holder.cls)}'
        for entry in self._entries.values():
            value = entry.read()
            found = difference(entry.kept, value)
            if found is not None:
                return _deed(entry, value, found)
        for (_, name), (values, file) in self._made.items():
            if name in values:
                return f'the function creates global {name} of {file}'
        for cls, before in self._classes.values():
            new = (dictionary_of_class(cls).keys() - before) & self._attributes
            if new:
                return f'the function creates attribute {min(new)} of class {name_of(cls)}'
        for holder in self._holders.values():
            created = self._new_attribute(holder)
            if created is not None:
                return f'the function creates attribute {created}{self._of(holder)}'
        if self._resumed is not None:
            return f'the function advances a generator: {self._resumed}'
        for value, kept, where in self._states.values():
            if difference(kept, _state(value)) is not None:
                if among(type(value), _FILES):
                    return f'the function reads or writes a file: {where}'
                return f'the function draws from {_a(type(value))} on the host: {where}'
        for name, kept in self._randomness.items():
            if difference(kept, _HOST_RANDOMNESS[name]()) is not None:
                return f'the function draws from {name} on the host'
        return None

    def _new_attribute(self, holder: _Holder) -> str | None:
        """An attribute that the run made. Of modules, and of objects that aren't the user's, one that is named."""
        layout = holder.layout
        now = set(layout.dictionary(holder.value)) if layout.dictionary is not None else set()
        new = now - holder.start.keys()
        new |= {name for name in layout.slots if layout.read_slot(holder.value, name) is not MISSING} - {
            name for name, value in holder.slots.items() if value is not MISSING
        }
        if not holder.owned or holder.kind == 'module':
            new &= self._attributes
        return min(new, default=None)


_ABSENT = Kept('same', MISSING)


# What the collector lists may be a tuple that another thread is just making, and that thread fails if somebody else
# holds it. So nothing of it is ever held where threads can switch: each of the two works in one call into C.


def _known_to_the_collector() -> set[int]:
    """The ids of all objects that the garbage collector knows."""
    return set(map(id, chain.from_iterable(starmap(gc.get_objects, [()]))))


def _functions_of(code: CodeType) -> list[FunctionType]:
    """The functions with this code."""
    objects, same = tee(chain.from_iterable(starmap(gc.get_referrers, [(code,)])))
    return list(compress(objects, map(functools.partial(operator.is_, FunctionType), map(type, same))))


def _is_iterator(cls: type) -> bool:
    """True for iterators written in C, which have a place that nothing tells."""
    for base in bases_of(cls):
        if '__next__' in dictionary_of_class(base):
            return type(dictionary_of_class(base)['__next__']) is types.WrapperDescriptorType
    return False


def _never(value: object) -> bool:
    return False


def _read_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _read_attribute(dictionary: Callable[[Any], dict[str, Any]], value: object, name: str) -> Any:
    return dictionary(value).get(name, MISSING)


def _runs(function: FunctionType, variables: Any) -> bool:
    """True if a frame whose variables these are can be a call of the function: its closure holds the same."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    return all(_read_cell(cell) is variables.get(name, MISSING) for name, cell in cells)


def _deed(entry: Entry, value: Any, found: Difference) -> str:
    """What the function did to something that is watched."""
    if entry.value is MISSING:
        return f'the function creates {entry.where()}'
    if value is MISSING:
        return f'the function deletes {entry.where()}'
    if value is entry.value:
        return f'the function changes {entry.where(found.path)}: it {found.text} before'
    return f'the function rebinds {entry.where()}'


def _state(value: Any) -> Any:
    """The hidden state of a file or a random number generator, without user code."""
    if issubclass(type(value), random.Random):
        return random.Random.getstate(value)
    if issubclass(type(value), np.random.RandomState):
        return np.random.RandomState.get_state(value, legacy=False)
    if issubclass(type(value), np.random.Generator):
        return value.bit_generator.state
    if issubclass(type(value), np.random.BitGenerator):
        return value.state
    try:
        return value.tell() if value.seekable() else None
    except (OSError, ValueError) as error:  # closed, or being iterated over
        return str(error)


def _random_types() -> tuple[type, ...]:
    # numpy.random is an import of its own, which `import capturekit` need not pay for.
    return (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)


_HOST_RANDOMNESS: dict[str, Callable[[], Any]] = {
    'random': random.getstate,
    'numpy.random': lambda: np.random.get_state(legacy=False),
}
