"""What it costs that the calls to CUDA are watched: in a capture, and in a program while no capture is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, now, seconds


@contextmanager
def watched() -> Iterator[None]:
    told: list[Any] = []
    hear = told.append
    GUARD.state.call_watch.open(current(), hear)
    try:
        yield
    finally:
        GUARD.state.call_watch.close(hear)


def compared(name: str, plain: Callable[[], float], under_watch: Callable[[], float], per: int = 1) -> Line:
    """A line of a thing done without and with a watch, in turn."""
    with no_garbage_collection():
        found = medians(in_turn(25, {'without': plain, 'watched': under_watch}), 1e6 / per)
    return Line(name, found['watched'] / found['without'], medians=found)


def lines(cp: Any, count: int = 1000) -> Iterator[Line]:
    """Recording, an operation outside of captures, and a capture of PyTorch's; each without and with a watch."""
    x = cp.arange(1024, dtype='f4')

    def operations() -> None:
        for _ in range(count):
            cp.add(x, 1, x)

    def recording(watch: bool) -> float:
        with ck.capture(lines=False, watch=watch) as cap:
            taken = seconds(operations)
        cap.graph.close()
        return taken

    def opening(watch: bool) -> float:
        start = now()
        with ck.capture(lines=False, watch=watch) as cap:
            cp.add(x, 1, x)
        taken = now() - start
        cap.graph.close()
        return taken

    def eager() -> float:
        taken = seconds(operations)
        cp.cuda.Device().synchronize()
        return taken

    def eager_watched() -> float:
        with watched():
            return eager()

    def both(measure: Callable[[bool], float]) -> tuple[Callable[[], float], Callable[[], float]]:
        return lambda: measure(False), lambda: measure(True)

    yield compared('recording 1,000 operations in place: watched / not watched, per op', *both(recording), count)
    yield compared('a capture of one operation: watched / not watched', *both(opening))
    yield compared('CuPy op, no capture open: watched / not watched', eager, eager_watched, count)
    yield from torch_graphs(count)


def torch_graphs(count: int) -> Iterator[Line]:
    """A capture of ``torch.cuda.graph``."""
    try:
        import torch
    except ImportError:
        return
    a = torch.zeros(1024, device='cuda')
    a.add_(1)
    torch.cuda.synchronize()

    def record() -> float:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            start = now()
            for _ in range(count):
                a.add_(1)
            return now() - start

    def record_watched() -> float:
        with watched():
            return record()

    yield compared('torch.cuda.graph, 1,000 operations: watched / not watched, per op', record, record_watched, count)
