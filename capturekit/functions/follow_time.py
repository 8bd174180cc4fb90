"""How long following one run takes, apart from the run itself, and the end of patience.

It is the processor's time that counts, so that a busy machine leaves no more functions eager than an idle one.
"""

from __future__ import annotations

import time

#: Seconds that following one run may take in all.
LONGEST = 1.0


class TooLong(Exception):
    """Following a run has taken longer than :data:`LONGEST`."""


class FollowTime:
    """The time that the steps of following a run take."""

    def __init__(self) -> None:
        #: Seconds so far.
        self.spent = 0.0
        self._since = time.thread_time()

    def begin(self) -> None:
        """A step begins."""
        self._since = time.thread_time()

    def end(self) -> None:
        """A step ends."""
        self.spent += time.thread_time() - self._since

    def must_go_on(self) -> None:
        """In a step: raise TooLong where all of them have taken longer than they may."""
        if self.spent + time.thread_time() - self._since > LONGEST:
            raise TooLong
