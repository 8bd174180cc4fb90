"""How an exception of the user's code is shown: with the user's frames, ours and the libraries' left out, or whole.

What came first is shown first: refusals that the code has caught, then what the exception came from, as Python does it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy

from capturekit.cli.terminal import paint
from capturekit.guard import GUARD
from capturekit.model.causes import PROGRAM, Cause, full, notes, shown_with
from capturekit.model.errors import CaptureError
from capturekit.model.source_line import Place, way_of

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NUMPY = os.path.dirname(os.path.abspath(numpy.__file__)) + os.sep
#: What capturekit calls that calls it back, or raises.
_CALLED = (_NUMPY, contextlib.__file__)
_RUNPY = ('<frozen runpy>', runpy.__file__)
_WENT_ON = 'The code went on after the exception above, and came to the one below:'
LEFT = 'The code went on after the exception above, and ended the program.'
NO_END = 'The code went on after the exception above, and did not end the capture.'
_FROM = 'The above exception was the direct cause of the following exception:'
_DURING = 'During handling of the above exception, another exception occurred:'


def show(error: BaseException, whole: bool) -> None:
    """Print an exception on standard error, and before it what came first.

    A refusal is shown by its message below the user's lines that led to it, another exception as Python would but with
    the user's frames only; with ``whole`` all frames of both.
    """
    shown = list(shown_with(error))
    earlier = PROGRAM.before(*shown)
    for one in shown:  # what is shown before them is taken off them
        if isinstance(one, CaptureError):
            one.earlier = ()
        if hasattr(one, '__notes__'):
            one.__notes__ = [note for note in one.__notes__ if note not in notes(earlier)]
    show_causes(earlier, _WENT_ON)
    if whole:
        _as_python(error)
    elif any(isinstance(one, CaptureError) for one in shown):
        show_chain(error)
    else:
        _trim(error, set())
        _as_python(error)


def show_causes(causes: list[Cause], after: str) -> None:
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


def show_chain(error: BaseException, seen: set[int] | None = None) -> None:
    """Print an exception and, before it, what it came from; without frames that are not the user's."""
    seen = {id(error)} if seen is None else seen
    before, words = _came_from(error)
    while before is not None and id(before) not in seen and not _way(before):
        seen.add(id(before))  # raised and caught below the user's lines
        before, words = _came_from(before)
    if before is not None and id(before) not in seen:
        seen.add(id(before))
        show_chain(before, seen)
        print(f'\n{words}\n', file=sys.stderr)
    if isinstance(error, CaptureError):
        _print_frames(_way(error))
        name = paint(type(error).__name__, 'error', sys.stderr)
        print(f'{name}: {error.own_text()}', *getattr(error, '__notes__', ()), sep='\n', file=sys.stderr)
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


# ---------------------------------------------------------------------------------------------------------------------
# Refusals that no code has caught, though the program went on: those that end a thread, or that a destructor raises.
#
# Python prints an exception that ends a thread, and the program ends as if nothing had been. A worker of an executor
# stores its exception in a future, where it stays unseen if nobody asks the future; asyncio logs that of a task. A
# handler of :mod:`logging` prints what formatting a record has raised. In all these cases work is missing, and so
# ``run`` says it and does not end with 0. An ``except`` clause is another matter: there the code has decided.


class LostRefusals:
    """Hears of refusals that nobody catches while a program runs, and prints them. Safe in all threads."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._lost: list[tuple[Place | None, str]] = []
        #: By the identity of a future: the future, and the exception that it stores and nobody has asked for.
        self._stored: dict[int, tuple[Future[Any], BaseException]] = {}

    @contextmanager
    def heard(self) -> Iterator[None]:
        """In the block, hear of threads that end, of destructors, of futures, of tasks and of handlers of logging."""
        before = threading.excepthook, sys.unraisablehook
        threading.excepthook = lambda told: self._of_thread(before[0], told)
        sys.unraisablehook = lambda told: self._of_destructor(before[1], told)
        tasks = logging.getLogger('asyncio')
        tasks.addFilter(self._of_task)
        GUARD.swallowed.elsewhere.append(self._of_handler)
        of_futures = {name: getattr(Future, name) for name in ('set_exception', 'result', 'exception')}
        setattr(Future, 'set_exception', self._storing(Future.set_exception))  # noqa: B010
        for name in ('result', 'exception'):
            setattr(Future, name, self._asking(of_futures[name]))
        try:
            yield
        finally:
            for name, function in of_futures.items():
                setattr(Future, name, function)
            GUARD.swallowed.elsewhere.remove(self._of_handler)
            tasks.removeFilter(self._of_task)
            threading.excepthook, sys.unraisablehook = before

    def told(self) -> list[str]:
        """Print what futures still store, and return a sentence about each refusal that was lost."""
        for _future, error in self._stored.values():
            how = 'in a worker, and nobody has asked its future'
            self._show(error, 'Exception of a future that nobody has asked for its result:', how)
        self._stored.clear()
        return [f'the call at {at} was refused {how}' for at, how in self._lost]

    def of_callback(self, error: BaseException) -> None:
        """Print what a callback of atexit has raised, and note it if it is a refusal."""
        self._show(error, 'Exception ignored in a callback of atexit:', 'in a callback of atexit')

    def _show(self, error: BaseException, head: str, how: str) -> None:
        print(head, file=sys.stderr)
        self._note(error, how)
        show_chain(error)

    def _note(self, error: BaseException | None, how: str) -> bool:
        """Note an exception if it is a refusal, or came from one."""
        found = _refusal_in(error)
        if found is not None:
            self._lost.append((found.location, how))
        return found is not None

    def _of_thread(self, before: Callable[[Any], Any], told: Any) -> None:
        name = told.thread.name if told.thread is not None else threading.get_ident()
        if not self._note(told.exc_value, f'in thread {name}, which ended') or self._whole:
            before(told)
        else:
            print(f'Exception in thread {name}:', file=sys.stderr)
            show_chain(told.exc_value)

    def _of_destructor(self, before: Callable[[Any], Any], told: Any) -> None:
        if not self._note(told.exc_value, 'where Python ignores exceptions') or self._whole:
            before(told)
        else:
            what = told.err_msg or 'Exception ignored in'
            print(f'{what}: {told.object!r}' if told.object is not None else f'{what}:', file=sys.stderr)
            show_chain(told.exc_value)

    def _of_handler(self, error: CaptureError) -> None:
        self._note(error, 'while a handler of logging formatted a record, and logging has swallowed that')

    def _of_task(self, record: logging.LogRecord) -> bool:
        """Hear what asyncio logs, and let it pass."""
        if record.exc_info:
            self._note(record.exc_info[1], 'in a task of asyncio, and nobody has awaited it')
        return True

    def _storing(self, store: Callable[..., Any]) -> Callable[..., Any]:
        """``Future.set_exception``, which remembers a refusal until somebody asks the future."""

        def set_exception(future: Future[Any], error: BaseException | None) -> None:
            if error is not None and _refusal_in(error) is not None:
                self._stored[id(future)] = future, error
            store(future, error)

        return set_exception

    def _asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(future: Future[Any], timeout: float | None = None) -> Any:
            try:
                return ask(future, timeout)
            finally:
                if future.done():
                    self._stored.pop(id(future), None)

        return asked


def _refusal_in(error: BaseException | None) -> CaptureError | None:
    """The refusal that an exception is, or came from."""
    return next((one for one in shown_with(error) if isinstance(one, CaptureError)), None)
