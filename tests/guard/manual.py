"""A capture that a test begins and ends by hand, as a script does under ``capturekit run``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from capturekit.guard import GUARD, watch
from capturekit.model.rules import CaptureStatus, Mode


@contextmanager
def by_hand(cp: Any, mode: Mode = Mode.RELAXED, *, non_blocking: bool = True) -> Iterator[Any]:
    """Yield what has the captured ``stream``, which is current, and ``launch``, which runs the graph and waits."""
    stream = cp.cuda.Stream(non_blocking=non_blocking)
    made = SimpleNamespace(stream=stream)

    def launch() -> None:
        made.graph.launch(stream)
        stream.synchronize()

    made.launch = launch
    cp.cuda.Stream.null.synchronize()  # the stream does not wait for what was made there
    with watch(), stream:
        stream.begin_capture(int(mode))
        yield made
        assert GUARD.state.platform.device.stream_status(stream.ptr) is CaptureStatus.ACTIVE
        made.graph = stream.end_capture()
