"""Whether calls of a kind are launched or run eagerly: by the times that calls of both ways have taken.

Once a kind of call is launched, or after a few calls, its next ones take turns: some are answered as usual, the others
run eagerly, in an order that hardly a program has. A call takes time on the host; and on the device, by events before
and after it, which are read when they are done, so that nothing waits for them. Where the device was idle as the call
began, its time on the device is also what a caller who waits for the result has waited. So a call is launched if that
takes less on the device and, unless the device has more to do than the host, on the host as well. The other calls run
eagerly, nearly as fast as without the decorator, and are tried again after some calls, after twice as many, and so on;
and a kind that is launched, when calls of it were recorded or watched again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from capturekit.driver.cuda import Platform
from capturekit.graphed import policy
from capturekit.graphed.usual_call import NOT_ANSWERED

First = Callable[[Any, Any], Any]
#: Why calls ran eagerly that could have been launched, perhaps.
TIMED, FASTER = 'to compare the times of both ways', 'since that is faster'


class CallTiming:
    """The time of one call, which begins now."""

    def __init__(self, cuda: Any) -> None:
        self._cuda, self._stream = cuda, cuda.get_current_stream()
        self._begun, self._ended = cuda.Event(), cuda.Event()
        #: Whether the device has work left from before, so that the host need not be fast.
        self.busy = not self._stream.done
        self._begun.record(self._stream)
        #: The seconds on the host, when the call has ended.
        self.host = time.perf_counter()

    def end(self) -> None:
        """Note that the call has ended."""
        self.host = time.perf_counter() - self.host
        self._ended.record(self._stream)

    def device(self) -> float | None:
        """The seconds on the device; None as long as it is not done."""
        return self._cuda.get_elapsed_time(self._begun, self._ended) * 1e-3 if self._ended.done else None


def on_a_gpu(platform: Platform) -> Callable[[], Any] | None:
    """What times calls on a GPU, but on a stream that is captured by somebody whom the guard does not see. The times of
    the simulated device say nothing of a GPU: None."""
    cuda = platform.cupy.cuda

    def begin() -> CallTiming | None:
        return None if cuda.get_current_stream().is_capturing() else CallTiming(cuda)

    return None if platform.simulated else begin


#: Returns what begins a :class:`CallTiming`, or None where no calls are to be compared.
STOPWATCH: Callable[[Platform], Callable[[], Any] | None] = on_a_gpu


class Took(NamedTuple):
    """What calls of one way take, in seconds: on the host, and on the device."""

    host: float
    device: float

    def __str__(self) -> str:
        return f'{self.host * 1e6:.0f} us on the host and {self.device * 1e6:.0f} on the device'


class TimedWays:
    """The times of one kind of call, and the verdict: ``eager`` is None as long as there is none.

    ``begin`` begins a :class:`CallTiming`, or returns None for a call that can't be timed.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin_timing = begin
        self._lock = threading.Lock()
        #: What calls take that are answered as usual, and those that run eagerly; None before the verdict.
        self.took: tuple[Took, Took] | None = None
        #: The calls before the contest.
        self._calls = 0
        #: How many of those that are launched may cost more before the next contest, and how many of them are left.
        self._patience = self._borne = policy.RETRIED
        #: How many calls run eagerly after the verdict, how many of them are left, and how many of these need no look.
        self._pause = self._left = policy.AGAIN
        self._unseen = 0
        self._begin()

    def _begin(self) -> None:
        self.eager: bool | None = None
        #: Whether any of the calls that were answered as usual was launched.
        self.launched = False
        self._turn = 0
        #: Those that the device has not done yet, and the others, by way.
        self._awaited: list[tuple[bool, Any]] = []
        self._timed: tuple[list[tuple[Any, float]], list[tuple[Any, float]]] = ([], [])

    def answer(self, kind: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        """Answer a call of a graphed function that runs eagerly or is timed; NOT_ANSWERED for others."""
        if not fn._is_of(kind, args, kwargs):
            self._unseen = 0
            return NOT_ANSWERED
        if self.goes_on(self._unseen + 1):
            fn._tell(kind)
            answer = fn._eagerly(args, kwargs, FASTER)
            if not fn._options.later:  # else there may be a call to finish before each of them
                self._unseen = min(2 * self._unseen + 1, policy.UNSEEN)
                fn._tally.let_run(self._unseen, FASTER)
            return answer
        answer = self._timed_answer(kind, fn, args, kwargs)
        self.settle()
        if self.eager is False:
            kind.first = None
        return answer

    def _timed_answer(self, kind: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        """Answer a call of the contest; NOT_ANSWERED for one that can't be timed, or need not be."""
        timing = self._begin_timing() if self._turn < len(policy.TURNS) else None
        if timing is None:
            return NOT_ANSWERED
        eager = policy.TURNS[self._turn]
        self._turn += 1
        first, kind.first, launches = kind.first, None, kind.launches()
        try:
            answer = fn._eagerly(args, kwargs, TIMED) if eager else fn(*args, **kwargs)
            timing.end()
            self.add(eager, timing, kind.launches() > launches)
        finally:
            kind.first = first
        return answer

    def is_due(self, launched: bool) -> bool:
        """Note a call that is answered as usual, of a kind that was ``launched`` before; whether the contest begins."""
        self._calls += 1
        return launched or self._calls >= policy.ANYWAY

    def cost_more(self) -> None:
        """Note a call that is recorded or watched: now and then, launches have to be the faster way once more."""
        if self.eager is False:
            self._borne -= 1
            if self._borne < 0:
                self._patience = self._borne = min(2 * self._patience, policy.SELDOM)
                self._begin()

    def goes_on(self, calls: int) -> bool:
        """Note so many more calls; whether they run eagerly because that is faster. After many, launches are tried."""
        if self.eager:
            self._left -= calls
            if self._left < 0:
                self._pause = min(self._pause * 2, policy.SELDOM)
                self._begin()
        return bool(self.eager)

    def add(self, eagerly: bool, timing: Any, launched: bool) -> None:
        """Add the time of a call that has ended."""
        self.launched = self.launched or launched
        self._awaited.append((eagerly, timing))

    def settle(self) -> None:
        """Give the verdict if it can be given by now."""
        if True in [*map(self._lock.acquire, (False,))]:  # no call follows, at whose end a signal could keep the lock
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        awaited = self._awaited
        while awaited and (device := awaited[0][1].device()) is not None:
            eagerly, timing = awaited.pop(0)
            self._timed[eagerly].append((timing, device))
        usual, eager = self._timed
        fewest = min(len(usual), len(eager))
        done = self._turn >= len(policy.TURNS) and not awaited
        if fewest < policy.SURE:
            self._turn = 0 if done else self._turn  # calls have raised
            return
        took = _took(usual), Took(min(one.host for one, _ in eager), min(seconds for _, seconds in eager))
        ratio = _ratio(*took, idle=not any(timing.busy for timing, _ in (*usual, *eager)))
        if done or not policy.HALF < ratio < policy.CLEAR:
            self.took = took
            self.eager = not self.launched or ratio > policy.BETTER
            lost = sum(timing.host for timing, _ in usual) / max(took[1].host, 1e-9) - len(usual)
            self._left = max(self._pause, int(lost / policy.TRIES))
            self._awaited, self._timed = [], ([], [])

    def __str__(self) -> str:
        if self.took is None:
            return ''
        return f'a call takes {self.took[0]}; an eager one {self.took[1]}'


def _took(timed: list[tuple[Any, float]]) -> Took:
    """What one call takes: the mean of all but the longest, which may have met a collection."""
    host = sorted(timing.host for timing, _ in timed)[:-1]
    device = sorted(seconds for _, seconds in timed)[:-1]
    return Took(sum(host) / len(host), sum(device) / len(device))


def _ratio(usual: Took, eager: Took, idle: bool) -> float:
    """How many times as long as an eager call the usual way takes, where it takes longest."""
    of_device = usual.device / max(eager.device, 1e-9)
    if idle and 2 * usual.host > usual.device:
        return max(of_device, usual.host / max(eager.host, 1e-9))
    return of_device


def contest_of(platform: Platform) -> TimedWays | None:
    """The contest of a new kind of call; None where no calls are to be compared."""
    begin = STOPWATCH(platform)
    return None if begin is None else TimedWays(begin)
