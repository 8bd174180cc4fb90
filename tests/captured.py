"""What tests of captures share: a call recorded, a graph launched, values on the host."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall


def recorded(fn: Callable[[], Any], **options: Any) -> tuple[ck.Graph, Any]:
    """The graph of a call, and what the call returned."""
    with ck.capture(**options) as cap:
        result = fn()
    return cap.graph, result


@contextlib.contextmanager
def simulated(seed: int = 0, **options: Any) -> Iterator[Any]:
    """The simulated CuPy on a device of its own, for a block."""
    install(SimulatedDevice(seed, **options))
    try:
        yield sys.modules['cupy']
    finally:
        uninstall()


def values(array: Any) -> list[Any]:
    return list(np.asarray(array.get()).reshape(-1).tolist())


def launched(cap: Any, *arrays: Any) -> list[list[Any]]:
    cap.graph.launch()
    return [values(array) for array in arrays]


def values_after(graph: ck.Graph, array: Any) -> list[Any]:
    """What an array holds after a launch."""
    graph.launch()
    return values(array)


def flag(cp: Any, value: bool = True) -> Any:
    return cp.full((), value, '?')


def graph_at(handle: int) -> Any:
    """The handle of a graph as cuda-bindings has it."""
    try:
        from cuda.bindings.runtime import cudaGraph_t
    except ImportError:
        cudaGraph_t = type('cudaGraph_t', (int,), {'__module__': 'cuda.bindings.runtime'})
    return cudaGraph_t(handle)


def line_of(file: str, text: str) -> int:
    """The number of the first line of a file that ends with a text."""
    with open(file, encoding='utf-8') as f:
        return next(number for number, line in enumerate(f, 1) if line.rstrip().endswith(text))


def launches(fn: Any) -> int:
    """How many calls of a graphed function its recordings have answered."""
    return sum(variant.launches for variant in fn.variants)
