"""The time that following runs takes, apart from the runs themselves, and its limits: of one run, and of many.

From a fifth of a second on the time is that of the processor, so that a busy machine leaves no more functions eager
than an idle one. What grows with the process instead of with the function is left out: a collection, and one look at
all objects.
"""

from __future__ import annotations

import time

from capturekit.functions import policy


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


class FollowCost:
    """What following and recording runs of one kind of call has cost since launches paid for it, and whether the next
    run is followed.

    Once that is a quarter of a second, for two runs or more, one run is not followed, to see what it takes. If
    following is dear, then the second run from there on is followed, the fourth after it, the eighth after that, and
    so on. So values that come back are still found, and calls come to cost what eager ones do.

    Eight launches pay for one followed or recorded run. Where each second run has to be followed, fewer of them are in
    the end.
    """

    def __init__(self) -> None:
        #: The seconds that following runs of this kind has taken, apart from the runs.
        self.in_all = 0.0
        self._begin_again()

    def launched(self) -> None:
        """Note a launch."""
        self.followed = 0.0
        self._launches += 1
        if self._launches >= policy.DEAR * self._calls:
            self._begin_again()

    def _begin_again(self) -> None:
        """Following has been worth it."""
        #: The seconds that following took since the last launch, apart from the runs.
        self.followed = 0.0
        #: The number and the seconds of the calls that were followed, and the number of launches among them.
        self._calls, self._whole, self._launches = 0, 0.0, 0
        #: The least seconds of a run that was not followed; None before the first.
        self._plain: float | None = None
        self._left = self._pause = 1

    def add(self, followed: float, whole: float) -> None:
        """Note a call whose run was followed or recorded: what following it took, and the whole call."""
        self.followed += followed
        self.in_all += followed
        self._calls += 1
        self._whole += whole

    def ran(self, seconds: float) -> None:
        """Note a run that was not followed."""
        self._plain = seconds if self._plain is None else min(self._plain, seconds)

    def is_due(self) -> bool:
        """Whether the next run is to be followed."""
        if self._whole < policy.CHEAP or self._calls < policy.FOLLOWED:
            return True
        if self._plain is None:
            return False
        if self._whole < policy.DEAR * self._plain * self._calls:
            return True
        self._left -= 1
        if self._left >= 0:
            return False
        self._pause *= 2
        self._left = self._pause - 1
        return True
