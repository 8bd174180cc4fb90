"""One eager run, followed: the code that ran, the functions written in C that it called, what it can have read.

:class:`Watch` keeps what the code that ran can have read, as it was when the run began. No code of the user's is called
for it: neither ``__eq__`` nor ``__getattr__`` nor properties.

Objects are told from those that the run made by what the garbage collector knew when the run began: all of that was
there before. It is held until the run ends, so that nothing new can get the address of something old.
"""

from __future__ import annotations

import abc
import enum
import functools
import gc
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.functions.code_reads import READERS, names_of, nested
from capturekit.functions.collector import functions_of, known_to_the_collector
from capturekit.functions.environment import Environment
from capturekit.functions.holders import FUNCTION_PARTS, HOST_RANDOMNESS, Holders, never
from capturekit.functions.libraries import asked_by_user, default_skip, is_followed, is_library_frame, python_module
from capturekit.functions.understood import OUTSIDE, WHOLE, owner_of, reads
from capturekit.functions.written import finish
from capturekit.model.class_layout import MISSING, among, attributes_of, bases_of, dictionary_of_class
from capturekit.model.kept_values import IsArray, Keeper, contents_of
from capturekit.model.plain_values import plain_key

_VARIABLE = (0x04, 0x08)  # CO_VARARGS, CO_VARKEYWORDS
_SEARCHED = 1_000
#: Python 3.12 freezes some hundred objects of its own when it starts; gc.freeze() freezes thousands.
_FROZEN_AT_START = 2_000
_MODULE_DICT = vars(ModuleType)['__dict__'].__get__

_own_folder = os.path.dirname(os.path.abspath(__file__))


