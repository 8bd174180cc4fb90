"""What becomes of a refusal: CuPy's class for ``except`` clauses, a word on a capture left open, one that is swallowed.

CUDA answers a call that a capture forbids with a code, and CuPy raises a ``CUDARuntimeError`` whose ``status`` is that
code. A refusal of such a call is an error of both classes: ``except ck.SynchronizationError`` and ``except
cupy.cuda.runtime.CUDARuntimeError`` both catch it. The code is the one of the table of rules, which the refusal names.
For some calls CuPy raises no such error; :data:`HANDED_BACK` and :data:`REFUSED_BY_CUPY` name them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from inspect import CO_COROUTINE, CO_GENERATOR
from types import CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model.causes import shown_with
from capturekit.model.errors import CaptureError, EscapedWorkError, InvalidatedError
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import Code
from capturekit.model.source_line import here, is_foreign_frame

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


#: A frame by its identity and its code: a frame that is held would keep what is in it.
Begun = tuple[int, CodeType]


def begun_in() -> Begun | None:
    """The frame of the user's function that begins a capture at present."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_foreign_frame(frame):
        frame = frame.f_back
    return None if frame is None else (id(frame), frame.f_code)


def is_left_open(live: OpenCapture) -> bool:
    """Whether the function that has begun a capture by hand, and was to end it, has ended itself."""
    if live.memory is not None or live.begun_in is None or not any(map(_ends, live.begun_in[1].co_names)):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (id(frame), frame.f_code) == live.begun_in:
            return False
        frame = frame.f_back
    return not _is_suspended(live.begun_in)


def _ends(name: str) -> bool:
    return name.lower().endswith(('end_capture', 'endcapture'))


def _is_suspended(begun: Begun) -> bool:
    """Whether a frame is that of a generator or coroutine which will go on, as in a context manager of contextlib."""
    if not begun[1].co_flags & (CO_GENERATOR | CO_COROUTINE):
        return False
    alive = [one for one in gc.get_objects() if type(one) in (GeneratorType, CoroutineType)]
    frames = (getattr(one, 'gi_frame', None) or getattr(one, 'cr_frame', None) for one in alive)
    return any(frame is not None and (id(frame), frame.f_code) == begun for frame in frames)


def note_open(error: CaptureError, live: OpenCapture, verb: str) -> None:
    """Add to a refusal a sentence on a capture that may have been left open without being meant to.

    ``verb``: the verb that was refused.
    """
    if live.memory is not None:
        return
    ending = verb.endswith('end_capture') and not isinstance(error, InvalidatedError)
    caught = next((cause for cause in live.causes.before(*shown_with(error)) if cause.refused), None)
    if ending and isinstance(error, EscapedWorkError):
        then = ': another `end_capture()` ends it, without this work.'
    elif ending:
        then = ': after that, call `end_capture()` again.'
    elif live.end_refused is not None:
        then = (
            f', because its end was refused at {live.end_refused}: do what that refusal says, and call '
            '`end_capture()` again.'
        )
    elif is_left_open(live) or verb.endswith('begin_capture'):
        then = ': call `end_capture()` also where an exception leaves that function (`try`, `finally`).'
    elif caught is not None:
        begun = live.at or caught.at
        mine = [at for at in caught.frames if begun and (at.file, at.function) == (begun.file, begun.function)]
        at = mine[-1] if mine else caught.at
        then = f': {caught.name} was raised before, at {at}, and caught. Call `end_capture()` where it is caught.'
    else:
        return
    if ending:
        live.end_refused = here()
    error.still_open = f'The capture begun at {live.at} is still open{then}'


def unended(live: OpenCapture) -> str:
    """What is said of a capture that is open when its program ends."""
    said = f'the capture begun at {live.at} was never ended and made no graph'
    if live.end_refused is not None:
        return f'{said}: its end was refused at {live.end_refused}, and `end_capture()` was not called again'
    if live.memory is not None:
        return f'{said}: leave its block, `with ck.capture() as cap:`'
    return f'{said}: call `end_capture()`'


SWALLOWED = 'capturekit: a handler of `logging` has printed this exception and gone on, so it comes again here.'


class SwallowedRefusals:
    """Keeps the first refusal that a handler of :mod:`logging` swallows in a capture, for the capture's end."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: Functions that are called with such a refusal in a thread without a capture.
        self.elsewhere: list[Callable[[CaptureError], None]] = []

    def handler_failed(self, original: Callable[..., Any], handler: Any, record: Any) -> Any:
        error = sys.exception()
        try:
            return original(handler, record)
        finally:
            live = self.state.mine()
            found = next((one for one in shown_with(error) if isinstance(one, CaptureError)), None)
            if live is None and found is not None:
                for tell in self.elsewhere:
                    tell(found)
            elif live is not None and found is not None and live.swallowed is None:
                found.add_note(SWALLOWED)
                live.swallowed = found.with_traceback(None)  # which would hold the frames of the block
            del error, found
