"""What code of Python's own modules reads besides its arguments, when the user's code calls it."""

from __future__ import annotations

import copyreg
import enum
import functools
import logging
import os
import sys
from types import FrameType
from typing import Any

import numpy as np

from capturekit.functions import compiling
from capturekit.functions.backends import backend_of_a_user, uses_backends
from capturekit.functions.entropy import DRAWING, fills_a_copy
from capturekit.functions.libraries import asked_by_user, is_library_frame
from capturekit.functions.logger_state import is_logger
from capturekit.functions.names_asked import NamesAsked
from capturekit.functions.seen_signatures import has_plain_signature
from capturekit.functions.settings import BACKENDS, REGISTERED, SPECIALS, SYNCHRONIZING
from capturekit.functions.understood import (
    OF_CALLERS,
    OF_FILES,
    OF_LOGGERS,
    OF_LOGGING,
    OF_PRINTING,
    OF_SCIPYS_FILES,
    OF_SIGNATURES,
    OUTSIDE,
)
from capturekit.functions.watched_value import read_cell
from capturekit.model.class_layout import bases_of, dictionary_of_class
from capturekit.model.plain_values import a
from capturekit.model.source_line import is_ours

#: Methods of enumerations that find members.
_BY_VALUE_OR_NAME = frozenset({'__call__', '__getitem__', '__contains__'})


