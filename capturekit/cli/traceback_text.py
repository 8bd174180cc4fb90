"""How an exception of the user's code is shown: with the user's frames, ours and the libraries' left out, or whole."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from types import TracebackType

import numpy

from capturekit.cli.terminal import paint
from capturekit.model.errors import CaptureError
from capturekit.model.source_line import is_foreign_frame

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NUMPY = os.path.dirname(os.path.abspath(numpy.__file__)) + os.sep
_RUNPY = ('<frozen runpy>', runpy.__file__)


def show(error: BaseException, whole: bool) -> None:
    """Print an exception on standard error: a refusal with its message below the user's lines that led to it, another
    as Python would but with the user's frames only; with ``whole`` all frames of both.
    """
    notes = getattr(error, '__notes__', ())
    if isinstance(error, CaptureError) and not whole:
        _show_refusal(error, notes)
        return
    if not whole:
        _trim(error, set())
    sys.excepthook(type(error), error, error.__traceback__)
    if sys.version_info < (3, 11):
        print(*notes, sep='\n', end='\n' if notes else '', file=sys.stderr)


def _show_refusal(error: CaptureError, notes: tuple[str, ...]) -> None:
    frames = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not is_foreign_frame(frame) and frame.f_code.co_filename not in _RUNPY:
            frames.append(traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name))
    if frames:
        print('Traceback (most recent call last):', file=sys.stderr)
        print(*traceback.format_list(frames), sep='', end='', file=sys.stderr)
    name = paint(type(error).__name__, 'error', sys.stderr)
    print(f'{name}: {error}', *notes, sep='\n', file=sys.stderr)


def _trim(error: BaseException | None, seen: set[int]) -> None:
    """Take the frames that are not the script's out of an exception, and of those that it came from."""
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _of_script(error.__traceback__)
        _trim(error.__cause__, seen)
        error = error.__context__


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of runpy and capturekit, and of NumPy where capturekit called it."""
    frames: list[TracebackType] = []
    below_us = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_OURS) or file in _RUNPY:
            below_us = True
        elif not (below_us and file.startswith(_NUMPY)):
            below_us = False
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for at in reversed(frames):
        kept = TracebackType(kept, at.tb_frame, at.tb_lasti, at.tb_lineno)
    return kept
