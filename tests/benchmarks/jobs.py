"""Whole jobs, waited for: eager against recorded, decided on the host against on the device, fused against not.

Results are checked before anything is timed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import capturekit as ck
from tests.benchmarks.timing import Line, compared, finished, recorded
from tests.gpu import workloads

STEPS = 10
SAMPLE = Path(__file__).parents[2] / 'samples' / 'on_the_device.py'


def main_jobs(cp: Any) -> Iterator[Line]:
    """The signal pipeline and the heat equation of ``tests.gpu.workloads``."""
    x = workloads.signal(cp)
    outs = {name: cp.zeros_like(x) for name in ('eager', 'eager on two streams', 'recorded')}
    cap = recorded(lambda cap: workloads.pipeline(cp, x, outs['recorded'], cap.fork))
    yield from _three_ways(
        cp,
        f'signal pipeline, two branches, {x.size:,} samples',
        cap.graph,
        lambda way, fork: workloads.pipeline(cp, x, outs[way], fork),
        outs,
    )
    for side in (workloads.SIDE, workloads.SIDE // 8):
        plates = {name: (workloads.plate(cp, side), workloads.plate(cp, side)) for name in outs}
        cap = recorded(lambda cap, plates=plates: workloads.heat(cp, *plates['recorded'], cap.fork, STEPS))
        yield from _three_ways(
            cp,
            f'heat equation, two lanes, {side} x {side}, {STEPS} steps',
            cap.graph,
            lambda way, fork, plates=plates: workloads.heat(cp, *plates[way], fork, STEPS),
            {name: u for name, (u, _v) in plates.items()},
        )


def _three_ways(
    cp: Any, name: str, graph: ck.Graph, run: Callable[[str, Any], None], results: dict[str, Any]
) -> Iterator[Line]:
    """All three run equally often, so that their results are equal at the end."""
    calls = {
        'recorded': finished(cp, graph.launch),
        'eager': finished(cp, lambda: run('eager', workloads.one_stream)),
        'eager on two streams': finished(cp, lambda: run('eager on two streams', ck.fork)),
    }
    found = compared(name, calls, 'recorded', 'eager', 30).medians
    same = all(bool((one == results['eager']).all()) for one in results.values())
    assert same, f'{name}: recorded and eager differ'
    for against in ('eager', 'eager on two streams'):
        yield Line(
            f'{name}: recorded / {against}',
            found['recorded'] / found[against],
            medians={key: found[key] for key in ('recorded', against)},
            note=f'{found[against] / found["recorded"]:.2f} times as fast; {graph.recording.node_count} nodes; equal',
        )


def deciding(cp: Any) -> Iterator[Line]:
    """The solvers of ``samples/on_the_device.py``: the loop of the host against one launch that decides on the device.
    Both ways make the same number of steps, and give the same numbers."""
    spec = importlib.util.spec_from_file_location('on_the_device', SAMPLE)
    assert spec is not None and spec.loader is not None
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    for side in (64, 256, 1024):
        for name, (job, answer) in sample.jobs(side).items():
            yield _solved(cp, f'{name}, {side} x {side}', job, answer)


def _solved(cp: Any, name: str, job: Any, answer: Callable[[], Any]) -> Line:
    steps = job.on_the_host()
    wanted = answer().copy()
    graph, loop = job.recorded()
    graph.launch()
    error = float(abs(answer() - wanted).max() / abs(wanted).max())
    assert int(loop.passes) == steps and error < 1e-9, f'{name}: the device went another way'
    calls = {'on the device': finished(cp, graph.launch), 'on the host': finished(cp, job.on_the_host)}
    line = compared(f'{name}: decided on the device / on the host', calls, 'on the device', 'on the host', 5)
    faster = line.medians['on the host'] / line.medians['on the device']
    line.note = f'{steps} steps; {faster:.2f} times as fast; largest difference {error:.2g}'
    graph.close()
    return line


def fusion(cp: Any) -> Iterator[Line]:
    """``graph.fuse()``: launches of fused graphs beside those of graphs as recorded, bare CuPy, and the memory's own
    speed. The heat equation is made of shifted views (``roll``), of which little is fused yet."""
    values = np.random.default_rng(0)

    def made(shape: tuple[int, ...], low: float, high: float) -> Any:
        return cp.asarray(values.uniform(low, high, shape).astype('f4'))

    for size in (1, 32):
        yield _fused(cp, f'GELU {size}x3x224x224', gelu, (made((size, 3, 224, 224), -3, 3),))
    options = 4_000_000
    given = (made((options,), 50, 150), made((options,), 50, 150), made((options,), 0.1, 3))
    yield _fused(cp, f'Black-Scholes, {options:,} options', black_scholes, given)
    yield _fused(cp, 'heat equation 2048 x 2048, 10 steps by roll', heat, (made((2048, 2048), 0, 1),))


def gelu(cp: Any, x: Any) -> tuple[Any, ...]:
    return (0.5 * x * (1 + cp.tanh(0.7978845608 * (x + 0.044715 * x**3))),)


def black_scholes(cp: Any, price: Any, strike: Any, years: Any) -> tuple[Any, ...]:
    """The prices of call and put options, by an approximation of the normal distribution."""

    def normal(d: Any) -> Any:
        return 0.5 * (1 + cp.tanh(0.7978845608 * (d + 0.044715 * d * d * d)))

    rate, volatility = 0.02, 0.3
    spread = volatility * cp.sqrt(years)
    first = (cp.log(price / strike) + (rate + volatility * volatility / 2) * years) / spread
    second = first - spread
    discounted = strike * cp.exp(-rate * years)
    call = price * normal(first) - discounted * normal(second)
    return call, call - price + discounted


def heat(cp: Any, u: Any) -> tuple[Any, ...]:
    for _ in range(10):
        around = cp.roll(u, 1, 0) + cp.roll(u, -1, 0) + cp.roll(u, 1, 1) + cp.roll(u, -1, 1)
        u = u + 0.1 * (around - 4 * u)
    return (u,)


def _fused(cp: Any, name: str, work: Callable[..., Any], given: tuple[Any, ...]) -> Line:
    """The time of a fused graph's launch as a part of that of the graph as recorded, which give equal bits."""
    expected = [one.get().tobytes() for one in work(cp, *given)]
    graphs = {}
    for kind, fuse in (('recorded', False), ('fused', True)):
        with ck.capture(fuse=fuse) as cap:
            results = work(cp, *given)
        cap.graph.launch()
        cap.graph.launch()
        if [one.get().tobytes() for one in results] != expected:
            return Line(name, error=f'the graph ({kind}) gives other bits than CuPy')
        graphs[kind] = cap.graph
    report = graphs['fused'].fuse()
    calls = {kind: finished(cp, graph.launch) for kind, graph in graphs.items()}
    calls['cupy'] = finished(cp, lambda: work(cp, *given))
    half = sum(one.nbytes for one in (*given, *results)) // 2
    source, copy = (cp.empty(half, 'u1') for _ in range(2))
    calls['memory'] = finished(cp, lambda: copy.data.copy_from_device_async(source.data, half))
    line = compared(f'{name}: fused / recorded', calls, 'fused', 'recorded', 15, note=repr(report))
    for graph in graphs.values():
        graph.close()
    return line
