"""What a linted run has done so far, for the components of its thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.guard.components import Components
from capturekit.guard.open_capture import OpenCapture
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import Lane
from capturekit.model.source_line import Place


class Alias(int):
    """The legacy stream's handle under another name: CUDA gets the same number, but in Python it equals no other."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class UnmadeEvent:
    """An event that exists only in the ledger."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class LintRun:
    """What a linted run has done so far.

    ``guard`` still judges the real captures of the run. ``submitted`` counts the work that each stream has got; None
    if that is unknown. ``hear(error, adapted)`` is called with the error that a strict capture raises, and with what
    ``strict=False`` does instead, in words, or None if it raises, too. ``note(kind, text, at)`` is called for work that
    a capture would record differently from what the code says.
    """

    #: The capture that the run stands for.
    live: OpenCapture

    def __init__(
        self,
        guard: Components,
        submitted: dict[int, int] | None,
        hear: Callable[[CaptureError, str | None], None],
        note: Callable[[str, str, Place | None], None],
    ) -> None:
        self.guard = guard
        self.hear = hear
        self.note = note
        self._submitted = submitted
        #: How much work a stream had got when it was last checked; the segments in which a lane worked.
        self._levels: dict[int, int] = {}
        self.busy: dict[Lane, set[int]] = {}
        self._events = 0

    def new_event(self) -> UnmadeEvent:
        """An event for the ledger only; no real event has its handle."""
        self._events -= 1
        return UnmadeEvent(self._events)

    def _level(self, ptr: int) -> int | None:
        """How much work a stream has got; None if that is unknown."""
        return None if self._submitted is None else self._submitted.get(int(ptr), 0)

    def look_at(self, ptr: int) -> None:
        """Ignore the work that a stream has got so far."""
        self._levels[ptr] = self._level(ptr) or 0

    def has_worked(self, ptr: int, otherwise: bool) -> bool:
        """Whether a stream got work since it was last checked; ``otherwise`` if that is unknown."""
        level = self._level(ptr)
        if level is None:
            return otherwise
        before, self._levels[ptr] = self._levels.get(ptr, 0), level
        return level > before

    def settle(self, lane: Lane) -> None:
        """Note whether a lane worked in its segment, before an event ends the segment."""
        if self.has_worked(lane.stream, lane.open):
            self.busy.setdefault(lane, set()).add(lane.segment)

    def tell(self, error: CaptureError, again: Callable[[], Any]) -> None:
        """Report what a strict capture raises; ``again`` judges the call as with ``strict=False``, for the ledger.

        If that raises another error (for a callback, on a stream that was forked for it), it is reported, too.
        """
        live = self.live
        steps, second = live.recording.steps, None
        before, live.strict = len(steps), False
        try:
            again()
        except CaptureError as found:
            second = found
        finally:
            live.strict = True
        adapted = '; '.join(step.text for step in steps[before:] if step.kind == 'adapted')
        self.hear(error, None if second is not None and not adapted else adapted)
        if second is not None and adapted:
            self.hear(second, None)
