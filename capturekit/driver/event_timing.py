"""Measures the durations of a graph's nodes: a clone of the graph, with events around each node, is launched.

An event record node stamps the device's clock when all nodes before it have ended. In the clone, each node that takes
time lies between two of them, its *marks*. One mark comes before all other nodes and one after them all. After that
one comes a row of marks with nothing in between: the time between these is the cost of a mark. Times are not corrected
here, but in :mod:`capturekit.graph.measure`, where the edges are known.

CUDA Driver API, "Graph Management": ``cuGraphClone``, ``cuGraphNodeFindInClone``, ``cuGraphAddEventRecordNode``,
``cuGraphAddDependencies``, ``cuGraphRemoveDependencies``; "Event Management": ``cuEventElapsedTime``, whose resolution
is about half a microsecond.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from capturekit.driver.graph_edges import EdgeWriter
from capturekit.driver.node_reader import Reader
from capturekit.model.errors import CudaCallError
from capturekit.model.lease import Lease
from capturekit.model.progress import progress

#: Kinds of nodes that take time. Other nodes only order work, or wait for something outside of the graph.
TIMED = frozenset(('kernel', 'memcpy', 'memset', 'host', 'graph'))
#: Pairs of marks with nothing between them, in each launch.
_PAIRS = 16


@dataclass
class Times:
    """The device's measurements, in microseconds, uncorrected.

    Attributes:
        source: 'measured', or 'modelled' by the simulated device.
        plain: the time of each launch of the graph itself, in a row of launches.
        marked: the time of each launch of the other graph, from its first mark to the one after all nodes; or, with the
            profiler, from the first start to the last end.
        mark: from one mark to the next, with nothing between them; or from one event to the next on the stream.
        nodes: by a node's handle in the measured graph, for each launch of the other graph: the times of its start mark
            and its end mark, counted from the first mark; or its start and end, counted from the first start.
        by: 'events', 'profiler' (:mod:`capturekit.driver.cupti`) or 'model'.
        note: a remark for the user on these times; or ''.
    """

    source: str
    plain: list[float] = field(default_factory=list)
    marked: list[float] = field(default_factory=list)
    mark: list[float] = field(default_factory=list)
    nodes: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    by: str = 'events'
    note: str = ''


class Exit(Lease):
    """Destroys everything that was made in the block; a refusal is raised unless the block itself has raised."""

    def __exit__(self, *raised: object) -> None:
        try:
            self.release()
        except CudaCallError:
            if raised[1] is None:
                raise


@dataclass(frozen=True)
class _Mark:
    """An event record node and its event."""

    node: int
    event: int


@dataclass(frozen=True)
class _Marked:
    """The marks of a clone: the first, those around each node, then the one after all nodes and those after it."""

    first: _Mark
    around: dict[int, tuple[_Mark, _Mark]]
    behind: list[_Mark]


class Marker(EdgeWriter):
    """Puts marks into the driver's graphs. ``exit`` destroys what it makes."""

    def __init__(self, reader: Reader, exit: Exit) -> None:
        super().__init__(reader)
        self._exit = exit

    # -- events -------------------------------------------------------------------------------------------------

    def event(self) -> int:
        """``cuEventCreate``, with timing."""
        event = ctypes.c_void_p()
        self._call('cuEventCreate', ctypes.byref(event), ctypes.c_uint(0))
        made = event.value or 0
        self._exit.add(partial(self._call, 'cuEventDestroy_v2', ctypes.c_void_p(made)))
        return made

    def record(self, event: int, s: int) -> None:
        """``cuEventRecord``."""
        self._call('cuEventRecord', ctypes.c_void_p(event), ctypes.c_void_p(s))

    def elapsed(self, first: int, second: int) -> float:
        """``cuEventElapsedTime``, in microseconds."""
        milliseconds = ctypes.c_float()
        pair = ctypes.c_void_p(first), ctypes.c_void_p(second)
        self._call('cuEventElapsedTime', ctypes.byref(milliseconds), *pair)
        return milliseconds.value * 1e3

    # -- nodes --------------------------------------------------------------------------------------------------

    def in_clone(self, node: int, clone: int) -> int:
        """``cuGraphNodeFindInClone``."""
        found = ctypes.c_void_p()
        self._call('cuGraphNodeFindInClone', ctypes.byref(found), ctypes.c_void_p(node), ctypes.c_void_p(clone))
        return found.value or 0

    def mark(self, graph: int, after: Sequence[int]) -> _Mark:
        """``cuGraphAddEventRecordNode``, of an event of its own."""
        event, node = self.event(), ctypes.c_void_p()
        before = (ctypes.c_void_p * max(len(after), 1))(*after)
        self._call(
            'cuGraphAddEventRecordNode', ctypes.byref(node), ctypes.c_void_p(graph), before if after else None,
            ctypes.c_size_t(len(after)), ctypes.c_void_p(event),
        )  # fmt: skip
        return _Mark(node.value or 0, event)

    # -- a whole graph ------------------------------------------------------------------------------------------

    def mark_all(self, graph: int, timed: Sequence[int]) -> _Marked:
        """Put marks around the nodes ``timed`` of a graph, and those that all others are measured against.

        Later nodes come after a node's end mark, so that a row of nodes stays a row, on one queue of the device.
        An edge that let a kernel begin before the end of another one (programmatic launch) becomes an ordinary one.
        """
        nodes, edges = self._reader.handles(graph), self.edges(graph)
        first = self.mark(graph, ())
        around = {node: (self.mark(graph, ()), self.mark(graph, (node,))) for node in timed}
        heads = {node: start.node for node, (start, _end) in around.items()}
        tails = {node: end.node for node, (_start, end) in around.items()}
        moved = [edge for edge in edges if edge[0] in tails or edge[1] in heads]
        self.remove(graph, moved)
        led_to, left = {b for _a, b, _how in edges}, {a for a, _b, _how in edges}
        new = [(tails.get(a, a), heads.get(b, b)) for a, b, _how in moved]
        new += [(start, node) for node, start in heads.items()]
        new += [(first.node, heads.get(node, node)) for node in nodes if node not in led_to]
        self.add(graph, new)
        ends = [end.node for node, (_start, end) in around.items() if node not in left]
        ends += [node for node in nodes if node not in left and node not in around]
        behind = [self.mark(graph, ends or (first.node,))]
        for _ in range(2 * _PAIRS):
            behind.append(self.mark(graph, (behind[-1].node,)))
        return _Marked(first, around, behind)


