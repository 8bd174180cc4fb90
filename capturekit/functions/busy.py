"""Whether a thread is in a graphed function: then others are part of its work, and run as they stand; and whether it is
the only one.
"""

from __future__ import annotations

import sys
from itertools import starmap
from threading import get_ident


class _Busy:
    """How many graphed functions this thread is in."""

    def __init__(self) -> None:
        #: The depth of each thread that is in one. Mostly it is empty, which is asked in no time.
        self.threads: dict[int, int] = {}

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
