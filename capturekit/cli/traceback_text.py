"""How an exception of the user's code is shown: with the user's frames, ours and the libraries' left out, or whole.

What came first is shown first: refusals that the code has caught, then what the exception came from, as Python does it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from types import TracebackType

import numpy

from capturekit.cli.terminal import paint
from capturekit.model.causes import PROGRAM, Cause, full, notes, shown_with, way_of
from capturekit.model.errors import CaptureError
from capturekit.model.source_line import Place

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NUMPY = os.path.dirname(os.path.abspath(numpy.__file__)) + os.sep
#: What capturekit calls that calls it back, or raises.
_CALLED = (_NUMPY, contextlib.__file__)
_RUNPY = ('<frozen runpy>', runpy.__file__)
_WENT_ON = 'The code went on after the exception above, and came to the one below:'
_LEFT = 'The code went on after the exception above, and ended the program.'
_NO_END = 'The code went on after the exception above, and did not end the capture.'
_FROM = 'The above exception was the direct cause of the following exception:'
_DURING = 'During handling of the above exception, another exception occurred:'


def show(error: BaseException, whole: bool) -> None:
    """Print an exception on standard error, and before it what came first.

    A refusal is shown by its message below the user's lines that led to it, another exception as Python would but with
    the user's frames only; with ``whole`` all frames of both.
    """
    shown = list(shown_with(error))
    earlier = PROGRAM.before(*shown)
    for one in shown:
        _without_earlier(one, notes(earlier))
    show_causes(earlier, _WENT_ON)
    if whole:
        _as_python(error)
    elif any(isinstance(one, CaptureError) for one in shown):
        show_chain(error, set())
    else:
        _trim(error, set())
        _as_python(error)


def show_causes(causes: list[Cause], after: str = '') -> None:
    """Print refusals that the code has caught, and a sentence after each that says what the code did then."""
    first, others = full(causes)
    for cause in first:
        _print_frames([place for place in cause.frames if place.file not in _RUNPY])
        print(f'{paint(cause.name, "error", sys.stderr)}: {cause.text}', file=sys.stderr)
        print(f'\n{after if cause is first[-1] and not others else _WENT_ON}\n', file=sys.stderr)
    for cause in others:
        print(f'{paint(cause.name, "error", sys.stderr)} at {cause.at}', file=sys.stderr)
    if others:
        print(f'\n{after}\n', file=sys.stderr)


def show_left(causes: list[Cause]) -> None:
    """Print refusals that the code has caught before it ended the program by ``sys.exit``."""
    show_causes(causes, _LEFT)


def show_unended(causes: list[Cause]) -> None:
    """Print refusals that the code has caught before it left a capture open."""
    show_causes(causes, _NO_END)


def show_chain(error: BaseException, seen: set[int]) -> None:
    """Print an exception and, before it, what it came from; without frames that are not the user's."""
    seen.add(id(error))
    before, words = _came_from(error)
    while before is not None and id(before) not in seen and not _way(before):
        seen.add(id(before))  # raised and caught below the user's lines
        before, words = _came_from(before)
    if before is not None and id(before) not in seen:
        show_chain(before, seen)
        print(f'\n{words}\n', file=sys.stderr)
    if isinstance(error, CaptureError):
        _show_refusal(error)
        return
    error.__cause__ = error.__context__ = None
    _trim(error, set())
    _as_python(error)


def _came_from(error: BaseException) -> tuple[BaseException | None, str]:
    """Return what Python shows before an exception, and its words between the two."""
    if error.__cause__ is not None:
        return error.__cause__, _FROM
    return (None if error.__suppress_context__ else error.__context__), _DURING


def _way(error: BaseException) -> list[Place]:
    """Return the user's lines that an exception has come through."""
    return [place for place in way_of(error) if place.file not in _RUNPY]


def _as_python(error: BaseException) -> None:
    sys.excepthook(type(error), error, error.__traceback__)


def _without_earlier(error: BaseException, known: list[str]) -> None:
    """Take off an exception what is shown before it."""
    if isinstance(error, CaptureError):
        error.earlier = ()
    if hasattr(error, '__notes__'):
        error.__notes__ = [note for note in error.__notes__ if note not in known]


def _show_refusal(error: CaptureError) -> None:
    _print_frames(_way(error))
    name = paint(type(error).__name__, 'error', sys.stderr)
    print(f'{name}: {error.own_text()}', *getattr(error, '__notes__', ()), sep='\n', file=sys.stderr)


def _print_frames(frames: list[Place]) -> None:
    if frames:
        print('Traceback (most recent call last):', file=sys.stderr)
        lines = [traceback.FrameSummary(place.file, place.line, place.function) for place in frames]
        print(*traceback.format_list(lines), sep='', end='', file=sys.stderr)


def _trim(error: BaseException | None, seen: set[int]) -> None:
    """Take the frames that are not the script's out of an exception, and of those that it came from."""
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _of_script(error.__traceback__)
        _trim(error.__cause__, seen)
        error = error.__context__


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of runpy and capturekit, and of what capturekit called."""
    frames: list[TracebackType] = []
    below_us = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_OURS) or file in _RUNPY:
            below_us = True
        elif not (below_us and file.startswith(_CALLED)):
            below_us = False
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for at in reversed(frames):
        kept = TracebackType(kept, at.tb_frame, at.tb_lasti, at.tb_lineno)
    return kept
