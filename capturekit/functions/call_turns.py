"""Which threads are in a graphed function, so that none meets Python's state while it holds a recording's arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CallTurns:
    """Counts calls; a recording that needs to be alone is made only where no other thread is in a call, and holds up
    those that begin one."""

    def __init__(self) -> None:
        #: Held by a recording that is alone. Whoever begins a call passes through it.
        self._gate = threading.Lock()
        self._counting = threading.Lock()
        self._inside = 0
        self._begun = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call, in this thread."""
        with self._gate, self._counting:
            self._inside += 1
            self._begun += 1
        try:
            yield
        finally:
            with self._counting:
                self._inside -= 1

    def mark(self) -> int | None:
        """What tells later whether a call of another thread has begun since; None while there is one. In a call."""
        with self._counting:
            return self._begun if self._inside == 1 else None

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """In a call: False if other threads are in calls; else True, and no other begins one until the end."""
        if not self._gate.acquire(blocking=False):
            yield False
            return
        try:
            yield self.mark() is not None
        finally:
            self._gate.release()


#: The calls of all graphed functions.
TURNS = CallTurns()
