"""Which threads are in a graphed function, so that none sees Python state while that holds a recording's arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CallTurns:
    """Counts calls. A recording that must be alone is made only if no other thread is in a call, and calls that begin
    during it wait."""

    def __init__(self) -> None:
        #: A recording that must be alone holds this lock; each call takes it for a moment when it begins.
        self._gate = threading.RLock()
        self._counting = threading.RLock()  # both: a destructor may call a graphed function while they are held
        self._inside = 0
        self._begun = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call of this thread for the block."""
        with self._gate, self._counting:
            self._inside += 1
            self._begun += 1
        try:
            yield
        finally:
            with self._counting:
                self._inside -= 1

    def mark(self) -> int | None:
        """Within a call: a number that changes when another thread begins a call; None while one is in a call."""
        with self._counting:
            return self._begun if self._inside == 1 else None

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Within a call: yield False if other threads are in calls; else True, and others wait until the block ends."""
        if not self._gate.acquire(blocking=False):
            yield False
            return
        try:
            yield self.mark() is not None
        finally:
            self._gate.release()


#: The calls of all graphed functions.
TURNS = CallTurns()
