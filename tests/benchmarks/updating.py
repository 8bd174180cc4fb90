"""What a graph that is there costs to change: updated in place against instantiated, and one node against all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import capturekit as ck
from capturekit.driver.cuda import current
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, recorded, seconds

SIZES = (10, 100, 1_000, 10_000)


def updating(cp: Any) -> Iterator[Line]:
    """A row of kernels of each length; both definitions are there before anything is timed."""
    device = current().device
    x = cp.arange(1024, dtype='f8')

    def record(count: int, value: float) -> Callable[[], None]:
        def work() -> None:
            for _ in range(count):
                cp.add(x, value, x)

        return work

    for count in SIZES:
        pair = []
        for value in (1.0, 2.0):
            work = record(count, value)
            pair.append(recorded(lambda _cap, work=work: work(), lines=False).graph)
        graph, other = pair
        repeats = 25 if count < SIZES[-1] else 7
        with no_garbage_collection():
            yield _drivers(device, graph, other, count, repeats)
            yield _loops(graph, record(count, 3.0), count, repeats)
            yield _nodes(graph, count, repeats)
        for one in pair:
            one.close()


def _drivers(device: Any, graph: ck.Graph, other: ck.Graph, count: int, repeats: int) -> Line:
    made: list[int] = []
    definitions = [other.graph, graph.graph]

    def update() -> float:
        definitions.reverse()
        return seconds(lambda: device.graph_exec_update(graph.graphExec, definitions[0]))

    def instantiate() -> float:
        taken = seconds(lambda: made.append(device.graph_instantiate(other.graph)))
        device.graph_exec_destroy(made.pop())
        return taken

    found = medians(in_turn(repeats, {'update': update, 'instantiate': instantiate}))
    assert device.graph_exec_update(graph.graphExec, graph.graph) == ('', 0)
    return Line(
        f'{count:,} nodes: cudaGraphExecUpdate / cudaGraphInstantiate',
        found['update'] / found['instantiate'],
        target=1.0,
        medians=found,
    )


def _loops(graph: ck.Graph, work: Callable[[], None], count: int, repeats: int) -> Line:
    def update() -> float:
        def run() -> None:
            with ck.capture(update=graph, lines=False) as cap:
                work()
            assert cap.update.how == 'updated'

        return seconds(run)

    def anew() -> float:
        def run() -> None:
            with ck.capture(lines=False) as cap:
                work()
            made.append(cap.graph)

        made: list[ck.Graph] = []
        taken = seconds(run)
        made.pop().close()
        return taken

    found = medians(in_turn(repeats, {'update': update, 'record': anew}))
    return Line(
        f'{count:,} nodes recorded again: ck.capture(update=graph) / ck.capture()',
        found['update'] / found['record'],
        target=1.0,
        medians=found,
    )


def _nodes(graph: ck.Graph, count: int, repeats: int) -> Line:
    values = iter(range(1 << 30))

    def one() -> float:
        return seconds(lambda: graph.set_kernel(count - 1, args={1: float(next(values))}))

    def switch() -> float:
        return seconds(lambda: (graph.disable(0), graph.enable(0)))

    found = medians(in_turn(repeats, {'set_kernel': one, 'disable and enable': switch}))
    return Line(
        f'{count:,} nodes: one kernel given another scalar / a node disabled and enabled',
        found['set_kernel'] / found['disable and enable'],
        medians=found,
    )
