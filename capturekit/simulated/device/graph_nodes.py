"""Definitions and executable graphs of the simulated device: nodes, what they were given, the edges between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Given:
    """What a node was given, how its work is made of that, and whether other values may take the place of these.

    ``writes`` are the numbers of the arguments that the work writes; None where only the kernel's author knows.
    ``beside`` is what it reads that is no argument. ``each`` does the work on values in the place of the arguments, if
    the work does the same to each element: it writes into those that ``writes`` names. ``whole`` does it on arrays.
    """

    values: Mapping[str, Any]
    make: Callable[..., Callable[[], None]]
    fits: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = lambda old, new: True
    writes: frozenset[int] | None = None
    beside: Any = ()
    each: Callable[[Sequence[Any]], None] | None = None
    whole: Callable[[Sequence[Any]], None] | None = None

    def work(self) -> Callable[[], None]:
        return self.make(**self.values)

    def but(self, **values: Any) -> Given:
        return replace(self, values={**self.values, **values})


@dataclass(eq=False)
class GraphNode:
    work: Callable[[], None]
    name: str
    kind: str
    after: frozenset[GraphNode]
    handle: int
    condition: int = 0
    #: The stream's that a kernel was recorded on.
    priority: int = 0
    #: What a conditional node decides: if, while or switch; and the graphs that it may run.
    decides: str = ''
    bodies: tuple[GraphDefinition, ...] = ()
    #: What the work was made of, where that can be changed; of a child graph, what it runs.
    given: Given | None = None
    child: ExecutableGraph | None = None
    #: The child graph, to be looked into.
    inside: GraphDefinition | None = None


@dataclass(eq=False)
class GraphDefinition:
    handle: int
    nodes: list[GraphNode] = field(default_factory=list)
    #: Handle of each condition created on this graph -> its value when a launch begins.
    conditions: dict[int, int] = field(default_factory=dict)
    is_body: bool = False
    #: A conditional node was taken out, and its condition is left without one.
    maimed: bool = False
    #: CUDA has destroyed it with a capture into it that was lost.
    destroyed: bool = False
    #: Where nodes were found, by their handles.
    places: dict[int, int] = field(default_factory=dict, repr=False)

    def has_lost_a_body(self) -> bool:
        """Whether CUDA has destroyed a body of a node: who destroys or instantiates this graph ends the process."""
        return any(body.destroyed or body.has_lost_a_body() for node in self.nodes for body in node.bodies)

    def node(self, handle: int) -> GraphNode | None:
        """The node of this handle; None if there is none."""
        at = self.places.get(handle, -1)
        if not 0 <= at < len(self.nodes) or self.nodes[at].handle != handle:
            self.places = {node.handle: n for n, node in enumerate(self.nodes)}
            at = self.places.get(handle, -1)
        return None if at < 0 else self.nodes[at]


@dataclass(eq=False)
class ExecutableGraph:
    """A graph as it was when it was instantiated, with its bodies."""

    nodes: list[GraphNode]
    bodies: dict[GraphNode, tuple[ExecutableGraph, ...]]
    conditions: dict[int, int]
    #: What each node does, as it was then; those that are disabled; and the nodes by the handles of the graph's own.
    works: dict[GraphNode, Callable[[], None]] = field(default_factory=dict)
    given: dict[GraphNode, Given | None] = field(default_factory=dict)
    children: dict[GraphNode, ExecutableGraph] = field(default_factory=dict)
    off: set[GraphNode] = field(default_factory=set)
    anchors: dict[int, GraphNode] = field(default_factory=dict)
    by_priority: bool = False
    priorities: dict[GraphNode, int] = field(default_factory=dict)
    #: The handle of the graph that it was made of.
    source: int = 0

    @classmethod
    def of(cls, graph: GraphDefinition, by_priority: bool = False) -> ExecutableGraph:
        bodies = {n: tuple(cls.of(body) for body in n.bodies) for n in graph.nodes if n.bodies}
        conditions = dict(graph.conditions)
        for body in itertools.chain(*bodies.values()):
            conditions.update(body.conditions)
        made = cls(list(graph.nodes), bodies, conditions, by_priority=by_priority)
        made.works = {n: n.work for n in graph.nodes}
        made.given = {n: n.given for n in graph.nodes}
        made.priorities = {n: n.priority for n in graph.nodes}
        made.children = {n: n.child for n in graph.nodes if n.child is not None}
        made.anchors = {n.handle: n for n in graph.nodes}
        return made

    def as_now(self) -> ExecutableGraph:
        """What a launch runs that waits, whatever becomes of the graph meanwhile."""
        return replace(self, works=dict(self.works), children=dict(self.children), off=set(self.off))

    def allocates_in_a_body(self) -> bool:
        """Whether a body has nodes that allocate or free memory: CUDA then fails to instantiate, or crashes."""
        bodies = list(itertools.chain(*self.bodies.values()))
        kinds = {node.kind for body in bodies for node in body.nodes}
        return not kinds.isdisjoint(('memAlloc', 'memFree')) or any(body.allocates_in_a_body() for body in bodies)

    def used(self) -> set[int]:
        """Conditions that conditional nodes ask for."""
        inside = (body.used() for body in itertools.chain(*self.bodies.values()))
        return {n.condition for n in self.bodies}.union(*inside)
