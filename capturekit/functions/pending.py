"""Calls answered before their checks (``checks='later'``)."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from capturekit.functions.variant import Variant
from capturekit.guard import GUARD
from capturekit.launch.current_stream import current_for_now
from capturekit.model import errors


class Call:
    """A call that returned before the checks of its launch were done (``checks='later'``)."""

    def __init__(self, variant: Variant, launch: int, stream: Any) -> None:
        self._variant = variant
        self._launch = launch
        self._stream = stream
        self._device = GUARD.state.current_device()
        self._error: errors.AssumptionError | None = None
        self._settled = False
        #: Of two threads that ask, the second one goes on when the call is undone: it may be about to launch.
        self._lock = threading.RLock()
        variant.unsettled.add(self)

    def settle(self) -> None:
        """Wait for the checks of this call. Raises AssumptionError if one failed: its results are not valid."""
        with self._lock:
            if not self._settled:
                self._wait()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        plan = self._variant.plan
        if plan is not None and plan.checks is not None:
            made = len(plan.checks.made)
            self._error = plan.checks.wait(self._launch, made, self._stream.synchronize)
            if self._error is not None and plan.launches == self._launch:
                with GUARD.on(self._device), current_for_now(GUARD.state.platform.cupy.cuda, self._stream):
                    self._variant.restore(self._error)
        self._settled = True  # it stays in ``unsettled``, which another thread may be going through

    def holds(self) -> bool:
        """Wait for the checks; True if the results are right."""
        try:
            self.settle()
        except errors.AssumptionError:
            return False
        return True


class Earlier:
    """The call whose checks are not done (``checks='later'``): if one fails, it is undone before the next call."""

    def __init__(self, later: bool) -> None:
        self.call: Call | None = None
        #: Calls of all kinds wait for each other by this; None: those of one kind only.
        self.lock = threading.RLock() if later else None
        #: The last call of each thread.
        self.last = Last()

    def alone(self) -> AbstractContextManager[Any]:
        """A block in which no other thread begins a call that has to wait for the earlier one."""
        return nullcontext() if self.lock is None else self.lock

    def finish(self) -> None:
        """Undo the call if its checks fail: the next one begins."""
        if self.lock is None:
            return
        with self.lock:
            call = self.call
            if call is not None:
                call.holds()
                if self.call is call:  # it stays if Ctrl-C comes first
                    self.call = None
        self.last.call = None


class Last(threading.local):
    """The last call of a thread that returned before its checks were done."""

    call: Call | None = None
