"""Refusals that no code has caught, though the program went on: those that end a thread, or that a destructor raises.

Python prints an exception that ends a thread, and the program ends as if nothing had been. A worker of an executor
stores its exception in a future, where it stays unseen if nobody asks the future; asyncio logs that of a task. A
handler of :mod:`logging` prints what formatting a record has raised. In all these cases work is missing, and so ``run``
says it and does not end with 0. An ``except`` clause is another matter: there the code has decided.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from capturekit.cli.traceback_text import show_chain
from capturekit.model.causes import shown_with
from capturekit.model.errors import CaptureError
from capturekit.model.source_line import Place


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
        from capturekit.guard import GUARD

        before = threading.excepthook, sys.unraisablehook
        threading.excepthook = lambda told: self._of_thread(before[0], told)
        sys.unraisablehook = lambda told: self._of_destructor(before[1], told)
        tasks = logging.getLogger('asyncio')
        tasks.addFilter(self._of_task)
        GUARD.swallowed.elsewhere.append(self._of_handler)
        try:
            with self._futures():
                yield
        finally:
            GUARD.swallowed.elsewhere.remove(self._of_handler)
            tasks.removeFilter(self._of_task)
            threading.excepthook, sys.unraisablehook = before

    def told(self) -> list[str]:
        """Print what futures still store, and return a sentence about each refusal that was lost."""
        for _future, error in self._stored.values():
            print('Exception of a future that nobody has asked for its result:', file=sys.stderr)
            self._note(error, 'in a worker, and nobody has asked its future')
            show_chain(error, set())
        self._stored.clear()
        return [f'the call at {at} was refused {how}' for at, how in self._lost]

    def of_callback(self, error: BaseException) -> None:
        """Print what a callback of atexit has raised, and note it if it is a refusal."""
        print('Exception ignored in a callback of atexit:', file=sys.stderr)
        self._note(error, 'in a callback of atexit')
        show_chain(error, set())

    def _note(self, error: BaseException | None, how: str) -> bool:
        """Note an exception if it is a refusal, or came from one."""
        found = next((one for one in shown_with(error) if isinstance(one, CaptureError)), None)
        if found is not None:
            self._lost.append((found.location, how))
        return found is not None

    def _of_thread(self, before: Callable[[Any], Any], told: Any) -> None:
        name = told.thread.name if told.thread is not None else threading.get_ident()
        if not self._note(told.exc_value, f'in thread {name}, which ended') or self._whole:
            before(told)
            return
        print(f'Exception in thread {name}:', file=sys.stderr)
        show_chain(told.exc_value, set())

    def _of_destructor(self, before: Callable[[Any], Any], told: Any) -> None:
        if not self._note(told.exc_value, 'where Python ignores exceptions') or self._whole:
            before(told)
            return
        what = told.err_msg or 'Exception ignored in'
        print(f'{what}: {told.object!r}' if told.object is not None else f'{what}:', file=sys.stderr)
        show_chain(told.exc_value, set())

    def _of_handler(self, error: CaptureError) -> None:
        self._note(error, 'while a handler of logging formatted a record, and logging has swallowed that')

    def _of_task(self, record: logging.LogRecord) -> bool:
        """Hear what asyncio logs, and let it pass."""
        if record.exc_info:
            self._note(record.exc_info[1], 'in a task of asyncio, and nobody has awaited it')
        return True

    @contextmanager
    def _futures(self) -> Iterator[None]:
        """In the block, know the refusals that futures store, until they are asked."""
        store, result, exception = Future.set_exception, Future.result, Future.exception

        def set_exception(future: Future[Any], error: BaseException | None) -> None:
            if any(isinstance(one, CaptureError) for one in shown_with(error)):
                assert error is not None
                self._stored[id(future)] = future, error
            store(future, error)

        def asked_result(future: Future[Any], timeout: float | None = None) -> Any:
            try:
                return result(future, timeout)
            finally:
                self._asked(future)

        def asked_exception(future: Future[Any], timeout: float | None = None) -> BaseException | None:
            try:
                return exception(future, timeout)
            finally:
                self._asked(future)

        ours = {'set_exception': set_exception, 'result': asked_result, 'exception': asked_exception}
        for name, function in ours.items():
            setattr(Future, name, function)
        try:
            yield
        finally:
            for name, function in (('set_exception', store), ('result', result), ('exception', exception)):
                setattr(Future, name, function)

    def _asked(self, future: Future[Any]) -> None:
        if future.done():
            self._stored.pop(id(future), None)
