"""Events that a block has recorded, after it: CUDA calls them an invalid argument, and these say why.

No wrapper is installed then. So when a block ends, its events get a class of their own, which tells apart what CUDA
answers to their methods. An event that is recorded again gets its former class back at its next use. Functions that
only take the handle of an event (``get_elapsed_time``, ``Stream.wait_event``) raise CuPy's own error; so the recording
has a note of an event for which nothing in the block waits.
"""

from __future__ import annotations

import functools
from typing import Any

from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model.errors import CaptureError
from capturekit.model.rules import Code, Operation
from capturekit.model.source_line import Place

_OF_NO_USE = (
    'an event is recorded here, and nothing in the block waits for it; after the block it is of no use, because no '
    'launch records it: to time or await a launch, record it around `graph.launch()`'
)


class PastEvents:
    """Gives the events of a block that ends the class which :func:`class_of_past` makes."""

    def __init__(self, state: State, verdicts: Verdicts) -> None:
        self.state = state
        self.verdicts = verdicts

    def ended(self, live: OpenCapture) -> None:
        """Note that a capture is about to be over. Where wrappers stay, with captures begun by hand, they know."""
        if live.memory is None or live.caller is not None:
            return
        usual = self.state.platform.cupy.cuda.Event
        own = {live.capture, *live.parts.past}
        for event in live.events:
            mark = self.state.ledger.marks.get(event.ptr) if type(event) is usual else None
            if mark is not None and mark.capture in own:
                if mark.capture is live.capture and not mark.waited and event is not live.awaited_event:
                    at = mark.at if isinstance(mark.at, Place) else None
                    live.note('note', live.capture.lanes[mark.lane], _OF_NO_USE, at)
                event.__class__ = class_of_past(usual, self.verdicts)


@functools.lru_cache(1)  # there is one CuPy, but in tests
def class_of_past(usual: type, verdicts: Verdicts) -> type:
    """Make the class of events that were recorded in a block which is over, from CuPy's class of events."""
    kind: Any = usual

    class EventOfAPastCapture(kind):  # type: ignore[misc]
        __doc__ = kind.__doc__

        def synchronize(self) -> None:
            try:
                super().synchronize()
            except verdicts.state.platform.cupy.cuda.runtime.CUDARuntimeError as error:
                if isinstance(error, CaptureError) or error.status != Code.cudaErrorInvalidValue:
                    raise
                raise verdicts.past_event(Operation.EVENT_SYNCHRONIZE, 'Event.synchronize()') from None
            self.__class__ = usual  # it was recorded again

        @property
        def done(self) -> bool:
            if super().done:
                self.__class__ = usual
                return True
            runtime = verdicts.state.platform.cupy.cuda.runtime
            if runtime.eventQuery(self.ptr) == Code.cudaErrorInvalidValue:  # CuPy takes that for "not yet"
                raise verdicts.past_event(Operation.EVENT_QUERY, 'Event.done')
            return False

        def record(self, stream: Any = None) -> Any:
            self.__class__ = usual
            return self.record(stream)

    return EventOfAPastCapture
