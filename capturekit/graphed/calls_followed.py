"""The code that a run enters: that of the user, which is followed, libraries, functions written in C, and imports.

:class:`RunRecord` has the parts of a watch, which its end reads.
"""

from __future__ import annotations

import _warnings
import enum
import gc
import inspect
import logging
import os
import string
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import numpy as np

from capturekit.graphed import allowlists, compiling, ownership, settings
from capturekit.graphed.allowlists import owner_of, reads
from capturekit.graphed.code_reads import READERS
from capturekit.graphed.code_watch import CLOCKS, CodeWatch, LinesRun
from capturekit.graphed.collector import Before
from capturekit.graphed.follow_time import FollowTime
from capturekit.graphed.hidden_state import DRAWING, SEEDED, is_logger
from capturekit.graphed.reasons import NONE, Reason, Why
from capturekit.graphed.return_paths import Caller
from capturekit.graphed.watched_objects import FunctionsFound, GivenValues, HiddenParts, Holders, ValuesMet
from capturekit.graphed.watched_values import RunParts
from capturekit.model.class_layout import MISSING, bases_of, dictionary_of_class
from capturekit.model.cleanup import Uncollected
from capturekit.model.host_reads import Site
from capturekit.model.kept_values import IsArray
from capturekit.model.plain_values import a
from capturekit.model.source_line import is_ours

_SUSPENDS = 0x2A0  # the code of generators and coroutines
#: Why launches repeat no changes of Python state where code of threads ran.
_NO_CHANGES = Reason(
    'it uses locks or queues, or writes to a log, and launches repeat no changes of Python state beside that', Why.LOCKS
)
#: The modules that define locks, or classes that use them.
_OF_THREADS = frozenset({'threading', 'queue', 'concurrent', 'multiprocessing', 'asyncio'})
_SETTINGS_IN = {'warnings': settings.WARNINGS, '_py_warnings': settings.WARNINGS, 'traceback': settings.HANDLED}
#: Methods of enumerations that find members.
_BY_VALUE_OR_NAME = frozenset({'__call__', '__getitem__', '__contains__'})


