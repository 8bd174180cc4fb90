"""``graph.rebind`` against copying the input into the array that the graph reads, by size and by number of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import capturekit as ck
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, now

SIZES = (1 << 10, 1 << 20, 1 << 24, 1 << 27, 1 << 30)
NODES = (1, 10, 100)


def against_copies(cp: Any) -> Iterator[Line]:
    """A launch on other data, waited for: the data copied in, or the graph aimed at where it lies."""
    for nodes in NODES:
        for nbytes in SIZES if nodes == 1 else SIZES[:3]:
            yield compared(cp, nodes, nbytes)


def compared(cp: Any, nodes: int, nbytes: int) -> Line:
    """Each node reads one element of the input, so that what is timed is the way there."""
    inputs = [cp.zeros(nbytes, 'u1'), cp.ones(nbytes, 'u1')]
    x, out = cp.zeros(nbytes, 'u1'), cp.zeros(nodes, 'u1')
    with ck.capture() as copied:
        read(cp, x, out)
    with ck.capture() as aimed:
        read(cp, inputs[0], out)
    state = {'copied': 0, 'aimed': 0}

    def copy() -> None:
        state['copied'] ^= 1
        cp.copyto(x, inputs[state['copied']])
        copied.graph.launch()

    def aim() -> None:
        old = inputs[state['aimed']]
        state['aimed'] ^= 1
        aimed.graph.rebind((old, inputs[state['aimed']]))
        aimed.graph.launch()

    for name, call in (('copied', copy), ('aimed', aim)):
        call()
        assert out.get().tolist() == [state[name]] * nodes, name
    with no_garbage_collection():
        found = medians(in_turn(15, {'rebind': finished(cp, aim), 'copy': finished(cp, copy)}))
    for cap in (copied, aimed):
        cap.graph.close()
    return Line(
        f'{nodes} nodes, an input of {size(nbytes)}: rebind and launch / copy and launch',
        found['rebind'] / found['copy'],
        medians=found,
    )


def read(cp: Any, x: Any, out: Any) -> None:
    for node in range(out.size):
        cp.add(x[node : node + 1], 0, out=out[node : node + 1])


def size(nbytes: int) -> str:
    units = ((1 << 30, 'GB'), (1 << 20, 'MB'), (1 << 10, 'kB'))
    unit, name = next(found for found in units if nbytes >= found[0])
    return f'{nbytes // unit} {name}'


def finished(cp: Any, call: Callable[[], None]) -> Callable[[], float]:
    def timed() -> float:
        cp.cuda.Device().synchronize()
        start = now()
        call()
        cp.cuda.Device().synchronize()
        return now() - start

    return timed
