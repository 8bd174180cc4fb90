"""The time that following one run takes, apart from the run itself, and its limit.

The time is that of the processor, so that a busy machine leaves no more functions eager than an idle one. What grows
with the process instead of with the function is left out: a collection, and one look at all objects.
"""

from __future__ import annotations

import time

#: How many seconds following one run may take in all.
LONGEST = 1.0


class TooLong(Exception):
    """Following a run has taken longer than :data:`LONGEST`."""


class FollowTime:
    """The time that the steps of following a run take."""

    def __init__(self) -> None:
        #: The seconds that all steps so far have taken.
        self.spent = 0.0
        self._since = time.thread_time()
        self._left_out: list[float] = []

    def begin(self) -> None:
        """Note that a step begins."""
        self._since = time.thread_time()

    def end(self) -> None:
        """Note that a step ends."""
        self.spent += time.thread_time() - self._since

    def pause(self) -> None:
        """Note that something begins which does not count, within a step or beside it."""
        self._left_out.append(time.thread_time())

    def resume(self) -> None:
        """Note that it ends. A collection that began before this object was made may end, too."""
        if not self._left_out:
            return
        began = self._left_out.pop()
        if not self._left_out:  # a collection may begin while something else is left out
            self._since += time.thread_time() - began

    def check_limit(self) -> None:
        """Raise TooLong, within a step, if all steps together have taken longer than they may."""
        if self.spent + time.thread_time() - self._since > LONGEST:
            raise TooLong