class LibraryUses:
    """The uses of modules of Python that a run makes, and of CuPy's compiler."""

    def __init__(self, run: RunParts, holders: Holders, functions: FunctionsFound, code_watch: CodeWatch) -> None:
        self._values, self._holders, self._library = run.values, holders, run.library
        self._functions, self._code_watch = functions, code_watch
        self._ownership, self._doubts = run.ownership, run.doubts
        #: The code of CuPy's compiler, and its frame while it makes a kernel.
        self.compiler: CodeType | None = None
        self.compiling: FrameType | None = None
        #: The sources of the kernels that it made.
        self.compiled: set[Any] = set()
        #: The functions of libraries that were looked up, by module and name.
        self.calls: set[Any] = set()
        #: Code of libraries of which another call tells nothing new, by id.
        self.done_with: set[int] = set()
        #: Why launches repeat no changes of Python state, if the run called code of threads.
        self.waits = NONE
        #: Code of ``logging`` that ran, by id, with the class of what it was called of.
        self._logged: set[tuple[int, type]] = set()

    def compiles(self, frame: FrameType) -> bool:
        """Whether CuPy makes a kernel from here on, until the frame returns: it reads nothing for later runs."""
        if not compiling.asked_by_kernel(frame) or not self._ownership.skip(frame.f_code.co_filename):
            return False
        if not self.compiled:
            self._values.watch_state(compiling.FORGOTTEN, compiling.remembers())
        self.compiled.add(compiling.source_of(frame))
        self.compiling = frame
        return True

    def while_compiling(self, frame: FrameType, event: str) -> bool:
        """Whether to skip what happens: not where somebody's code runs in the place of CuPy's."""
        if event == 'return' and frame is self.compiling:
            self.compiling = None
        elif event == 'call' and not ownership.is_library_frame(frame, self._ownership.skip):
            self.compiling = None
            return False
        return True

    def entered(self, frame: FrameType) -> None:
        """Note that code of a library is entered, which may read more than can be seen."""
        code = frame.f_code
        if code is DRAWING:
            self.draws_entropy(frame)
            return
        module = ownership.python_module(code.co_filename)
        name = code.co_name
        if not module:
            self._of_package(frame, code)
            return
        top = module.partition('.')[0]
        if top in _SETTINGS_IN:
            self._holders.depends_on(_SETTINGS_IN[top])
        if top in _OF_THREADS and name != 'RLock':  # which makes a lock, and waits for none
            self.waits = _NO_CHANGES
        if name == '_showwarnmsg' and top in ('warnings', '_py_warnings'):
            line = self._doubts.line(frame)
            self._doubts.say(f'the function warns{line}, which a launch would not do', Why.WARNS)
        if (module, name) in self.calls and name != 'seed':
            return
        if top in allowlists.WHOLE:
            if module == 'enum':
                self._enumeration(frame)
            if top == 'logging':
                self._logs(frame)
            if name in ASKED_OF_WHOLE.get(top, ()) and ownership.asked_by_user(frame.f_back, self._ownership.skip):
                self._asked_of_whole(frame, module, name)
            return
        if not ownership.asked_by_user(frame.f_back, self._ownership.skip):
            return
        if ownership.is_of_signature(frame):
            return
        self.calls.add((module, name))
        if not ownership.is_followed(code.co_filename, name):
            self._doubts.add(frame, f'calls {module}.{name}')
        else:
            self._followed(frame, module, name)

    def _of_package(self, frame: FrameType, code: CodeType) -> None:
        """Note what code of a package reads, and whether another call of it could tell anything new."""
        module = str(frame.f_globals.get('__name__', ''))
        top = module.partition('.')[0]
        top = 'cupy' if ownership.is_cupys(top) or module == 'capturekit.simulated.cupy.surface' else top
        again = self._package(frame, top, code.co_name) or code is self.compiler or code.co_flags & _SUSPENDS
        if not again and code.co_name not in ('__init__', '<module>'):
            self.done_with.add(id(code))

    def draws_entropy(self, frame: FrameType) -> None:
        """Note that entropy is drawn, but for what a generator with a seed draws and overwrites."""
        caller = frame.f_back if frame.f_code is DRAWING else frame
        if caller is None or is_ours(caller.f_code.co_filename):
            return
        if self._code_watch.seeding != (id(caller.f_code), caller.f_lasti):
            text = f'the function draws entropy from the system{self._doubts.line(frame)}, which differs at each call'
            self._doubts.say(text, Why.DRAWS)

    def _followed(self, frame: FrameType, module: str, name: str) -> None:
        """Note what a function reads whose own code is followed."""
        if module == 'random' and name == 'seed' and frame.f_locals.get('a', 0) is None:
            self._doubts.add(frame, 'makes a generator of random numbers without a seed')
        elif module == 'random' and name in _SETTING_STATES:
            self._holders.name(('setstate',))
        elif (module, name) == ('functools', 'wrapper'):
            self._doubts.add(frame, 'calls a function made by functools.singledispatch')
        elif module == 'os':
            self._code_watch.watch_global(frame.f_globals, 'environ', os.environ, 'os')
            self._holders.settle()
        elif (module, name) == ('encodings', 'search_function'):
            self._doubts.add(frame, 'looks for an encoding that was not used before')
        elif (module, name) == ('typing', 'get_type_hints'):
            self._holders.name(('__annotations__',), ('__annotations__',))
            self._holders.settle()
        elif (module, name) == ('inspect', 'signature'):
            self.calls.discard((module, name))  # the next call may be given another function
            self._signature(frame)

    def _signature(self, frame: FrameType) -> None:
        """Watch all that ``inspect.signature`` reads of a function of Python, and of those that it wraps."""
        given = frame.f_locals
        function = given.get('obj')
        self._values.meet(function)
        self._holders.name(allowlists.OF_SIGNATURES, allowlists.OF_SIGNATURES)
        self._holders.settle()
        if given.get('eval_str') or not has_plain_signature(function):
            self._doubts.add(frame, f'calls inspect.signature of {a(type(function))}')

    def _enumeration(self, frame: FrameType) -> None:
        """Watch which members an enumeration has under which values and names, where code of it finds them."""
        code = frame.f_code
        cls: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_name in _BY_VALUE_OR_NAME else None
        if issubclass(type(cls), enum.EnumMeta):
            self._holders.class_names(cls, ('_value2member_map_', '_member_map_', '_missing_'))
            self._holders.settle()

    def _package(self, frame: FrameType, top: str, name: str) -> bool:
        """Note what a function of a package that is understood as a whole reads besides its arguments.

        Returns whether the next call of it has to be looked at, too.
        """
        inside = str(frame.f_globals.get('__name__'))
        if ownership.asks_for_backends(inside, name):
            self._doubts.add(frame, 'calls a function of SciPy that asks for a backend')
            return True
        if top == 'scipy':
            self._values.depends_on(settings.SPECIALS)
        elif name == '_declare_synchronize':
            self._values.depends_on(settings.SYNCHRONIZING)
        of_files = inside in allowlists.OF_FILES or inside.startswith(allowlists.OF_SCIPYS_FILES)
        if inside in allowlists.OF_PRINTING and name not in allowlists.OUTSIDE.get(top, ()):
            # CuPy's arrays are printed so, too
            self._values.watch_state("NumPy's options for printing", np.get_printoptions)
        elif inside in allowlists.OF_TEXTS and name in allowlists.MAKING_TEXTS:
            self._doubts.add(frame, f'calls {inside}.{name}')
        elif top == 'cupy' and name in _OF_ERRORS:
            self._values.watch_state("CuPy's handling of errors", sys.modules['cupyx'].geterr)
        if name not in allowlists.OUTSIDE.get(top, ()) and not of_files:
            return False
        if ownership.asked_by_user(frame.f_back, self._ownership.skip):
            self._doubts.add(frame, f'calls {top}.{name}')
        return True

    def _logs(self, frame: FrameType) -> None:
        """Keep whose methods run where code of ``logging`` passes a message on, and what it names in its module."""
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if code.co_name == 'isEnabledFor' and is_logger(type(first)):  # also of the root, which code of logging asks
            self._values.meet(first)
            self._holders.settle()
        if (id(code), type(first)) in self._logged:
            return
        self._logged.add((id(code), type(first)))
        self._functions.inside_library(frame)
        for base in bases_of(type(first)):
            if self._ownership.is_foreign_class(base):
                self._library.inside_of(base, {code.co_name, *code.co_names} & (dictionary_of_class(base).keys()))

    def _asked_of_whole(self, frame: FrameType, module: str, name: str) -> None:
        """Note what the user's code asks a module for that is otherwise skipped as a whole."""
        if name in allowlists.OF_LOGGERS:
            here = frame.f_locals
            self._values.meet(here['self'] if 'self' in here else logging.getLogger(here.get('name')))
            self._holders.settle()
        elif module == 'linecache' or name in allowlists.OF_CALLERS or name in allowlists.OF_LOGGING:
            self._doubts.add(frame, f'calls {module}.{name}')
        else:
            self._values.depends_on(settings.REGISTERED)
            self.calls.add((module, name))


