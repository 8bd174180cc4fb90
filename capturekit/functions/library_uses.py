"""What code of Python's own modules reads besides its arguments, when the user's code calls it."""

from __future__ import annotations

import copyreg
import enum
import inspect
import logging
import os
import sys
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import numpy as np

from capturekit.functions import compiling
from capturekit.functions.attributes import Attributes
from capturekit.functions.code_watch import CodeWatch
from capturekit.functions.doubts import Doubts
from capturekit.functions.functions_found import FunctionsFound
from capturekit.functions.hidden_state import DRAWING, is_logger
from capturekit.functions.holders import Holders
from capturekit.functions.ownership import (
    LibraryState,
    Ownership,
    asked_by_user,
    asks_for_backends,
    called_by,
    is_followed,
    is_library_frame,
    python_module,
)
from capturekit.functions.readable_state import is_cupys
from capturekit.functions.settings import HANDLED, REGISTERED, SPECIALS, SYNCHRONIZING, WARNINGS
from capturekit.functions.understood import (
    MAKING_TEXTS,
    OF_CALLERS,
    OF_FILES,
    OF_LOGGERS,
    OF_LOGGING,
    OF_PRINTING,
    OF_SCIPYS_FILES,
    OF_SIGNATURES,
    OF_TEXTS,
    OUTSIDE,
    WHOLE,
)
from capturekit.functions.watched_values import WatchedValues
from capturekit.model.class_layout import MISSING, bases_of, dictionary_of_class
from capturekit.model.plain_values import a
from capturekit.model.source_line import is_ours

_SUSPENDS = 0x2A0  # the code of generators and coroutines
#: Why launches repeat no changes of Python state where code of threads ran.
_NO_CHANGES = 'it uses locks or queues, or writes to a log, and launches repeat no changes of Python state beside that'
#: The modules that define locks, or classes that use them.
_OF_THREADS = frozenset({'threading', 'queue', 'concurrent', 'multiprocessing', 'asyncio'})
_SETTINGS_IN = {'warnings': WARNINGS, '_py_warnings': WARNINGS, 'traceback': HANDLED}
#: Methods of enumerations that find members.
_BY_VALUE_OR_NAME = frozenset({'__call__', '__getitem__', '__contains__'})


