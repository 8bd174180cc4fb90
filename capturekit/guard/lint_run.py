"""A linted run: what it has done so far, as the components of its thread see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.guard.components import Components
from capturekit.guard.open_capture import Live
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import Lane
from capturekit.model.source_line import Place


class Alias(int):
    """The legacy stream's handle under another name: the same number to CUDA, and in Python like no other."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class UnmadeEvent:
    """An event that was never made."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class LintRun:
    """What a linted run has done so far.

    ``guard`` goes on judging the real captures of the run. ``submitted`` counts the work that each stream has been
    given; None where nobody knows. ``hear(error, adapted)`` is given what a strict capture raises, and what
    ``strict=False`` makes of the call in words, or None where that raises, too. ``note(kind, text, at)`` is given what
    would be recorded otherwise than it reads.
    """

    #: The capture that the run plays.
    live: Live

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
        #: How much work a stream had been given when it was looked at last; the segments in which a lane worked.
        self._levels: dict[int, int] = {}
        self.busy: dict[Lane, set[int]] = {}
        self._events = 0

    def new_event(self) -> UnmadeEvent:
        """An event for the ledger alone; its handle is that of no real one."""
        self._events -= 1
        return UnmadeEvent(self._events)

    def _level(self, ptr: int) -> int | None:
        """How much work a stream has been given; None where nobody knows."""
        return None if self._submitted is None else self._submitted.get(int(ptr), 0)

    def look_at(self, ptr: int) -> None:
        """Work that a stream was given so far is not asked for any more."""
        self._levels[ptr] = self._level(ptr) or 0

    def has_worked(self, ptr: int, otherwise: bool) -> bool:
        """Whether a stream was given work since it was last looked at; ``otherwise`` where nobody knows."""
        level = self._level(ptr)
        if level is None:
            return otherwise
        before, self._levels[ptr] = self._levels.get(ptr, 0), level
        return level > before

    def settle(self, lane: Lane) -> None:
        """Before an event closes a lane's segment: note whether it worked in it."""
        if self.has_worked(lane.stream, lane.open):
            self.busy.setdefault(lane, set()).add(lane.segment)

    def tell(self, error: CaptureError, again: Callable[[], Any]) -> None:
        """Tell what a strict capture raises; ``again`` asks once more, as ``strict=False``, and the ledger follows.

        Where that raises something else (a callback, on a stream that was forked for it), it is told, too.
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