#: Functions of ``random`` that give a generator another state; ``__init__`` may be called again.
_SETTING_STATES = frozenset({'__init__', 'seed', 'setstate'})
#: Functions of ``cupyx`` that tell how errors are treated.
_OF_ERRORS = frozenset({'geterr', 'seterr'})
_ABSTRACT = frozenset({'__instancecheck__', '__subclasscheck__'})
#: What code may ask modules for that are otherwise skipped as a whole.
ASKED_OF_WHOLE = {
    **dict.fromkeys(('abc', '_abc', '_py_abc', 'enum', '_weakrefset'), _ABSTRACT),
    'linecache': frozenset({'getline', 'getlines', 'checkcache', 'updatecache', 'lazycache'}),
    'traceback': allowlists.OF_CALLERS,
    'logging': allowlists.OF_LOGGERS | allowlists.OF_LOGGING,
}


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


class RunRecord(RunParts):
    """The parts of a watch, each with what it has found out; ``array``: the class of arrays.

    Each part gets those before it that it uses; the values tell of what they meet.
    """

    def __init__(
        self,
        is_array: IsArray,
        skip: Callable[[str], bool],
        before: Before,
        time: FollowTime,
        lines: LinesRun,
        uncollected: Uncollected,
        array: type | None,
        arguments: Any,
        ignore: Callable[[Any], bool] | None,
    ) -> None:
        super().__init__(is_array, skip, before, time)
        self.lines, self.array = lines, array
        self.hidden = HiddenParts(self.values)
        self.holders = Holders(self)
        self.functions = FunctionsFound(self, self.holders)
        self.met = ValuesMet(self, self.holders, self.hidden, uncollected)
        self.values.note = self.met.note
        self.given = GivenValues(self, self.holders, arguments, ignore)
        self.code_watch = CodeWatch(self, self.holders, self.given, lines, array)
        self.code, self.asked = self.code_watch.met, self.code_watch.asked
        self.libraries = LibraryUses(self, self.holders, self.functions, self.code_watch)