def timed_nodes(reader: Reader, g: int, off: Sequence[int]) -> dict[int, str]:
    """The nodes that take time, and their kinds; without the nodes ``off``."""
    kinds = {node: reader.kind(node) for node in reader.handles(g) if node not in set(off)}
    return {node: kind for node, kind in kinds.items() if kind in TIMED}


#: What launches of the graph itself took, and what lies between two events with nothing between them.
Launched = tuple[list[float], list[float]]


def measured(
    device: Any,
    reader: Reader,
    g: int,
    x: int,
    s: int,
    launches: int,
    warmup: int,
    off: Sequence[int],
    by_node_priority: bool = False,
    launched: Launched | None = None,
) -> Times:
    """Measure by events, for :meth:`capturekit.driver.cupti.Timing.graph_measure`. ``launched``: launches without
    marks."""
    times = Times('measured')
    with Exit() as exit:
        marker = Marker(reader, exit)
        times.plain, _marks = launched or plain(device, marker, exit, x, s, launches, warmup)
        clone = device.graph_clone(g)
        exit.add(partial(device.graph_destroy, clone))
        handles = {node: marker.in_clone(node, clone) for node in timed_nodes(reader, g, off)}
        switched = [marker.in_clone(node, clone) for node in off]
        marked = marker.mark_all(clone, list(handles.values()))
        copy = device.graph_instantiate(clone, by_node_priority)
        exit.add(partial(device.graph_exec_destroy, copy))
        for node in switched:
            device.node_enable(copy, node, False)
        device.graph_upload(copy, s)
        # what is destroyed must not be running: the graph's memory may be given back right after an interrupt
        exit.add(partial(device.stream_synchronize, s))
        with progress('measuring launches', warmup + launches) as step:
            for number in range(warmup + launches):
                device.graph_launch(copy, s)
                device.stream_synchronize(s)
                if number >= warmup:
                    _read(times, marker, marked, handles)
                step()
    return times


def plain(device: Any, marker: Marker, exit: Exit, x: int, s: int, launches: int, warmup: int) -> Launched:
    """Make launches in a row, and then record events with nothing between them.

    In a row, the host's time for a launch is hidden by the launch before, if that takes longer.
    """
    events = [marker.event() for _ in range(warmup + launches + 1 + _PAIRS)]
    exit.add(partial(device.stream_synchronize, s))
    marker.record(events[0], s)
    for event in events[1:-_PAIRS]:
        device.graph_launch(x, s)
        marker.record(event, s)
    for event in events[-_PAIRS:]:
        marker.record(event, s)
    device.stream_synchronize(s)
    spans = [marker.elapsed(a, b) for a, b in pairwise(events)]
    return spans[warmup:-_PAIRS], spans[-_PAIRS:]


def _read(times: Times, marker: Marker, marked: _Marked, handles: dict[int, int]) -> None:
    """Read the events of one launch of the clone."""
    first = marked.first.event
    for node, copy in handles.items():
        start, end = marked.around[copy]
        pair = marker.elapsed(first, start.event), marker.elapsed(first, end.event)
        times.nodes.setdefault(node, []).append(pair)
    stamps = [marker.elapsed(first, mark.event) for mark in marked.behind]
    times.marked.append(stamps[0])
    times.mark += [b - a for a, b in pairwise(stamps)]
