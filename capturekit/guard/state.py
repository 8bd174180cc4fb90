"""What all components share: the lock, the ledger, the open captures, calls that skip the wrappers; and the policy.

What a verb raises goes to the *policy*: by the guard's own it reaches the program. Others are installed for a thread,
or for all: what an eager run does is collected (:mod:`capturekit.guard.lint_guard`), or all is let through
(:mod:`capturekit.guard.observer`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from capturekit.driver.cuda import Platform, current
from capturekit.guard.call_watch import CallWatch
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.patching import Installation
from capturekit.launch.caller import Caller
from capturekit.launch.plan import Feed
from capturekit.model.errors import CaptureError
from capturekit.model.host_reads import Rehearsal
from capturekit.model.ledger import Ledger, LedgerCapture
from capturekit.model.skipped_exits import Lock, contextmanager


class Policy:
    """The guard's own policy: a refusal is raised, and work that leaves the capture does not run."""

    #: Whether streams from outside are held, and the legacy stream replaced.
    holds = True
    #: Whether a capture is open in the driver. Else the run is eager, and only the ledger is kept.
    records = True

    def met(self, error: CaptureError, again: Callable[[], Any] | None = None, live: Any = None) -> None:
        """Take a refusal, after which the verb goes on. ``again`` judges once more, as with ``strict=False``; ``live``
        is the capture that it is about, if that is not the thread's innermost."""
        raise error

    def now(self) -> Policy:
        """The policy for the present call of this thread."""
        return self

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """The function to call in place of a verb of the guard."""
        return verb


RAISE = Policy()


class PolicyOfAll(Policy):
    """A policy that is installed for all threads. ``guard`` has all components of the guard."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def open(self) -> None:
        """Install the policy."""
        inside = self._guard.state.inside
        type(inside).policy = inside.policy = self

    def close(self) -> None:
        """Remove the policy: a call that is already under way goes to the guard."""
        inside = self._guard.state.inside
        type(inside).policy = inside.policy = None

    def launching(self, upload: bool, ptr: int) -> None:
        """Let the guard judge the launch of a capturekit graph."""
        inside = self._guard.state.inside
        inside.policy = None
        try:
            self._guard.work.launching(upload, ptr)
        finally:
            inside.policy = self


#: The verbs that make no call of CuPy.
QUIET = ('handed_out', 'current_stream', 'stream_eq', 'handle_read')


class OriginalCall:
    """A call of CuPy's function, which is made once: by a verb, or after the verb has raised."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self.made = False
        self._value: Any = None
        self.failure: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.made = True
        try:
            self._value = self._original(*args, **kwargs)
        except BaseException as error:
            self.failure = error
            raise
        return self._value

    def answer(self, *args: Any, **kwargs: Any) -> Any:
        """What CuPy has answered, or answers now."""
        if not self.made:
            return self(*args, **kwargs)
        if self.failure is not None:
            raise self.failure
        return self._value


class _Now:
    """CuPy and the device as they are now, until others are set."""

    def __get__(self, _state: State, _owner: type) -> Platform:
        return current()


def handle(stream: Any) -> Any:
    """The handle of a stream or an event that may be given by its handle."""
    return stream if isinstance(stream, int) else stream.ptr


