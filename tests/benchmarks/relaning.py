"""``graph.relane()``: how long it takes, and what launches take with the edges that the data needs.

Nothing is gained where the data needs the order (one array), nor where a kernel fills the device (the large size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import capturekit as ck
from tests.benchmarks.jobs import finished
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, recorded, seconds

NODES = 10_000
#: Seconds in which as many nodes are to be relaned.
WITHIN = 3.0


def lines(cp: Any) -> Iterator[Line]:
    """The time of relaning, then launches of graphs of one lane."""
    yield relaning(cp)
    for arrays in (1, 8, 64):
        for size in (1 << 10, 1 << 22):
            yield launching(cp, arrays, size)


def work(cp: Any, arrays: list[Any], nodes: int) -> Callable[[Any], None]:
    """Nodes on some arrays in turn, all recorded on one lane."""

    def record(_cap: Any) -> None:
        for node in range(nodes):
            cp.add(arrays[node % len(arrays)], 1, out=arrays[node % len(arrays)])

    return record


def relaning(cp: Any) -> Line:
    arrays = [cp.zeros(16) for _ in range(100)]
    taken = []
    for _ in range(3):
        graph = recorded(work(cp, arrays, NODES), lines=False).graph
        taken.append(seconds(graph.relane))
        assert len(graph.edges) == NODES - len(arrays)
        graph.close()
    best = min(taken)
    return Line(
        f'{NODES:,} nodes: relane() / {WITHIN:.0f} s', best / WITHIN, target=1.0, medians={'relane': best * 1e6}
    )


def launching(cp: Any, count: int, size: int) -> Line:
    """The same work recorded twice on one lane, and one of the two relaned."""
    pairs: list[tuple[list[Any], ck.Graph]] = []
    for _ in range(2):
        arrays = [cp.zeros(size) for _ in range(count)]
        pairs.append((arrays, recorded(work(cp, arrays, 256), lines=False).graph))
    report = pairs[1][1].relane()
    graphs = {name: graph for name, (_arrays, graph) in zip(('recorded', 'relaned'), pairs)}
    for graph in graphs.values():
        graph.launch()
    assert all(bool((a == b).all()) for a, b in zip(pairs[0][0], pairs[1][0]))
    with no_garbage_collection():
        found = medians(in_turn(15, {name: finished(cp, graph.launch) for name, graph in graphs.items()}))
    for graph in graphs.values():
        graph.close()
    return Line(
        f'256 nodes on {count} arrays of {size * 8 >> 10:,} kB, one lane: relaned / recorded',
        found['relaned'] / found['recorded'],
        medians=found,
        note=report.kept or report.compared,
    )
