"""What becomes of a call that a capture would refuse: the last word is the policy's.

A verb judges a call, and raises where the capture would be lost or the call be left out of the graph. By the guard's
own policy that reaches the program. Others are installed for a thread, or for all, as ``inside.policy``: what an eager
run does is collected (:mod:`capturekit.guard.lint_guard`), or all is let through (:mod:`capturekit.guard.observer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.model.errors import CaptureError


class Policy:
    """The guard's own policy: a refusal is raised, and work that leaves the capture does not run."""

    #: Whether streams from outside are held, and the legacy stream replaced.
    holds = True
    #: Whether a capture is open in the driver. Else the run is eager, and only the ledger is kept.
    records = True
    #: Whether arrays that are made, and CuPy's switches, are not asked about.
    calls_only = False

    def met(self, error: CaptureError, again: Callable[[], Any] | None = None, live: Any = None) -> None:
        """Take a refusal, after which the verb goes on. ``again`` judges once more, as with ``strict=False``.

        ``live``: the capture that it is about, if that is not the thread's innermost.
        """
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
        self._put(self)

    def close(self) -> None:
        """Remove the policy: a call that is already under way goes to the guard."""
        self._put(None)

    def _put(self, policy: Policy | None) -> None:
        inside = self._guard.state.inside
        type(inside).policy = policy
        inside.policy = policy

    def launching(self, upload: bool, ptr: int) -> None:
        """Let the guard judge the launch of a capturekit graph."""
        inside = self._guard.state.inside
        inside.policy = None
        try:
            self._guard.launches.launching(upload, ptr)
        finally:
            inside.policy = self


#: The verbs that make no call of CuPy.
QUIET = ('handed_out', 'current_stream', 'stream_eq', 'stream_hash')


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
