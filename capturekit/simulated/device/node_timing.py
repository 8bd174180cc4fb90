"""How long the nodes of a graph take on the simulated device: by a model, and said to be so.

A node takes :data:`NODE_US`, and one microsecond more for each :data:`BYTES_PER_US` bytes that it reads or writes: of
a kernel those of the arrays among its arguments, of a copy both ends. A child graph takes as long as its nodes. A node
starts as soon as all that it comes after have ended, however many run at once, so that priorities change nothing. A
model shows which nodes may overlap, what waits for what, and the shape of the thing; it is no prediction of any
device's times. It is the same at each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

from capturekit.driver.event_timing import TIMED, Times
from capturekit.model.errors import CudaCallError
from capturekit.model.progress import progress
from capturekit.model.rules import Code
from capturekit.simulated.device.graph_nodes import ExecutableGraph, GraphDefinition, GraphNode
from capturekit.simulated.device.node_changes import _NOT_COPIED

#: Microseconds that every node takes.
NODE_US = 2.0
#: Bytes that a node reads or writes in one microsecond: 1 TB/s.
BYTES_PER_US = 1_000_000


def modelled(nodes: Iterable[GraphNode], off: Collection[int] = ()) -> dict[GraphNode, tuple[float, float]]:
    """Start and end of each node, in microseconds from the beginning of a launch. ``off``: handles of disabled ones."""
    found: dict[GraphNode, tuple[float, float]] = {}
    nodes = list(nodes)
    for node in TopologicalSorter({node: node.after for node in nodes}).static_order():
        start = max((found[a][1] for a in node.after), default=0.0)
        found[node] = (start, start + (0.0 if node.handle in off else _took(node)))
    return found


def _took(node: GraphNode) -> float:
    if node.kind not in TIMED:
        return 0.0
    if node.inside is not None:
        return max((end for _start, end in modelled(node.inside.nodes).values()), default=0.0)
    return NODE_US + (0 if node.given is None else _bytes(node.given.values)) / BYTES_PER_US


def _bytes(values: Mapping[str, Any]) -> int:
    """Bytes that a node reads and writes."""
    return int(values.get('bytes', 0)) * (2 if 'src' in values else 1) + _of(values.get('args', ()))


def _of(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_of, value))
    return math.prod(value.shape) * int(value.dtype.itemsize) if hasattr(value, 'ptr') else 0


class Timing:
    """The verb that measures, of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    _lock: Any
    _graph: Callable[[int], GraphDefinition]
    _exec: Callable[[int], ExecutableGraph]
    graph_launch: Callable[[int, int], None]

    def graph_measure(
        self,
        g: int,
        x: int,
        s: int,
        launches: int,
        warmup: int,
        off: Sequence[int] = (),
        by: str | None = None,
        by_node_priority: bool = False,
        several: bool = False,
    ) -> Times:
        """Launch ``x`` as often as a device would launch it and the other graph; tell what the model says of ``g``."""
        with self._lock:
            graph = self._graph(g)
            if any(node.kind in _NOT_COPIED for node in graph.nodes):
                raise CudaCallError(Code.cudaErrorNotSupported, 'graphClone')
            spans = modelled(graph.nodes, off)
        with progress('measuring launches', 2 * (warmup + launches)) as step:
            for _ in range(2 * (warmup + launches)):
                self.graph_launch(x, s)
                step()
        end = [max((end for _start, end in spans.values()), default=0.0)] * launches
        told = {n.handle: [span] * launches for n, span in spans.items() if n.kind in TIMED and n.handle not in off}
        return Times('modelled', list(end), list(end), [0.0], told, by='model')

    def graph_time(self, x: int, s: int, in_a_row: int = 1) -> float:
        """Tell how long one launch of an executable graph takes by the model, in microseconds.

        Two launches stand for any number of them in a row, since the model gives the same time for each.
        """
        with self._lock:
            executable = self._exec(x)
            spans = modelled(executable.nodes, {node.handle for node in executable.off})
        for _ in range(min(in_a_row, 2)):
            self.graph_launch(x, s)
        return max((end for _start, end in spans.values()), default=0.0)
