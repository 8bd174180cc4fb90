"""Which threads are in a graphed function, so that none sees Python state while that holds a recording's arrays."""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Iterator
from contextlib import contextmanager


class CallTurns:
    """Counts calls, each for the block in which it is entered. A recording that must be alone is made only if no other
    thread is in a call, and calls that begin during it wait."""

    def __init__(self) -> None:
        #: A recording that must be alone holds this lock; each call takes it for a moment when it begins.
        self._gate = threading.RLock()
        self._counting = threading.RLock()  # both: a destructor may call a graphed function while they are held
        #: How many calls each thread is in that is in one.
        self._inside: dict[int, int] = {}
        self._begun = 0

    def __enter__(self) -> None:
        """Count a call of this thread for the block."""
        me = get_ident()
        with self._gate, self._counting:
            depth = self._inside.get(me, 0)
            self._inside[me] = depth + 1
            self._begun += not depth

    def __exit__(self, *_error: object) -> None:
        me = get_ident()
        with self._counting:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]

    def mark(self) -> int | None:
        """Within a call: a number that changes when another thread begins a call; None while one is in a call."""
        with self._counting:
            return self._begun if len(self._inside) == 1 else None

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
