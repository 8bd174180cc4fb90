"""Notices of the calls that a process makes to CUDA: who gives them, and who hears them.

:class:`Listener` is the same for a GPU (:mod:`capturekit.driver.cupti_calls`) and for the simulated device.
"""

from __future__ import annotations

from typing import Protocol

from capturekit.model.cuda_functions import ApiCall
from capturekit.model.rules import CaptureStatus


class Listener(Protocol):
    """Hears the calls. Its methods are called in the thread that makes the call, and raise nothing."""

    @property
    def idle(self) -> bool:
        """Whether no capture is open, so that only the begin of the next one matters."""

    def before(self, call: ApiCall) -> None:
        """Hear that a call is about to be made."""

    def after(self, call: ApiCall, code: int) -> None:
        """Hear what a call was answered."""

    def worked(self, stream: int) -> bool:
        """Hear that work was given to a stream, with success; False if :meth:`after` is to be called."""

    def failed(self, failure: BaseException) -> None:
        """Hear that a call could not be told of, and that nothing is told any more."""


class CallSource(Protocol):
    """Tells a listener of calls, and answers what only the source knows."""

    def open(self, listener: Listener) -> None:
        """Begin to tell a listener. Raises Untraceable where that is not possible."""

    def close(self) -> None:
        """Stop telling. A second call does nothing."""

    def status(self, stream: int) -> CaptureStatus | None:
        """Return a stream's status; None if it can't be asked. This question is told to nobody."""

    def blocking(self, stream: int) -> bool:
        """Return whether a stream that is in no capture is a blocking one. This question is told to nobody."""

    def device(self) -> int | None:
        """Return the number of this thread's device; None if it can't be asked."""

    def libraries(self) -> tuple[str, ...]:
        """Return the libraries that this thread's call came through, the nearest first."""
