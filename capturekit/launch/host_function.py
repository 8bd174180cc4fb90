"""Host functions as a graph calls them, in a thread of CUDA's, which must not call CUDA.

CUDA answers such a call with ``cudaErrorNotPermitted``. CuPy's message names neither the function nor the reason, and
Python prints it only, since nobody waits for a host function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.model import errors
from capturekit.model.causes import PROGRAM
from capturekit.model.counters import refused
from capturekit.model.source_line import Place, raised_at

_NOT_PERMITTED = 800


class HostFunction:
    """A host function, and the line that recorded it. Calling it calls the function."""

    def __init__(self, fn: Callable[[Any], Any], at: Place | None, launch: str) -> None:
        self.fn = fn
        self.at = at
        self.launch = launch
        self.__name__ = str(getattr(fn, '__name__', fn))

    def __call__(self, arg: Any) -> None:
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
