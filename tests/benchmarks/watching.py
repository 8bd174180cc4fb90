"""What it costs that the calls to CUDA are watched: in a capture, and in a program while no capture is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from tests.benchmarks.timing import Line, compared, now, seconds


@contextmanager
def watched() -> Iterator[None]:
    told: list[Any] = []
    hear = told.append
    GUARD.state.call_watch.open(current(), hear)
    try:
        yield
    finally:
        GUARD.state.call_watch.close(hear)


def without_and_with(name: str, measure: Callable[[bool], float], per: int = 1) -> Line:
    """A line of a thing done without and with a watch, in turn."""
    calls = {'without': lambda: measure(False), 'watched': lambda: measure(True)}
    return compared(name, calls, 'watched', 'without', scale=1e6 / per)


def lines(cp: Any, count: int = 1000) -> Iterator[Line]:
    """Recording, a capture, and an operation outside of captures; each without and with a watch."""
    x = cp.arange(1024, dtype='f4')

    def operations() -> None:
        for _ in range(count):
            cp.add(x, 1, x)

    def recording(watch: bool) -> float:
        with ck.capture(watch=watch, lines=False) as cap:
            taken = seconds(operations)
        cap.graph.close()
        return taken

    def opening(watch: bool) -> float:
        start = now()
        with ck.capture(watch=watch, lines=False) as cap:
            cp.add(x, 1, x)
        taken = now() - start
        cap.graph.close()
        return taken

    def eager(watch: bool) -> float:
        with watched() if watch else nullcontext():
            taken = seconds(operations)
            cp.cuda.Device().synchronize()
        return taken

    yield without_and_with('recording 1,000 operations in place: watched / not watched, per op', recording, count)
    yield without_and_with('a capture of one operation: watched / not watched', opening)
    yield without_and_with('CuPy op, no capture open: watched / not watched', eager, count)
