"""Follows one eager run: the code that ran, the functions written in C that it called, and what it can have read.

:class:`Watch` keeps all values that the code can have read, as they were when the run began. It calls no code of the
user: neither ``__eq__`` nor ``__getattr__`` nor properties.

Objects that existed before the run are distinguished from those that it made by the garbage collector's list when the
run began. They are held until the run ends, so that no new object can get the address of an old one.
"""

from __future__ import annotations

import _warnings
import functools
import gc
import os
import sys
import types
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from capturekit.functions.address_hashes import is_hash_of_a_value
from capturekit.functions.backends import uses_backends
from capturekit.functions.clock_uses import is_clock
from capturekit.functions.code_reads import READERS
from capturekit.functions.collector import OF_COLLECTOR
from capturekit.functions.compiling import compiler_code
from capturekit.functions.entropy import DRAWING, SEEDED
from capturekit.functions.environment import Environment
from capturekit.functions.follow_time import TooLong
from capturekit.functions.given_values import GivenValues
from capturekit.functions.hidden_parts import never
from capturekit.functions.hidden_state import HOST_RANDOMNESS
from capturekit.functions.libraries import (
    asked_by_user,
    called_by,
    default_skip,
    is_followed,
    is_library_frame,
    python_module,
)
from capturekit.functions.library_uses import ASKED_OF_WHOLE
from capturekit.functions.readable_state import is_cupys
from capturekit.functions.settings import (
    BACKENDS,
    CODECS,
    DEPTH,
    HANDLED,
    REGISTERED,
    WARNINGS,
    routines_now,
    settings_now,
)
from capturekit.functions.understood import (
    ALLOCATORS,
    BY_ADDRESS,
    FOLLOWED,
    WHOLE,
    owner_of,
    reads,
)
from capturekit.functions.warnings_shown import line_that_warned
from capturekit.functions.written import finish
from capturekit.model.class_layout import among
from capturekit.model.cleanup import Uncollected
from capturekit.model.host_reads import Read
from capturekit.model.kept_values import IsArray, Keeper
from capturekit.model.source_line import is_ours

_VARIABLE = (0x04, 0x08)  # CO_VARARGS, CO_VARKEYWORDS
_SUSPENDS = 0x2A0  # the code of generators and coroutines
_MODULE_DICT = vars(ModuleType)['__dict__'].__get__

#: The frame under which all finders and loaders run, and the modules that they load.
_IMPORT = sys.modules['_frozen_importlib']._find_and_load.__code__

#: The modules that define locks, or classes that use them.
_OF_THREADS = frozenset({'threading', 'queue', 'concurrent', 'multiprocessing', 'asyncio'})

_own_folder = os.path.dirname(os.path.abspath(__file__))


