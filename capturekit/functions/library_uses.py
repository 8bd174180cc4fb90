"""What code of Python's own modules reads besides its arguments, when the user's code calls it."""

from __future__ import annotations

import copyreg
import enum
import os
from types import FrameType
from typing import Any

from capturekit.functions import compiling
from capturekit.functions.code_watch import CodeWatch
from capturekit.functions.libraries import is_library_frame

#: Methods of enumerations that find members.
_BY_VALUE_OR_NAME = frozenset({'__call__', '__getitem__', '__contains__'})


class LibraryUses(CodeWatch):
    """The uses of modules of Python that a run makes, and of CuPy's compiler."""

    def _compiles(self, frame: FrameType) -> bool:
        """Whether CuPy makes a kernel from here on, until the frame returns: it reads nothing for later runs."""
        if not compiling.asked_by_kernel(frame) or not self._skip(frame.f_code.co_filename):
            return False
        if not self._compiled:
            self._watch_state(compiling.FORGOTTEN, compiling.remembers())
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

    def _doubt(self, frame: FrameType | None, action: str) -> None:
        """Note that something is not understood: what it is, and the user's line."""
        self._unwatchable.append(self._sentence(frame, action))

    def _sentence(self, frame: FrameType | None, action: str) -> str:
        return f'the function {action}{self._line(frame)}: what that reads is not known'

    def _line(self, frame: FrameType | None) -> str:
        """The user's line at which a frame was entered."""
        while frame is not None and is_library_frame(frame, self._skip):
            frame = frame.f_back
        return '' if frame is None else f' at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}'

    def _followed(self, frame: FrameType, module: str, name: str) -> None:
        """Note what a function reads whose own code is followed."""
        if module == 'random' and name == 'seed' and frame.f_locals.get('a', 0) is None:
            self._doubt(frame, 'makes a generator of random numbers without a seed')
        elif module == 'os':
            self._global(frame.f_globals, 'environ', os.environ, 'os')
            self._settle()
        elif (module, name) == ('encodings', 'search_function'):
            self._doubt(frame, 'looks for an encoding that was not used before')
        elif (module, name) == ('typing', 'get_type_hints'):
            self._name(('__annotations__',), ('__annotations__',), False)
            self._settle()
        elif module in ('copy', 'dataclasses', 'copyreg'):
            self._global(vars(copyreg), 'dispatch_table', copyreg.dispatch_table, 'copyreg')
            self._name((), (), True)
            self._settle()

    def _enumeration(self, frame: FrameType) -> None:
        """Watch which members an enumeration has under which values and names, where code of it finds them."""
        code = frame.f_code
        cls: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_name in _BY_VALUE_OR_NAME else None
        if issubclass(type(cls), enum.EnumMeta):
            for name in ('_value2member_map_', '_member_map_', '_missing_'):
                self._search_class(cls, name)
            self._settle()
