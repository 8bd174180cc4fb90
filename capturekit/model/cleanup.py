"""Cleaning up: a list of steps to undo, delayed garbage collection, who holds objects, notes on exceptions."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, cast

from capturekit.model.skipped_exits import CertainExit, Lock, contextmanager


class Undo(list[Callable[[], Any]]):
    """Steps to undo, the last one first. Every step is tried; one that raises is tried once more."""

    push = list.append

    def run(self) -> BaseException | None:
        """Undo all steps; return the first failure."""
        failure: BaseException | None = None
        try:
            while self:
                step = self[-1]
                try:
                    try:
                        step()
                    except BaseException as error:  # a handler of a signal may raise anything
                        failure = failure or error
                        step()
                except BaseException as error:
                    failure = failure or error
                del self[-1]  # no call, which a signal could interrupt
            return failure
        finally:
            del failure  # its traceback holds this frame, a cycle that only the garbage collector would free

    def close(self) -> None:
        """Take everything back, and then raise the first failure, if there was one."""
        failure = self.run()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure


@contextmanager
def undoing() -> Iterator[Undo]:
    """A block at whose end all steps are undone, whatever ends it; the first failure is raised."""
    steps, failure = Undo(), cast(BaseException | None, None)
    try:
        yield steps
    finally:
        try:
            while steps:
                try:
                    failure = steps.run() or failure
                except BaseException as error:  # a signal at its first instruction: it is called again
                    failure = failure or error
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame


class uninterrupted:
    """Delay Ctrl-C, and other signals that code handles, until the end of the block, so that no step stays half done.

    Only Python's main thread receives signals; in other threads, and for handlers that are not Python's, nothing
    changes. One block is entered once.
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._caught: dict[int, FrameType | None] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _HANDLED:
                before = signal.getsignal(number)
                if callable(before):
                    self._before[number] = before
                    signal.signal(number, self._caught.setdefault)
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *_exc: object) -> None:
        try:
            self._restore()
        except BaseException:  # a signal that is not delayed any more; the others still are
            self._restore()
            raise
        self._deliver()

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _deliver(self) -> None:
        """Call the handlers of the signals that came, the first one first; each is called even if others raise."""
        for number in self._caught:
            frame = self._caught.pop(number)
            try:
                self._before[number](number, frame)
            finally:
                self._deliver()
            return


#: The signals that code may handle, and whose handlers may raise.
_NAMES = 'SIGINT SIGTERM SIGALRM SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGVTALRM SIGPROF'
_HANDLED = tuple(signal.Signals[name] for name in _NAMES.split() if name in signal.Signals.__members__)


class GarbageCollection:
    """Garbage collection, which is off while any capture is open: a destructor may make a call that loses it."""

    def __init__(self) -> None:
        self._lock = Lock()  # a destructor may open a capture, too
        self._count, self._was_on = 0, False

    def hold(self) -> None:
        with self._lock:
            if self._count == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def release(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._was_on:
                gc.enable()


GARBAGE = GarbageCollection()


class Uncollected:
    """A block in which garbage collection is off, until it ends or ``let_go`` is called."""

    _holds = False

    def __enter__(self) -> Uncollected:
        with uninterrupted():
            GARBAGE.hold()
            self._holds = True
        return self

    def let_go(self, *_: object) -> None:
        """Let the collector be as it was, from now on."""
        if self._holds:
            with uninterrupted():
                self._holds = False
                GARBAGE.release()

    __exit__: Any = CertainExit(let_go, lambda block: int(block._holds), let_go)


def collections() -> int:
    """How often garbage was collected so far."""
    return sum(one['collections'] for one in gc.get_stats())


def instances(*kinds: type, since: int = -1) -> list[Any]:
    """The objects of these classes and of those below them; without what ``gc.freeze`` took away before.

    ``__class__`` is not asked: it may be a property. ``since``: only objects made since :func:`collections` said so
    are needed. If nothing was collected since, only the youngest have to be looked through.
    """
    objects = gc.get_objects(generation=0) if since == collections() else gc.get_objects()
    return [one for one in objects if issubclass(type(one), kinds)]


def _references(held: list[Any]) -> int:
    """References to the one member of a list, with this function's own."""
    return sys.getrefcount(held[0])


_OWN = _references([object()])


def others_of(held: list[Any]) -> int:
    """References to the one member of a list, besides the list's own."""
    return _references(held) - _OWN