_VARIABLE = (0x04, 0x08)  # CO_VARARGS, CO_VARKEYWORDS

#: The frame under which all finders and loaders run, and the modules that they load.
_IMPORT = sys.modules['_frozen_importlib']._find_and_load.__code__

_own_folder = os.path.dirname(os.path.abspath(__file__))


class PythonCalls:
    """Follows the calls of functions written in Python.

    ``outermost``: the code that calls the function which is watched.
    """

    def __init__(self, run: RunRecord, outermost: CodeType) -> None:
        self._values, self._holders, self._functions = run.values, run.holders, run.functions
        self._code, self._code_watch, self._given, self._uses = run.code, run.code_watch, run.given, run.uses
        self._library, self._libraries = run.library, run.libraries
        self._lines, self._ownership, self._doubts, self._before = run.lines, run.ownership, run.doubts, run.before
        self._ignore, self._outermost = run.given.ignore, outermost
        #: The frame of Python's import system while a module is imported.
        self.importing: FrameType | None = None

    def while_importing(self, importing: FrameType, frame: FrameType, event: str) -> None:
        """Skip the code that finds, loads and runs a module: it runs once, so no later call reads what it reads."""
        if event == 'return' and frame is importing:
            self.importing = None
            name = frame.f_locals.get('name')
            if name not in sys.modules and ownership.asked_by_user(importing.f_back, self._ownership.skip):
                self._doubts.add(importing.f_back, f'imports {name}, which is not found')
        elif event == 'call' and frame.f_code.co_name == '<module>':
            self._module_begins(frame, importing)

    def _module_begins(self, frame: FrameType, importing: FrameType) -> None:
        if ownership.asked_by_user(importing.f_back, self._ownership.skip):
            self._doubts.add(importing.f_back, f'imports {frame.f_globals.get("__name__")} for the first time')

    def called(self, frame: FrameType) -> None:
        """Follow a call that begins."""
        code = frame.f_code
        if code is _IMPORT:
            self.importing = frame
            return
        if code is self._libraries.compiler and self._libraries.compiles(frame):
            return
        known = self._code.codes.get(id(code)) or self._met(frame, code)
        if known[1]:
            return self._leaves(frame, code)
        self._runs(frame, code)
        count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in _VARIABLE)
        if not count and not code.co_freevars:
            if self._functions.is_new(frame, code):
                self._identify(frame, code, {})
            return
        variables = frame.f_locals
        self._uses.compare_parameters(code, variables)
        self._code_watch.recursion(frame)
        arguments = [variables[name] for name in code.co_varnames[:count] if name in variables]
        if code.co_name == '__del__' and arguments and id(type(arguments[0])) in self._uses.finalized:
            self._uses.finalized[id(type(arguments[0]))][1] -= 1
        if code.co_name == '__init__' and arguments and id(arguments[0]) not in self._holders.by_id:
            self._before.made(arguments[0])
            self._uses.makes(type(arguments[0]))
        for number, argument in enumerate(arguments):
            if code.co_varnames[number] != '.0' and (self._ignore is None or not self._ignore(argument)):
                self._values.at = f'argument {code.co_varnames[number]} of {code.co_name}'
                self._given.argument(argument)
        if self._functions.is_new(frame, code):
            self._identify(frame, code, variables)
        self._holders.settle()

    def _leaves(self, frame: FrameType, code: CodeType) -> None:
        """A call enters code of a library. It is noted if it is one in the user's code."""
        if code.co_name == '__init__' and code.co_argcount:
            self._before.made(frame.f_locals.get(code.co_varnames[0]))
        self._libraries.entered(frame)
        below = frame.f_back
        known = None if below is None else self._code.codes.get(id(below.f_code))
        if below is not None and known is not None and not known[1]:
            self._code.left_at.add((id(below.f_code), below.f_lasti))

    def _identify(self, frame: FrameType, code: CodeType, variables: Any) -> None:
        if not self._functions.find(frame, code, variables):
            why = ' after gc.freeze()' if gc.get_freeze_count() else ''
            self._doubts.add(frame, f'runs {code.co_name}, whose function object is not found{why},')

    def _runs(self, frame: FrameType, code: CodeType) -> None:
        """Note from where the user's code is called, and whether it now runs with other globals than before: names in
        it are watched where it first found them."""
        caller = _caller_of(frame, self._outermost)
        further = self._code.callers.setdefault(id(code), {}).setdefault(caller, set())
        if caller is not None and frame.f_back is not None:
            further.add(_caller_of(frame.f_back, self._outermost))
        self._code.direct.enters(caller, frame)
        if self._code.globals_of[id(code)][1] == id(frame.f_globals):
            return
        said = self._doubts.unknown(frame, f'runs {code.co_name} with the globals of several modules')
        if said not in self._doubts.unwatchable:
            self._doubts.unwatchable.append(said)

    def _met(self, frame: FrameType, code: CodeType) -> tuple[CodeType, bool]:
        """Note that code runs for the first time; if it is the user's, watch what it names."""
        foreign = code.co_filename.startswith(_own_folder) or ownership.is_library_frame(frame, self._ownership.skip)
        foreign = foreign or code.co_name == '<module>' or code.co_name in allowlists.ALLOCATORS
        known = self._code.codes[id(code)] = (code, foreign)
        self._code.ran_in.setdefault(id(frame.f_globals), (frame.f_globals, []))[1].append(code)
        self._functions.inside.update(id(part) for part in code.co_consts if type(part) is CodeType)
        if not foreign:
            self._code_watch.collect(frame, code)
            return known
        if code.co_name != '<module>' and not is_ours(code.co_filename):
            self._holders.name_out_of_sight(code.co_names)
        if SEEDED in code.co_names and self._lines.told:
            self._lines.follow_calls(code)
        if ownership.is_cupys(frame.f_globals.get('__name__')):
            self._library.inside_cupy(frame)
        elif code.co_name == '<module>':
            self._module_begins(frame, frame)
        elif ownership.python_module(code.co_filename).partition('.')[0] in allowlists.FOLLOWED:
            self._functions.inside_library(frame)
        return known


