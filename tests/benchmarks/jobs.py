"""The main jobs, eager against recorded: the signal pipeline and the heat equation of ``tests.gpu.workloads``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import capturekit as ck
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, now, recorded
from tests.gpu import workloads

STEPS = 10


def main_jobs(cp: Any) -> Iterator[Line]:
    """Time from the first call until the device has finished, so with all that the host does."""
    x = workloads.signal(cp)
    outs = {name: cp.zeros_like(x) for name in ('alone', 'lanes', 'recorded')}
    pipeline = recorded(lambda cap: workloads.pipeline(cp, x, outs['recorded'], cap.fork))
    yield from compared(
        cp,
        f'signal pipeline, two branches, {x.size:,} samples',
        pipeline.graph,
        lambda: workloads.pipeline(cp, x, outs['alone'], workloads.one_stream),
        lambda: workloads.pipeline(cp, x, outs['lanes'], ck.fork),
        lambda: all(bool((outs[name] == outs['alone']).all()) for name in outs),
    )
    for side in (workloads.SIDE, workloads.SIDE // 8):
        yield from stencil(cp, side)


def stencil(cp: Any, side: int) -> Iterator[Line]:
    plates = {name: (workloads.plate(cp, side), workloads.plate(cp, side)) for name in ('alone', 'lanes', 'recorded')}
    cap = recorded(lambda cap: workloads.heat(cp, *plates['recorded'], cap.fork, STEPS))
    yield from compared(
        cp,
        f'heat equation, two lanes, {side} x {side}, {STEPS} steps',
        cap.graph,
        lambda: workloads.heat(cp, *plates['alone'], workloads.one_stream, STEPS),
        lambda: workloads.heat(cp, *plates['lanes'], ck.fork, STEPS),
        lambda: all(bool((u == plates['alone'][0]).all()) for u, _v in plates.values()),
    )


def compared(
    cp: Any,
    name: str,
    graph: ck.Graph,
    alone: Callable[[], None],
    lanes: Callable[[], None],
    equal: Callable[[], bool],
) -> Iterator[Line]:
    """All three run equally often, so that their results are equal at the end."""
    calls = {'recorded': graph.launch, 'eager': alone, 'eager on two streams': lanes}
    with no_garbage_collection():
        found = medians(in_turn(30, {key: finished(cp, call) for key, call in calls.items()}))
    same = equal()
    assert same, f'{name}: recorded and eager differ'
    for against in ('eager', 'eager on two streams'):
        yield Line(
            f'{name}: recorded / {against}',
            found['recorded'] / found[against],
            medians={key: found[key] for key in ('recorded', against)},
            note=f'{found[against] / found["recorded"]:.2f} times as fast; {graph.recording.node_count} nodes; equal',
        )


def finished(cp: Any, call: Callable[[], Any]) -> Callable[[], float]:
    """A function that returns the seconds from a call until the device has done its work."""

    def timed() -> float:
        start = now()
        call()
        cp.cuda.runtime.deviceSynchronize()
        return now() - start

    return timed