class LibraryUses:
    """The uses of modules of Python that a run makes, and of CuPy's compiler."""

    def __init__(
        self,
        values: WatchedValues,
        holders: Holders,
        attributes: Attributes,
        library: LibraryState,
        functions: FunctionsFound,
        code_watch: CodeWatch,
        ownership: Ownership,
        doubts: Doubts,
    ) -> None:
        self._values, self._holders, self._attributes, self._library = values, holders, attributes, library
        self._functions, self._code_watch, self._ownership, self._doubts = functions, code_watch, ownership, doubts
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
        self.waits = ''
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
        elif event == 'call' and not is_library_frame(frame, self._ownership.skip):
            self.compiling = None
            return False
        return True

    def entered(self, frame: FrameType) -> None:
        """Note that code of a library is entered, which may read more than can be seen."""
        code = frame.f_code
        if code is DRAWING:
            self.draws_entropy(frame)
            return
        module = python_module(code.co_filename)
        name = code.co_name
        if not module:
            self._of_package(frame, code)
            return
        top = module.partition('.')[0]
        if top in _SETTINGS_IN:
            self._values.depends_on(_SETTINGS_IN[top])
            self._holders.settle()
        if top in _OF_THREADS and name != 'RLock':  # which makes a lock, and waits for none
            self.waits = _NO_CHANGES
        if name == '_showwarnmsg' and top in ('warnings', '_py_warnings'):
            line = self._doubts.line(frame)
            self._doubts.unwatchable.append(f'the function warns{line}, which a launch would not do')
        if (module, name) in self.calls and name != 'seed':
            return
        if top in WHOLE:
            if module == 'enum':
                self._enumeration(frame)
            if top == 'logging':
                self._logs(frame)
            if name in ASKED_OF_WHOLE.get(top, ()) and asked_by_user(frame.f_back, self._ownership.skip):
                self._asked_of_whole(frame, module, name)
            return
        if not asked_by_user(frame.f_back, self._ownership.skip):
            return
        if module == 'inspect' and called_by(frame, 'signature'):
            return
        self.calls.add((module, name))
        if not is_followed(code.co_filename, name):
            self._doubts.add(frame, f'calls {module}.{name}')
        else:
            self._followed(frame, module, name)

    def _of_package(self, frame: FrameType, code: CodeType) -> None:
        """Note what code of a package reads, and whether another call of it could tell anything new."""
        top = str(frame.f_globals.get('__name__', '')).partition('.')[0]
        top = 'cupy' if is_cupys(top) else top
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
            self._doubts.unwatchable.append(text)

    def _followed(self, frame: FrameType, module: str, name: str) -> None:
        """Note what a function reads whose own code is followed."""
        if module == 'random' and name == 'seed' and frame.f_locals.get('a', 0) is None:
            self._doubts.add(frame, 'makes a generator of random numbers without a seed')
        elif module == 'random' and name in _SETTING_STATES:
            self._holders.name(('setstate',), (), False)
        elif (module, name) == ('functools', 'wrapper'):
            self._doubts.add(frame, 'calls a function made by functools.singledispatch')
        elif module == 'os':
            self._code_watch.watch_global(frame.f_globals, 'environ', os.environ, 'os')
            self._holders.settle()
        elif (module, name) == ('encodings', 'search_function'):
            self._doubts.add(frame, 'looks for an encoding that was not used before')
        elif (module, name) == ('typing', 'get_type_hints'):
            self._holders.name(('__annotations__',), ('__annotations__',), False)
            self._holders.settle()
        elif (module, name) == ('inspect', 'signature'):
            self.calls.discard((module, name))  # the next call may be given another function
            self._signature(frame)
        elif module in ('copy', 'dataclasses', 'copyreg'):
            self._code_watch.watch_global(vars(copyreg), 'dispatch_table', copyreg.dispatch_table, 'copyreg')
            for table in ('_copy_dispatch', '_deepcopy_dispatch') if module == 'copy' else ():
                self._code_watch.watch_global(frame.f_globals, table, frame.f_globals[table], 'copy')
            self._holders.name((), (), True)
            self._holders.settle()

    def _signature(self, frame: FrameType) -> None:
        """Watch all that ``inspect.signature`` reads of a function of Python, and of those that it wraps."""
        given = frame.f_locals
        function = given.get('obj')
        self._values.meet(function)
        self._holders.name(OF_SIGNATURES, OF_SIGNATURES, False)
        self._holders.settle()
        if given.get('eval_str') or not has_plain_signature(function):
            self._doubts.add(frame, f'calls inspect.signature of {a(type(function))}')

    def _enumeration(self, frame: FrameType) -> None:
        """Watch which members an enumeration has under which values and names, where code of it finds them."""
        code = frame.f_code
        cls: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_name in _BY_VALUE_OR_NAME else None
        if issubclass(type(cls), enum.EnumMeta):
            for name in ('_value2member_map_', '_member_map_', '_missing_'):
                self._attributes.search_class(cls, name)
            self._holders.settle()

    def _package(self, frame: FrameType, top: str, name: str) -> bool:
        """Note what a function of a package that is understood as a whole reads besides its arguments.

        Returns whether the next call of it has to be looked at, too.
        """
        inside = str(frame.f_globals.get('__name__'))
        if asks_for_backends(inside, name):
            self._doubts.add(frame, 'calls a function of SciPy that asks for a backend')
            return True
        if top == 'scipy':
            self._values.depends_on(SPECIALS)
        elif name == '_declare_synchronize':
            self._values.depends_on(SYNCHRONIZING)
        of_files = inside in OF_FILES or inside.startswith(OF_SCIPYS_FILES)
        if inside in OF_PRINTING and name not in OUTSIDE.get(top, ()):
            # CuPy's arrays are printed so, too
            self._values.watch_state("NumPy's options for printing", np.get_printoptions)
        elif inside in OF_TEXTS and name in MAKING_TEXTS:
            self._values.watch_state("NumPy's options for polynomials and masked arrays", _options_of_texts)
        elif top == 'cupy' and name in _OF_ERRORS:
            self._values.watch_state("CuPy's handling of errors", sys.modules['cupyx'].geterr)
        if name not in OUTSIDE.get(top, ()) and not of_files:
            return False
        if asked_by_user(frame.f_back, self._ownership.skip):
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
        if name in OF_LOGGERS:
            here = frame.f_locals
            self._values.meet(here['self'] if 'self' in here else logging.getLogger(here.get('name')))
            self._holders.settle()
        elif module == 'linecache' or name in OF_CALLERS or name in OF_LOGGING:
            self._doubts.add(frame, f'calls {module}.{name}')
        else:
            self._values.depends_on(REGISTERED)
            self.calls.add((module, name))


def _options_of_texts() -> list[Any]:
    """NumPy's options for printing that ``np.get_printoptions`` does not tell."""
    polynomials: Any = sys.modules.get('numpy.polynomial._polybase')
    masked: Any = sys.modules.get('numpy.ma.core')
    return [
        None if polynomials is None else polynomials.ABCPolyBase._use_unicode,
        None if masked is None else dict(vars(masked.masked_print_option)),
    ]


#: Functions of ``random`` that give a generator another state; ``__init__`` may be called again.
_SETTING_STATES = frozenset({'__init__', 'seed', 'setstate'})
#: Functions of ``cupyx`` that tell how errors are treated.
_OF_ERRORS = frozenset({'geterr', 'seterr'})
_ABSTRACT = frozenset({'__instancecheck__', '__subclasscheck__'})
#: What code may ask modules for that are otherwise skipped as a whole.
ASKED_OF_WHOLE = {
    **dict.fromkeys(('abc', '_abc', '_py_abc', 'enum', '_weakrefset'), _ABSTRACT),
    'linecache': frozenset({'getline', 'getlines', 'checkcache', 'updatecache', 'lazycache'}),
    'traceback': OF_CALLERS,
    'logging': OF_LOGGERS | OF_LOGGING,
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
