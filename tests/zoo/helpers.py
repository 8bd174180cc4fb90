# ruff: noqa: F401
"""The names that programs of the zoo have: modules, and what several of them would write."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import capturekit as ck
from capturekit.guard import watch

#: Buffers that broken programs would let go of too early: here they live on.
KEPT: list[Any] = []


class Raw:
    """A stream made by hand, which nobody destroys by himself."""

    def __init__(self, cp: Any) -> None:
        self.ptr = cp.cuda.runtime.streamCreateWithFlags(cp.cuda.runtime.streamNonBlocking)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)


class ByHand:
    """A capture by hand that is ended whatever happens, as a careful program would."""

    def __init__(self, cp: Any) -> None:
        self.stream = cp.cuda.Stream(non_blocking=True)

    def __enter__(self) -> Any:
        self.stream.__enter__()
        self.stream.begin_capture()
        return self.stream

    def __exit__(self, *exc: Any) -> None:
        if self.stream.is_capturing():
            self.stream.end_capture()
        self.stream.__exit__(*exc)


class Reader:
    """Something with a destructor that tidies up after its stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.itself: Any = None

    def __del__(self) -> None:
        self.stream.synchronize()


def in_thread(call: Callable[[], Any]) -> None:
    """Run a call in another thread, wait for it, and raise what it raised."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    if failed:
        raise failed[0]


class Recorded:
    """A graph of CuPy's own, launched on its stream and waited for."""

    def __init__(self, graph: Any, stream: Any) -> None:
        self.graph, self._made, self._stream = self, graph, stream

    def launch(self) -> None:
        self._made.launch(self._stream)
        self._stream.synchronize()
