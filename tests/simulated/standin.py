"""What tests of the stand-in share: one for a while, a capture by hand, CuPy's words for what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

D2H = 'the current stream is capturing, so D2H transfers are disallowed'
H2D = 'the current stream is capturing, so H2D transfers are disallowed'
SYNCHRONOUS = 'the current stream is capturing, so synchronous API calls are disallowed'


def capture(stream: Any, body: Callable[[], Any]) -> tuple[Any, Any]:
    """Capture what ``body`` does on ``stream``; return its result and the graph."""
    with stream:
        stream.begin_capture()
        try:
            result = body()
        finally:
            graph = stream.end_capture()
    return result, graph
