"""Captures begun by hand that are open though the function that began them has ended, as after an exception in it."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from capturekit.guard.open_capture import OpenCapture
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
    """Whether the function of this thread that has begun a capture by hand has ended."""
    if live.memory is not None or live.begun_in is None or live.begun_in[1].co_name == '__enter__':
        return False  # a block is open for longer than the call that opens it
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (id(frame), frame.f_code) == live.begun_in:
            return False
        frame = frame.f_back
    return True


def told_open(error: CaptureError, live: OpenCapture, verb: str) -> str:
    """The remedy of a refusal, with a sentence on a capture that may have been left open without being meant to.

    ``verb``: the verb that was refused.
    """
    if live.memory is not None:
        return error.remedy
    still_open = f'{error.remedy} The capture begun at {live.at} is still open'
    if verb.endswith('end_capture') and not isinstance(error, InvalidatedError):
        live.end_refused = here()
        if isinstance(error, EscapedWorkError):
            return f'{still_open}: another `end_capture()` ends it, without this work.'
        return f'{still_open}: after that, call `end_capture()` again.'
    if live.end_refused is not None:
        return (
            f'{still_open}, because its end was refused at {live.end_refused}: do what that refusal says, and call '
            '`end_capture()` again.'
        )
    if is_left_open(live) or verb.endswith('begin_capture'):
        return f'{still_open}: call `end_capture()` also where an exception leaves that function (`try`, `finally`).'
    return error.remedy


def unended(live: OpenCapture) -> str:
    """What is said of a capture that is open when its program ends."""
    said = f'the capture begun at {live.at} was never ended and made no graph'
    if live.end_refused is not None:
        return f'{said}: its end was refused at {live.end_refused}, and `end_capture()` was not called again'
    return f'{said}: call `end_capture()`'
