"""Captures begun by hand that are open though the function that began them has ended, as after an exception in it."""

from __future__ import annotations

import gc
import sys
from inspect import CO_COROUTINE, CO_GENERATOR
from types import CodeType, CoroutineType, FrameType, GeneratorType

from capturekit.guard.open_capture import OpenCapture
from capturekit.model.causes import shown_with
from capturekit.model.errors import CaptureError, EscapedWorkError, InvalidatedError
from capturekit.model.source_line import here, is_foreign_frame

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