class Watch(GivenValues):
    """Follow one run of ``fn`` in this thread: ``with Watch(fn, is_array=...) as watch: fn(x)``.

    Arguments:
        is_array: returns True for arrays, which are compared by identity.
        skip: returns True for files whose code is not followed.
        ignore: returns True for objects that the caller compares: as arguments, their attributes are not watched.
        arguments: what ``fn`` is called with. Values in it that the caller does not compare are watched.
        array: the class of arrays, whose methods the user may replace.
        carries: returns, at the end of the run, whether launches can repeat changes of Python state.
        reads: the host reads, a list that the run fills.
        uncollected: the block without garbage collection, which ends before code can ask whether the collector is on.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        is_array: IsArray,
        skip: Callable[[str], bool] = default_skip,
        ignore: Callable[[Any], bool] | None = None,
        arguments: Any = (),
        array: type | None = None,
        carries: Callable[[], bool] | None = None,
        reads: Sequence[Read] = (),
        uncollected: Uncollected | None = None,
    ) -> None:
        super().__init__(is_array, skip, array)
        self._uncollected = uncollected or self._uncollected
        self._fn = fn
        self._ignore = ignore
        self._given = arguments
        self._carries = carries
        self._reads = reads
        self._environment: Environment | None = None
        self._previous: Any = None
        #: The frame of Python's import system while a module is imported.
        self._importing: FrameType | None = None
        self._calls: set[Any] = set()
        self._logged: set[tuple[int, type]] = set()
        #: Code of libraries of which another call tells nothing new, by id.
        self._done_with: set[int] = set()
        #: By dictionary of a module: the code that ran, the user's and libraries'.
        self._ran_in: dict[int, tuple[dict[str, Any], list[CodeType]]] = {}

    @property
    def environment(self) -> Environment:
        """All that was read.

        Raises:
            RuntimeError: the block has not ended, or ended with an exception.
        """
        if self._environment is None:
            raise RuntimeError('the run that is watched did not come to its end')
        return self._environment

    @property
    def seconds(self) -> float:
        """How long following the run has taken, apart from the run itself."""
        return self._time.spent

    def run(self, args: Any, kwargs: Any) -> Any:
        """Call the function and follow it."""
        with self:
            return self._fn(*args, **kwargs)

    def __enter__(self) -> Watch:
        self._before.__enter__()
        self._lines.begin()
        try:
            self._begin()
        except TooLong as error:
            self._failure = error
        except BaseException:
            self._lines.end()
            self._before.__exit__()
            raise
        self._previous = sys.getprofile()
        self._callback: Any = self._chained if callable(self._previous) else self._profile
        sys.setprofile(self._callback)
        return self

    def _begin(self) -> None:
        """Watch what the function holds before it runs."""
        self._time.begin()
        self._values.settings, self._compiler = settings_now(), compiler_code()
        for name, setting in ({} if self._array is None else routines_now()).items():
            self._values.watch('state', setting.get, '', setting.value, (name, ''), None, setting.get)
        self._randomness = {name: Keeper(never).keep(state()) for name, state in HOST_RANDOMNESS.items()}
        self._keep_arguments()
        function: Any = self._fn
        while type(function) is not FunctionType:
            if among(type(function), (types.MethodType, functools.partial)):
                self._values.keep_also(function)
                function = function.__func__ if type(function) is types.MethodType else function.func
            else:
                if not self._is_array(function) and not isinstance(function, type):
                    self._values.keep_also(function)
                break
        if type(function) is FunctionType:
            self._reached.add(id(function))
            self._function(function)
        self._settle()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if sys.getprofile() is self._callback:
            sys.setprofile(None)
            if callable(self._previous):
                sys.setprofile(self._previous)
            elif hasattr(self._previous, 'enable'):
                self._previous.enable()  # cProfile before Python 3.12 is not a function and can't be set as one
        elif self._failure is None:
            self._doubts.unwatchable.append('the function set a profile function: what it ran afterwards is not known')
        self._lines.end()
        try:
            if kind is None:
                self._in_turn(self._answer_all)
                self._note_warnings()
                carries = self._carries is not None and self._carries() and not self._waits
                self._environment = finish(self, carries, self._reads)
        finally:
            self._before.__exit__()
            self._callback = None  # it holds this object, and so all that it has met
            self._values.end()

    def _note_warnings(self) -> None:
        """Note lines that have warned, in this run or before it: Python may have forgotten that by the next run."""
        for values, codes in self._ran_in.values():
            found = line_that_warned(values, codes)
            if found is not None:
                code, line = found
                at = f'{os.path.basename(code.co_filename)}:{line}'
                self._doubts.unwatchable.append(f'the function warns at {at}, which a launch would not do')

    def _chained(self, frame: FrameType, event: str, argument: Any) -> None:
        self._profile(frame, event, argument)
        self._previous(frame, event, argument)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        try:
            if id(argument) in OF_COLLECTOR:
                self._uncollected.let_go()
            if self._failure is not None:
                return
            if self._importing is not None:
                self._while_importing(self._importing, frame, event)
            elif self._compiling is not None and self._while_compiling(frame, event):
                return
            elif event == 'call':
                if id(frame.f_code) not in self._done_with:
                    self._time.begin()
                    self._called(frame)
                    self._time.end()
            elif event == 'c_call' and (id(frame.f_code) not in self._done_with or id(argument) in _COUNTS_ANYWHERE):
                self._called_in_c(frame, argument)
        except Exception as error:
            self._failure = error

    def _while_importing(self, importing: FrameType, frame: FrameType, event: str) -> None:
        """Skip the code that finds, loads and runs a module: it runs once, so no later call reads what it reads."""
        if event == 'return' and frame is importing:
            self._importing = None
            name = frame.f_locals.get('name')
            if name not in sys.modules and asked_by_user(importing.f_back, self._skip):
                self._doubts.add(importing.f_back, f'imports {name}, which is not found')
        elif event == 'call' and frame.f_code.co_name == '<module>':
            self._module_begins(frame, importing)

    def _module_begins(self, frame: FrameType, importing: FrameType) -> None:
        if asked_by_user(importing.f_back, self._skip):
            self._doubts.add(importing.f_back, f'imports {frame.f_globals.get("__name__")} for the first time')

    # Calls

    def _called_in_c(self, frame: FrameType, function: Any) -> None:
        """Look up a function written in C that the user's code calls, directly or through the standard library."""
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is not None and known[1] and not python_module(code.co_filename):
            self._called_by_library(frame, function)
            return
        if code is DRAWING:
            return
        what = (owner_of(function), function.__name__)
        if what[1] in READERS and what[0] == 'builtins':
            if python_module(code.co_filename) == 'inspect' and called_by(frame, 'signature'):
                return
            if (known is not None and not known[1]) or asked_by_user(frame, self._skip):
                self._asked(frame)
            return
        if what[0] == 'time' and self._timed(frame, function):
            return
        self._note_setting(what)
        if (
            what in self._calls
            or code.co_filename.startswith(_own_folder)
            or self._pops_from_a_set(frame, function, what)
        ):
            return
        if not asked_by_user(frame, self._skip):
            return
        if what == ('builtins', 'id') and python_module(code.co_filename) in BY_ADDRESS:
            return
        if what == ('builtins', 'hash') and ((known is not None and known[1]) or is_hash_of_a_value(frame)):
            return
        if (known is not None and self._is_seen_through(frame, what)) or self._formats(function, what):
            return
        self._calls.add(what)
        found = reads(function)
        if found is None:
            self._doubts.add(frame, f'calls {".".join(what)}')
        elif found == 'names':
            self._name((), (), True)
            self._settle()

    def _note_setting(self, what: tuple[str, str]) -> None:
        """Note the setting on which depends what a function does."""
        setting = BACKENDS if uses_backends(what[0]) else _SETTINGS_OF.get(what)
        if setting is not None:
            self._values.depends_on(setting)
            self._settle()

    def _pops_from_a_set(self, frame: FrameType, function: Any, what: tuple[str, str]) -> bool:
        """Whether the user's set loses an element: it goes on where the last ``pop`` ended, which nobody can see."""
        if what != ('builtins.set', 'pop') or not self._before.had(getattr(function, '__self__', None)):
            return False
        self._doubts.add(frame, 'takes an element out of a set by pop(), which goes on where the last one ended')
        return True

    def _called_by_library(self, frame: FrameType, function: Any) -> None:
        if function is os.urandom:
            self._draws_entropy(frame)
        elif id(function) in _COUNTS_ANYWHERE:  # it warns
            self._values.depends_on(WARNINGS)
            self._settle()

    def _timed(self, frame: FrameType, function: Any) -> bool:
        """Note where the user's code reads a clock. False if a library's code does, or if it is no clock."""
        known = self._codes.get(id(frame.f_code))
        if known is None or known[1] or not is_clock(function):
            return False
        self._clock.note(frame, function, self._doubts.sentence(frame, f'calls time.{function.__name__}'))
        return True

    def _library_entered(self, frame: FrameType) -> None:
        """Note that code of a library is entered, which may read more than can be seen."""
        code = frame.f_code
        if code is DRAWING:
            self._draws_entropy(frame)
            return
        module = python_module(code.co_filename)
        name = code.co_name
        if not module:
            self._of_package(frame, code)
            return
        top = module.partition('.')[0]
        if top in _SETTINGS_IN:
            self._values.depends_on(_SETTINGS_IN[top])
            self._settle()
        self._waits = self._waits or top in _OF_THREADS
        if name == '_showwarnmsg' and top in ('warnings', '_py_warnings'):
            self._doubts.unwatchable.append(
                f'the function warns{self._doubts.line(frame)}, which a launch would not do'
            )
        if (module, name) in self._calls and name != 'seed':
            return
        if top in WHOLE:
            if module == 'enum':
                self._enumeration(frame)
            if top == 'logging':
                self._logs(frame)
            if name in ASKED_OF_WHOLE.get(top, ()) and asked_by_user(frame.f_back, self._skip):
                self._asked_of_whole(frame, module, name)
            return
        if not asked_by_user(frame.f_back, self._skip):
            return
        if (module, name) == ('functools', 'wrapper'):
            self._dispatched(frame.f_locals.get('dispatch'))
            return
        if module == 'inspect' and called_by(frame, 'signature'):
            return
        self._calls.add((module, name))
        if not is_followed(code.co_filename, name):
            self._doubts.add(frame, f'calls {module}.{name}')
        else:
            self._followed(frame, module, name)

    def _of_package(self, frame: FrameType, code: CodeType) -> None:
        """Note what code of a package reads, and whether another call of it could tell anything new."""
        top = str(frame.f_globals.get('__name__', '')).partition('.')[0]
        top = 'cupy' if is_cupys(top) else top
        again = self._package(frame, top, code.co_name) or code is self._compiler or code.co_flags & _SUSPENDS
        if not again and code.co_name not in ('__init__', '<module>'):
            self._done_with.add(id(code))

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        if code is _IMPORT:
            self._importing = frame
            return
        if code is self._compiler and self._compiles(frame):
            return
        known = self._codes.get(id(code)) or self._met(frame, code)
        if code.co_flags & _SUSPENDS and id(frame) in self._hidden.suspended:
            self._resumed = self._resumed or self._hidden.suspended[id(frame)][1]
        if known[1]:
            if code.co_name == '__init__' and code.co_argcount:
                self._before.made(frame.f_locals.get(code.co_varnames[0]))
            self._library_entered(frame)
            return
        self._callers.setdefault(id(code), set()).add(_caller_of(frame))
        count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in _VARIABLE)
        if not count and not code.co_freevars:
            if id(code) not in self._searched:
                self._identify(frame, code, {})
            return
        variables = frame.f_locals
        self._uses.compare_parameters(code, variables)
        self._recursion(frame)
        arguments = [variables[name] for name in code.co_varnames[:count] if name in variables]
        if code.co_name == '__del__' and arguments and id(type(arguments[0])) in self._uses.finalized:
            self._uses.finalized[id(type(arguments[0]))][1] -= 1
        if code.co_name == '__init__' and arguments:
            if id(arguments[0]) not in self._holders:
                self._before.made(arguments[0])
                self._uses.makes(type(arguments[0]))
            elif self._before.had(arguments[0]):
                self._begun_again.add(id(code))
        for number, argument in enumerate(arguments):
            if code.co_varnames[number] != '.0' and (self._ignore is None or not self._ignore(argument)):
                self._values.at = f'argument {code.co_varnames[number]} of {code.co_name}'
                self._argument(argument)
        if code.co_freevars or id(code) not in self._searched:
            self._identify(frame, code, variables)
        self._settle()

    def _identify(self, frame: FrameType, code: CodeType, variables: Any) -> None:
        if not self._find(frame, code, variables):
            why = ' after gc.freeze()' if gc.get_freeze_count() else ''
            self._doubts.add(frame, f'runs {code.co_name}, whose function object is not found{why},')

    def _met(self, frame: FrameType, code: CodeType) -> tuple[CodeType, bool]:
        """Note that code runs for the first time; if it is the user's, watch what it names."""
        foreign = code.co_filename.startswith(_own_folder) or is_library_frame(frame, self._skip)
        foreign = foreign or code.co_name == '<module>' or code.co_name in ALLOCATORS
        known = self._codes[id(code)] = (code, foreign)
        self._ran_in.setdefault(id(frame.f_globals), (frame.f_globals, []))[1].append(code)
        self._inside.update(id(part) for part in code.co_consts if type(part) is CodeType)
        if not foreign:
            self._collect(frame, code)
            return known
        if code.co_name != '<module>' and not is_ours(code.co_filename):
            self._libraries_name(code.co_names)
        if SEEDED in code.co_names and self._lines.told:
            self._lines.follow_calls(code)
        if is_cupys(frame.f_globals.get('__name__')):
            self._library.inside_cupy(frame)
        elif code.co_name == '<module>':
            self._module_begins(frame, frame)
        elif python_module(code.co_filename).partition('.')[0] in FOLLOWED:
            self._inside_library(frame)
        return known


#: Functions written in C of which it counts that a library calls them, by id.
_COUNTS_ANYWHERE = frozenset(map(id, (os.urandom, _warnings.warn, _warnings.warn_explicit)))


def _caller_of(frame: FrameType) -> tuple[int, int] | None:
    """The code that a frame was called from, by its id, and where in it; None for the function that is watched."""
    below = frame.f_back
    return None if below is None or below.f_code is Watch.run.__code__ else (id(below.f_code), below.f_lasti)


#: Functions written in C, and the settings that what they do depends on.
_SETTINGS_OF = {
    ('_abc', 'get_cache_token'): REGISTERED, ('sys', 'getrecursionlimit'): DEPTH,
    ('sys', 'exc_info'): HANDLED, ('sys', 'exception'): HANDLED, ('builtins.str', 'encode'): CODECS,
    ('builtins.bytes', 'decode'): CODECS, ('builtins.bytearray', 'decode'): CODECS,
    ('_warnings', 'warn'): WARNINGS, ('_warnings', 'warn_explicit'): WARNINGS,
}  # fmt: skip
_SETTINGS_IN = {'warnings': WARNINGS, '_py_warnings': WARNINGS, 'traceback': HANDLED}