class State:
    """What all components share. Hold ``lock`` to change it, or to read more than one attribute of it."""

    #: CuPy and the device that the wrappers were installed for last.
    platform: Platform = _Now()  # type: ignore[assignment]

    def __init__(self, installation: Installation | None = None) -> None:
        self.ledger = Ledger()
        self.installation = installation or Installation()
        #: ``with state.inside:`` lets wrappers pass all calls of this thread, because they are the guard's own.
        self.inside = self.installation.inside
        #: What is seen below Python, while somebody watches.
        self.call_watch = CallWatch(self.inside)
        self.lock = Lock()
        #: The condition that is notified whenever a capture has closed, or a call that would have lost one is over.
        self.closed = threading.Condition(self.lock)
        #: How many calls of threads without a capture wait for captures to close.
        self.waiting = 0
        #: The calls of this kind that are being made now: the thread and the device of each.
        self.under_way: list[tuple[int, int]] = []
        #: The open captures, by the ledger's capture; and those of each thread, the innermost last.
        self.lives: dict[LedgerCapture, OpenCapture] = {}
        self.threads: dict[int, list[OpenCapture]] = {}
        #: By thread: the rehearsal that stores its host reads, and the random numbers that are already drawn.
        self.rehearsals: dict[int, Rehearsal] = {}
        self.redraws: dict[int, list[Feed]] = {}
        #: By handle of a placeholder (a stream of the guard in place of a legacy stream): its device.
        self.placeholders: dict[int, int] = {}

    @property
    def policy(self) -> Policy:
        """What becomes of a refusal in this thread."""
        policy = self.inside.policy
        return RAISE if policy is None else policy.now()

    def mine(self) -> OpenCapture | None:
        """The open capture that this thread opened last, or None."""
        stack = self.threads.get(threading.get_ident())
        return stack[-1] if stack else None

    def recording(self) -> OpenCapture | None:
        """The same, if it is one of capturekit's own, which has memory for its graph."""
        mine = self.mine()
        return None if mine is None or mine.memory is None else mine

    def caller(self) -> Caller | None:
        """What is known of the caller, if this thread records a graphed function."""
        mine = self.mine()
        return None if mine is None else mine.caller

    def occupied(self) -> bool:
        """Whether this thread has a capture open, or is in a rehearsal."""
        return self.mine() is not None or threading.get_ident() in self.rehearsals

    def open_on(self, stream: int) -> OpenCapture | None:
        """The open capture in which a stream is a lane, or None."""
        lane = self.ledger.lane(stream)
        return None if lane is None else self.lives.get(lane.capture)

    def on_lanes(self, *streams: int) -> OpenCapture | None:
        """This thread's capture, if these handles are lanes of it on the current device, its origin's.

        None also where calls on them may be special, so that each is judged by itself.
        """
        stack, known = self.threads.get(threading.get_ident()), self.ledger.lanes
        mine = stack[-1] if stack else None
        if mine is None or mine.memory is None or mine.caller is not None or mine.outside.held:
            return None
        device = mine.capture.origin.device
        if self.inside.active() or self.inside.policy is not None:
            return None
        if self.platform.cupy.cuda.runtime.getDevice() != device:
            return None
        for ptr in streams:
            lane = known.get(ptr)
            if lane is None or lane.capture is not mine.capture or lane.device != device:
                return None
        return mine

    def poll(self) -> None:
        """Attribute the nodes so far to the present lane, before another stream becomes current."""
        mine = self.mine()
        if mine is not None:
            mine.poll()

    def current_stream(self, device: int = -1) -> Any:
        """CuPy's current stream, of this device or of another one, asked without the wrapper."""
        return self.installation.originals['cupy.cuda.stream.get_current_stream'](device)

    def use(self, stream: Any) -> None:
        """Make a stream current for good, without the wrapper."""
        if self.current_stream().ptr != stream.ptr:
            self.own('cupy.cuda.stream._BaseStream.use', stream)

    @contextmanager
    def on(self, device: int, platform: Platform | None = None) -> Iterator[None]:
        """Make a device current for a block, for the guard's own calls."""
        runtime = (platform or self.platform).cupy.cuda.runtime
        with self.inside:
            before = runtime.getDevice()
            if before == device:
                yield
                return
            try:
                runtime.setDevice(device)  # it may raise an earlier error although it has switched the device
                yield
            finally:
                runtime.setDevice(before)

    def current_device(self) -> int:
        """The number of this thread's device."""
        return int(self.platform.cupy.cuda.runtime.getDevice())

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Call CuPy's original function of an entry point, without the wrapper."""
        with self.inside:
            return self.installation.originals[entry](*args, **kwargs)
