"""Captures begun by hand that are open though the function that began them has ended, as after an exception in it."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from capturekit.guard.open_capture import OpenCapture
from capturekit.model.source_line import is_foreign_frame

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


def told_open(remedy: str, live: OpenCapture, begins: bool) -> str:
    """A remedy, with a sentence on a capture that may have been left open without being meant to.

    ``begins``: whether another capture was to begin.
    """
    if not is_left_open(live) and not (begins and live.memory is None):
        return remedy
    return (
        f'{remedy} The capture begun at {live.at} is still open: call `end_capture()` also where an exception leaves '
        'that function (`try`, `finally`).'
    )
