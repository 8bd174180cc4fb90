"""What tests of the stand-in share: one for a while, a capture by hand, CuPy's words for what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capturekit.simulated import SimulatedDevice, install, uninstall

D2H = 'the current stream is capturing, so D2H transfers are disallowed'
H2D = 'the current stream is capturing, so H2D transfers are disallowed'
SYNCHRONOUS = 'the current stream is capturing, so synchronous API calls are disallowed'


@contextmanager
def installed(device: SimulatedDevice | None = None) -> Iterator[Any]:
    install(device)
    try:
        yield sys.modules['cupy']
    finally:
        uninstall()


def capture(stream: Any, body: Callable[[], Any]) -> tuple[Any, Any]:
    """Capture what ``body`` does on ``stream``; return its result and the graph."""
    with stream:
        stream.begin_capture()
        try:
            result = body()
        finally:
            graph = stream.end_capture()
    return result, graph
