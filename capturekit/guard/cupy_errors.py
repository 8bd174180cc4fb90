"""What CuPy raises where capturekit refuses: code that knows only CuPy's exceptions catches the refusals, too.

CUDA answers a call that a capture forbids with a code, and CuPy raises a ``CUDARuntimeError`` whose ``status`` is that
code. A refusal of such a call is an error of both classes: ``except ck.SynchronizationError`` and ``except
cupy.cuda.runtime.CUDARuntimeError`` both catch it. The code is the one of the table of rules, which the refusal names.
For some calls CuPy raises no such error; :data:`HANDED_BACK` and :data:`REFUSED_BY_CUPY` name them.
"""

from __future__ import annotations

import sys
from typing import Any

from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import Code

#: Verbs of calls after which CuPy raises nothing: it returns the code as a number (``stream.done`` is then False), or
#: CUDA only tells at the end of the capture.
HANDED_BACK = frozenset(
    {'stream_done', 'event_done', 'runtime_stream_query', 'runtime_event_query', 'runtime_stream_destroy'}
)
#: Verbs of calls that CuPy refuses by itself before CUDA is asked, if the stream is being captured: it raises a plain
#: RuntimeError. Its words "is capturing" are what code of today looks for.
REFUSED_BY_CUPY = frozenset({'array_get', 'array_set', 'array_from', 'arrays_joined', 'pointer_copy', 'pointer_sync'})
#: Verbs of calls that CuPy's libraries refuse by themselves with a NotImplementedError.
REFUSED_BY_LIBRARIES = frozenset({'seam'})
#: What stands for the verb if a method of capturekit refuses: CuPy has no answer to that.
OWN = 'a method of capturekit'
_SAID = 'CuPy would have said that the current stream is capturing.'
_RUNTIME = 'cupy_backends.cuda.api.runtime'


def answers_with_code(verb: str, stream: int | None, captured: bool) -> bool:
    """Whether CuPy raises CUDA's code for a call on a stream; ``captured``: the current stream is in a capture."""
    if verb in HANDED_BACK or verb in REFUSED_BY_LIBRARIES or verb == OWN:
        return False
    if verb == 'stream_begin_capture' and stream in LEGACY_HANDLES:
        return False  # CuPy has a RuntimeError of its own for it
    return verb not in REFUSED_BY_CUPY or (verb == 'pointer_sync' and not captured)


def say_as_cupy(error: CaptureError, verb: str, captured: bool) -> None:
    """Add CuPy's own words to the rule of a refusal, where CuPy would have raised a RuntimeError with them."""
    if verb in REFUSED_BY_CUPY and captured and error.cuda_error and _SAID not in error.rule:
        error.rule = f'{error.rule} {_SAID}'


def make_catchable(error: CaptureError, cupy_error: type[Exception]) -> None:
    """Make a refusal an error of CuPy's class as well, with the code in ``status``. It stays the same object."""
    if error.cuda_error and not isinstance(error, cupy_error):
        error.__class__ = _both(type(error), cupy_error)
        error.__dict__['status'] = int(Code[error.cuda_error])


def _both(kind: type[CaptureError], cupy_error: type[Exception]) -> type[CaptureError]:
    """The class that is a refusal and CuPy's error. It has the refusal's name, and CuPy's class keeps it."""
    for known in cupy_error.__subclasses__():
        if known.__bases__ == (kind, cupy_error):
            return known  # type: ignore[return-value]
    members: dict[str, Any] = {
        '__module__': kind.__module__,
        '__qualname__': kind.__qualname__,
        '__doc__': kind.__doc__,
        '__reduce__': lambda error: (_again, (kind, dict(error.__dict__))),
    }
    return type(kind.__name__, (kind, cupy_error), members)


def _again(kind: type[CaptureError], state: dict[str, Any]) -> CaptureError:
    """Make a pickled refusal again; it is of CuPy's class as well, where CuPy has been imported."""
    error = kind.__new__(kind, state.get('operation', ''))
    error.__dict__.update(state)
    runtime = sys.modules.get(_RUNTIME)
    if runtime is not None:
        make_catchable(error, runtime.CUDARuntimeError)
    return error
