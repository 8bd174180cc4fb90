"""The time that following a run takes, apart from the run itself, and its limit.

From a fifth of a second on the time is that of the processor, so that a busy machine leaves no more functions eager
than an idle one. What grows with the process instead of with the function is left out: a collection, and one look at
all objects.
"""

from __future__ import annotations

import time

from capturekit.graphed import policy


class TooLong(Exception):
    """Following a run has taken longer than :data:`policy.LONGEST`."""


class FollowTime:
    """The time that the steps of following a run take.

    There are thousands of steps, and to ask for the processor's time takes ten times as long as to look at the clock.
    So the clock counts until :data:`policy.ROUGHLY`.
    """

    def __init__(self) -> None:
        #: The seconds that all steps so far have taken.
        self.spent = 0.0
        self._now = time.perf_counter
        self._since = self._now()
        self._left_out: list[float] = []

    def begin(self) -> None:
        """Note that a step begins."""
        if self.spent > policy.ROUGHLY:
            self._now = time.thread_time
        self._since = self._now()

    def end(self) -> None:
        """Note that a step ends."""
        self.spent += self._now() - self._since

    def pause(self) -> None:
        """Note that something begins which does not count, within a step or beside it."""
        self._left_out.append(self._now())

    def resume(self) -> None:
        """Note that it ends. A collection that began before this object was made may end, too."""
        if not self._left_out:
            return
        began = self._left_out.pop()
        if not self._left_out:  # a collection may begin while something else is left out
            self._since += self._now() - began

    def check_limit(self) -> None:
        """Raise TooLong, within a step, if all steps together have taken longer than they may."""
        if self.spent + self._now() - self._since > policy.LONGEST:
            raise TooLong