def _caller_of(frame: FrameType, outermost: CodeType) -> Caller:
    """The code that a frame was called from; None for the function that is watched."""
    below = frame.f_back
    return None if below is None or below.f_code is outermost else (id(below.f_code), below.f_lasti)


#: Functions written in C of which it counts that a library calls them, by id.
COUNTS_ANYWHERE = frozenset(map(id, (os.urandom, _warnings.warn, _warnings.warn_explicit)))
#: Methods that make a set of another one, which may then get other members.
_COPYING = tuple(('builtins.set', name) for name in ('copy', 'difference', 'intersection', '__copy__'))
_OF_TEXTS = (('builtins.str', 'format'), ('builtins.str', 'format_map'))
#: Functions written in C, and the settings that what they do depends on.
_SETTINGS_OF = {
    ('_abc', 'get_cache_token'): settings.REGISTERED, ('sys', 'getrecursionlimit'): settings.DEPTH,
    ('sys', 'exc_info'): settings.HANDLED, ('sys', 'exception'): settings.HANDLED,
    ('builtins.str', 'encode'): settings.CODECS, ('builtins.bytes', 'decode'): settings.CODECS,
    ('builtins.bytearray', 'decode'): settings.CODECS,
    ('_warnings', 'warn'): settings.WARNINGS, ('_warnings', 'warn_explicit'): settings.WARNINGS,
}  # fmt: skip


