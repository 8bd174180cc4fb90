"""The contents of a recorded graph: its nodes, with the lines and lanes that made them, and its edges.

Nodes are numbered in the order in which they were recorded, over all parts of a graph; the conditional nodes that
capturekit puts between parts come last. CUDA C++ Programming Guide, "Graph Structure".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from capturekit.driver.node_reader import NodeInfo, shortened
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Part
from capturekit.model.recording import NodeRecord, Recording, Span
from capturekit.model.source_line import Place

#: Values below are sizes and numbers, not device addresses: CUDA's unified addresses lie higher.
_LOWEST = 1 << 32


#: The depth of the node in bodies of others, the node, and its own bodies.
_Conditional = tuple[int, NodeInfo, list[int]]


@dataclass(frozen=True)
class PointerArgument:
    """An address among a node's arguments. ``of`` is 'own' (the graph's memory), 'kept' (an array from outside)."""

    address: int
    of: str


@dataclass(frozen=True)
class Node:
    """One node of a graph.

    Attributes:
        number: its place in the order of recording; ``graph.edges`` are pairs of these.
        kind: kernel, memcpy, memset, host, graph, empty, wait event, event record, semaphore signal, semaphore wait,
            mem alloc, mem free or conditional.
        name: a kernel's name, as in its source code.
        lane: the lane that it was recorded on. at: the line that recorded it. None where that is not known.
        detail: grid, block, shared (bytes) of a kernel; dst, src, value, bytes of copies and memsets.
        pointers: the addresses among its arguments that lie in memory that the graph has or keeps.
        inner: the nodes of a child graph, or of a conditional node's body.
    """

    number: int
    kind: str
    name: str = ''
    lane: int | None = None
    at: Place | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    pointers: tuple[PointerArgument, ...] = ()
    inner: tuple[Node, ...] = ()

    @property
    def words(self) -> str:
        """Its number, with its name and its line."""
        where = '' if self.at is None else f' of {self.at}'
        return f'node {self.number} ({shortened(self.name) or self.kind}{where})'

    def __str__(self) -> str:
        lane = '' if self.lane is None else f' on lane {self.lane}'
        at = '' if self.at is None else f', at {self.at}'
        return f'{self.number}: {self.kind}{" " if self.name else ""}{shortened(self.name)}{lane}{at}'


class Look:
    """One look at the graphs of a recording, part by part."""

    def __init__(self, device: Any, parts: Sequence[Part], spans: list[Span], memory: GraphMemory | None) -> None:
        self._device = device
        self._spans = spans
        self._starts = [span.first for span in spans]
        self._of = _owners(memory) if memory is not None else lambda _address: ''
        self.nodes: list[Node] = []
        self.edges: list[tuple[int, int]] = []
        #: The numbers of the nodes by their handles.
        self.numbers: dict[int, int] = {}
        #: The body graphs of conditional nodes, by the nodes' handles.
        self.bodies: dict[int, list[int]] = {}
        self._conditionals: list[_Conditional] = []
        self._graphs: list[int] = []
        for part in parts:
            self._walk(part.graph, 0, list(part.bodies), part.decided)
        self._bodies()
        for graph in self._graphs:
            self.edges += [(self.numbers[a], self.numbers[b]) for a, b in device.graph_edges(graph)]

    def _walk(self, graph: int, depth: int, waiting: list[int], decided: dict[int, list[int]]) -> None:
        """The nodes of a graph, and where a conditional node stands, those of its bodies: so they were recorded."""
        self._graphs.append(graph)
        for info in self._device.node_infos(graph):
            bodies = decided.get(info.handle) or ([waiting.pop(0)] if info.kind == 'conditional' and waiting else [])
            if not bodies:
                self._add(info)
                continue
            self.bodies[info.handle] = bodies
            self._conditionals.append((depth, info, bodies))
            for body in bodies:
                self._walk(body, depth + 1, waiting, decided)

    def _add(self, info: NodeInfo) -> None:
        number = self.numbers[info.handle] = len(self.nodes)
        found = bisect_right(self._starts, number) - 1
        span = self._spans[found] if found >= 0 and number < self._starts[found] + self._spans[found].count else None
        at = None if span is None else Place.from_json(span.at)
        self.nodes.append(self._node(info, number, None if span is None else span.lane, at))

    def _node(self, info: NodeInfo, number: int, lane: int | None, at: Place | None) -> Node:
        pointers = []
        for word in dict.fromkeys(info.words):
            of = self._of(word) if word >= _LOWEST else ''
            if of:
                pointers.append(PointerArgument(word, of))
        inner: tuple[Node, ...] = ()
        if info.inner:
            inner = tuple(self._node(one, n, lane, at) for n, one in enumerate(self._device.node_infos(info.inner)))
        return Node(number, info.kind, info.name, lane, at, info.detail, tuple(pointers), inner)

    def _bodies(self) -> None:
        """Conditional nodes come last; the innermost first, so that each finds those in its bodies."""
        numbers = self.numbers
        for _depth, info, bodies in sorted(self._conditionals, key=lambda one: -one[0]):
            number = numbers[info.handle] = len(self.nodes)
            inside: list[int] = []
            for body in bodies:
                found = [numbers[one.handle] for one in self._device.node_infos(body) if one.handle in numbers]
                inside += found
                behind = {b for _a, b in self._device.graph_edges(body)}
                handles = (one.handle for one in self._device.node_infos(body) if one.handle not in behind)
                self.edges += [(number, numbers[one]) for one in handles if one in numbers]
            lane = self.nodes[inside[0]].lane if inside else None
            self.nodes.append(Node(number, 'conditional', info.name, lane, inner=tuple(self.nodes[n] for n in inside)))


def _owners(memory: GraphMemory) -> Callable[[int], str]:
    """Return a function that says whose memory an address is: 'own', 'kept', or '' if neither."""
    things = (one for thing in memory.held() for one in (thing if isinstance(thing, list) else [thing]))
    held = sorted((int(p.mem.ptr), int(p.mem.ptr) + int(p.mem.size)) for p in things if hasattr(p, 'mem'))
    starts = [start for start, _end in held]

    def of(address: int) -> str:
        if memory.holds(address):
            return 'own'
        found = bisect_right(starts, address) - 1
        return 'kept' if found >= 0 and address < held[found][1] else ''

    return of


def fill(recording: Recording, look: Look) -> None:
    """Write the nodes and edges into the recording, as plain data."""
    recording.graph = [
        NodeRecord(
            node.kind,
            node.name,
            node.lane,
            None if node.at is None else node.at.to_json(),
            {**node.detail, **({'pointers': [[hex(p.address), p.of] for p in node.pointers]} if node.pointers else {})},
        )
        for node in look.nodes
    ]
    recording.arrows = look.edges
