"""What all components share: the lock, the ledger, the open captures of each thread, and the way past the wrappers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from capturekit.driver.cuda import Platform, current
from capturekit.guard.open_capture import Live
from capturekit.guard.patching import Installation
from capturekit.launch.plan import Feed
from capturekit.model.host_reads import Rehearsal
from capturekit.model.ledger import Lane, Ledger, LedgerCapture


class State:
    """What all components share. Whoever changes it, or reads more than one thing of it, holds ``lock``."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.installation = Installation()
        self.lock = threading.RLock()
        #: Told whenever a capture has closed, and whenever a call is over that would have lost one.
        self.closed = threading.Condition(self.lock)
        #: How many calls of threads without a capture wait for captures to close.
        self.waiting = 0
        #: Such calls that are made right now: the thread and the device of each.
        self.under_way: list[tuple[int, int]] = []
        #: The open captures, by what the ledger knows of each; and those of each thread, the innermost last.
        self.lives: dict[LedgerCapture, Live] = {}
        self.threads: dict[int, list[Live]] = {}
        #: By thread: what its host reads give is kept in the first, what it need not draw anew is in the second.
        self.rehearsals: dict[int, Rehearsal] = {}
        self.redraws: dict[int, list[Feed]] = {}
        #: The handles of the guard's own streams that are current in the place of a legacy stream: each one's device.
        self.placeholders: dict[int, int] = {}
        self._platform: Platform | None = None

    @property
    def platform(self) -> Platform:
        """CuPy and the device that the wrappers were installed for last."""
        return self._platform if self._platform is not None else current()

    @platform.setter
    def platform(self, platform: Platform) -> None:
        self._platform = platform

    def mine(self) -> Live | None:
        """The capture opened last by this thread."""
        stack = self.threads.get(threading.get_ident())
        return stack[-1] if stack else None

    def occupied(self) -> bool:
        """Whether this thread has a capture open, or is in a rehearsal."""
        return self.mine() is not None or threading.get_ident() in self.rehearsals

    def live_of(self, lane: Lane) -> Live:
        """The open capture that a lane belongs to."""
        return self.lives[lane.capture]

    def poll(self) -> None:
        """Before another stream becomes current: what was recorded so far is the present lane's."""
        mine = self.mine()
        if mine is not None:
            mine.poll()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Calls made in the block are the guard's own: wrappers let them through."""
        inside = self.installation.inside
        inside.depth += 1
        try:
            yield
        finally:
            inside.depth -= 1

    @contextmanager
    def on(self, device: int, platform: Platform | None = None) -> Iterator[None]:
        """Another device for a while, for calls of the guard's own."""
        runtime = (platform or self.platform).cupy.cuda.runtime
        with self.inside():
            before = runtime.getDevice()
            if before == device:
                yield
                return
            try:
                runtime.setDevice(device)  # which may fail and have been done: it tells of errors from before, too
                yield
            finally:
                runtime.setDevice(before)

    def current_device(self) -> int:
        """The number of this thread's device."""
        return int(self.platform.cupy.cuda.runtime.getDevice())

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Call CuPy's original of an entry point, past the wrappers."""
        with self.inside():
            return self.installation.originals[entry](*args, **kwargs)