class Watch(Holders):
    """Follow one run of ``fn`` in this thread: ``with Watch(fn, is_array=...) as watch: fn(x)``.

    Arguments:
        is_array: tells arrays, which are compared by identity.
        skip: tells files whose code is not followed.
        ignore: tells objects that are compared by the caller: as arguments, their attributes are not watched.
        arguments: what ``fn`` is called with: what is in there and is not compared by the caller is watched.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        is_array: IsArray,
        skip: Callable[[str], bool] = default_skip,
        ignore: Callable[[Any], bool] | None = None,
        arguments: Any = (),
    ) -> None:
        super().__init__(is_array, skip)
        self._fn = fn
        self._ignore = ignore
        self._given = arguments
        self._environment: Environment | None = None
        self._failure: BaseException | None = None
        self._previous: Any = None

        self._codes: dict[int, tuple[CodeType, bool]] = {}
        self._calls: set[Any] = set()
        self._inside: set[int] = set()
        self._known: dict[int, list[FunctionType]] = {}
        self._functions: dict[int, FunctionType] = {}
        self._searched: set[int] = set()
        self._globals: dict[int, tuple[dict[str, Any], dict[str, Any], str]] = {}
        self._made: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self._resumed: str | None = None
        #: Containers among the arguments that are compared by value, and whether code compares identities.
        self._own: dict[int, Any] = {}
        self._identities = ''
        self._of_class: list[type] = []
        self._forms: list[tuple[Any, Any]] = []

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
        self._existing = known_to_the_collector()
        self._created: set[int] = set()
        self._frozen = gc.get_freeze_count() > _FROZEN_AT_START
        self._randomness = {name: Keeper(never).keep(state()) for name, state in HOST_RANDOMNESS.items()}
        self._keep_arguments()
        function: Any = self._fn
        while type(function) is not FunctionType:
            if among(type(function), (types.MethodType, functools.partial)):
                self._keep_also(function)
                function = function.__func__ if type(function) is types.MethodType else function.func
            else:
                if not self._is_array(function) and not isinstance(function, type):
                    self._keep_also(function)
                break
        if type(function) is FunctionType:
            self._function(function)
        self._settle()
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
        try:
            if kind is None:
                self._environment = finish(self)
        finally:
            self._existing.clear()

    def _chained(self, frame: FrameType, event: str, argument: Any) -> None:
        self._profile(frame, event, argument)
        self._previous(frame, event, argument)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._failure is not None:
            return
        try:
            if event == 'call':
                self._called(frame)
            elif event == 'c_call':
                self._called_in_c(frame, argument)
        except Exception as error:
            self._failure = error

    # What is called

    def _called_in_c(self, frame: FrameType, function: Any) -> None:
        """Look up a function written in C that the user's code calls, itself or through Python's own code."""
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is not None and known[1] and not python_module(code.co_filename):
            return
        what = (owner_of(function), function.__name__)
        call = (*what, id(code)) if what[1] in READERS else what
        if call in self._calls or code.co_filename.startswith(_own_folder):
            return
        if not asked_by_user(frame, self._skip):
            return
        self._calls.add(call)
        found = reads(function)
        if found is None:
            self._doubt(frame, f'calls {".".join(what)}')
        elif found == 'names' and self._computed(frame, what[1]):
            self._name((), (), True)
            self._settle()

    def _computed(self, frame: FrameType, name: str) -> bool:
        """False if the code that calls has been asked already which attributes it means."""
        return name not in READERS or name not in frame.f_code.co_names or is_library_frame(frame, self._skip)

    def _doubt(self, frame: FrameType | None, deed: str) -> None:
        """Something is not understood: say what, and at which line of the user's."""
        while frame is not None and is_library_frame(frame, self._skip):
            frame = frame.f_back
        at = '' if frame is None else f' at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}'
        self._unwatchable.append(f'the function {deed}{at}: what that reads is not known')

    def _library(self, frame: FrameType) -> None:
        """Code of a library is entered: it may be of a kind that reads more than can be seen."""
        code = frame.f_code
        module = python_module(code.co_filename)
        name = code.co_name
        if not module:
            top = str(frame.f_globals.get('__name__', '')).partition('.')[0]
            if name in OUTSIDE.get(top, ()) and asked_by_user(frame.f_back, self._skip):
                self._doubt(frame, f'calls {top}.{name}')
            return
        top = module.partition('.')[0]
        if (module, name) in self._calls and name != 'seed':
            return
        if top in WHOLE:
            if name in ('__instancecheck__', '__subclasscheck__') and asked_by_user(frame.f_back, self._skip):
                self._watch_state('the registered subclasses of abstract classes', abc.get_cache_token)
                self._calls.add((module, name))
            return
        if not asked_by_user(frame.f_back, self._skip):
            return
        self._calls.add((module, name))
        if not is_followed(code.co_filename, name):
            self._doubt(frame, f'calls {module}.{name}')
        elif module == 'random' and name == 'seed' and frame.f_locals.get('a', 0) is None:
            self._doubt(frame, 'makes a generator of random numbers without a seed')
        elif module in ('copy', 'dataclasses', 'copyreg'):
            self._name((), (), True)
            self._settle()

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is None:
            filename = code.co_filename
            foreign = filename.startswith(_own_folder) or is_library_frame(frame, self._skip)
            foreign = foreign or code.co_name == '<module>'
            self._codes[id(code)] = (code, foreign)
            known = (code, foreign)
            if not foreign:
                self._collect(frame, code)
            elif code.co_name == '<module>' and asked_by_user(frame.f_back, self._skip):
                self._doubt(frame.f_back, f'imports {frame.f_globals.get("__name__")} for the first time')
        if code.co_flags & 0x2A0 and id(frame) in self._suspended:  # generators and coroutines
            self._resumed = self._resumed or self._suspended[id(frame)][1]
        if known[1]:
            if code.co_name == '__init__' and code.co_argcount:
                self._created.add(id(frame.f_locals.get(code.co_varnames[0])))
            self._library(frame)
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
            if code.co_varnames[number] != '.0' and (self._ignore is None or not self._ignore(argument)):
                self._at = f'argument {code.co_varnames[number]} of {code.co_name}'
                self._argument(argument)
        if code.co_freevars or id(code) not in self._searched:
            self._find(frame, code, variables)
        self._settle()

    # Arguments

    def _keep_arguments(self) -> None:
        """Watch what is in the arguments, at any depth, and is not compared by value."""
        todo = [(self._given, 'an argument')]
        while todo:
            value, name = todo.pop()
            cls = type(value)
            if self._is_array(value) and hasattr(cls, 'strides'):
                self._forms.append((value, (value.shape, value.strides)))
            if id(value) in self._own or self._is_array(value):
                continue
            if plain_key(value) is not None:
                if issubclass(type(cls), enum.EnumMeta):
                    self._meet(value)
                continue
            if self._ignore is None or not self._by_value(value):
                self._at = name
                self._watch('argument', value, '', value, (name, ''), None, functools.partial(_same, value))
                if not self._is_array(value):
                    self._meet(value)
                continue
            self._own[id(value)] = value
            if hasattr(cls, '__dataclass_fields__') or (isinstance(value, tuple) and cls is not tuple):
                self._class(cls)
                self._of_class.append(cls)
            contents = contents_of(value)
            parts = [*contents[1], *contents[2]] if contents is not None else []
            if hasattr(cls, '__dataclass_fields__') or not among(cls, _PLAIN):
                parts += attributes_of(value).values()
            if len(parts) < _SEARCHED * 10:
                todo += [(part, name) for part in parts]

    def _by_value(self, value: Any) -> bool:
        """True for what the caller compares by value: containers, instances of dataclasses, NumPy's arrays."""
        assert self._ignore is not None
        cls = type(value)
        if among(cls, _PLAIN):
            return True
        return self._ignore(value)

    def _existed(self, value: object) -> bool:
        """True if the value was there before the run. Only for what the garbage collector knows."""
        if id(value) in self._created:
            return False
        if id(value) in self._existing:
            return True
        if self._frozen and id(value) not in known_to_the_collector():
            self._existing[id(value)] = value  # frozen objects are not listed
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
        if gc.is_tracked(value) and self._existed(value) and id(value) not in self._own:
            self._meet(value)

    # Code and functions

    def _collect(self, frame: FrameType, code: CodeType) -> None:
        """Watch what code met for the first time names."""
        for inner in nested(code):
            if inner is not code:
                self._inside.add(id(inner))
        names = names_of(code)
        values = frame.f_globals
        if id(values) not in self._globals:
            self._globals[id(values)] = (values, dict(values), os.path.basename(code.co_filename))
        _, start, file = self._globals[id(values)]
        if names.unknown:
            self._unwatchable.append(f'{code.co_name} of {file} uses {names.unknown}, which is not understood')
        own = frame.f_builtins
        for name in sorted(names.read | names.written):
            if name in start:
                self._global(values, name, start[name], file)
            elif name in names.written:
                self._made[id(values), name] = (values, file)
            if name not in start:
                self._absent.setdefault(id(values), (values, set(), f'global {{}} of {file}'))[1].add(name)
                self._builtin(own, name)
        if code.co_filename != '<string>':  # where dataclasses compares with a constant of its own
            self._identity(names.identities, start, own, f'{code.co_name} of {file}')
        for name, level in names.imports:
            self._imported(frame, name, level)
        self._name(names.attributes, names.strings, names.everything)
        for cls in self._of_class:
            self._class_names(cls, self._attributes)
        self._settle()

    def _builtin(self, own: dict[str, Any], name: str) -> None:
        if name in own:
            asks = self._asks_all  # code that names getattr says which attributes it reads with it, or that it can't
            self._watch('global', own, name, own[name], ('builtin', ''), own)
            self._asks_all = asks
        else:
            self._absent.setdefault(id(own), (own, set(), 'builtin {}'))[1].add(name)

    def _identity(self, names: Iterable[str | None], start: Any, own: Any, where: str) -> None:
        for name in names:
            value = start.get(name, own.get(name)) if name is not None else None
            if value is None or not (isinstance(value, type) or type(value) in (bool, object)):
                self._identities = self._identities or where

    def _imported(self, frame: FrameType, name: str, level: int) -> None:
        """Watch a module that code imports where it runs."""
        if level:
            package = str(frame.f_globals.get('__package__') or '').rsplit('.', level - 1)[0]
            name = f'{package}.{name}' if name else package
        parts = name.split('.')
        for count in range(1, len(parts) + 1):
            part = '.'.join(parts[:count])
            self._watch('import', sys.modules, part, sys.modules.get(part, MISSING), ('module', ''), sys.modules)

    def _global(self, values: dict[str, Any], name: str, value: Any, file: str) -> None:
        self._watch('global', values, name, value, ('global', f' of {file}'), values)

    def _foreign_name(self, name: object, members: dict[str, Any] | None) -> bool:
        if type(name) is not str or name == '__main__':
            return False
        if name in sys.builtin_module_names or name.partition('.')[0] in ('cupy', 'cupyx', 'cupy_backends', 'numpy'):
            return True
        if members is None:
            module = sys.modules.get(name)
            members = _MODULE_DICT(module) if type(module) is ModuleType else {}
        file = members.get('__file__')
        return type(file) is str and self._skip(file)

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
                self._add_known(code, functions_of(code))
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
        for part in FUNCTION_PARTS:
            value = getattr(function, part)
            get = functools.partial(getattr, function, part)
            self._watch('function', function, part, value, ('', f' of {name}'), None, get)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if self._existed(cell):
                value = read_cell(cell)
                where = ('variable', f' of the closure of {name}')
                self._watch('variable', cell, variable, value, where, None, functools.partial(read_cell, cell))

    def _know(self, function: FunctionType) -> None:
        known = self._known.setdefault(id(function.__code__), [])
        if not any(other is function for other in known):
            known.append(function)


_PLAIN = (list, tuple, dict, set, frozenset, np.ndarray, slice)


def _same(value: Any) -> Any:
    return value


def read_cell(cell: CellType) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _runs(function: FunctionType, variables: Any) -> bool:
    """True if a frame whose variables these are can be a call of the function: its closure holds the same."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    return all(read_cell(cell) is variables.get(name, MISSING) for name, cell in cells)
