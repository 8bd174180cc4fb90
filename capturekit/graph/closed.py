"""What is raised if somebody uses a graph that has been closed."""

from __future__ import annotations

from capturekit.model.errors import ClosedError
from capturekit.model.source_line import here


def closed(call: str) -> ClosedError:
    """The error for a call on a closed graph."""
    rule = 'Its executable graph and its memory were given back by close().'
    return ClosedError(call, location=here(), rule=rule, remedy='Record again, or close it later.')


def refuse_launch() -> None:
    """The launch of a closed graph."""
    raise closed('Graph.launch()')