class CallsInC:
    """Looks up what functions written in C read."""

    def __init__(self, run: RunRecord) -> None:
        self._values, self._holders, self._code, self._code_watch = run.values, run.holders, run.code, run.code_watch
        self._asked, self._libraries, self._ownership = run.asked, run.libraries, run.ownership
        self._doubts, self._before, self._lines, self._uses = run.doubts, run.before, run.lines, run.uses

    def called(self, frame: FrameType, function: Any) -> None:
        """Look up a function written in C that the user's code calls, directly or through the standard library."""
        code = frame.f_code
        known = self._code.codes.get(id(code))
        if known is not None and known[1] and not ownership.python_module(code.co_filename):
            self._called_by_library(frame, function)
            return
        if code is DRAWING:
            return
        what = (owner_of(function), function.__name__)
        if what[1] in READERS and what[0] == 'builtins':
            if ownership.is_of_signature(frame):
                return
            if (known is not None and not known[1]) or ownership.asked_by_user(frame, self._ownership.skip):
                self._asked.asked(frame, what[1] == 'hasattr')
            return
        if what[0] == 'time' and self._timed(frame, function):
            return
        if what in _SETTINGS_OF:
            self._holders.depends_on(_SETTINGS_OF[what])
        if what in _COPYING:
            self._uses.copied_sets.add(code.co_name)
        if what in self._libraries.calls or code.co_filename.startswith(_own_folder):
            return
        if self._pops_from_a_set(frame, function, what) or not ownership.asked_by_user(frame, self._ownership.skip):
            return
        if what == ('builtins', 'id') and ownership.python_module(code.co_filename) in allowlists.BY_ADDRESS:
            return
        if what == ('builtins', 'hash') and ((known is not None and known[1]) or code.co_name == '__hash__'):
            return  # what ``__hash__`` returns only decides the place in a dict or a set
        if (known is not None and self._hashes(frame, what)) or self._formats_plainly(function, what):
            return
        self._libraries.calls.add(what)
        found = reads(function)
        if found is None or ownership.asks_for_backends(what[0]):
            self._doubts.add(frame, f'calls {".".join(what)}')
        elif found == 'names':
            self._doubts.add(frame, f'calls {".".join(what)} with names that are not in its code')

    def _hashes(self, frame: FrameType, what: tuple[str, str]) -> bool:
        """Whether code of the user calls ``hash``, and is told next of what."""
        code = frame.f_code
        told = what == ('builtins', 'hash') and 'hash' in code.co_names and self._lines.of(code) is not None
        if told:
            self._code_watch.to_hash[id(code), frame.f_lasti] = self._doubts.unknown(frame, f'calls {".".join(what)}')
        return told

    def _formats_plainly(self, function: Any, what: tuple[str, str]) -> bool:
        """Whether the method ``format`` of a text is called that names no attributes of what it is given."""
        text = getattr(function, '__self__', None) if what in _OF_TEXTS else None
        if type(text) is not str or _names_attributes(text):
            return False
        if settings.is_by_locale(text):
            self._holders.depends_on(settings.LOCALE)
        return True

    def _pops_from_a_set(self, frame: FrameType, function: Any, what: tuple[str, str]) -> bool:
        """Whether the user's set loses an element: it goes on where the last ``pop`` ended, which nobody can see."""
        if what != ('builtins.set', 'pop') or not self._before.had(getattr(function, '__self__', None)):
            return False
        self._doubts.add(frame, 'takes an element out of a set by pop(), which goes on where the last one ended')
        return True

    def _called_by_library(self, frame: FrameType, function: Any) -> None:
        if function is os.urandom:
            self._libraries.draws_entropy(frame)
        elif id(function) in COUNTS_ANYWHERE:  # it warns
            self._holders.depends_on(settings.WARNINGS)

    def _timed(self, frame: FrameType, function: Any) -> bool:
        """Note where the user's code reads a clock. False if a library's code does, or if it is no clock."""
        known = self._code.codes.get(id(frame.f_code))
        if known is None or known[1] or not any(function is clock for clock in CLOCKS):
            return False
        line = self._doubts.line(frame)
        text = f'the function reads time.{function.__name__}(){line}: each launch would repeat the first time'
        self._code_watch.clock.setdefault(Site(frame.f_code, frame.f_lasti), Reason(text, Why.CLOCK))
        return True


def _names_attributes(text: str) -> bool:
    """Whether a text may name attributes in its fields, as ``{0.rate}`` does, or in formats within fields."""
    parser: Any = string.Formatter()
    try:
        parts = [*parser.parse(text)]
    except ValueError:
        return True
    return any(field is not None and ('.' in field or _names_attributes(inner)) for _, field, inner, _ in parts)