class LibraryUses(NamesAsked):
    """The uses of modules of Python that a run makes, and of CuPy's compiler."""

    #: The functions of libraries that were looked up, by module and name.
    _calls: set[Any]
    #: Code of ``logging`` that ran, by id, with the class of what it was called of.
    _logged: set[tuple[int, type]]

    def _compiles(self, frame: FrameType) -> bool:
        """Whether CuPy makes a kernel from here on, until the frame returns: it reads nothing for later runs."""
        if not compiling.asked_by_kernel(frame) or not self._skip(frame.f_code.co_filename):
            return False
        if not self._compiled:
            self._values.watch_state(compiling.FORGOTTEN, compiling.remembers())
        self._compiled.add(compiling.source_of(frame))
        self._compiling = frame
        return True

    def _while_compiling(self, frame: FrameType, event: str) -> bool:
        """Whether to skip what happens: not where somebody's code runs in the place of CuPy's."""
        if event == 'return' and frame is self._compiling:
            self._compiling = None
        elif event == 'call' and not is_library_frame(frame, self._skip):
            self._compiling = None
            return False
        return True

    def _draws_entropy(self, frame: FrameType) -> None:
        """Note that entropy is drawn, but for what a generator with a seed draws and overwrites."""
        caller = frame.f_back if frame.f_code is DRAWING else frame
        if caller is None or is_ours(caller.f_code.co_filename):
            return
        if self._seeding != (id(caller.f_code), caller.f_lasti) and not fills_a_copy(caller):
            text = f'the function draws entropy from the system{self._doubts.line(frame)}, which differs at each call'
            self._doubts.unwatchable.append(text)

    def _followed(self, frame: FrameType, module: str, name: str) -> None:
        """Note what a function reads whose own code is followed."""
        if module == 'random' and name == 'seed' and frame.f_locals.get('a', 0) is None:
            self._doubts.add(frame, 'makes a generator of random numbers without a seed')
        elif module == 'os':
            self._global(frame.f_globals, 'environ', os.environ, 'os')
            self._settle()
        elif (module, name) == ('encodings', 'search_function'):
            self._doubts.add(frame, 'looks for an encoding that was not used before')
        elif (module, name) == ('typing', 'get_type_hints'):
            self._name(('__annotations__',), ('__annotations__',), False)
            self._settle()
        elif (module, name) == ('inspect', 'signature'):
            self._calls.discard((module, name))  # the next call may be given another function
            self._signature(frame)
        elif module in ('copy', 'dataclasses', 'copyreg'):
            self._global(vars(copyreg), 'dispatch_table', copyreg.dispatch_table, 'copyreg')
            for table in ('_copy_dispatch', '_deepcopy_dispatch') if module == 'copy' else ():
                self._global(frame.f_globals, table, frame.f_globals[table], 'copy')
            self._name((), (), True)
            self._settle()

    def _signature(self, frame: FrameType) -> None:
        """Watch all that ``inspect.signature`` reads of a function of Python, and of those that it wraps."""
        given = frame.f_locals
        function = given.get('obj')
        self._values.meet(function)
        self._name(OF_SIGNATURES, OF_SIGNATURES, False)
        self._settle()
        if given.get('eval_str') or not has_plain_signature(function):
            self._doubts.add(frame, f'calls inspect.signature of {a(type(function))}')

    def _enumeration(self, frame: FrameType) -> None:
        """Watch which members an enumeration has under which values and names, where code of it finds them."""
        code = frame.f_code
        cls: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_name in _BY_VALUE_OR_NAME else None
        if issubclass(type(cls), enum.EnumMeta):
            for name in ('_value2member_map_', '_member_map_', '_missing_'):
                self._search_class(cls, name)
            self._settle()

    def _package(self, frame: FrameType, top: str, name: str) -> bool:
        """Note what a function of a package that is understood as a whole reads besides its arguments.

        Returns whether the next call of it has to be looked at, too.
        """
        inside = str(frame.f_globals.get('__name__'))
        if uses_backends(inside, name):
            self._values.depends_on(BACKENDS)
            self._settle()
            if backend_of_a_user(frame):
                self._doubts.add(frame, "calls a function of SciPy by a backend of the user's")
            return True
        if top == 'scipy':
            self._values.depends_on(SPECIALS)
        elif name == '_declare_synchronize':
            self._values.depends_on(SYNCHRONIZING)
        of_files = inside in OF_FILES or inside.startswith(OF_SCIPYS_FILES)
        if inside in OF_PRINTING and name not in OUTSIDE.get(top, ()):
            # CuPy's arrays are printed so, too
            self._values.watch_state("NumPy's options for printing", np.get_printoptions)
        elif top == 'cupy' and name in _OF_ERRORS:
            self._values.watch_state("CuPy's handling of errors", sys.modules['cupyx'].geterr)
        if name not in OUTSIDE.get(top, ()) and not of_files:
            return False
        if asked_by_user(frame.f_back, self._skip):
            self._doubts.add(frame, f'calls {top}.{name}')
        return True

    def _logs(self, frame: FrameType) -> None:
        """Keep whose methods run where code of ``logging`` passes a message on, and what it names in its module."""
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if code.co_name == 'isEnabledFor' and is_logger(type(first)):  # also of the root, which code of logging asks
            self._values.meet(first)
            self._settle()
        if (id(code), type(first)) in self._logged:
            return
        self._logged.add((id(code), type(first)))
        self._inside_library(frame)
        for base in bases_of(type(first)):
            if self._ownership.is_foreign_class(base):
                self._library.inside_of(base, {code.co_name, *code.co_names} & (dictionary_of_class(base).keys()))

    def _asked_of_whole(self, frame: FrameType, module: str, name: str) -> None:
        """Note what the user's code asks a module for that is otherwise skipped as a whole."""
        if name in OF_LOGGERS:
            here = frame.f_locals
            self._values.meet(here['self'] if 'self' in here else logging.getLogger(here.get('name')))
            self._settle()
        elif module == 'linecache' or name in OF_CALLERS or name in OF_LOGGING:
            self._doubts.add(frame, f'calls {module}.{name}')
        else:
            self._values.depends_on(REGISTERED)
            self._calls.add((module, name))

    def _dispatched(self, dispatch: Any) -> None:
        """Watch which functions are registered for which types (``functools.singledispatch``)."""
        for variable, cell in zip(dispatch.__code__.co_freevars, dispatch.__closure__):
            if variable == 'registry':
                where = ('the functions registered', f' for {dispatch.__qualname__.partition(".")[0]}')
                get = functools.partial(read_cell, cell)
                self._values.watch('variable', cell, '', get(), where, None, get)
        self._settle()


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
