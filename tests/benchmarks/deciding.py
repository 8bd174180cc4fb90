"""The solvers of ``samples/on_the_device.py``: the loop of the host against one launch that decides on the device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, now

SAMPLE = Path(__file__).parents[2] / 'samples' / 'on_the_device.py'
SIDES = (64, 256, 1024)


def solvers(cp: Any) -> Iterator[Line]:
    """Whole solves, waited for. Both ways make the same number of steps, and give the same numbers."""
    spec = importlib.util.spec_from_file_location('on_the_device', SAMPLE)
    assert spec is not None and spec.loader is not None
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    for side in SIDES:
        for name, (job, answer) in sample.jobs(side).items():
            yield solved(cp, f'{name}, {side} x {side}', job, answer)


def solved(cp: Any, name: str, job: Any, answer: Callable[[], Any]) -> Line:
    steps = job.on_the_host()
    wanted = answer().copy()
    graph, loop = job.recorded()
    graph.launch()
    error = float(abs(answer() - wanted).max() / abs(wanted).max())
    assert int(loop.passes) == steps and error < 1e-9, f'{name}: the device went another way'
    with no_garbage_collection():
        calls = {'on the device': finished(cp, graph.launch), 'on the host': finished(cp, job.on_the_host)}
        found = medians(in_turn(5, calls))
    graph.close()
    return Line(
        f'{name}: decided on the device / on the host',
        found['on the device'] / found['on the host'],
        medians=found,
        note=f'{steps} steps; {found["on the host"] / found["on the device"]:.2f} times as fast; largest difference '
        f'{error:.2g}',
    )


def finished(cp: Any, call: Callable[[], Any]) -> Callable[[], float]:
    def timed() -> float:
        cp.cuda.Device().synchronize()
        start = now()
        call()
        cp.cuda.Device().synchronize()
        return now() - start

    return timed
