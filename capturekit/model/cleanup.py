"""Cleaning up: a list of steps to undo, delayed garbage collection, and notes on the user's exceptions."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Undo(list[Callable[[], Any]]):
    """Steps to undo, the last one first. Every step is tried; an interrupted one is tried once more."""

    push = list.append

    def run(self) -> BaseException | None:
        """Undo all steps; return the first failure."""
        failure: BaseException | None = None
        try:
            while self:
                step = self.pop()
                try:
                    try:
                        step()
                    except KeyboardInterrupt as interrupt:
                        failure = failure or interrupt
                        step()
                except BaseException as error:
                    failure = failure or error
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
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, so that no step stays half done.

    Only Python's main thread receives signals; in other threads, and if the handler is not Python's, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            before(*caught[0])


class GarbageCollection:
    """Garbage collection, which is off while any capture is open: a destructor may make a call that loses it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a destructor may open a capture, too
        self._count = 0
        self._was_on = False

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

    def __init__(self) -> None:
        self._holds = False

    def __enter__(self) -> Uncollected:
        GARBAGE.hold()
        self._holds = True
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Let the collector be as it was, from now on."""
        if self._holds:
            self._holds = False
            GARBAGE.release()


def add_note(error: BaseException, text: str) -> None:
    """Add a line to an exception that must not be replaced."""
    if hasattr(error, 'add_note'):
        error.add_note(text)
    else:
        error.__dict__.setdefault('__notes__', []).append(text)
