"""What all components share: the lock, the ledger, each thread's open captures, and calls that skip the wrappers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from capturekit.driver.cuda import Platform, current
from capturekit.guard.call_watch import CallWatch
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.patching import Installation
from capturekit.guard.policy import RAISE, Policy
from capturekit.launch.caller import Caller
from capturekit.launch.plan import Feed
from capturekit.model.host_reads import Rehearsal
from capturekit.model.ledger import Lane, Ledger, LedgerCapture
from capturekit.model.skipped_exits import contextmanager


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
        self.lock = threading.RLock()
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

    def live_of(self, lane: Lane) -> OpenCapture:
        """The open capture that a lane belongs to."""
        return self.lives[lane.capture]

    def poll(self) -> None:
        """Attribute the nodes so far to the present lane, before another stream becomes current."""
        mine = self.mine()
        if mine is not None:
            mine.poll()

    def current_stream(self) -> Any:
        """CuPy's current stream, asked without the wrapper."""
        return self.installation.originals['cupy.cuda.stream.get_current_stream']()

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
