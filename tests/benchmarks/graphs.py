"""What a graph that is there costs to change: update it, aim it at other arrays, give it the edges that data needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import capturekit as ck
from tests.benchmarks.timing import Line, compared, finished, recorded, seconds

KILO, MEGA, GIGA = 1 << 10, 1 << 20, 1 << 30


def updating(cp: Any) -> Iterator[Line]:
    """A row of kernels of each length, recorded again: into the graph that is there, or into a new one."""
    x = cp.arange(1024, dtype='f8')

    def record(count: int, value: float) -> Callable[..., None]:
        def work(_cap: Any = None) -> None:
            for _ in range(count):
                cp.add(x, value, x)

        return work

    for count in (10, 100, 1_000, 10_000):
        graph = recorded(record(count, 1.0), lines=False).graph
        yield _recorded_again(graph, record(count, 3.0), f'{count:,} nodes', 25 if count < 10_000 else 7)
        graph.close()


def _recorded_again(graph: ck.Graph, work: Callable[[], None], nodes: str, repeats: int) -> Line:
    made: list[ck.Graph] = []

    def update() -> None:
        with ck.capture(update=graph, lines=False) as cap:
            work()
        assert cap.update.how == 'updated'

    def anew() -> None:
        with ck.capture(lines=False) as cap:
            work()
        made.append(cap.graph)

    def anew_and_closed() -> float:
        taken = seconds(anew)
        made.pop().close()
        return taken

    calls = {'update': lambda: seconds(update), 'record': anew_and_closed}
    name = f'{nodes} recorded again: with update=graph / without'
    return compared(name, calls, 'update', 'record', repeats, target=1.0)


def rebinding(cp: Any) -> Iterator[Line]:
    """A launch on other data, waited for: the data copied in, or the graph aimed at where it lies."""
    sizes = {'1 kB': KILO, '1 MB': MEGA, '16 MB': 16 * MEGA, '128 MB': 128 * MEGA, '1 GB': GIGA}
    for nodes in (1, 10, 100):
        for size, nbytes in list(sizes.items())[: 5 if nodes == 1 else 3]:
            yield _rebound(cp, nodes, size, nbytes)


def _rebound(cp: Any, nodes: int, size: str, nbytes: int) -> Line:
    """Each node reads one element of the input, so that what is timed is the way there."""
    inputs = [cp.zeros(nbytes, 'u1'), cp.ones(nbytes, 'u1')]
    x, out = cp.zeros(nbytes, 'u1'), cp.zeros(nodes, 'u1')

    def read(source: Any) -> None:
        for node in range(nodes):
            cp.add(source[node : node + 1], 0, out=out[node : node + 1])

    copied, aimed = (recorded(lambda _cap, source=source: read(source)).graph for source in (x, inputs[0]))
    state = {'copied': 0, 'aimed': 0}

    def copy() -> None:
        state['copied'] ^= 1
        cp.copyto(x, inputs[state['copied']])
        copied.launch()

    def aim() -> None:
        old = inputs[state['aimed']]
        state['aimed'] ^= 1
        aimed.rebind((old, inputs[state['aimed']]))
        aimed.launch()

    for name, call in (('copied', copy), ('aimed', aim)):
        call()
        assert out.get().tolist() == [state[name]] * nodes, name
    calls = {'rebind': finished(cp, aim), 'copy': finished(cp, copy)}
    name = f'{nodes} nodes, an input of {size}: rebind and launch / copy and launch'
    line = compared(name, calls, 'rebind', 'copy', 15)
    copied.close()
    aimed.close()
    return line


def relaning(cp: Any, nodes: int = 10_000, within: float = 3.0) -> Iterator[Line]:
    """The time of relaning nodes on some arrays in turn, all recorded on one lane."""
    arrays = [cp.zeros(16) for _ in range(100)]
    taken = []

    def record(_cap: Any) -> None:
        for node in range(nodes):
            cp.add(arrays[node % len(arrays)], 1, out=arrays[node % len(arrays)])

    for _ in range(3):
        graph = recorded(record, lines=False).graph
        taken.append(seconds(graph.relane))
        assert len(graph.edges) == nodes - len(arrays)
        graph.close()
    best = min(taken)
    name = f'{nodes:,} nodes: relane() / {within:.0f} s'
    yield Line(name, best / within, target=1.0, medians={'relane': best * 1e6})
