"""Which threads are in a graphed function, so that none sees Python state while that holds a recording's arrays."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from itertools import starmap
from types import CodeType, FrameType
from typing import Any

from capturekit.model.skipped_exits import Lock, contextmanager
from capturekit.model.source_line import other_threads


class _Busy:
    """How many graphed functions this thread is in."""

    def __init__(self) -> None:
        #: The depth of each thread that is in one. Mostly it is empty, which is asked in no time.
        self.threads: dict[int, int] = {}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A block within which this thread is in one more."""
        me, threads = get_ident(), self.threads
        before = threads.get(me, 0)
        try:
            threads[me] = before + 1
            yield
        finally:
            if before:
                threads[me] = before
            else:
                threads.pop(me, None)

    @property
    def depth(self) -> int:
        """That of this thread."""
        return self.threads.get(get_ident(), 0)

    @depth.setter
    def depth(self, value: int) -> None:
        if value:
            self.threads[get_ident()] = value
        else:
            self.threads.pop(get_ident(), None)


BUSY = _Busy()


def is_alone() -> bool:
    """Whether no other thread runs code of Python."""
    return sum(map(len, starmap(sys._current_frames, [()]))) == 1  # in one call: a frame is held by nobody else


class CallTurns:
    """Counts calls, each for the block in which it is entered. A recording that must be alone is made only if no other
    thread is in a call, and calls that begin during it wait.

    No lock is needed to count: each thread has an entry of its own, which it makes before it asks whether to wait.
    Calls that run eagerly without a look are not counted, and none of them begins while a thread is in :data:`BUSY`.
    Whether a thread is still in one, its stack tells.
    """

    def __init__(self) -> None:
        #: Recordings that must be alone hold this lock; calls that begin meanwhile take it for a moment. ``_recorder``
        #: is the thread that records.
        self._gate = Lock()
        self._recording = 0
        self._recorder = 0
        #: How many calls each thread is in that is in one; and a number that changes when a thread enters one.
        self._inside: dict[int, int] = {}
        self._begun = 0
        #: The code that makes calls which are not counted.
        self.uncounted: set[CodeType] = set()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call of this thread for the block."""
        me, inside = get_ident(), self._inside
        before = inside.get(me, 0)
        try:
            with self._gate:
                inside[me] = before + 1
                self._begun += 1
            yield
        finally:
            if before:
                inside[me] = before
            else:
                inside.pop(me, None)

    def run(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function in such a block, with as little as can be around it."""
        me, inside = get_ident(), self._inside
        if me not in inside:
            inside[me] = 1
            self._begun += 1
            try:
                if not self._recording:
                    return fn(*args, **kwargs)
            finally:
                del inside[me]
        with self.call():
            return fn(*args, **kwargs)

    def mark(self) -> int | None:
        """Within a busy call: a number that changes when another one begins; None while another thread is in one."""
        return self._begun if len(self._inside) == 1 and not self._is_in_another_stack() else None

    def _is_in_another_stack(self) -> bool:
        """Whether another thread is in a call, by its stack."""
        if is_alone():
            return False
        for frame in other_threads().values():
            above: FrameType | None = frame
            while above is not None:
                if above.f_code in self.uncounted:
                    return True
                above = above.f_back
        return False

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Within a call: yield False if other threads are in calls; else True, and others wait until the block ends."""
        me = get_ident()
        if self._recorder not in (0, me):
            yield False
            return
        with self._gate:
            before, self._recorder = self._recorder, me
            self._recording += 1
            try:
                with BUSY.entered():
                    yield self.mark() is not None
            finally:
                self._recording -= 1
                self._recorder = before


#: The calls of all graphed functions.
TURNS = CallTurns()
