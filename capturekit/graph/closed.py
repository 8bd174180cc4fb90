"""What is launched in the place of a graph: of one that is closed nothing, of one to be compared the first launch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from capturekit.model.errors import ClosedError
from capturekit.model.source_line import here


def closed(call: str) -> ClosedError:
    """The error for a call on a closed graph."""
    rule = 'Its executable graph and its memory were given back by close().'
    return ClosedError(call, location=here(), rule=rule, remedy='Record again, or close it later.')


def refuse_launch() -> None:
    """The launch of a closed graph."""
    raise closed('Graph.launch()')


def compared_first(graph: Any, call: str) -> Callable[[], None]:
    """The launch of a graph that ``call`` has changed, whose first launch is compared; the graph is not held by it."""
    held = weakref.ref(graph)

    def first() -> None:
        found = held()
        if found is None:
            raise closed(call)
        with found._lock:
            if found._made is None:
                raise closed(call)
            found._start(found._current().ptr)

    return first
