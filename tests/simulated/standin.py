"""What tests of the stand-in share: a new one, a capture by hand, CuPy's words for what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.simulated.cupy import assembly
from capturekit.simulated.device.machine import SimulatedDevice

D2H = 'the current stream is capturing, so D2H transfers are disallowed'
H2D = 'the current stream is capturing, so H2D transfers are disallowed'
SYNCHRONOUS = 'the current stream is capturing, so synchronous API calls are disallowed'


def fresh(seed: int = 0) -> Any:
    return assembly.build(SimulatedDevice(seed))['cupy']


def capture(stream: Any, body: Callable[[], Any]) -> tuple[Any, Any]:
    """Capture what ``body`` does on ``stream``; return its result and the graph."""
    with stream:
        stream.begin_capture()
        try:
            result = body()
        finally:
            graph = stream.end_capture()
    return result, graph


#: One for all examples of Hypothesis.
EAGER = fresh()
