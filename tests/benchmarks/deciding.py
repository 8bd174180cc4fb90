"""Solvers that decide when they are done: on the host against on the device, waited for. Results are checked first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.one_stream import sample
from tests.benchmarks.timing import Line, compared, finished


def deciding(cp: Any) -> Iterator[Line]:
    """The solvers of ``samples/on_the_device.py``: the loop of the host against one launch that decides on the device.
    Both ways make the same number of steps, and give the same numbers."""
    solvers = sample('on_the_device')
    for side in (64, 256, 1024):
        for name, (job, answer) in solvers.jobs(side).items():
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
