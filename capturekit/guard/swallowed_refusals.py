"""Refusals that :mod:`logging` swallows: ``log.info('%s', array)`` reads the array while a handler formats the record.

A handler prints such an exception and goes on, so that no code has decided about it. It then ends the capture, as if
it had come through: the block raises it, or ``end_capture`` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from capturekit.guard.state import State
from capturekit.model.causes import shown_with
from capturekit.model.errors import CaptureError

SWALLOWED = 'capturekit: a handler of `logging` has printed this exception and gone on, so it comes again here.'


class SwallowedRefusals:
    """Keeps the first refusal that a handler of :mod:`logging` swallows in a capture, for the capture's end."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: Functions that are called with such a refusal in a thread without a capture.
        self.elsewhere: list[Callable[[CaptureError], None]] = []

    def handler_failed(self, original: Callable[..., Any], handler: Any, record: Any) -> Any:
        error = sys.exception()
        try:
            return original(handler, record)
        finally:
            live = self.state.mine()
            found = next((one for one in shown_with(error) if isinstance(one, CaptureError)), None)
            if live is None and found is not None:
                for tell in self.elsewhere:
                    tell(found)
            elif live is not None and found is not None and live.swallowed is None:
                found.add_note(SWALLOWED)
                live.swallowed = found.with_traceback(None)  # which would hold the frames of the block
            del error, found
