"""Host functions as a graph calls them, in a thread of CUDA's, which must not call CUDA.

CUDA answers such a call with ``cudaErrorNotPermitted``. Nobody waits for a host function, so an exception of it can
only be told to ``sys.unraisablehook``. CuPy can not do that in a thread that CUDA has made: it lets go of Python's lock
before it looks for the exception, and the exception ends with the thread's state. So it is told here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from capturekit.model import errors
from capturekit.model.causes import PROGRAM
from capturekit.model.counters import refused
from capturekit.model.source_line import Place, raised_at

_NOT_PERMITTED = 800
#: Python tells ``sys.unraisablehook`` an exception that leaves a callback of ctypes.
_Telling = ctypes.CFUNCTYPE(None, ctypes.py_object)


class HostFunction:
    """A host function, and the line that recorded it. A call of it raises nothing: exceptions go to the hook."""

    def __init__(self, fn: Callable[[Any], Any], at: Place | None, launch: str) -> None:
        self.fn = fn
        self.at = at
        self.launch = launch
        self.__name__ = str(getattr(fn, '__name__', fn))

    def __call__(self, arg: Any) -> None:
        _Telling(self._run)(arg)

    def _run(self, arg: Any) -> None:
        try:
            self.fn(arg)
        except Exception as error:
            if not _is_refusal(error):
                raise
            told = self._told(error)
            PROGRAM.remember(told)
            refused(told)
            raise told from error

    def _told(self, error: Exception) -> errors.UnsupportedCallError:
        where = '' if self.at is None else f' (recorded at {self.at})'
        return errors.UnsupportedCallError(
            f'A call of CuPy in the host function {self.__name__}(){where}',
            location=raised_at(error) or self.at,
            rule='A launch calls it in a thread of CUDA, where every call of CUDA is refused (cudaErrorNotPermitted).',
            remedy=f'Let it use memory of the host only. Call CuPy after `{self.launch}` and a wait for the stream.',
            cuda_error='cudaErrorNotPermitted',
        )

    def __repr__(self) -> str:
        return f'<host function {self.__name__}>'


def _is_refusal(error: BaseException | None) -> bool:
    """Whether CUDA, or its driver, has refused a call because of the thread that it came from."""
    while error is not None:
        if getattr(error, 'status', None) == _NOT_PERMITTED or 'NOT_PERMITTED' in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
