"""``graph.fuse()``: launches of fused graphs beside those of graphs as recorded, bare CuPy, and the memory's own speed.

Results are checked to the bit before anything is timed. The heat equation is made of shifted views (``roll``), of which
little is fused yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import capturekit as ck
from tests.benchmarks.jobs import finished
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection


def lines(cp: Any) -> Iterator[Line]:
    """Three workloads on large arrays, and one on small ones."""
    values = np.random.default_rng(0)

    def made(shape: tuple[int, ...], low: float, high: float) -> Any:
        return cp.asarray(values.uniform(low, high, shape).astype('f4'))

    for size in (1, 32):
        yield line(cp, f'GELU {size}x3x224x224', gelu, (made((size, 3, 224, 224), -3, 3),))
    options = 4_000_000
    given = (made((options,), 50, 150), made((options,), 50, 150), made((options,), 0.1, 3))
    yield line(cp, f'Black-Scholes, {options:,} options', black_scholes, given)
    yield line(cp, 'heat equation 2048 x 2048, 10 steps by roll', heat, (made((2048, 2048), 0, 1),))


def gelu(cp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + cp.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def black_scholes(cp: Any, price: Any, strike: Any, years: Any, rate: float = 0.02, volatility: float = 0.3) -> Any:
    """The prices of call and put options. The normal distribution is approximated by ``tanh``, as CuPy has no ``erf``
    outside of ``cupyx``."""

    def normal(d: Any) -> Any:
        return 0.5 * (1 + cp.tanh(0.7978845608 * (d + 0.044715 * d * d * d)))

    spread = volatility * cp.sqrt(years)
    first = (cp.log(price / strike) + (rate + volatility * volatility / 2) * years) / spread
    second = first - spread
    discounted = strike * cp.exp(-rate * years)
    call = price * normal(first) - discounted * normal(second)
    return call, call - price + discounted


def heat(cp: Any, u: Any) -> Any:
    for _ in range(10):
        around = cp.roll(u, 1, 0) + cp.roll(u, -1, 0) + cp.roll(u, 1, 1) + cp.roll(u, -1, 1)
        u = u + 0.1 * (around - 4 * u)
    return u


def line(cp: Any, name: str, work: Callable[..., Any], given: tuple[Any, ...]) -> Line:
    """One workload: the time of a fused graph's launch as a part of that of the graph as recorded."""
    expected = bits(work(cp, *given))
    graphs = {}
    for kind, fuse in (('recorded', False), ('fused', True)):
        with ck.capture(fuse=fuse) as cap:
            results = work(cp, *given)
        cap.graph.launch()
        cap.graph.launch()
        if bits(results) != expected:
            return Line(name, error=f'the graph ({kind}) gives other bits than CuPy')
        graphs[kind] = cap.graph
    report = graphs['fused'].fuse()
    calls = {kind: finished(cp, graph.launch) for kind, graph in graphs.items()}
    calls['cupy'] = finished(cp, lambda: work(cp, *given))
    nbytes = sum(one.nbytes for one in (*given, *several(results)))
    source, copy = (cp.empty(nbytes // 2, 'u1') for _ in range(2))
    calls['memory'] = finished(cp, lambda: copy.data.copy_from_device_async(source.data, nbytes // 2))
    with no_garbage_collection():
        found = medians(in_turn(15, calls))
    for graph in graphs.values():
        graph.close()
    return Line(f'{name}: fused / recorded', found['fused'] / found['recorded'], medians=found, note=repr(report))


def several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def bits(results: Any) -> list[bytes]:
    return [one.get().tobytes() for one in several(results)]
