"""The code that ran, and what it names that is watched: globals, builtins, imports, functions and their closures."""

from __future__ import annotations

import functools
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from inspect import CO_NESTED
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from capturekit.functions.address_hashes import is_hashed_by_value
from capturekit.functions.asked_of_arrays import has_of_its_own
from capturekit.functions.clock_uses import ClockReadings
from capturekit.functions.code_reads import READERS, CodeNames, names_by_line, names_of
from capturekit.functions.collector import OF_COLLECTOR, Before, functions_of
from capturekit.functions.entropy import SEEDED, overwrites_entropy
from capturekit.functions.libraries import asked_by_user
from capturekit.functions.lines_run import LinesRun
from capturekit.functions.out_of_sight import OutOfSight
from capturekit.functions.readable_state import in_package
from capturekit.functions.sets_made import SetsSeen
from capturekit.functions.setting_uses import settings_of
from capturekit.functions.settings import DEPTH
from capturekit.functions.understood import FLAGS, FUNCTION_PARTS, OF_ARRAYS, OF_DEVICES, makes_unknown
from capturekit.functions.watched_value import read_cell
from capturekit.model.class_layout import MISSING, among, bases_of, dictionary_of_class, found_in_class, plain_attribute
from capturekit.model.cleanup import Uncollected
from capturekit.model.kept_values import IsArray, Kept
from capturekit.model.plain_values import plain_key

_WEAK: Any = (weakref.ReferenceType, *weakref.ProxyTypes)
_MODULE_DICT = vars(ModuleType)['__dict__'].__get__
#: ``Py_TPFLAGS_IMMUTABLETYPE``: code can't set attributes of such a class; CuPy's ``_ndarray_base`` is one.
_IMMUTABLE = 1 << 8
#: Functions that compare by identity.
_ASKING = frozenset({'is_', 'is_not'})
#: Code that names one of these is told of its calls.
_TOLD = READERS | {SEEDED, 'hash'}


class CodeWatch(OutOfSight):
    """The objects that a run used, and the code that ran."""

    #: The code of CuPy's compiler, and its frame while it makes a kernel; ``_compiled`` has the sources of kernels.
    _compiler: CodeType | None = None
    _compiling: FrameType | None = None
    #: The code and offset of the last call that made a generator with a seed.
    _seeding: tuple[int, int] | None = None

    def __init__(self, is_array: IsArray, skip: Callable[[str], bool], array: type | None = None) -> None:
        super().__init__(is_array, skip)
        self._uncollected, self._array = Uncollected(), array
        self._failure: BaseException | None = None
        self._compiled: set[Any] = set()
        self._before = Before(self._time)
        self._randomness: dict[str, Kept] = {}
        self._resumed: str | None = None
        #: Containers among the arguments that are compared by value.
        self._own: dict[int, Any] = {}
        self._forms: list[tuple[Any, Any]] = []
        #: Whether a weak reference was met: what it leads to must not be kept alive.
        self._weak = False
        self._of_class: list[type] = []
        #: The code that ran, whether it is a library's, and the functions that have it.
        self._codes: dict[int, tuple[CodeType, bool]] = {}
        #: By the id of code that ran: the code and the offset in it from where it was called; None: the run itself.
        self._callers: dict[int, set[tuple[int, int] | None]] = {}
        self._known: dict[int, list[FunctionType]] = {}
        self._functions: dict[int, FunctionType] = {}
        #: The lines that ran, what each line of a code object names, and the globals of its functions, by id.
        self._sets = SetsSeen(self._before.had)
        self._lines = LinesRun(self._came_to, self._call_begins)
        self._by_line: dict[int, dict[int, CodeNames]] = {}
        self._globals_of: dict[int, tuple[CodeType, int]] = {}
        self._searched: set[int] = set()
        #: By the ids of the functions of one code that may have run: what to say if no watched value leads to one.
        self._ran: dict[tuple[int, ...], str] = {}
        self._swept: set[int] = set()
        #: By the id of a module's globals: its functions when one was first looked for, by the id of their code.
        self._by_module: dict[int, dict[int, list[FunctionType]]] = {}
        #: Code that is written inside of code that ran: the run may have made functions of it.
        self._inside: set[int] = set()
        #: Code of an ``__init__`` that was given an object which was there before.
        self._begun_again: set[int] = set()
        #: What to say of the calls of ``hash``, by code and offset, whose arguments are not told next.
        self._to_hash: dict[tuple[int, int], str] = {}
        self._clock = ClockReadings()
        self._globals: dict[int, tuple[dict[str, Any], dict[str, Any], str]] = {}
        self._made: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}

    def _note(self, value: Any) -> None:
        if id(value) in OF_COLLECTOR:
            self._uncollected.let_go()
        self._weak = self._weak or issubclass(type(value), _WEAK)
        made = makes_unknown(value) if issubclass(type(value), type) else ''
        if made and value is not self._values.named:  # else it is seen at the end whether the code may call it
            self._values.opaque(f'holds {made}: what its objects read is not known')
        of_user = issubclass(type(value), type) and not self._ownership.is_foreign_class(value)
        if of_user and found_in_class(value, '__init__') is object.__init__:
            self._uses.makes(value, True)
        super()._note(value)

    def _collect(self, frame: FrameType, code: CodeType) -> None:
        """Watch what a code object names when it runs for the first time: line by line where lines are told of."""
        self._globals_of[id(code)] = code, id(frame.f_globals)
        whole = names_of(code)
        if code.co_filename != '<string>':  # there, dataclasses compares with its own constant
            self._uses.compared[id(code)] = whole.parameters, f'{code.co_name} of {os.path.basename(code.co_filename)}'
        for setting in settings_of(code):
            self._values.depends_on(setting)
        if self._lines.told:
            lines, calls = self._sets.follow(code)
            by_line = self._by_line[id(code)] = names_by_line(code)
            lines = lines or any(names.looked_at for names in by_line.values())
            self._lines.follow(code, lines, calls or not _TOLD.isdisjoint(code.co_names))
            self._watch_named(frame, by_line[0])
        else:
            self._watch_named(frame, whole)

    def _came_to(self, frame: FrameType, first: bool) -> None:
        """Watch what a line names that is about to run for the first time, and look at the sets in its variables."""
        if self._failure is not None:
            return
        try:
            self._time.begin()
            if self._sets.has_locals(frame.f_code):
                self._sets.line(frame.f_code, frame.f_locals)
            names = self._by_line[id(frame.f_code)].get(frame.f_lineno)
            if names is not None and first:
                self._watch_named(frame, names)
            for of, attribute in () if names is None else names.looked_at:
                self._look_at(of.value_in(frame), attribute)
            self._time.end()
        except Exception as error:
            self._failure = error

    def _look_at(self, value: Any, attribute: str) -> None:
        """Note what the attribute of a value gives that is opened by some attributes of this name."""
        if attribute in OF_ARRAYS or attribute in OF_DEVICES:
            plain = attribute == FLAGS and (plain_key(value) is not None or type(value) is re.Pattern)
            of_cupy = self._is_array(value) or any(map(in_package, bases_of(type(value))))
            if not plain and (of_cupy or not has_of_its_own(value, attribute.partition(' ')[0])):
                self._names.of_cupy.add(attribute)
        elif not _is_no_method(value, attribute):
            self._name((), (), True)
            self._settle()

    def _call_begins(self, *call: Any) -> None:
        self._in_turn(self._look_at_call, *call)

    def _look_at_call(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        """Look at what a set is made of, and at the object that is asked for an attribute."""
        generator = self._sets.call(code, offset, function, first)
        if generator is not None:
            self._lines.tell_values(generator, self._sets.yielded)
        doubt = self._to_hash.pop((id(code), offset), None)
        if doubt is not None and not (function is hash and is_hashed_by_value(first)):
            self._doubts.unwatchable.append(doubt)
        if overwrites_entropy(function, first):
            self._seeding = id(code), offset
        elif self._seeding == (id(code), offset):
            self._seeding = None
        self._call_asks(code, offset, function, first)

    def _in_turn(self, note: Callable[..., None], *call: Any) -> None:
        """Take note of a call, as a step of following the run."""
        if self._failure is not None:
            return
        try:
            self._time.begin()
            note(*call)
            self._time.end()
        except Exception as error:
            self._failure = error

    def _call_asks(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        """Note what a call that begins is going to ask for."""
        raise NotImplementedError

    def _watch_named(self, frame: FrameType, names: CodeNames) -> None:
        code, values = frame.f_code, frame.f_globals
        if id(values) not in self._globals:
            self._globals[id(values)] = (values, dict(values), os.path.basename(code.co_filename))
        _, start, file = self._globals[id(values)]
        if names.unknown:
            self._doubts.unwatchable.append(f'{code.co_name} of {file} uses {names.unknown}, which is not understood')
        self._names.of_cupy |= names.of_arrays
        own = frame.f_builtins
        for name in sorted(names.read | names.written):
            if name in names.written and name not in start:
                self._made[id(values), name] = (values, file)
            if not self._of_globals(values, name):
                self._builtin(own, name)
        if code.co_filename != '<string>':  # there, dataclasses compares with its own constant
            self._uses.identity(names.identities, start, own, f'{code.co_name} of {file}')
            if not _ASKING.isdisjoint(names.read | names.attributes):
                self._uses.identities = self._uses.identities or f'{code.co_name} of {file}'
        for name, level in names.imports:
            self._imported(frame, name, level)
        self._name(names.attributes, names.strings, names.everything)
        for cls in self._of_class:
            self._class_names(cls, self._names.attributes)
        for base in bases_of(self._array) if self._array is not None else ():
            if not base.__flags__ & _IMMUTABLE:
                self._library.inside_of(base, dictionary_of_class(base))
                self._library.complete.add(id(base))
        self._settle()

    def _of_globals(self, values: dict[str, Any], name: str) -> bool:
        """Watch a name of a module that has been met. False if the module had no such name."""
        _, start, file = self._globals[id(values)]
        if name in start:
            self._global(values, name, start[name], file)
        else:
            self._absent.setdefault(id(values), (values, set(), f'global {{}} of {file}'))[1].add(name)
        return name in start

    def _global_named(self, frame: FrameType, name: str) -> None:
        """Watch what code takes out of its own ``globals()``."""
        self._of_globals(frame.f_globals, name)
        self._name((name,), (name,), False)
        self._settle()

    def _inside_library(self, frame: FrameType) -> None:
        self._library.inside_library(frame)
        code = frame.f_code
        asked = asked_by_user(frame.f_back, self._skip)
        for function in (frame.f_globals.get(code.co_name), *self._methods(code, frame.f_locals)):
            if asked and type(function) is FunctionType and function.__code__ is code:
                self._parts_of(function)

    def _builtin(self, own: dict[str, Any], name: str) -> None:
        if name in own:
            asks = self._unsettled.asks_all
            self._values.watch('global', own, name, own[name], ('builtin', ''), own)
            # code that names getattr says which attributes it reads with it, or that it can't
            self._unsettled.asks_all = asks
        else:
            self._absent.setdefault(id(own), (own, set(), 'builtin {}'))[1].add(name)

    def _recursion(self, frame: FrameType) -> None:
        """Note code that calls itself: it may reach the limit of calls in calls."""
        outer = frame.f_back if DEPTH in self._values.settings else None
        while outer is not None and id(outer.f_code) in self._codes:
            if outer.f_code is frame.f_code:
                self._values.depends_on(DEPTH)
                break
            outer = outer.f_back

    def _imported(self, frame: FrameType, name: str, level: int) -> None:
        """Watch a module that code imports where it runs."""
        if level:
            package = str(frame.f_globals.get('__package__') or '').rsplit('.', level - 1)[0]
            name = f'{package}.{name}' if name else package
        parts = name.split('.')
        for count in range(1, len(parts) + 1):
            part = '.'.join(parts[:count])
            self._values.watch('import', sys.modules, part, sys.modules.get(part, MISSING), ('module', ''), sys.modules)

    def _global(self, values: dict[str, Any], name: str, value: Any, file: str) -> None:
        self._values.watch('global', values, name, value, ('global', f' of {file}'), values)

    def _find(self, frame: FrameType, code: CodeType, variables: Any) -> bool:
        """Find the function that runs, whose defaults and closure are watched.

        False if it is not found, and the run did not make it: ``gc.freeze`` takes functions out of the lists.
        """
        if code.co_name.startswith('<') and code.co_name != '<lambda>':
            return True  # a comprehension: its cells are those of the function around it
        candidates = self._known.setdefault(id(code), [])
        if id(code) not in self._searched:
            self._searched.add(id(code))
            named = frame.f_globals.get(code.co_name)
            wrapped = named.__dict__.get('__wrapped__') if type(named) is FunctionType else None
            self._add_known(code, [named, wrapped, *self._methods(code, variables)])
        running = [function for function in candidates if _runs(function, variables)]
        if id(code) not in self._swept and (not running or _is_made_again(code)):
            self._swept.add(id(code))
            self._add_known(code, self._functions_of(frame.f_globals).get(id(code), ()))
            running = [function for function in candidates if _runs(function, variables)]
        for function in running:
            if id(function) not in self._functions and self._before.had(function):
                self._function(function)
        key = tuple(map(id, running))
        if running and key not in self._ran and self._calls_it(frame) and all(map(self._before.had, running)):
            self._ran[key] = f'the function runs {code.co_name}, which is reached in a way that is not followed'
        return bool(running) or id(code) in self._inside

    def _calls_it(self, frame: FrameType) -> bool:
        """Whether the user's code calls it: in a kernel's launch, a function may stand for the kernel."""
        return asked_by_user(frame.f_back, self._skip)

    def _functions_of(self, module: dict[str, Any]) -> dict[int, list[FunctionType]]:
        if id(module) not in self._by_module:
            self._time.pause()
            self._by_module[id(module)] = functions_of(module)
            self._time.resume()
        return self._by_module[id(module)]

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
            members = dictionary_of_class(cls)
            for name in (code.co_name, *members):  # named tuples have a lambda as their __new__
                found = members.get(name)
                inner = _unwrapped(found)
                if type(inner) is FunctionType and inner.__code__ is code:
                    self._class_attribute(cls, name, found)
                    yield inner
                    break

    def _function(self, function: FunctionType) -> None:
        """Watch a function that runs: its code, defaults and closure."""
        self._functions[id(function)] = function
        self._know(function)
        self._parts_of(function)
        name = function.__name__
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if self._before.had(cell):
                value = read_cell(cell)
                where = ('variable', f' of the closure of {name}')
                self._values.watch('variable', cell, variable, value, where, None, functools.partial(read_cell, cell))

    def _parts_of(self, function: FunctionType) -> None:
        """Watch the code and the defaults of a function."""
        for part in FUNCTION_PARTS:
            get = functools.partial(getattr, function, part)
            self._values.watch('function', function, part, get(), ('', f' of {function.__name__}'), None, get)

    def _know(self, function: FunctionType) -> None:
        known = self._known.setdefault(id(function.__code__), [])
        if not any(other is function for other in known):
            known.append(function)


def _is_no_method(value: Any, attribute: str) -> bool:
    """Whether an attribute of a value is a text, or what a property gives, and no method of a text."""
    member = found_in_class(type(value), attribute)
    if type(member) is property and type(member.fget) is FunctionType:
        return found_in_class(type(value), '__getattribute__') is object.__getattribute__
    return type(plain_attribute(value, attribute)) is str


def _unwrapped(member: Any) -> Any:
    """The function of a method, of a class or static method, and the getter of a property."""
    inner = member.__func__ if among(type(member), (classmethod, staticmethod)) else member
    return inner.fget if type(inner) is property else inner


def _is_made_again(code: CodeType) -> bool:
    """Whether several functions may have this code, as inner functions do: it is then unknown which of them runs."""
    return bool(code.co_flags & CO_NESTED) or code.co_name == '<lambda>'


def _runs(function: FunctionType, variables: Any) -> bool:
    """True if a frame with these variables can be a call of the function: its closure has the same values."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    return all(read_cell(cell) is variables.get(name, MISSING) for name, cell in cells)
